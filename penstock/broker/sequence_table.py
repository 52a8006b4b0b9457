"""Which sequences each producer has stored in each queue, and where: the newest of them, and how old the rest is.

    (producer, topic, queue)  ->  sequences and log positions of the newest `window` messages, by sequence
                                  floor: the highest sequence that is not kept any more

What a sequence is, follows from these alone:

    kept                      stored, at this log position
    not kept, above floor     not stored
    not kept, up to floor     nobody knows: it may be stored. Never to be stored again, never to be called stored

Rules. With access control each user has producers of its own: their name is `producer owner` (`owned_name`).
The first position of a sequence stays: copies of a message (a delayed one that is due, a transaction that is
committed) carry its sequence, too. Whatever is forgotten for want of room raises a floor, so that it is refused later
and never stored twice; only a pair that nobody used for the expiry time is gone as if it had never been. The table is
made of the log and holds nothing that the log does not say. Plain data, no I/O, 16 bytes a sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

NOT_STORED = -1
TOO_OLD = -2


class Pair(NamedTuple):
    """A producer and a queue that it sends to: the one that the message is meant for, wherever it waits before."""

    producer: str
    topic: str
    queue_id: int

    @property
    def owner(self) -> str:
        """Whose producer it is; empty if it is of version 0.1, or of a time without access control."""
        return self.producer.partition(" ")[2]


def owned_name(producer: str, owner: str) -> str:
    """What a user's producer is called; a producer's own name has no blank."""
    return f"{producer} {owner}" if owner else producer


class Window:
    """The newest sequences of a pair, in their order, and the position of each."""

    __slots__ = ("floor", "positions", "sequences", "used_ms")

    def __init__(
        self,
        floor: int = -1,
        used_ms: int = 0,
        sequences: array[int] | None = None,
        positions: array[int] | None = None,
    ) -> None:
        self.floor = floor
        self.used_ms = used_ms
        self.sequences = array("q") if sequences is None else sequences
        self.positions = array("q") if positions is None else positions

    def find(self, sequence: int) -> int:
        """The position of a sequence, NOT_STORED or TOO_OLD."""
        at = bisect_left(self.sequences, sequence)
        if at < len(self.sequences) and self.sequences[at] == sequence:
            return self.positions[at]
        return NOT_STORED if sequence > self.floor else TOO_OLD

    def add(self, sequence: int, position: int) -> bool:
        """Keep it; False if it is known or too old."""
        sequences = self.sequences
        if not sequences or sequence > sequences[-1]:
            if sequence <= self.floor:
                return False
            sequences.append(sequence)
            self.positions.append(position)
            return True
        if self.find(sequence) != NOT_STORED:
            return False
        at = bisect_left(sequences, sequence)
        sequences.insert(at, sequence)
        self.positions.insert(at, position)
        return True

    def drop_oldest(self, count: int) -> None:
        """Keep so many less."""
        if count > 0:
            self.floor = max(self.floor, self.sequences[count - 1])
            del self.sequences[:count]
            del self.positions[:count]

    def keep_positions(self, low: int, high: int) -> None:
        """Only what lies in [low, high) was ever stored."""
        if not self.positions or (min(self.positions) >= low and max(self.positions) < high):
            return
        kept = [
            (sequence, position)
            for sequence, position in zip(self.sequences, self.positions, strict=True)
            if low <= position < high
        ]
        self.sequences = array("q", [sequence for sequence, _ in kept])
        self.positions = array("q", [position for _, position in kept])


class SequenceTable:
    """All pairs, those used last at the end. `window`: how many sequences a pair has at least; `sequences_max`: how
    many all pairs have at most."""

    def __init__(self, window: int, sequences_max: int) -> None:
        self.window = window
        self.sequences_max = sequences_max
        self._windows: dict[Pair, Window] = {}
        # Sequences in all windows.
        self.count = 0
        # Pairs of each owner.
        self._pairs: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._windows)

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._windows

    def items(self) -> Iterator[tuple[Pair, Window]]:
        """Every pair, those used longest ago first."""
        return iter(self._windows.items())

    def get(self, pair: Pair) -> Window | None:
        return self._windows.get(pair)

    def pairs_of(self, owner: str) -> int:
        """How many pairs a user's producers have."""
        return self._pairs[owner]

    def owned(self, pair: Pair) -> list[Pair]:
        """The pairs of the same name and queue that users own."""
        owners = (owner for owner in self._pairs if owner)
        found = (pair._replace(producer=owned_name(pair.producer, owner)) for owner in owners)
        return [one for one in found if one in self._windows]

    def put(self, pair: Pair, window: Window) -> None:
        """A pair as it was saved."""
        self.count += len(window.sequences)
        self._pairs[pair.owner] += pair not in self._windows
        self._windows[pair] = window

    def _drop(self, pair: Pair) -> None:
        self.count -= len(self._windows.pop(pair).sequences)
        self._pairs[pair.owner] -= 1
        if not self._pairs[pair.owner]:
            del self._pairs[pair.owner]

    def find(self, pair: Pair, sequence: int) -> int:
        """The log position of a message, NOT_STORED or TOO_OLD."""
        window = self._windows.get(pair)
        return NOT_STORED if window is None else window.find(sequence)

    def add(self, pair: Pair, sequence: int, position: int, now_ms: int) -> None:
        """A message is in the log."""
        window = self._windows.pop(pair, None)
        if window is None:
            window = Window()
            self._pairs[pair.owner] += 1
        self._windows[pair] = window
        window.used_ms = max(window.used_ms, now_ms)
        if not window.add(sequence, position):
            return
        self.count += 1
        # Many at once: taking one from the front moves all the others.
        over = len(window.sequences) - self.window
        if over > self.window // 8:
            window.drop_oldest(over)
            self.count -= over
        while self.count > self.sequences_max:
            self._trim(pair)

    def _trim(self, spared: Pair) -> None:
        """Have whoever sent longest ago know only how far it has come; the one that sends now has half."""
        for pair, window in self._windows.items():
            size = len(window.sequences)
            if size and (pair != spared or size == self.count):
                dropped = size if pair != spared else (size + 1) // 2
                window.drop_oldest(dropped)
                self.count -= dropped
                return

    def remove(self, pair: Pair, sequence: int) -> None:
        """The log does not have it after all."""
        window = self._windows.get(pair)
        at = -1 if window is None else bisect_left(window.sequences, sequence)
        if window is not None and at < len(window.sequences) and window.sequences[at] == sequence:
            del window.sequences[at]
            del window.positions[at]
            self.count -= 1

    def expire(self, before_ms: int) -> int:
        """Forget pairs that were not used since; how many."""
        gone = [pair for pair, window in self._windows.items() if window.used_ms < before_ms]
        for pair in gone:
            self._drop(pair)
        return len(gone)

    def cut(self, position: int) -> None:
        """The log ended here: what lay behind is gone."""
        self._keep(list(self._windows), 0, position)

    def forget_topic(self, topic: str, before: int) -> None:
        """A topic was deleted when the log ended at `before`; what was stored in it until then counts no more."""
        pairs = [pair for pair in self._windows if pair.topic == topic]
        for pair in pairs:
            window = self._windows[pair]
            if any(position < before for position in window.positions):
                window.floor = -1
        self._keep(pairs, before, 1 << 62)

    def _keep(self, pairs: list[Pair], low: int, high: int) -> None:
        for pair in pairs:
            window = self._windows[pair]
            self.count -= len(window.sequences)
            window.keep_positions(low, high)
            self.count += len(window.sequences)
            if not window.sequences and window.floor < 0:
                self._drop(pair)
