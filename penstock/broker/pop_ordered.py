"""Pops in order, kept: every lot and every acknowledgement of one is a record in the revive topic, as those of other
pops are (`pop_service.py`), under tags of our own that RocketMQ passes over.

    hand out     a record for each lot; the pop is answered when it is as safe as any message that is sent
    ack          a record; the group's offset is the first message that is not acknowledged
    change       the lot's record again, with the new time of one message
    time over    no record: the queue is free, and whoever pops it next begins at the first that is not acknowledged
    replay       the last record of a queue, and the acknowledgements behind it, say what is held

RocketMQ keeps this table in config/consumerOrderInfo.json, written every few seconds and by the master alone; after a
kill or a failover it hands out again what was acknowledged, and what somebody is working on (docs/decisions/0046).
Owned by the event loop; `replay` by a thread that runs before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from penstock._hot.records import AppendRequest
from penstock.broker.pop_order import OrderedLot, OrderedLots
from penstock.broker.pop_records import (
    Acknowledged,
    CheckKey,
    CheckPoint,
    Ordered,
    OrderedNotes,
    PopRun,
    QueueKey,
    ordered_ack_record,
    ordered_record,
)
from penstock.broker.pop_state import PopState
from penstock.broker.writing import Written
from penstock.runtime import Clock

Acks = Sequence[tuple[CheckKey, Sequence[int]]]


class Journal(Protocol):
    """The revive topic, and what else is kept there."""

    @property
    def state(self) -> PopState: ...
    @property
    def broker_name(self) -> str: ...
    def next_revive_queue(self) -> int: ...
    def request(self, revive_queue: int, record: tuple[bytes, bytes]) -> AppendRequest: ...
    def write(self, requests: Sequence[AppendRequest], done: Callable[[Written], None]) -> None: ...


class OrderedPops:
    """See the module's text."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.lots = OrderedLots()
        # Told that a group may pop a queue of a topic again.
        self.on_free: Callable[[str, str, int], None] = lambda group, topic, queue_id: None

    def is_held(self, queue: QueueKey, attempt: str = "") -> bool:
        """Whether a queue is somebody else's in its group now."""
        return self.lots.is_held(queue, self._clock.monotonic_ms(), attempt)

    # -- handing out -----------------------------------------------------------------------------------------

    def hand_out(
        self,
        runs: Sequence[PopRun],
        invisible_ms: int,
        attempt: str,
        done: Callable[[Written, int], None],
    ) -> list[OrderedLot]:
        """Keep lots; `done` is told the time of the pop. Raises if that is not possible: then nothing is handed
        out, and lots that are over stay as they are."""
        now_ms, popped_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        while any(self.lots.find(run.queue, popped_ms) for run in runs):
            popped_ms += 1
        revive_queue = self._journal.next_revive_queue()
        lots = []
        for run in runs:
            offsets = tuple(run.offsets)
            spans = (invisible_ms,) * len(offsets)
            notes = OrderedNotes(spans, self.lots.tries(run.queue, offsets, attempt), attempt)
            key = CheckKey(run.queue, run.start_offset, popped_ms)
            lot = OrderedLot(key, invisible_ms, revive_queue, offsets, notes=notes, began_ms=now_ms)
            lots.append(lot)
        requests = [self._record(lot, lot.notes) for lot in lots]
        self._journal.write(requests, lambda written: done(written, popped_ms))
        for lot, request in zip(lots, requests, strict=True):
            self._put(lot)
            self._stored(lot, request)
        return lots

    def _put(self, lot: OrderedLot) -> None:
        old = self.lots.put(lot)
        if old is not None:
            self._journal.state.close(old)

    def _record(self, lot: OrderedLot, notes: OrderedNotes) -> AppendRequest:
        record = ordered_record(lot, notes, self._journal.broker_name)
        return self._journal.request(lot.revive_queue, record)

    def _stored(self, lot: OrderedLot, request: AppendRequest) -> None:
        self._journal.state.stored(lot, request.queue_offset, request.physical_offset + request.size)

    def forget(self, queue: QueueKey) -> None:
        """Nobody pops the queue in order any more, or from elsewhere."""
        lot = self.lots.drop(queue)
        if lot is not None:
            self._journal.state.close(lot)
            self._free(queue)

    def _free(self, queue: QueueKey) -> None:
        self.on_free(queue.group, queue.topic, queue.queue_id)

    def forget_topic(self, topic: str) -> None:
        for queue in [queue for queue in self.lots.lots if queue.topic == topic]:
            self.forget(queue)

    # -- acknowledging ---------------------------------------------------------------------------------------

    def is_foreign(self, key: CheckKey, offset: int) -> bool:
        """Whether the lot of this pop is known, and has no such message."""
        lot = self.lots.find(key.queue, key.pop_time)
        return lot is not None and offset >= lot.position() and offset not in lot.offsets

    def wanted(self, acks: Acks) -> dict[OrderedLot, int]:
        """Unacknowledged lots, each once, with the bits of the messages that are named."""
        found: dict[OrderedLot, int] = {}
        for key, offsets in acks:
            lot = self.lots.find(key.queue, key.pop_time)
            bits = 0 if lot is None else lot.bits(offsets)
            if lot is not None and bits:
                found[lot] = found.get(lot, 0) | bits
        return found

    def ack_request(self, lot: OrderedLot, bits: int) -> AppendRequest:
        offsets = [offset for place, offset in enumerate(lot.offsets) if bits >> place & 1]
        return self._journal.request(
            lot.revive_queue, ordered_ack_record(lot, offsets, self._journal.broker_name)
        )

    def acknowledge(self, lot: OrderedLot, bits: int) -> None:
        """Messages of a lot are done: the group goes on behind them, and when it was the last the queue is free."""
        lot.acked |= bits
        queue = lot.key.queue
        self._journal.state.advance(queue, lot.position())
        if lot.is_done:
            self.forget(queue)
        else:
            self.lots.watch(lot)

    def change(
        self, key: CheckKey, offset: int, invisible_ms: int, done: Callable[[Written, int], None]
    ) -> bool:
        """Have one message invisible for so long from now on: `done` is told for how long that is since the pop.
        False if nobody waits for it, then `done` is not called."""
        found = self.wanted([(key, [offset])])
        if not found:
            return False
        [lot] = found
        span = self._clock.monotonic_ms() - lot.began_ms + invisible_ms
        spans = [*lot.notes.spans]
        spans[lot.offsets.index(offset)] = span
        notes = replace(lot.notes, spans=tuple(spans))
        request = self._record(lot, notes)
        self._journal.write([request], lambda written: done(written, span))
        lot.notes = notes
        self._stored(lot, request)
        self.lots.watch(lot)
        return True

    # -- time and recovery -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        for lot in self.lots.over(now_ms):
            self._free(lot.key.queue)
        for lot in self.lots.stale(now_ms):
            self.forget(lot.key.queue)

    def begin(self) -> None:
        """Before a replay."""
        self.lots = OrderedLots()

    def replay(self, record: Ordered | Acknowledged) -> None:
        """Apply a record of the revive topic, in the order of the log."""
        if isinstance(record, Acknowledged):
            for lot, bits in self.wanted([(record.key, record.offsets)]).items():
                self.acknowledge(lot, bits)
            return
        check, notes = record.check, record.notes
        known = self.lots.find(check.key.queue, check.key.pop_time)
        if known is None:
            # Never held for longer than it would have been, whatever the clock did.
            since_ms = max(self._clock.now_ms() - check.key.pop_time, 0)
            known = OrderedLot(
                *(check.key, check.invisible_ms, check.revive_queue, check.offsets),
                notes=notes,
                began_ms=self._clock.monotonic_ms() - since_ms,
            )
            self._put(known)
        known.notes = notes
        self._journal.state.stored(known, check.revive_offset, check.log_end)
        self.acknowledge(known, known.bits([*check.offsets]) & check.acked)

    def overtaken(self, check: CheckPoint) -> None:
        """Messages of a queue were popped without order: nobody waits for a lot of them any more."""
        lot = self.lots.lots.get(check.key.queue)
        if lot is not None and check.end > lot.position():
            self.forget(check.key.queue)
