"""Reading a store directory with Spark, against Parquet of the same rows and against a source of tuples.

    python -m benchmarks.spark_scan [--quick] [--divide N] [--repeats N] [--bodies noise|orders] [--dir DIR]
        [--json FILE] [--tuples] [--only NAME]

Cases: an aggregation that reads every body, a copy to Parquet, a count; bodies of 1 KiB and of 100 bytes, eight
queues, page cache warm. Baselines, in the same run and taking turns: `spark.read.parquet` of the same rows (written
by Spark from the same source, snappy), the upper bound; and a Python source that yields a tuple per row. `a ready
batch` is a source that reads, checks and copies nothing: no source that hands over rows can be faster, whatever it
reads. Messages are read with `penstock.spark.messages`, in packs; lines that say `rows` are of the plain source.
Spark prunes columns of Parquet by itself and never those of a Python source, so the aggregation names its two
columns; a line without that shows what forgetting it costs. `decoding` is the decoder alone, one core.

Bodies are noise, with which Snappy has little to do: the hardest rival. With `--bodies orders` they are JSON, which
it packs and unpacks, and one more aggregation reads a field of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.harness import Figure, compare, machine, print_figure, require_compiled, save
from penstock.message import Message, decode_record
from penstock.runtime import Runtime
from penstock.spark import messages, session
from penstock.spark.batches import RecordDecoder, arrow_schema
from penstock.spark.offline import OfflineStore
from penstock.spark.schema import COLUMNS, check_schema
from penstock.store import MessageStore, StoreOptions
from penstock.store.layout import StorePaths
from penstock.store.sizes import GivenSizes, detect_sizes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 8
TOPIC = "BenchTopic"
PRUNED = "queue_id int NOT NULL, body binary NOT NULL"  # what the option `columns` gives
TARGETS = {
    ("aggregation", 1024): 1.0,
    ("aggregation", 100): 0.8,
    ("parquet", 1024): 1.0,
    ("parquet", 100): 0.9,
}
ROWS = {1024: 512 << 10, 100: 4 << 20}


# -- the tuple source ------------------------------------------------------------------------------------------------


class QueuePart(InputPartition):  # type: ignore[misc]
    """Offsets of one queue."""

    def __init__(self, queue_id: int, start: int, end: int) -> None:
        self.queue_id, self.start, self.end = queue_id, start, end


class TupleReader(DataSourceReader):  # type: ignore[misc]
    """What a source looks like that is written without further thought: a decoded message, a tuple."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)

    def partitions(self) -> list[InputPartition]:
        with OfflineStore(self.path) as store:
            found = store.queues([TOPIC]).items()
            return [QueuePart(queue_id, start, end) for (_, _, queue_id), (start, end) in found]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        sizes = detect_sizes(Runtime.system().disk, StorePaths(Path(self.path)), GivenSizes())
        with MessageStore.open(self.path, sizes.options(), read_only=True, background=False) as store:
            at = partition.start
            while at < partition.end:
                views = store.reader.slices(TOPIC, partition.queue_id, at, min(1024, partition.end - at))
                for view in views:
                    yield self._row(view)
                at += len(views)
                del views

    def _row(self, view: memoryview) -> tuple[Any, ...]:
        message = decode_record(view)
        values = {
            "topic": message.topic,
            "broker": "",
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.properties.get("UNIQ_KEY") or message.message_id,
            "keys": message.properties.get("KEYS"),
            "tags": message.properties.get("TAGS"),
            "body": message.body,
        }
        return tuple(values.get(name) for name in self.columns)


class TupleSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "penstock_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(self.options["path"], check_schema(schema).names)


# -- the source that has nothing to do -------------------------------------------------------------------------------


