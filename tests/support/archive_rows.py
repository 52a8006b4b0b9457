"""Rows for archives, made without a broker: Arrow batches as the source hands them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.client.scan import Scan
from penstock.message import decode_record

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("message_id", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_time", TIME),
        ("store_time", TIME),
        ("born_host", pa.string()),
        ("reconsume_times", pa.int32()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
    ]
)
NOON = datetime(2025, 1, 31, 12, tzinfo=UTC)
# Topic, broker, queue, offset, store time.
Place = tuple[str, str, int, int, datetime]


def places(
    queue_id: int, offsets: Iterable[int], *, topic: str = "orders", at: datetime = NOON
) -> list[Place]:
    return [(topic, "broker-a", queue_id, offset, at + timedelta(milliseconds=offset)) for offset in offsets]


def batch_of(rows: Sequence[Place]) -> pa.RecordBatch:
    """A message for each place; everything else follows from it."""
    columns = {
        "topic": [row[0] for row in rows],
        "broker": [row[1] for row in rows],
        "queue_id": [row[2] for row in rows],
        "queue_offset": [row[3] for row in rows],
        "message_id": [f"{row[0]}-{row[2]}-{row[3]}" for row in rows],
        "keys": [f"k{row[3]}" for row in rows],
        "tags": ["a" if row[3] % 2 else None for row in rows],
        "body": [b"body %d" % row[3] for row in rows],
        "properties": [[("number", str(row[3]))] for row in rows],
        "born_time": [row[4] for row in rows],
        "store_time": [row[4] for row in rows],
        "born_host": ["127.0.0.1:1" for _ in rows],
        "reconsume_times": [0 for _ in rows],
        "physical_offset": [row[3] * 200 for row in rows],
        "size": [200 for _ in rows],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )


def read_plain(root: Path) -> list[tuple[str, str, int, int, bytes]]:
    """What a reader finds who knows nothing of manifests: (topic, broker, queue, offset, body), sorted."""
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    if not any(root.rglob("*.parquet")):
        return []
    table = ds.dataset(root, format="parquet", partitioning=partitions).to_table(
        columns=["topic", "broker", "queue_id", "queue_offset", "body"]
    )
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def stored_rows(address: str, topic: str = "orders") -> list[tuple[int, int, bytes]]:
    """Queue, offset and body of each message of a topic at the broker."""
    rows: list[tuple[int, int, bytes]] = []
    with Scan(address) as scan:
        for queue, (low, high) in scan.ranges(scan.queues(topic)).items():
            for pulled in scan.read([(queue, low, high)]):
                at, data = 0, memoryview(bytes(pulled.data))
                while at < len(data):
                    message = decode_record(data[at:])
                    rows.append((message.queue_id, message.queue_offset, message.body))
                    at += message.size
    return sorted(rows)
