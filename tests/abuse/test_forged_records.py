"""A record inside the body of an ordinary message: no request may take it for a record of the broker.

The attacker may publish to `orders` only. On an idle broker the log position of the next message can be predicted, so
the body can hold a record that is whole, has the right checksum and names its own position.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.pop_records import CheckKey, CheckPoint, QueueKey, check_point_record
from penstock.broker.pop_service import revive_topic
from penstock.broker.staging import Handle
from penstock.client.async_producer import AsyncProducer
from penstock.message import HostAddress, Message, StoredMessage, encode_record
from penstock.protocol.bodies import ConsumerData, HeartbeatData
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PublishStagedRequestHeader,
    SendMessageRequestHeader,
    StageMessagesRequestHeader,
)
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC, STAGED_TOPIC
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded import ADMIN, APP, USERS, caller, guarded, run
from tests.waiting import until

BORN = 1_700_000_000_000
BODY_AT = 88  # of a record with IPv4 addresses
HOST = HostAddress("127.0.0.1", 1)
ZEROES = (
    "queue_id",
    "queue_offset",
    "size",
    "body_crc",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
)


class Scene:
    """A broker with two topics, the attacker and the victim."""

    def __init__(self, server: EmbeddedBroker, attacker: RemotingClient, victim: RemotingClient) -> None:
        assert server.broker is not None
        self.broker: Broker = server.broker
        self.address = server.broker_address
        self.attacker = attacker
        self.victim = victim

    def bodies(self, topic: str) -> list[bytes]:
        store = self.broker.store
        return [message.body for queue in range(8) for message in store.read(topic, queue, 0)]

    async def send(self, client: RemotingClient, topic: str, body: bytes, **more: str) -> Command:
        properties = "".join(f"{name}\x01{value}\x02" for name, value in more.items())
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=topic,
            queue_id=0,
            born_timestamp=BORN,
            sys_flag=4 if "TRAN_MSG" in more else 0,
            properties=properties,
        )
        answer = await client.call(self.address, Command(RequestCode.SEND_MESSAGE_V2, header.encode(), body))
        assert answer.code == 0, answer.remark
        return answer

    async def forge(self, **fields: Any) -> StoredMessage:
        """Put a record into the body of the attacker's next message; where it is in the log."""

        def record(position: int) -> StoredMessage:
            values: dict[str, Any] = dict.fromkeys(ZEROES, 0)
            values |= {"born_timestamp": BORN, "store_timestamp": BORN, "born_host": HOST, "store_host": HOST}
            values |= {"physical_offset": position, **fields}
            return StoredMessage(**values)

        await self.send(self.attacker, "orders", encode_record(record(0)), UNIQ_KEY="A" * 32)
        log = self.broker.store.log
        at = log.max_offset + BODY_AT  # what the attacker computes from the first message's id and size
        body = encode_record(record(at))
        await self.send(self.attacker, "orders", body, UNIQ_KEY="B" * 32)
        assert log.slice(at, len(body)) == body, "the forgery is not where the attacker wants it"
        return record(at)

    async def publish(self, client: RemotingClient, handle: str, query: str = "q") -> Command:
        fields = PublishStagedRequestHeader(query_id=query, batch_id=0).encode()
        return await client.call(self.address, Command(RequestCode.PUBLISH_STAGED, fields, handle.encode()))

    async def stage(self, client: RemotingClient, topic: str, body: bytes = b"staged") -> Command:
        fields = StageMessagesRequestHeader(producer_group="sink", born_timestamp=BORN).encode()
        command = Command(RequestCode.STAGE_MESSAGES, fields, staged_body(topic, body))
        return await client.call(self.address, command)

    async def end_transaction(self, client: RemotingClient, position: int, offset: int) -> Command:
        fields = {
            "producerGroup": "p",
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(position),
            "commitOrRollback": "12",
            "fromTransactionCheck": "false",
            "msgId": "",
            "topic": "orders",
        }
        return await client.call(self.address, Command(RequestCode.END_TRANSACTION, fields))


def staged_body(topic: str, body: bytes) -> bytes:
    return encode_head([(topic, 1)]) + encode_item(0, body, b"UNIQ_KEY\x01F1\x02")


@asynccontextmanager
async def scene(path: Path, access: bool) -> AsyncIterator[Scene]:
    """`orders` and `public` exist; with access control the attacker may publish to `orders` only."""
    keys = ADMIN if access else {}
    server = guarded(path) if access else unguarded(path)
    async with server as running, caller(APP if access else None) as attacker:
        async with AsyncProducer(running.address, **keys) as producer:
            for topic in ("orders", "public"):
                await producer.send(topic, b"made")
        async with caller(keys or None) as victim:
            yield Scene(running, attacker, victim)


