"""What was produced and what of it was consumed: per topic, group and time window; and how fast both go.

The ratio that the seeds call production to consumption is here twice, because it has two meanings:

    consumed     of the messages stored in a window, how many the group has taken by now; what is left is its lag
    rates        between two samples of the groups' offsets: messages stored / messages taken in that time. 1.0 keeps
                 up, more falls behind

Samples are taken when an audit begins and when it ends, and are kept in its directory, so that the next audit into
the same directory can look back.

Rule: windows are counted per queue once. Only windows that a group's offset falls into and that have holes are
counted again, message by message, so the work does not grow with the number of groups. Nothing is collected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_facts import PLACE, window_start
from penstock.spark.pipelines.audit_sources import Progress, QueueKey, Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PROGRESS_SCHEMA = "group string, topic string, broker string, queue_id int, committed bigint"
_ENDS_SCHEMA = "topic string, broker string, queue_id int, first bigint, `end` bigint, log_first bigint"
_SAMPLE_SCHEMA = (
    "time_ms bigint, group string, topic string, broker string, queue_id int, committed bigint, `end` bigint"
)


def queue_windows(facts: DataFrame, width_s: int) -> DataFrame:
    """One row per queue and time window. Keep it: the tables below are made of it."""
    return facts.groupBy(*PLACE, window_start(width_s).alias("window")).agg(
        fn.count("*").alias("rows"),
        fn.sum("size").alias("bytes"),
        fn.min("queue_offset").alias("low"),
        fn.max("queue_offset").alias("high"),
    )


def produced(windows: DataFrame) -> DataFrame:
    """Messages and bytes stored per topic and window."""
    return windows.groupBy("topic", "window").agg(
        fn.sum("rows").alias("rows"), fn.sum("bytes").alias("bytes")
    )


def progress_frame(spark: SparkSession, progress: Iterable[Progress]) -> DataFrame:
    rows = [(item.group, *item.queue, item.committed) for item in progress]
    return spark.createDataFrame(rows, _PROGRESS_SCHEMA)


def sides_of(windows: DataFrame, progress: DataFrame) -> DataFrame:
    """Each window of a queue beside each group's offset there. Keep it."""
    return windows.join(fn.broadcast(progress), list(PLACE))


def is_split() -> Column:
    """A window that a group's offset falls into, and whose offsets have holes: only counting tells what is taken."""
    inside = (fn.col("low") < fn.col("committed")) & (fn.col("committed") <= fn.col("high"))
    return inside & (fn.col("rows") != fn.col("high") - fn.col("low") + 1)


def counted_parts(facts: DataFrame, sides: DataFrame, width_s: int) -> DataFrame:
    """What groups have taken of the windows that are split, message by message."""
    split = sides.where(is_split()).select("group", *PLACE, "window", "committed")
    return (
        facts.select(*PLACE, "queue_offset", window_start(width_s).alias("window"))
        .join(fn.broadcast(split), [*PLACE, "window"])
        .groupBy("group", *PLACE, "window")
        .agg(fn.count_if(fn.col("queue_offset") < fn.col("committed")).alias("part"))
    )


def consumed(sides: DataFrame, parts: DataFrame | None) -> DataFrame:
    """Per topic, group and window of storing: produced, consumed by now, waiting, produced / consumed."""
    whole = (
        fn.when(fn.col("high") < fn.col("committed"), fn.col("rows"))
        .when(fn.col("low") >= fn.col("committed"), 0)
        .otherwise(fn.col("committed") - fn.col("low"))
    )
    if parts is None:
        counted = sides.withColumn("taken", whole)
    else:
        joined = sides.join(parts, ["group", *PLACE, "window"], "left")
        counted = joined.withColumn("taken", fn.coalesce(fn.col("part"), whole))
    grouped = counted.groupBy("topic", "group", "window").agg(
        fn.sum("rows").alias("produced"), fn.sum("taken").alias("consumed")
    )
    return grouped.select(
        "*", (fn.col("produced") - fn.col("consumed")).alias("waiting"), _ratio("produced", "consumed")
    )


