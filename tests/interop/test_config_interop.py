"""The JSON files under config/: Java reads what Penstock saves, and Penstock what Java writes.

Each file goes to the class in which RocketMQ keeps its content and comes back as that class writes it: with
other spaces, other order, and numbers as keys without quotes. Not covered, because the classes are in the
broker's own jar and not in the store's: the delay progress of the 5 line, and forbidden topics of groups.
"""

from __future__ import annotations

from pathlib import Path

from penstock.runtime import SystemDisk
from penstock.store.config_files import ConfigFile, DataVersion
from penstock.store.group_table import (
    CustomizedRetry,
    GroupRetryPolicy,
    SubscriptionGroup,
    SubscriptionGroupTable,
)
from penstock.store.offset_table import ConsumerOffsetTable, DelayOffsetTable, TopicGroup
from penstock.store.topic_table import Permission, TopicConfig, TopicTable
from tests.interop.java_store import JavaStore

VERSION = DataVersion(0, 7, 1_700_000_000_123)
TOPICS = TopicTable(
    VERSION,
    {
        "orders": TopicConfig("orders", 8, 4, Permission.READ | Permission.WRITE),
        "%RETRY%group": TopicConfig("%RETRY%group", 1, 1, Permission.READ, sys_flag=3, order=True),
        "TBW102": TopicConfig("TBW102", 8, 8, Permission.READ | Permission.WRITE | Permission.INHERIT),
    },
)
OFFSETS = ConsumerOffsetTable(
    VERSION,
    {TopicGroup("orders", "group"): {0: 100, 1: 98, 11: 2**40}, TopicGroup("%RETRY%group", "group"): {0: 0}},
)
GROUPS = SubscriptionGroupTable(
    VERSION,
    {
        "group": SubscriptionGroup("group"),
        "slow": SubscriptionGroup(
            "slow",
            consume_enable=False,
            consume_broadcast_enable=False,
            retry_queue_nums=3,
            retry_max_times=-1,
            broker_id=2,
            notify_consumer_ids_changed_enable=False,
            consume_timeout_minute=60,
        ),
    },
)
DELAYS = DelayOffsetTable(VERSION, {1: 10, 3: 7, 18: 2**40})
TABLES = (TOPICS, OFFSETS, GROUPS, DELAYS)


def saved(directory: Path) -> Path:
    for table in TABLES:
        ConfigFile(SystemDisk(), directory / table.FILE_NAME).save(table.to_json())
    return directory


def test_config_files_come_back_from_java(java: JavaStore, tmp_path: Path) -> None:
    rewritten = tmp_path / "rewritten"
    rewritten.mkdir()
    names = java.rewrite_config(saved(tmp_path / "saved"), rewritten)
    expected = {"topics.json", "consumerOffset.json", "subscriptionGroup.json"}
    assert set(names) == expected | ({"delayOffset.json"} if java.version.startswith("4.") else set())
    assert "{0:100,1:98,11:1099511627776" in (rewritten / "consumerOffset.json").read_text().replace(
        "\n", ""
    ).replace("\t", "")
    for table in TABLES:
        if table.FILE_NAME in names:
            loaded = ConfigFile(SystemDisk(), rewritten / table.FILE_NAME).load(type(table).from_json)
            assert loaded is not None
            assert loaded.value == table
