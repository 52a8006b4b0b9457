"""Listeners by path, called from the event loop and never from inside the change that they are told of.

Rule: news that come before a listener was called are one call. Whoever listens may change, watch and cancel from
within: nothing is being iterated at that moment. Belongs to the event loop that calls `tell`; no locks.
"""

from __future__ import annotations

import asyncio

from penstock.coordinator.metadata.listeners import Listeners
from penstock.coordinator.metadata.port import PathListener, Watch


class PathWatchers:
    """Who watches which path."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listeners[str]] = {}
        self._told: set[str] = set()

    def add(self, path: str, listener: PathListener, *, call_first: bool = True) -> Watch:
        """From now on; with `call_first` also once without news."""
        listeners = self._listeners.setdefault(path, Listeners())
        subscription = listeners.add(listener)
        if call_first:
            asyncio.get_running_loop().call_soon(subscription.call, path)
        return PathWatch(self, path, subscription)

    def tell(self, path: str) -> None:
        """Something changed at this path."""
        if path in self._listeners and path not in self._told:
            self._told.add(path)
            asyncio.get_running_loop().call_soon(self._call, path)

    def tell_all(self) -> None:
        """Everything may have changed."""
        for path in self._listeners:
            self.tell(path)

    def is_watched(self, path: str) -> bool:
        return path in self._listeners

    def _call(self, path: str) -> None:
        self._told.discard(path)
        listeners = self._listeners.get(path)
        if listeners is not None:
            listeners.call(path)

    def forget(self, path: str) -> None:
        """A listener of this path is gone: with the last one, the path is not watched any more."""
        listeners = self._listeners.get(path)
        if listeners is not None and not len(listeners):
            del self._listeners[path]


class PathWatch:
    """One listener of one path; a `port.Watch`."""

    def __init__(self, watchers: PathWatchers, path: str, subscription: Watch) -> None:
        self._watchers = watchers
        self._path = path
        self._subscription = subscription

    def cancel(self) -> None:
        self._subscription.cancel()
        self._watchers.forget(self._path)
