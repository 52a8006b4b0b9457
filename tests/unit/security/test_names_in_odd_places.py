"""Names where a request can hide them: several in one body, in a second field, empty, twice, in another case. What
was checked must be what is done: a request that names anybody else's topic or group is refused as a whole.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.topics import SYSTEM_TOPICS
from penstock.metadata.group_table import SubscriptionGroup
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from penstock.protocol.bodies.balance import ClientBeatBody, ClientKind, LeaseRequestBody
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.bodies.tables import encode_group_config_list, encode_topic_config_list
from penstock.protocol.codes import RequestCode as R
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, encode_frame
from penstock.security.signatures import sign
from tests.support.guarded import SECRET, run
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BORN, batch_item, properties, running, send_fields
from tests.unit.security.access_world import ALICE, ANOTHERS, OWN, World, world
from tests.unit.security.every_request import BROKER, EVERY, Place

NO_PERMISSION = int(ResponseCode.NO_PERMISSION)


def consumer(group: str, *topics: str) -> ConsumerData:
    return ConsumerData(group, subscriptions=tuple(SubscriptionData.parse(topic, "*") for topic in topics))


def heartbeat(*consumers: ConsumerData) -> Command:
    body = HeartbeatData("client", (ProducerData("p"),), consumers).encode()
    return Command(R.HEART_BEAT, body=body)


def queues(*topics: str) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, BROKER, 0) for topic in topics)


def changed(code: int, place: Place = OWN, **fields: str) -> Command:
    """The usual request with other fields."""
    command = EVERY[code](place)
    command.fields.update(fields)
    return command


def acks(*members: dict[str, object]) -> Command:
    usual = {"r": "0", "so": 0, "q": 0, "rq": 0, "pt": BORN, "it": 60_000, "b": "AQ=="}
    body = {"brokerName": BROKER, "acks": [{**usual, **one} for one in members]}
    return Command(R.BATCH_ACK_MESSAGE, body=json.dumps(body).encode())


# Each names something of bob's, or of the broker's, beside what is alice's.
REFUSED: dict[str, tuple[str, Command]] = {
    "a second group": ("broker", heartbeat(consumer("billing", "orders"), consumer("readers", "orders"))),
    "a second topic": ("broker", heartbeat(consumer("billing", "orders", "public"))),
    "a system topic": ("broker", heartbeat(consumer("billing", "RMQ_SYS_TRANS_HALF_TOPIC"))),
    "another's retries": ("broker", heartbeat(consumer("billing", "%RETRY%readers"))),
    "another's dead letters": ("broker", heartbeat(consumer("billing", "%DLQ%readers"))),
    "a second queue to lock": (
        "broker",
        Command(
            R.LOCK_BATCH_MQ, body=LockBatchRequestBody("c", "billing", queues("orders", "public")).encode()
        ),
    ),
    "a second queue to lease": (
        "broker",
        Command(
            R.CLAIM_PARTITION, body=LeaseRequestBody("c", "billing", queues("orders", "public")).encode()
        ),
    ),
    "a second topic to balance": (
        "coordinator",
        Command(R.CLIENT_BEAT, body=ClientBeatBody("c", "billing", topics=("orders", "public")).encode()),
    ),
    "a queue of another topic": (
        "coordinator",
        Command(
            R.CLIENT_BEAT,
            body=ClientBeatBody("c", "billing", topics=("orders",), queues=queues("public")).encode(),
        ),
    ),
    "a producer of another's topic": (
        "coordinator",
        Command(
            R.CLIENT_BEAT,
            body=ClientBeatBody("c", "p", ClientKind.PRODUCER, topics=("orders", "public")).encode(),
        ),
    ),
    "a second acknowledgement": (
        "broker",
        acks({"c": "billing", "t": "orders"}, {"c": "readers", "t": "public"}),
    ),
    "an acknowledgement with both names": (
        "broker",
        acks({"c": "readers", "consumerGroup": "billing", "t": "orders"}),
    ),
    "topics of other groups' progress": (
        "broker",
        changed(R.GET_CONSUME_STATS, topicList="orders;public"),
    ),
    "a topic list beside a topic": (
        "broker",
        changed(R.GET_CONSUME_STATS, topic="orders", topicList="public"),
    ),
    "a second topic to create": (
        "broker",
        Command(
            R.UPDATE_AND_CREATE_TOPIC_LIST,
            body=encode_topic_config_list([TopicConfig("orders"), TopicConfig("public")]),
        ),
    ),
    "a second group to create": (
        "broker",
        Command(
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            body=encode_group_config_list([SubscriptionGroup("billing"), SubscriptionGroup("readers")]),
        ),
    ),
    "a second topic to stage": (
        "broker",
        Command(
            R.STAGE_MESSAGES,
            {"producerGroup": "p", "bornTimestamp": str(BORN)},
            encode_head([("orders", 1), ("public", 1)]) + encode_item(1, b"row", b"", level=0),
        ),
    ),
    "the letter of a short send": ("broker", changed(R.SEND_MESSAGE_V2, b="public", topic="orders")),
    "the name of a long send": ("broker", changed(R.SEND_MESSAGE, topic="public", b="orders")),
    "retries of another's group": ("broker", changed(R.SEND_MESSAGE_V2, b="%RETRY%readers")),
    "the route of another's retries": (
        "nameserver",
        changed(R.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%readers"),
    ),
    "offsets copied from another's group": ("broker", changed(R.CLONE_GROUP_OFFSET, srcGroup="readers")),
    "offsets copied to another's group": ("broker", changed(R.CLONE_GROUP_OFFSET, destGroup="readers")),
    "a namespace": (
        "broker",
        changed(R.PULL_MESSAGE, topic="public", nsd="true", ns="orders", namespace="orders"),
    ),
    "another case": ("broker", changed(R.PULL_MESSAGE, topic="public", Topic="orders", TOPIC="orders")),
    "a proxy's client": (
        "broker",
        changed(R.PULL_MESSAGE, topic="public", proxyFrowardClientId="alice", bname=BROKER),
    ),
}

# What stands for many, or for nothing, is the name of nothing: an error, whatever the user may do.
NO_NAMES = ("", "*", "?", "%RETRY%", "%RETRY%*", "%RETRY%?", "%DLQ%?")


@pytest.mark.abuse("A9")
def test_one_name_of_another_user_refuses_the_whole_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            for what, (server, command) in REFUSED.items():
                for binary in (False, True):
                    if binary and command.code > 0x7FFF:
                        continue  # a binary header has no room for the code
                    asked = Command(command.code, dict(command.fields), command.body, binary=binary)
                    answer = await made.ask(made.clients["alice"], server, asked)
                    assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b""), (what, answer.remark)
            assert made.state() == before

    run(test)


@pytest.mark.abuse("A9")
def test_what_is_no_name_is_never_a_right(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            for name in NO_NAMES:
                for code in (
                    R.SEND_MESSAGE_V2,
                    R.PULL_MESSAGE,
                    R.UPDATE_AND_CREATE_TOPIC,
                    R.DELETE_TOPIC_IN_BROKER,
                ):
                    field = "b" if code == R.SEND_MESSAGE_V2 else "topic"
                    answer = await made.ask(made.clients["alice"], "broker", changed(code, **{field: name}))
                    assert answer.code in (ResponseCode.SYSTEM_ERROR, NO_PERMISSION), (name, code, answer)
            for code, body in ((R.HEART_BEAT, b""), (R.HEART_BEAT, b"{}"), (R.LOCK_BATCH_MQ, b"{}")):
                await made.ask(made.clients["alice"], "broker", Command(code, body=body))
            empty = acks({"c": "", "consumerGroup": "billing", "t": "orders"})
            assert (await made.ask(made.clients["alice"], "broker", empty)).code != 0
            assert made.state() == before

    run(test)


def raw_frame(members: str, body: bytes, opaque: int) -> bytes:
    """A frame whose ext fields are this text, however often it repeats a name."""
    header = (
        f'{{"code":310,"extFields":{{{members}}},"flag":0,"opaque":{opaque},"language":"JAVA","version":479}}'
    )
    data = header.encode()
    return (4 + len(data) + len(body)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + body


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A9")
def test_a_field_that_is_there_twice_is_checked_as_it_is_used(tmp_path: Path) -> None:
    """Signed for either of the two values: what is stored is stored where the guard looked."""

    async def test() -> None:
        async with world(tmp_path) as made:
            peer = await RawPeer.connect(made.address("broker"))
            try:
                for number, (first, second) in enumerate((("orders", "public"), ("public", "orders")), 1):
                    for signed in (first, second):
                        fields = {**send_fields(signed), "AccessKey": "alice"}
                        fields["Signature"] = sign(SECRET, fields, b"twice")
                        members = [
                            f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields.items()
                        ]
                        members = [one for one in members if not one.startswith('"b":')]
                        text = ",".join([f'"b":"{first}"', *members, f'"b":"{second}"'])
                        peer.send(raw_frame(text, b"twice", number))
                        answer = await peer.read()
                        assert (answer.code == 0) == (signed == second == "orders"), (first, second, signed)
            finally:
                await peer.close()
            assert bodies(made, "public") == [b"body"]
            assert bodies(made, "orders") == [b"body", b"twice"]

    run(test)


@pytest.mark.abuse("A9")
def test_frames_without_an_answer_are_checked_as_well(tmp_path: Path) -> None:
    """One-way requests are refused in silence; a request that says it is an answer is nobody's."""

    async def test() -> None:
        async with world(tmp_path) as made:
            before = made.state()
            peer = await RawPeer.connect(made.address("broker"))
            try:
                for flag in (ONEWAY_FLAG, RESPONSE_FLAG, ONEWAY_FLAG | RESPONSE_FLAG):
                    for code in (R.SEND_MESSAGE_V2, R.DELETE_TOPIC_IN_BROKER, R.UPDATE_CONSUMER_OFFSET):
                        peer.send(signed(EVERY[code](ANOTHERS), flag=flag))
                answer = await peer.ask(signed(EVERY[R.GET_MAX_OFFSET](OWN), opaque=99))
                assert (answer.code, answer.opaque) == (0, 99)
            finally:
                await peer.close()
            assert made.state() == before

    run(test)


