"""Who waits for a number to be reached: callbacks with deadlines, called in the order of what they wait for.

Owned by one thread. A callback is called exactly once; it may add others, and must not raise.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from enum import Enum


class Outcome(Enum):
    """How waiting for replicas ended."""

    REPLICATED = "replicated"
    # Outcome unknown: stored here, and perhaps elsewhere (FLUSH_SLAVE_TIMEOUT).
    TIMED_OUT = "timed out"
    # Outcome unknown: this node is no longer master, and the next one may have it or not.
    SUPERSEDED = "superseded"


Callback = Callable[[Outcome], None]


class _Waiter:
    __slots__ = ("callback", "deadline_ms", "goal", "number")

    def __init__(self, goal: int, number: int, deadline_ms: int, callback: Callback) -> None:
        self.goal = goal
        self.number = number
        self.deadline_ms = deadline_ms
        # None once it was called: the waiter is then only an empty place in the other order.
        self.callback: Callback | None = callback

    def __lt__(self, other: _Waiter) -> bool:
        return (self.goal, self.number) < (other.goal, other.number)


class Waiters:
    """In two orders: by goal, and by the time they were added, which is that of their deadlines but for a few."""

    def __init__(self) -> None:
        self._by_goal: list[_Waiter] = []
        self._by_age: deque[_Waiter] = deque()
        self._number = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, goal: int, deadline_ms: int, callback: Callback) -> None:
        self._number += 1
        waiter = _Waiter(goal, self._number, deadline_ms, callback)
        heapq.heappush(self._by_goal, waiter)
        self._by_age.append(waiter)
        self._live += 1

    def reached(self, value: int) -> None:
        """Call everybody whose goal is `value` or less."""
        while self._by_goal and self._by_goal[0].goal <= value:
            self._end(heapq.heappop(self._by_goal), Outcome.REPLICATED)
        while self._by_age and self._by_age[0].callback is None:
            self._by_age.popleft()

    def expire(self, now_ms: int) -> None:
        """Call those whose time is over. A later one with a shorter time waits for the one before it at most."""
        while self._by_age and (self._by_age[0].callback is None or self._by_age[0].deadline_ms <= now_ms):
            self._end(self._by_age.popleft(), Outcome.TIMED_OUT)
        while self._by_goal and self._by_goal[0].callback is None:
            heapq.heappop(self._by_goal)

    def end(self, outcome: Outcome) -> None:
        """Call everybody."""
        waiting, self._by_age, self._by_goal = self._by_age, deque(), []
        for waiter in waiting:
            self._end(waiter, outcome)

    def _end(self, waiter: _Waiter, outcome: Outcome) -> None:
        callback, waiter.callback = waiter.callback, None
        if callback is not None:
            self._live -= 1
            callback(outcome)
