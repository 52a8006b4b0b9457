"""The rows that all checks of an audit work on.

A fact is a message without its body: where it is, when it was born and stored, its id and keys, its size, a hash of
its body, and the number that the sender put into a property, if the audit was told of one. Facts are read once and
kept by Spark (in memory, on disk where that is full), because every check goes over them.

Rule: a check takes facts and gives DataFrames; only what a person can read is brought to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from penstock.spark.pipelines.audit_sources import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ("topic", "broker", "queue_id")
_PLAIN_COLUMNS = (*PLACE, "queue_offset", "message_id", "keys", "born_time", "store_time", "size")


def fact_columns(*, bodies: bool, sequence: str = "") -> tuple[str, ...]:
    """The message columns that facts are made of."""
    more = [name for name, wanted in (("body", bodies), ("properties", bool(sequence))) if wanted]
    return (*_PLAIN_COLUMNS, *more)


def facts_of(messages: DataFrame, *, bodies: bool, sequence: str = "") -> DataFrame:
    """Facts out of messages with `fact_columns`."""
    content = fn.xxhash64("body") if bodies else fn.lit(None).cast("bigint")
    if sequence:
        # Letters in a sequence make it null: a number that cannot be read says nothing about order.
        number = fn.col("properties").getItem(sequence).try_cast("bigint")
    else:
        number = fn.lit(None).cast("bigint")
    return messages.select(
        *_PLAIN_COLUMNS,
        content.alias("content"),
        number.alias("sequence"),
        kind_of(fn.col("topic")).alias("kind"),
    )


def kind_of(topic: Column) -> Column:
    """`plain`, `retry` or `dead`: a message that is tried again keeps its id, which makes it no duplicate."""
    return (
        fn.when(topic.startswith(DEAD_LETTER_PREFIX), "dead")
        .when(topic.startswith(RETRY_PREFIX), "retry")
        .otherwise("plain")
    )


def plain(facts: DataFrame) -> DataFrame:
    """Only what people sent to a topic."""
    return facts.where(fn.col("kind") == "plain")


def window_start(seconds: int) -> Column:
    """Start of the time window in which a message was stored."""
    return fn.timestamp_seconds(fn.floor(fn.unix_seconds("store_time") / seconds) * seconds)


def words(keys: str = "keys") -> Column:
    """One row per key: several stand in one text with spaces between them."""
    return fn.explode(_words(keys)).alias("key")


def numbered_words(keys: str = "keys") -> Column:
    """The same with `number`, which is 0 for the first key of a message."""
    return fn.posexplode(_words(keys)).alias("number", "key")


def _words(keys: str) -> Column:
    return fn.array_distinct(fn.filter(fn.split(keys, " "), lambda word: word != ""))


def place_text(columns: Sequence[str] = ("broker", "queue_id", "queue_offset")) -> Column:
    """`broker/queue@offset`."""
    broker, queue, offset = columns
    return fn.concat(fn.col(broker), fn.lit("/"), fn.col(queue), fn.lit("@"), fn.col(offset))