class ReadyReader(DataSourceReader):  # type: ignore[misc]
    """Yields one batch over and over: what is left is Spark's part of every Python source."""

    def __init__(self, rows: int, body_size: int) -> None:
        self.rows, self.body_size = rows, body_size

    def partitions(self) -> list[InputPartition]:
        return [QueuePart(part, 0, self.rows // 2) for part in range(2)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        batch_rows = min(8192, (8 << 20) // self.body_size)
        bodies = [os.urandom(self.body_size) for _ in range(batch_rows)]
        schema = arrow_schema(("queue_id", "body"))
        queues = pa.array([partition.queue_id] * batch_rows, pa.int32())
        batch = pa.RecordBatch.from_arrays([queues, pa.array(bodies, pa.binary())], schema=schema)
        for first in range(0, partition.end, batch_rows):
            yield batch.slice(0, partition.end - first)


class ReadySource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "penstock_ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(int(self.options["rows"]), int(self.options["bodySize"]))


# -- data ------------------------------------------------------------------------------------------------------------


class Bodies:
    """What the messages say: `noise`, or `orders` as JSON, filled up with a remark to about the size."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.size = kind, size
        self._noise = os.urandom(1 << 20)
        self._words = [os.urandom(4).hex() for _ in range(4096)]

    def body(self, number: int) -> bytes:
        at = number * 7919 % (len(self._noise) - self.size)
        if self.kind == "noise":
            return self._noise[at : at + self.size]
        start = f'{{"order":{number},"customer":{number * 31 % 100_000},"sku":"{self._words[at % 4096]}",'
        start += f'"amount":{at % 100_000 / 100:.2f},"note":"'
        count = max(0, self.size - len(start) - 2) // 9
        words = (self._words[(at + k * 769) % 4096] for k in range(count))
        return (start + " ".join(words)).encode() + b'"}'


def write_store(path: Path, bodies: Bodies, rows: int) -> None:
    """Messages as clients send them: a tag, a key and a unique key each, spread over the queues in turn."""
    options = StoreOptions(
        index_enabled=False,
        disk_max_used_percent=100,
        disk_clean_forcibly_percent=100,
        disk_refuse_writes_percent=100,
        disk_warning_percent=100,
        scrub_bytes_per_second=0,
    )
    with MessageStore.open(path, options) as store:
        for first in range(0, rows, 256):
            group = []
            for number in range(first, min(first + 256, rows)):
                unique = f"7F0000010C8A18B4AAC2{number:012X}"
                properties = {"TAGS": "TagA", "KEYS": f"order-{number}", "UNIQ_KEY": unique}
                message = Message(TOPIC, bodies.body(number), properties)
                group.append(store.request(message, number % QUEUES))
            store.append_group(group)


class Bench:
    """One body size: a store, the same rows as Parquet, and the cases over both."""

    def __init__(
        self, spark: SparkSession, folder: Path, bodies: Bodies, rows: int, repeats: int, only: str = ""
    ) -> None:
        self.spark, self.folder, self.rows, self.repeats, self.only = spark, folder, rows, repeats, only
        self.bodies, self.body_size = bodies, bodies.size
        self.store = folder / f"store-{bodies.size}"
        self.parquet = folder / f"parquet-{bodies.size}"
        self.figures: list[Figure] = []

    def prepare(self) -> None:
        started = time.perf_counter()
        write_store(self.store, self.bodies, self.rows)
        print(
            f"-- {self.rows:,} messages of {self.body_size} bytes: {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        started = time.perf_counter()
        self.log().write.mode("overwrite").parquet(str(self.parquet))
        print(f"-- the same as Parquet: {time.perf_counter() - started:.0f} s", flush=True)

    def log(self, schema: str = "", kind: str = "penstock") -> DataFrame:
        reader = self.spark.read.format(kind).option("topic", TOPIC)
        if schema:
            reader = reader.schema(schema)
        return reader.load(str(self.store))

    def packs(self, *columns: str) -> DataFrame:
        return messages(self.spark, self.store, topic=TOPIC, columns=list(columns or COLUMNS))

    def table(self, *columns: str) -> DataFrame:
        found = self.spark.read.parquet(str(self.parquet))
        return found.select(*columns) if columns else found

    # -- cases -------------------------------------------------------------------------------------------------------

    def aggregated(self, rows: DataFrame) -> float:
        started = time.perf_counter()
        found = (
            rows.groupBy("queue_id")
            .agg(
                functions.count("*").alias("n"),
                functions.sum(functions.length("body")),
                functions.bit_xor(functions.xxhash64("body")),
            )
            .collect()
        )
        taken = time.perf_counter() - started
        assert sum(row["n"] for row in found) == self.rows
        return taken

    def summed(self, rows: DataFrame) -> float:
        """A field of the JSON that the bodies are."""
        started = time.perf_counter()
        amount = functions.get_json_object(functions.col("body").cast("string"), "$.amount").cast("double")
        found = (
            rows.groupBy("queue_id").agg(functions.count(amount).alias("n"), functions.sum(amount)).collect()
        )
        taken = time.perf_counter() - started
        assert sum(row["n"] for row in found) == self.rows
        return taken

    def copied(self, rows: DataFrame) -> float:
        target = self.folder / "copy"
        started = time.perf_counter()
        rows.write.mode("overwrite").parquet(str(target))
        return time.perf_counter() - started

    def counted(self, rows: DataFrame) -> float:
        started = time.perf_counter()
        assert rows.count() == self.rows
        return time.perf_counter() - started

    def case(
        self, name: str, case: Callable[[], float], baseline: Callable[[], float], target: float | None = None
    ) -> None:
        if self.only not in name:
            return
        for _ in range(2):
            case(), baseline()  # Both sides warm: the JVM has compiled what it runs.
        name = f"{name}, {self.body_size} B{', orders' if self.bodies.kind == 'orders' else ''}"
        self.figures.append(compare(name, "rows/s", self.rows, case, baseline, self.repeats, target))

    def run(self, tuples: bool) -> None:
        self.decoding()
        self.case(
            "aggregation vs Parquet",
            lambda: self.aggregated(self.packs("queue_id", "body")),
            lambda: self.aggregated(self.table("queue_id", "body")),
            TARGETS["aggregation", self.body_size],
        )
        self.case(
            "aggregation, rows vs Parquet",
            lambda: self.aggregated(self.log(PRUNED)),
            lambda: self.aggregated(self.table("queue_id", "body")),
        )
        ready = self.spark.read.format("penstock_ready").schema(PRUNED)
        ready = ready.option("rows", self.rows).option("bodySize", self.body_size)
        self.case(
            "aggregation of a ready batch vs Parquet",
            lambda: self.aggregated(ready.load()),
            lambda: self.aggregated(self.table("queue_id", "body")),
        )
        if self.bodies.kind == "orders":
            self.case(
                "sum of a JSON field vs Parquet",
                lambda: self.summed(self.packs("queue_id", "body")),
                lambda: self.summed(self.table("queue_id", "body")),
            )
        self.case(
            "aggregation of all columns vs Parquet",
            lambda: self.aggregated(self.packs()),
            lambda: self.aggregated(self.table("queue_id", "body")),
        )
        self.case(
            "to Parquet, rows vs Parquet",
            lambda: self.copied(self.log()),
            lambda: self.copied(self.table()),
            TARGETS["parquet", self.body_size],
        )
        self.case(
            "to Parquet vs Parquet",
            lambda: self.copied(self.packs()),
            lambda: self.copied(self.table()),
        )
        self.case(
            "count, one column vs Parquet",
            lambda: self.counted(self.packs("queue_id")),
            lambda: self.counted(self.table()),
        )
        self.case(
            "count, all columns vs Parquet",
            lambda: self.counted(self.packs()),
            lambda: self.counted(self.table()),
        )
        if tuples:
            self.case(
                "aggregation vs tuples",
                lambda: self.aggregated(self.packs("queue_id", "body")),
                lambda: self.aggregated(self.log(PRUNED, "penstock_tuples")),
            )

    def decoding(self) -> None:
        """Rows per second of one core, without Spark; what stands beside it is a plain copy of the same bytes."""
        for name, columns in (("pruned", ("queue_id", "body")), ("all columns", tuple(COLUMNS))):
            with OfflineStore(self.store) as store:
                partitions = store.splits(store.queues([TOPIC]), 2)
            best = 0.0
            for _ in range(3):
                started = time.perf_counter()
                rows = sum(
                    batch.num_rows
                    for partition in partitions
                    for batch in OfflineStore.read(partition, RecordDecoder(columns))
                )
                best = max(best, rows / (time.perf_counter() - started))
            figure = Figure(f"decoding {name}, one core, {self.body_size} B", "rows/s", best, 0, 0, (0, 0))
            self.figures.append(figure)
            print_figure(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Spark reading a store directory, against Parquet and tuples"
    )
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, three repeats")
    parser.add_argument("--divide", type=int, default=1, help="a fraction of the rows")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--bodies", choices=["noise", "orders"], default="noise")
    parser.add_argument(
        "--tuples", action="store_true", help="also the source of tuples, which takes minutes"
    )
    parser.add_argument("--only", default="", help="cases that have this in their names, as `aggregation vs`")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    require_compiled()
    for name, value in machine().items():
        print(f"{name}: {value}")
    folder = Path(tempfile.mkdtemp(prefix="penstock-scan-", dir=arguments.dir))
    spark = session("scan", arguments.master, **{"spark.driver.memory": "3g"})
    spark.dataSource.register(TupleSource)
    spark.dataSource.register(ReadySource)
    figures: list[Figure] = []
    try:
        for body_size in map(int, arguments.sizes.split(",")):
            rows = ROWS[body_size] // (8 if arguments.quick else arguments.divide)
            repeats = arguments.repeats or (3 if arguments.quick else 5)
            bench = Bench(spark, folder, Bodies(arguments.bodies, body_size), rows, repeats, arguments.only)
            bench.prepare()
            bench.run(arguments.tuples)
            figures += bench.figures
            shutil.rmtree(bench.store)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        save(arguments.json, figures, {})


if __name__ == "__main__":
    main()
