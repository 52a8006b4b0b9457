"""One run of an audit: the checks one after the other, over facts that are read once.

    facts -> cells -> queues, gaps, order          what is there, and in which order
          -> ids and keys                          what is there twice, and what is hot
          -> latency, windows, groups              how it flowed
    dead letters, comparison, rates                what is read beside the facts

Rules: a table of single faults is computed only where counting found faults, so a sound source costs few jobs. Tables
come back to the driver as Arrow; those of single faults are cut to `details` rows, their totals never are.
Runs on the driver; one object per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.errors import OptionError
from penstock.message.failures import REASON
from penstock.runtime import Runtime
from penstock.spark.pipelines import (
    audit_cluster,
    audit_continuity,
    audit_flow,
    audit_keys,
    audit_latency,
    audit_store,
)
from penstock.spark.pipelines import audit_dead_letters as dead
from penstock.spark.pipelines.audit_compare import NOT_COMPARED, Comparison, not_compared
from penstock.spark.pipelines.audit_facts import PLACE, fact_columns, facts_of, plain
from penstock.spark.pipelines.audit_findings import findings
from penstock.spark.pipelines.audit_reasons import with_reasons
from penstock.spark.pipelines.audit_result import AuditResult, Limits
from penstock.spark.pipelines.audit_sources import (
    DEAD_LETTER_PREFIX,
    TRACE_TOPIC,
    Opened,
    QueueKey,
    open_beside,
)
from penstock.spark.pipelines.audit_windows import choose_width
from penstock.spark.running import Stop
from penstock.spark.schema import message_schema

if TYPE_CHECKING:
    import pyarrow as pa

Tell = Callable[[str], None]
# Between two looks at whether to stop.
WATCH_S = 0.2
_PACKED = "spark.sql.inMemoryColumnarStorage.compressed"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How to look, and what counts as a problem."""

    # Width of the time windows in seconds; None: so that about 60 cover the messages.
    window_s: int | None = None
    # Property with a number that grows from message to message of a key.
    sequence: str = ""
    # Whether bodies are read, for duplicates by key.
    bodies: bool = True
    # Property in which consumers write why they give a message up.
    reason_property: str = REASON
    # Single faults per table at most; all are counted.
    details: int = 10_000
    # Seconds for which the groups are watched at least, for their rates.
    observe_s: float = 0.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.window_s is not None and self.window_s < 1:
            raise OptionError(f"window_s is {self.window_s}", "use at least a second")
        if self.details < 1:
            raise OptionError(f"details is {self.details}", "use at least 1")


def log_firsts(opened: Opened) -> Mapping[QueueKey, int]:
    """Where the log of each queue begins: what a group did not take before that is gone."""
    source = opened.source
    if not opened.progress:
        return {}
    if source is not None and source.kind == "archive":
        return audit_cluster.cluster_firsts(source, opened.topics)
    if source is not None and source.start is not None:
        if source.kind == "log":
            return audit_cluster.cluster_firsts(source, opened.topics)
        whole = replace(source, topics=tuple(opened.topics), start=None, end=None)
        return {key: first for key, (first, _) in audit_store.store_ranges(whole).items()}
    return {key: first for key, (first, _) in opened.ranges.items()}


