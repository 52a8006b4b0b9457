"""The state of one queue that the writer and the dispatcher share.

A queue has two ends. `next_offset` is the writer's: the offset the next record of this queue gets. The tail
is the dispatcher's: entries of visible records that are not in the queue's file yet, 20 bytes each, the first
of which has the offset `tail_first`. Under synchronous flush the writer runs ahead of the dispatcher.

Owned by whoever holds the store's append lock.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import java_hash, put_i32, put_i64
    from penstock._hot.layout import ENTRY_SIZE, POSITION_MAX

# Entries of memory that a busy queue keeps for the next ones, or else it would ask for it again each time; busy is
# one that gathered so many. There may be 100,000 queues that are not.
TAIL_KEPT = 4096
TAIL_BUSY = 512
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


@cython.cclass
class QueueState:
    """One topic queue: identity, both ends, and the entries on their way to the file."""

    def __init__(self, topic: bytes, queue_id: int, next_offset: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.tail_first = next_offset
        self.tail_count = 0
        self.max_phy = -1
        self.tail = bytearray(ENTRY_SIZE)
        prefix: bytes = topic + b"#"
        p: cython.p_uchar = prefix
        self.key_seed = java_hash(p, 0, len(prefix), 0)
        self.scheduled = topic == SCHEDULE_TOPIC
        self.round = 0
        # Whoever keeps the queue's files; the hot modules only carry it.
        self.owner: Any = None

    @property
    def end_offset(self) -> int:
        """One past the newest visible offset."""
        return self.tail_first + self.tail_count

    def add_entry(self, phy: int, size: int, tags_code: int) -> None:
        """Append an entry from outside the dispatcher: a filler over a gap."""
        self.add(phy, size, tags_code)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def add(self, phy: cython.longlong, size: cython.int, tags_code: cython.longlong) -> cython.longlong:
        at: cython.Py_ssize_t = self.tail_count * ENTRY_SIZE
        if at + ENTRY_SIZE > len(self.tail):
            self.tail.extend(bytes(len(self.tail)))
        p: cython.p_uchar = self.tail
        put_i64(p, at, phy)
        put_i32(p, at + 8, size)
        put_i64(p, at + 12, tags_code)
        self.tail_count += 1
        # An entry that a damaged file or record made up may lie at the end of all positions.
        self.max_phy = phy + size if phy <= POSITION_MAX else POSITION_MAX
        return 0

    def tail_bytes(self, first: int, last: int) -> bytes:
        """Copy of the entries with offsets [first, last), all of them in the tail."""
        return bytes(
            self.tail[(first - self.tail_first) * ENTRY_SIZE : (last - self.tail_first) * ENTRY_SIZE]
        )

    def drop_tail(self, count: int) -> None:
        """Forget the oldest `count` entries: they are in the file now."""
        if count < 0 or count > self.tail_count:
            raise IndexError("more entries than there are")
        left: cython.Py_ssize_t = self.tail_count - count
        if left:
            self.tail[: left * ENTRY_SIZE] = self.tail[count * ENTRY_SIZE : self.tail_count * ENTRY_SIZE]
        self.tail_first += count
        self.tail_count = left
        if left == 0 and (count < TAIL_BUSY or len(self.tail) > TAIL_KEPT * ENTRY_SIZE):
            self.tail = bytearray(ENTRY_SIZE)

    def keep_tail(self, count: int) -> None:
        """Forget all but the oldest `count` entries of the tail."""
        if count < 0 or count > self.tail_count:
            raise IndexError("more entries than there are")
        self.tail_count = count

    def restart(self, end_offset: int, max_phy: int) -> None:
        """Set the visible end, with an empty tail: after loading, truncating or skipping."""
        self.tail_first = end_offset
        self.tail_count = 0
        self.max_phy = max_phy
