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

from penstock.spark.pipelines.audit_facts import PLACE, numbered_words, place_text, words

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOT_KEYS = 20


def suspects(facts: DataFrame, *, bodies: bool) -> DataFrame:
    """Hashes of ids, and of keys with bodies, that occur more than once. Keep it, and stop if it is empty."""
    kinds = ("id", "key") if bodies else ("id",)
    hashes = facts.select(fn.explode(fn.array(*(_hash(kind) for kind in kinds))).alias("hash"))
    return hashes.where("hash is not null").groupBy("hash").count().where("count > 1").select("hash")


def duplicates(facts: DataFrame, suspected: DataFrame, *, bodies: bool) -> DataFrame:
    """One row per id or keys with several places: kind, topic, value, copies, first and last time and place."""
    by_id = _repeated(facts, suspected, "id")
    if not bodies:
        return by_id
    return by_id.unionByName(_repeated(facts, suspected, "key").where("ids > 1")).drop("ids")


# What has to be equal, besides the topic; the first is shown.
_NAMES = {"id": ("message_id",), "key": ("keys", "content")}


def _hash(kind: str) -> Column:
    """Of the values that have to be equal; null where there is no id or no key. The kind is part of it."""
    names = _NAMES[kind]
    return fn.when(fn.col(names[0]).isNotNull(), fn.xxhash64(fn.lit(kind), "topic", *names))


def _repeated(facts: DataFrame, suspected: DataFrame, kind: str) -> DataFrame:
    """Groups of facts with equal values at more than one place. The same place twice is a repeated offset, which is
    counted elsewhere."""
    names = _NAMES[kind]
    rows = facts.withColumn("hash", _hash(kind)).join(suspected, "hash", "left_semi")
    rows = rows.dropDuplicates([*PLACE, "queue_offset"])
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
    # Two numbers sort faster than names; where two keys have the same hash, they are told apart below.
    keyed = keyed.where(fn.col("value").isNotNull()).withColumn("slot", fn.xxhash64(*PLACE, "key"))
    line = Window.partitionBy("slot").orderBy("queue_offset")
    compared = keyed.select(
        "*",
        fn.lag("value").over(line).alias("previous_value"),
        fn.lag("queue_offset").over(line).alias("previous_offset"),
        fn.lag("key").over(line).alias("previous_key"),
    )
    late = (fn.col("value") < fn.col("previous_value")) & (fn.col("key") == fn.col("previous_key"))
    kind = fn.lit("sequence" if sequence else "born_time").alias("kind")
    return compared.where(late).select(
        kind, *PLACE, "queue_offset", "previous_offset", "key", "value", "previous_value"
    )


def keys_of(facts: DataFrame) -> DataFrame:
    """One row per topic and key: how often, how many bytes, and whether in several queues. A message with two keys
    is in two rows and has its first key in one of them: the sum of `firsts` is the number of messages."""
    queue = fn.xxhash64("broker", "queue_id")
    keyed = facts.where(fn.col("keys").isNotNull()).select(
        "topic", "size", queue.alias("queue"), numbered_words()
    )
    return keyed.groupBy("topic", "key").agg(
        fn.count("*").alias("rows"),
        fn.sum("size").alias("bytes"),
        (fn.min("queue") != fn.max("queue")).alias("in_several_queues"),
        fn.count_if(fn.col("number") == 0).alias("firsts"),
    )


def key_totals(keys: DataFrame) -> DataFrame:
    """One row per topic: keys, those in several queues, messages of the most frequent one, messages with keys."""
    return keys.groupBy("topic").agg(
        fn.count("*").alias("keys"),
        fn.count_if("in_several_queues").alias("in_several_queues"),
        fn.max("rows").alias("most_rows"),
        fn.sum("firsts").alias("rows"),
    )


def hot_keys(keys: DataFrame, most: int = HOT_KEYS) -> DataFrame:
    """The most frequent keys of each topic that occur more than once, with their share of its keyed messages."""
    rank = Window.partitionBy("topic").orderBy(fn.desc("rows"), "key")
    totals = keys.groupBy("topic").agg(fn.sum("firsts").alias("all_rows"))
    top = keys.where("rows > 1").withColumn("rank", fn.row_number().over(rank)).where(fn.col("rank") <= most)
    share = (fn.col("rows") / fn.col("all_rows")).alias("share")
    return top.join(totals, "topic").select(
        "topic", "rank", "key", "rows", "bytes", "in_several_queues", share
    )
