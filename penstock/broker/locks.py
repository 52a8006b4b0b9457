"""Which client of a group may consume a queue in order.

Rules: a lock belongs to a client id and a queue within a group. It is granted when the queue is free, already
the client's own, or its lock was not renewed in time; each grant renews it. Only the holder unlocks. Time is
monotonic. The number of locks is limited (A14). Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.broker.options import BrokerOptions
from penstock.protocol.bodies import MessageQueue
from penstock.runtime import Clock


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """Locks of all groups."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._expiry_ms = options.queue_lock_expiry_ms
        self._count_max = options.queue_locks_max
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Try to lock queues for a client; those that it holds now."""
        now_ms = self._clock.monotonic_ms()
        locks = self._groups.get(group, {})
        granted = [queue for queue in queues if self._lock_one(locks, client_id, queue, now_ms)]
        if locks:  # put back in any case: making room may have taken out a group that was empty for a moment
            self._groups[group] = locks
        return granted

    def _lock_one(
        self, locks: dict[MessageQueue, _Lock], client_id: str, queue: MessageQueue, now_ms: int
    ) -> bool:
        held = locks.get(queue)
        if held is None:
            if self._count >= self._count_max:
                self.scan()
                if self._count >= self._count_max:
                    return False
            locks[queue] = _Lock(client_id, now_ms)
            self._count += 1
            return True
        if held.client_id != client_id and not self._is_expired(held, now_ms):
            return False
        held.client_id = client_id
        held.renewed_ms = now_ms
        return True

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free the queues that the client holds; others stay as they are."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def is_locked(self, group: str) -> bool:
        """Whether any queue of a group is locked: the group consumes in order."""
        locks = self._groups.get(group)
        if locks is None:
            return False
        now_ms = self._clock.monotonic_ms()
        return any(not self._is_expired(lock, now_ms) for lock in locks.values())

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """Client id that holds a queue."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._is_expired(lock, self._clock.monotonic_ms()):
            return None
        return lock.client_id

    def remove_group(self, group: str) -> None:
        """The group is gone."""
        self._count -= len(self._groups.pop(group, ()))

    def scan(self) -> None:
        """Forget locks that nobody renewed."""
        now_ms = self._clock.monotonic_ms()
        for group, locks in [*self._groups.items()]:
            for queue in [queue for queue, lock in locks.items() if self._is_expired(lock, now_ms)]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._expiry_ms
