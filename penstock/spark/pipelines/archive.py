"""Topics to Parquet, exactly once for whoever reads the files.

    archive("orders,payments", "archive", once=True)

A Structured Streaming query from the brokers to the archive sink (`archive_sink`), or for a store directory a row of
batch jobs. Progress is in Spark's checkpoint, which by default is kept in the archive itself; if it is lost, the
archive goes on after what its manifest has. The group's offsets at the brokers show the lag, and can hold back
retention (`retention_groups`).

Rules: one archiver per directory, kept by a lock. What a crash left is finished or swept at the start. Gaps in the
log are written to `_gaps` and the archive goes on behind them, unless told otherwise. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.access import FROM_ENVIRONMENT, Access, explaining
from penstock.client.scan import Scan
from penstock.client.scan_results import OffsetRange, QueueId
from penstock.errors import OptionError, StoreFormatError, StoreLockedError
from penstock.runtime import FileLock, Runtime
from penstock.spark.access_options import access_options
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.archive_commit import files_of, ranges_of, sweep
from penstock.spark.pipelines.archive_files import FileSettings
from penstock.spark.pipelines.archive_names import ArchivedFile, require_names
from penstock.spark.pipelines.archive_sink import FORMAT, ArchiveSink
from penstock.spark.pipelines.compaction import Merged, merge_files
from penstock.spark.pipelines.manifest import FOLDER
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.spark.pipelines.seam import next_offsets
from penstock.spark.planning import QueueSlice, share
from penstock.spark.positions import Position, PositionKind, resolve, sorted_offsets
from penstock.spark.preflight import check_directory, check_source
from penstock.spark.progress import Batch, Report, ignore
from penstock.spark.running import FAILURES_MAX, OnFailure, Stop, run
from penstock.spark.session import active, messages_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.batch import ByTime

_LOG = logging.getLogger(__name__)
ARCHIVE_LOCK = "archive.lock"
GROUP = "penstock-archive"
CHECKPOINT = "_checkpoint"
GAPS = "_gaps"
# A batch of about this size is a few files, a few seconds, and not too much to do again after a crash.
BATCH_BYTES = 512 << 20
STORE_BATCH_ROWS = 4_000_000
MERGE_LEAST = 8


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """What to archive, and how. Either `topics` or `pattern`; with `store`, topics of a store directory."""

    to: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    nameserver: str = "127.0.0.1:9876"
    access: Access = FROM_ENVIRONMENT
    store: str = ""
    checkpoint: str = ""
    group: str = GROUP
    # Where queues begin that are not in the archive yet.
    start: str = "earliest"
    once: bool = False
    every_s: float = 30.0
    max_rows: int = 0
    max_bytes: int = BATCH_BYTES
    on_gap: str = "report"
    files: FileSettings = field(default_factory=FileSettings)
    merge: bool = True
    # While it runs on: how often small files are merged.
    merge_every_s: float = 600.0
    # Failures in a row, without a finished batch between them, after which it gives up.
    failures_max: int = FAILURES_MAX

    def __post_init__(self) -> None:
        if not self.to:
            raise OptionError("no directory to archive to", "name one")
        if bool(self.topics) == bool(self.pattern) and not self.store:
            raise OptionError("give either topics or a pattern", "as in orders,payments")
        if self.pattern and self.store:
            raise OptionError(
                "a store directory takes no pattern", "name its topics, or none for all of them"
            )
        if self.every_s < 0 or self.merge_every_s <= 0:
            raise OptionError("an interval is negative", "give seconds")
        start = Position.parse("start", self.start)
        if self.store and (start.kind is PositionKind.LATEST or "latest" in dict(start.offsets).values()):
            # No checkpoint keeps where that was: what comes until the next run would be left out as well.
            raise OptionError(
                "a store directory cannot be archived from latest: every run would begin at its end",
                "use earliest, a timestamp, or offsets",
            )

    @property
    def root(self) -> Path:
        return Path(self.to).absolute()

    @property
    def checkpoint_place(self) -> str:
        """A directory is made absolute: executors and later runs have another working directory."""
        if "://" in self.checkpoint:
            return self.checkpoint
        return str(Path(self.checkpoint).absolute() if self.checkpoint else self.root / CHECKPOINT)

    def source(self) -> dict[str, str]:
        """Options of the read, as texts."""
        gaps = {"onGap": self.on_gap} | (
            {"gapTable": str(self.root / GAPS)} if self.on_gap == "report" else {}
        )
        if self.store:
            return gaps  # its topics are those that the directory has, whatever their names look like
        limits = {"maxRowsPerTrigger": self.max_rows, "maxBytesPerTrigger": self.max_bytes}
        options = {"nameserver": self.nameserver, **access_options(self.access), **gaps}
        options |= {"topic": ",".join(self.topics)} if self.topics else {"topicPattern": self.pattern}
        options |= {name: str(value) for name, value in limits.items() if value}
        return options | ({"group": self.group} if self.group else {})

    def check(self) -> None:
        """Raise for what is wrong with the options, the directory or the cluster; without Spark, within seconds."""
        self.check_options()
        check_directory("the archive", self.root)
        check_directory("the checkpoint", self.checkpoint_place)
        tree = ParquetTree(self.root)
        if Runtime.system().disk.is_dir(tree.manifest.folder):
            self.own(tree).release()
        if self.store:
            from penstock.spark.batch import store_ranges
            from penstock.spark.offline import OfflineStore

            with OfflineStore(self.store) as store:
                store_ranges(store, ReadOptions(path=self.store, topic=self.topics))
        else:
            start = {} if self.has_begun else {"startingPosition": self.start}
            check_source(ReadOptions.parse(self.source() | start), begins=not self.has_begun)

    def check_options(self) -> None:
        ReadOptions.parse(self.source() | ({"path": self.store} if self.store else {}))
        for topic in self.topics:
            require_names(topic)

    @property
    def has_begun(self) -> bool:
        """Whether an earlier run has left anything."""
        return Runtime.system().disk.is_dir(self.root / FOLDER)

    @staticmethod
    def own(tree: ParquetTree) -> FileLock:
        return tree.own(ARCHIVE_LOCK, "archiving to")

    def sink(self) -> dict[str, str]:
        return {
            "path": str(self.root),
            "targetBytes": str(self.files.target_bytes),
            "rowGroupBytes": str(self.files.row_group_bytes),
            "compression": self.files.compression,
        }


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run did."""

    batches: int
    rows: int
    seconds: float
    restarts: int
    stopped: bool
    files: int
    merged: Merged
    gaps: int

    def to_json(self) -> dict[str, Any]:
        return {
            "event": "done",
            "batches": self.batches,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "restarts": self.restarts,
            "stopped": self.stopped,
            "files": self.files,
            "files_merged": self.merged.files_before,
            "files_made_of_them": self.merged.files_after,
            "gaps": self.gaps,
        }


