"""The metadata store of a cluster: a real ZooKeeper ensemble, reached with kazoo.

    zk1:2181,zk2:2181,zk3:2181      the servers; any of them serves
    /penstock                       the root: an entry /brokers/a is ZooKeeper's /penstock/brokers/a

Rules. A read is repeated over broken connections until it is answered or its time is up. A change is sent once: if
the connection breaks before its answer, the error says that the outcome is unknown. Such a change may even be made a
little later, out of a buffer on the way; compare-and-set makes that harmless. While there is no connection nothing is
sent, so that a refused change is surely not made.

Once in a sixth of the session's timeout a transaction that changes nothing is sent through the leader: its answer
renews certainty (see `certainty`), and its absence for a third of the timeout makes us turn to another server while
the session still lives.

Everything runs in the event loop; kazoo's threads are behind `kazoo_session`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.exceptions import NotEmptyError as KazooNotEmptyError
from kazoo.protocol.states import EventType, KazooState

from penstock.coordinator.metadata.certainty import Certainty, beat_interval_ms
from penstock.coordinator.metadata.kazoo_session import KazooSession, Pending
from penstock.coordinator.metadata.listeners import Listeners
from penstock.coordinator.metadata.paths import (
    ROOT,
    check_entry_path,
    check_operations,
    check_path,
    check_value,
    join,
    parents_of,
)
from penstock.coordinator.metadata.port import (
    Check,
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
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.coordinator.metadata.zookeeper_watches import ZooKeeperWatches
from penstock.errors import (
    EntryExistsError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NoEntryError,
    NotEmptyError,
    VersionConflictError,
)
from penstock.runtime import Runtime

_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
# The connection broke, or the session ended, while an answer was awaited.
_BROKEN = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, TimeoutError)
# How often parents that someone deletes at the same time are made again.
_PARENT_TRIES = 5
_ANY_VERSION = -1

_log = logging.getLogger(__name__)


class ZooKeeperMetadata(MetadataStore):
    """A `MetadataStore` in ZooKeeper."""

    def __init__(self, options: ZooKeeperOptions, runtime: Runtime | None = None) -> None:
        self._options = options
        self._clock = (Runtime.system() if runtime is None else runtime).clock
        self.session = KazooSession(options.hosts, options.session_timeout_ms, self._handle_state)
        self._watches = ZooKeeperWatches(self._arm)
        self._state_listeners: Listeners[SessionState] = Listeners()
        self._state = SessionState.LOST
        self._certainty = Certainty()
        self._is_started = False
        # A new one at each change of state, so that nobody misses the next.
        self._changed_state = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None
        self._event_listener = self.session.enter_loop(self._handle_event)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        options = self._options
        self._is_started = True
        self.session.open()
        try:
            await self._wait_connected(self.clock_ms + options.connect_timeout_ms)
            # A server that lets us in may still lack a majority: only an answered change says that all is well.
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                await self._prove()
        except (MetadataUnavailableError, *_BROKEN) as error:
            await self.stop()
            raise MetadataUnavailableError(
                f"no ZooKeeper serves at {options.hosts}: nothing came of it in {options.connect_timeout_ms} ms",
                "check the addresses, and that a majority of its servers runs",
            ) from error
        except KazooException as error:
            await self.stop()
            raise _mapped(error, ROOT) from error
        except BaseException:
            await self.stop()
            raise
        granted_ms = self.session.granted_timeout_ms
        if granted_ms != options.session_timeout_ms:
            _log.warning(
                "ZooKeeper grants a session timeout of %d ms instead of %d ms",
                granted_ms,
                options.session_timeout_ms,
            )
        self._beats = asyncio.get_running_loop().create_task(self._beat(), name="zookeeper beats")

    async def stop(self) -> None:
        if not self._is_started:
            return
        self._is_started = False
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        await self._watches.stop()
        self._become(SessionState.LOST)
        await self.session.close()

    async def _beat(self) -> None:
        while True:
            granted_ms = self.session.granted_timeout_ms
            changed = self._changed_state
            if self._state is SessionState.CONNECTED:
                try:
                    async with asyncio.timeout(granted_ms / 3000):
                        await self._prove()
                except TimeoutError:
                    _log.warning(
                        "ZooKeeper at %s is silent; trying another of its servers", self._options.hosts
                    )
                    self.session.drop_connection()
                except KazooException as error:
                    _log.info("ZooKeeper: %r while renewing the session", error)
            # A new connection is tried at once; else it is time after a while.
            try:
                async with asyncio.timeout(beat_interval_ms(granted_ms) / 1000):
                    await changed.wait()
            except TimeoutError:
                pass

    async def _prove(self) -> None:
        """A transaction that changes nothing, answered by a majority."""
        sent_ms = self.clock_ms

        def send(client: KazooClient) -> Pending:
            transaction = client.transaction()
            transaction.check(ROOT, _ANY_VERSION)
            return transaction.commit_async()

        await self.session.call(send)
        self._certainty.answered(sent_ms, self.session.granted_timeout_ms)

    # -- reading ---------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Entry | None:
        full = self._full(check_path(path))
        try:
            value, stat = await self._read(lambda client: client.get_async(full))
        except NoNodeError:
            # The root is always there, as for the other backends; ZooKeeper makes it with the first entry.
            return Entry(path, b"", 0) if path == ROOT else None
        except KazooException as error:
            raise _mapped(error, path) from error
        return Entry(path, value, stat.version, stat.ephemeralOwner != 0)

    async def children(self, path: str) -> tuple[str, ...]:
        full = self._full(check_path(path))
        try:
            names = await self._read(lambda client: client.get_children_async(full))
        except NoNodeError:
            return ()
        except KazooException as error:
            raise _mapped(error, path) from error
        return tuple(sorted(name for name in names if full != ROOT or name != "zookeeper"))

    async def _read(self, send: Callable[[KazooClient], Pending]) -> Any:
        deadline_ms = self.clock_ms + self._options.operation_timeout_ms
        while True:
            await self._wait_connected(deadline_ms)
            try:
                return await self._in_time(send, deadline_ms)
            except _BROKEN:
                if self.clock_ms >= deadline_ms:
                    raise self._unavailable() from None
                await asyncio.sleep(0)  # Lets the loop hear of the new state.

    # -- changing --------------------------------------------------------------------------------------------

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Entry:
        await self.transact([Create(path, value, ephemeral)])
        return Entry(path, value, 0, ephemeral)

    async def set(self, path: str, value: bytes, version: int | None = None) -> Entry:
        full = self._full(check_entry_path(path))
        check_value(path, value)
        try:
            stat = await self._change(lambda client: client.set_async(full, value, _number(version)))
        except KazooException as error:
            raise _mapped(error, path, version) from error
        return Entry(path, value, stat.version, stat.ephemeralOwner != 0)

    async def delete(self, path: str, version: int | None = None) -> None:
        full = self._full(check_entry_path(path))
        try:
            await self._change(lambda client: client.delete_async(full, _number(version)))
        except KazooException as error:
            raise _mapped(error, path, version) from error

    async def transact(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if not operations:
            return
        lacking = ""
        for _ in range(_PARENT_TRIES):
            failed = await self._try(operations)
            if failed is None:
                return
            operation, error = failed
            if not (isinstance(operation, Create) and isinstance(error, NoNodeError)):
                raise _mapped(error, operation.path, getattr(operation, "version", None)) from error
            # Nothing was changed: it can be tried again once the parents are there.
            lacking = operation.path
            await self._make_parents(lacking)
        raise MetadataError(
            f"{lacking} cannot be made: its parents go as fast as they come",
            "find out who deletes them",
        )

    async def _try(self, operations: Sequence[Operation]) -> tuple[Operation, KazooException] | None:
        """Send a transaction: which operation made it fail and how, or None."""

        def send(client: KazooClient) -> Pending:
            transaction = client.transaction()
            for operation in operations:
                full = self._full(operation.path)
                match operation:
                    case Create(value=value, ephemeral=ephemeral):
                        transaction.create(full, value, ephemeral=ephemeral)
                    case Set(value=value, version=version):
                        transaction.set_data(full, value, _number(version))
                    case Delete(version=version):
                        transaction.delete(full, _number(version))
                    case Check(version=version):
                        transaction.check(full, _number(version))
            return transaction.commit_async()

        for operation, result in zip(operations, await self._change(send), strict=False):
            # Those before the failed one are rolled back, those after it not looked at.
            if isinstance(result, KazooException) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                return operation, result
        return None

    async def _make_parents(self, path: str) -> None:
        for parent in parents_of(self._full(path)):
            try:
                await self._change(partial(_create_empty, parent))
            except NodeExistsError:
                continue
            except KazooException as error:
                raise _mapped(error, path) from error

    async def _change(self, send: Callable[[KazooClient], Pending]) -> Any:
        deadline_ms = self.clock_ms + self._options.operation_timeout_ms
        await self._wait_connected(deadline_ms)
        sent_ms = self.clock_ms
        try:
            result = await self._in_time(send, deadline_ms)
        except _BROKEN as error:
            raise MetadataUnknownError(
                f"the connection to {self.address} broke after a change was sent",
                "read the entry before deciding again",
            ) from error
        self._certainty.answered(sent_ms, self.session.granted_timeout_ms)
        return result

    # -- between the two -------------------------------------------------------------------------------------

    async def _in_time(self, send: Callable[[KazooClient], Pending], deadline_ms: int) -> Any:
        # Not wait_for: that of Python 3.11 can swallow a cancellation which meets the answer.
        async with asyncio.timeout(max(0, deadline_ms - self.clock_ms) / 1000):
            return await self.session.call(send)

    async def _wait_connected(self, deadline_ms: int) -> None:
        while self._state is not SessionState.CONNECTED:
            if not self._is_started:
                raise MetadataClosedError(
                    f"{self.address} is not open", "start it first, and use it before it is stopped"
                )
            changed = self._changed_state
            try:
                async with asyncio.timeout(max(0, deadline_ms - self.clock_ms) / 1000):
                    await changed.wait()
            except TimeoutError:
                raise self._unavailable() from None

    def _unavailable(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"{self.address} does not answer",
            "check that a majority of its servers runs; nothing was changed",
        )

    def _full(self, path: str) -> str:
        return join(self._options.root, path)

    # -- watching --------------------------------------------------------------------------------------------

    def watch(self, path: str, listener: PathListener) -> Watch:
        return self._watches.add(check_path(path), listener)

    async def _arm(self, path: str) -> None:
        """Ask for the next change of the entry, and if it is there, of its children."""
        full, listener = self._full(path), self._event_listener
        if await self._read(lambda client: client.exists_async(full, watch=listener)) is None:
            return
        try:
            await self._read(lambda client: client.get_children_async(full, watch=listener))
        except NoNodeError:
            return  # Gone meanwhile: the first watch says so.

    def _handle_event(self, event: Any) -> None:
        # Events without a path only repeat what the state says.
        if event.type == EventType.NONE or event.path is None:
            return
        root = self._options.root
        below = event.path if root == ROOT else event.path.removeprefix(root) or ROOT
        self._watches.changed(below)

    def on_state(self, listener: StateListener) -> Watch:
        return self._state_listeners.add(listener)

    def _handle_state(self, state: str) -> None:
        if self._is_started:
            self._become(_STATES[state])

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        is_expected = state is SessionState.CONNECTED or not self._is_started
        _log.log(
            logging.INFO if is_expected else logging.WARNING,
            "ZooKeeper at %s: %s",
            self._options.hosts,
            state.value,
        )
        self._state = state
        if state is SessionState.LOST:
            self._certainty.lost()
        changed, self._changed_state = self._changed_state, asyncio.Event()
        changed.set()
        self._state_listeners.call(state)
        if state is SessionState.CONNECTED:
            # kazoo forgets its watches with the connection; what happened meanwhile nobody told us.
            self._watches.all_changed()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def surely_until_ms(self) -> int:
        return self._certainty.until_ms

    @property
    def clock_ms(self) -> int:
        return self._clock.monotonic_ms()

    @property
    def address(self) -> str:
        return f"zookeeper:{self._options.hosts}{self._options.root}"

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """ZooKeeper's id and password of the session, while connected: a test ends a session with it."""
        return self.session.client_id

    @property
    def granted_timeout_ms(self) -> int:
        """The session's timeout as the servers granted it; 0 before."""
        return self.session.granted_timeout_ms


def _create_empty(path: str, client: KazooClient) -> Pending:
    return client.create_async(path, b"")


def _number(version: int | None) -> int:
    return _ANY_VERSION if version is None else version


def _mapped(error: KazooException, path: str, version: int | None = None) -> MetadataError:
    match error:
        case NodeExistsError():
            return EntryExistsError(f"{path} is there already", "read it, or set it")
        case NoNodeError():
            return NoEntryError(f"there is no {path}", "create it first")
        case BadVersionError():
            return VersionConflictError(
                f"{path} has another version than {version}", "read it again and decide anew"
            )
        case KazooNotEmptyError():
            return NotEmptyError(f"{path} has entries below it", "delete those first")
        case NoChildrenForEphemeralsError():
            return MetadataError(
                f"{path} cannot be made: its parent is ephemeral", "put it below an entry that stays"
            )
        case NoAuthError():
            return MetadataError(f"ZooKeeper allows us no access to {path}", "look at the entry's ACL")
        case _:
            return MetadataError(f"ZooKeeper answered for {path}: {error!r}", "look at its servers' logs")
