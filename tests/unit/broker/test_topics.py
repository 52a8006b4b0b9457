"""Topics: what exists at the start, who may create what, names, limits, the file."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.topics import Topics, dead_letter_topic, retry_topic, validate_topic
from penstock.errors import OptionError
from penstock.metadata.fastjson import loads
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.unit.broker.journals import journal
from tests.unit.broker.metadata_bench import refused

OPTIONS = BrokerOptions(cluster_name="c1", broker_name="b-a")


def topics(path: Path, options: BrokerOptions = OPTIONS, clock: ManualClock | None = None) -> Topics:
    table = Topics(options, Runtime(clock=clock or ManualClock()), journal(path))
    table.load()
    return table


def test_a_new_broker_has_the_topics_of_a_java_broker(tmp_path: Path) -> None:
    found = {
        name: (t.read_queue_nums, t.write_queue_nums, int(t.perm))
        for name, t in topics(tmp_path).all().items()
    }
    assert found == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "c1": (16, 16, 7),
        "b-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "c1_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_c1": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b-a": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }


def test_the_trace_topic_exists_only_if_asked_for(tmp_path: Path) -> None:
    options = replace(OPTIONS, trace_topic_enabled=True)
    assert topics(tmp_path, options).get("RMQ_SYS_TRACE_TOPIC") is not None


def test_a_send_creates_a_topic_on_the_model(tmp_path: Path) -> None:
    table = topics(tmp_path)
    before = table.data_version
    told: list[TopicConfig | None] = []
    table.on_change.append(told.append)
    made = table.create_for_send("T", "TBW102", 4)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert table.get("T") is made
    assert told == [made]
    assert table.data_version > before
    assert table.create_for_send("T", "TBW102", 8) is made


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (8, 8), (100, 8), (0, 0), (-5, 0), (2**31 - 1, 8)])
def test_no_more_queues_than_the_model_has(tmp_path: Path, asked: int, given: int) -> None:
    assert topics(tmp_path).create_for_send("T", "TBW102", asked).write_queue_nums == given


@pytest.mark.feature("partition-placement", "fifth-seed")
@pytest.mark.seed("S4-73")
@pytest.mark.seed("S4-74")
def test_no_more_queues_than_ten_whatever_the_model(tmp_path: Path) -> None:
    table = topics(tmp_path, replace(OPTIONS, default_topic_queues=64))
    assert table.create_for_send("T", "TBW102", 64).write_queue_nums == 10
    assert table.create_for_send("U", "c1", 16).write_queue_nums == 10
    model = table.get("TBW102")
    assert model is not None
    assert model.write_queue_nums == 10  # so that no client is told of queues it will not get


def test_a_unit_producer_makes_a_unit_topic(tmp_path: Path) -> None:
    assert topics(tmp_path).create_for_send("T", "TBW102", 4, unit_mode=True).sys_flag == 1


@pytest.mark.parametrize("template", ["nowhere", "BenchmarkTest", "SELF_TEST_TOPIC", ""])
def test_without_a_model_there_is_no_topic(tmp_path: Path, template: str) -> None:
    table = topics(tmp_path)
    with refused(17):
        table.create_for_send("T", template, 4)
    assert table.get("T") is None


def test_auto_creation_can_be_switched_off_and_on(tmp_path: Path) -> None:
    table = topics(tmp_path, replace(OPTIONS, auto_create_topics=False))
    assert table.get("TBW102") is None
    for template in ("TBW102", "c1"):
        with refused(17):
            table.create_for_send("T", template, 4)
    table.reconfigure(OPTIONS)
    assert table.create_for_send("T", "TBW102", 4).name == "T"


BAD_NAMES = [
    "", " ", "a b", "../x", "a/b", "a\\b", "a\0b", "a.b", "é", "a\n", "x" * 128, "t" * 10_000,
    "a+b", "%RETRY%" + "x" * 249
]  # fmt: skip


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with refused(29):
        validate_topic(name)
    table = topics(tmp_path)
    with refused(29):
        table.create_for_send(name, "TBW102", 4)
    with refused(29):
        table.ensure(name, 1)
    with refused(29):
        table.update(TopicConfig(name))


@pytest.mark.parametrize(
    "name", ["T", "a-b_C9", "%RETRY%g", "ns%topic", "a|b", "x" * 127, "%DLQ%" + "g" * 250]
)
def test_good_names_are_taken(name: str) -> None:
    validate_topic(name)


CLOSED = [
    "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer",
    "rmq_sys_anything", "RMQ_SYS_ANYTHING", "%DLQ%g",
]  # fmt: skip
OPEN = [
    "T",
    "BenchmarkTest",
    "c1",
    "b-a",
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_TRACE_DATA_r1",
    "%RETRY%g",
    "c1_REPLY_TOPIC",
]


@pytest.mark.abuse("A7")
def test_reserved_topics_are_not_sent_to(tmp_path: Path) -> None:
    table = topics(tmp_path)
    assert [name for name in CLOSED if table.is_sendable(name)] == []
    assert [name for name in OPEN if not table.is_sendable(name)] == []
    for name in ("rmq_sys_new", "%DLQ%new", "TRANS_CHECK_MAX_TIME_TOPIC"):
        with refused(17):
            table.create_for_send(name, "TBW102", 4)


@pytest.mark.abuse("A14")
def test_sends_create_only_so_many_topics_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    table = topics(tmp_path, replace(OPTIONS, create_burst=3, create_per_second=1), clock)
    for number in range(3):
        table.create_for_send(f"T{number}", "TBW102", 4)
    with refused(2):
        table.create_for_send("T3", "TBW102", 4)
    clock.jump(3_600_000)  # a wall clock that was set forward gives nobody a permit
    with refused(2):
        table.create_for_send("T3", "TBW102", 4)
    clock.advance(1_000)
    table.create_for_send("T3", "TBW102", 4)
    with refused(2):
        table.create_for_send("T4", "TBW102", 4)
    table.update(TopicConfig("by-operator"))


@pytest.mark.abuse("A14")
def test_sends_create_only_so_many_topics_in_all(tmp_path: Path) -> None:
    table = topics(tmp_path, replace(OPTIONS, auto_topics_max=15))
    table.create_for_send("T0", "TBW102", 4)
    table.create_for_send("T1", "TBW102", 4)
    with refused(17):
        table.create_for_send("T2", "TBW102", 4)
    table.update(TopicConfig("T2"))
    assert table.create_for_send("T2", "TBW102", 4).name == "T2"


def test_retry_and_dead_letter_topics(tmp_path: Path) -> None:
    table = topics(tmp_path)
    made = table.ensure(retry_topic("g"), 1)
    assert (made.name, made.write_queue_nums, made.perm) == ("%RETRY%g", 1, 6)
    assert table.ensure(retry_topic("g"), 7) is made
    assert table.ensure(dead_letter_topic("g"), 1).name == "%DLQ%g"
    assert table.ensure("%RETRY%u", 1, unit_mode=True).sys_flag == 2


def test_deleting_is_announced(tmp_path: Path) -> None:
    table = topics(tmp_path)
    table.update(TopicConfig("T"))
    told: list[TopicConfig | None] = []
    gone: list[str] = []
    table.on_change.append(told.append)
    table.on_delete.append(gone.append)
    before = table.data_version
    assert table.delete("T")
    assert not table.delete("T")
    assert (told, gone) == ([None], ["T"])
    assert table.data_version > before


def test_an_update_that_changes_nothing_changes_nothing(tmp_path: Path) -> None:
    table = topics(tmp_path)
    table.update(TopicConfig("T", 4, 4))
    before = table.data_version
    table.update(TopicConfig("T", 4, 4))
    assert table.data_version == before


def test_too_many_queues_are_refused(tmp_path: Path) -> None:
    with refused(29):
        topics(tmp_path).update(TopicConfig("T", 16_385, 1))


def test_topics_of_the_store_without_config_get_one(tmp_path: Path) -> None:
    """A crash right after the first message of a topic must not hide the message."""
    table = topics(tmp_path)
    table.adopt({"T": 3, "TBW102": 1, "../bad": 1})
    found = table.get("T")
    assert found == TopicConfig("T", 3, 3, Permission.READ | Permission.WRITE)
    assert table.get("../bad") is None
    model = table.get("TBW102")
    assert model is not None
    assert model.write_queue_nums == 8


def test_topics_survive_a_restart_in_java_s_file(tmp_path: Path) -> None:
    async def life() -> None:
        table = topics(tmp_path)
        table.start()
        table.create_for_send("T", "TBW102", 4)
        await table.stop()

    asyncio.run(life())
    written = loads((tmp_path / "topics.json").read_bytes())
    assert isinstance(written, dict)
    assert written["topicConfigTable"]["T"] == {  # type: ignore[index, call-overload]
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    again = topics(tmp_path)
    assert again.get("T") == TopicConfig("T", 4, 4)
    version = again.data_version
    assert again.stored.is_clean  # nothing was added, so nothing has to be written
    assert version.counter > 0


@pytest.mark.parametrize(
    "change",
    [
        {"cluster_name": ""},
        {"broker_name": "a b"},
        {"broker_name": "x/.."},
        {"port": 70_000},
        {"port": -1},
        {"permission": 8},
        {"register_interval_ms": 0},
        {"register_interval_ms": 61_000},
        {"name_servers": ("",)},
        {"memory_percent": 101},
        {"default_topic_queues": 0},
    ],
)
def test_options_are_checked(change: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        replace(OPTIONS, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("advertised", "address"),
    [
        ("", "127.0.0.1:10911"),
        ("broker.example", "broker.example:10911"),
        ("broker.example:1234", "broker.example:1234"),
        ("10.1.2.3", "10.1.2.3:10911"),
        ("[2001:db8::1]", "[2001:db8::1]:10911"),
        ("[2001:db8::1]:99", "[2001:db8::1]:99"),
    ],
)
def test_the_advertised_address(advertised: str, address: str) -> None:
    assert replace(OPTIONS, advertised_address=advertised).advertise("127.0.0.1", 10911) == address
