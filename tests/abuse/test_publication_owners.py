"""Publications belong to the user who makes them: what another account with the same topics can do to them.

`app` publishes; `rival` may publish to the same topic, and knows query ids and handles of `app`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.published import BATCH_MAX, PublishedBatches
from penstock.broker.staging import Handle
from penstock.broker.table_journal import TableJournal
from penstock.client.async_producer import AsyncProducer
from penstock.metadata.publication_table import PublicationTable
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PublishStagedRequestHeader,
    StageMessagesRequestHeader,
    TellHomeRequestHeader,
)
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.guarded import ADMIN, APP, SECRET, USERS, caller, guarded, run

TABLE = Path("data") / "config" / PublicationTable.FILE_NAME
RIVAL = {"access_key": "rival", "secret_key": SECRET}
WITH_RIVAL = (
    USERS
    + f"""
[users.rival]
secret = "{SECRET}"
roles = ["producer"]
topics = ["orders"]
"""
)


class User:
    """One account and its connection."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self._address = address

    async def call(self, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> Command:
        return await self._client.call(self._address, Command(code, fields, body))

    async def stage(self, body: bytes = b"staged") -> str:
        fields = StageMessagesRequestHeader(producer_group="sink", born_timestamp=1).encode()
        items = encode_head([("orders", 1)]) + encode_item(0, body, b"UNIQ_KEY\x01U1\x02")
        answer = await self.call(RequestCode.STAGE_MESSAGES, fields, items)
        assert answer.code == 0, answer.remark
        return answer.fields["handle"]

    async def publish(self, query: str, batch: int, handle: str) -> Command:
        fields = PublishStagedRequestHeader(query_id=query, batch_id=batch).encode()
        return await self.call(RequestCode.PUBLISH_STAGED, fields, handle.encode())

    async def tell_home(self, query: str, broker: str) -> int:
        fields = TellHomeRequestHeader(query_id=query, broker_name=broker).encode()
        return (await self.call(RequestCode.TELL_HOME, fields)).code

    async def status(self, query: str) -> tuple[str | None, str | None]:
        fields = (await self.call(RequestCode.STAGED_STATUS, {"queryId": query})).fields
        return fields.get("batchId"), fields.get("home")


@asynccontextmanager
async def users(path: Path) -> AsyncIterator[tuple[EmbeddedBroker, User, User]]:
    """A broker with access control, `app` and `rival`."""
    async with guarded(path, users=WITH_RIVAL) as server, caller(APP) as app, caller(RIVAL) as rival:
        async with AsyncProducer(server.address, **ADMIN) as producer:
            await producer.send("orders", b"made")
        yield server, User(app, server.broker_address), User(rival, server.broker_address)


@asynccontextmanager
async def without_access(path: Path) -> AsyncIterator[User]:
    server = EmbeddedBroker(path / "data")
    await server.start()
    try:
        async with caller(None) as client:
            yield User(client, server.broker_address)
    finally:
        await server.stop()


def bodies(server: EmbeddedBroker) -> list[bytes]:
    assert server.broker is not None
    store = server.broker.store
    return [message.body for queue in range(8) for message in store.read("orders", queue, 0)]


def test_handle_of_another_user_is_not_published(tmp_path: Path) -> None:
    async def test() -> None:
        async with users(tmp_path) as (server, app, rival):
            handle = await app.stage(b"secret")
            for handles in (handle, f"{await rival.stage(b'mine')}\n{handle}"):
                answer = await rival.publish("q", 0, handles)
                assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
            assert bodies(server) == [b"made"]
            assert (await app.publish("q", 0, handle)).code == 0
            assert sorted(bodies(server)) == [b"made", b"secret"]

    run(test)


def test_keys_of_handles_cannot_be_guessed(tmp_path: Path) -> None:
    async def test() -> None:
        async with users(tmp_path) as (_, app, _):
            handles = [Handle.parse(await app.stage()) for _ in range(40)]
            keys = {handle.key for handle in handles}
            assert len(keys) == 40
            assert {len(key) for key in keys} == {32}
            # Random in every place: 40 keys that agreed in one have one chance in 16 to the 39th.
            assert all(len({key[place] for key in keys}) > 1 for place in range(32))
            guessed = handles[0]._replace(key=handles[1].key)
            assert (await app.publish("q", 0, str(guessed))).code == ResponseCode.INVALID_PARAMETER
            assert (await app.publish("q", 0, str(handles[0]))).code == 0

    run(test)


def test_query_ids_of_users_do_not_meet(tmp_path: Path) -> None:
    """Neither a huge batch, nor the next one, nor the same one, of another user's query stops a query."""

    async def test() -> None:
        async with users(tmp_path) as (server, app, rival):
            assert (await app.publish("q", 4, await app.stage(b"4"))).code == 0
            for batch in (5, BATCH_MAX):
                assert (await rival.publish("q", batch, await rival.stage(b"rival"))).code == 0
            assert await rival.status("q") == (str(BATCH_MAX), None)
            assert await rival.tell_home("q", "test-broker") == 0
            assert await app.status("q") == ("4", None)
            answer = await app.publish("q", 5, await app.stage(b"5"))
            assert (answer.code, answer.fields["already"]) == (0, "false")
            assert (await app.publish("q", 5, "")).fields["already"] == "true"
            assert sorted(bodies(server)) == [b"4", b"5", b"made", b"rival", b"rival"]

    run(test)


@pytest.mark.parametrize("keeps_table", [True, False])
def test_owners_survive_a_restart(tmp_path: Path, keeps_table: bool) -> None:
    async def test() -> None:
        async with users(tmp_path) as (_, app, rival):
            assert (await app.publish("q", 4, await app.stage())).code == 0
            assert (await rival.publish("q", 9, await rival.stage())).code == 0
            kept, of_rival = await app.stage(), await rival.stage()
        if not keeps_table:
            for path in (tmp_path / TABLE).parent.glob(f"{TABLE.name}*"):
                path.unlink()
        async with users(tmp_path) as (_, app, rival):
            assert (await app.status("q"), await rival.status("q")) == (("4", None), ("9", None))
            assert (await app.publish("q", 5, of_rival)).code == ResponseCode.NO_PERMISSION
            assert (await app.publish("q", 5, kept)).code == 0

    run(test)


@pytest.mark.parametrize("batch", [-1, BATCH_MAX + 1, 2**62, 2**63 - 1, -(2**63)])
def test_batch_numbers_out_of_bounds_are_refused(tmp_path: Path, batch: int) -> None:
    async def test() -> None:
        async with without_access(tmp_path) as user:
            handle = await user.stage()
            assert (await user.publish("q", batch, handle)).code == ResponseCode.INVALID_PARAMETER
            assert (await user.publish("q", 0, handle)).code == 0

    run(test)


def test_home_names_a_broker_of_the_cluster(tmp_path: Path) -> None:
    async def test() -> None:
        async with users(tmp_path) as (_, app, rival):
            assert await rival.tell_home("q", "nowhere") == ResponseCode.SYSTEM_BUSY
            assert await app.status("q") == (None, None)
            assert await app.tell_home("q", "nowhere") == ResponseCode.SYSTEM_BUSY
            assert await app.status("q") == (None, None)
            assert await app.tell_home("q", "test-broker") == 0
            assert await app.status("q") == (None, "test-broker")
            assert await rival.status("q") == (None, None)

    run(test)


def test_publications_without_owner_go_on_with_access_control(tmp_path: Path) -> None:
    """As version 0.1 wrote them. Each user sees the last number, and none can move it for the others."""

    async def test() -> None:
        async with without_access(tmp_path) as user:
            assert (await user.publish("q", 4, await user.stage())).code == 0
            waiting = await user.stage(b"waiting")
        table = json.loads((tmp_path / TABLE).read_text())
        assert [*table["queries"]] == ["q"]
        async with users(tmp_path) as (_, app, rival):
            # Staged by nobody who is known: it has to be staged again.
            assert (await app.publish("q", 5, waiting)).code == ResponseCode.NO_PERMISSION
            assert (await rival.publish("q", 1_000, await rival.stage())).code == 0
            assert await app.status("q") == ("4", None)
            assert (await app.publish("q", 4, await app.stage())).fields["already"] == "true"
            assert (await app.publish("q", 3, await app.stage())).code == ResponseCode.INVALID_PARAMETER
            assert (await app.publish("q", 5, await app.stage())).fields["already"] == "false"

    run(test)


def test_query_that_a_huge_batch_stopped_goes_on(tmp_path: Path) -> None:
    """Version 0.1 took any number from any user."""

    async def test() -> None:
        async with without_access(tmp_path) as user:
            assert (await user.publish("q", 4, await user.stage())).code == 0
        table = json.loads((tmp_path / TABLE).read_text())
        table["queries"]["q"]["batch"] = 2**62
        for path in (tmp_path / TABLE).parent.glob(f"{TABLE.name}*"):
            path.write_text(json.dumps(table))
        async with users(tmp_path) as (_, app, _):
            assert (await app.publish("q", 5, await app.stage())).fields["already"] == "false"
            assert await app.status("q") == ("5", None)

    run(test)


def test_numbers_go_on_when_access_control_is_turned_off(tmp_path: Path) -> None:
    async def test() -> None:
        async with users(tmp_path) as (_, app, _):
            assert (await app.publish("q", 4, await app.stage())).code == 0
        async with without_access(tmp_path) as user:
            assert await user.status("q") == ("4", None)
            assert (await user.publish("q", 4, await user.stage())).fields["already"] == "true"
            assert (await user.publish("q", 5, await user.stage())).fields["already"] == "false"
        async with users(tmp_path) as (_, app, _):
            assert await app.status("q") == ("5", None)

    run(test)


def test_user_with_many_queries_evicts_only_own_ones(tmp_path: Path) -> None:
    options: BrokerOptions = replace(BROKER, publication_queries_max=10)
    runtime = Runtime.system()
    published = PublishedBatches(options, runtime, TableJournal(runtime.disk, tmp_path))
    published.remember("q", 7, 1, 1, owner="app")
    published.remember_home("h", "b", 2, owner="app")
    for number in range(50):
        published.remember(f"r{number}", 0, 1, number, owner="rival")
        published.remember_home(f"h{number}", "b", number, owner="rival")
    last = published.last("q", "app")
    assert last is not None
    assert last.batch == 7
    assert published.home("h", "app") == "b"
    assert published.last("r39", "rival") is None
    assert published.last("r49", "rival") is not None


def test_admin_publishes_what_others_staged(tmp_path: Path) -> None:
    """An admin may do everything; its queries are its own all the same."""

    async def test() -> None:
        async with users(tmp_path) as (server, app, _), caller(ADMIN) as admin:
            handle = await app.stage()
            assert (await User(admin, server.broker_address).publish("q", 9, handle)).code == 0
            assert await app.status("q") == (None, None)

    run(test)
