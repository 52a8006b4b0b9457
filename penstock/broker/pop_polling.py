"""Pops that found nothing and wait. A pop reads all queues of a topic and of its group's retries, so it is held under
topic and group, and woken by a message in any of them.

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
from penstock.protocol.command import Command
from penstock.protocol.pop_handles import RETRY_V1, RETRY_V2, pop_retry_topic
from penstock.remoting import Connection
from penstock.runtime import Clock


@dataclass(slots=True)
class Waiting:
    """A request that waits. `answer` tries it: the answer, None if it is to wait on; `later`: it is answered
    later."""

    group: str
    topic: str
    command: Command
    answer: Callable[[Connection, bool], Command | Later | None]


class Later:
    """The answer comes by itself."""


LATER = Later()


class PopPolling:
    """See the module's text."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._polls: LongPolling[Waiting] = LongPolling(options, clock, self._retry)
        # Which keys a message of a topic wakes. Keys stay: there are as many as topics with groups that pop.
        self._keys: dict[bytes, set[str]] = {}

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
        return self._polls.held_for(_key(group, topic), 0)

    def hold(self, connection: Connection, waiting: Waiting, wait_ms: int) -> None:
        """Keep a request for so long; it is tried once more right away, as a message may have come meanwhile."""
        group, topic = waiting.group, waiting.topic
        key = _key(group, topic)
        names = (topic, pop_retry_topic(group, topic, RETRY_V1), pop_retry_topic(group, topic, RETRY_V2))
        for name in names:
            self._keys.setdefault(name.encode(), set()).add(key)
        self._polls.hold(connection, key, 0, waiting, wait_ms)

    def wake(self, group: str, topic: str) -> None:
        self._polls.wake(_key(group, topic), 0)

    def wake_topic(self, topic: str, queue_id: int) -> None:
        """An operator moved a group, or something else happened to a queue."""
        for key in tuple(self._keys.get(topic.encode(), ())):
            self._polls.wake(key, 0)

    def on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Messages of these queues became visible; any thread."""
        if not len(self._polls):
            return
        for topic in {queue.topic for queue in queues}:
            for key in tuple(self._keys.get(topic, ())):
                self._polls.wake(key, 0)

    def forget(self, topic: str) -> None:
        """A topic is gone; who waits for it waits for nothing, and is answered when its time is over."""
        self._keys.pop(topic.encode(), None)

    def _retry(self, held: HeldPull[Waiting], is_final: bool) -> bool:
        """Never raises: it is called from timers."""
        connection, waiting = held.connection, held.pull
        if not connection.is_open:
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
