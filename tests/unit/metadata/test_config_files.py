"""Config files: the fallback to .bak, a save that survives everything, and the tables in them."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError, DiskFullError, StoreError
from penstock.metadata.config_files import ConfigFile, DataVersion
from penstock.metadata.fastjson import JsonValue, dump_pretty, loads
from penstock.metadata.group_table import (
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    Subscription,
    SubscriptionGroup,
    SubscriptionGroupTable,
)
from penstock.metadata.offset_table import ConsumerOffsetTable, DelayOffsetTable, TopicGroup
from penstock.metadata.topic_table import Permission, TopicConfig, TopicTable
from penstock.runtime import SeededEntropy, SystemDisk
from penstock.testing import (
    FaultyDisk,
    Keep,
    keep_random_blocks,
    keep_unsynced,
    lose_unsynced,
)

DATA_VERSION = '{"counter":7,"stateVersion":0,"timestamp":1700000000000}'
TOPICS = f"""{{"dataVersion":{DATA_VERSION},
 "topicConfigTable":{{"T1":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":8,
   "topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":0,"writeQueueNums":8}}}}}}"""
CONSUMER_OFFSETS = f"""{{"dataVersion":{DATA_VERSION},
 "groupTopicMap":{{"G1":["T1"]}},
 "offsetTable":{{"T1@G1":{{0:100,1:98}},"%RETRY%G1@G1":{{0:0}}}}}}"""
GROUPS = f"""{{"dataVersion":{DATA_VERSION},"forbiddenTable":{{"G1":{{"T1":4}}}},
 "subscriptionGroupTable":{{"G1":{{"attributes":{{}},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,
   "consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"G1",
   "groupRetryPolicy":{{"type":"CUSTOMIZED"}},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,
   "retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}}}}"""
DELAY_OFFSETS = f'{{"dataVersion":{DATA_VERSION},"offsetTable":{{1:10,3:7}}}}'
VERSION = DataVersion(state_version=0, counter=7, timestamp_ms=1_700_000_000_000)

TABLES = [TopicTable, ConsumerOffsetTable, SubscriptionGroupTable, DelayOffsetTable]


def as_read(value: JsonValue, _source: str) -> JsonValue:
    return value


def read(path: Path) -> JsonValue:
    """What a start after the crash would load."""
    loaded = ConfigFile(SystemDisk(), path).load(as_read)
    return None if loaded is None else loaded.value


# Loading.


@pytest.mark.parametrize("main", [None, b"", b" \n", b'{"a":', b"\0" * 20, b"[1]x"], ids=repr)
def test_the_backup_is_read_when_main_is_missing_empty_or_unreadable(
    tmp_path: Path, main: bytes | None
) -> None:
    path = tmp_path / "topics.json"
    if main is not None:
        path.write_bytes(main)
    (tmp_path / "topics.json.bak").write_bytes(b"{0:1}")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    loaded = ConfigFile(SystemDisk(), path).load(as_read)
    assert loaded is not None
    assert (loaded.value, loaded.path.name, loaded.is_backup) == ({"0": 1}, "topics.json.bak", True)
    assert "topics.json" in loaded.main_problem
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before, "reading changes nothing"


def test_main_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b"{new:1}")
    (tmp_path / "f.json.bak").write_bytes(b"{old:1}")
    loaded = ConfigFile(SystemDisk(), tmp_path / "f.json").load(as_read)
    assert loaded is not None
    assert (loaded.value, loaded.path.name, loaded.is_backup) == ({"new": 1}, "f.json", False)


def test_the_backup_is_also_read_when_main_has_values_of_a_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(TOPICS.replace('"perm":6', '"perm":"6"'))
    (tmp_path / "topics.json.bak").write_text(TOPICS)
    loaded = ConfigFile(SystemDisk(), tmp_path / "topics.json").load(TopicTable.from_json)
    assert loaded is not None
    assert list(loaded.value.topics) == ["T1"]
    assert "topicConfigTable.T1.perm" in loaded.main_problem


def test_no_file_is_none(tmp_path: Path) -> None:
    assert ConfigFile(SystemDisk(), tmp_path / "absent.json").load(as_read) is None
    (tmp_path / "empty.json").touch()
    assert ConfigFile(SystemDisk(), tmp_path / "empty.json").load(as_read) is None


@pytest.mark.invariant("I12")
def test_content_that_nobody_can_read_is_reported_and_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b"{")
    with pytest.raises(CodecError, match=r"f\.json: .*line 1"):
        ConfigFile(SystemDisk(), path).load(as_read)
    (tmp_path / "f.json.bak").write_bytes(b"?")
    with pytest.raises(CodecError, match=r"f\.json: .*f\.json\.bak: "):
        ConfigFile(SystemDisk(), path).load(as_read)


@pytest.mark.fault("F7")
def test_a_file_that_cannot_be_read_counts_as_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b"{new:1}")
    disk = FaultyDisk(tmp_path)
    disk.fail_next("read", errno.EIO)
    with pytest.raises(CodecError, match="cannot be read"):
        ConfigFile(disk, path).load(as_read)
    (tmp_path / "f.json.bak").write_bytes(b"{old:1}")
    disk.fail_next("read", errno.EIO)
    loaded = ConfigFile(disk, path).load(as_read)
    assert loaded is not None
    assert loaded.value == {"old": 1}


# Saving.


def test_save_keeps_the_content_before_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "f.json"
    file = ConfigFile(SystemDisk(), path)
    file.save({"n": 1})
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["f.json"]
    file.save({"n": 2})
    ConfigFile(SystemDisk(), path).save({"n": 3})
    assert json.loads(path.read_bytes()) == {"n": 3}
    assert json.loads(file.backup_path.read_bytes()) == {"n": 2}
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["f.json", "f.json.bak"]


def test_order_of_a_save(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = ConfigFile(disk, tmp_path / "f.json")
    file.save({"n": 1})
    disk.log.clear()
    file.save({"n": 2})
    assert [(entry.op, entry.path, entry.target) for entry in disk.log] == [
        ("open", "f.json.tmp", ""),
        ("truncate", "f.json.tmp", ""),
        ("pwrite", "f.json.tmp", ""),
        ("sync", "f.json.tmp", ""),
        ("rename", "f.json", "f.json.bak"),
        ("sync_dir", ".", ""),
        ("rename", "f.json.tmp", "f.json"),
        ("sync_dir", ".", ""),
    ]


@pytest.mark.fault("F7")
@pytest.mark.parametrize("knows", ["after load", "without load"])
def test_a_damaged_main_never_replaces_a_good_backup(tmp_path: Path, knows: str) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'{"n":2')
    (tmp_path / "f.json.bak").write_bytes(b'{"n":1}')
    disk = FaultyDisk(tmp_path)
    file = ConfigFile(disk, path)
    if knows == "after load":
        loaded = file.load(as_read)
        assert loaded is not None
        assert loaded.value == {"n": 1}
    file.save({"n": 3})
    assert json.loads(file.backup_path.read_bytes()) == {"n": 1}
    file.save({"n": 4})
    assert json.loads(file.backup_path.read_bytes()) == {"n": 3}


SURVIVAL: dict[str, Callable[[int], Keep]] = {
    "nothing": lambda _seed: lose_unsynced,
    "everything": lambda _seed: keep_unsynced,
    "random": lambda seed: keep_random_blocks(SeededEntropy(seed)),
}
# Longer than two blocks, so that a part of it can be lost.
OLD: dict[str, JsonValue] = {f"old-{number}": number for number in range(800)}
NEW: dict[str, JsonValue] = {f"new-{number}": number for number in range(900)}
BEGINNINGS: dict[str, dict[str, bytes]] = {
    "first save": {},
    "main only": {"f.json": dump_pretty(OLD)},
    "main and backup": {"f.json": dump_pretty(OLD), "f.json.bak": b'{"older":1}'},
    "backup only": {"f.json.bak": dump_pretty(OLD)},
    "damaged main": {"f.json": b'{"dam', "f.json.bak": dump_pretty(OLD)},
    "left-over temporary": {"f.json": dump_pretty(OLD), "f.json.tmp": b"x" * 40_000},
}


def saved_until(
    steps: int, root: Path, beginning: dict[str, bytes], lose_names: bool
) -> tuple[FaultyDisk, bool]:
    """A disk whose power went after so many changes of a save, and whether the save was over by then."""
    root.mkdir()
    for name, data in beginning.items():
        (root / name).write_bytes(data)
    disk = FaultyDisk(root, lose_directory_entries=lose_names)
    file = ConfigFile(disk, root / "f.json")
    file.load(as_read)
    disk.stop_after(steps)
    try:
        file.save(NEW)
    except StoreError:
        assert not disk.has_power
        return disk, False
    return disk, True


@pytest.mark.fault("F5")
@pytest.mark.fault("F6")
@pytest.mark.parametrize("lose_names", [False, True], ids=["names kept", "names lost"])
@pytest.mark.parametrize("survivors", SURVIVAL)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_power_loss_at_every_step_of_a_save(
    tmp_path: Path, beginning: str, survivors: str, lose_names: bool
) -> None:
    old = OLD if BEGINNINGS[beginning] else None
    completed = False
    for steps in range(12):
        # Names that were changed but not synced may survive or not, one after the other.
        for kept_entries in range(4 if lose_names else 1):
            root = tmp_path / f"{steps}-{kept_entries}"
            disk, completed = saved_until(steps, root, BEGINNINGS[beginning], lose_names)
            disk.crash(SURVIVAL[survivors](steps), kept_entries=kept_entries)
            found = read(root / "f.json")
            assert found in ([NEW] if completed else [old, NEW]), f"{steps} changes, {kept_entries} names"
    assert completed


@pytest.mark.fault("F5")
def test_the_write_of_a_save_torn_anywhere(tmp_path: Path) -> None:
    size = len(dump_pretty(NEW))
    for cut in (0, 1, 2, 100, 4_095, 4_096, 4_097, size - 1, size):
        for beginning, old in (("first save", None), ("main only", OLD)):
            root = tmp_path / f"{cut}-{beginning}"
            disk, _ = saved_until(3, root, BEGINNINGS[beginning], lose_names=False)
            disk.crash(torn_at=cut)
            assert read(root / "f.json") == old


@pytest.mark.fault("F4")
@pytest.mark.fault("F8")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("op", "after"),
    [("open", 0), ("truncate", 0), ("pwrite", 0), ("sync", 0), ("rename", 0), ("sync_dir", 0), ("rename", 1)],
)
def test_a_save_that_fails_keeps_the_old_content_and_the_next_one_works(
    tmp_path: Path, op: str, after: int, error: int
) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(dump_pretty(OLD))
    disk = FaultyDisk(tmp_path, lose_directory_entries=True)
    file = ConfigFile(disk, path)
    disk.fail_next(op, error, after=after, partial_bytes=100)
    with pytest.raises(DiskFullError if error == errno.ENOSPC else StoreError) as caught:
        file.save(NEW)
    assert "f.json" in caught.value.message
    assert caught.value.hint
    assert read(path) == OLD
    file.save(NEW)
    disk.crash()
    assert read(path) == NEW


@pytest.mark.fault("F4")
def test_a_save_on_a_full_disk_works_again_when_space_returns(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = ConfigFile(disk, tmp_path / "f.json")
    file.save(OLD)
    disk.space_limit_bytes = disk.used_bytes + 100
    for _ in range(3):
        with pytest.raises(DiskFullError):
            file.save(NEW)
        assert read(file.path) == OLD
    disk.space_limit_bytes = None
    file.save(NEW)
    disk.crash()
    assert read(file.path) == NEW


@pytest.mark.fault("F6")
def test_a_file_outlives_a_power_loss_with_the_directories_made_for_it(tmp_path: Path) -> None:
    """Their names stand in directories, too."""
    disk = FaultyDisk(tmp_path, lose_directory_entries=True)
    file = ConfigFile(disk, tmp_path / "data" / "config" / "f.json")
    file.save(NEW)
    disk.crash()
    assert read(file.path) == NEW


# Versions.


def test_versions_are_ordered_by_epoch_then_changes_then_time() -> None:
    ordered = [DataVersion(0, 0, 9), DataVersion(0, 1, 0), DataVersion(0, 1, 1), DataVersion(1, 0, 0)]
    newest_first = [DataVersion(1, 0, 0), DataVersion(0, 1, 1), DataVersion(0, 1, 0), DataVersion(0, 0, 9)]
    assert sorted(newest_first) == ordered
    assert DataVersion(1, 2, 3) == DataVersion(1, 2, 3)
    assert DataVersion(1, 2, 3) != DataVersion(1, 2, 4)
    assert DataVersion(1, 2, 3) == DataVersion(1, 2, 3, {"unknown": 1})


def test_the_next_version() -> None:
    assert VERSION.next(now_ms=5) == DataVersion(0, 8, 5)
    assert VERSION.next(now_ms=5, state_version=3) == DataVersion(3, 8, 5)
    assert VERSION.next(now_ms=5) > VERSION, "also when the clock went back"


# Tables: the examples of the format page.


def test_topics() -> None:
    table = TopicTable.from_json(loads(TOPICS))
    assert table.data_version == VERSION
    assert table.topics == {
        "T1": TopicConfig(
            "T1", read_queue_nums=8, write_queue_nums=8, perm=Permission.READ | Permission.WRITE
        )
    }
    assert table.to_json() == json.loads(TOPICS)


def test_topic_fields() -> None:
    text = """{"topicConfigTable":{"T":{"perm":7,"order":true,"topicFilterType":"MULTI_TAG","topicSysFlag":3,
        "attributes":{"queue.type":"BatchCQ","reserve.time":"-1"}}}}"""
    topic = TopicTable.from_json(loads(text)).topics["T"]
    assert topic.perm == Permission.READ | Permission.WRITE | Permission.INHERIT
    assert (topic.order, topic.filter_type, topic.sys_flag) == (True, "MULTI_TAG", 3)
    assert topic.attributes == {"queue.type": "BatchCQ", "reserve.time": "-1"}
    assert (topic.read_queue_nums, topic.write_queue_nums) == (16, 16)


def test_consumer_offsets() -> None:
    table = ConsumerOffsetTable.from_json(loads(CONSUMER_OFFSETS))
    assert table.data_version == VERSION
    assert table.offsets == {
        TopicGroup("T1", "G1"): {0: 100, 1: 98},
        TopicGroup("%RETRY%G1", "G1"): {0: 0},
    }
    written = table.to_json()
    assert written["offsetTable"] == {"T1@G1": {"0": 100, "1": 98}, "%RETRY%G1@G1": {"0": 0}}
    assert written["groupTopicMap"] == {"G1": ["%RETRY%G1", "T1"]}


def test_the_derived_map_is_not_read() -> None:
    text = '{"groupTopicMap":{"gone":["T9"]},"offsetTable":{"T@G":{0:1}}}'
    assert ConsumerOffsetTable.from_json(loads(text)).to_json()["groupTopicMap"] == {"G": ["T"]}


def test_groups() -> None:
    table = SubscriptionGroupTable.from_json(loads(GROUPS))
    assert table.groups == {"G1": SubscriptionGroup("G1")}, "the example shows the defaults"
    assert table.forbidden == {"G1": {"T1": 4}}
    assert table.to_json() == json.loads(GROUPS)


def test_group_with_optional_parts() -> None:
    text = """{"subscriptionGroupTable":{"G":{"retryMaxTimes":-1,"consumeEnable":false,
        "groupRetryPolicy":{"type":"EXPONENTIAL","customizedRetryPolicy":{"next":[1000,5000]},
            "exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}},
        "subscriptionDataSet":[{"expression":"a || b","expressionType":"TAG","topic":"T","version":17}]}}}"""
    table = SubscriptionGroupTable.from_json(loads(text))
    group = table.groups["G"]
    assert (group.retry_max_times, group.consume_enable) == (-1, False)
    assert group.retry_policy == GroupRetryPolicy(
        "EXPONENTIAL", CustomizedRetry((1000, 5000)), ExponentialRetry(5_000, 7_200_000, 2)
    )
    assert group.subscriptions == (Subscription("T", "TAG", "a || b", 17),)
    assert SubscriptionGroupTable.from_json(table.to_json()) == table


def test_delay_offsets() -> None:
    table = DelayOffsetTable.from_json(loads(DELAY_OFFSETS))
    assert (table.data_version, table.offsets) == (VERSION, {1: 10, 3: 7})
    assert table.to_json()["offsetTable"] == {"1": 10, "3": 7}
    assert DelayOffsetTable.from_json(loads("{offsetTable:{2:5}}")).data_version == DataVersion()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.FILE_NAME)
def test_an_empty_object_is_an_empty_table(table: type) -> None:
    assert table.from_json({}) == table()


def test_unknown_fields_are_kept_at_every_level() -> None:
    unknown = {"fromTheFuture": {"deep": [1, None]}}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 2, **unknown}
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1], **unknown}, **unknown}
    subscription = {"topic": "T", "expression": "*", "expressionType": "TAG", "version": 1, **unknown}
    group = {"groupName": "G", "groupRetryPolicy": policy, "subscriptionDataSet": [subscription], **unknown}
    for table, value in (
        (TopicTable, {"topicConfigTable": {"T": {"topicName": "T", **unknown}}}),
        (ConsumerOffsetTable, {"offsetTable": {"T@G": {"0": 1}}}),
        (SubscriptionGroupTable, {"subscriptionGroupTable": {"G": group}}),
        (DelayOffsetTable, {"offsetTable": {"1": 2}}),
    ):
        value = {**value, "dataVersion": version, **unknown}
        written = table.from_json(value).to_json()
        assert contains(written, value)
        assert json.dumps(written).count("fromTheFuture") == json.dumps(value).count("fromTheFuture")


