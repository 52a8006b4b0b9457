"""Spark reading Penstock and Spark reading Kafka: the same messages, the same session, taking turns.

    python -m benchmarks.spark_kafka [--quick] [--rows N] [--repeats N] [--sizes 1024,100] [--dir DIR] [--json FILE]

Both servers are processes of their own on this machine, with defaults. Every message has a key and a body; a queue
here is a partition there, with the same messages at the same offsets, which is checked before anything is measured.
Cases: a count over one column; an aggregation that reads every body; a copy to Parquet, of the columns that both have
and of all that each gives; AvailableNow to `noop`. A ratio is Penstock's rows per second divided by Kafka's.
`fixed cost` is a read of one message of each queue; ratios without it are printed, too. `tuned` is Kafka's source
with larger polls and short waits, to show what its defaults cost. `--quick` has only the cases with a target and
shows that it works, not how fast: fixed costs are most of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.harness import Figure, compare, machine, require_compiled, save
from benchmarks.kafka_server import Artefacts, Kafka, prepare
from benchmarks.servers import NotHere, Penstock
from benchmarks.spark_scan import QUEUES, TOPIC, Bodies, write_store
from penstock.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET = 1.0
ROWS = {1024: 1 << 20, 100: 4 << 20}
QUICK = 8
REGISTERED_S = 60.0
NOT_HERE = 77
"""The exit code where Kafka cannot be had: what test runners take for a skip."""

# What both sides know of a message, under the names that it has here.
SHARED = "topic string, queue_id int, queue_offset bigint, keys string, body binary, store_time timestamp"
IN_KAFKA = {
    "topic": "topic",
    "queue_id": "partition",
    "queue_offset": "offset",
    "keys": "cast(key as string)",
    "body": "value",
    "store_time": "timestamp",
}
# Full batches, as from a producer that has much to send: the best that a reader can find.
PRODUCER = {"kafka.batch.size": "65536", "kafka.linger.ms": "20", "kafka.buffer.memory": str(64 << 20)}
# Larger polls, and short waits at the end of a partition.
TUNED = {
    "kafka.max.poll.records": "8192",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.wait.ms": "20",
}


Action = Callable[["DataFrame", int], None]
"""What is done with the rows, and how many there must be."""


class Bench:
    """One body size: a broker of ours with the messages, the same in a topic of Kafka, and the cases over both."""

    def __init__(
        self, spark: SparkSession, kafka: Kafka, folder: Path, body_size: int, rows: int, repeats: int
    ) -> None:
        self.spark, self.kafka_node, self.folder = spark, kafka, folder
        self.body_size, self.rows, self.repeats = body_size, rows, repeats
        self.server = Penstock(folder)
        self.topic = f"bodies-{body_size}"
        self.broker = ""
        self.figures: list[Figure] = []
        self.checked: dict[str, Any] = {}

    def run(self, quick: bool) -> None:
        started = time.perf_counter()
        data = self.server.folder / "data"
        write_store(data, Bodies("noise", self.body_size), self.rows)
        with self.server:
            self.create_topic()
            self.fill_kafka()
            print(
                f"-- {self.rows:,} messages of {self.body_size} bytes: {time.perf_counter() - started:.0f} s",
                flush=True,
            )
            self.check()
            self.cases(quick)
        shutil.rmtree(data, ignore_errors=True)

    def create_topic(self) -> None:
        """As soon as the broker, whose port is open, is known to the name server."""
        ends = time.monotonic() + REGISTERED_S
        with penstock.Admin(self.server.nameserver) as admin:
            while True:
                try:
                    admin.create_topic(TOPIC, QUEUES)
                    self.broker = admin.queues(TOPIC)[0].broker_name
                    return
                except penstock.ConnectError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.05)

    # -- both sides --------------------------------------------------------------------------------------------------

    def ours(
        self, schema: str = "", options: Mapping[str, str] | None = None, *, stream: bool = False
    ) -> DataFrame:
        source = self.spark.readStream if stream else self.spark.read
        where = {"nameserver": self.server.nameserver, "topic": TOPIC}
        reader = source.format("penstock").options(**where, **(options or {}))
        return (reader.schema(schema) if schema else reader).load()

    def theirs(
        self, schema: str = "", options: Mapping[str, str] | None = None, *, stream: bool = False
    ) -> DataFrame:
        """As the columns of a schema of ours; without, Kafka's own columns."""
        source = self.spark.readStream if stream else self.spark.read
        where = {"kafka.bootstrap.servers": self.kafka_node.address, "subscribe": self.topic}
        where |= {"startingOffsets": "earliest", **(options or {})}
        found = source.format("kafka").options(**where).load()
        names = [column.split()[0] for column in schema.split(",")] if schema else []
        return found.selectExpr(*(f"{IN_KAFKA[name]} as {name}" for name in names)) if names else found

    def fill_kafka(self) -> None:
        """One task after the other, a queue in its order: so offsets are the same on both sides."""
        rows = self.ours("queue_id int, queue_offset bigint, keys string, body binary").coalesce(1)
        messages = rows.selectExpr("cast(keys as binary) key", "body value", "queue_id partition")
        where = {"kafka.bootstrap.servers": self.kafka_node.address, "topic": self.topic}
        messages.write.format("kafka").options(**where, **PRODUCER).save()

    def check(self) -> None:
        """Both sides give the same rows: each queue's count, bytes, and a digest of offsets, keys and bodies."""
        schema = "queue_id int, queue_offset bigint, keys string, body binary"
        sides = {"penstock": self.ours(schema), "kafka": self.theirs(schema)}
        self.checked = {name: self.digests(rows) for name, rows in sides.items()}
        if self.checked["penstock"] != self.checked["kafka"]:
            sys.exit(f"the two sides differ, there is nothing to compare: {self.checked}")

    @staticmethod
    def digests(rows: DataFrame) -> list[list[int]]:
        from pyspark.sql import functions as F  # noqa: N812

        digest = F.xxhash64("queue_offset", "keys", "body")
        found = rows.groupBy("queue_id").agg(
            F.count("*"), F.sum(F.length("body")), F.bit_xor(digest), F.sum(F.shiftright(digest, 24))
        )
        return sorted([int(value) for value in row] for row in found.collect())

    # -- cases -------------------------------------------------------------------------------------------------------

    def cases(self, quick: bool) -> None:
        pruned = "queue_id int, body binary"
        batch = stream = None
        if not quick:
            batch = self.fixed("fixed cost of a batch read", self.aggregated, pruned, stream=False)
            stream = self.fixed("fixed cost of a stream", self.streamed, SHARED, stream=True)
        self.case("count of one column", self.counted, "queue_id int", batch)
        self.case("aggregation of bodies", self.aggregated, pruned, batch)
        self.case("shared columns to Parquet", self.copied, SHARED, batch)
        self.case("AvailableNow to noop", self.streamed, SHARED, stream, stream=True)
        if not quick:
            self.case("all columns of each to Parquet", self.copied, "", batch, target=None)
            self.case("aggregation, Kafka tuned", self.aggregated, pruned, None, TUNED, target=None)

    def fixed(self, name: str, action: Action, schema: str, *, stream: bool) -> Figure:
        """A read of the last message of every queue."""
        last = self.rows // QUEUES - 1
        here = {f"{TOPIC}/{self.broker}/{queue_id}": last for queue_id in range(QUEUES)}
        there = {self.topic: {str(queue_id): last for queue_id in range(QUEUES)}}

        def case() -> float:
            options = {"startingPosition": json.dumps(here)}
            return seconds(lambda: action(self.ours(schema, options, stream=stream), QUEUES))

        def baseline() -> float:
            options = {"startingOffsets": json.dumps(there)}
            return seconds(lambda: action(self.theirs(schema, options, stream=stream), QUEUES))

        case(), baseline()
        figure = compare(f"{name}, {self.body_size} B", "reads/s", 1, case, baseline, self.repeats)
        figure.extra |= {"penstock_s": 1 / figure.case, "kafka_s": 1 / figure.baseline}
        print(f"   seconds: Penstock {1 / figure.case:.2f}, Kafka {1 / figure.baseline:.2f}", flush=True)
        self.figures.append(figure)
        return figure

    def case(
        self,
        name: str,
        action: Action,
        schema: str,
        fixed: Figure | None,
        options: Mapping[str, str] | None = None,
        *,
        stream: bool = False,
        target: float | None = TARGET,
    ) -> None:
        def case() -> float:
            return seconds(lambda: action(self.ours(schema, stream=stream), self.rows))

        def baseline() -> float:
            return seconds(lambda: action(self.theirs(schema, options, stream=stream), self.rows))

        case(), baseline()  # Both sides warm: the JVM has compiled what it runs.
        title = f"{name}, {self.body_size} B"
        figure = compare(title, "rows/s", self.rows, case, baseline, self.repeats, target)
        if fixed is not None:
            # What a further row costs, without what every read costs.
            ours = self.rows / figure.case - fixed.extra["penstock_s"]
            theirs = self.rows / figure.baseline - fixed.extra["kafka_s"]
            if ours > 0 and theirs > 0:
                figure.extra["ratio_without_fixed_cost"] = theirs / ours
                print(f"   without the fixed cost: {theirs / ours:.2f}", flush=True)
        self.figures.append(figure)

    # -- what is done with the rows ----------------------------------------------------------------------------------

    @staticmethod
    def counted(frame: DataFrame, rows: int) -> None:
        assert frame.count() == rows

    @staticmethod
    def aggregated(frame: DataFrame, rows: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        biggest = F.max(F.substring("body", 1, 1))
        found = frame.groupBy("queue_id").agg(F.count("*").alias("n"), F.sum(F.length("body")), biggest)
        assert sum(row["n"] for row in found.collect()) == rows

    def copied(self, frame: DataFrame, _: int) -> None:
        frame.write.mode("overwrite").parquet(str(self.folder / "copy"))

    def streamed(self, frame: DataFrame, rows: int) -> None:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=self.folder)).start()
        query.awaitTermination()
        assert sum(item.numInputRows for item in query.recentProgress) == rows


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def versions(spark: SparkSession) -> dict[str, object]:
    from tests.interop.kafka_release import SERVER_VERSION, SOURCE_VERSION

    return {"spark": spark.version, "kafka_server": SERVER_VERSION, "spark_kafka_source": SOURCE_VERSION}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Spark reading Penstock, side by side with Spark reading Kafka"
    )
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the rows, three repeats, no fixed costs"
    )
    parser.add_argument("--rows", type=int, default=0, help="messages of each size")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    require_compiled()
    try:
        artefacts = prepare()
    except NotHere as reason:
        print(f"KAFKA IS OUT OF REACH, nothing was compared: {reason}", file=sys.stderr)
        sys.exit(NOT_HERE)
    folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir=arguments.dir))
    try:
        run(arguments, artefacts, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(arguments: argparse.Namespace, artefacts: Artefacts, folder: Path) -> None:
    jars = ",".join(map(str, artefacts.source_jars))
    repeats = arguments.repeats or (3 if arguments.quick else 5)
    figures: list[Figure] = []
    checked: dict[str, object] = {}
    with Kafka(folder, artefacts, QUEUES) as kafka:
        conf = {"spark.jars": jars, "spark.driver.memory": "3g", "spark.log.level": "ERROR"}
        spark = session("kafka", arguments.master, log=folder / "spark.log", **conf)
        try:
            described = versions(spark)
            for name, value in {**machine(), **described}.items():
                print(f"{name}: {value}")
            for size in map(int, arguments.sizes.split(",")):
                rows = arguments.rows // QUEUES * QUEUES
                rows = rows or ROWS.get(size, (1 << 30) // size) // (QUICK if arguments.quick else 1)
                bench = Bench(spark, kafka, folder, size, rows, repeats)
                bench.run(arguments.quick)
                figures += bench.figures
                checked[str(size)] = {"rows": rows, **bench.checked}
        finally:
            spark.stop()
    if arguments.json is not None:
        save(arguments.json, figures, {"versions": described, "checked": checked})


if __name__ == "__main__":
    main()