class AuditRun:
    """See the module's text. `samples` are what earlier audits saw of the groups; this one adds its own."""

    def __init__(
        self,
        spark: SparkSession,
        left: Opened,
        right: Opened | None,
        settings: AuditSettings,
        runtime: Runtime,
        tell: Tell,
        samples: list[dict[str, Any]],
        stop: Stop | None = None,
    ) -> None:
        self._stop = stop or Stop()
        self._spark, self._left, self._right = spark, left, right
        self._settings, self._clock, self._told = settings, runtime.clock, tell
        self._tables: dict[str, pa.Table] = {}
        self._totals: dict[str, int] = {}
        self._first_sample_ms = 0
        self._log_firsts: Mapping[QueueKey, int] = {}
        self.samples = samples

    def result(self, gap_table: str) -> AuditResult:
        """Run every check. `gap_table` is where the read notes why messages are missing."""
        started_ms = self._clock.now_ms()
        self._sample()
        # Now: later retention may have deleted what a group has taken meanwhile.
        self._log_firsts = log_firsts(self._left)
        settings, left = self._settings, self._left
        messages = left.read(fact_columns(bodies=settings.bodies, sequence=settings.sequence))
        facts = facts_of(messages, bodies=settings.bodies, sequence=settings.sequence)
        cells = audit_continuity.cells_of(facts)
        with self._kept(facts), self._kept(cells):
            self._tell(f"reading {left.messages:,} messages" if left.messages else "reading")
            self._queues(cells, gap_table)
            rows, width_s = self._extent()
            self._order(plain(facts), audit_continuity.backwards_of(cells))
            self._duplicates(plain(facts))
            self._keys(plain(facts))
            self._latency(plain(facts), width_s)
            self._flow(facts, width_s)
        self._dead_letters()
        if self._right is not None:
            self._compare(left, self._right)
        self._rates()
        return AuditResult(
            left.label,
            self._right.label if self._right is not None else "",
            started_ms,
            self._clock.now_ms(),
            width_s,
            rows,
            self._tables,
            self._totals,
            findings(self._tables, settings.limits),
        )

    def _tell(self, text: str) -> None:
        """The next check begins, if it may."""
        self._stop.check()
        self._told(text)

    def _extent(self) -> tuple[int, int]:
        """Messages, and how wide windows are."""
        queues = self._tables["queues"]
        first = [value for value in queues.column("first_time").to_pylist() if value is not None]
        last = [value for value in queues.column("last_time").to_pylist() if value is not None]
        span = (
            (min(first).timestamp() * 1000, max(last).timestamp() * 1000) if first and last else (None, None)
        )
        return self._sum("queues", "rows"), self._settings.window_s or choose_width(*span)

    @contextmanager
    def _kept(self, frame: DataFrame) -> Iterator[None]:
        """Computed once for everything inside the block; on disk what memory does not hold. Packing it would take
        longer than computing it."""
        before = self._spark.conf.get(_PACKED)
        self._spark.conf.set(_PACKED, "false")
        try:
            frame.persist(StorageLevel.MEMORY_AND_DISK)
        finally:
            self._spark.conf.set(_PACKED, str(before))
        try:
            yield
        finally:
            frame.unpersist()

    # -- collecting ------------------------------------------------------------------------------------------

    def _whole(self, name: str, frame: DataFrame, *order: Any) -> None:
        self._tables[name] = frame.orderBy(*order).toArrow()

    def _cut(self, name: str, frame: DataFrame, total: int, *order: Any) -> None:
        """Single faults: no job where there are none."""
        if total:
            self._tables[name] = frame.orderBy(*order).limit(self._settings.details).toArrow()
        else:
            self._nothing(name, frame)
        self._totals[name] = total

    def _nothing(self, name: str, frame: DataFrame) -> None:
        """The table without rows that the frame would give."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._tables[name] = to_arrow_schema(frame.schema, timezone="UTC").empty_table()

    def _sum(self, table: str, column: str) -> int:
        return sum(value or 0 for value in self._tables[table].column(column).to_pylist())

    def _local(self, table: str) -> DataFrame:
        """A small table again as a frame."""
        return self._spark.createDataFrame(self._tables[table])

    # -- checks ----------------------------------------------------------------------------------------------

    def _queues(self, cells: DataFrame, gap_table: str) -> None:
        exact = self._left.exact
        queues = audit_continuity.queues_of(self._spark, cells, self._left.ranges, exact=exact)
        self._whole("queues", queues, *PLACE)
        gaps = audit_continuity.gaps_of(cells, self._local("queues"), exact=exact)
        self._cut("gaps", gaps, self._sum("queues", "gaps"), *PLACE, "first_offset")
        self._tables["gaps"] = with_reasons(self._tables["gaps"], gap_table)
        topics = (
            self._local("queues")
            .groupBy("topic")
            .agg(
                fn.count("*").alias("queues"),
                fn.sum("rows").alias("rows"),
                fn.sum("bytes").alias("bytes"),
                fn.min("first_time").alias("first_time"),
                fn.max("last_time").alias("last_time"),
                fn.max("rows").alias("most_rows"),
                (fn.max("rows") / fn.nullif(fn.avg("rows"), fn.lit(0.0))).alias("skew"),
            )
        )
        self._whole("topics", topics, "topic")

    def _order(self, facts: DataFrame, backwards: DataFrame) -> None:
        self._tell("looking at order")
        found = audit_keys.disorder(facts, sequence=bool(self._settings.sequence))
        found = found.unionByName(
            backwards.select(
                fn.lit("store_time").alias("kind"),
                *PLACE,
                "queue_offset",
                "previous_offset",
                fn.lit(None).cast("string").alias("key"),
                fn.unix_millis("store_time").alias("value"),
                fn.unix_millis("previous_store_time").alias("previous_value"),
            )
        )
        with self._kept(found):
            totals = found.groupBy("kind", "topic").agg(
                fn.count("*").alias("rows"),
                fn.count_distinct("key").alias("keys"),
                fn.max(fn.col("previous_value") - fn.col("value")).alias("worst"),
            )
            self._whole("disorder_totals", totals, "kind", "topic")
            total = self._sum("disorder_totals", "rows")
            # Late messages are only a note, and often many: what is a problem must not be cut off by them.
            notes_last = fn.col("kind") == "born_time"
            self._cut("disorder", found, total, notes_last, "kind", *PLACE, "queue_offset")

    def _duplicates(self, facts: DataFrame) -> None:
        self._tell("looking for duplicates")
        bodies = self._settings.bodies
        suspected = audit_keys.suspects(facts, bodies=bodies)
        with self._kept(suspected):
            found = audit_keys.duplicates(facts, suspected, bodies=bodies)
            totals = found.groupBy("kind", "topic").agg(
                fn.count("*").alias("values"), fn.sum(fn.col("copies") - 1).alias("extra")
            )
            if suspected.isEmpty():
                self._nothing("duplicate_totals", totals)
                self._cut("duplicates", found, 0)
                return
            with self._kept(found):
                self._whole("duplicate_totals", totals, "kind", "topic")
                total = self._sum("duplicate_totals", "values")
                self._cut("duplicates", found, total, "kind", "topic", fn.desc("copies"), "value")

    def _keys(self, facts: DataFrame) -> None:
        self._tell("counting keys")
        keys = audit_keys.keys_of(facts)
        with self._kept(keys):
            self._whole("keys", audit_keys.key_totals(keys), "topic")
            hot = audit_keys.hot_keys(keys)
            if self._tables["keys"].num_rows:
                self._whole("hot_keys", hot, "topic", "rank")
            else:
                self._nothing("hot_keys", hot)

    def _latency(self, facts: DataFrame, width_s: int) -> None:
        self._tell("measuring latency")
        times = audit_latency.stored_times(facts)
        traces = open_beside(self._spark, self._left, TRACE_TOPIC)
        if traces is not None:
            times = times.unionByName(audit_latency.consumed_times(facts, traces.read(("body",))))
        counts = audit_latency.counts_of(times, width_s)
        with self._kept(counts):
            self._whole("latency", audit_latency.latency(counts), "topic", "stage")
            self._whole("latency_windows", audit_latency.latency_windows(counts), "topic", "stage", "window")
            histogram = audit_latency.latency_histogram(counts)
            self._whole("latency_histogram", histogram, "topic", "stage", "power")

    def _flow(self, facts: DataFrame, width_s: int) -> None:
        self._tell("comparing what was produced with what was consumed")
        windows = audit_flow.queue_windows(facts, width_s)
        progress = audit_flow.progress_frame(self._spark, self._left.progress)
        with self._kept(windows):
            self._whole("produced", audit_flow.produced(windows), "topic", "window")
            sides = audit_flow.sides_of(windows, progress)
            groups = audit_flow.groups(self._spark, facts, progress, self._left.ranges, self._log_firsts)
            if not self._left.progress:
                self._nothing("consumed", audit_flow.consumed(sides, None))
                self._nothing("groups", groups)
                return
            with self._kept(sides):
                is_whole = sides.where(audit_flow.is_split()).isEmpty()
                parts = None if is_whole else audit_flow.counted_parts(facts, sides, width_s)
                self._whole("consumed", audit_flow.consumed(sides, parts), "topic", "group", "window")
            self._whole("groups", groups, "topic", "group")

    def _dead_letters(self) -> None:
        self._tell("reading dead letters")
        opened, source = open_beside(self._spark, self._left, f"{DEAD_LETTER_PREFIX}*"), self._left.source
        topics = self._tables["topics"].column("topic").to_pylist()
        if opened is None and source is None and any(name.startswith(DEAD_LETTER_PREFIX) for name in topics):
            opened = self._left
        nothing = self._spark.createDataFrame([], message_schema(dead.COLUMNS))
        messages = opened.read(dead.COLUMNS) if opened is not None else nothing
        found = dead.dead_letters(self._spark, messages, self._left.tries_max, self._settings.reason_property)
        if source is not None and source.topics:
            found = found.where(dead.is_of(self._left.topics))
        if opened is None:
            self._nothing("dead_letters", found)
            self._nothing("dead_letter_totals", dead.totals(found))
            return
        with self._kept(found):
            self._whole("dead_letter_totals", dead.totals(found), "group")
            self._totals["dead_letters"] = self._sum("dead_letter_totals", "kinds")
            order = (fn.desc("rows"), "group", "origin_topic", "reason", "tries")
            self._tables["dead_letters"] = found.orderBy(*order).limit(dead.SHOWN).toArrow()

    def _compare(self, left: Opened, right: Opened) -> None:
        self._tell(f"comparing with {right.label}")
        import pyarrow as pa

        rest = not_compared(left.ranges, right.ranges)
        names = ("topic", "broker", "there")
        schema = pa.schema(
            [
                (name, pa.string() if name in names else pa.int32() if name == "queue_id" else pa.int64())
                for name in NOT_COMPARED
            ]
        )
        self._tables["not_compared"] = pa.Table.from_pylist(rest, schema)
        comparison = Comparison(self._spark, left, right)
        buckets = comparison.buckets()
        with self._kept(buckets):
            self._whole("compared", comparison.totals(buckets), *PLACE)
            different = self._sum("compared", "different_buckets")
            found = comparison.differences(buckets)
            totals = found.groupBy("topic", "difference").agg(fn.count("*").alias("rows"))
            if not different:
                self._nothing("difference_totals", totals)
                self._cut("differences", found, 0)
                return
            self._tell(f"naming the rows of {different:,} differing parts")
            with self._kept(found):
                self._whole("difference_totals", totals, "topic", "difference")
                total = self._sum("difference_totals", "rows")
                self._cut("differences", found, total, *PLACE, "queue_offset")

    # -- rates -----------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        """What the groups are doing at this moment, where there is somebody to ask."""
        if self._left.sample is None:
            return
        progress, ranges = self._left.sample()
        now_ms = self._clock.now_ms()
        self._first_sample_ms = self._first_sample_ms or now_ms
        self.samples += audit_flow.sample_rows(now_ms, progress, ranges)

    def _rates(self) -> None:
        if self._left.sample is not None:
            until_ms = self._first_sample_ms + self._settings.observe_s * 1000
            if (left_s := (until_ms - self._clock.now_ms()) / 1000) > 0:
                self._tell(f"watching the groups for {left_s:.0f} s more")
                while (left_s := (until_ms - self._clock.now_ms()) / 1000) > 0:
                    self._clock.sleep(min(left_s, WATCH_S))
                    self._stop.check()
            self._sample()
        found = audit_flow.rates(self._spark, self.samples)
        if self.samples:
            self._whole("rates", found, "topic", "group", "from_time")
        else:
            self._nothing("rates", found)
