"""Pops that found nothing and wait. A pop reads all queues of a topic and of its group's retries, so it is held under
topic and group, and woken by a message in any of them. One that asked for a single queue is held under that, and not
woken by messages of the others: in order there is one for each queue and consumer.

Built on `long_polling.py`, which answers each once: by a message, by its deadline, by the regular check, or to make
room. Owned by the event loop, except `on_arrival`, which the store calls in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._hot.queues import QueueState
from penstock.broker.long_polling import HeldPull, LongPolling
from penstock.broker.options import BrokerOptions
from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.pop_handles import RETRY_V1, RETRY_V2, pop_retry_topic
from penstock.remoting import Connection
from penstock.remoting.connection import WITHDRAWN
from penstock.runtime import Clock

ALL_QUEUES = -1


@dataclass(slots=True)
class Waiting:
    """A request that waits. `answer` tries it: the answer, None if it is to wait on; `later`: it is answered
    later."""

    group: str
    topic: str
    command: Command
    answer: Callable[[Connection, bool], Command | Later | None]
    # -1: all of them.
    queue_id: int = ALL_QUEUES
    # Memory that it takes besides its request.
    size: int = 0


class Later:
    """The answer comes by itself."""


LATER = Later()


class PopPolling:
    """See the module's text."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._polls: LongPolling[Waiting] = LongPolling(options, clock, self._retry)
        # Which keys a message of a topic wakes, and whether it is the topic itself, not one of retries. Keys stay:
        # there are as many as topics with groups that pop.
        self._keys: dict[bytes, dict[str, bool]] = {}
        # Single queues of a key that somebody has waited for.
        self._queues: dict[str, set[int]] = {}

    def reconfigure(self, options: BrokerOptions) -> None:
        self._polls.options = options

    def start(self) -> None:
        self._polls.start()

    def stop(self) -> None:
        self._polls.stop()

    @property
    def is_running(self) -> bool:
        return self._polls.is_running

    def drop_connection(self, connection: Connection) -> None:
        self._polls.drop_connection(connection)

    def leave(self, group: str, connection: Connection) -> None:
        """A client left a group: what a pop of it found would be invisible to the others for nothing."""
        self._polls.drop_some(connection, lambda waiting: waiting.group == group)

    def held_by(self, connection: Connection) -> int:
        return self._polls.held_by(connection)

    def held_for(self, group: str, topic: str) -> int:
        """How many wait for messages of a topic for a group."""
        key = _key(group, topic)
        return sum(self._polls.held_for(key, queue) for queue in (ALL_QUEUES, *self._queues.get(key, ())))

    def hold(self, connection: Connection, waiting: Waiting, wait_ms: int) -> None:
        """Keep a request for so long; it is tried once more right away, as a message may have come meanwhile."""
        group, topic, queue_id = waiting.group, waiting.topic, waiting.queue_id
        key = _key(group, topic)
        names = (topic, pop_retry_topic(group, topic, RETRY_V1), pop_retry_topic(group, topic, RETRY_V2))
        for name in names:
            self._keys.setdefault(name.encode(), {})[key] = name == topic
        if queue_id != ALL_QUEUES:
            self._queues.setdefault(key, set()).add(queue_id)
        self._polls.hold(connection, key, queue_id, waiting, wait_ms, waiting.command.size + waiting.size)
        self._polls.wake(key, queue_id)

    def wake(self, group: str, topic: str, queue_id: int = ALL_QUEUES) -> None:
        """Something happened to a queue as a group pops it, or to any of them."""
        self._wake(_key(group, topic), queue_id)

    def wake_topic(self, topic: str, queue_id: int) -> None:
        """An operator moved a group, or something else happened to a queue."""
        for key in tuple(self._keys.get(topic.encode(), ())):
            self._wake(key, ALL_QUEUES)

    def on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Messages of these queues became visible; any thread."""
        if not len(self._polls):
            return
        for queue in queues:
            for key, is_itself in tuple(self._keys.get(queue.topic, {}).items()):
                self._wake(key, queue.queue_id if is_itself else ALL_QUEUES)

    def _wake(self, key: str, queue_id: int) -> None:
        self._polls.wake(key, ALL_QUEUES)
        single = (queue_id,) if queue_id != ALL_QUEUES else tuple(self._queues.get(key, ()))
        for queue in single:
            self._polls.wake(key, queue)

    def forget(self, topic: str) -> None:
        """A topic is gone; who waits for it waits for nothing, and is answered when its time is over."""
        for key, is_itself in self._keys.pop(topic.encode(), {}).items():
            if is_itself:
                self._queues.pop(key, None)

    def _retry(self, held: HeldPull[Waiting], is_final: bool) -> bool:
        """Never raises: it is called from timers."""
        connection, waiting = held.connection, held.pull
        if not connection.is_open:
            return True
        if not connection.still_allows(waiting.command):
            # Before anything is popped: it would be invisible to the rest of the group for nothing.
            connection.answer(waiting.command, waiting.command.answer(ResponseCode.NO_PERMISSION, WITHDRAWN))
            return True
        try:
            answer = waiting.answer(connection, is_final)
        except PenstockError as error:
            answer = waiting.command.answer(error.code, str(error))
        if answer is None:
            return False
        if isinstance(answer, Command):
            connection.answer(waiting.command, answer)
        return True


def _key(group: str, topic: str) -> str:
    return f"{topic}@{group}"
