"""Timer messages of the seconds at hand: loaded from the wheel before they are due, handed out at their millisecond.

    slots before `loaded_to`     loaded, waiting here in the order of their times, or handed out
    the slot at `loaded_to`      being loaded, some records at a time, from the newest back
    all later ones               in the wheel only

Rules. Nothing of a slot is handed out before all of it is here: the first to be due may be the last that is found.
A recall that is in the slot, or comes while it waits here, takes its message out. Whatever is found twice is
there once. Messages are kept in memory up to a limit; beyond it they are read again when they are due. What was
delivered before the start, or before the wheel was made anew, is left out. Owned by the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from penstock.broker import property_text as text
from penstock.broker.timer_records import TimerMessage, timer_message
from penstock.broker.timer_times import TimerRules, Timing
from penstock.message.hashing import java_string_hash
from penstock.store import MessageStore
from penstock.store.timer_log import ROLL, TimerRecord
from penstock.store.timer_store import TimerStore
from penstock.store.timer_wheel import NOWHERE, PRECISION_MS, slot_time

_LOG = logging.getLogger("penstock.broker")
HELD_BYTES_MAX = 64 << 20
SLOTS_PER_STEP = 10_000


class DueMessage(NamedTuple):
    """One that waits in memory; ordered by its time, then as it came."""

    due_ms: int
    place: int
    position: int
    enqueued_ms: int
    slot_ms: int
    is_roll: bool
    topic_hash: int
    held: TimerMessage | None


def topic_hash(message: TimerMessage) -> int:
    """How the timer log names the topic that a message was sent to."""
    return java_string_hash(message.properties.get(text.REAL_TOPIC, ""))


class DueMessages:
    """See the module's text. `is_done` says what was delivered before: by time and queue offset."""

    def __init__(
        self,
        store: MessageStore,
        files: TimerStore,
        rules: TimerRules,
        is_done: Callable[[int, int], bool],
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._store = store
        self._files = files
        self._rules = rules
        self._is_done = is_done
        self.held_bytes_max = held_bytes_max
        self.held_bytes = 0
        self._waiting: list[DueMessage] = []
        self._recalled: dict[int, set[str]] = {}
        self.loaded_to = 0
        # Of the slot that is being loaded: the next record of its chain, and what was found in it.
        self._next = NOWHERE
        self._seen: set[int] = set()
        self.lost = 0

    def begin(self, from_ms: int) -> None:
        """Forget everything; slots from this time on are still to be loaded."""
        self._waiting.clear()
        self._recalled.clear()
        self._seen.clear()
        self.held_bytes, self._next = 0, NOWHERE
        self.loaded_to = slot_time(from_ms)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_loading(self) -> bool:
        return self._next != NOWHERE

    def reached_ms(self, now_ms: int) -> int:
        """Everything due up to here was handed out."""
        reached = min(now_ms, self.loaded_to)
        return min(reached, self._waiting[0].due_ms - 1) if self._waiting else reached

    # -- coming in -------------------------------------------------------------------------------------------

    def arrived(self, timing: Timing, place: int, enqueued_ms: int, message: TimerMessage) -> None:
        """A message went to the wheel: it is taken here at once if its slot has been, or is being, loaded."""
        if timing.slot_ms < self.loaded_to or (timing.slot_ms == self.loaded_to and self.is_loading):
            self._add(timing, place, enqueued_ms, message)

    def _add(self, timing: Timing, place: int, enqueued_ms: int, message: TimerMessage) -> None:
        if timing.recalls and not timing.is_roll:
            self._recalled.setdefault(timing.slot_ms, set()).add(timing.recalls)
            return
        is_held = self.held_bytes + message.size <= self.held_bytes_max
        if is_held:
            self.held_bytes += message.size
        item = DueMessage(
            timing.due_ms,
            place,
            message.position,
            enqueued_ms,
            timing.slot_ms,
            timing.is_roll,
            topic_hash(message),
            message if is_held else None,
        )
        heappush(self._waiting, item)

    def load(self, count: int, until_ms: int) -> None:
        """Load slots up to the one that a time is in, so many records at most. Raises TimerFilesDamagedError."""
        last, steps = slot_time(until_ms), 0
        while count > 0 and self.loaded_to <= last and steps < SLOTS_PER_STEP:
            if not self.is_loading:
                slot = self._files.wheel.slot(self.loaded_to)
                if slot is not None:
                    self._next = slot.last
            while self.is_loading and count > 0:
                count -= 1
                place = self._next
                record = self._files.record(place, self.loaded_to)
                self._load_one(place, record)
                self._next = record.previous
            if not self.is_loading:
                self._seen.clear()
                self.loaded_to += PRECISION_MS
                steps += 1

    def _load_one(self, place: int, entry: TimerRecord) -> None:
        if entry.position in self._seen:
            return
        self._seen.add(entry.position)
        message = timer_message(self._store, entry.position)
        timing = None if message is None else self._timing(entry, message)
        if message is None or timing is None:
            self.lost += 1
            _LOG.error("the timer message at log position %d cannot be read; skipped", entry.position)
        elif not self._is_done(timing.due_ms, message.queue_offset):
            self._add(timing, place, entry.write_ms, message)

    def _timing(self, entry: TimerRecord, message: TimerMessage) -> Timing | None:
        """As the message says, but its slot and whether it is rolled there as the wheel says: a Java broker may have
        decided otherwise."""
        timing = self._rules.timing(message.properties, message.store_timestamp)
        if timing is None:
            return None
        slot_ms = slot_time(entry.slot_ms)
        is_roll = bool(entry.bits & ROLL)
        if is_roll == timing.is_roll and slot_ms == timing.slot_ms:
            return timing
        if is_roll:
            return Timing(slot_ms + PRECISION_MS, slot_ms, True, timing.recalls)
        known = TimerRules(2**62).timing(message.properties, message.store_timestamp)
        return known if known is not None and known.slot_ms == slot_ms else None

    # -- going out -------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When the next one is due; None if none waits here."""
        return self._waiting[0].due_ms if self._waiting else None

    def take(self, now_ms: int) -> DueMessage | None:
        """The next one if it is due."""
        if not self._waiting or self._waiting[0].due_ms > min(now_ms, self.loaded_to):
            return None
        item = heappop(self._waiting)
        if item.held is not None:
            self.held_bytes -= item.held.size
        return item

    def give_back(self, item: DueMessage) -> None:
        """It could not be stored now."""
        if item.held is not None:
            self.held_bytes += item.held.size
        heappush(self._waiting, item)

    def is_recalled(self, item: DueMessage, key: str) -> bool:
        return key in self._recalled.get(item.slot_ms, ())

    @property
    def has_recalls(self) -> bool:
        return bool(self._recalled)

    def forget_recalls(self, reached_ms: int) -> None:
        for slot_ms in [slot for slot in self._recalled if slot + PRECISION_MS <= reached_ms]:
            del self._recalled[slot_ms]
