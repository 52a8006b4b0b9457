"""Writing to a running broker with Spark: the sink beside a plain Python producer, and what a micro-batch costs.

    python -m benchmarks.spark_sink [--quick] [--repeats N] [--sizes 1024,100] [--dir DIR] [--json FILE]

Sink: a batch job of cached rows, exactly once, against `Producer.enqueue` of the same messages from one Python
process, taking turns; both end when everything is stored, the sink when it is published and on disk besides. One
task: the sink's own code without Spark, on one core as the producer is. Micro-batch: median time of a trigger with a
few rows into the sink, against the same trigger into `noop`. Publication: how long readers saw nothing new.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.harness import Figure, compare, machine, print_figure, require_compiled, save
from benchmarks.servers import Penstock
from penstock.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = {1024: 128 << 10, 100: 1 << 20}
QUEUES = 8
BATCHES = 25


class Bench:
    """One body size, one broker."""

    def __init__(self, spark: SparkSession, folder: Path, body_size: int, rows: int, repeats: int) -> None:
        self.spark, self.folder, self.rows, self.repeats = spark, folder, rows, repeats
        self.body_size = body_size
        self.body = b"x" * body_size
        self.server = Penstock(folder)
        self.figures: list[Figure] = []
        self._topics = 0
        self._published_s: list[float] = []

    def run(self) -> None:
        with self.server, penstock.Admin(self.server.nameserver) as admin:
            self.admin = admin
            self.against_a_producer()
            self.one_task()
            self.micro_batches()

    def new_topic(self) -> str:
        self._topics += 1
        topic = f"sink-{self._topics}"
        self.admin.create_topic(topic, QUEUES)
        return topic

    def checked(self, topic: str, taken: float) -> float:
        assert self.admin.describe_topic(topic).messages == self.rows
        self.admin.delete_topic(topic)
        return taken

    # -- the sink ------------------------------------------------------------------------------------------------

    def against_a_producer(self) -> None:
        frame = (
            self.spark.range(self.rows, numPartitions=2)
            .selectExpr(
                f"cast(repeat('x', {self.body_size}) as binary) as body", "cast(id % 1000 as string) as key"
            )
            .cache()
        )
        frame.count()
        self.sink(frame), self.producer()
        title = f"sink vs a Python producer, {self.body_size} B"
        figure = compare(title, "rows/s", self.rows, lambda: self.sink(frame), self.producer, self.repeats)
        self.figures.append(figure)
        frame.unpersist()

    def sink(self, frame: DataFrame) -> float:
        topic = self.new_topic()
        started = time.perf_counter()
        writer = frame.write.format("penstock").mode("append").option("topic", topic)
        writer.option("nameserver", self.server.nameserver).save()
        return self.checked(topic, time.perf_counter() - started)

    def producer(self) -> float:
        topic = self.new_topic()
        body, keys = self.body, [str(number) for number in range(1000)]
        with penstock.Producer(self.server.nameserver, group="bench", batch_size=1_000) as producer:
            started = time.perf_counter()
            for number in range(self.rows):
                producer.enqueue(topic, body, keys=keys[number % 1000])
            producer.flush()
            taken = time.perf_counter() - started
        return self.checked(topic, taken)

    # -- without Spark -------------------------------------------------------------------------------------------

    def one_task(self) -> None:
        import pyarrow as pa

        size = 8_192
        keys = [str(number % 1000) for number in range(size)]
        batch = pa.record_batch({"body": [self.body] * size, "key": keys})
        batches = [batch] * (self.rows // size) + [batch.slice(0, self.rows % size)]
        self.task(batches)
        title = f"one task of the sink vs a Python producer, {self.body_size} B"
        figure = compare(title, "rows/s", self.rows, lambda: self.task(batches), self.producer, self.repeats)
        publish_s = statistics.median(self._published_s[-self.repeats :])
        figure.extra["publish_s_per_gib"] = publish_s / (self.rows * self.body_size) * (1 << 30)
        print(
            f"   of it publishing: {publish_s * 1000:.0f} ms, {figure.extra['publish_s_per_gib']:.2f} s for a GiB"
        )
        self.figures.append(figure)

    def task(self, batches: list[Any]) -> float:
        from pyspark.sql import types

        from penstock.spark.sink import batch_writer

        topic = self.new_topic()
        schema = types.StructType(
            [types.StructField("body", types.BinaryType()), types.StructField("key", types.StringType())]
        )
        writer = batch_writer({"nameserver": self.server.nameserver, "topic": topic}, schema, False)
        started = time.perf_counter()
        written = writer.write(iter(batches))
        staged = time.perf_counter()
        writer.commit([written])
        ended = time.perf_counter()
        self._published_s.append(ended - staged)
        return self.checked(topic, ended - started)

    # -- micro-batches -------------------------------------------------------------------------------------------

    def micro_batches(self) -> None:
        topic = self.new_topic()
        rate = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        rows = rate.selectExpr("cast(value as string) as body").coalesce(1)
        ours = {"nameserver": self.server.nameserver, "topic": topic}
        self._triggers(rows, "penstock", ours), self._triggers(rows, "noop", {})
        mine, base, ratios = [], [], []
        for turn in range(self.repeats):
            sides: list[tuple[str, dict[str, str]]] = [("penstock", ours), ("noop", {})]
            found = [self._triggers(rows, *side) for side in (sides if turn % 2 == 0 else reversed(sides))]
            a, b = found if turn % 2 == 0 else reversed(found)
            mine.append(statistics.median(a))
            base.append(statistics.median(b))
            ratios.append(base[-1] / mine[-1])
        figure = Figure(
            f"micro-batches into the sink vs noop, {self.body_size} B",
            "batch/s",
            1000 / statistics.median(mine),
            1000 / statistics.median(base),
            statistics.median(ratios),
            (min(ratios), max(ratios)),
            None,
            {"ms": statistics.median(mine), "noop_ms": statistics.median(base)},
        )
        self.figures.append(figure)
        print_figure(figure)

    def _triggers(self, frame: DataFrame, sink: str, options: dict[str, str]) -> list[float]:
        """Milliseconds of triggers that had rows, without the first two."""
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        query = (
            frame.writeStream.format(sink)
            .options(**options)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            while len(query.recentProgress) < BATCHES and query.isActive:
                time.sleep(0.05)
        finally:
            query.stop()
        found = [item.durationMs["triggerExecution"] for item in query.recentProgress if item.numInputRows]
        return [float(value) for value in found[2:BATCHES]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark writing to a running broker")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, three repeats")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    require_compiled()
    for name, value in machine().items():
        print(f"{name}: {value}")
    folder = Path(tempfile.mkdtemp(prefix="penstock-sink-", dir=arguments.dir))
    quiet = {"spark.driver.memory": "3g", "spark.log.level": "ERROR"}
    spark = session("sink", arguments.master, log=folder / "spark.log", **quiet)
    figures: list[Figure] = []
    try:
        for size in map(int, arguments.sizes.split(",")):
            rows = ROWS.get(size, (128 << 20) // size) // (4 if arguments.quick else 1)
            bench = Bench(spark, folder, size, rows, arguments.repeats or (3 if arguments.quick else 5))
            bench.run()
            figures += bench.figures
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        save(arguments.json, figures, {})


if __name__ == "__main__":
    main()
