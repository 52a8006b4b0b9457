"""The rows of a replay: which messages match, what they become, and in which order they are handed to the sink.

A replayed message is a new one: it gets an id and times of its own. Where it came from is in its properties:

    REPLAY_ID                            the replay
    REPLAY_TOPIC, REPLAY_BROKER,
    REPLAY_QUEUE, REPLAY_OFFSET          its place (a store directory has no broker)
    REPLAY_MESSAGE_ID                    its id
    REPLAY_BORN_MS, REPLAY_STORE_MS      its times

Its own properties are kept, without those that a broker sets or acts on: a delay, a retry, a transaction would
otherwise happen again.

Rule: each queue of the source is one task's, sorted by offset, and goes to one queue of the target: order is kept.
Builds DataFrames on the driver; nothing is collected here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from penstock.errors import OptionError
from penstock.message.failures import NOTES
from penstock.spark.pipelines.audit_sources import QueueKey, Ranges
from penstock.spark.pipelines.replay_plan import Wanted
from penstock.spark.reasons import reason_of
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ("topic", "broker", "queue_id")
REPLAY_ID = "REPLAY_ID"
REPLAY_PREFIX = "REPLAY_"
_COUNTED = (*PLACE, "queue_offset", "store_time", "size")
_SENT = (
    *PLACE,
    "queue_offset",
    "message_id",
    "keys",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
)
# Set by clients or brokers, or acted on by them.
NOT_REPLAYED = (
    # Why and when it failed before: its next failure begins a history of its own.
    *NOTES,
    "1ST_POP_TIME",
    "BUYER_ID",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "CONSUME_START_TIME",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "INNER_NUM",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MSG_REGION",
    "ORIGIN_MESSAGE_ID",
    "PENSTOCK_PRODUCER",
    "PENSTOCK_SEQUENCE",
    "PGROUP",
    "POP_CK",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_ON",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "UNIQ_KEY",
    "WAIT",
    "__CRC32#",
    "__transactionId__",
)


def columns_for(wanted: Wanted, *, counting: bool) -> tuple[str, ...]:
    """Columns that must be read: those that are needed, and those whose names stand in the predicate."""
    needed = set(_COUNTED if counting else _SENT)
    words = set(re.findall(r"\w+", wanted.where.lower()))
    needed |= {name for name in COLUMNS if name in words}
    needed |= {"keys"} if wanted.keys else set()
    needed |= {"tags"} if wanted.tags else set()
    return tuple(name for name in COLUMNS if name in needed)


def matching(messages: DataFrame, wanted: Wanted) -> DataFrame:
    """Only what was asked for. OptionError if the predicate is none."""
    if wanted.tags:
        messages = messages.where(fn.col("tags").isin(list(wanted.tags)))
    if wanted.keys:
        words = fn.split("keys", " ")
        messages = messages.where(fn.arrays_overlap(words, fn.array(*(fn.lit(key) for key in wanted.keys))))
    if not wanted.where:
        return messages
    try:
        # Spark finds out about names and types when the frame is made, not later.
        return messages.where(wanted.where)
    except PySparkException as error:
        raise OptionError(
            f"the predicate {wanted.where!r} cannot be used: {reason_of(error)}",
            f"write SQL over the columns {', '.join(COLUMNS)}",
        ) from error


def counted(messages: DataFrame, bits: int) -> DataFrame:
    """Matching rows, bytes and first time per cell of 2^bits offsets."""
    return messages.groupBy(*PLACE, fn.shiftright("queue_offset", bits).alias("cell")).agg(
        fn.count("*").alias("rows"),
        fn.sum("size").alias("bytes"),
        fn.coalesce(fn.min(fn.unix_millis("store_time")), fn.lit(0)).alias("first_ms"),
    )


def in_order(messages: DataFrame, tasks: int) -> DataFrame:
    """Each queue of the source in one of `tasks` partitions, by offset."""
    return messages.repartition(tasks, *PLACE).sortWithinPartitions(*PLACE, "queue_offset")


def sent(messages: DataFrame, replay_id: str, ranges: Ranges, queues: int, *, by_key: bool) -> DataFrame:
    """Rows for the sink: body, keys, tags, properties, and the queue unless the key chooses it."""
    queue = () if by_key else (_target_queue(sorted(ranges), queues).alias("queue"),)
    return messages.select("body", "keys", "tags", _properties(replay_id).alias("properties"), *queue)


def _target_queue(sources: Sequence[QueueKey], queues: int) -> Column:
    """The same number where there is one topic of one broker; else the queues take turns."""
    if len({(key.topic, key.broker) for key in sources}) == 1:
        return (fn.col("queue_id") % queues).cast("int")
    numbers = fn.create_map(
        *(part for number, key in enumerate(sources) for part in (fn.lit(str(key)), fn.lit(number % queues)))
    )
    name = fn.concat_ws("/", "topic", fn.col("broker"), fn.col("queue_id").cast("string"))
    return numbers.getItem(name).cast("int")


def _properties(replay_id: str) -> Column:
    own = fn.map_filter(
        fn.coalesce("properties", fn.create_map().cast("map<string,string>")),
        lambda name, value: ~name.isin(list(NOT_REPLAYED)) & ~name.startswith(REPLAY_PREFIX),
    )
    origin = {
        REPLAY_ID: fn.lit(replay_id),
        "REPLAY_TOPIC": fn.col("topic"),
        "REPLAY_BROKER": fn.col("broker"),
        "REPLAY_QUEUE": fn.col("queue_id").cast("string"),
        "REPLAY_OFFSET": fn.col("queue_offset").cast("string"),
        "REPLAY_MESSAGE_ID": fn.col("message_id"),
        "REPLAY_BORN_MS": fn.unix_millis("born_time").cast("string"),
        "REPLAY_STORE_MS": fn.unix_millis("store_time").cast("string"),
    }
    pairs = fn.create_map(*(part for name, value in origin.items() for part in (fn.lit(name), value)))
    # A property without a value is none.
    return fn.map_concat(own, fn.map_filter(pairs, lambda _, value: value.isNotNull() & (value != "")))
