"""How long messages took: from birth to the store, and to the consumer where a trace says so.

    stored            store time - born time; both clocks count, so a fast producer's clock makes it negative
    consumed by G     first delivery to group G - born time, from the records that clients with tracing switched on
                      send to RMQ_SYS_TRACE_TOPIC

A trace record is text: fields end with 0x01, records with 0x02. The one looked at here is

    SubBefore, time in ms, region, group, request id, message id, try, keys

Rule: percentiles are Spark's approximate ones with an error of at most 0.01 % of the rank. Nothing is collected here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_facts import window_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ACCURACY = 10_000
_PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
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


def latency(times: DataFrame, width_s: int) -> DataFrame:
    """One row per topic and stage, where `window` is null, and one per time window of storing: rows, percentiles, the
    largest, and how many were negative."""
    windowed = times.withColumn("window", window_start(width_s))
    grouped = windowed.groupingSets(
        [["topic", "stage"], ["topic", "stage", "window"]], "topic", "stage", "window"
    ).agg(
        fn.count("*").alias("rows"),
        fn.percentile_approx("ms", list(_PERCENTILES.values()), _ACCURACY).alias("p"),
        fn.max("ms").alias("max_ms"),
        fn.count_if(fn.col("ms") < 0).alias("negative"),
    )
    columns = [fn.col("p")[i].alias(name) for i, name in enumerate(_PERCENTILES)]
    return grouped.select("topic", "stage", "window", "rows", *columns, "max_ms", "negative")


def latency_histogram(times: DataFrame) -> DataFrame:
    """Messages by latency, in powers of two: [0, 1), [1, 2), [2, 4) ms and so on."""
    positive = fn.greatest(fn.col("ms"), fn.lit(0))
    power = fn.when(positive < 1, 0).otherwise(fn.floor(fn.log2(positive)) + 1).cast("int")
    return times.groupBy("topic", "stage", power.alias("power")).agg(fn.count("*").alias("rows"))
