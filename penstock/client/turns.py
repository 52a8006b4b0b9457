"""One loop over messages: the lot in hand and the message that the loop's body works on.

Rule: asking for the next message says that the last one is done, unless `retry_later` was called on it. A loop
that is left in the middle (by `break`, by an error) has not said so: if the same thread or task begins another
loop, that message comes again first, and so does the rest of its lot. Closing the consumer without an error
counts as having said it. Not for more than one thread.
"""

from __future__ import annotations

from penstock.client.handout import Lot, Report
from penstock.client.received import ReceivedMessage
from penstock.client.workers import Work
from penstock.runtime import Clock


class Turn:
    """The state of one loop. With `auto_ack` off nothing is said for the user."""

    __slots__ = ("_auto_ack", "_clock", "_current", "_orderly", "_work")

    def __init__(self, clock: Clock, *, orderly: bool, auto_ack: bool) -> None:
        self._clock = clock
        self._orderly = orderly
        self._auto_ack = auto_ack
        self._work: Work | None = None
        self._current: ReceivedMessage | None = None

    @property
    def lot_size(self) -> int:
        """How many messages to ask for; 0 leaves it to the handout. In order and acknowledged by hand, a queue
        waits for each single message."""
        return 1 if self._orderly and not self._auto_ack else 0

    def begin(self, lot: Lot) -> ReceivedMessage | None:
        """The first message of a new lot."""
        self._work = Work(lot, self._clock, orderly=self._orderly)
        return self._next()

    def advance(self) -> ReceivedMessage | None:
        """The message after the current one, which is done; None if there is no lot or it is over."""
        self._judge()
        return self._next()

    def rewind(self) -> None:
        """The loop was left at the current message: it is the next one again."""
        if self._work is not None and self._current is not None and self._auto_ack:
            self._work.untouched()
        self._current = None

    def end(self, *, done: bool = True) -> Report | None:
        """Leave the lot. `done`: so is the current message; else it goes back with the rest."""
        work = self._work
        if work is None:
            return None
        if done:
            self._judge()
        else:
            self.rewind()
        self._work = self._current = None
        report = work.end()
        # In order and by hand, the queue is free when the last message is acknowledged, not before.
        report.is_last = self._auto_ack or not self._orderly
        return report

    def _judge(self) -> None:
        if self._work is not None and self._current is not None and self._auto_ack:
            self._work.returned(self._current)
        self._current = None

    def _next(self) -> ReceivedMessage | None:
        work = self._work
        message = work.next() if work is not None else None
        if message is not None and work is not None and not self._auto_ack:
            message.owner = work.report.owner
        self._current = message
        return message
