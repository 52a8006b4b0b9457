"""Transactions that nobody has ended yet: which half messages these are, and how far the two queues are done with.

    half queue   ... | done | open | done | open copy | ->        progress = the first open one
    marks        ... | of offsets before it | of others | ->      progress = the first that names an offset behind it

Rules. The table follows the two queues: whatever becomes visible in them is in it (`catch_up`), and what this broker
stores itself at once. So a broker that starts, or becomes master, knows what the last one knew: it reads both queues
from the progress of the group CID_RMQ_SYS_TRANS, which is the only thing kept besides the log. A transaction is over
when a mark names its newest copy or its first. What is not open is over; nothing else needs to be remembered. The
number is limited (A14): a half message over it is refused. Owned by the event loop, except that `recover` may run in
a thread before anything else uses the table.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from penstock.broker.flow_control import BusyError
from penstock.broker.half_messages import HALF_QUEUE, Half, marked, read_half
from penstock.broker.offsets import TRANSACTION_GROUP, ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.record_gate import (
    StoredRecord,
    is_from_client,
    own_message_at,
    record_at,
    record_of,
    record_of_entry,
)
from penstock.protocol.topic_names import HALF_DONE_TOPIC, HALF_TOPIC
from penstock.store import MessageStore
from penstock.store.consume_queue import Entry

_LOG = logging.getLogger("penstock.broker")
_ENTRIES = 512
# When to ask again for something that is not visible yet.
UNSEEN_RETRY_MS = 200


class OpenTransactions:
    """See the module's text. `recover` first, and again whenever this broker becomes master."""

    def __init__(self, options: BrokerOptions, store: MessageStore, offsets: ConsumerOffsets) -> None:
        self.options = options
        self._store = store
        self._offsets = offsets
        # Newest copy of each open transaction -> its first; in the order of the queue.
        self._open: dict[int, int] = {}
        # Log positions of the same copies.
        self._positions: dict[int, int] = {}
        # First -> newest copy, for those that were put back.
        self._moved: dict[int, int] = {}
        # How far each queue is in the table.
        self.seen = 0
        self._marks_seen = 0
        # Marks that may still be needed: their offset, and the highest that they name.
        self._marks: deque[tuple[int, int]] = deque()
        # Half messages below this were not stored by this broker as it runs.
        self.inherited = 0

    def __len__(self) -> int:
        return len(self._open)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    # -- following the queues --------------------------------------------------------------------------------

    def recover(self) -> None:
        """Begin with what the log and the group's progress say."""
        self._open.clear()
        self._positions.clear()
        self._moved.clear()
        self._marks.clear()
        self.seen = self._begin(HALF_TOPIC)
        self._marks_seen = self._begin(HALF_DONE_TOPIC)
        self.catch_up()
        if self._open:
            _LOG.info("%d transactions are open", len(self._open))

    def _begin(self, topic: str) -> int:
        low, high = self._store.min_offset(topic, HALF_QUEUE), self._store.max_offset(topic, HALF_QUEUE)
        known = self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
        if known > high:
            _LOG.warning("transactions had come to %d of %s, which ends at %d", known, topic, high)
        return min(max(known, low), max(high, low))

    def catch_up(self) -> None:
        """Take in what has become visible and was not stored through this table."""
        # Marks that are there already name only half messages that are there, too: their end is asked for first.
        marks_end = self._store.max_offset(HALF_DONE_TOPIC, HALF_QUEUE)
        self._follow_halves(self._store.max_offset(HALF_TOPIC, HALF_QUEUE))
        self._follow_marks(marks_end)

    def _follow_halves(self, end: int) -> None:
        # Newest copies that Java brokers may have put back, by what stays the same, and by how often they were asked.
        foreign: dict[tuple[str, str, int, int], int] = {}
        while self.seen < end:
            self.inherited = end
            entries = self._entries(HALF_TOPIC, self.seen, end)
            if not entries:
                self.seen = max(self.seen + 1, self._store.min_offset(HALF_TOPIC, HALF_QUEUE))
            for entry in entries:
                half = self._half(entry)
                if half is None:
                    _LOG.warning("half message %d at log position %d is none", self.seen, entry.position)
                    self.seen += 1
                else:
                    self._follow(half, foreign)

    def _follow(self, half: Half, foreign: dict[tuple[str, str, int, int], int]) -> None:
        """A Java broker that died before it saved its progress leaves several copies of one transaction."""
        same = (half.unique, half.group, half.message.born_timestamp)
        origin = half.origin
        if half.is_foreign_copy:
            copied = foreign.pop((*same, half.checks - 1), None)
            origin = origin if copied is None else self._open.get(copied, origin)
        foreign[*same, half.checks] = self.seen
        self.opened(self.seen, half.message.physical_offset, origin)

    def _follow_marks(self, end: int) -> None:
        while self._marks_seen < end:
            entries = self._entries(HALF_DONE_TOPIC, self._marks_seen, end)
            if not entries:
                low = self._store.min_offset(HALF_DONE_TOPIC, HALF_QUEUE)
                self._marks_seen = max(self._marks_seen + 1, low)
            for entry in entries:
                record = record_of_entry(self._store, entry, HALF_DONE_TOPIC, HALF_QUEUE)
                if record is not None and is_from_client(record.message):
                    _LOG.error(
                        "mark %d of ended transactions was sent by a client; ignored", self._marks_seen
                    )
                    record = None
                named, is_put_back = ([], False) if record is None else marked(record.message)
                if not is_put_back:
                    self._end_all(named)
                self.marked(self._marks_seen, named)

    def _entries(self, topic: str, offset: int, end: int) -> list[Entry]:
        return self._store.reader.entries(topic, HALF_QUEUE, offset, min(_ENTRIES, end - offset))

    def _half(self, entry: Entry) -> Half | None:
        record = record_of_entry(self._store, entry, HALF_TOPIC, HALF_QUEUE)
        return None if record is None else read_half(record)

    # -- changes ---------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Refuse one more if there are too many."""
        most = self.options.transactions_open_max
        if len(self._open) >= most:
            raise BusyError(
                f"{len(self._open)} transactions are open, the limit is {most}",
                self.options.transaction_check_interval_ms,
            )

    def opened(self, offset: int, position: int, origin: int | None = None) -> None:
        """A half message is stored here. One that is not the next is left to `catch_up`."""
        if offset != self.seen:
            return
        self.seen += 1
        origin = offset if origin is None else origin
        if origin != offset:
            before = self._moved.get(origin, origin)
            self._open.pop(before, None)
            self._positions.pop(before, None)
            self._moved[origin] = offset
        self._open[offset] = origin
        self._positions[offset] = position

    def marked(self, mark_offset: int, named: Iterable[int]) -> None:
        """A mark is stored, which names these; one that is not the next is left to `catch_up`."""
        if mark_offset == self._marks_seen:
            self._marks_seen += 1
            self._marks.append((mark_offset, max(named, default=-1)))

    def _end_all(self, named: Iterable[int]) -> None:
        for offset in named:
            self.end(offset if offset in self._open else self._moved.get(offset, offset))

    def end(self, offset: int) -> int | None:
        """The transaction of this newest copy is over; where it began, if it was open."""
        origin = self._open.pop(offset, None)
        self._positions.pop(offset, None)
        if origin is not None:
            self._moved.pop(origin, None)
        return origin

    # -- questions -------------------------------------------------------------------------------------------

    def newest(self, half: Half) -> int | None:
        """The newest copy of the transaction that a half message belongs to; None if it is over."""
        if half.offset >= self.seen or self._marks_seen < self._store.max_offset(HALF_DONE_TOPIC, HALF_QUEUE):
            self.catch_up()
        found = half.offset if half.offset in self._open else self._moved.get(half.origin, half.origin)
        return found if found in self._open else None

    def is_open(self, offset: int) -> bool:
        """Whether this is the newest copy of an open transaction."""
        return offset in self._open

    def position(self, offset: int) -> int | None:
        """Log position of the newest copy of an open transaction; None if this offset is not one."""
        return self._positions.get(offset)

    def record_at(self, position: int, offset: int) -> StoredRecord | None:
        """The half message that a client names by log position and half-queue offset; None unless one begins exactly
        there.

        The position proves nothing. The queue entry proves a half message that is visible; this table proves one that
        is not yet, because a publication is under way or the set has not confirmed it. Raises BusyError for one that
        is not visible and not in the table: the client has to ask again.
        """
        record = record_at(self._store, position)
        if record is not None or not self._store.dispatch.offset <= position < self._store.log.max_offset:
            return record
        known = self._positions.get(offset)
        if known is None:
            raise BusyError("the half message is not visible yet", UNSEEN_RETRY_MS)
        message = own_message_at(self._store, known) if known == position else None
        return None if message is None else record_of(self._store, message)

    def offsets(self) -> list[int]:
        """The newest copies of all of them, the oldest first."""
        return list(self._open)

    def load(self, offset: int) -> Half | None:
        """A half message of the queue; None if it cannot be read, which ends it: nobody could commit it."""
        entries = self._store.reader.entries(HALF_TOPIC, HALF_QUEUE, offset, 1)
        half = self._half(entries[0]) if entries else None
        if half is not None and offset in self._open:
            return replace(half, origin=self._open[offset])
        if half is None and offset < self._store.max_offset(HALF_TOPIC, HALF_QUEUE):
            _LOG.error("half message %d cannot be read, or is gone; its transaction ends", offset)
            self.end(offset)
        return half

    def progress(self) -> tuple[int, int]:
        """How far the half queue and the queue of marks are done with."""
        half = next(iter(self._open), self.seen)
        while self._marks and self._marks[0][1] < half:
            self._marks.popleft()
        return half, self._marks[0][0] if self._marks else self._marks_seen
