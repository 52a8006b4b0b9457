"""Which queues a consumer holds, and how it comes to hold them: events in, instructions out.

                      wanted, in order                     granted
            (absent) ------------------> LOCKING ------------------------> STARTING
               | |                          | refused: absent, tried again   |  |
               | +--- wanted, any order -----------------------------------> +  | offset known
               |                                                                v
               +<----------- released ------------ RELEASING <------------- HELD
                                                      ^    not wanted, or stuck
                                                      +--- LOCKING, STARTING: not wanted any more

Rules: in one answer every Release comes before every Lock and Start, so a queue is dropped before another is
taken over. A queue that is wanted again while it is being released waits until that is done: it is never held
twice. Without a member list nothing changes. A consumer that its own group does not list says so to the broker
and keeps its share for one round; if it is still missing then, the others have its queues, and it lets go.

`Rebalance` knows no network and no clock. It belongs to the consumer's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.client.allocation import Strategy, allocate
from penstock.errors import invariant
from penstock.protocol.bodies import MessageQueue

# How soon a queue is tried again that could not be locked or whose offset could not be found.
RETRY_MS = 1_000


class QueueState(Enum):
    """How far a queue is; an absent queue has no entry."""

    LOCKING = "locking"
    STARTING = "starting"
    HELD = "held"
    RELEASING = "releasing"


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """The queues of a topic, and the members of the group if a broker told them."""

    topic: str
    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The user names the queues; members do not matter."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class TopicLeft:
    """The topic is not subscribed any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class LockAnswered:
    """Which of the queues asked for are locked now; the others belong to somebody else for the time being."""

    asked: tuple[MessageQueue, ...]
    granted: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Started:
    """The queue's offset is known and it is being pulled."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The offset could not be found out."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Stuck:
    """Nothing came of pulling the queue for too long, or its lock was lost: begin anew."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Released:
    """The release is finished: offset stored, lock given back."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Stopped:
    """The consumer closes: let go of everything."""


Event = TopicSeen | Assigned | TopicLeft | LockAnswered | Started | StartFailed | Stuck | Released | Stopped


# -- instructions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Release:
    """Stop pulling, store the offset, give the lock back; then say Released."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Lock:
    """Ask the brokers for the locks; then say LockAnswered."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Find the offset and begin to pull; then say Started or StartFailed."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Changed:
    """Tell whoever wants to know which queues of the topic are this consumer's from now on."""

    topic: str
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Send a heartbeat: the group does not list this consumer."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Look at all topics again after this time."""

    after_ms: int


Instruction = Release | Lock | Start | Changed | Announce | TryAgain


