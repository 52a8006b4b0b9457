"""Names of topics that mean something to a broker, and who may write to and read them.

Rule: one table for every path. The broker asks it before a client's message is written (`Topics.is_sendable`), access
control before an entry with `*` allows anything on one of these topics (`may_be_granted_by_star`). Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
REPLY_SUFFIX = "_REPLY_TOPIC"
MODEL_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
WHEEL_TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = f"{SYSTEM_PREFIX}REVIVE_LOG_"
# Ours. Staged messages cannot be read (`staging.py`); what was published, by whom and when, can be.
STAGED_TOPIC = "PENSTOCK_STAGED"
PUBLISHED_TOPIC = "PENSTOCK_PUBLISHED"
# Notes that a client writes for the next one (`client/redrive_marks.py`): ordinary messages to the broker.
REDRIVEN_TOPIC = "PENSTOCK_REDRIVEN"


class Writer(Enum):
    """Who writes to a reserved topic."""

    BROKER = "the broker alone"
    CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved topic, or with `is_prefix` all topics whose names begin so."""

    name: str
    writer: Writer
    holds: str
    is_prefix: bool = False

    def covers(self, topic: str) -> bool:
        return topic.startswith(self.name) if self.is_prefix else topic == self.name


# Who may write to which reserved topic, by whatever request; the first row that covers a name counts. A topic that no
# row covers is an ordinary one. What clients may write is what RocketMQ's own clients and tools write.
RESERVED_TOPICS = (
    Reserved(SCHEDULE_TOPIC, Writer.BROKER, "delayed messages"),
    Reserved(HALF_TOPIC, Writer.BROKER, "half messages of open transactions"),
    Reserved(HALF_DONE_TOPIC, Writer.BROKER, "which half messages are done with"),
    Reserved(CHECK_MAX_TOPIC, Writer.BROKER, "half messages that were checked too often"),
    Reserved(WHEEL_TIMER_TOPIC, Writer.BROKER, "messages with a time of their own, and recalls"),
    Reserved(REVIVE_PREFIX, Writer.BROKER, "check points of popped messages", is_prefix=True),
    Reserved(STAGED_TOPIC, Writer.BROKER, "staged messages"),
    Reserved(PUBLISHED_TOPIC, Writer.BROKER, "what was published"),
    Reserved(MODEL_TOPIC, Writer.BROKER, "nothing: the model for topics that a send creates"),
    Reserved(SELF_TEST_TOPIC, Writer.BROKER, "nothing"),
    Reserved(OFFSET_MOVED_TOPIC, Writer.BROKER, "nothing"),
    Reserved(DEAD_LETTER_PREFIX, Writer.BROKER, "what a group gave up", is_prefix=True),
    Reserved(TRACE_TOPIC, Writer.CLIENTS, "message trace"),
    Reserved(TRACE_PREFIX, Writer.CLIENTS, "message trace", is_prefix=True),
    Reserved(BENCHMARK_TOPIC, Writer.CLIENTS, "messages of RocketMQ's benchmark"),
    Reserved(REDRIVEN_TOPIC, Writer.CLIENTS, "which dead letters were sent again: who redrives"),
    Reserved(RETRY_PREFIX, Writer.CLIENTS, "what a group gave back: clients of the group", is_prefix=True),
    Reserved("RMQ_SYS_", Writer.BROKER, "whatever RocketMQ may keep", is_prefix=True),
    Reserved(SYSTEM_PREFIX, Writer.BROKER, "whatever RocketMQ may keep", is_prefix=True),
)


@lru_cache(maxsize=4_096)
def reserved(topic: str) -> Reserved | None:
    """The row that a topic's name falls under; None for an ordinary topic."""
    return next((row for row in RESERVED_TOPICS if row.covers(topic)), None)


def may_be_granted_by_star(topic: str, *, is_reading: bool) -> bool:
    """Whether a policy entry with `*` can allow reading from a topic, or anything else with it.

    Topics that the broker writes hold data of other topics, and so does the topic of replies, to which every client
    that replies sends: who reads them reads past what is denied. That takes an entry with the topic's whole name.
    """
    if topic.endswith(REPLY_SUFFIX):
        return not is_reading
    row = reserved(topic)
    return row is None or row.writer is Writer.CLIENTS or row.name == MODEL_TOPIC
