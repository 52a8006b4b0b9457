"""What ids and keys tell: duplicates, messages of one key that overtook each other, hot keys.

    duplicate by id      two places of a topic hold the same message id: it was stored twice
    duplicate by key     the same keys and the same body under different ids: it was sent twice
    out of order         in one queue a message of a key has a lower sequence number, or was born earlier, than the
                         one of that key in front of it

Rules: ids and keys are first compared by 64-bit hash, so that only those that occur twice travel as text; what a
hash brought together by accident is told apart again. Retry and dead-letter topics are left out: their messages
keep their ids on purpose. Nothing is collected here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_facts import PLACE, place_text, words

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOT_KEYS = 20


def suspects(facts: DataFrame, *, bodies: bool) -> DataFrame:
    """kind and hash of ids, and of keys with bodies, that occur more than once. Keep it, and stop if it is empty."""
    by_id = fn.when(
        fn.col("message_id").isNotNull(),
        fn.struct(fn.lit("id").alias("kind"), _hash("id").alias("hash")),
    )
    by_key = fn.when(
        fn.col("keys").isNotNull(), fn.struct(fn.lit("key").alias("kind"), _hash("key").alias("hash"))
    )
    hashes = facts.select(fn.inline(fn.array_compact(fn.array(by_id, by_key) if bodies else fn.array(by_id))))
    return hashes.groupBy("kind", "hash").count().where("count > 1").select("kind", "hash")


def duplicates(facts: DataFrame, suspected: DataFrame, *, bodies: bool) -> DataFrame:
    """One row per id or keys with several places: kind, topic, value, copies, first and last time and place."""
    by_id = _repeated(facts, suspected, "id")
    if not bodies:
        return by_id
    return by_id.unionByName(_repeated(facts, suspected, "key").where("ids > 1")).drop("ids")


# What has to be equal, besides the topic; the first is shown.
_NAMES = {"id": ("message_id",), "key": ("keys", "content")}


def _hash(kind: str) -> Column:
    return fn.xxhash64("topic", *_NAMES[kind])


def _repeated(facts: DataFrame, suspected: DataFrame, kind: str) -> DataFrame:
    """Groups of facts with equal values at more than one place. The same place twice is a repeated offset, which is
    counted elsewhere."""
    names = _NAMES[kind]
    hashes = suspected.where(fn.col("kind") == kind).select("hash")
    rows = facts.where(fn.col(names[0]).isNotNull()).withColumn("hash", _hash(kind))
    rows = rows.join(hashes, "hash", "left_semi").dropDuplicates([*PLACE, "queue_offset"])
    place = fn.struct("store_time", *PLACE[1:], "queue_offset")
    grouped = rows.groupBy("topic", *names).agg(
        fn.count("*").alias("copies"),
        fn.count_distinct("message_id").alias("ids"),
        fn.min("store_time").alias("first_time"),
        fn.max("store_time").alias("last_time"),
        fn.min(place).alias("first"),
        fn.max(place).alias("last"),
    )
    return grouped.where("copies > 1").select(
        fn.lit(kind).alias("kind"),
        "topic",
        fn.col(names[0]).alias("value"),
        "copies",
        "ids",
        "first_time",
        "last_time",
        _place("first").alias("first_place"),
        _place("last").alias("last_place"),
    )


def _place(name: str) -> Column:
    return place_text((f"{name}.broker", f"{name}.queue_id", f"{name}.queue_offset"))


def disorder(facts: DataFrame, *, sequence: bool) -> DataFrame:
    """Messages that came after a later one of their key, in their queue: kind, place, key, both values."""
    value = fn.col("sequence") if sequence else fn.unix_millis("born_time")
    keyed = facts.where(fn.col("keys").isNotNull()).select(
        *PLACE, "queue_offset", words(), value.alias("value")
    )
    # The same row twice (a repeated offset) is no disorder.
    keyed = keyed.where(fn.col("value").isNotNull())
    line = Window.partitionBy(*PLACE, "key").orderBy("queue_offset")
    compared = keyed.select(
        "*",
        fn.lag("value").over(line).alias("previous_value"),
        fn.lag("queue_offset").over(line).alias("previous_offset"),
    )
    return compared.where(fn.col("value") < fn.col("previous_value")).select(
        fn.lit("sequence" if sequence else "born_time").alias("kind"), *compared.columns
    )


def keys_of(facts: DataFrame) -> DataFrame:
    """One row per topic and key: how often, how many bytes, in how many queues."""
    keyed = facts.where(fn.col("keys").isNotNull()).select(*PLACE, "size", words())
    return keyed.groupBy("topic", "key").agg(
        fn.count("*").alias("rows"),
        fn.sum("size").alias("bytes"),
        fn.size(fn.collect_set(fn.struct("broker", "queue_id"))).alias("queues"),
    )


def key_totals(keys: DataFrame) -> DataFrame:
    """One row per topic: keys, those in several queues, and how much the most frequent ones take."""
    return keys.groupBy("topic").agg(
        fn.count("*").alias("keys"),
        fn.count_if(fn.col("queues") > 1).alias("in_several_queues"),
        fn.max("rows").alias("most_rows"),
        fn.sum("rows").alias("rows"),
    )


def hot_keys(keys: DataFrame, most: int = HOT_KEYS) -> DataFrame:
    """The most frequent keys of each topic that occur more than once, with their share of its keyed messages."""
    rank = Window.partitionBy("topic").orderBy(fn.desc("rows"), "key")
    totals = keys.groupBy("topic").agg(fn.sum("rows").alias("all_rows"))
    top = keys.where("rows > 1").withColumn("rank", fn.row_number().over(rank)).where(fn.col("rank") <= most)
    share = (fn.col("rows") / fn.col("all_rows")).alias("share")
    return top.join(totals, "topic").select("topic", "rank", "key", "rows", "bytes", "queues", share)
