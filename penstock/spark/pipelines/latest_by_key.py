"""The latest message of each key of a topic, as a Parquet table that follows the topic.

    compact("prices", "prices-latest", key="keys", once=True)

    bucket=3/00000000000000000012-0.parquet      the messages of the keys in bucket 3, since commit 12
    _dropped/3-00000000000000000012-0.dropped    keys that an empty body dropped there: not for readers

Each micro-batch reads the buckets whose keys it has, keeps the later message of each key, and replaces those buckets
as whole folders in one commit (`parquet_tree`): a reader finds each key once, at every moment, and never a mixture of
a bucket's old and new files. Later is by store time, then broker, queue and offset, so the order in which queues are
read does not matter, and a batch that is done twice changes nothing: that is what makes it exact after a crash.

A message with an empty body drops its key. The drop is remembered for a while, because an older message of the key
may still come from a queue that lags behind. Messages without a key are left out. Runs on the driver, the work in
Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import OptionError
from penstock.runtime import FileLock, Runtime
from penstock.spark.access_options import access_options
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.manifest import FOLDER, Entry, FileRecord, Move, TreeState
from penstock.spark.pipelines.parquet_tree import BESIDE, ParquetTree, TreeChange
from penstock.spark.preflight import check_directory, check_source
from penstock.spark.progress import Report, ignore
from penstock.spark.running import OnFailure, Run, Stop, run
from penstock.spark.schema import COLUMNS, message_schema
from penstock.spark.session import messages_reader

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COMPACT_LOCK = "compact.lock"
GROUP = "penstock-compact"
CHECKPOINT = "_checkpoint"
GAPS = "_gaps"
DROPPED = "_dropped"
STAGED = f"{BESIDE}/compacting"
BUCKETS = 16
BATCH_BYTES = 256 << 20
DROPPED_KEPT = timedelta(days=7)
_ORDER = ("store_time", "broker", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True)
class CompactJob:
    """Which topic, into which table, by which key. `key` is an SQL expression over the columns and `body_text`;
    `buckets` can be chosen when the table is made, 0 is whatever it has."""

    topic: str
    to: str
    key: str = "keys"
    nameserver: str = "127.0.0.1:9876"
    access: Access = FROM_ENVIRONMENT
    checkpoint: str = ""
    group: str = GROUP
    start: str = "earliest"
    once: bool = False
    every_s: float = 30.0
    buckets: int = 0
    max_rows: int = 0
    max_bytes: int = BATCH_BYTES
    on_gap: str = "report"

    def __post_init__(self) -> None:
        if not self.topic or "," in self.topic:
            raise OptionError("a table of latest messages is of one topic", "name one topic")
        if not self.to:
            raise OptionError("no directory for the table", "name one")
        if not 0 <= self.buckets <= 4096:
            raise OptionError(f"buckets is {self.buckets}", "use 1 to 4096")
        if self.every_s < 0:
            raise OptionError("the interval is negative", "give seconds")

    @property
    def root(self) -> Path:
        return Path(self.to).absolute()

    @property
    def checkpoint_place(self) -> str:
        if "://" in self.checkpoint:
            return self.checkpoint
        return str(Path(self.checkpoint).absolute() if self.checkpoint else self.root / CHECKPOINT)

    def check(self) -> None:
        """Raise for what is wrong with the options, the directory or the cluster; without Spark, within seconds."""
        options = ReadOptions.parse(self.source())
        check_directory("the table", self.root)
        check_directory("the checkpoint", self.checkpoint_place)
        table = LatestTable(self.root, self.key, self.buckets)
        if self.has_begun:
            self.own(table.tree).release()
            table.choose_buckets(table.tree.load())
        check_source(options, begins=not self.has_begun)

    @property
    def has_begun(self) -> bool:
        """Whether an earlier run has left anything."""
        return Runtime.system().disk.is_dir(self.root / FOLDER)

    @staticmethod
    def own(tree: ParquetTree) -> FileLock:
        return tree.own(COMPACT_LOCK, "keeping the latest messages in")

    def source(self) -> dict[str, str]:
        options = {
            "nameserver": self.nameserver,
            **access_options(self.access),
            "topic": self.topic,
            "startingPosition": self.start,
            "onGap": self.on_gap,
        }
        options |= {"gapTable": str(self.root / GAPS)} if self.on_gap == "report" else {}
        options |= {"maxRowsPerTrigger": str(self.max_rows)} if self.max_rows else {}
        options |= {"maxBytesPerTrigger": str(self.max_bytes)} if self.max_bytes else {}
        return options | ({"group": self.group} if self.group else {})


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run did, and how many keys the table has."""

    batches: int
    rows: int
    seconds: float
    restarts: int
    stopped: bool
    keys: int

    def to_json(self) -> dict[str, Any]:
        return {
            "event": "done",
            "batches": self.batches,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "restarts": self.restarts,
            "stopped": self.stopped,
            "keys": self.keys,
        }


