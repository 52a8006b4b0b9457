"""RocketMQ's name for retries of POP is the same for other groups and topics: no account reads or forges through it.

`ann` pops `b_c` as the group `a`; for `bob`, who pops `c` as `a_b`, and for `eve`, whose group is `a_b_c`, the retry
topic has the same name: %RETRY%a_b_c.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.metadata.group_table import SubscriptionGroup
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.guarded import ADMIN, ADMIN_SECRET, SECRET, caller, run
from tests.support.popping import Popped, ack, change, is_effective, is_unknown, pop, take
from tests.support.running_broker import Client, properties, records, send_fields
from tests.waiting import until

SHARED, OWN = "%RETRY%a_b_c", "%RETRY%a+b_c"
NO_PERMISSION = int(ResponseCode.NO_PERMISSION)
ALL = '["All"]'
USERS = f"""
[users.ann]
secret = "{SECRET}"
entries = [{{ resource = "Topic:b_c", actions = {ALL} }}, {{ resource = "Group:a", actions = {ALL} }}]

[users.bob]
secret = "{SECRET}"
entries = [{{ resource = "Topic:c", actions = {ALL} }}, {{ resource = "Group:a_b", actions = {ALL} }}]

[users.eve]
secret = "{SECRET}"
entries = [{{ resource = "Topic:x", actions = {ALL} }}, {{ resource = "Group:a_b_c", actions = {ALL} }}]

[users.wide]
secret = "{SECRET}"
entries = [
  {{ resource = "Group:*", actions = {ALL} }},
  {{ resource = "Topic:*", actions = {ALL} }},
  {{ resource = "Group:a", actions = {ALL}, decision = "Deny" }},
]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""


@dataclass
class Scene:
    """A broker and the accounts."""

    broker: Broker
    clients: dict[str, Client]

    def __getattr__(self, name: str) -> Client:
        return self.clients[name]

    async def returned(self, name: str) -> None:
        """Until something came back to a retry topic."""
        await until(lambda: self.broker.store.max_offset(name, 0) > 0, f"a message in {name}")


@asynccontextmanager
async def scene(
    path: Path, *, users: str = USERS, groups: tuple[str, ...] = ("a", "a_b", "a_b_c")
) -> AsyncIterator[Scene]:
    (path / "access.toml").write_text(users)
    access = NodeAccess.of(AccessOptions(enabled=True), path, Runtime.system())
    async with broker(path, access) as (server, stack):
        clients = {}
        for name in ("ann", "bob", "dan", "eve", "wide", "admin"):
            keys = ADMIN if name == "admin" else {"access_key": name, "secret_key": SECRET}
            clients[name] = Client(server.broker_address)
            await clients[name].remoting.close()
            clients[name].remoting = await stack.enter_async_context(caller(keys))
        assert server.broker is not None
        prepare(server.broker, groups)
        yield Scene(server.broker, clients)


@asynccontextmanager
async def broker(
    path: Path, access: NodeAccess | None
) -> AsyncIterator[tuple[EmbeddedBroker, AsyncExitStack]]:
    options = replace(BROKER, pop_invisible_min_ms=1, pop_from_retry_percent=100)
    more = {} if access is None else {"access": access}
    server = EmbeddedBroker(path / "data", broker=options, **more)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        yield server, stack


def prepare(found: Broker, groups: tuple[str, ...]) -> None:
    for topic in ("b_c", "c", "x"):
        found.topics.ensure(topic, 1)
    for group in groups:
        if found.groups.find(group) is None:
            found.groups.update(SubscriptionGroup(group))


async def lose(client: Client, body: bytes = b"secret") -> None:
    """Send a message of ann's, pop it, and let its time pass."""
    assert (await client.send("b_c", body)).code == 0
    (one,) = await take(client, "b_c", group="a", invisible_ms=1)
    assert one.body == body


