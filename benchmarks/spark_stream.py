"""Reading a running broker with Spark: batch scans against the offline scan, and what a micro-batch costs.

    python -m benchmarks.spark_stream [--quick] [--only scans|streams] [--repeats N] [--dir DIR] [--json FILE]
        [--sizes 1024,100] [--master local[2]]

Live scan: the same messages through the broker, a process of its own on the same machine, against a closed store
directory and against Parquet of the same rows, taking turns; on few cores the broker's work comes out of the same
processor time. Streaming: rows per second of
AvailableNow into `noop`. Micro-batch: median time of a trigger with a few rows, against the JVM's own
rate-micro-batch source in the same session, taking turns; of it, the time in `latestOffset` and in the batch.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.harness import Figure, compare, machine, print_figure, require_compiled, save
from benchmarks.servers import Penstock
from benchmarks.spark_scan import QUEUES, ROWS, TOPIC, Bodies, write_store
from penstock.spark import messages, session
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNED, ALL = "queue_id,body", ",".join(COLUMNS)
LIVE_TARGET = 0.7
BATCH_TARGET = 1 / 1.2
BATCHES = 25


class Bench:
    """One body size, one broker."""

    def __init__(self, spark: SparkSession, folder: Path, body_size: int, rows: int, repeats: int) -> None:
        self.spark, self.folder, self.rows, self.repeats = spark, folder, rows, repeats
        self.body_size = body_size
        self.server = Penstock(folder)
        self.data = self.server.folder / "data"
        # The same messages in a directory that nobody writes to: one in use has to be recovered when it is opened.
        self.closed = folder / f"closed-{body_size}"
        self.parquet = folder / f"parquet-{body_size}"
        self.figures: list[Figure] = []

    def run(self, only: str) -> None:
        for path in (self.data, self.closed):
            write_store(path, Bodies("noise", self.body_size), self.rows)
        with self.server:
            self.create_topic()
            if only in ("", "scans"):
                self.scans()
            if only in ("", "streams"):
                self.streaming()
                self.micro_batches()

    def create_topic(self) -> None:
        """The store has the messages, the broker does not know the topic yet; nor the name server the broker."""
        with penstock.Admin(self.server.nameserver) as admin:
            while True:
                try:
                    admin.create_topic(TOPIC, QUEUES)
                    return
                except penstock.ConnectError:
                    time.sleep(0.1)

    def options(self) -> dict[str, str]:
        return {"nameserver": self.server.nameserver, "topic": TOPIC}

    def live(self, columns: str = "") -> DataFrame:
        return self.read("", columns, self.options())

    def offline(self, columns: str = "") -> DataFrame:
        return self.read(str(self.closed), columns, {"topic": TOPIC})

    def read(self, path: str, columns: str, options: dict[str, str]) -> DataFrame:
        """In packs, but for whole messages that are written elsewhere: there they would be one step more."""
        if columns:
            return messages(self.spark, path, columns=columns, **options)
        reader = self.spark.read.format("penstock").options(**options)
        return reader.load(path) if path else reader.load()

    def table(self, columns: str = "") -> DataFrame:
        found = self.spark.read.parquet(str(self.parquet))
        return found.select(*columns.split(",")) if columns in (PRUNED, ALL) else found

    # -- scans ---------------------------------------------------------------------------------------------------

    def scans(self) -> None:
        self.offline().write.mode("overwrite").parquet(str(self.parquet))
        for name, columns, act in (
            ("aggregation", PRUNED, self.aggregated),
            ("aggregation of all columns", ALL, self.aggregated),
            ("to Parquet", "", self.copied),
            ("count, one column", "queue_id", self.counted),
        ):
            self.compare(
                name, "offline", columns, act, self.offline, None if "count" in name else LIVE_TARGET
            )
            if name != "aggregation of all columns":
                self.compare(name, "Parquet", columns, act, self.table, None)

    def compare(
        self,
        name: str,
        rival: str,
        columns: str,
        act: Callable[[DataFrame], float],
        other: Callable[[str], DataFrame],
        target: float | None,
    ) -> None:
        for _ in range(2):
            # Both sides warm: the JVM has compiled what it runs.
            act(self.live(columns)), act(other(columns))
        busy = self.server.cpu_s
        figure = compare(
            f"live {name} vs {rival}, {self.body_size} B",
            "rows/s",
            self.rows,
            lambda: act(self.live(columns)),
            lambda: act(other(columns)),
            self.repeats,
            target,
        )
        figure.extra["broker_cpu_s_per_million"] = (self.server.cpu_s - busy) / self.repeats / self.rows * 1e6
        self.figures.append(figure)

    def aggregated(self, rows: DataFrame) -> float:
        from pyspark.sql import functions as F  # noqa: N812

        started = time.perf_counter()
        found = (
            rows.groupBy("queue_id")
            .agg(F.count("*").alias("n"), F.sum(F.length("body")), F.bit_xor(F.xxhash64("body")))
            .collect()
        )
        taken = time.perf_counter() - started
        assert sum(row["n"] for row in found) == self.rows
        return taken

    def copied(self, rows: DataFrame) -> float:
        started = time.perf_counter()
        rows.write.mode("overwrite").parquet(str(self.folder / "copy"))
        return time.perf_counter() - started

    def counted(self, rows: DataFrame) -> float:
        started = time.perf_counter()
        assert rows.count() == self.rows
        return time.perf_counter() - started

    # -- streams -------------------------------------------------------------------------------------------------

    def streaming(self) -> None:
        for name, limit in (("all at once", 0), ("in batches of 64 Ki", 65_536)):
            taken = min(self._stream(limit) for _ in range(2))
            figure = Figure(
                f"AvailableNow to noop, {name}, {self.body_size} B", "rows/s", self.rows / taken, 0, 0, (0, 0)
            )
            self.figures.append(figure)
            print_figure(figure)

    def _stream(self, limit: int) -> float:
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        reader = self.spark.readStream.format("penstock").options(**self.options())
        if limit:
            reader = reader.option("maxRowsPerTrigger", limit)
        started = time.perf_counter()
        query = (
            reader.load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.perf_counter() - started

    # -- micro-batches -------------------------------------------------------------------------------------------

    def micro_batches(self) -> None:
        ours = (
            self.spark.readStream.format("penstock")
            .options(**self.options(), maxRowsPerTrigger=str(QUEUES), group="bench")
            .load()
        )
        floor = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", QUEUES).load()
        self._triggers(ours), self._triggers(floor)
        ratios, mine, base = [], [], []
        parts: list[dict[str, Any]] = []
        floors: list[dict[str, Any]] = []
        for turn in range(self.repeats):
            sides = [ours, floor] if turn % 2 == 0 else [floor, ours]
            found = [self._triggers(side) for side in sides]
            a, b = found if turn % 2 == 0 else reversed(found)
            mine.append(_median(a, "triggerExecution"))
            base.append(_median(b, "triggerExecution"))
            parts += a
            floors += b
            ratios.append(base[-1] / mine[-1])
        figure = Figure(
            f"micro-batches vs the JVM's rate source, {self.body_size} B",
            "batch/s",
            1000 / statistics.median(mine),
            1000 / statistics.median(base),
            statistics.median(ratios),
            (min(ratios), max(ratios)),
            BATCH_TARGET,
            {name: _median(parts, name) for name in sorted(parts[0])},
        )
        self.figures.append(figure)
        print_figure(figure)
        mine_ms, base_ms = statistics.median(mine), statistics.median(base)
        print(
            f"   a micro-batch: {mine_ms:.0f} ms, the floor {base_ms:.0f} ms: {mine_ms / base_ms:.2f} times"
        )
        for title, some in (("ours", parts), ("floor", floors)):
            shown = "  ".join(f"{name} {_median(some, name):.0f}" for name in sorted(parts[0]))
            print(f"   ms of a trigger, {title:<5}: {shown}")

    def _triggers(self, frame: DataFrame) -> list[dict[str, Any]]:
        """Durations of triggers that had rows, without the first two."""
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            while len(query.recentProgress) < BATCHES and query.isActive:
                time.sleep(0.05)
        finally:
            query.stop()
        found = [dict(item.durationMs) for item in query.recentProgress if item.numInputRows]
        return found[2:BATCHES]


def _median(items: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(item.get(name, 0)) for item in items)


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark reading a running broker")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, three repeats")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--only", choices=["", "scans", "streams"], default="")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    require_compiled()
    for name, value in machine().items():
        print(f"{name}: {value}")
    folder = Path(tempfile.mkdtemp(prefix="penstock-stream-", dir=arguments.dir))
    # Stopping a query in the middle of a batch is loud; what it says is of no use here.
    quiet = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = session("stream", arguments.master, log=folder / "spark.log", **quiet)
    figures: list[Figure] = []
    try:
        for size in map(int, arguments.sizes.split(",")):
            rows = ROWS.get(size, (256 << 20) // size) // (4 if arguments.quick else 1)
            bench = Bench(spark, folder, size, rows, arguments.repeats or (3 if arguments.quick else 5))
            bench.run(arguments.only)
            figures += bench.figures
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        save(arguments.json, figures, {})


if __name__ == "__main__":
    main()
