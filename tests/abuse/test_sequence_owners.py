"""Producer ids of idempotent sends belong to the user who sends: what another account with the same topic can do.

`app` sends with the producer id `p`; `rival` may publish to the same topic, and knows the id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.idempotence import owner_of
from penstock.client.async_producer import AsyncProducer
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.guarded import ADMIN, APP, SECRET, USERS, caller, run
from tests.support.idempotent_sends import SEND
from tests.support.running_broker import properties, send_fields

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
WINDOW = 4


class Sender:
    """One account and its connection; or one without keys."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self._address = address

    async def send(self, sequence: int, body: bytes, producer: str = "p", text: str = "") -> Command:
        fields = send_fields("orders", 0, text)
        fields |= {"penstockProducer": producer, "penstockSequence": str(sequence)}
        return await self._client.call(self._address, Command(SEND, fields, body))

    async def repeated(self, sequence: int, body: bytes) -> str | None:
        answer = await self.send(sequence, body)
        assert answer.code == 0, answer.remark
        return answer.fields["penstockRepeated"]


@asynccontextmanager
async def broker(
    path: Path, *, is_guarded: bool = True, **options: Any
) -> AsyncIterator[tuple[EmbeddedBroker, Sender, Sender]]:
    """A broker in `path`, `app` and `rival`; without access control both are the same."""
    (path / "access.toml").write_text(WITH_RIVAL)
    access = NodeAccess.of(AccessOptions(enabled=is_guarded), path, Runtime.system())
    settings = replace(BROKER, idempotence_window=WINDOW, **options)
    server = EmbeddedBroker(path / "data", broker=settings, access=access)
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        app, rival = [
            await stack.enter_async_context(caller(keys if is_guarded else None)) for keys in (APP, RIVAL)
        ]
        async with AsyncProducer(server.address, **(ADMIN if is_guarded else {})) as producer:
            await producer.send("orders", b"made")
        yield server, Sender(app, server.broker_address), Sender(rival, server.broker_address)


@pytest.mark.abuse("A9")
def test_user_uses_up_no_sequences_of_another(tmp_path: Path) -> None:
    """The rival took the next numbers, and numbers so high that all others were too old."""

    async def test() -> None:
        async with broker(tmp_path) as (_, app, rival):
            assert await app.repeated(1, b"one") == "false"
            assert await rival.repeated(2, b"two") == "false"
            for number in range(2 * WINDOW):
                assert (await rival.send(2**61 + number, b"far")).code == 0
            # The same number, another message or the same: each of them is stored.
            assert await app.repeated(2, b"two") == "false"
            assert await app.repeated(3, b"three") == "false"
            # Each recognises its own, and nothing of the other's.
            assert await app.repeated(1, b"one") == "true"
            assert await rival.repeated(2**61 + 2 * WINDOW - 1, b"far") == "true"

    run(test)


@pytest.mark.abuse("A9")
def test_names_of_owned_producers_cannot_be_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker(tmp_path) as (server, app, rival):
            owned = f"p {owner_of('app')}"
            refused = await rival.send(5, b"forged", producer=owned)
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            text = properties(PENSTOCK_PRODUCER=owned, PENSTOCK_SEQUENCE="5")
            assert (await rival.send(6, b"forged", producer="q", text=text)).code == 0
            assert await app.repeated(5, b"five") == "false"
            assert await app.repeated(6, b"six") == "false"
            found = server.broker
            assert found is not None
            assert {pair.owner for pair, _ in found.sequences.table.items()} == {
                owner_of("app"),
                owner_of("rival"),
            }

    run(test)


def test_sequences_of_before_count_for_each_user_and_all_count_without_access(tmp_path: Path) -> None:
    """Version 0.1, and a broker without access control, stored no owner; and access control can be turned off."""

    async def test() -> None:
        async with broker(tmp_path, is_guarded=False) as (_, anyone, _):
            assert await anyone.repeated(1, b"one") == "false"
        async with broker(tmp_path) as (_, app, rival):
            assert await app.repeated(1, b"one") == "true"
            assert await rival.repeated(1, b"one") == "true"
            assert await app.repeated(2, b"two") == "false"
        async with broker(tmp_path) as (_, app, rival):
            assert await app.repeated(2, b"two") == "true"
            assert await rival.repeated(2, b"two") == "false"
        # The table is made of the log as well.
        (tmp_path / "data" / "broker" / "config" / "producerSequences").unlink(missing_ok=True)
        (tmp_path / "data" / "config" / "producerSequences").unlink(missing_ok=True)
        async with broker(tmp_path, is_guarded=False) as (_, anyone, _):
            assert await anyone.repeated(2, b"two") == "true"
            assert await anyone.repeated(3, b"three") == "false"
        async with broker(tmp_path) as (_, app, _):
            assert await app.repeated(2, b"two") == "true"

    run(test)


@pytest.mark.abuse("A14")
def test_user_leaves_room_for_producers_of_others(tmp_path: Path) -> None:
    """One account could fill the table of producers, and all others were refused for a day."""

    async def test() -> None:
        async with broker(tmp_path, idempotence_queues_max=20) as (_, app, rival):
            codes = [(await rival.send(1, b"x", producer=f"r{number}")).code for number in range(30)]
            assert codes.count(0) == 18
            assert set(codes) == {0, int(ResponseCode.SYSTEM_BUSY)}
            assert await app.repeated(1, b"one") == "false"
            assert (await rival.send(2, b"y", producer="r0")).code == 0, "a known one goes on"

    run(test)