@pytest.mark.abuse("A9")
def test_retries_are_read_by_none_but_their_group_and_topic(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as at:
            await lose(at.ann)
            await at.returned(OWN)
            assert at.broker.topics.get(SHARED) is None
            # The other group of the name pops, the group that is called so pulls, both name the topic itself.
            assert await take(at.bob, "c", group="a_b") == []
            for name, group in (("bob", "a_b"), ("eve", "a_b_c"), ("wide", "any")):
                for topic in (OWN, SHARED):
                    answer = await at.clients[name].pull(topic, consumerGroup=group)
                    assert answer.code != 0, (name, topic)
                    assert not answer.body
            # Sent back by its position, it would come to the other's retry topic.
            position = at.broker.store.reader.entries(OWN, 0, 0, 1)[0].position
            for name, group in (("bob", "a_b"), ("eve", "a_b_c"), ("wide", "any")):
                fields = {"offset": str(position), "group": group, "delayLevel": "0"}
                answer = await at.clients[name].call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                assert answer.code == NO_PERMISSION, name
            # Who may use both reads it, under its topic.
            (one,) = await take(at.ann, "b_c", group="a")
            assert (one.body, one.tries) == (b"secret", 1)
            assert (await ack(at.ann, one)).code == 0

    run(test)


@pytest.mark.abuse("A9")
def test_retries_are_forged_by_none_who_may_not_publish_to_the_topic(tmp_path: Path) -> None:
    """A client of the group `a_b_c` may send to %RETRY%a_b_c; the message came as one of the topic `b_c`."""

    async def test() -> None:
        async with scene(tmp_path) as at:
            await lose(at.ann)
            await at.returned(OWN)
            fields = send_fields(SHARED, 0, properties(RETRY_TOPIC="x"))
            sent = await at.eve.call(RequestCode.SEND_MESSAGE_V2, fields, b"forged")
            assert sent.code == 0, sent.remark
            for name in ("bob", "eve", "wide"):
                direct = await at.clients[name].call(
                    RequestCode.SEND_MESSAGE_V2, send_fields(OWN, 0), b"forged"
                )
                assert direct.code == NO_PERMISSION, name
            got = [*await take(at.ann, "b_c", group="a"), *await take(at.ann, "b_c", group="a")]
            assert [one.body for one in got] == [b"secret"]
            assert await take(at.bob, "c", group="a_b") == []

    run(test)


@pytest.mark.parametrize("is_old", [False, True])
def test_clients_that_know_one_name_only_acknowledge_retries(tmp_path: Path, is_old: bool) -> None:
    """RocketMQ's clients before 5.2 name the topic itself where they do not know the kind of a handle."""

    async def test() -> None:
        async with scene(tmp_path) as at:
            await lose(at.ann)
            await at.returned(OWN)
            more = {"topic": "b_c"} if is_old else {}
            (one,) = await take(at.ann, "b_c", group="a")
            assert one.handle.kind == "2"
            changed = await change(at.ann, one, 60_000, **more)
            assert changed.code == 0, changed.remark
            one = one.changed(changed)
            assert is_effective(await ack(at.ann, one, **more))
            assert is_unknown(await ack(at.ann, one, **more))

    run(test)


async def backlog(path: Path) -> None:
    """A retry under the shared name, as version 0.1 and brokers without access control keep it."""
    async with broker(path, None) as (server, _):
        assert server.broker is not None
        prepare(server.broker, ("a",))
        client = Client(server.broker_address)
        try:
            await lose(client)
            at = Scene(server.broker, {})
            await at.returned(SHARED)
        finally:
            await client.remoting.close()


def test_retries_of_before_come_once_more_and_move_to_the_own_name(tmp_path: Path) -> None:
    async def test() -> None:
        await backlog(tmp_path)
        async with scene(tmp_path, groups=("a",)) as at:
            (one,) = await take(at.ann, "b_c", group="a", invisible_ms=1)
            assert (one.body, one.handle.kind) == (b"secret", "1")
            await at.returned(OWN)
            again: list[Popped] = await take(at.ann, "b_c", group="a")
            assert [(one.body, one.handle.kind, one.tries) for one in again] == [(b"secret", "2", 2)]

    run(test)


@pytest.mark.abuse("A9")
def test_retries_of_before_are_not_popped_while_others_share_the_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await backlog(tmp_path)
        async with scene(tmp_path, groups=("a", "a_b")) as at:
            assert await take(at.bob, "c", group="a_b") == []
            assert await take(at.ann, "b_c", group="a") == []
            assert [record.args for record in caplog.records if "are not popped" in record.msg] == [(SHARED,)]
            position = at.broker.store.reader.entries(SHARED, 0, 0, 1)[0].position
            fields = {"offset": str(position), "group": "a_b", "delayLevel": "0"}
            answer = await at.bob.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert answer.code == NO_PERMISSION
            # An admin reads them.
            answer = await at.admin.pull(SHARED, consumerGroup="TOOLS_CONSUMER")
            assert [message.body for message in records(answer.body)] == [b"secret"]

    run(test)


@pytest.mark.abuse("A9")
@pytest.mark.parametrize("tries", [0, 16])
def test_retries_that_are_popped_by_the_name_of_their_topic_become_no_others(
    tmp_path: Path, tries: int
) -> None:
    """The name %RETRY%a_b, popped as the group `a`, was read as retries of the topic `b`: what came back, or died, was a
    message of `b` then, and was redriven there."""
    users = USERS.replace(
        "[users.bob]",
        f"""
[users.dan]
secret = "{SECRET}"
entries = [
  {{ resource = "Group:a", actions = {ALL} }},
  {{ resource = "Group:a_b", actions = {ALL} }},
  {{ resource = "Topic:c", actions = {ALL} }},
]

[users.bob]""",
    )

    async def test() -> None:
        async with scene(tmp_path, users=users, groups=("a", "a_b")) as at:
            at.broker.topics.ensure("b", 1)
            at.broker.groups.update(replace(at.broker.groups.require("a"), retry_max_times=tries))
            fields = send_fields("%RETRY%a_b", 0, properties(RETRY_TOPIC="c"))
            assert (await at.dan.call(RequestCode.SEND_MESSAGE_V2, fields, b"forged")).code == 0
            await at.returned("%RETRY%a_b")
            answer = await pop(at.dan, "%RETRY%a_b", group="a", invisible_ms=1)
            assert [message.body for message in records(answer.body)] == [b"forged"], answer.remark
            if tries:
                await until(lambda: at.broker.store.max_offset("%RETRY%a_b", 0) == 2, "it came back")
                assert at.broker.topics.get("%RETRY%a+b") is None
            else:
                await at.returned("%DLQ%a")
                [letter] = at.broker.store.read("%DLQ%a", 0, 0)
                assert letter.properties["RETRY_TOPIC"] == "c"

    run(test)


@pytest.mark.abuse("A9")
def test_deleting_a_topic_leaves_retries_of_others(tmp_path: Path) -> None:
    """Deleting `c` deleted the retry topic of `a_b` and `c`, and with it what came back of `b_c`."""

    async def test() -> None:
        await backlog(tmp_path)
        async with scene(tmp_path, groups=("a", "a_b")) as at:
            assert (await at.bob.send("c", b"one")).code == 0
            (one,) = await take(at.bob, "c", group="a_b")
            assert (await ack(at.bob, one)).code == 0
            await until(lambda: "a_b" in at.broker.offsets.groups_of_topic("c"), "the group's offset")
            deleted = await at.bob.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "c"})
            assert deleted.code == 0, deleted.remark
            # Now the name is no longer shared.
            (left,) = await take(at.ann, "b_c", group="a")
            assert left.body == b"secret"

    run(test)