def signed(command: Command, opaque: int = 7, flag: int = 0) -> Command:
    """As a RocketMQ client of alice signs: without a stamp."""
    command.fields["AccessKey"] = ALICE["access_key"]
    command.fields["Signature"] = sign(ALICE["secret_key"], command.fields, command.body)
    command.opaque, command.flag = opaque, flag
    return command


@pytest.mark.abuse("A7")
@pytest.mark.abuse("A9")
def test_names_inside_messages_send_them_nowhere_else(tmp_path: Path) -> None:
    """The broker's own marks in the properties of a message, alone and in a batch: it stays in its topic."""
    marks = properties(
        REAL_TOPIC="public",
        REAL_QID="0",
        RETRY_TOPIC="public",
        PGROUP="readers",
        ORIGIN_MESSAGE_ID="7F00000100002A9F0000000000000000",
        TRAN_MSG="false",
    )

    async def test() -> None:
        async with world(tmp_path) as made:
            single = changed(R.SEND_MESSAGE_V2, i=marks)
            batch = changed(R.SEND_BATCH_MESSAGE)
            batch.body = batch_item(b"one", marks) + batch_item(b"two", marks)
            for command in (single, batch):
                assert (await made.ask(made.clients["alice"], "broker", command)).code == 0
            assert bodies(made, "orders") == [b"body", b"body", b"one", b"two"]
            assert bodies(made, "public") == [b"body"]

    run(test)


