"""The messages of one queue between being pulled and being done with: an ordered map from offset to message.

    offsets   ... 40 41 | 42  43  44  45  46  47 | 48 ...
                        |     done         done  |
               committed 42 = lowest not done    next to pull 48

Rules: the committed offset is the lowest that is not done with, so a crash repeats messages and never skips one.
Offsets only grow: what is pulled twice is taken once. Pulling stops while too many messages, too many bytes or
too wide a span of offsets are here, because one message that hangs must not make the rest pile up without end.

A queue ends in two steps. A retired queue gives nothing out any more, but what is in hand still counts when it
is done. A dropped queue counts nothing: others have it, or it was set to another offset.

The map is kept as runs, one per pull that brought messages, because a run is mostly done with as a whole; its
bytes count until then, as they stay in memory until then.
Belongs to the consumer's event loop, except `waiting`, which the handout guards, and the two flags, which may be
read from anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.client.received import ReceivedMessage
from penstock.protocol.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What one queue may hold before pulling pauses."""

    messages: int = 1_000
    bytes: int = 100 * 1024 * 1024
    span: int = 2_000


class Run:
    """Messages that came together, in order of their offsets. A message that is done with forgets its run."""

    __slots__ = ("at", "bytes", "left", "messages", "owner")

    def __init__(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        self.owner = owner
        self.messages = messages
        # How many are not done with, and where the first of them is at the earliest.
        self.left = len(messages)
        self.at = 0
        self.bytes = 0

    def lowest(self) -> ReceivedMessage:
        """The first that is not done with; there is one."""
        messages, at = self.messages, self.at
        while messages[at].run is not self:
            at += 1
        self.at = at
        return messages[at]


class ProcessQueue:
    """One queue as one consumer holds it."""

    def __init__(
        self, queue: MessageQueue, next_offset: int, limits: QueueLimits, *, orderly: bool = False
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
        # Who holds it: the `Holdings` of one consumer.
        self.holder: object = None
        self.is_retired = False
        self.is_dropped = False
        self.is_paused = False
        # The handout's: messages not given out yet, whether the queue stands in line, whether a taker has it.
        self.waiting: deque[ReceivedMessage] = deque()
        self.is_in_line = False
        self.is_taken = False
        self.bytes = 0
        # In order, nothing is given out without the lock.
        self.is_locked = True
        self.is_lock_lost = False
        # Leased queues: whether the lease is over by now, asked before anything is given out.
        self.is_lease_over: Callable[[], bool] | None = None
        self.locked_ms = 0
        self.locked_wall_ms = 0
        # When the last pull was answered and the last message done with.
        self.pulled_ms = 0
        self.pulled_wall_ms = 0
        self.consumed_wall_ms = 0
        self._limits = limits
        self._orderly = orderly
        self._runs: deque[Run] = deque()
        self._count = 0
        self._last = -1
        self._on_room: Callable[[], None] | None = None
        self._on_idle: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Messages not done with."""
        return self._count

    def __contains__(self, message: ReceivedMessage) -> bool:
        return not self.is_dropped and message.run is not None and message.run.owner is self

    @property
    def committed(self) -> int:
        """The offset to store: everything below is done with."""
        return self._runs[0].lowest().queue_offset if self._runs else self.next_offset

    @property
    def lowest(self) -> ReceivedMessage | None:
        """The message that holds up the committed offset."""
        return self._runs[0].lowest() if self._runs else None

    @property
    def highest_offset(self) -> int:
        """Offset of the last message here, or 0."""
        return self._last if self._runs else 0

    @property
    def in_hand(self) -> int:
        """Messages given out and not done with."""
        return self._count - len(self.waiting)

    @property
    def span(self) -> int:
        return self._last - self.committed if self._runs else 0

    @property
    def is_full(self) -> bool:
        """Whether pulling pauses. The span does not matter in order, where nothing can overtake."""
        limits = self._limits
        return (
            self._count >= limits.messages
            or self.bytes >= limits.bytes
            or (not self._orderly and self.span > limits.span)
        )

    @property
    def gives_out(self) -> bool:
        if not self.is_locked or self.is_retired or self.is_paused:
            return False
        return self.is_lease_over is None or not self.is_lease_over()

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take what was pulled, and where to pull next; the messages that are new are returned for handing out."""
        if self.is_dropped:
            return []
        self.next_offset = max(self.next_offset, next_offset)
        new = list(messages)
        if new and new[0].queue_offset <= self._last:
            new = [message for message in new if message.queue_offset > self._last]
        if new:
            run = Run(self, new)
            for message in new:
                message.run = run
                run.bytes += message.size
            self._runs.append(run)
            self._count += len(new)
            self.bytes += run.bytes
            self._last = new[-1].queue_offset
        return new

    def done(self, messages: Iterable[ReceivedMessage]) -> int:
        """Forget these messages; the committed offset after that. Of a dropped queue: -1, nothing counts."""
        if self.is_dropped:
            return -1
        for message in messages:
            run = message.run
            if run is not None and run.owner is self:
                message.run = None
                run.left -= 1
                self._count -= 1
                if not run.left:
                    self.bytes -= run.bytes
                    run.messages = ()  # it may have to wait for an earlier run, its messages need not
        while self._runs and not self._runs[0].left:
            self._runs.popleft()
        if self._on_room is not None and not self.is_full:
            self.woken()
        self.look_idle()
        return self.committed

    def retire(self) -> None:
        """Give nothing out any more, pull nothing any more."""
        self.is_retired = True
        self.woken()

    def drop(self) -> None:
        """Not this consumer's any more. What is in hand goes on, and is forgotten when it is done."""
        self.is_retired = self.is_dropped = True
        self.waiting.clear()
        self._runs.clear()
        self._count = self.bytes = 0
        self.woken()
        self.look_idle()

    def pause(self) -> None:
        """Pull nothing and give nothing out until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.woken()

    # -- who waits for it ------------------------------------------------------------------------------------

    def when_room(self, wake: Callable[[], None] | None) -> None:
        """Call `wake` once: when there is room again, or the queue is resumed, retired or dropped."""
        self._on_room = wake

    def when_idle(self, wake: Callable[[], None] | None) -> None:
        """Call `wake` once nothing is in hand, which may be at once."""
        self._on_idle = wake
        self.look_idle()

    def woken(self) -> None:
        wake, self._on_room = self._on_room, None
        if wake is not None:
            wake()

    def look_idle(self) -> None:
        """Messages may have been given back."""
        if self._on_idle is not None and self.in_hand <= 0:
            wake, self._on_idle = self._on_idle, None
            wake()