class Rebalance:
    """The queues of one consumer."""

    def __init__(self, client_id: str, strategy: Strategy, *, orderly: bool, broadcasting: bool) -> None:
        self._client_id = client_id
        self._strategy = strategy
        self._locks = orderly and not broadcasting
        self._broadcasting = broadcasting
        self._wanted: dict[str, tuple[MessageQueue, ...]] = {}
        self._states: dict[MessageQueue, QueueState] = {}
        self._missing: set[str] = set()
        # Failed to start and being released: not begun again at once, but after a while.
        self._cooling: set[MessageQueue] = set()
        self._stopped = False

    def wanted(self, topic: str) -> tuple[MessageQueue, ...]:
        """The share of this consumer, held already or not."""
        return self._wanted.get(topic, ())

    def state(self, queue: MessageQueue) -> QueueState | None:
        return self._states.get(queue)

    @property
    def states(self) -> dict[MessageQueue, QueueState]:
        return dict(self._states)

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wanted queues are held."""
        wanted = {queue for queues in self._wanted.values() for queue in queues}
        return wanted == self._states.keys() and all(
            state is QueueState.HELD for state in self._states.values()
        )

    def handle(self, event: Event) -> list[Instruction]:
        """What has to be done because of the event."""
        match event:
            case TopicSeen():
                return self._see(event)
            case Assigned(queues):
                return self._assign(queues)
            case TopicLeft(topic):
                return self._want(topic, ())
            case LockAnswered(asked, granted):
                return self._locked(asked, granted)
            case Started(queue):
                return self._started(queue)
            case StartFailed(queue):
                return self._start_failed(queue)
            case Stuck(queue):
                return self._release(queue) if self._states.get(queue) is QueueState.HELD else []
            case Released(queue):
                return self._released(queue)
            case Stopped():
                return self._stop()

    def validate(self) -> None:
        """What must hold between two events."""
        if self._stopped:
            invariant(not self._wanted, "a stopped consumer wants queues")
        for topic, queues in self._wanted.items():
            invariant(len(set(queues)) == len(queues), f"a queue of {topic} is wanted twice")
        if not self._locks:
            invariant(QueueState.LOCKING not in self._states.values(), "a lock where nothing is locked")

    # -- what is wanted --------------------------------------------------------------------------------------

    def _see(self, event: TopicSeen) -> list[Instruction]:
        if self._broadcasting:
            return self._want(event.topic, event.queues)
        if event.members is None:
            return []
        if self._client_id not in event.members and event.topic not in self._missing:
            self._missing.add(event.topic)
            return [Announce(), TryAgain(RETRY_MS)]
        instructions: list[Instruction] = []
        if self._client_id in event.members:
            self._missing.discard(event.topic)
        else:
            instructions += [Announce(), TryAgain(RETRY_MS)]
        share = allocate(self._strategy, self._client_id, event.queues, event.members)
        return self._want(event.topic, tuple(share)) + instructions

    def _assign(self, queues: tuple[MessageQueue, ...]) -> list[Instruction]:
        topics = dict.fromkeys([*self._wanted, *(queue.topic for queue in queues)])
        releases: list[Instruction] = []
        rest: list[Instruction] = []
        for topic in topics:
            for step in self._want(topic, tuple(dict.fromkeys(q for q in queues if q.topic == topic))):
                (releases if isinstance(step, Release) else rest).append(step)
        return releases + rest

    def _want(self, topic: str, queues: tuple[MessageQueue, ...]) -> list[Instruction]:
        if self._stopped:
            return []
        before = self._wanted.get(topic)
        if queues:
            self._wanted[topic] = queues
        else:
            self._wanted.pop(topic, None)
        instructions: list[Instruction] = []
        for queue, state in list(self._states.items()):
            # A lock that is being asked for is waited for: it could be granted after it was given back.
            if queue.topic == topic and queue not in queues and state is not QueueState.LOCKING:
                instructions += self._release(queue)
        instructions += self._acquire([queue for queue in queues if queue not in self._states])
        if set(before or ()) != set(queues):
            instructions.append(Changed(topic, queues))
        return instructions

    def _is_wanted(self, queue: MessageQueue) -> bool:
        return queue in self._wanted.get(queue.topic, ())

    def _stop(self) -> list[Instruction]:
        self._stopped = True
        self._wanted.clear()
        instructions: list[Instruction] = []
        for queue, state in list(self._states.items()):
            if state is not QueueState.LOCKING:
                instructions += self._release(queue)
        return instructions

    # -- one queue's way -------------------------------------------------------------------------------------

    def _acquire(self, queues: list[MessageQueue]) -> list[Instruction]:
        if not queues:
            return []
        if self._locks:
            for queue in queues:
                self._states[queue] = QueueState.LOCKING
            return [Lock(tuple(queues))]
        return self._begin(queues)

    def _begin(self, queues: list[MessageQueue]) -> list[Instruction]:
        for queue in queues:
            self._states[queue] = QueueState.STARTING
        return [Start(queue) for queue in queues]

    def _locked(self, asked: tuple[MessageQueue, ...], granted: frozenset[MessageQueue]) -> list[Instruction]:
        releases: list[Instruction] = []
        starts: list[MessageQueue] = []
        refused = False
        for queue in asked:
            if self._states.get(queue) is not QueueState.LOCKING:
                continue
            if queue not in granted:
                del self._states[queue]
                refused = refused or self._is_wanted(queue)
            elif self._is_wanted(queue):
                starts.append(queue)
            else:
                releases += self._release(queue)
        return releases + self._begin(starts) + ([TryAgain(RETRY_MS)] if refused else [])

    def _started(self, queue: MessageQueue) -> list[Instruction]:
        if self._states.get(queue) is QueueState.STARTING:
            self._states[queue] = QueueState.HELD
        return []

    def _start_failed(self, queue: MessageQueue) -> list[Instruction]:
        if self._states.get(queue) is not QueueState.STARTING:
            return []
        # Through a release, because a lock may have to be given back.
        self._cooling.add(queue)
        return self._release(queue)

    def _release(self, queue: MessageQueue) -> list[Instruction]:
        if self._states.get(queue) is QueueState.RELEASING:
            return []
        self._states[queue] = QueueState.RELEASING
        return [Release(queue)]

    def _released(self, queue: MessageQueue) -> list[Instruction]:
        if self._states.get(queue) is not QueueState.RELEASING:
            return []
        del self._states[queue]
        if queue in self._cooling:
            self._cooling.discard(queue)
            return [TryAgain(RETRY_MS)] if self._is_wanted(queue) else []
        return self._acquire([queue]) if self._is_wanted(queue) else []