def groups(
    spark: SparkSession,
    facts: DataFrame,
    progress: DataFrame,
    ranges: Ranges,
    log_firsts: Mapping[QueueKey, int],
) -> DataFrame:
    """Per topic and group: stored in the range, taken, waiting, expired before they were taken, and since when the
    oldest waiting message has been waiting. What expired is judged by where the log begins: the range may begin
    later, at a time that was asked for, or elsewhere, in an archive. A queue whose log nobody knows has nothing
    expired."""
    rows = [(*key, *range_, log_firsts.get(key)) for key, range_ in sorted(ranges.items())]
    ends = spark.createDataFrame(rows, _ENDS_SCHEMA)
    at = progress.join(ends, list(PLACE))
    inside = fn.least(fn.greatest("committed", "first"), fn.col("end"))
    summed = at.groupBy("topic", "group").agg(
        fn.count("*").alias("queues"),
        fn.sum(fn.col("end") - fn.col("first")).alias("produced"),
        fn.sum(inside - fn.col("first")).alias("consumed"),
        fn.sum(fn.col("end") - inside).alias("waiting"),
        fn.sum(fn.greatest(fn.col("log_first") - fn.col("committed"), fn.lit(0))).alias("expired"),
    )
    oldest = (
        facts.select(*PLACE, "queue_offset", "store_time")
        .join(fn.broadcast(at.select("group", *PLACE, inside.alias("next"))), list(PLACE))
        .where(fn.col("queue_offset") == fn.col("next"))
        .groupBy("topic", "group")
        .agg(fn.min("store_time").alias("oldest_waiting"))
    )
    return summed.join(oldest, ["topic", "group"], "left").select("*", _ratio("produced", "consumed"))


def sample_rows(time_ms: int, progress: Iterable[Progress], ranges: Ranges) -> list[dict[str, Any]]:
    """One moment of the groups, as it is kept between audits."""
    return [
        {
            "time_ms": time_ms,
            "group": item.group,
            "topic": item.queue.topic,
            "broker": item.queue.broker,
            "queue_id": item.queue.queue_id,
            "committed": item.committed,
            "end": ranges[item.queue][1],
        }
        for item in progress
        if item.queue in ranges
    ]


def rates(spark: SparkSession, samples: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Per topic and group, between each two samples: messages stored and taken, their ratio, messages per second."""
    names = [part.split()[0].strip("`") for part in _SAMPLE_SCHEMA.split(", ")]
    frame = spark.createDataFrame([tuple(row[name] for name in names) for row in samples], _SAMPLE_SCHEMA)
    line = Window.partitionBy("group", *PLACE).orderBy("time_ms")

    def before(name: str) -> Column:
        return fn.lag(name).over(line)

    steps = frame.select(
        "*",
        before("time_ms").alias("from_ms"),
        (fn.col("end") - before("end")).alias("stored"),
        (fn.col("committed") - before("committed")).alias("taken"),
    ).where(fn.col("from_ms").isNotNull())
    grouped = steps.groupBy("topic", "group", "from_ms", "time_ms").agg(
        fn.sum("stored").alias("produced"), fn.sum("taken").alias("consumed")
    )
    seconds = (fn.col("time_ms") - fn.col("from_ms")) / 1000
    return grouped.where("time_ms > from_ms").select(
        "topic",
        "group",
        fn.timestamp_millis("from_ms").alias("from_time"),
        fn.timestamp_millis("time_ms").alias("to_time"),
        "produced",
        "consumed",
        _ratio("produced", "consumed"),
        (fn.col("produced") / seconds).alias("produced_per_s"),
        (fn.col("consumed") / seconds).alias("consumed_per_s"),
    )


def _ratio(above: str, below: str) -> Column:
    """Null where nothing was consumed: no number says that."""
    return fn.when(fn.col(below) > 0, fn.col(above) / fn.col(below)).alias("ratio")
