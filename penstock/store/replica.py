"""A store as a replica: a master's bytes in, and out again for replicas of its own.

A replica's log is a copy of its master's, byte for byte, and arrives in pieces that are cut anywhere. So its end may
lie inside a record; everything else in the store sees whole records only: dispatch waits for the rest, the checkpoint
promises nothing behind the last whole record, a clean close cuts the incomplete one off.

Becoming a master: `cut_tail`, then `set_mode(False)`, which finds out the queue offsets that come next. They include
records that are in the log and not visible yet, because the bound keeps them back.

Everything here takes the store's append lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import BLANK, ENTRY_SIZE, NEW_QUEUE
from penstock._hot.queues import QueueState
from penstock._hot.reads import find_record, walk
from penstock.errors import StoreFailedError, StoreRoleError
from penstock.message import decode_record
from penstock.message.record import topic_bytes
from penstock.store.dispatching import GAP_MAX, NOT_HELD, LogDispatch, raise_end
from penstock.store.layout import is_topic
from penstock.store.segment import Segment

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore


class OffsetsAhead(LogDispatch):
    """Dispatches to nowhere: which offsets the records behind the visible ones have."""

    def __init__(self, store: MessageStore) -> None:
        self._ahead = Dispatcher((), False)
        super().__init__(store.log, store.queues, self._ahead, store.findings)
        self.states: dict[tuple[bytes, int], QueueState] = {}

    def run(self, start: int, end: int) -> int:
        """Read [start, end); the store time of the newest record, 0 if there is none."""
        self.offset = start
        self.catch_up(end)
        for state in self.states.values():
            queue = self._queues.get_or_create(state.topic.decode(), state.queue_id)
            queue.state.next_offset = max(queue.state.next_offset, state.end_offset)
        return self._ahead.last_timestamp

    def _answer(self, segment: Segment, status: int) -> None:
        view = segment.view.slice(self.offset - segment.base, segment.available)
        record = decode_record(view, -1, verify=False)
        key = (topic_bytes(view), record.queue_id)
        is_place = is_topic(record.topic) and record.queue_id >= 0
        if not is_place or self._queues.was_deleted(record.topic, self.offset):
            self.offset += record.size
            return
        if status == NEW_QUEUE:
            queue = self._queues.get_or_create(record.topic, record.queue_id)
            state = self.states[key] = QueueState(*key, queue.max_offset)
            state.max_phy = queue.born_at
            self._ahead.add_queue(state)
            return
        state = self.states[key]
        if state.end_offset and record.queue_offset - state.end_offset > GAP_MAX:
            self.offset += record.size  # as dispatch will do, and say why
        else:
            state.restart(record.queue_offset, state.max_phy)


class ReplicaSide:
    """What a store does as a replica, or for its replicas."""

    def __init__(self, store: MessageStore, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock

    # -- what may be seen ------------------------------------------------------------------------------------

    def bound(self, position: int | None) -> int | None:
        """Let nobody see what ends behind `position`; the bound that holds now. It never goes back, until None takes
        it away."""
        store, dispatch = self._store, self._store.dispatch
        with self._lock:
            if position is None:
                dispatch.bound(NOT_HELD)
            elif dispatch.bounded_at == NOT_HELD or position > dispatch.bounded_at:
                dispatch.bound(position)
            self.know_ends()
            store.show_more()
            return None if dispatch.bounded_at == NOT_HELD else dispatch.bounded_at

    def hold_unseen(self) -> None:
        """See `ReplicaDoors.hold_unseen`."""
        with self._lock:
            dispatch = self._store.dispatch
            if dispatch.held_at == NOT_HELD:
                dispatch.hold(dispatch.offset)

    def know_ends(self) -> None:
        """Tell dispatch whether a record may be there in part."""
        dispatch = self._store.dispatch
        dispatch.ends_whole = not self._store.gate.is_replica and dispatch.bounded_at == NOT_HELD

    # -- copying ---------------------------------------------------------------------------------------------

    def append(self, data: bytes | memoryview, position: int) -> int:
        """Append a master's bytes at `position`, which is the log's end; where it is now."""
        store = self._store
        if store.log.active is None and store.queues.max_phy >= 0:
            store.start_over(position)
        with self._lock:
            store.gate.check_replica()
            was_empty = store.log.active is None
            try:
                store.log.append_raw(data, position)
            except StoreFailedError as error:
                store.gate.stop(error)
                raise
            if was_empty:
                store.dispatch.restart(position)
            store.show_more()
            # A replica's store times are its master's. The newest whole record's is what the checkpoint may promise.
            store.log.last_timestamp = max(store.log.last_timestamp, store.dispatcher.last_timestamp)
            return store.log.max_offset

    def slice(self, position: int, max_bytes: int) -> memoryview | None:
        """Bytes of the log from `position` on, at most to the end of its segment; None if there are none.

        The rest of a segment behind its blank record belongs to it. A view keeps its segment mapped: release it soon.
        """
        log = self._store.log
        with self._lock:
            segment = log.segment_of(position)
            if segment is None:
                return None
            start = position - segment.base
            stop = min(start + max_bytes, log.max_offset - segment.base, segment.available)
            return segment.view.slice(start, stop) if start < stop else None

    # -- changing roles --------------------------------------------------------------------------------------

    def set_mode(self, is_replica: bool) -> None:
        """Take a master's bytes from now on and no messages, or the other way round."""
        store = self._store
        with self._lock:
            store.gate.check_sound()
            if not is_replica and store.gate.is_replica:
                if self.whole_end() != store.log.max_offset:
                    raise StoreRoleError("the log ends inside a record", "call cut_tail first")
                store.log.roll_if_full()
                self.find_next_offsets()
            store.log.forget_built()
            store.gate.set_replica(is_replica)
            self.know_ends()
            store.show_more()

    def find_next_offsets(self) -> None:
        """Every queue goes on after its newest record in the log, visible or not, and after offsets that are known to
        have been used by records that the log has lost."""
        store = self._store
        for queue in store.queues:
            queue.state.next_offset = queue.max_offset
        newest = OffsetsAhead(store).run(store.dispatch.offset, store.log.max_offset)
        for (topic, queue_id), end in store.queues.manifest.used.items():
            queue = store.queues.get_or_create(topic, queue_id)
            if queue.state.next_offset == queue.max_offset:
                raise_end(queue, end)
                queue.state.next_offset = queue.max_offset
            else:  # its newest records are not visible yet: the first one of ours makes the gap
                most = queue.state.next_offset + GAP_MAX
                queue.state.next_offset = max(queue.state.next_offset, min(end, most))
        store.log.last_timestamp = max(store.log.last_timestamp, store.dispatcher.last_timestamp, newest)

    def positions_ahead(self, topic: str, queue_id: int) -> list[int]:
        """Log positions of a queue's records that are there and not visible yet, oldest first."""
        store, ahead = self._store, OffsetsAhead(self._store)
        with self._lock:
            ahead.run(store.dispatch.offset, store.log.max_offset)
        state = ahead.states.get((topic.encode(), queue_id))
        entries = b"" if state is None else state.tail_bytes(state.tail_first, state.end_offset)
        return [int.from_bytes(entries[at : at + 8], "big") for at in range(0, len(entries), ENTRY_SIZE)]

    def whole_end(self) -> int:
        """Log position after the newest whole record."""
        log = self._store.log
        position, end = self._store.dispatch.offset, log.max_offset
        while position < end:
            segment = log.segment_of(position)
            if segment is None:
                position += log.segment_size - position % log.segment_size
                continue
            start, stop = position - segment.base, min(end - segment.base, segment.available)
            at, why, _, last = walk(segment.view, start, stop, segment.base, 0)
            if at > stop:
                return segment.base + last
            if why == BLANK:
                if segment.base + segment.size > end:
                    return segment.base + at
                at = segment.size
            elif at < stop:
                following = find_record(segment.view, at + 1, stop, segment.base)
                if following < 0 and stop < segment.size:
                    return segment.base + at
                at = following if following >= 0 else segment.size
            position = segment.base + at
        return end
