"""Which queue a message goes to.

Rules: without a key, queues take turns, beginning anywhere, so that producers spread; a broker that just failed
is passed over, and so is one that is to be avoided, as long as there is another. With a key, the queue depends
on the key and on the number of queues alone, so that messages of one key stay in order. Plain code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.client.fault_latency import FaultLatency
from penstock.client.options import require_range
from penstock.errors import OptionError
from penstock.message.hashing import java_string_hash
from penstock.protocol.bodies.queues import MessageQueue


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Refuse what is no queue."""
    given: object = queue
    if not isinstance(given, MessageQueue):
        raise OptionError(f"a queue is {given!r}", "use one of queues(topic)")
    return queue


def check_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Refuse what is no list of queues; a single queue is a tuple."""
    given: object = queues
    if isinstance(given, MessageQueue) or not isinstance(given, Iterable):
        raise OptionError(f"queues is {given!r}", "use a list of queues")
    return [check_queue(queue) for queue in queues]


def check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    """Refuse what is no mapping of queues to offsets."""
    given: object = offsets
    if not isinstance(given, Mapping):
        raise OptionError(f"offsets is {given!r}", "use a mapping of queues to offsets, as {queue: 17}")
    for queue, offset in offsets.items():
        check_queue(queue)
        require_range("offset", offset, 0, 2**63 - 1)


def select_by_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key: the one that RocketMQ's own hash selector chooses, so that producers in Java and in Python
    agree where the messages of one key are in order."""
    return queues[abs(java_string_hash(key)) % len(queues)]


class RoundRobin:
    """Turns of one topic's queues."""

    def __init__(self, start: int, faults: FaultLatency | None = None) -> None:
        self._turn = start
        self._faults = faults

    def next(self, queues: Sequence[MessageQueue], avoid_broker: str = "", now_ms: int = 0) -> MessageQueue:
        """The next queue, of another broker than `avoid_broker` where there is one."""
        first = self._take(queues)
        if not avoid_broker and self._faults is None:
            return first
        fallback: MessageQueue | None = None
        queue = first
        for _ in range(len(queues)):
            if queue.broker_name != avoid_broker:
                if self._faults is None or self._faults.is_available(queue.broker_name, now_ms):
                    return queue
                fallback = fallback or queue
            queue = self._take(queues)
        if fallback is not None and self._faults is not None:
            names = [queue.broker_name for queue in queues if queue.broker_name != avoid_broker]
            best = self._faults.least_bad(names)
            return next(queue for queue in queues if queue.broker_name == best)
        return first

    def _take(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        queue = queues[self._turn % len(queues)]
        self._turn += 1
        return queue