def bodies(made: World, topic: str) -> list[bytes]:
    broker = made.server.broker
    assert broker is not None
    return [bytes(message.body) for message in broker.store.read(topic, 0, 0, 1 << 20)]


# -- the compiled way and the ordinary one -------------------------------------------------------------------


@pytest.mark.abuse("A9")
def test_sends_of_one_chunk_are_answered_as_if_each_came_alone(tmp_path: Path) -> None:
    """Own and foreign topics, warmed up, in one write: what a compiled path could take without a look."""

    async def test() -> None:
        async with world(tmp_path) as made:
            topics = ["orders", "public", "orders", "SCHEDULE_TOPIC_XXXX", "orders", "%RETRY%readers"] * 8
            peer = await RawPeer.connect(made.address("broker"))
            try:
                frames = [
                    encode_frame(signed(changed(R.SEND_MESSAGE_V2, b=topic), opaque=number))
                    for number, topic in enumerate(topics)
                ]
                peer.send(b"".join(frames))
                together = {}
                for _ in topics:
                    answer = await peer.read()
                    together[answer.opaque] = answer.code
                wanted = [0 if topic == "orders" else NO_PERMISSION for topic in topics]
                assert [together[number] for number in range(len(topics))] == wanted
                for number, frame in enumerate(frames):
                    peer.send(frame)
                    assert (await peer.read()).code == wanted[number]
            finally:
                await peer.close()
            assert bodies(made, "public") == [b"body"]

    run(test)


@pytest.mark.abuse("A7")
@pytest.mark.parametrize("fast", [True, False])
def test_without_access_control_both_ways_refuse_the_brokers_topics(tmp_path: Path, fast: bool) -> None:
    """Between sends to a topic that the compiled way has learned."""

    async def test() -> None:
        async with running(tmp_path, fast=fast) as bench:
            for _ in range(20):
                assert (await bench.client.send("T")).code == 0
            reserved = sorted(SYSTEM_TOPICS - {"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})
            topics = [
                topic
                for name in (*reserved, "PENSTOCK_STAGED", "PENSTOCK_PUBLISHED")
                for topic in ("T", name)
            ]
            peer = await RawPeer.connect(bench.broker.address)
            try:
                peer.send(
                    b"".join(
                        encode_frame(
                            Command(R.SEND_MESSAGE_V2, send_fields(topic), b"x", number, language="JAVA")
                        )
                        for number, topic in enumerate(topics)
                    )
                )
                codes = {}
                for _ in topics:
                    answer = await peer.read()
                    codes[answer.opaque] = answer.code
            finally:
                await peer.close()
            assert [codes[number] for number in range(len(topics))] == [
                0 if topic == "T" else NO_PERMISSION for topic in topics
            ]

    run(test)
