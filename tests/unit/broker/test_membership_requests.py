"""Heartbeats, member lists and queue locks over real sockets (34, 35, 38, 46, 41, 42)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.metadata.group_table import SubscriptionGroup
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import ProcessorTable
from tests.unit.broker.metadata_bench import Caller, MetadataBroker, heartbeat, run
from tests.waiting import until

OPTIONS = BrokerOptions(broker_name="b-a", cluster_name="c1")
HEART_BEAT, UNREGISTER, MEMBERS, CHECK, LOCK, UNLOCK = 34, 35, 38, 46, 41, 42


class Listening:
    """A client that keeps the notices it gets."""

    def __init__(self, broker: MetadataBroker) -> None:
        self.notices: list[str] = []
        table = ProcessorTable()
        table.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notice)
        self.call: Caller = broker.client(table)

    def _notice(self, _: object, command: Command) -> None:
        assert command.is_oneway
        self.notices.append(command.fields["consumerGroup"])


@pytest.mark.seed("S3-38")
def test_a_heartbeat_registers_group_retry_topic_and_member(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            answer = await caller.heartbeat("10.0.0.1@1", "cg", producers=("pg",))
            assert answer.code == 0
            assert answer.version >= 232  # or clients refuse to filter by SQL
            assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
            assert broker.groups.find("cg") is not None
            retry = broker.topics.get("%RETRY%cg")
            assert retry is not None
            assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
            assert await caller.json(MEMBERS, consumerGroup="cg") == {"consumerIdList": ["10.0.0.1@1"]}
            assert broker.producers.by_client_id("10.0.0.1@1") is not None

    run(life())


@pytest.mark.parametrize("binary", [False, True])
def test_the_answer_has_the_form_of_the_request(tmp_path: Path, binary: bool) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            answer = await broker.client().raw(HEART_BEAT, heartbeat("c", "g"), binary=binary)
            assert (answer.code, answer.binary) == (0, binary)

    run(life())


def test_unknown_groups_have_no_members(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            assert await broker.client().code(MEMBERS, consumerGroup="nobody") == 1

    run(life())


@pytest.mark.seed("S3-7")
def test_members_are_told_when_another_joins_leaves_or_dies(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            one, two, three = Listening(broker), Listening(broker), Listening(broker)
            await one.call.heartbeat("one", "g")
            await until(lambda: one.notices == ["g"])
            await two.call.heartbeat("two", "g")
            await until(lambda: one.notices == ["g"] * 2 and two.notices == ["g"])
            await three.call.heartbeat("three", "g")
            await until(lambda: one.notices == ["g"] * 3 and two.notices == ["g"] * 2)
            assert await one.call.code(UNREGISTER, clientID="one", consumerGroup="g") == 0
            await until(lambda: two.notices == ["g"] * 3)
            two.call.client.drop(two.call.address)  # the connection breaks
            await until(lambda: three.notices == ["g"] * 3)
            assert await three.call.json(MEMBERS, consumerGroup="g") == {"consumerIdList": ["three"]}
            assert one.notices == ["g"] * 3

    run(life())


def test_a_producer_leaves(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            await caller.heartbeat("c", producers=("pg",))
            assert await caller.code(UNREGISTER, clientID="c", producerGroup="pg") == 0
            assert broker.producers.by_client_id("c") is None

    run(life())


def test_a_group_may_switch_notices_off(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.groups.update(SubscriptionGroup("g", notify_consumer_ids_changed_enable=False))
            one, two = Listening(broker), Listening(broker)
            await one.call.heartbeat("one", "g")
            await two.call.heartbeat("two", "g")
            await two.call.json(MEMBERS, consumerGroup="g")
            assert (one.notices, two.notices) == ([], [])

    run(life())


def test_the_short_heartbeat(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()

            async def beat(fingerprint: int, short: bool) -> str:
                answer = await caller.heartbeat("c", "g", fingerprint=fingerprint, without_sub=short)
                return answer.fields["IS_SUB_CHANGE"]

            assert await beat(7, short=True) == "true"  # a broker that started anew knows no subscription
            assert await beat(7, short=False) == "false"
            assert await beat(7, short=True) == "false"
            group = broker.consumers.group("g")
            assert group is not None
            assert set(group.subscriptions) == {"T"}
            assert await beat(8, short=False) == "true"  # something differs from what was known
            assert await beat(8, short=True) == "false"

    run(life())


def test_a_group_that_may_not_be_created_is_skipped_and_the_others_work(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert (await caller.heartbeat("c", "bad group", "good", producers=("../p", "p"))).code == 0
            assert broker.groups.find("bad group") is None
            assert broker.consumers.group("good") is not None
            assert [group for group, _ in broker.producers.groups()] == ["p"]

    run(life())


@pytest.mark.abuse("A6")
def test_a_subscription_to_what_can_be_no_topic_is_skipped(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            assert (await broker.client().heartbeat("c", "g", topic="../../etc/passwd")).code == 0
            group = broker.consumers.group("g")
            assert group is not None
            assert dict(group.subscriptions) == {}

    run(life())


def test_without_auto_creation_unknown_groups_are_skipped(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, replace(OPTIONS, auto_create_groups=False)) as broker:
            caller = broker.client()
            assert (await caller.heartbeat("c", "g")).code == 0
            assert broker.consumers.group("g") is None
            assert broker.topics.get("%RETRY%g") is None

    run(life())


LIMITED = replace(
    OPTIONS,
    client_groups_max=3,
    group_subscriptions_max=2,
    expression_size_max=20,
    heartbeat_bytes_max=4_000,
)


def many_subscriptions(count: int) -> bytes:
    data = json.loads(heartbeat("c", "g"))
    one = data["consumerDataSet"][0]["subscriptionDataSet"][0]
    data["consumerDataSet"][0]["subscriptionDataSet"] = [{**one, "topic": f"T{n}"} for n in range(count)]
    return json.dumps(data).encode()


HOSTILE = [
    pytest.param(heartbeat("c", *(f"g{n}" for n in range(4))), 29, id="groups"),
    pytest.param(heartbeat("c", producers=tuple(f"p{n}" for n in range(4))), 29, id="producer groups"),
    pytest.param(many_subscriptions(3), 29, id="subscriptions"),
    pytest.param(heartbeat("c", "g", expression="x" * 21), 29, id="long expression"),
    pytest.param(heartbeat("c" * 3_900, "g"), 29, id="too large"),
    pytest.param(heartbeat("x" * 256, "g"), 29, id="long client id"),
    pytest.param(heartbeat("a\nb", "g"), 29, id="client id of two lines"),
    pytest.param(heartbeat("", "g"), 29, id="no client id"),
    pytest.param(b"", 1, id="empty"),
    pytest.param(b"{", 1, id="cut"),
    pytest.param(b"[1,2]", 1, id="a list"),
    pytest.param(b"[" * 3_000, 1, id="deep"),
    pytest.param(b'{"clientID":{"a":1}}', 1, id="wrong type"),
    pytest.param(b'{"clientID":"c","consumerDataSet":[1]}', 1, id="wrong entry"),
    pytest.param(b"\xff\xfe", 1, id="not text"),
]


@pytest.mark.abuse("A6")
@pytest.mark.abuse("A14")
@pytest.mark.parametrize(("body", "code"), HOSTILE)
def test_hostile_heartbeats_change_nothing(tmp_path: Path, body: bytes, code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, LIMITED) as broker:
            known = set(broker.groups.all())
            caller = broker.client()
            assert await caller.code(HEART_BEAT, body) == code
            assert set(broker.groups.all()) == known
            assert list(broker.consumers.all()) == []
            assert list(broker.producers.groups()) == []
            assert (await caller.heartbeat("c", "g")).code == 0  # the connection still serves

    run(life())


def test_check_client_config(tmp_path: Path) -> None:
    def body(kind: str) -> bytes:
        subscription = {"topic": "T", "subString": "a", "expressionType": kind}
        return json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription}).encode()

    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(CHECK, body("TAG")) == 0
            assert await caller.code(CHECK, body("SQL92")) == 0
            assert await caller.code(CHECK, body("XPATH")) == 23
            assert await caller.code(CHECK, b"{}") == 0

    run(life())


# -- queue locks ---------------------------------------------------------------------------------------------


def locking(
    client_id: str, *queue_ids: int, group: str = "g", topic: str = "T", broker: str = "b-a"
) -> bytes:
    queues = [{"brokerName": broker, "queueId": number, "topic": topic} for number in queue_ids]
    data = {"clientId": client_id, "consumerGroup": group, "mqSet": queues, "onlyThisBroker": False}
    return json.dumps(data, separators=(",", ":")).encode()


def test_queue_locks(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.topics.ensure("T", 2)
            caller = broker.client()

            async def lock(*args: object, **more: object) -> list[int]:
                found = await caller.json(LOCK, locking(*args, **more))  # type: ignore[arg-type]
                return sorted(queue["queueId"] for queue in found["lockOKMQSet"])

            raw = await caller.raw(LOCK, locking("a", 0))
            assert raw.body == b'{"lockOKMQSet":[{"brokerName":"b-a","queueId":0,"topic":"T"}]}'
            assert await lock("b", 0, 1) == [1]
            assert await lock("a", 0, 1) == [0]
            assert await caller.code(UNLOCK, locking("b", 0, 1)) == 0
            assert await lock("a", 0, 1) == [0, 1]
            assert broker.locks.is_locked("g")
            assert await lock("a", 2, -1, 2**31 - 1) == []  # there are no such queues
            assert await lock("a", 0, topic="unknown") == []
            assert await lock("a", 0, broker="b-b") == []
            assert await caller.code(LOCK, locking("a", 0, group="bad group")) == 26
            assert await caller.code(LOCK, b"nonsense") == 1

    run(life())
