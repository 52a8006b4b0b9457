"""The JSON files under config/: Java reads what Penstock saves, and Penstock what Java writes.

Each file goes to the class in which RocketMQ keeps its content and comes back as that class writes it: with
other spaces, other order, and numbers as keys without quotes. Not covered, because the classes are in the
broker's own jar and not in the store's: the delay progress of the 5 line, and forbidden topics of groups.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.metadata.config_files import ConfigFile, DataVersion
from penstock.metadata.group_table import (
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroup,
    SubscriptionGroupTable,
)
from penstock.metadata.offset_table import ConsumerOffsetTable, DelayOffsetTable, TopicGroup
from penstock.metadata.topic_table import Permission, TopicConfig, TopicTable
from penstock.runtime import SystemDisk
from tests.interop.java_store import JavaStore

Table = TopicTable | ConsumerOffsetTable | SubscriptionGroupTable | DelayOffsetTable
READ_WRITE = Permission.READ | Permission.WRITE
VERSION = DataVersion(0, 7, 1_700_000_000_123)


def tables(java: JavaStore) -> list[Table]:
    """What a broker of this line keeps: attributes, retry policies and versions of offsets came with the 5."""
    is_5 = not java.version.startswith("4.")
    topics = {
        "orders": TopicConfig("orders", 8, 4, attributes={"message.type": "FIFO"} if is_5 else {}),
        "%RETRY%group": TopicConfig("%RETRY%group", 1, 1, Permission.READ, sys_flag=3, order=True),
        "TBW102": TopicConfig("TBW102", 8, 8, READ_WRITE | Permission.INHERIT),
    }
    groups = {
        "group": SubscriptionGroup("group"),
        "slow": SubscriptionGroup(
            "slow",
            consume_enable=False,
            consume_from_min_enable=False,
            consume_broadcast_enable=False,
            retry_queue_nums=3,
            retry_max_times=-1,
            broker_id=2,
            which_broker_when_consume_slowly=3,
            notify_consumer_ids_changed_enable=False,
        ),
    }
    if is_5:
        stepwise = GroupRetryPolicy("CUSTOMIZED", customized=CustomizedRetry((1_000, 60_000)))
        growing = GroupRetryPolicy("EXPONENTIAL", exponential=ExponentialRetry(1_000, 600_000, 3))
        groups["steps"] = SubscriptionGroup("steps", retry_policy=stepwise, consume_message_orderly=True)
        groups["growing"] = SubscriptionGroup("growing", retry_policy=growing, attributes={"a": "b"})
    progress = {
        TopicGroup("orders", "group"): {0: 100, 1: 98, 11: 2**40},
        TopicGroup("%RETRY%group", "group"): {0: 0},
    }
    of_offsets = VERSION if is_5 else DataVersion()
    made: list[Table] = [
        TopicTable(VERSION, topics),
        ConsumerOffsetTable(of_offsets, progress),
        SubscriptionGroupTable(VERSION, groups),
    ]
    return made if is_5 else [*made, DelayOffsetTable(of_offsets, {1: 10, 3: 7, 18: 2**40})]


@pytest.mark.feature("store-config", "rocketmq-5.3", "rocketmq-4.9")
def test_config_files_come_back_from_java(java: JavaStore, tmp_path: Path) -> None:
    saved, rewritten = tmp_path / "saved", tmp_path / "rewritten"
    rewritten.mkdir()
    for table in tables(java):
        ConfigFile(SystemDisk(), saved / table.FILE_NAME).save(table.to_json())
    assert java.rewrite_config(saved, rewritten) == tuple(sorted(table.FILE_NAME for table in tables(java)))
    # Not strict JSON: Java leaves numbers that are keys without quotes.
    assert re.search(r"[{,]\s*11:1099511627776", (rewritten / "consumerOffset.json").read_text())
    for table in tables(java):
        loaded = ConfigFile(SystemDisk(), rewritten / table.FILE_NAME).load(type(table).from_json)
        assert loaded is not None
        assert loaded.value == table