@asynccontextmanager
async def unguarded(path: Path) -> AsyncIterator[EmbeddedBroker]:
    server = EmbeddedBroker(path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


both = pytest.mark.parametrize("access", [True, False], ids=["access-on", "access-off"])


@both
@pytest.mark.parametrize("flag", [0, 0xC], ids=["queued", "rolled-back"])
@pytest.mark.parametrize("target", ["public", "SCHEDULE_TOPIC_XXXX", HALF_TOPIC, "TBW102"])
def test_forged_staged_record_is_not_published(tmp_path: Path, access: bool, flag: int, target: str) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            # The entry at offset 0 of the staged queue exists, and leads elsewhere.
            assert (await at.stage(at.attacker, "orders")).code == 0
            before = at.bodies(target)
            forged = await at.forge(
                topic=STAGED_TOPIC,
                body=staged_body(target, b"forged"),
                properties={"UNIQ_KEY": "F"},
                sys_flag=flag,
            )
            size = len(encode_record(forged))
            answer = await at.publish(at.attacker, f"{forged.physical_offset}.{size}.1.F")
            assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
            assert "no staged record begins there" in (answer.remark or "")
            assert at.bodies(target) == before
            # The attacker's own messages can still be published.
            handle = (await at.stage(at.attacker, "orders", b"own")).fields["handle"]
            assert (await at.publish(at.attacker, handle)).code == 0
            assert b"own" in at.bodies("orders")

    run(test)


@both
@pytest.mark.parametrize("is_visible", [True, False], ids=["visible", "held-back"])
def test_forged_half_record_ends_no_transaction(tmp_path: Path, access: bool, is_visible: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.send(at.victim, "public", b"half", UNIQ_KEY="V" * 32, TRAN_MSG="true", PGROUP="p")
            opened = at.broker.transactions.open
            [offset] = opened.offsets()
            half = opened.load(offset)
            assert half is not None
            if not is_visible:
                at.broker.store.hold()
            forged = await at.forge(
                topic=HALF_TOPIC,
                body=b"half",
                properties={"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "p", "UNIQ_KEY": "V" * 32},
                queue_offset=offset,
            )
            answer = await at.end_transaction(at.attacker, forged.physical_offset, offset)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            assert opened.offsets() == [offset]
            if not is_visible:
                at.broker.store.release()
            assert (await at.end_transaction(at.victim, half.message.physical_offset, offset)).code == 0
            assert opened.offsets() == []

    run(test)


def test_forged_parked_half_message_is_not_resumed(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=False) as at:
            forged = await at.forge(
                topic=CHECK_MAX_TOPIC,
                body=b"parked",
                properties={"REAL_TOPIC": "public", "REAL_QID": "0", "PGROUP": "p", "UNIQ_KEY": "F"},
            )
            fields = {"topic": "orders", "msgId": f"7F00000100000001{forged.physical_offset:016X}"}
            command = Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
            answer = await at.attacker.call(at.address, command)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            assert at.broker.transactions.open.offsets() == []

    run(test)


def test_staging_needs_permission_for_every_topic(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=True) as at:
            before = at.bodies("public")
            assert (await at.stage(at.attacker, "public")).code == ResponseCode.NO_PERMISSION
            handle = (await at.stage(at.victim, "public", b"secret")).fields["handle"]
            own = (await at.stage(at.attacker, "orders", b"own")).fields["handle"]
            for handles in (handle, f"{own}\n{handle}"):
                answer = await at.publish(at.attacker, handles, "theft")
                assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
            assert at.bodies("public") == before
            assert b"own" not in at.bodies("orders")
            assert (await at.publish(at.victim, handle)).code == 0
            assert b"secret" in at.bodies("public")

    run(test)


def test_publishing_needs_permission_for_every_topic_again(tmp_path: Path) -> None:
    """Permission that was taken back since the messages were staged."""

    async def test() -> None:
        granted = USERS.replace('topics = ["orders"]', 'topics = ["orders", "public"]')
        server = guarded(tmp_path, users=granted, reload_interval_ms=100)
        async with server as running, caller(APP) as app, caller(ADMIN) as admin:
            async with AsyncProducer(running.address, **ADMIN) as producer:
                for topic in ("orders", "public"):
                    await producer.send(topic, b"made")
            at = Scene(running, app, admin)
            handle = (await at.stage(app, "public", b"staged")).fields["handle"]
            (tmp_path / "access.toml").write_text(USERS)

            async def is_taken_back() -> bool:
                return (await at.stage(app, "public")).code != 0

            await until(is_taken_back, "the broker has read the file")
            answer = await at.publish(app, handle)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "public" in (answer.remark or "")
            assert at.bodies("public") == [b"made"]

    run(test)


# -- every other request that names a position -------------------------------------------------------------------


def by_id(position: int) -> str:
    return f"7F00000100000001{position & (1 << 64) - 1:016X}"


def naming(position: int, offset: int = 0) -> dict[str, Command]:
    """One request for each code that names a log position; the groups and topics in it are the attacker's own."""
    back = {
        "offset": str(position),
        "group": "billing",
        "delayLevel": "0",
        "originMsgId": "",
        "originTopic": "",
    }
    ended = {
        "producerGroup": "p",
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(position),
        "commitOrRollback": "8",
        "topic": "orders",
    }
    directly = {"consumerGroup": "billing", "clientId": "c", "msgId": by_id(position)}
    published = PublishStagedRequestHeader(query_id="q", batch_id=0).encode()
    return {
        "view": Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)}),
        "send back": Command(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        "end transaction": Command(RequestCode.END_TRANSACTION, ended),
        "resume check": Command(
            RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "orders", "msgId": by_id(position)}
        ),
        "consume directly": Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly),
        "publish": Command(RequestCode.PUBLISH_STAGED, published, f"{position}.200.1.F".encode()),
    }


