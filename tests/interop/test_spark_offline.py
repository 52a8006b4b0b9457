"""A store that Java RocketMQ wrote, read as Spark's tasks read it: row for row what Java put there."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from penstock.client.compression import unpack
from penstock.errors import CodecError
from penstock.spark.batches import Damage, RecordDecoder
from penstock.spark.offline import OfflineStore
from penstock.spark.offline_files import QueueRange
from penstock.spark.schema import COLUMNS
from tests.interop.conftest import WrittenStore
from tests.interop.java_messages import StoredMessage
from tests.interop.workload import QueueKey, in_queues
from tests.support.random_messages import moment


def can_be_unpacked(message: StoredMessage) -> bool:
    """The workload sets every flag, also that of packing on bodies which nobody packed."""
    try:
        unpack(message.body, message.sys_flag)
    except CodecError:
        return False
    return True


def check_row(found: dict[str, Any], wanted: StoredMessage) -> None:
    assert found["topic"] == wanted.topic
    assert found["queue_id"] == wanted.queue_id
    assert found["queue_offset"] == wanted.queue_offset
    assert found["physical_offset"] == wanted.physical_offset
    assert found["size"] == wanted.size_bytes
    assert found["body"] == unpack(wanted.body, wanted.sys_flag)
    assert dict(found["properties"]) == wanted.properties
    assert found["message_id"] == wanted.properties.get("UNIQ_KEY", wanted.message_id)
    assert found["keys"] == wanted.properties.get("KEYS")
    assert found["tags"] == wanted.properties.get("TAGS")
    assert found["born_host"] == wanted.born_host
    assert found["reconsume_times"] == wanted.reconsume_times
    assert found["born_time"] == moment(wanted.born_timestamp_ms)
    assert found["store_time"] == moment(wanted.store_timestamp_ms)


@pytest.mark.feature("spark-stores", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I2")
@pytest.mark.parametrize("count", [1, 5])
def test_rows_are_what_java_wrote(java_written: WrittenStore, count: int) -> None:
    wanted = in_queues(java_written.records)
    found: dict[QueueKey, list[dict[str, Any]]] = defaultdict(list)
    damaged: set[tuple[str, int, int]] = set()

    def note(part: QueueRange, damages: list[Damage]) -> None:
        for item in damages:
            assert item.reason == "its body cannot be unpacked"
            offsets = range(item.queue_offset, item.last_offset + 1)
            damaged.update((part.topic, part.queue_id, offset) for offset in offsets)

    with OfflineStore(java_written.directory) as store:
        ranges = {key: ends for key, ends in store.queues().items() if ends[0] < ends[1]}
        assert {(topic, queue_id) for topic, _, queue_id in ranges} == set(wanted)
        for partition in store.splits(ranges, count):
            decoder = RecordDecoder(tuple(COLUMNS), rows=100)
            for batch in OfflineStore.read(partition, decoder, note):
                for row in batch.to_pylist():
                    found[(row["topic"], row["queue_id"])].append(row)
    not_packed = {
        (*key, message.queue_offset)
        for key, messages in wanted.items()
        for message in messages
        if not can_be_unpacked(message)
    }
    assert damaged == not_packed
    for key, messages in wanted.items():
        messages = [message for message in messages if can_be_unpacked(message)]
        rows = sorted(found[key], key=lambda row: row["queue_offset"])
        assert len(rows) == len(messages)
        for row, message in zip(rows, messages, strict=True):
            check_row(row, message)
