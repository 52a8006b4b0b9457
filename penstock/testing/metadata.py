"""A metadata store in memory, shared by as many clients as a test wants, with everything that may go wrong with it.

    ensemble = MemoryEnsemble(session_timeout_ms=6000)
    one, two = ensemble.client(), ensemble.client()     # each a session of its own, as two coordinators have
    one.cut()                                           # its connection drops; after the timeout its session ends
    one.heal()

Rules. It keeps the contract of `penstock.coordinator.metadata.port` (the same tests run against it), and is as
unkind as ZooKeeper: a change whose answer is lost was made or not, a session that was cut off too long is over,
reads are answered while certainty runs out. Time comes from the runtime's clock and the event loop, delays from
`latency`: in a simulated loop with a seed, a run repeats exactly. One event loop for the ensemble and its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.coordinator.metadata.certainty import Certainty, beat_interval_ms
from penstock.coordinator.metadata.listeners import Listeners
from penstock.coordinator.metadata.paths import check_path
from penstock.coordinator.metadata.port import (
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    PathListener,
    SessionState,
    Set,
    StateListener,
    Watch,
)
from penstock.coordinator.metadata.tree import Plan, Tree
from penstock.coordinator.metadata.watchers import PathWatchers
from penstock.errors import MetadataClosedError, MetadataUnavailableError, MetadataUnknownError
from penstock.runtime import Runtime

Result = TypeVar("Result")
# Seconds that one way takes. Drawn anew for each.
Latency = Callable[[], float]


class MemoryEnsemble:
    """The servers: the tree and the sessions."""

    def __init__(
        self,
        runtime: Runtime | None = None,
        *,
        session_timeout_ms: int = 6000,
        operation_timeout_ms: int = 6000,
        latency: Latency | None = None,
    ) -> None:
        self.runtime = Runtime.system() if runtime is None else runtime
        self.session_timeout_ms = session_timeout_ms
        self.operation_timeout_ms = operation_timeout_ms
        self.latency = latency
        self.tree = Tree()
        self.is_serving = True
        self._clients: list[MemoryMetadata] = []
        # Session number -> when it was last heard of.
        self._heard_ms: dict[int, int] = {}
        self._last_session = 0
        self._timer: asyncio.TimerHandle | None = None

    def client(self) -> MemoryMetadata:
        """A client, not started yet."""
        return MemoryMetadata(self)

    def stop_serving(self) -> None:
        """All servers are gone, with no majority left: nobody can be heard, and no session ends."""
        self.is_serving = False
        for client in tuple(self._clients):
            client.notice()

    def serve_again(self) -> None:
        """They are back. A new leader counts every session from now."""
        self.is_serving = True
        now_ms = self.now_ms()
        self._heard_ms = dict.fromkeys(self._heard_ms, now_ms)
        for client in tuple(self._clients):
            client.notice()

    def now_ms(self) -> int:
        return self.runtime.clock.monotonic_ms()

    # -- for clients -----------------------------------------------------------------------------------------

    def join(self, client: MemoryMetadata) -> int:
        """A new session."""
        if client not in self._clients:
            self._clients.append(client)
        self._last_session += 1
        self._heard_ms[self._last_session] = self.now_ms()
        self._look_later()
        return self._last_session

    def leave(self, client: MemoryMetadata, session: int, *, is_reached: bool) -> None:
        """The client is gone; if it could say so, its session is too."""
        if client in self._clients:
            self._clients.remove(client)
        if is_reached:
            self.end_session(session)
        if not self._heard_ms and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_alive(self, session: int) -> bool:
        return session in self._heard_ms

    def hear(self, session: int) -> None:
        if session in self._heard_ms:
            self._heard_ms[session] = self.now_ms()

    def end_session(self, session: int) -> None:
        """Its ephemeral entries go, all at once."""
        if self._heard_ms.pop(session, None) is not None:
            self.change([Delete(path) for path in self.tree.owned_by(session)], session)

    def change(self, operations: Sequence[Operation], session: int) -> Plan:
        plan = self.tree.plan(operations, session)
        self.tree.apply(plan)
        for client in tuple(self._clients):
            client.hear_of(plan.told)
        return plan

    def _look_later(self) -> None:
        """End the sessions that nobody heard of, now and when the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._heard_ms:
            return
        now_ms = self.now_ms()
        due_ms = min(self._heard_ms.values()) + self.session_timeout_ms
        if self.is_serving and due_ms <= now_ms:
            for session, heard_ms in tuple(self._heard_ms.items()):
                if heard_ms + self.session_timeout_ms <= now_ms:
                    self.end_session(session)
            self._look_later()
            return
        delay_ms = max(due_ms - now_ms, 1) if self.is_serving else self.session_timeout_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._look_later)


