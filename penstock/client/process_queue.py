"""The messages of one queue between being pulled and being done with: an ordered map from offset to message.

    offsets   ... 40 41 | 42  43  44  45  46  47 | 48 ...
                        |     done         done  |
               committed 42 = lowest not done    next to pull 48

Rules: the committed offset is the lowest that is not done with, so a crash repeats messages and never skips one.
Offsets only grow: what is pulled twice is taken once. Pulling stops while too many messages, too many bytes or
too wide a span of offsets are here, because one message that hangs must not make the rest pile up without end.

A queue ends in two steps. A retired queue gives nothing out any more, but what is in hand still counts when it
is done. A dropped queue counts nothing: others have it, or it was set to another offset.

Belongs to the consumer's event loop, except `waiting`, which the handout guards, and the two flags, which may be
read from anywhere.
"""

from __future__ import annotations

from collections import OrderedDict, deque
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


class ProcessQueue:
    """One queue as one consumer holds it."""

    def __init__(
        self, queue: MessageQueue, next_offset: int, limits: QueueLimits, *, orderly: bool = False
    ) -> None:
        self.queue = queue
        self.next_offset = next_offset
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
        self.locked_ms = 0
        self.locked_wall_ms = 0
        # When the last pull was answered and the last message done with.
        self.pulled_ms = 0
        self.pulled_wall_ms = 0
        self.consumed_wall_ms = 0
        self._limits = limits
        self._orderly = orderly
        self._held: OrderedDict[int, ReceivedMessage] = OrderedDict()
        self._last = -1
        self._on_room: Callable[[], None] | None = None
        self._on_idle: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Messages not done with."""
        return len(self._held)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return self._held.get(message.queue_offset) is message

    @property
    def committed(self) -> int:
        """The offset to store: everything below is done with."""
        return next(iter(self._held)) if self._held else self.next_offset

    @property
    def lowest(self) -> ReceivedMessage | None:
        """The message that holds up the committed offset."""
        return next(iter(self._held.values())) if self._held else None

    @property
    def highest_offset(self) -> int:
        """Offset of the last message here, or 0."""
        return self._last if self._held else 0

    @property
    def in_hand(self) -> int:
        """Messages given out and not done with."""
        return len(self._held) - len(self.waiting)

    @property
    def span(self) -> int:
        return self._last - next(iter(self._held)) if self._held else 0

    @property
    def is_full(self) -> bool:
        """Whether pulling pauses. The span does not matter in order, where nothing can overtake."""
        limits = self._limits
        return (
            len(self._held) >= limits.messages
            or self.bytes >= limits.bytes
            or (not self._orderly and self.span > limits.span)
        )

    @property
    def gives_out(self) -> bool:
        return self.is_locked and not (self.is_retired or self.is_paused)

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take what was pulled, and where to pull next; the messages that are new are returned for handing out."""
        if self.is_dropped:
            return []
        last, new = self._last, []
        for message in messages:
            offset = message.queue_offset
            if offset > last:
                self._held[offset] = message
                self.bytes += message.size
                last = offset
                new.append(message)
        self._last = last
        self.next_offset = max(self.next_offset, next_offset)
        return new

    def done(self, messages: Iterable[ReceivedMessage]) -> int:
        """Forget these messages; the committed offset after that. Of a dropped queue: -1, nothing counts."""
        if self.is_dropped:
            return -1
        for message in messages:
            if self._held.pop(message.queue_offset, None) is not None:
                self.bytes -= message.size
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
        self._held.clear()
        self.bytes = 0
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
