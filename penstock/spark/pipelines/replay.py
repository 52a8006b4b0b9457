"""The replay: messages of an archive, a topic or a store directory are sent to a topic once more.

    replay("archive:/data/archive", to="orders-again", nameserver="127.0.0.1:9876", where="tags = 'PAID'",
           checkpoint="replay-1")

    1. plan      the ranges of all queues are fixed, Spark counts what matches, and cuts it into slices
    2. send      slice after slice, each staged by the tasks and published by the broker in one step
    3. verify    what is in the target under this replay's id is counted and compared

Rules: a slice is published under the replay's id and its own number, so one that is sent twice is there once. With a
checkpoint a replay that was interrupted goes on where it was, and one that is finished adds nothing. Order inside a
queue is kept. A rate holds over the whole replay: a slice begins when its predecessors are due, and no sooner. A
slice whose rows are not as many as were planned is not published; without those that are lost it is, where gaps may
be skipped.

Runs on the driver, in the caller's thread; reading and writing is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import GapError, OptionError, PenstockError
from penstock.runtime import Runtime
from penstock.spark.access_options import access_options
from penstock.spark.pipelines.archive_reading import ArchiveSnapshot, Hole
from penstock.spark.pipelines.audit_cluster import cluster_ranges, target_queues
from penstock.spark.pipelines.audit_result import plain_row
from penstock.spark.pipelines.audit_sources import (
    Opened,
    QueueKey,
    Ranges,
    Read,
    Source,
    check_source,
    open_source,
    parse_source,
    reader_of,
)
from penstock.spark.pipelines.replay_plan import (
    SLICE_BYTES,
    SLICE_ROWS,
    Cell,
    Checkpoint,
    Done,
    Plan,
    Slice,
    Wanted,
    cell_bits,
    cut_slices,
    slice_rows,
)
from penstock.spark.pipelines.replay_rows import columns_for, counted, in_order, matching, sent
from penstock.spark.pipelines.replay_verify import COLUMNS as VERIFIED_COLUMNS
from penstock.spark.pipelines.replay_verify import Verified, content_sum, verify
from penstock.spark.preflight import check_directory, check_target
from penstock.spark.reasons import reason_of
from penstock.spark.sink import RowCountError
from penstock.spark.sink_options import WriteOptions

SAMPLES = 10
HOLES_NAMED = 5
BODY_CHARS = 200


@dataclass(frozen=True, slots=True)
class Step:
    """How far a replay is, after each slice."""

    slice: int
    slices: int
    rows: int
    rows_done: int
    rows_total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did. `rows` were planned; `added` were sent by this run; `stopped`: there is more to do."""

    id: str
    target: str
    rows: int
    bytes: int
    slices: int
    added: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    stopped: bool = False
    finished_before: bool = False
    verified: Verified | None = None
    problems: tuple[str, ...] = ()
    queues: tuple[dict[str, Any], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0

    def to_json(self) -> dict[str, Any]:
        found = self.verified
        return {
            "id": self.id,
            "target": self.target,
            "rows": self.rows,
            "bytes": self.bytes,
            "slices": self.slices,
            "added": self.added,
            "seconds": round(self.seconds, 3),
            "dry_run": self.dry_run,
            "stopped": self.stopped,
            "finished_before": self.finished_before,
            "verified": None
            if found is None
            else {"rows": found.rows, "origins": found.origins, "disorder": found.disorder},
            "problems": list(self.problems),
            "queues": list(self.queues),
            "samples": list(self.samples),
        }


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How to send."""

    # Messages per second over the whole replay; None: as fast as it goes.
    rate: float | None = None
    # What is published at once, at most.
    slice_rows: int = SLICE_ROWS
    slice_bytes: int = SLICE_BYTES
    # Count and compare the target at the end.
    verify: bool = True
    # fail or skip: what becomes of messages that the source should have and has not.
    on_gap: str = "fail"
    # Options of the sink, as they are.
    sink: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise OptionError(f"rate is {self.rate}", "use more than 0 messages per second")
        if self.slice_rows < 1 or self.slice_bytes < 1:
            raise OptionError("a slice has at least one row and one byte", "use larger numbers")
        if self.on_gap not in ("fail", "skip"):
            raise OptionError(f"on_gap is {self.on_gap!r}", "use fail or skip")


def replay(
    source: str | Source,
    to: str,
    *,
    nameserver: str,
    access: Access = FROM_ENVIRONMENT,
    topics: Iterable[str] = (),
    where: str = "",
    keys: Iterable[str] = (),
    tags: Iterable[str] = (),
    by_key: bool = False,
    checkpoint: str | Path | None = None,
    dry_run: bool = False,
    settings: ReplaySettings | None = None,
    spark: SparkSession | None = None,
    report: Callable[[Step], None] = lambda step: None,
    tell: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    runtime: Runtime | None = None,
) -> ReplayResult:
    """Send the matching messages of a source to the topic `to`, or with `dry_run` say what would be sent."""
    runtime, settings = runtime or Runtime.system(), settings or ReplaySettings()
    opened = parse_source(source, nameserver, topics, access) if isinstance(source, str) else source
    wanted = Wanted(opened, to, nameserver, where, tuple(keys), tuple(tags), by_key, access)
    return run_replay(
        wanted,
        settings,
        spark or _session(),
        checkpoint,
        dry_run=dry_run,
        report=report,
        tell=tell,
        stop=stop,
        runtime=runtime,
    )


def run_replay(
    wanted: Wanted,
    settings: ReplaySettings,
    spark: SparkSession,
    checkpoint: str | Path | None = None,
    *,
    dry_run: bool = False,
    report: Callable[[Step], None] = lambda step: None,
    tell: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    runtime: Runtime | None = None,
) -> ReplayResult:
    """The same, of a replay that may have been checked before Spark started."""
    runtime = runtime or Runtime.system()
    run = _Replay(spark, wanted, settings, runtime, tell, report, stop)
    if dry_run:
        return run.dry_run()
    return run.run(Checkpoint(runtime.disk, Path(checkpoint)) if checkpoint is not None else None)


def check_replay(wanted: Wanted, checkpoint: str | Path | None = None, *, dry_run: bool = False) -> None:
    """Raise for a source, a target or a checkpoint that does not fit; without Spark, within seconds."""
    known = None
    if checkpoint is not None and not dry_run:
        check_directory("the checkpoint", checkpoint)
        known = Checkpoint(Runtime.system().disk, Path(checkpoint)).load(wanted)
    if not dry_run:
        target = {"nameserver": wanted.nameserver, **access_options(wanted.access), "topic": wanted.target}
        check_target(WriteOptions.parse(target), must_exist=True)
    if known is None:
        check_source(wanted.source)


def _session() -> SparkSession:
    from penstock.spark.session import session

    return session("penstock replay")


class _Replay:
    """One run of a replay."""

    def __init__(
        self,
        spark: SparkSession,
        wanted: Wanted,
        settings: ReplaySettings,
        runtime: Runtime,
        tell: Callable[[str], None],
        report: Callable[[Step], None],
        stop: Callable[[], bool],
    ) -> None:
        self._spark, self._wanted, self._settings = spark, wanted, settings
        self._clock, self._entropy = runtime.clock, runtime.entropy
        self._tell, self._report, self._stop = tell, report, stop

    # -- planning --------------------------------------------------------------------------------------------

    def _open(self) -> Opened:
        """The source with its ranges. What an archive lacks is known now; others find out as they are read."""
        self._tell("asking for ranges")
        source = self._wanted.source
        opened = open_source(self._spark, source, on_gap=self._settings.on_gap, groups=False)
        if source.kind == "archive":
            holes = ArchiveSnapshot.open(source.path).holes(opened.topics, source.start, source.end)
            if holes:
                self._lacks(source, holes)
        return opened

    def _lacks(self, source: Source, holes: Sequence[Hole]) -> None:
        more = f" and {len(holes) - HOLES_NAMED} more" if len(holes) > HOLES_NAMED else ""
        named = ", ".join(str(hole) for hole in holes[:HOLES_NAMED])
        text = f"{source.label} lacks {sum(hole.rows for hole in holes):,} messages: {named}{more}"
        if self._settings.on_gap == "fail":
            raise GapError(
                text, "--skip-gaps goes on without them; the log or another archive may have them still"
            )
        self._tell(f"{text}; they are left out")

    def _count(self, ranges: Ranges, read: Read) -> tuple[list[Cell], int]:
        self._tell("counting what matches")
        bits = cell_bits(ranges, slice_rows(self._settings.slice_rows, self._settings.rate))
        frame = matching(read(columns_for(self._wanted, counting=True)), self._wanted)
        rows = counted(frame, bits).collect()
        cells = [
            Cell(QueueKey(row.topic, row.broker, row.queue_id), row.cell, row.rows, row.bytes, row.first_ms)
            for row in rows
        ]
        return cells, bits

    def _slices(self, cells: list[Cell], ranges: Ranges, bits: int) -> tuple[Slice, ...]:
        most = slice_rows(self._settings.slice_rows, self._settings.rate)
        return cut_slices(cells, ranges, bits, rows_max=most, bytes_max=self._settings.slice_bytes)

    def _plan(self) -> Plan:
        wanted = self._wanted
        home = target_queues(wanted.nameserver, wanted.target, wanted.access)
        ends = cluster_ranges(wanted.target_log)
        opened = self._open()
        cells, bits = self._count(opened.ranges, opened.read)
        broker = self._settings.sink.get("broker") or next(iter(home), "")
        if broker not in home:
            raise OptionError(
                f"broker {broker!r} has no queue of {self._wanted.target}",
                f"choose from {', '.join(home) or 'none'}",
            )
        return Plan(
            id=f"replay-{self._entropy.bytes(8).hex()}",
            wanted=self._wanted.to_json(),
            broker=broker,
            queues=len(home[broker]),
            ranges=opened.ranges,
            slices=self._slices(cells, opened.ranges, bits),
            target_ends=ends,
        )

    def dry_run(self) -> ReplayResult:
        """Count and show; nothing is sent and nothing is written."""
        began_ms = self._clock.monotonic_ms()
        opened = self._open()
        cells, bits = self._count(opened.ranges, opened.read)
        slices = self._slices(cells, opened.ranges, bits)
        return ReplayResult(
            id="",
            target=self._wanted.target,
            rows=sum(cell.rows for cell in cells),
            bytes=sum(cell.bytes for cell in cells),
            slices=len(slices),
            dry_run=True,
            seconds=(self._clock.monotonic_ms() - began_ms) / 1000,
            queues=_per_queue(cells),
            samples=self._samples(opened.read, slices[0]) if slices else (),
        )

    def _samples(self, read: Read, first: Slice) -> tuple[dict[str, Any], ...]:
        frame = matching(read(columns_for(self._wanted, counting=False), first.ranges), self._wanted)
        rows = (
            frame.orderBy("store_time", "topic", "broker", "queue_id", "queue_offset")
            .limit(SAMPLES)
            .select(
                "topic",
                "broker",
                "queue_id",
                "queue_offset",
                "message_id",
                "keys",
                "tags",
                "store_time",
                fn.length("body").alias("body_bytes"),
                fn.substring(fn.try_validate_utf8(fn.col("body").cast("string")), 1, BODY_CHARS).alias(
                    "body"
                ),
            )
        )
        return tuple(plain_row(row.asDict()) for row in rows.collect())

    # -- sending ---------------------------------------------------------------------------------------------

    def run(self, checkpoint: Checkpoint | None) -> ReplayResult:
        """Plan or take up a plan, send what is not sent, verify."""
        began_ms = self._clock.monotonic_ms()
        known = checkpoint.load(self._wanted) if checkpoint is not None else None
        if known is not None:
            plan, done = known
            self._wanted = plan.in_force(self._wanted)
            self._tell(f"going on with {plan.id} after slice {done.slices} of {len(plan.slices)}")
            read = reader_of(self._spark, self._wanted.source, plan.ranges, on_gap=self._settings.on_gap)
        else:
            plan, done = self._plan(), Done()
            read = reader_of(self._spark, self._wanted.source, plan.ranges, on_gap=self._settings.on_gap)
            if checkpoint is not None:
                checkpoint.begin(plan)
        before = done
        done = self._send_all(plan, done, read, checkpoint)
        stopped = done.slices < len(plan.slices)
        verified, problems = None, list[str]()
        if self._settings.verify and not stopped:
            verified, problems = self._verify(plan, done)
        return ReplayResult(
            id=plan.id,
            target=self._wanted.target,
            rows=plan.rows,
            bytes=plan.bytes,
            slices=len(plan.slices),
            added=done.rows - before.rows,
            seconds=(self._clock.monotonic_ms() - began_ms) / 1000,
            stopped=stopped,
            finished_before=before.slices == len(plan.slices) and known is not None,
            verified=verified,
            problems=tuple(problems),
        )

    def _send_all(self, plan: Plan, done: Done, read: Read, checkpoint: Checkpoint | None) -> Done:
        began_ms, before = self._clock.monotonic_ms(), done.rows
        for number in range(done.slices, len(plan.slices)):
            if self._settings.rate is not None:
                due_ms = began_ms + (done.rows - before) / self._settings.rate * 1000
                self._wait(due_ms)
            if self._stop():
                break
            slice_ms = self._clock.monotonic_ms()
            rows, content = self._send(plan, number, read)
            done = done.plus(rows, content)
            if checkpoint is not None:
                checkpoint.note(done)
            seconds = (self._clock.monotonic_ms() - slice_ms) / 1000
            self._report(Step(number, len(plan.slices), rows, done.rows, plan.rows, seconds))
        return done

    def _wait(self, due_ms: float) -> None:
        """Until a slice is due, or somebody asks for a stop."""
        while (left_ms := due_ms - self._clock.monotonic_ms()) > 0 and not self._stop():
            self._clock.sleep(min(left_ms / 1000, 0.2))

    def _send(self, plan: Plan, number: int, read: Read) -> tuple[int, int]:
        """Stage and publish one slice; the rows that were in it and the sum of their hashes."""
        part = plan.slices[number]
        seen = Observation(f"replay-{number}")
        messages = matching(read(columns_for(self._wanted, counting=False), part.ranges), self._wanted)
        ordered = in_order(
            messages, min(len(part.ranges), max(1, self._spark.sparkContext.defaultParallelism))
        )
        watched = ordered.observe(seen, fn.count("*").alias("rows"), content_sum().alias("content"))
        rows = sent(watched, plan.id, plan.ranges, plan.queues, by_key=self._wanted.by_key)
        self._write(rows, plan, number)
        found = seen.get
        if found["rows"] < part.rows:
            self._tell(f"slice {number + 1} has {part.rows - found['rows']:,} rows less than were counted")
        return int(found["rows"]), int(found["content"])

    def _write(self, rows: DataFrame, plan: Plan, number: int) -> None:
        part = plan.slices[number]
        # The sink counts before it publishes: what is published cannot be taken back.
        expected = {"rowsMax": str(part.rows)}
        if self._settings.on_gap == "fail":
            expected["rowsMin"] = str(part.rows)
        options = {
            "nameserver": self._wanted.nameserver,
            **access_options(self._wanted.access),
            "topic": self._wanted.target,
            "broker": plan.broker,
            "writeId": plan.id,
            "batchId": str(number),
            **expected,
            **self._settings.sink,
        }
        try:
            rows.write.format("penstock").mode("append").options(**options).save()
        except PySparkException as error:
            if RowCountError.__name__ not in str(error):
                raise
            raise PenstockError(
                f"slice {number + 1} of {plan.id} had {part.rows:,} rows when it was counted, and now it has not "
                f"({reason_of(error)})",
                "the source lost messages, or --where asks for the time (now()): --skip-gaps with the same "
                "checkpoint sends what is left; for a new replay give times with --from and --until",
            ) from error

    # -- verifying -------------------------------------------------------------------------------------------

    def _verify(self, plan: Plan, done: Done) -> tuple[Verified, list[str]]:
        self._tell(f"counting what is in {self._wanted.target}")
        source = self._wanted.target_log
        now = cluster_ranges(source)
        ranges = {
            key: (min(max(plan.target_ends.get(key, (0, first))[1], first), end), end)
            for key, (first, end) in now.items()
        }
        target = reader_of(self._spark, source, ranges, on_gap="skip")(VERIFIED_COLUMNS)
        found = verify(target, plan.id)
        return found, found.problems(done.rows, done.content, ordered=not self._wanted.by_key)


def _per_queue(cells: list[Cell]) -> tuple[dict[str, Any], ...]:
    """What a dry run says about each queue."""
    found: dict[QueueKey, list[int]] = {}
    for cell in cells:
        sums = found.setdefault(cell.queue, [0, 0])
        sums[0] += cell.rows
        sums[1] += cell.bytes
    return tuple(
        {"topic": key.topic, "broker": key.broker, "queue_id": key.queue_id, "rows": rows, "bytes": size}
        for key, (rows, size) in sorted(found.items())
    )
