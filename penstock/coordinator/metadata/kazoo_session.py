"""kazoo's threads on one side, the event loop on the other: one ZooKeeper session after another.

Rules. Nothing here blocks the event loop: requests are handed to kazoo's connection thread, and answers, news and
states come back with `call_soon_threadsafe`. Nothing is retried. kazoo reconnects by itself, for ever, and opens a
new session when the old one has expired.

Two things of kazoo's are used that it does not offer openly, both covered by tests: the timeout that the servers
granted (it may differ from the one asked for, and certainty rests on it), and dropping a connection. The latter is
needed because kazoo pings only while it sends nothing else: a server that hangs while requests keep coming would
never be noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.retry import KazooRetry

_log = logging.getLogger(__name__)

_LEVELS = {logging.WARNING: logging.DEBUG, logging.INFO: logging.DEBUG}

# kazoo's asynchronous result; it has no types.
Pending = Any


class _LessLoud(logging.LoggerAdapter[logging.Logger]):
    """kazoo warns of each attempt to connect, twice a second while servers are away. The store tells of changes."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        super().log(_LEVELS.get(level, level), msg, *args, **kwargs)


class KazooSession:
    """A kazoo client that is opened and closed once, in one event loop."""

    def __init__(self, hosts: str, session_timeout_ms: int, on_state: Callable[[str], None]) -> None:
        self._on_state = on_state
        self._loop: asyncio.AbstractEventLoop | None = None
        self.client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=0.5),
            command_retry=KazooRetry(max_tries=0),
            logger=_LessLoud(_log),
        )
        # 0 until a server has granted one.
        self.granted_timeout_ms = 0
        self._remember_granted_timeout()
        self.client.add_listener(self._handle_state)
        self._outstanding: set[asyncio.Future[Any]] = set()

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Session id and password while connected."""
        found: tuple[int, bytes] | None = self.client.client_id
        return found

    def open(self) -> None:
        """Begin to connect. `on_state` tells when it has succeeded."""
        self._loop = asyncio.get_running_loop()
        self.client.start_async()

    async def close(self) -> None:
        """End the session if a server can be reached, and kazoo's threads in any case."""
        for future in self._outstanding:
            if not future.done():
                future.set_exception(ConnectionClosedError("the session is being closed"))
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except (KazooException, OSError) as error:
            _log.warning("closing the ZooKeeper session: %s", error)

    async def call(self, send: Callable[[KazooClient], Pending]) -> Any:
        """The answer to one request, or kazoo's exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def completed(result: Pending) -> None:
            self._enter_loop(_settle, future, result)

        self._outstanding.add(future)
        try:
            send(self.client).rawlink(completed)
            return await future
        finally:
            self._outstanding.discard(future)

    def drop_connection(self) -> None:
        """Give up on the server at the other end; the session goes on with another one."""
        if self.client.connected:
            self.client._call(_CONNECTION_DROP, self.client.handler.async_result())

    def enter_loop(self, listener: Callable[[Any], None]) -> Callable[[Any], None]:
        """The listener, as one that kazoo's threads may call."""
        return lambda said: self._enter_loop(listener, said)

    def _handle_state(self, state: str) -> None:
        self._enter_loop(self._on_state, state)

    def _enter_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None  # Nothing comes before `open`.
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            _log.debug("the event loop is closed; nobody is left to be told")

    def _remember_granted_timeout(self) -> None:
        connection = self.client._connection
        connect = connection._connect

        def connect_and_remember(*arguments: Any) -> Any:
            read_timeout, connect_timeout = connect(*arguments)
            # kazoo reads for two thirds of what was granted.
            self.granted_timeout_ms = round(read_timeout * 3 / 2)
            return read_timeout, connect_timeout

        connection._connect = connect_and_remember


def _settle(future: asyncio.Future[Any], result: Pending) -> None:
    if future.done():
        return
    if result.exception is None:
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)