def compact(
    topic: str,
    to: str,
    *,
    spark: SparkSession | None = None,
    stop: Stop | None = None,
    report: Report = ignore,
    on_failure: OnFailure | None = None,
    **settings: Any,
) -> Compacted:
    """Keep the latest message of each key of a topic in a table: of what is there now with `once`, else until `stop`
    is asked. `settings` are the fields of `CompactJob`."""
    job = CompactJob(topic, to, **settings)
    ReadOptions.parse(job.source())
    if spark is None:
        from penstock.spark.session import session

        spark = session("penstock compact")
    return run_compact(job, spark, stop, report, on_failure)


def run_compact(
    job: CompactJob,
    spark: SparkSession,
    stop: Stop | None = None,
    report: Report = ignore,
    on_failure: OnFailure | None = None,
) -> Compacted:
    """The same, of a job that may have been checked before Spark started."""
    # Reject an expression that Spark does not understand before there is a directory.
    keyed(spark.createDataFrame([], message_schema()), job.key)
    table = LatestTable(job.root, job.key, job.buckets)
    lock = job.own(table.tree)
    try:
        done = run(
            {"compact": lambda: _start(spark, job, table)}, stop=stop, report=report, on_failure=on_failure
        )
        return _result(done["compact"], table)
    finally:
        lock.release()


def _start(spark: SparkSession, job: CompactJob, table: LatestTable) -> Any:
    table.prepare()
    frame = messages_reader(spark, stream=True).options(**job.source()).load()
    writer = frame.writeStream.foreachBatch(table.take).option("checkpointLocation", job.checkpoint_place)
    if job.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(job.every_s * 1000)} milliseconds").start()


def _result(done: Run, table: LatestTable) -> Compacted:
    keys = sum(record.rows for record in table.latest(table.tree.load().files.values()))
    return Compacted(done.batches, done.rows, done.seconds, done.restarts, done.stopped, keys)


def read_latest(spark: SparkSession, path: str | Path) -> DataFrame:
    """The table as its manifest has it: `key` and the columns of the message."""
    from pyspark.sql import types

    root = Path(path).absolute()
    if not Runtime.system().disk.is_dir(root / FOLDER):
        raise OptionError(
            f"{path} is no table of latest messages",
            "name the directory that was given to `penstock pipeline compact`",
        )
    state = ParquetTree(root).load_settled()
    schema = types.StructType([types.StructField("key", types.StringType()), *message_schema().fields])
    paths = [f"{root}/{record.path}" for record in LatestTable.latest(state.files.values())]
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


# -- columns -----------------------------------------------------------------------------------------------------


def keyed(frame: DataFrame, key: str) -> DataFrame:
    """Messages with their key; those without one are left out."""
    from pyspark.sql import functions

    from penstock.spark.pipelines.sql import with_text

    chosen = functions.expr(key).cast("string").alias("key")
    return with_text(frame).select(chosen, *COLUMNS).where("key is not null and key <> ''")


def newest(frame: DataFrame) -> DataFrame:
    """One message for each key."""
    from pyspark.sql import functions

    message = functions.struct(*COLUMNS)
    picked = functions.max_by(message, functions.struct(*_ORDER)).alias("message")
    return frame.groupBy("key", "bucket").agg(picked).select("key", "bucket", "message.*")


def bucket_of(buckets: int) -> Column:
    from pyspark.sql import functions

    return functions.pmod(functions.xxhash64("key"), functions.lit(buckets)).cast("int").alias("bucket")