def archive(
    topics: str | Sequence[str] = (),
    to: str = "",
    *,
    spark: SparkSession | None = None,
    stop: Stop | None = None,
    report: Report = ignore,
    on_failure: OnFailure | None = None,
    **settings: Any,
) -> Archived:
    """Archive topics to a directory: what is there now with `once`, else until `stop` is asked.

    `settings` are the fields of `ArchiveJob`: nameserver, store, checkpoint, group, start, every_s and so on.
    """
    job = ArchiveJob(to, topic_names(topics), **settings)
    if spark is None:
        from penstock.spark.session import session

        spark = session("penstock archive")
    return run_archive(job, spark, stop, report, on_failure)


def topic_names(topics: str | Sequence[str]) -> tuple[str, ...]:
    """Topics as a list, or with commas between them."""
    names = topics.split(",") if isinstance(topics, str) else topics
    return tuple(name.strip() for name in names if name.strip())


def run_archive(
    job: ArchiveJob,
    spark: SparkSession,
    stop: Stop | None = None,
    report: Report = ignore,
    on_failure: OnFailure | None = None,
) -> Archived:
    """The same, of a job that may have been checked before Spark started."""
    return _Archiving(job, spark, stop or Stop(), report, on_failure).run()


class _Archiving:
    """One run."""

    def __init__(
        self, job: ArchiveJob, spark: SparkSession, stop: Stop, report: Report, on_failure: OnFailure | None
    ) -> None:
        self._job, self._spark, self._stop = job, spark, stop
        self._report, self._on_failure = report, on_failure
        self._tree = ParquetTree(job.root)
        self._clock = Runtime.system().clock
        self._merged = Merged()
        self._merge_due_ms = self._clock.monotonic_ms() + int(job.merge_every_s * 1000)

    def run(self) -> Archived:
        # Wrong options are told before Spark is asked for anything.
        self._job.check_options()
        lock = self._job.own(self._tree)
        try:
            self._spark.dataSource.register(ArchiveSink)
            batches, rows, seconds, restarts = self._store() if self._job.store else self._stream()
            if self._job.merge and not self._stop.is_asked:
                self._merge(least=MERGE_LEAST)
            return self._result(batches, rows, seconds, restarts)
        finally:
            lock.release()

    def _result(self, batches: int, rows: int, seconds: float, restarts: int) -> Archived:
        from penstock.spark.gaps import read_gaps

        return Archived(
            batches,
            rows,
            seconds,
            restarts,
            self._stop.is_asked,
            len(self._tree.load().files),
            self._merged,
            len(read_gaps(str(self._job.root / GAPS))),
        )

    # -- a running cluster -----------------------------------------------------------------------------------

    def _stream(self) -> tuple[int, int, float, int]:
        done = run(
            {"archive": self._start},
            stop=self._stop,
            report=self._batch_done,
            on_failure=self._on_failure,
            failures_max=self._job.failures_max,
        )["archive"]
        return done.batches, done.rows, done.seconds, done.restarts

    def _start(self) -> Any:
        """Start the query, for the first time or again. Its tasks of before, if any still run, lose their folders."""
        sweep(self._job.root)
        options = self._job.source()
        if not self._has_finished_a_batch():
            options["startingPosition"] = self._starting_position()
        frame: DataFrame = messages_reader(self._spark, stream=True).options(**options).load()
        writer = frame.writeStream.format(FORMAT).options(**self._job.sink())
        writer = writer.option("checkpointLocation", self._job.checkpoint_place)
        if self._job.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(self._job.every_s * 1000)} milliseconds")
        with active(self._spark):  # where the sink is registered; another session may have been used last
            return writer.start()

    def _has_finished_a_batch(self) -> bool:
        """Whether the checkpoint says where to begin, so that no broker need be asked, which may just be away.
        Offsets alone do not: Spark asks for the first position again while its first batch is not finished."""
        spark: Any = self._spark
        commits = spark._jvm.org.apache.hadoop.fs.Path(self._job.checkpoint_place, "commits")
        files = commits.getFileSystem(spark._jsc.hadoopConfiguration())
        return bool(files.exists(commits)) and any(
            item.getPath().getName().isdigit() for item in files.listStatus(commits)
        )

    def _starting_position(self) -> str:
        """For a query without a checkpoint: after what is archived, and as told where nothing is."""
        archived = next_offsets(ranges_of(files_of(self._tree.load())))
        if not archived:
            return self._job.start
        from penstock.spark.live import find_queues

        options = ReadOptions.parse(self._job.source())
        settings = options.access.settings()
        with explaining(), Scan(options.nameserver, retry_ms=options.retry_ms, **settings) as scan:
            ranges = scan.ranges(find_queues(scan, options))
            start = Position.parse("start", self._job.start)
            found = beginnings(start, ranges, archived, scan.offsets_by_time)
        return json.dumps(sorted_offsets(found))

    def _batch_done(self, batch: Batch) -> None:
        self._report(batch)
        if self._job.merge and not self._job.once and self._clock.monotonic_ms() >= self._merge_due_ms:
            self._merge(least=MERGE_LEAST)
            self._merge_due_ms = self._clock.monotonic_ms() + int(self._job.merge_every_s * 1000)

    # -- a store directory -----------------------------------------------------------------------------------

    def _store(self) -> tuple[int, int, float, int]:
        """Batch by batch; each is a commit, so a run that is cut off goes on where it was."""
        from penstock.spark.batch import store_ranges, store_times
        from penstock.spark.offline import OfflineStore

        sweep(self._job.root)
        files = files_of(self._tree.load())
        archived, kept = next_offsets(ranges_of(files)), _rows(files)
        with OfflineStore(self._job.store) as store:
            topics = self._job.topics or tuple(store.topics())
            ranges = store_ranges(store, ReadOptions(path=self._job.store, topic=topics))
            for queue in ranges:
                require_names(queue.topic, queue.broker)
            start = Position.parse("start", self._job.start)
            starts = beginnings(start, ranges, archived, store_times(store))
            self._check_store(ranges, starts, archived)
            starts = {queue.key: max(item.min, starts[queue.key]) for queue, item in ranges.items()}
            ends = {queue.key: item.max for queue, item in ranges.items()}
            left = {(q.topic, q.broker, q.queue_id): (starts[q.key], ends[q.key]) for q in ranges}
            most = rows_of_a_batch(self._job, store.row_bytes(left))
        began, batches, rows = self._clock.monotonic_ms(), 0, 0
        while not self._stop.is_asked and any(starts[key] < ends[key] for key in ends):
            quotas = share(most, {key: ends[key] - starts[key] for key in ends})
            stops = {key: starts[key] + quotas.get(key, 0) for key in ends}
            at_ms = self._clock.monotonic_ms()
            self._write_store(starts, stops)
            seconds = max(self._clock.monotonic_ms() - at_ms, 1) / 1000
            # Of the manifest: an offset whose record is damaged was asked for and not written.
            count, starts = _rows(files_of(self._tree.load())) - kept - rows, stops
            lag = sum(ends[key] - starts[key] for key in ends)
            self._report(Batch("", batches, count, count / seconds, seconds, lag))
            batches, rows = batches + 1, rows + count
        return batches, rows, (self._clock.monotonic_ms() - began) / 1000, 0

    def _check_store(
        self, ranges: Mapping[QueueId, OffsetRange], starts: Mapping[str, int], archived: Mapping[str, int]
    ) -> None:
        """Refuse queues that end before what is wanted of them; what retention took unarchived is a gap."""
        from penstock.spark.gaps import Gaps
        from penstock.spark.live import check_beginnings

        for queue, item in ranges.items():
            if starts[queue.key] <= item.max:
                continue
            if queue.key not in archived:
                raise OptionError(
                    f"start of {queue} is {starts[queue.key]}, and the queue ends at {item.max}",
                    "use an offset that is there",
                )
            # Sooner or later other messages would get the offsets that are archived.
            raise StoreFormatError(
                f"{queue} ends at {item.max} in {self._job.store}, and at {archived[queue.key]} in the archive: "
                "the directory is older than the archive, or another one, or lost its last messages",
                "archive it to another directory, or name the topics that are to go on",
            )
        # Here, because this sees each gap as a whole; a batch would see as much of it as it has rows.
        options = ReadOptions.parse(self._job.source() | {"path": self._job.store})
        slices = [QueueSlice(queue, starts[queue.key], item.max) for queue, item in ranges.items()]
        check_beginnings(slices, ranges, Gaps(options.on_gap, options.gap_table))

    def _write_store(self, starts: Mapping[str, int], stops: Mapping[str, int]) -> None:
        topics = sorted({key.split("/")[0] for key in stops})
        options = {
            **self._job.source(),
            # Names of the directory's own, as of retry topics, may have characters that the option topic refuses.
            "topicPattern": "|".join(map(re.escape, topics)),
            "startingPosition": json.dumps(sorted_offsets(starts)),
            "endingPosition": json.dumps(sorted_offsets(stops)),
        }
        frame = messages_reader(self._spark).options(**options).load(str(Path(self._job.store).absolute()))
        with active(self._spark):  # where the sink is registered; another session may have been used last
            frame.write.format(FORMAT).mode("append").options(**self._job.sink()).save()

    # -- small files -----------------------------------------------------------------------------------------

    def _merge(self, least: int) -> None:
        try:
            done = merge_files(self._spark, self._job.root, self._job.files, least=least)
        except StoreLockedError as error:
            # Somebody merges by hand: small files do no harm until the next time, and messages keep coming.
            _LOG.warning("files are merged another time: %s", error)
            return
        before = self._merged
        self._merged = Merged(
            before.files_before + done.files_before,
            before.files_after + done.files_after,
            before.rows + done.rows,
            before.bytes_before + done.bytes_before,
            before.bytes_after + done.bytes_after,
            before.folders + done.folders,
        )
        if done.files_before:
            _LOG.info("%d files of %s became %d", done.files_before, self._job.root, done.files_after)


def beginnings(
    start: Position, ranges: Mapping[QueueId, OffsetRange], archived: Mapping[str, int], by_time: ByTime
) -> dict[str, int]:
    """Where each queue goes on: after what is archived of it, and as told where nothing is."""
    fresh = {queue: item for queue, item in ranges.items() if queue.key not in archived}
    if start.kind is PositionKind.OFFSETS:
        # It may name queues that are archived by now; those go on where the archive ends.
        named = tuple(pair for pair in start.offsets if pair[0] not in archived)
        start = Position(PositionKind.OFFSETS, offsets=named)
    found = {queue.key: at for queue, at in resolve(start, "start", fresh, by_time).items()}
    return found | {queue.key: archived[queue.key] for queue in ranges if queue.key in archived}


def rows_of_a_batch(job: ArchiveJob, row_bytes: int) -> int:
    """How many messages of a store directory a batch takes at most, if they are about so large."""
    limits = [job.max_rows] if job.max_rows else []
    limits += [max(1, job.max_bytes // row_bytes)] if job.max_bytes else []
    return min(limits, default=STORE_BATCH_ROWS)


def _rows(files: Iterable[ArchivedFile]) -> int:
    return sum(file.rows for file in files)
