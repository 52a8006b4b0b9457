"""What the broker knows of clients that it pushes to: a client, its delivery tasks, and what is on its way.

Plain values; what becomes of them is decided in `push_state.py`.

    queue      ... 40 41 | 42  43  44  45  46 | 47  48 | 49 ...
                   done    taken, not done      sent     read next
               done = 42              taken = 47   next_offset = 49

A task has no messages, only offsets: what has to be sent again is read again. Nothing is copied anywhere, so what is
parked cannot be lost, and is still in its place in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ClientState(StrEnum):
    """How a client is."""

    ALIVE = "alive"
    # A ping or a delivery was not answered in time.
    TIMEOUT = "timeout"
    # Too many pings were not, or its connection is gone: its deliveries are parked, its queues free for others.
    DEAD = "dead"
    # It left, or has been dead for long: in no subscription any more.
    CLOSED = "closed"


class TaskState(StrEnum):
    """Where a delivery task is."""

    SENDING = "sending"
    # The client has no room, and says so; it goes on when the client says `resume`.
    HELD = "held"
    # In the timeout queue: being sent again.
    TIMEOUT = "timeout"
    # In the dead-letter queue, until `resume`.
    PARKED = "parked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Place:
    """One queue as one group reads it: it has one consumer."""

    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be sent that is not answered."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One delivery that is not answered: the queue from `start` to before `end`, of which the filter left `count`."""

    number: int
    start: int
    end: int
    count: int
    bytes: int
    due_ms: int


@dataclass(slots=True, eq=False)
class PushClient:
    """`link` is how it is called: the connection that it opened, or None while it has none."""

    name: str
    link: object | None
    since_ms: int
    ping_due_ms: int
    state: ClientState = ClientState.ALIVE
    tasks: dict[Place, PushTask] = field(default_factory=dict)
    is_ping_open: bool = False
    missed: int = 0
    # Who registered it, where users are asked who they are.
    user: str = ""

    @property
    def parked(self) -> int:
        """How many of its tasks wait for `resume`."""
        return sum(task.state is TaskState.PARKED for task in self.tasks.values())


@dataclass(slots=True, eq=False)
class PushTask:
    """Delivers one queue to one client; see the module's text for the offsets."""

    place: Place
    client: PushClient
    window: Window
    # What it was asked for with; the service's.
    request: Any
    since_ms: int
    done: int
    taken: int
    next_offset: int
    # Up to where the filter has looked, behind `next_offset` while it found nothing.
    read_offset: int
    # The end of what was ever sent; no answer counts for more.
    high: int
    state: TaskState = TaskState.SENDING
    resends: int = 0
    # What is on its way, in order, and how much that is.
    sent: dict[int, Sent] = field(default_factory=dict)
    messages_out: int = 0
    bytes_out: int = 0
    # Messages that were on their way when the task was given up the last time.
    unanswered: int = 0
    is_at_end: bool = False

    def room(self) -> Window | None:
        """What may be sent now; None for nothing. From the timeout queue one delivery is tried at a time."""
        if self.state is TaskState.TIMEOUT and not self.sent:
            return self.window
        if self.state is not TaskState.SENDING:
            return None
        messages, size = self.window.messages - self.messages_out, self.window.bytes - self.bytes_out
        return Window(messages, size) if messages > 0 and size > 0 else None

    def fits(self, size: int) -> bool:
        """Whether a delivery of this size may go: a message that is larger than the window goes alone."""
        return not self.sent or self.bytes_out + size <= self.window.bytes

    def add(self, one: Sent) -> None:
        """A delivery is on its way."""
        self.sent[one.number] = one
        self.messages_out += one.count
        self.bytes_out += one.bytes

    def drop(self, number: int) -> bool:
        """A delivery is not on its way any more; whether it was."""
        one = self.sent.pop(number, None)
        if one is None:
            return False
        self.messages_out -= one.count
        self.bytes_out -= one.bytes
        return True

    def drop_all(self) -> None:
        self.sent.clear()
        self.messages_out = self.bytes_out = 0

    def drop_taken(self) -> None:
        """Whatever ends where the client is, or before, has arrived."""
        while self.sent:
            first = next(iter(self.sent.values()))
            if first.end > self.taken:
                return
            self.drop(first.number)

    def go_back(self) -> None:
        """Forget what is on its way: it is read again from where the client has not taken it."""
        self.unanswered = self.messages_out
        self.drop_all()
        self.next_offset = self.read_offset = self.taken
        self.is_at_end = False
