"""Do two sources hold the same messages: the log and its archive, a store and its copy.

    1. per queue and 65,536 offsets, on both sides: count, least and greatest offset, xor and sum of the row hashes.
       The sum is there because xor does not see a row that is there twice more
    2. the buckets that differ, and only those, are read again and joined row by row: which are missing on which side,
       which are there more than once, which are altered, and in which columns

Rule: only the range that both sides claim to have is compared; what one side has before or after it is counted and
is no difference, because a log expires and an archive comes later. Queues of which nothing is compared are named:
an archive of something else would have no difference, either. Nothing is collected here.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn

from penstock.errors import OptionError
from penstock.spark.pipelines.audit_sources import Opened, QueueKey, Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKET_BITS = 16
COMPARED = (
    "message_id",
    "keys",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
    "born_host",
    "reconsume_times",
)
_KEY = ("topic", "broker", "queue_id")
_SUMS = ("rows", "low", "high", "xor", "sum")
_RANGE_SCHEMA = "topic string, broker string, queue_id int, from_offset bigint, to_offset bigint"
_SIDES = ("left", "right")
NOT_COMPARED = (*_KEY, "there", "left_first", "left_end", "right_first", "right_end")


def common_ranges(left: Ranges, right: Ranges) -> Ranges:
    """Where both sides claim to have messages. A store directory knows no broker names: its queues are matched by
    topic and number, which needs a single broker on the other side."""
    left, right = _matched(left, right)
    found = {}
    for key in left.keys() & right.keys():
        first = max(left[key][0], right[key][0])
        end = min(left[key][1], right[key][1])
        if first < end:
            found[key] = (first, end)
    return found


def not_compared(left: Ranges, right: Ranges) -> list[dict[str, Any]]:
    """A row per queue that has messages and no offset that both sides have: `there` says which side has messages."""
    common = common_ranges(left, right)
    left, right = _matched(left, right)
    rows = []
    for key in sorted((left.keys() | right.keys()) - common.keys()):
        (left_first, left_end), (right_first, right_end) = (side.get(key, (0, 0)) for side in (left, right))
        here, there = left_first < left_end, right_first < right_end
        if here or there:
            side = "both" if here and there else "left" if here else "right"
            ends = (left_first, left_end, right_first, right_end)
            rows.append(dict(zip(NOT_COMPARED, (*key, side, *ends), strict=True)))
    return rows


def _matched(left: Ranges, right: Ranges) -> tuple[Ranges, Ranges]:
    """Both without broker names if one of them knows none."""
    if any(not key.broker for key in (*left, *right)):
        return _nameless(left), _nameless(right)
    return left, right


def _nameless(ranges: Ranges) -> Ranges:
    by_queue: dict[QueueKey, tuple[int, int]] = {}
    for key, ends in ranges.items():
        plain = QueueKey(key.topic, "", key.queue_id)
        if plain in by_queue:
            raise OptionError(
                f"topic {key.topic} has queues of several brokers, and a store directory does not say whose it is",
                "compare with the archive of one broker",
            )
        by_queue[plain] = ends
    return by_queue


class Comparison:
    """Both sides cut to their common range, ready for the two steps."""

    def __init__(self, spark: SparkSession, left: Opened, right: Opened) -> None:
        self.common = common_ranges(left.ranges, right.ranges)
        self._nameless = any(not key.broker for key in self.common)
        rows = [(*key, *ends) for key, ends in sorted(self.common.items())]
        self._ranges = spark.createDataFrame(rows, _RANGE_SCHEMA)
        self._frames = {"left": self._cut(left), "right": self._cut(right)}

    def _cut(self, opened: Opened) -> DataFrame:
        frame = opened.read((*_KEY, "queue_offset", *COMPARED))
        if self._nameless:
            frame = frame.withColumn("broker", fn.lit(""))
        inside = (fn.col("queue_offset") >= fn.col("from_offset")) & (
            fn.col("queue_offset") < fn.col("to_offset")
        )
        cut = (
            frame.join(fn.broadcast(self._ranges), list(_KEY)).where(inside).drop("from_offset", "to_offset")
        )
        return cut.withColumn("bucket", fn.shiftright("queue_offset", BUCKET_BITS))

    def buckets(self) -> DataFrame:
        """One row per bucket of either side, with `same`. Keep it: both tables below are made of it."""
        sides = [_sums(self._frames[side], side) for side in _SIDES]
        joined = sides[0].join(sides[1], [*_KEY, "bucket"], "full_outer")
        equal = [fn.col(f"left_{name}").eqNullSafe(fn.col(f"right_{name}")) for name in _SUMS]
        return joined.withColumn("same", reduce(lambda a, b: a & b, equal))

    def totals(self, buckets: DataFrame) -> DataFrame:
        """Per queue: the range compared, rows of both sides, buckets, and how many of them differ."""
        grouped = buckets.groupBy(*_KEY).agg(
            fn.coalesce(fn.sum("left_rows"), fn.lit(0)).alias("left_rows"),
            fn.coalesce(fn.sum("right_rows"), fn.lit(0)).alias("right_rows"),
            fn.count("*").alias("buckets"),
            fn.count_if(~fn.col("same")).alias("different_buckets"),
        )
        return self._ranges.join(grouped, list(_KEY), "left").na.fill(0)

    def differences(self, buckets: DataFrame) -> DataFrame:
        """One row per offset that is not the same on both sides, out of the buckets that differ."""
        wanted = fn.broadcast(buckets.where(~fn.col("same")).select(*_KEY, "bucket"))
        sides = [
            _row_per_offset(self._frames[side].join(wanted, [*_KEY, "bucket"], "left_semi"), side)
            for side in _SIDES
        ]
        joined = sides[0].join(sides[1], [*_KEY, "queue_offset"], "full_outer")
        kind = (
            fn.when(fn.col("left_copies").isNull(), "missing left")
            .when(fn.col("right_copies").isNull(), "missing right")
            .when(fn.col("altered") != "", "altered")
            .when(fn.col("left_copies") > fn.col("right_copies"), "repeated left")
            .when(fn.col("left_copies") < fn.col("right_copies"), "repeated right")
            # Several copies on both sides, of which the least is the same: no column can be named.
            .when(fn.col("left_total") != fn.col("right_total"), "altered")
        )
        judged = joined.withColumn("altered", _altered()).withColumn("difference", kind)
        return judged.where(fn.col("difference").isNotNull()).select(
            *_KEY,
            "queue_offset",
            "difference",
            "altered",
            fn.coalesce("left_message_id", "right_message_id").alias("message_id"),
            fn.coalesce("left_store_time", "right_store_time").alias("store_time"),
            "left_copies",
            "right_copies",
        )


def _comparable(name: str) -> Column:
    """Maps have no hash and no order of their own: their pairs, sorted."""
    return fn.array_sort(fn.map_entries(name)) if name == "properties" else fn.col(name)


def _hash() -> Column:
    """Of a row. Which column is null counts, too: xxhash64 alone skips nulls."""
    bits = [fn.when(fn.col(name).isNull(), 1 << number).otherwise(0) for number, name in enumerate(COMPARED)]
    return fn.xxhash64("queue_offset", reduce(add, bits), *(_comparable(name) for name in COMPARED))


def _sums(frame: DataFrame, side: str) -> DataFrame:
    hashed = frame.select(*_KEY, "bucket", "queue_offset", _hash().alias("hash"))
    return hashed.groupBy(*_KEY, "bucket").agg(
        fn.count("*").alias(f"{side}_rows"),
        fn.min("queue_offset").alias(f"{side}_low"),
        fn.max("queue_offset").alias(f"{side}_high"),
        fn.bit_xor("hash").alias(f"{side}_xor"),
        fn.sum(fn.col("hash").cast("decimal(38,0)")).alias(f"{side}_sum"),
    )


def _row_per_offset(frame: DataFrame, side: str) -> DataFrame:
    """Each offset once, with its number of copies and one hash per column."""
    hashes = [
        fn.xxhash64(_comparable(name), fn.col(name).isNull()).alias(f"{side}_hash_{name}")
        for name in COMPARED
    ]
    whole = _hash().cast("decimal(38,0)").alias("whole")
    rows = frame.select(*_KEY, "queue_offset", "message_id", "store_time", whole, *hashes)
    firsts = [fn.min(f"{side}_hash_{name}").alias(f"{side}_hash_{name}") for name in COMPARED]
    return rows.groupBy(*_KEY, "queue_offset").agg(
        fn.count("*").alias(f"{side}_copies"),
        fn.sum("whole").alias(f"{side}_total"),
        fn.min("message_id").alias(f"{side}_message_id"),
        fn.min("store_time").alias(f"{side}_store_time"),
        *firsts,
    )


def _altered() -> Column:
    names = [
        fn.when(fn.col(f"left_hash_{name}") != fn.col(f"right_hash_{name}"), fn.lit(name))
        for name in COMPARED
    ]
    return fn.concat_ws(", ", *names)