async def join(client: RemotingClient, address: str, group: str) -> None:
    beat = HeartbeatData("c", (), (ConsumerData(group, subscriptions=()),))
    assert (await client.call(address, Command(RequestCode.HEART_BEAT, {}, beat.encode()))).code == 0


@both
def test_record_inside_a_body_is_no_message_for_any_request(tmp_path: Path, access: bool) -> None:
    """The forgery names the attacker's own topic and queue, and carries what only the broker may set."""

    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await join(at.attacker, at.address, "billing")
            forged = await at.forge(
                topic="orders",
                body=b"forged",
                properties={"UNIQ_KEY": "F", "PENSTOCK_PRODUCER": "victim", "PENSTOCK_SEQUENCE": "7"},
                queue_offset=0,
            )
            for name, command in naming(forged.physical_offset).items():
                answer = await at.attacker.call(at.address, command)
                assert answer.code != 0, name
                assert b"forged" not in bytes(answer.body), name
            assert at.bodies("%RETRY%billing") == []
            assert at.bodies("SCHEDULE_TOPIC_XXXX") == []

    run(test)


@both
def test_positions_where_no_record_begins_are_refused(tmp_path: Path, access: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await join(at.attacker, at.address, "billing")
            answer = await at.send(at.attacker, "orders", b"own", UNIQ_KEY="O" * 32)
            own = int(answer.fields["msgId"][-16:], 16)
            end = at.broker.store.log.max_offset
            for position in (
                own + 1,
                own - 1,
                own + BODY_AT,
                end,
                end + 1,
                end << 20,
                2**63 - 1,
                -1,
                -own,
                -(2**63),
            ):
                for name, command in naming(position, offset=-1).items():
                    answer = await at.attacker.call(at.address, command)
                    assert answer.code != 0, (name, position)
                    assert not answer.body, (name, position)
            # The broker works on, and the same requests find what is there.
            assert (await at.attacker.call(at.address, naming(own)["view"])).code == 0
            assert (await at.attacker.call(at.address, naming(own)["send back"])).code == 0

    run(test)


def test_forged_record_is_refused_before_it_is_decoded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum, over as much of the log as it claims to span, would hold up everybody."""

    async def test() -> None:
        async with scene(tmp_path, access=False) as at:
            forged = await at.forge(topic="orders", body=b"forged" * 100, properties={"UNIQ_KEY": "F"})
            body = bytearray(encode_record(forged))
            body[BODY_AT + 7] ^= 1  # decoding would compute the checksum, and log that it is wrong
            where = at.broker.store.log.max_offset + BODY_AT
            body[28:36] = where.to_bytes(8, "big")
            await at.send(at.attacker, "orders", bytes(body), UNIQ_KEY="C" * 32)
            for name, command in naming(where).items():
                assert (await at.attacker.call(at.address, command)).code != 0, name
            assert not [record for record in caplog.records if record.name == "penstock.broker"]

    run(test)


def test_message_of_another_topic_is_neither_viewed_nor_sent_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=True) as at:
            await join(at.attacker, at.address, "billing")
            secret = await at.send(at.victim, "public", b"secret", UNIQ_KEY="V" * 32)
            for name in ("view", "send back"):
                command = naming(int(secret.fields["msgId"][-16:], 16))[name]
                answer = await at.attacker.call(at.address, command)
                assert answer.code == ResponseCode.NO_PERMISSION, name
                assert not answer.body
            assert at.bodies("%RETRY%billing") == []

    run(test)


WIDE = """
[users.app]
secret = "app-secret-do-not-tell"
roles = ["producer", "consumer"]
topics = ["*"]
groups = ["billing"]
entries = [{ resource = "Topic:public", actions = ["All"], decision = "Deny" }]

[users.admin]
secret = "admin-secret-do-not-tell"
roles = ["admin"]
"""


def test_waiting_message_needs_permission_for_the_topic_it_waits_for(tmp_path: Path) -> None:
    """Sub on every topic includes the broker's own, which hold messages of a topic that is denied."""

    async def test() -> None:
        async with guarded(tmp_path, users=WIDE) as server, caller(APP) as attacker, caller(ADMIN) as victim:
            async with AsyncProducer(server.address, **ADMIN) as producer:
                for topic in ("orders", "public"):
                    await producer.send(topic, b"made")
            at = Scene(server, attacker, victim)
            await join(attacker, at.address, "billing")
            due = str(Runtime.system().clock.now_ms() + 3_600_000)
            for more in ({"DELAY": "18"}, {"TIMER_DELIVER_MS": due}, {"TRAN_MSG": "true", "PGROUP": "p"}):
                answer = await at.send(victim, "public", b"secret", UNIQ_KEY="V" * 32, **more)
                position = int(answer.fields["msgId"][-16:], 16)
                for name in ("view", "send back"):
                    answer = await attacker.call(at.address, naming(position)[name])
                    assert answer.code == ResponseCode.NO_PERMISSION, (name, more)
                    assert not answer.body
                assert (await victim.call(at.address, naming(position)["view"])).code == 0
            for topic in ("SCHEDULE_TOPIC_XXXX", HALF_TOPIC, "rmq_sys_wheel_timer"):
                fields = {"topic": topic, "key": "V" * 32, "maxNum": "9", "beginTimestamp": "0"}
                fields |= {"endTimestamp": str(2**62), "_UNIQUE_KEY_QUERY": "true"}
                answer = await attacker.call(at.address, Command(RequestCode.QUERY_MESSAGE, fields))
                assert answer.code == ResponseCode.NO_PERMISSION, topic

    run(test)


@both
def test_staged_message_is_seen_by_no_request(tmp_path: Path, access: bool) -> None:
    """Neither the message nor the key of its handle."""

    async def test() -> None:
        async with scene(tmp_path, access) as at:
            answer = await at.stage(at.victim, "public", b"secret")
            handle = Handle.parse(answer.fields["handle"])
            await at.send(at.victim, "public", b"after it", UNIQ_KEY="V" * 32)
            shown = {
                "view": naming(handle.position)["view"],
                "send back": naming(handle.position)["send back"],
                "consume directly": naming(handle.position)["consume directly"],
                "query": Command(
                    RequestCode.QUERY_MESSAGE,
                    {
                        "topic": STAGED_TOPIC,
                        "key": handle.key,
                        "maxNum": "9",
                        "beginTimestamp": "0",
                        "endTimestamp": str(2**62),
                    },
                ),
                "queue": Command(
                    RequestCode.QUERY_CONSUME_QUEUE,
                    {"topic": STAGED_TOPIC, "queueId": "0", "index": "0", "count": "9", "consumerGroup": "g"},
                ),
            }
            for name, command in shown.items():
                answer = await at.victim.call(at.address, command)
                assert b"secret" not in bytes(answer.body), name
                assert handle.key.encode() not in bytes(answer.body), name

    run(test)


# -- records of the broker's, written by a client all the same ---------------------------------------------------


@asynccontextmanager
async def restarted(path: Path, write: Callable[[Broker], None]) -> AsyncIterator[Broker]:
    """A broker that was stopped after `write`, and started again."""
    async with unguarded(path) as server:
        assert server.broker is not None
        async with AsyncProducer(server.address) as producer:
            await producer.send("public", b"secret")
        write(server.broker)
    async with unguarded(path) as server:
        assert server.broker is not None
        yield server.broker


def sent_by_client(broker: Broker, topic: str, body: bytes, **properties: str) -> None:
    """What a client would have stored if it had found a way to this topic: the broker's mark is behind it."""
    broker.store.append(Message(topic, body, {**properties, **broker.rules.suffix}))


def test_check_point_that_a_client_wrote_is_not_replayed(tmp_path: Path) -> None:
    """The second attack of the assessment, with the hole that led into the revive topic still open."""

    async def test() -> None:
        def write(broker: Broker) -> None:
            broker.groups.require("billing")
            key = CheckKey(QueueKey("public", "billing", 0), 0, 1)
            check = CheckPoint(key, 1_000, 0, (0,))
            body, _ = check_point_record(check, "test-broker")
            revive = revive_topic(broker.options.cluster_name)
            sent_by_client(broker, revive, body, TAGS="ck", UNIQ_KEY="F")

        async with restarted(tmp_path, write) as broker:
            assert broker.pop is not None
            service = broker.pop.service
            await until(lambda: service.is_ready)
            assert len(service.state) == 0
            service.tick()
            assert broker.topics.get("%RETRY%billing_public") is None

    run(test)


def test_mark_that_a_client_wrote_ends_no_transaction(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=False) as at:
            await at.send(at.victim, "public", b"half", UNIQ_KEY="V" * 32, TRAN_MSG="true", PGROUP="p")
            opened = at.broker.transactions.open
            [offset] = opened.offsets()
            sent_by_client(at.broker, HALF_DONE_TOPIC, f"{offset},".encode(), TAGS="d", UNIQ_KEY="F")
            opened.catch_up()
            assert opened.offsets() == [offset]

    run(test)


def test_records_of_publications_that_a_client_wrote_count_for_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        def write(broker: Broker) -> None:
            body = staged_body("public", b"forged")
            broker.topics.ensure("PENSTOCK_PUBLISHED", 1)
            sent_by_client(broker, STAGED_TOPIC, body, UNIQ_KEY="F")
            [staged] = broker.store.read(STAGED_TOPIC, 0, 0)
            handle = f"{staged.physical_offset}.{staged.size}.1.F"
            begun = {"kind": "begun", "query": "q", "batch": 0, "messages": 1, "staged": [handle]}
            done = {"kind": "done", "query": "r", "batch": 9, "messages": 1, "begun": 0, "missing": 0}
            home = {"kind": "home", "query": "s", "broker": "nowhere"}
            for record in (begun, done, home):
                sent_by_client(broker, "PENSTOCK_PUBLISHED", json.dumps(record).encode())

        async with restarted(tmp_path, write) as broker:
            bodies = [m.body for queue in range(8) for m in broker.store.read("public", queue, 0)]
            assert bodies == [b"secret"]
            published = broker.publications.published
            assert (published.last("q"), published.last("r"), published.home("s")) == (None, None, None)

    run(test)


def test_waiting_message_is_never_delivered_to_a_topic_of_the_broker(tmp_path: Path) -> None:
    """Such a message may be in a directory that an older version has written."""
    targets = (HALF_TOPIC, HALF_DONE_TOPIC, "rmq_sys_REVIVE_LOG_DefaultCluster", STAGED_TOPIC)

    async def test() -> None:
        async with unguarded(tmp_path) as server:
            broker = server.broker
            assert broker is not None
            now_ms = Runtime.system().clock.now_ms()
            before = [broker.store.max_offset(target, 0) for target in targets]
            for target in targets:
                real = {"REAL_TOPIC": target, "REAL_QID": "0", "UNIQ_KEY": "F"}
                broker.store.append(Message("SCHEDULE_TOPIC_XXXX", b"x", {**real, "DELAY": "1"}), 0)
                timed = {"TIMER_OUT_MS": str(now_ms - 1_000), "TIMER_DELIVER_MS": str(now_ms), **real}
                broker.store.append(Message("rmq_sys_wheel_timer", b"x", timed), 0)
            # Whatever is due later is delivered later: when these are there, the others were looked at.
            async with AsyncProducer(server.address) as producer:
                await producer.send("public", b"delayed", delay_level=1)
                await producer.send("public", b"timed", deliver_at=now_ms / 1_000 + 2)
            await until(lambda: sum(broker.store.max_offset("public", queue) for queue in range(8)) == 2)
            assert [broker.store.max_offset(target, 0) for target in targets] == before

    run(test)
