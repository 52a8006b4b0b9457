"""When messages were stored, by queue offset, and whether they are likely still in memory.

Reads a few bytes of a record through the store's maps, without copying it. Any thread.
"""

from __future__ import annotations

import os

from penstock.broker.record_gate import own_message_at
from penstock.store.message_store import MessageStore

NO_TIME = -1
_ASSUMED_MEMORY = 4 << 30


def stored_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Store time of the message at a queue offset, -1 if there is none."""
    views = store.reader.slices(topic, queue_id, offset, 1)
    if not views:
        return NO_TIME
    with views[0] as record:
        if len(record) < 91:
            return NO_TIME
        at = 68 if record[39] & 0x10 else 56  # behind the born host, which an IPv6 address makes longer
        return int.from_bytes(record[at : at + 8], "big", signed=True)


def earliest_at(store: MessageStore, topic: str, queue_id: int) -> int:
    """Store time of the oldest message of a queue, -1 if it has none."""
    return stored_at(store, topic, queue_id, store.min_offset(topic, queue_id))


def newest_at(store: MessageStore, topic: str, queue_id: int) -> int:
    """Store time of the newest message of a queue, -1 if it has none."""
    return stored_at(store, topic, queue_id, store.max_offset(topic, queue_id) - 1)


def first_stored_ms(store: MessageStore) -> int:
    """Store time of the oldest record of the log, -1 if it has none."""
    first = (
        own_message_at(store, store.log.min_offset) if store.log.max_offset > store.log.min_offset else None
    )
    return NO_TIME if first is None else first.store_timestamp


def memory_window(percent: int) -> int:
    """Bytes at the end of the log that the machine's memory is taken to hold."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = _ASSUMED_MEMORY
    return memory * percent // 100


def is_in_memory(store: MessageStore, topic: str, queue_id: int, offset: int, window: int) -> bool:
    """Whether the message at a queue offset is there, and near enough to the end of the log."""
    found = store.reader.entries(topic, queue_id, offset, 1)
    return bool(found) and store.log.max_offset - found[0].position <= window
