"""Messages that a group gave up: from which topic, after how many tries, and why, as far as the log says.

    a property names the reason      that text (the audit is told which property; consumers may set one)
    more tries than the group has    tries used up
    fewer                            given up by the consumer, before its tries were used up (a negative delay level,
                                     or a consumer with a lower limit of its own)

Rules: the reason is read from the record, never guessed from the body. It is free text, and each message may have
another: only the most frequent rows are shown, the others are counted. Nothing is collected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_sources import DEAD_LETTER_PREFIX, TRIES_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = ("topic", "queue_offset", "message_id", "reconsume_times", "properties", "store_time")
USED_UP = "tries used up"
GIVEN_UP = "given up by the consumer"
_REASON_CHARS = 200
# Rows that are shown and told one by one.
SHOWN = 100


def dead_letters(
    spark: SparkSession, messages: DataFrame, tries_max: Mapping[str, int], reason_property: str = ""
) -> DataFrame:
    """Per group, origin topic, reason and number of tries: how many, since when, and one id to look at."""
    limits = spark.createDataFrame(
        sorted(tries_max.items()) or [("", TRIES_MAX)], "group string, tries_max int"
    )
    pairs = fn.col("properties")
    named = pairs.getItem(reason_property) if reason_property else fn.lit(None).cast("string")
    rows = (
        messages.where(fn.col("topic").startswith(DEAD_LETTER_PREFIX))
        .select(
            fn.substring("topic", len(DEAD_LETTER_PREFIX) + 1, 255).alias("group"),
            fn.coalesce(pairs.getItem("DLQ_ORIGIN_TOPIC"), pairs.getItem("RETRY_TOPIC"), fn.lit("")).alias(
                "origin_topic"
            ),
            fn.col("reconsume_times").alias("tries"),
            fn.substring(named, 1, _REASON_CHARS).alias("named"),
            "message_id",
            "store_time",
        )
        .join(fn.broadcast(limits), "group", "left")
    )
    limit = fn.coalesce(fn.col("tries_max"), fn.lit(TRIES_MAX))
    reason = fn.coalesce(
        fn.col("named"), fn.when(fn.col("tries") > limit, USED_UP).otherwise(fn.lit(GIVEN_UP))
    )
    return (
        rows.withColumn("reason", reason)
        .groupBy("group", "origin_topic", "reason", "tries")
        .agg(
            fn.count("*").alias("rows"),
            fn.min("store_time").alias("first_time"),
            fn.max("store_time").alias("last_time"),
            fn.max_by("message_id", "store_time").alias("last_id"),
        )
    )


def totals(letters: DataFrame) -> DataFrame:
    """Per group: how many messages, and in how many rows of the table they are."""
    return letters.groupBy("group").agg(fn.sum("rows").alias("rows"), fn.count("*").alias("kinds"))


def is_of(topics: Iterable[str]) -> Column:
    """Of one of these topics: it is the dead letter topic itself, or the one that the message came from."""
    names = list(topics)
    groups = [name.removeprefix(DEAD_LETTER_PREFIX) for name in names if name.startswith(DEAD_LETTER_PREFIX)]
    return fn.col("origin_topic").isin(names) | fn.col("group").isin(groups)