def contains(whole: JsonValue, part: JsonValue) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


@pytest.mark.parametrize(
    ("table", "text", "key"),
    [
        (TopicTable, "[]", "the file"),
        (TopicTable, "{topicConfigTable:[]}", "topicConfigTable"),
        (TopicTable, "{topicConfigTable:{T:1}}", "topicConfigTable.T"),
        (TopicTable, "{topicConfigTable:{T:{perm:16}}}", "topicConfigTable.T.perm"),
        (TopicTable, "{topicConfigTable:{T:{perm:-1}}}", "topicConfigTable.T.perm"),
        (TopicTable, "{topicConfigTable:{T:{perm:'6'}}}", "topicConfigTable.T.perm"),
        (TopicTable, "{topicConfigTable:{T:{perm:6.0}}}", "topicConfigTable.T.perm"),
        (TopicTable, "{topicConfigTable:{T:{readQueueNums:true}}}", "topicConfigTable.T.readQueueNums"),
        (TopicTable, "{topicConfigTable:{T:{readQueueNums:-1}}}", "topicConfigTable.T.readQueueNums"),
        (
            TopicTable,
            "{topicConfigTable:{T:{writeQueueNums:2147483648}}}",
            "topicConfigTable.T.writeQueueNums",
        ),
        (TopicTable, "{topicConfigTable:{T:{order:0}}}", "topicConfigTable.T.order"),
        (TopicTable, "{topicConfigTable:{T:{topicName:'U'}}}", "topicConfigTable.T.topicName"),
        (
            TopicTable,
            "{topicConfigTable:{T:{topicFilterType:'NO_TAG'}}}",
            "topicConfigTable.T.topicFilterType",
        ),
        (TopicTable, "{topicConfigTable:{T:{attributes:{a:1}}}}", "topicConfigTable.T.attributes.a"),
        (TopicTable, "{dataVersion:{counter:9223372036854775808}}", "dataVersion.counter"),
        (TopicTable, "{dataVersion:7}", "dataVersion"),
        (ConsumerOffsetTable, "{offsetTable:{T:{0:1}}}", "offsetTable.T"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{'-1':1}}}", "offsetTable.T@G.-1"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{x:1}}}", "offsetTable.T@G.x"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{' 1':1}}}", "offsetTable.T@G. 1"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{'1_0':1}}}", "offsetTable.T@G.1_0"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{2147483648:1}}}", "offsetTable.T@G.2147483648"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{0:-2}}}", "offsetTable.T@G.0"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{0:9223372036854775808}}}", "offsetTable.T@G.0"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':{0:null}}}", "offsetTable.T@G.0"),
        (ConsumerOffsetTable, "{offsetTable:{'T@G':5}}", "offsetTable.T@G"),
        (SubscriptionGroupTable, "{subscriptionGroupTable:{G:{groupName:'H'}}}", "G.groupName"),
        (SubscriptionGroupTable, "{subscriptionGroupTable:{G:{consumeEnable:'yes'}}}", "G.consumeEnable"),
        (SubscriptionGroupTable, "{subscriptionGroupTable:{G:{retryQueueNums:-1}}}", "G.retryQueueNums"),
        (SubscriptionGroupTable, "{subscriptionGroupTable:{G:{groupRetryPolicy:{type:'X'}}}}", "Policy.type"),
        (
            SubscriptionGroupTable,
            "{subscriptionGroupTable:{G:{groupRetryPolicy:{customizedRetryPolicy:{next:[1,-1]}}}}}",
            "customizedRetryPolicy.next[1]",
        ),
        (
            SubscriptionGroupTable,
            "{subscriptionGroupTable:{G:{subscriptionDataSet:{}}}}",
            "subscriptionDataSet",
        ),
        (
            SubscriptionGroupTable,
            "{subscriptionGroupTable:{G:{subscriptionDataSet:[{topic:1}]}}}",
            "subscriptionDataSet[0].topic",
        ),
        (SubscriptionGroupTable, "{forbiddenTable:{G:{T:'4'}}}", "forbiddenTable.G.T"),
        (DelayOffsetTable, "{offsetTable:{0:1}}", "offsetTable.0"),
        (DelayOffsetTable, "{offsetTable:{1:'x'}}", "offsetTable.1"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_file_and_key(table: type, text: str, key: str) -> None:
    with pytest.raises(CodecError) as caught:
        table.from_json(loads(text))
    assert caught.value.message.startswith(f"{table.FILE_NAME}: ")
    assert f"{key} " in caught.value.message
    assert caught.value.hint


# Tables: any table comes back as it was, through the real file.

names = st.text("%|abcXYZ019_-", min_size=1, max_size=12)
int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
versions = st.builds(DataVersion, int64, int64, int64)
texts = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
topics = st.builds(
    TopicConfig,
    name=names,
    read_queue_nums=int32,
    write_queue_nums=int32,
    perm=st.integers(0, 15).map(Permission),
    filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    sys_flag=int32,
    order=st.booleans(),
    attributes=texts,
)
policies = st.builds(
    GroupRetryPolicy,
    type=st.sampled_from(["CUSTOMIZED", "EXPONENTIAL"]),
    customized=st.none() | st.builds(CustomizedRetry, st.lists(int64, max_size=4).map(tuple)),
    exponential=st.none() | st.builds(ExponentialRetry, int64, int64, int64),
)
groups = st.builds(
    SubscriptionGroup,
    name=names,
    consume_enable=st.booleans(),
    consume_from_min_enable=st.booleans(),
    consume_broadcast_enable=st.booleans(),
    consume_message_orderly=st.booleans(),
    retry_queue_nums=int32,
    retry_max_times=st.integers(-(2**31), 2**31 - 1),
    retry_policy=policies,
    broker_id=int64,
    which_broker_when_consume_slowly=int64,
    notify_consumer_ids_changed_enable=st.booleans(),
    sys_flag=int32,
    consume_timeout_minute=int32,
    subscriptions=st.none()
    | st.lists(st.builds(Subscription, names, names, st.text(), int64), max_size=3).map(tuple),
    attributes=texts,
)
progress = st.dictionaries(int32, st.integers(-1, 2**63 - 1), max_size=5)
tables = st.one_of(
    st.builds(
        TopicTable,
        versions,
        st.lists(topics, max_size=4).map(lambda found: {topic.name: topic for topic in found}),
    ),
    st.builds(
        ConsumerOffsetTable,
        versions,
        st.dictionaries(st.builds(TopicGroup, names, names), progress, max_size=4),
    ),
    st.builds(
        SubscriptionGroupTable,
        versions,
        st.lists(groups, max_size=3).map(lambda found: {group.name: group for group in found}),
        st.dictionaries(names, st.dictionaries(names, st.integers(-(2**31), 2**31 - 1)), max_size=3),
    ),
    st.builds(
        DelayOffsetTable, versions, st.dictionaries(st.integers(1, 2**31 - 1), st.integers(-1, 2**63 - 1))
    ),
)


@given(tables)
def test_every_table_comes_back_as_it_was(table) -> None:
    written = dump_pretty(table.to_json())
    assert type(table).from_json(loads(written)) == table
    assert type(table).from_json(json.loads(written)) == table


@given(first=tables, second=tables)
def test_saved_tables_are_loaded(tmp_path_factory: pytest.TempPathFactory, first, second) -> None:
    path = tmp_path_factory.mktemp("config") / "table.json"
    for table in (first, second):
        ConfigFile(SystemDisk(), path).save(table.to_json())
    loaded = ConfigFile(SystemDisk(), path).load(type(second).from_json)
    assert loaded is not None
    assert loaded.value == second
    path.unlink()
    loaded = ConfigFile(SystemDisk(), path).load(type(first).from_json)
    assert loaded is not None
    assert loaded.value == first