class MemoryMetadata(MetadataStore):
    """One client of a `MemoryEnsemble`, with the handles of a saboteur."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self._ensemble = ensemble
        self._watchers = PathWatchers()
        self._state_listeners: Listeners[SessionState] = Listeners()
        self._state = SessionState.LOST
        self._certainty = Certainty()
        self._session = 0
        self._is_started = False
        self._is_linked = True
        # Counts the connections: an answer belongs to the one that its request went out on.
        self._connection = 0
        self._changed_state = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()

    # -- sabotage --------------------------------------------------------------------------------------------

    def cut(self, *, silently: bool = False) -> None:
        """The connection drops. Silently: packets vanish, and the client notices after two thirds of the timeout."""
        self._is_linked = False
        if silently:
            self._after(self._ensemble.session_timeout_ms * 2 / 3000, self.notice)
        else:
            self.notice()

    def pause(self) -> None:
        """As a stopped process: nothing is sent, nothing is heard, and nothing is noticed before `heal`."""
        self._is_linked = False

    def heal(self) -> None:
        """The servers can be reached again; whether the session still lives, they say."""
        self._is_linked = True
        # A paused client, too, has lost what was under way.
        self._drop()
        self.notice()

    def expire(self) -> None:
        """The servers end the session, and say so. Not for a client that is cut off: it would not hear of it, and no
        server ends a session before its time."""
        assert self._is_reached(), (
            "a client that is cut off cannot be told; its session ends with its timeout"
        )
        self._ensemble.end_session(self._session)
        self._drop()
        self.notice()

    @property
    def session(self) -> int:
        return self._session

    @property
    def is_linked(self) -> bool:
        """Whether its packets arrive."""
        return self._is_linked

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self._is_reached():
            raise self._unavailable()
        self._is_started = True
        self.notice()

    async def stop(self) -> None:
        if not self._is_started:
            return
        is_reached = self._is_reached()
        self._is_started = False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._connection += 1
        self._certainty.lost()
        self._become(SessionState.LOST)
        self._ensemble.leave(self, self._session, is_reached=is_reached)

    def notice(self) -> None:
        """See how things stand, and become it."""
        if not self._is_started:
            return
        if not self._is_reached():
            self._drop()
            return
        if self._state is SessionState.CONNECTED:
            return
        if self._session and not self._ensemble.is_alive(self._session):
            self._session = 0
            self._certainty.lost()
            self._become(SessionState.LOST)
        if not self._session:
            self._session = self._ensemble.join(self)
        self._ensemble.hear(self._session)
        self._become(SessionState.CONNECTED)
        self._watchers.tell_all()
        self._beat(self._connection)

    def _drop(self) -> None:
        if self._state is SessionState.CONNECTED:
            self._connection += 1
            self._become(SessionState.SUSPENDED)

    def _is_reached(self) -> bool:
        return self._is_linked and self._ensemble.is_serving

    # -- operations ------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Entry | None:
        return await self._read(lambda: self._ensemble.tree.get(path))

    async def children(self, path: str) -> tuple[str, ...]:
        return await self._read(lambda: self._ensemble.tree.children(path))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Entry:
        await self._change([Create(path, value, ephemeral)])
        return Entry(path, value, 0, ephemeral)

    async def set(self, path: str, value: bytes, version: int | None = None) -> Entry:
        node = (await self._change([Set(path, value, version)])).nodes[path]
        assert node is not None  # It was just set.
        return Entry(path, value, node.version, node.owner is not None)

    async def delete(self, path: str, version: int | None = None) -> None:
        await self._change([Delete(path, version)])

    async def transact(self, operations: Sequence[Operation]) -> None:
        await self._change(tuple(operations))

    async def _read(self, read: Callable[[], Result]) -> Result:
        deadline_ms = self.clock_ms + self._ensemble.operation_timeout_ms
        while True:
            await self._wait_connected(deadline_ms)
            connection = self._connection
            if await self._arrives(connection, deadline_ms):
                result = read()
                if await self._arrives(connection, deadline_ms):
                    return result
            if self.clock_ms >= deadline_ms:
                raise self._unavailable()

    async def _change(self, operations: Sequence[Operation]) -> Plan:
        deadline_ms = self.clock_ms + self._ensemble.operation_timeout_ms
        await self._wait_connected(deadline_ms)
        connection, sent_ms, session = self._connection, self.clock_ms, self._session
        if await self._arrives(connection, deadline_ms) and self._ensemble.is_alive(session):
            self._ensemble.hear(session)
            plan = self._ensemble.change(operations, session)
            if await self._arrives(connection, deadline_ms):
                self._certainty.answered(sent_ms, self._ensemble.session_timeout_ms)
                return plan
        raise MetadataUnknownError(
            f"the connection to {self.address} broke after a change was sent",
            "read the entry before deciding again",
        )

    async def _wait_connected(self, deadline_ms: int) -> None:
        while self._state is not SessionState.CONNECTED:
            if not self._is_started:
                raise MetadataClosedError(f"{self.address} is not open", "start it first")
            await self._wait_change(deadline_ms)
            if self.clock_ms >= deadline_ms:
                raise self._unavailable()

    def _unavailable(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"{self.address} cannot be reached", "check that its servers run, a majority of them"
        )

    async def _arrives(self, connection: int, deadline_ms: int) -> bool:
        """One way. False if the connection broke meanwhile; in silence, it is waited for until it is noticed."""
        await asyncio.sleep(self._ensemble.latency() if self._ensemble.latency is not None else 0)
        while connection == self._connection and not self._is_reached() and self.clock_ms < deadline_ms:
            await self._wait_change(deadline_ms)
        return connection == self._connection and self._is_reached()

    async def _wait_change(self, deadline_ms: int) -> None:
        changed = self._changed_state
        try:
            async with asyncio.timeout(max(0, deadline_ms - self.clock_ms) / 1000):
                await changed.wait()
        except TimeoutError:
            pass

    def _beat(self, connection: int) -> None:
        """Certainty needs a change now and then: here it is a mere word to the servers."""
        if connection != self._connection:
            return
        if self._is_reached():
            sent_ms = self.clock_ms
            if not self._ensemble.is_alive(self._session):
                self._drop()
                self.notice()
                return
            self._ensemble.hear(self._session)
            self._certainty.answered(sent_ms, self._ensemble.session_timeout_ms)
        interval_ms = beat_interval_ms(self._ensemble.session_timeout_ms)
        self._after(interval_ms / 1000, lambda: self._beat(connection))

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            work()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    # -- watching --------------------------------------------------------------------------------------------

    def watch(self, path: str, listener: PathListener) -> Watch:
        return self._watchers.add(check_path(path), listener)

    def hear_of(self, paths: Sequence[str]) -> None:
        """The servers' news; they are lost with the connection, and made up for when it is back."""
        if self._is_reached() and self._state is SessionState.CONNECTED:
            for path in paths:
                self._watchers.tell(path)

    def on_state(self, listener: StateListener) -> Watch:
        return self._state_listeners.add(listener)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def surely_until_ms(self) -> int:
        return self._certainty.until_ms

    @property
    def clock_ms(self) -> int:
        return self._ensemble.now_ms()

    @property
    def address(self) -> str:
        return "memory:"

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        # A new event each time: whoever waits for the next change waits for that one.
        changed, self._changed_state = self._changed_state, asyncio.Event()
        changed.set()
        self._state_listeners.call(state)
