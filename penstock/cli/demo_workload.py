"""What the demonstration writes: a message for every number, so that both sides know it without talking."""

from __future__ import annotations

from penstock.message import Message
from penstock.store import FlushMode, StoreOptions

TOPICS = ("orders", "payments", "shipments")
TAGS = ("created", "changed", "done")
QUEUES_PER_TOPIC = 4
GROUP = 64
BODY_SIZE = 1024

# Small files, so that a few seconds of writing fill several of each kind.
OPTIONS = StoreOptions(
    segment_size_bytes=8 << 20,
    queue_file_entries=1_000,
    index_slots=50_000,
    index_entries=200_000,
    flush_mode=FlushMode.SYNC,
)


def topic_of(number: int) -> str:
    return TOPICS[number % len(TOPICS)]


def queue_of(number: int) -> int:
    return number // len(TOPICS) % QUEUES_PER_TOPIC


def key_of(number: int) -> str:
    return f"key-{number:08d}"


def message_of(number: int) -> Message:
    """A body of 1 KiB that names its number at both ends."""
    label = f"message {number:08d} "
    body = (label * (BODY_SIZE // len(label) + 1))[:BODY_SIZE]
    return Message.of(topic_of(number), body.encode(), tag=TAGS[number % len(TAGS)], keys=key_of(number))
