"""Watches that last, made of ZooKeeper's, which tell of one change only.

Rule: the listener is called *after* the next watch is in force. What changes before that, the listener sees when it
reads; what changes after it, the watch tells. So nothing falls between two watches, and changes in quick succession
are one call. One task per watched path, in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.coordinator.metadata.listeners import Subscription
from penstock.coordinator.metadata.port import PathListener, Watch
from penstock.errors import MetadataClosedError, MetadataError

_log = logging.getLogger(__name__)
# After a watch could not be set although there was a connection.
_RETRY_S = 0.2


class ZooKeeperWatches:
    """All watched paths of one client. `arm` sets ZooKeeper's watches, and returns when they are in force."""

    def __init__(self, arm: Callable[[str], Awaitable[None]]) -> None:
        self._arm = arm
        self._paths: dict[str, _WatchedPath] = {}

    def add(self, path: str, listener: PathListener) -> Watch:
        watched = self._paths.get(path)
        if watched is None:
            watched = self._paths[path] = _WatchedPath(path, self._arm)
        else:
            watched.changed()  # The first call, which a new listener is owed; the others do not mind.
        return _ZooKeeperWatch(self, watched, watched.add(listener))

    def changed(self, path: str) -> None:
        """ZooKeeper told of a change; its watch is used up."""
        if path in self._paths:
            self._paths[path].changed()

    def all_changed(self) -> None:
        """There is a new connection, and it knows of no watch."""
        for watched in self._paths.values():
            watched.changed()

    def forget(self, watched: _WatchedPath) -> None:
        """A listener is gone; with the last one, the path is not watched any more."""
        if not watched.subscriptions and self._paths.pop(watched.path, None) is not None:
            watched.task.cancel()

    async def stop(self) -> None:
        tasks = [watched.task for watched in self._paths.values()]
        self._paths.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _WatchedPath:
    """One path, its listeners, and the task that serves them."""

    def __init__(self, path: str, arm: Callable[[str], Awaitable[None]]) -> None:
        self.path = path
        self.subscriptions: list[Subscription[str]] = []
        self._arm = arm
        self._wake = asyncio.Event()
        self._wake.set()
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {path}")

    def add(self, listener: PathListener) -> Subscription[str]:
        subscription = Subscription(self.subscriptions, listener)
        self.subscriptions.append(subscription)
        return subscription

    def changed(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._arm(self.path)
            except MetadataClosedError:
                continue  # Not started yet, or stopped: a connection, if there ever is one, wakes it.
            except MetadataError as error:
                _log.info("watching %s: %s; trying again", self.path, error)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
                continue
            for subscription in tuple(self.subscriptions):
                subscription.call(self.path)


class _ZooKeeperWatch:
    """One listener of one path; a `port.Watch`."""

    def __init__(self, watches: ZooKeeperWatches, watched: _WatchedPath, subscription: Watch) -> None:
        self._watches = watches
        self._watched = watched
        self._subscription = subscription

    def cancel(self) -> None:
        self._subscription.cancel()
        self._watches.forget(self._watched)
