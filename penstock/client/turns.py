"""One loop over messages: the lot in hand and the message that the loop's body works on.

Rule: asking for the next message says that the last one is done, unless `retry_later` was called on it. A loop
that is left in the middle (by `break`, by an error) has not said so: if the same thread or task begins another
loop, that message comes again first, and so does the rest of its lot. Closing the consumer without an error
counts as having said it. Not for more than one thread.
"""

from __future__ import annotations

from penstock.client.handout import Handout, Lot, Report
from penstock.client.received import ReceivedMessage
from penstock.client.workers import Work
from penstock.runtime import Clock


class WorkByHand(Work):
    """A lot whose messages are acknowledged by the user, one by one, whenever that may be."""

    __slots__ = ()

    def advance(self) -> ReceivedMessage | None:
        message = self._next()
        self.current = None  # not ours any more
        if message is not None:
            message.owner = self.report.owner
        return message


class Turn:
    """The state of one loop."""

    __slots__ = ("_auto_ack", "_clock", "_handout", "_orderly", "work")

    def __init__(self, handout: Handout, clock: Clock, *, orderly: bool, auto_ack: bool) -> None:
        self._handout = handout
        self._clock = clock
        self._orderly = orderly
        self._auto_ack = auto_ack
        self.work: Work | None = None

    @property
    def lot_size(self) -> int:
        """How many messages to ask for; 0 leaves it to the handout. In order and acknowledged by hand, a queue
        waits for each single message."""
        return 1 if self._orderly and not self._auto_ack else 0

    def begin(self, lot: Lot) -> ReceivedMessage | None:
        """The first message of a new lot."""
        kind = Work if self._auto_ack else WorkByHand
        self.work = kind(lot, self._handout, self._clock, orderly=self._orderly)
        return self.work.advance()

    def rewind(self) -> None:
        """The loop was left at the current message: it is the next one again."""
        if self.work is not None:
            self.work.rewind()

    def end(self, *, done: bool = True) -> Report | None:
        """Leave the lot. `done`: so is the current message; else it goes back with the rest."""
        work, self.work = self.work, None
        if work is None:
            return None
        if done and work.current is not None:
            work.advance()
        report = work.end()
        # In order and by hand, the queue is free when the last message is acknowledged, not before.
        report.is_last = self._auto_ack or not self._orderly
        return report
