"""What a scan hands out: queues, their ranges, and the answers of pulls. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock.errors import OptionError
from penstock.protocol.bodies.queues import MessageQueue

QUEUE_ID_MAX = (1 << 31) - 1


@dataclass(frozen=True, order=True, slots=True)
class QueueId:
    """One queue of a topic on one broker. The address is where it was last known to be, and no part of its name."""

    topic: str
    broker: str
    queue_id: int
    address: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """`topic/broker/queue`: how the queue is named in positions, checkpoints and reports."""
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    @classmethod
    def of_key(cls, key: str, address: str = "") -> QueueId:
        """The queue of a key; names have no slashes."""
        topic, broker, number = key.split("/") if key.count("/") == 2 else ("", "", "")
        if (
            not topic
            or not (number.isascii() and number.isdigit())
            or len(number) > 10
            or int(number) > QUEUE_ID_MAX
        ):
            raise OptionError(
                f"{key[:80]!r} names no queue", "write it as topic/broker/queue, as in orders/broker-a/0"
            )
        return cls(topic, broker, int(number), address)

    @property
    def queue(self) -> MessageQueue:
        """The same in the words of RocketMQ."""
        return MessageQueue(self.topic, self.broker, self.queue_id)

    def __str__(self) -> str:
        return self.key


class OffsetRange(NamedTuple):
    """The oldest offset that is still there, and the one that the next message gets."""

    min: int
    max: int


class PullStatus(StrEnum):
    """How a pull ended."""

    FOUND = "found"  # records are in the answer
    SKIPPED = "skipped"  # nothing matched, or what was there is being deleted; go on at next_offset
    NOTHING = "nothing"  # the queue ends here for now
    MOVED = "moved"  # the offset is outside the queue; next_offset is inside


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer: whole records, one after the other, as they are stored; or columns of them (`column_answers`)."""

    queue: QueueId
    offset: int
    status: PullStatus
    next_offset: int
    min: int
    max: int
    data: bytes | bytearray | memoryview = b""
    # What the broker called it.
    remark: str = ""
    # Of what the answer is made, where columns were asked for and this broker has them; empty for records.
    columns: tuple[str, ...] = ()
    # Bytes of its records in the log: what limits of size count.
    stored_bytes: int = 0