class LatestTable:
    """The files of one table. `take` is called by Spark for each micro-batch, in the driver."""

    def __init__(self, root: Path, key: str, buckets: int = 0, runtime: Runtime | None = None) -> None:
        self.tree = ParquetTree(root, runtime)
        self._key = key
        self._wanted_buckets = buckets
        self._buckets = buckets

    def prepare(self) -> None:
        """Finish or sweep what a crash left, and learn how many buckets there are."""
        with self.tree.changing() as change:
            change.sweep(STAGED)
            change.sweep_parked()
            self.choose_buckets(change.state)
        self.tree.make_beside()

    def choose_buckets(self, state: TreeState) -> None:
        """Those that the table has; those that are wanted where it is new."""
        has = {record.about["buckets"] for record in state.files.values()}
        self._buckets = next(iter(has), self._wanted_buckets or BUCKETS)
        if self._wanted_buckets not in (0, self._buckets):
            raise OptionError(
                f"{self.tree.root} has {self._buckets} buckets, not {self._wanted_buckets}",
                "leave the number out, or make another table",
            )

    @staticmethod
    def latest(records: Iterable[FileRecord]) -> list[FileRecord]:
        return [record for record in records if not record.about["dropped"]]

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Bring the table up to date with one micro-batch."""
        from pyspark.sql import functions

        incoming = newest(keyed(frame, self._key).withColumn("bucket", bucket_of(self._buckets))).persist()
        try:
            latest = functions.max("store_time").alias("latest")
            touched = {row.bucket: row.latest for row in incoming.groupBy("bucket").agg(latest).collect()}
            if touched:
                self._replace(incoming, touched)
        finally:
            incoming.unpersist()

    def _replace(self, incoming: DataFrame, touched: Mapping[int, datetime | None]) -> None:
        from pyspark.sql import functions

        spark = incoming.sparkSession
        state = self.tree.load()
        old = [record for record in state.files.values() if record.about["bucket"] in touched]
        merged = newest(incoming.unionByName(self._read(spark, old))) if old else incoming
        is_dropped = functions.coalesce(functions.length("body"), functions.lit(0)) == 0
        times = [time for time in touched.values() if time is not None]
        merged = merged.withColumn("dropped", is_dropped)
        if times:
            kept = functions.col("store_time") >= max(times) - DROPPED_KEPT
            merged = merged.where(~functions.col("dropped") | kept)
        token = self.tree.runtime.entropy.bytes(6).hex()
        out = self.tree.resolve(f"{STAGED}/{token}/out")
        writer = merged.repartition("bucket").sortWithinPartitions("bucket", "dropped", "key").write
        writer.partitionBy("dropped", "bucket").option("compression", "zstd").parquet(str(out))
        with self.tree.changing() as change:
            self._commit(change, token, sorted(touched), old)

    def _read(self, spark: SparkSession, records: Iterable[FileRecord]) -> DataFrame:
        from pyspark.sql import types

        schema = types.StructType([types.StructField("key", types.StringType()), *message_schema().fields])
        paths = [f"{self.tree.root}/{record.path}" for record in records]
        return spark.read.schema(schema).parquet(*paths).withColumn("bucket", bucket_of(self._buckets))

    def _commit(self, change: TreeChange, token: str, buckets: list[int], old: list[FileRecord]) -> None:
        """Give the files their names, make a folder for each bucket, and swap them all in one commit."""
        disk, sequence = self.tree.runtime.disk, change.state.sequence + 1
        added: list[FileRecord] = []
        moves: list[Move] = []
        for bucket in buckets:
            staged, place = f"{STAGED}/{token}/tree/bucket={bucket}", f"bucket={bucket}"
            folder, mark = self.tree.resolve(staged), f"_commit-{sequence:020d}"
            disk.make_dirs(folder)
            disk.open(folder / mark, create=True).close()
            for number, path in enumerate(self._written(token, bucket, dropped=False)):
                name = f"{sequence:020d}-{number}.parquet"
                disk.rename(path, folder / name)
                added.append(self._record(f"{place}/{name}", folder / name, bucket, dropped=False))
            disk.sync_dir(folder)
            moves.append(Move(staged, place, change.park_name(place), mark))
            for number, path in enumerate(self._written(token, bucket, dropped=True)):
                place = f"{DROPPED}/{bucket}-{sequence:020d}-{number}.dropped"
                added.append(self._record(place, path, bucket, dropped=True))
                moves.append(Move(f"{STAGED}/{path.relative_to(self.tree.resolve(STAGED))}", place))
        change.commit(Entry(tuple(added), tuple(record.path for record in old), tuple(moves)))
        for record in old:
            if record.about["dropped"]:
                disk.remove(self.tree.resolve(record.path))
        change.sweep(STAGED)
        change.sweep_parked()

    def _written(self, token: str, bucket: int, *, dropped: bool) -> list[Path]:
        """What Spark wrote for a bucket."""
        folder = self.tree.resolve(f"{STAGED}/{token}/out/dropped={str(dropped).lower()}/bucket={bucket}")
        names = self.tree.runtime.disk.list(folder)
        return [folder / name for name in names if name.startswith("part-")]

    def _record(self, place: str, path: Path, bucket: int, *, dropped: bool) -> FileRecord:
        import pyarrow.parquet as pq

        from penstock.spark.pipelines.archive_files import sync_file

        size = sync_file(path, self.tree.runtime.disk)
        rows = pq.read_metadata(path).num_rows
        return FileRecord(place, rows, size, {"bucket": bucket, "buckets": self._buckets, "dropped": dropped})
