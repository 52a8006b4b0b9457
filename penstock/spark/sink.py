"""The sink of `df.write.format("penstock")` and `writeStream`: rows into topics, exactly once and all at once.

    tasks     stage their rows at the query's home broker, which nobody can read yet, and return the handles
    driver    publishes the handles of all tasks with (query id, batch id): one atomic step of the broker

What fails in between leaves nothing to see: a task that is tried again stages again, and only the handles of the
attempt that counts are published; a batch that Spark runs again after a crash has the same number, and the broker
publishes it once. Staged rows that nobody publishes age out with the broker's log, so there is nothing to abort.

A batch job has no number of its own: the option `writeId` gives it one that survives a rerun, else it gets a fresh
one. With `delivery=at-least-once` rows are sent as any producer sends them, to brokers of any kind.

`write` runs in executor tasks and assumes nothing but the network; `commit` runs in a Python process of the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.client.access import explaining
from penstock.client.staging import Handle, RowRefusedError, Staging
from penstock.errors import ClientError, OptionError
from penstock.runtime import Runtime
from penstock.spark.sink_options import AT_LEAST_ONCE, WriteOptions
from penstock.spark.sink_rows import RowRequests, SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_PROPERTY = "sql.streaming.queryId"
# Requests of one task that may be under way at once.
IN_FLIGHT_MAX = 4


class RowCountError(ClientError):
    """A batch has not as many rows as it must have; nothing of it was published."""


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task has written: handles to publish, or with at-least-once nothing but a number."""

    query: str
    partition: int
    rows: int
    handles: list[Handle] = field(default_factory=list)
    # Brokers that have to be told where the query publishes, before it does.
    untold: tuple[str, ...] = ()


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """For `df.write`. Everything that can be wrong with options and columns is found here."""
    parsed = _parse(options, overwrite)
    query = f"write:{parsed.write_id or Runtime.system().entropy.bytes(16).hex()}"
    return BatchWriter(parsed, SinkColumns(schema, parsed.topic), query)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """For `df.writeStream`."""
    parsed = _parse(options, overwrite)
    if parsed.write_id:
        raise OptionError("writeId is for batch jobs", "leave it out: a stream is known by its query id")
    if parsed.rows_min or parsed.rows_max:
        raise OptionError("rowsMin and rowsMax are for batch jobs", "leave them out")
    return StreamWriter(parsed, SinkColumns(schema, parsed.topic))


def _parse(options: Mapping[str, str], overwrite: bool) -> WriteOptions:
    if overwrite:
        raise OptionError("a topic cannot be overwritten", 'use .mode("append"), or outputMode "append"')
    return WriteOptions.parse(options)


class BatchWriter(DataSourceArrowWriter):
    """One batch job."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, query: str) -> None:
        self._options = options
        self._columns = columns
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._columns, self._query, _partition(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Under a fresh id nothing is ever published again: nobody needs to know where it was.
        publish(self._options, self._options.batch_id, messages, tells=bool(self._options.write_id))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was published, and what was staged ages out."""


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query; its id and the number of the batch come from Spark."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        if not query:
            raise ClientError("Spark does not say which query this is", "run it as a streaming query")
        return write_rows(self._options, self._columns, query, _partition(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        publish(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing was published, and what was staged ages out."""


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


# -- in a task ---------------------------------------------------------------------------------------------------


def write_rows(
    options: WriteOptions,
    columns: SinkColumns,
    query: str,
    partition: int,
    batches: Iterator[pa.RecordBatch],
) -> WrittenRows:
    """Stage, or with at-least-once send, the rows of one task."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return WrittenRows(query, partition, 0)  # nothing to say to any broker
    if options.delivery == AT_LEAST_ONCE:
        from penstock.spark.sink_sends import send_rows

        with explaining():
            return WrittenRows(query, partition, send_rows(options, columns, partition, first, filled))
    settings = options.access.settings()
    with explaining(), Staging(options.nameserver, retry_ms=options.retry_ms, **settings) as staging:
        task = _StagingTask(staging, options, columns, query, partition)
        task.take(first)
        for batch in filled:
            task.take(batch)
        handles = task.finish()
        return WrittenRows(query, partition, task.requests.rows, handles, task.home.untold)


class _StagingTask:
    """Rows on their way to the home broker, a few requests at a time."""

    def __init__(
        self, staging: Staging, options: WriteOptions, columns: SinkColumns, query: str, partition: int
    ) -> None:
        self._staging = staging
        self.home = staging.home(query, options.topic, options.broker)
        home = self.home.broker
        self.requests = RowRequests(
            columns,
            options.topic,
            lambda topic: staging.queues(topic, home),
            staging.unique_ids.moment,
            partition=partition,
            turn=Runtime.system().entropy.below(1 << 20),
            batch_bytes=options.batch_bytes,
            stage_bytes_max=self.home.status.stage_bytes_max,
        )
        self._waiting: deque[tuple[int, Future[Handle]]] = deque()
        self._handles: list[Handle] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self._send(self.requests.add(batch))

    def finish(self) -> list[Handle]:
        """The handles of all rows, in their order."""
        self._send(self.requests.finish())
        while self._waiting:
            self._settle()
        return self._handles

    def _send(self, requests: Iterator[tuple[list[tuple[str, int]], bytes, int, int]]) -> None:
        for topics, items, count, first in requests:
            while len(self._waiting) >= IN_FLIGHT_MAX:
                self._settle()
            self._waiting.append((first, self._staging.submit(self.home.broker, topics, items, count)))

    def _settle(self) -> None:
        first, future = self._waiting.popleft()
        try:
            self._handles.append(future.result())
        except RowRefusedError as error:
            raise self.requests.error(first + error.row, "topic", error.remark, "") from error


# -- on the driver -----------------------------------------------------------------------------------------------


def publish(
    options: WriteOptions,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
    connect: Callable[..., Staging] = Staging,
    *,
    tells: bool = True,
) -> None:
    """Publish what the tasks have staged, in the order of their partitions. `tells`: the batch might be run again, so
    other brokers have to know where it is."""
    written = sorted(
        (message for message in messages if isinstance(message, WrittenRows)),
        key=lambda message: message.partition,
    )
    rows = sum(message.rows for message in written)
    if rows < options.rows_min or 0 < options.rows_max < rows:
        bounds = f"rowsMin={options.rows_min}, rowsMax={options.rows_max or 'any'}"
        raise RowCountError(
            f"there are {rows} rows, against {bounds}: none was published", "see what the query reads"
        )
    handles = [handle for message in written for handle in message.handles]
    if not handles:
        return
    brokers = sorted({handle.broker for handle in handles})
    if len(brokers) > 1:
        raise ClientError(
            f"the tasks of one batch have staged at {' and '.join(brokers)}, which cannot publish together",
            "brokers came or went meanwhile: run it again, or name one with the option broker",
        )
    untold = sorted({name for message in written for name in message.untold}) if tells else []
    arguments: dict[str, Any] = {"retry_ms": options.retry_ms, **options.access.settings()}
    with explaining(), connect(options.nameserver, **arguments) as staging:
        staging.publish(brokers[0], written[0].query, batch, handles, topic=options.topic, tell=untold)
