"""Is every message there, once, in the order of time: counts, gaps, repeated offsets, store times that go back.

Queues are looked at in cells of 65,536 offsets, so that one large queue is the work of many tasks: inside a cell
neighbours are compared, then the edges of neighbouring cells, then both ends of a queue with the range that it
should have.

    cell 0                 cell 1                     expected range
    |0 1 2 . . 5 6 ... |   |65536 ... 70000|          [0, 70003): offsets 3-4 and 70001-70002 are missing

Rule: nothing is collected here; a queue with a billion messages gives as many rows as it has faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_facts import PLACE
from penstock.spark.pipelines.audit_sources import Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CELL_BITS = 16
_GAP = "struct<first_offset:bigint,last_offset:bigint,before_time:timestamp,after_time:timestamp>"
_BACK = (
    "struct<queue_offset:bigint,previous_offset:bigint,store_time:timestamp,previous_store_time:timestamp>"
)
_EXPECTED = ("expected_first", "expected_end")
_FAULTS = ("repeated", "missing", "gaps", "backwards")
RANGE_SCHEMA = "topic string, broker string, queue_id int, expected_first bigint, expected_end bigint"


def cells_of(facts: DataFrame) -> DataFrame:
    """One row per cell that has messages, with the faults in it and at its lower edge. Keep it (`persist`):
    everything else here is made of it."""
    cell = fn.shiftright("queue_offset", CELL_BITS)
    # Two numbers sort several times faster than names do. Two cells of the same hash would be taken for one, which
    # happens once in millions of audits.
    slot = fn.xxhash64(*PLACE, cell)
    neighbours = Window.partitionBy("slot").orderBy("queue_offset")
    rows = facts.select(*PLACE, "queue_offset", "store_time", "size", slot.alias("slot")).select(
        "*",
        fn.lag("queue_offset").over(neighbours).alias("before"),
        fn.lag("store_time").over(neighbours).alias("before_time"),
    )
    cells = rows.groupBy("slot").agg(
        *(fn.first(name).alias(name) for name in PLACE),
        fn.count("*").alias("rows"),
        fn.sum("size").alias("bytes"),
        fn.min("queue_offset").alias("first_offset"),
        fn.max("queue_offset").alias("last_offset"),
        fn.min("store_time").alias("first_time"),
        fn.max("store_time").alias("last_time"),
        fn.min_by("store_time", "queue_offset").alias("time_at_first"),
        fn.max_by("store_time", "queue_offset").alias("time_at_last"),
        fn.count_if(fn.col("queue_offset") == fn.col("before")).alias("repeated"),
        # collect_list leaves nulls out, so a sound cell collects nothing.
        fn.collect_list(_gap("queue_offset", "store_time")).cast(f"array<{_GAP}>").alias("gaps"),
        fn.collect_list(_back("queue_offset", "store_time")).cast(f"array<{_BACK}>").alias("backwards"),
    )
    return _with_edges(cells)


def _gap(offset: str, time: str) -> Column:
    """What is missing in front of an offset; null if nothing is."""
    return fn.when(
        fn.col(offset) - fn.col("before") > 1,
        fn.struct(
            (fn.col("before") + 1).alias("first_offset"),
            (fn.col(offset) - 1).alias("last_offset"),
            "before_time",
            fn.col(time).alias("after_time"),
        ),
    )


def _back(offset: str, time: str) -> Column:
    """A message that was stored before the one in front of it; null if it was not."""
    return fn.when(
        fn.col(time) < fn.col("before_time"),
        fn.struct(
            fn.col(offset).alias("queue_offset"),
            fn.col("before").alias("previous_offset"),
            fn.col(time).alias("store_time"),
            fn.col("before_time").alias("previous_store_time"),
        ),
    )


def _with_edges(cells: DataFrame) -> DataFrame:
    """Each cell with what is wrong between it and the one before it in its queue."""
    order = Window.partitionBy(*PLACE).orderBy("first_offset")
    edged = cells.select(
        "*",
        fn.lag("last_offset").over(order).alias("before"),
        fn.lag("time_at_last").over(order).alias("before_time"),
    )
    names = [name for name in cells.columns if name not in ("slot", "gaps", "backwards")]
    return edged.select(
        *names,
        _joined("gaps", _gap("first_offset", "time_at_first"), _GAP),
        _joined("backwards", _back("first_offset", "time_at_first"), _BACK),
    )


def _joined(name: str, edge: Column, kind: str) -> Column:
    """The faults of a cell and the one at its edge."""
    return fn.concat(fn.array_compact(fn.array(edge.cast(kind))), fn.col(name)).alias(name)


def queues_of(spark: SparkSession, cells: DataFrame, ranges: Ranges, *, exact: bool) -> DataFrame:
    """One row per queue, also for those that should have messages and have none."""
    missing = fn.aggregate(
        "gaps",
        fn.lit(0).cast("bigint"),
        lambda sum_, gap: sum_ + gap.last_offset - gap.first_offset + 1,
    )
    parts = cells.select(
        *PLACE,
        *(fn.lit(None).cast("bigint").alias(name) for name in _EXPECTED),
        *("rows", "bytes", "first_offset", "last_offset", "first_time", "last_time", "repeated"),
        missing.alias("missing"),
        fn.size("gaps").cast("bigint").alias("gaps"),
        fn.size("backwards").cast("bigint").alias("backwards"),
    )
    expected = spark.createDataFrame([(*key, *ends) for key, ends in sorted(ranges.items())], RANGE_SCHEMA)
    found = (
        parts.unionByName(expected, allowMissingColumns=True)
        .groupBy(*PLACE)
        .agg(
            *(fn.max(name).alias(name) for name in _EXPECTED),
            *(fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in ("rows", "bytes")),
            fn.min("first_offset").alias("first_offset"),
            fn.max("last_offset").alias("last_offset"),
            fn.min("first_time").alias("first_time"),
            fn.max("last_time").alias("last_time"),
            *(fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in _FAULTS),
        )
    )
    return _with_ends(found) if exact else found.where("rows > 0")


def _with_ends(queues: DataFrame) -> DataFrame:
    """What is missing before the first and after the last message counts, too."""
    head = fn.greatest(fn.coalesce("first_offset", "expected_end") - fn.col("expected_first"), fn.lit(0))
    tail = fn.greatest(fn.col("expected_end") - fn.col("last_offset") - 1, fn.lit(0))
    lost, some = fn.coalesce(head, fn.lit(0)), fn.coalesce(tail, fn.lit(0))
    ends = fn.when(lost > 0, 1).otherwise(0) + fn.when(some > 0, 1).otherwise(0)
    return queues.withColumns({"missing": fn.col("missing") + lost + some, "gaps": fn.col("gaps") + ends})


def gaps_of(cells: DataFrame, queues: DataFrame, *, exact: bool) -> DataFrame:
    """One row per missing range."""
    gaps = cells.select(*PLACE, fn.inline("gaps"))
    if exact:
        gaps = gaps.unionByName(_gaps_at_ends(queues))
    return gaps.withColumn("missing", fn.col("last_offset") - fn.col("first_offset") + 1)


def backwards_of(cells: DataFrame) -> DataFrame:
    """One row per message that was stored before the one in front of it."""
    return cells.select(*PLACE, fn.inline("backwards"))


def _gaps_at_ends(found: DataFrame) -> DataFrame:
    """What is missing before the first and after the last message, or the whole range of an empty queue."""
    never = fn.lit(None).cast("timestamp")
    head = found.where(fn.coalesce("first_offset", "expected_end") > fn.col("expected_first")).select(
        *PLACE,
        fn.col("expected_first").alias("first_offset"),
        (fn.coalesce("first_offset", "expected_end") - 1).alias("last_offset"),
        never.alias("before_time"),
        fn.col("first_time").alias("after_time"),
    )
    tail = found.where(fn.col("last_offset") + 1 < fn.col("expected_end")).select(
        *PLACE,
        (fn.col("last_offset") + 1).alias("first_offset"),
        (fn.col("expected_end") - 1).alias("last_offset"),
        fn.col("last_time").alias("before_time"),
        never.alias("after_time"),
    )
    return head.unionByName(tail)
