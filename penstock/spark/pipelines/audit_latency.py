"""How long messages took: from birth to the store, and to the consumer where a trace says so.

    stored            store time - born time; both clocks count, so a fast producer's clock makes it negative
    consumed by G     first delivery to group G - born time, from the records that clients with tracing switched on
                      send to RMQ_SYS_TRACE_TOPIC

A trace record is text: fields end with 0x01, records with 0x02. The one looked at here is

    SubBefore, time in ms, region, group, request id, message id, try, keys

Percentiles come out of counts: latencies are counted by value, exactly below 256 ms and in steps of less than 1 %
above, per topic, stage and window, which one pass does; everything else is made of these counts.

Rule: a percentile is a latency that a message had, the largest of its step. Nothing is collected here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_facts import window_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
# Steps are exact for numbers of so many bits, and keep so many leading bits of larger ones.
_STEP_BITS = 8
STORED = "stored"


def stored_times(facts: DataFrame) -> DataFrame:
    """topic, stage, store_time, ms: one row per message."""
    taken = fn.unix_millis("store_time") - fn.unix_millis("born_time")
    rows = facts.select("topic", fn.lit(STORED).alias("stage"), "store_time", taken.alias("ms"))
    return rows.where(fn.col("ms").isNotNull())


def consumed_times(facts: DataFrame, traces: DataFrame) -> DataFrame:
    """The same for each group that told when it got a message. `traces` are the bodies of the trace topic."""
    deliveries = trace_records(traces).groupBy("group", "message_id").agg(fn.min("time_ms").alias("time_ms"))
    born = facts.select("topic", "message_id", "store_time", "born_time")
    return born.join(deliveries, "message_id").select(
        "topic",
        fn.concat(fn.lit("consumed by "), fn.col("group")).alias("stage"),
        "store_time",
        (fn.col("time_ms") - fn.unix_millis("born_time")).alias("ms"),
    )


def trace_records(traces: DataFrame) -> DataFrame:
    """group, message_id, time_ms: one row per delivery in the bodies of trace messages."""
    text = fn.col("body").cast("string")
    record = traces.select(fn.explode(fn.split(text, "\x02")).alias("record"))
    fields = record.select(fn.split("record", "\x01").alias("f")).where("f[0] = 'SubBefore' and size(f) >= 6")
    return fields.select(
        fn.col("f")[3].alias("group"),
        fn.col("f")[5].alias("message_id"),
        fn.col("f")[1].try_cast("bigint").alias("time_ms"),
    )


def counts_of(times: DataFrame, width_s: int) -> DataFrame:
    """Messages by latency, per topic, stage and time window of storing. Keep it: the tables are made of it."""
    return times.groupBy("topic", "stage", window_start(width_s).alias("window"), _step().alias("step")).agg(
        fn.count("*").alias("rows"), fn.max("ms").alias("top")
    )


def _step() -> Column:
    """The number without its lower bits; negative ones are one step of their own."""
    # In SQL: the Python function takes no column for the number of bits.
    lower = f"greatest(length(bin(ms)) - {_STEP_BITS}, 0)"
    return fn.expr(f"if(ms < 0, -1L, shiftleft(shiftright(ms, {lower}), {lower}))")


def latency(counts: DataFrame) -> DataFrame:
    """One row per topic and stage: rows, percentiles, the largest, and how many were negative."""
    steps = counts.groupBy("topic", "stage", "step").agg(
        fn.sum("rows").alias("rows"), fn.max("top").alias("top")
    )
    return _percentiles(steps, ("topic", "stage"))


def latency_windows(counts: DataFrame) -> DataFrame:
    """The same per time window of storing."""
    return _percentiles(counts, ("topic", "stage", "window"))


def _percentiles(steps: DataFrame, names: tuple[str, ...]) -> DataFrame:
    every = Window.partitionBy(*names)
    up_to = every.orderBy("step").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = steps.select(
        "*", fn.sum("rows").over(up_to).alias("below"), fn.sum("rows").over(every).alias("total")
    )
    reached = {
        name: fn.min(fn.when(fn.col("below") >= fn.ceil(fn.col("total") * part), fn.col("top")))
        for name, part in _PERCENTILES.items()
    }
    return ranked.groupBy(*names).agg(
        fn.sum("rows").alias("rows"),
        *(column.alias(name) for name, column in reached.items()),
        fn.max("top").alias("max_ms"),
        fn.sum(fn.when(fn.col("step") < 0, fn.col("rows")).otherwise(0)).alias("negative"),
    )


def latency_histogram(counts: DataFrame) -> DataFrame:
    """Messages by latency, in powers of two: [0, 1), [1, 2), [2, 4) ms and so on."""
    power = fn.when(fn.col("step") < 1, 0).otherwise(fn.length(fn.bin("step")))
    return counts.groupBy("topic", "stage", power.alias("power")).agg(fn.sum("rows").alias("rows"))
