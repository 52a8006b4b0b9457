"""Rows sent as any producer sends them: `delivery=at-least-once`, for brokers that cannot stage messages.

Rules: a row is visible as soon as it is sent, so readers see parts of a batch, and a task that is tried again or a
batch that runs again sends its rows again. Messages travel in batches; delayed ones alone, as RocketMQ demands. A
task ends when everything is stored, or with the first error.

Runs in executor tasks. Each row becomes a Python object here: this way is as fast as a producer, not as the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.client.producer import Producer
from penstock.client.routes import MessageQueue
from penstock.errors import MessageError, PenstockError
from penstock.spark.sink_options import WriteOptions
from penstock.spark.sink_rows import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = "PENSTOCK_SPARK_SINK"
_COLUMNS = ("body", "topic", "keys", "tags", "properties", "delay", "queue")
# A broker's own, or the client's to set: not copied from rows that were read from a topic.
_NOT_COPIED = frozenset(
    (
        "CLUSTER",
        "DELAY",
        "MSG_REGION",
        "PENSTOCK_PRODUCER",
        "PENSTOCK_SEQUENCE",
        "POP_CK",
        "REAL_QID",
        "REAL_TOPIC",
        "TRACE_ON",
        "TRAN_MSG",
        "UNIQ_KEY",
        "WAIT",
        "__CRC32#",
    )
)


def send_rows(
    options: WriteOptions,
    columns: SinkColumns,
    partition: int,
    first: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
) -> int:
    """Send all rows of a task; how many."""
    count = 0
    settings = options.access.settings()
    with Producer(
        options.nameserver, GROUP, batch_size=1_000, send_timeout_ms=30_000, **settings
    ) as producer:
        sender = _Sender(producer, options.topic, columns, partition)
        for batch in _chain(first, rest):
            for row in _rows(batch, columns):
                sender.send(count, row)
                count += 1
            producer.flush()
    return count


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _rows(batch: pa.RecordBatch, columns: SinkColumns) -> Iterator[dict[str, Any]]:
    lists = {
        role: batch.column(columns.places[role]).to_pylist() for role in _COLUMNS if role in columns.places
    }
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


class _Sender:
    def __init__(self, producer: Producer, topic: str, columns: SinkColumns, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._columns = columns
        self._partition = partition
        self._queues: dict[str, list[MessageQueue]] = {}

    def send(self, number: int, row: Mapping[str, Any]) -> None:
        """Hand one row to the producer; what is wrong with it names the row."""
        body, topic = row["body"], row.get("topic") or self._topic
        if body is None or not topic:
            column = "body" if body is None else "topic"
            raise self._error(number, column, "is null", "give every row one")
        keys, tag = _text(row.get("keys")), _text(row.get("tags"))
        try:
            queue = self._queue(topic, row["queue"]) if row.get("queue") is not None else None
            self._producer.enqueue(
                topic,
                body.encode() if isinstance(body, str) else body,
                tag=tag,
                keys=keys,
                properties=_properties(row.get("properties"), keys, tag),
                queue=queue,
                queue_key=keys if queue is None else "",
                delay_level=row.get("delay") or 0,
            )
        except PenstockError as error:
            raise self._error(number, "body", error.message, error.hint) from error

    def _queue(self, topic: str, number: int) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = list(self._producer.queues(topic))
        if not 0 <= number < len(queues):
            raise MessageError(f"topic {topic!r} has {len(queues)} queues, not {number}", "leave it null")
        return queues[number]

    def _error(self, row: int, column: str, what: str, hint: str) -> MessageError:
        name = self._columns.names.get(column, column)
        return MessageError(f"row {row} of partition {self._partition}, column {name!r}: {what}", hint)


def _text(value: str | bytes | None) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _properties(pairs: Any, keys: str, tag: str) -> dict[str, str]:
    """A map as pyarrow gives it: pairs. What columns say wins; null is none."""
    found = {name: value for name, value in pairs or () if value is not None and name not in _NOT_COPIED}
    if keys:
        found.pop("KEYS", None)
    if tag:
        found.pop("TAGS", None)
    return found
