"""Who is to be called, in the order of asking.

Rule: one listener that raises is logged and keeps no other from being called; a cancelled one is not called any
more, not even by the round that is under way. Belongs to the event loop; no locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

Said = TypeVar("Said")
_log = logging.getLogger(__name__)


class Subscription(Generic[Said]):
    """One listener; a `port.Watch`."""

    def __init__(self, listeners: list[Subscription[Said]], listener: Callable[[Said], None]) -> None:
        self._listeners = listeners
        self._listener = listener
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        if self in self._listeners:
            self._listeners.remove(self)

    def call(self, said: Said) -> None:
        if self._is_cancelled:
            return
        try:
            self._listener(said)
        except Exception:
            _log.exception("a listener of the metadata store failed; the others are called all the same")


class Listeners(Generic[Said]):
    """All listeners for one kind of news."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription[Said]] = []

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, listener: Callable[[Said], None]) -> Subscription[Said]:
        subscription = Subscription(self._subscriptions, listener)
        self._subscriptions.append(subscription)
        return subscription

    def call(self, said: Said) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.call(said)
