"""The message store: one directory, one writer, many readers.

Lifecycle: `open` takes the directory's lock, recovers, leaves an `abort` marker that only a clean `close`
removes, and starts the keeper thread. Appends from any thread are serialised by one lock; a group pays for
it once. What a caller may rely on is in the result's `durability`, and in `docs/guarantees.md`.

    with MessageStore.open(path) as store:
        result = store.append(Message.of("orders", b"...", keys="42"))
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

from penstock._hot.dispatch import Dispatcher
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.errors import (
    DiskFullError,
    FlushTimeoutError,
    MessageTooLargeError,
    StoreError,
    StoreFailedError,
)
from penstock.message import HostAddress, Message
from penstock.message.properties import PropertyName
from penstock.runtime import PeriodicThread, Runtime
from penstock.runtime.disk import NO_SPACE
from penstock.store.checkpoint import CheckpointFile
from penstock.store.commit_log import CommitLog
from penstock.store.dispatching import LogDispatch
from penstock.store.doors import ReadDoors, ReplicaDoors
from penstock.store.findings import Findings
from penstock.store.flush import LogFlusher
from penstock.store.gate import WriteGate
from penstock.store.keeper import Keeper
from penstock.store.key_index import KeyIndex
from penstock.store.layout import StorePaths
from penstock.store.limits import check_batch, check_message, check_place
from penstock.store.options import FlushMode, StoreOptions
from penstock.store.ownership import Ownership
from penstock.store.queue_table import TAIL_MAX, QueueTable
from penstock.store.reading import StoreReader
from penstock.store.recovery import Progress, Recovery, RecoveryReport, discard_impossible
from penstock.store.replica import ReplicaSide
from penstock.store.results import AppendResult, BatchResult, Durability, PutStatus
from penstock.store.segment import Segment
from penstock.store.sizes import require_sizes
from penstock.store.status import describe
from penstock.store.truncation import Truncation
from penstock.telemetry import Meters

_LOG = logging.getLogger("penstock.store")
DEFAULT_HOST = HostAddress("127.0.0.1", 10911)
KEEPER_TICK_MS = 100
# Members of an enumeration are looked up slowly, and every group asks for this one.
MEMORY = Durability.MEMORY
STORED = (MEMORY, PutStatus.PUT_OK)
ArrivalListener = Callable[[Sequence[QueueState]], None]


class MessageStore(ReadDoors, ReplicaDoors):
    """See the module's text. Build it with `open`, never directly."""

    def __init__(
        self, path: Path, options: StoreOptions, runtime: Runtime, store_host: HostAddress, *, read_only: bool
    ) -> None:
        self.path = path
        self.options = options
        self.findings = Findings()
        self.meters = Meters(("appends", "append_bytes", "flushes", "gets", "get_messages"), ("flush_ns",))
        self._counters = self.meters.counters
        self.report = RecoveryReport()
        self.paths = StorePaths(path)
        self._runtime = runtime
        self.is_read_only = read_only
        self._store_host = store_host
        self._host_bytes = store_host.encode()
        self._lock = threading.RLock()
        self._ownership = Ownership(runtime.disk, self.paths)
        self._listeners: list[ArrivalListener] = []
        self._sync_mode = options.flush_mode is FlushMode.SYNC
        self._default_durability = Durability.FLUSHED if self._sync_mode else Durability.MEMORY
        self.dispatcher = Dispatcher(options.delays_ms, options.index_enabled, TAIL_MAX)
        self.log = CommitLog(
            runtime,
            self.paths,
            options,
            self.findings,
            self._host_bytes,
            self.dispatcher,
            read_only=read_only,
        )
        self.queues = QueueTable(
            runtime.disk, self.paths, options, self.findings, self.dispatcher, read_only=read_only
        )
        self.index = KeyIndex(runtime, self.paths, options, self.findings, read_only=read_only)
        self.flusher = LogFlusher(self.log, runtime.clock, self.meters)
        self.gate = WriteGate(self.flusher, read_only=read_only)
        self.dispatch = LogDispatch(self.log, self.queues, self.dispatcher, self.findings)
        self.reader = StoreReader(
            self.log,
            self.queues,
            self.index,
            self.dispatch,
            options,
            self.findings,
            self._lock,
            self.absorb_keys,
        )
        self.checkpoint_file = CheckpointFile(runtime.disk, self.paths.checkpoint)
        self.keeper = Keeper(self, runtime, self._lock)
        self.replica_side = ReplicaSide(self, self._lock)
        self._truncation = Truncation(self, self._lock)
        self._thread: PeriodicThread | None = None

    # -- lifecycle -------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path,
        options: StoreOptions | None = None,
        *,
        runtime: Runtime | None = None,
        store_host: HostAddress = DEFAULT_HOST,
        read_only: bool = False,
        background: bool = True,
        progress: Progress | None = None,
        replica: bool = False,
        bounded: bool = False,
    ) -> MessageStore:
        """Open or make a store. Read-only takes no lock and changes nothing, also on a store in use.

        `background=False` starts no thread: flushing, retention and scrubbing happen when `keeper.tick` is
        called, which is how tests and simulations run it. `replica` opens in replica mode. `bounded` shows, until
        `bound` says more, only what is known to have been confirmed before.
        """
        store = cls(
            Path(path),
            options or StoreOptions(),
            runtime or Runtime.system(),
            store_host,
            read_only=read_only,
        )
        try:
            store.gate.is_replica = replica
            store._open(background, progress, bounded)
        except BaseException as error:
            store._release()
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise DiskFullError(
                    f"no space left to open the store in {path}",
                    "free space on its disk or move the directory to a larger one, then start again; "
                    "what is stored stays",
                ) from error
            raise
        return store

    def _open(self, background: bool, progress: Progress | None, bounded: bool) -> None:
        disk = self._runtime.disk
        if not self.is_read_only:
            disk.make_dirs(self.paths.commit_log)
            self._ownership.take()
        self._ownership.require_store()
        self.queues.load_manifest()
        require_sizes(disk, self.paths, self.options, self.queues.manifest)
        clean = self._ownership.was_clean()
        self.keeper.checkpoint = self.checkpoint_file.load()
        if not self.is_read_only:
            self._ownership.mark_running()
            Segment.remove_half_made(disk, self.paths)
        self.log.load()
        self.queues.load()
        self.index.load(unclean=not clean)
        discard_impossible(self, self.keeper.checkpoint, clean=clean)
        self._truncation.finish()
        if bounded:
            # A queue entry was made of a confirmed record: queues and manifest know what the checkpoint was not told.
            checkpoint = self.keeper.checkpoint
            confirmed = checkpoint.confirm_offset if checkpoint.trusted else 0
            self.dispatch.bound(max(confirmed, self.queues.max_phy, self.queues.manifest.dispatched_to))
        self.replica_side.know_ends()
        self.report = Recovery(self, self.keeper.checkpoint, clean=clean, progress=progress).run()
        self.flusher.recovered(self.log.max_offset)
        if bounded and not self.gate.is_replica:
            self.replica_side.find_next_offsets()
        if self.is_read_only:
            self.gate.open()
            return
        if not self._sync_mode:
            self.log.on_built = self.dispatch.written
            self.dispatcher.direct = True
        self.gate.open()
        self.keeper.settle()
        if background:
            self._thread = PeriodicThread(
                "penstock-store-keeper", KEEPER_TICK_MS, self.keeper.tick, self.keeper.failed
            )
            self._thread.start()

    def close(self) -> None:
        """Stop cleanly: everything dispatched, flushed and counted, then the marker goes, then the lock.

        Where flushing failed the marker stays, so that the next open recovers.
        """
        if self.gate.closed:
            return
        self._stop_thread()
        ends_whole = self._end_whole()
        with self._lock:
            # From here on no append gets in; the rest needs no lock, and must not hold it.
            self.gate.close()
        try:
            if not self.is_read_only and not self.has_failed:
                self.keeper.finish()
                self.log.close(remove_unused=True)
                if ends_whole:
                    self._ownership.mark_clean()
        finally:
            self._release()

    def _end_whole(self) -> bool:
        """A clean stop leaves whole records only. Where that fails recovery cuts the last one off."""
        if self.is_read_only or self.has_failed:
            return False
        try:
            self.cut_tail()
        except StoreError as error:
            _LOG.warning("the incomplete record at the log's end stays: %s", error)
            return False
        return True

    def abandon(self) -> None:
        """Let go of everything as a crash would: nothing more is written. For tests and simulations."""
        self._stop_thread()
        with self._lock:
            self.gate.close()
            self._release()

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _release(self) -> None:
        self.log.close()
        self.queues.close()
        self.index.close()
        self._ownership.release()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- appending -------------------------------------------------------------------------------------------

    def request(
        self,
        message: Message,
        queue_id: int = 0,
        *,
        born_timestamp: int | None = None,
        born_host: HostAddress | None = None,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> AppendRequest:
        """A message made ready for `append_group`; everything that can be wrong with it is found here."""
        properties = check_message(message, queue_id, self.options)
        with self._lock:
            self.gate.check_open()
            queue = self.queues.get_or_create(message.topic, queue_id)
        return AppendRequest(
            queue.state,
            bytes(message.body),
            properties,
            self._runtime.clock.now_ms() if born_timestamp is None else born_timestamp,
            self._host_bytes if born_host is None else born_host.encode(),
            message.flag,
            sys_flag,
            reconsume_times,
            prepared_offset,
        )

    def append(
        self,
        message: Message,
        queue_id: int = 0,
        *,
        durability: Durability | None = None,
        born_timestamp: int | None = None,
        born_host: HostAddress | None = None,
    ) -> AppendResult:
        """Store one message. `durability` is what to wait for; without it the store's flush mode decides."""
        request = self.request(message, queue_id, born_timestamp=born_timestamp, born_host=born_host)
        if durability is None and message.properties.get(PropertyName.WAIT, "true") != "true":
            durability = Durability.MEMORY
        reached, status = self.append_group([request], durability=durability)
        if request.size < 0:
            raise MessageTooLargeError(
                f"the record fits no segment of {self.options.segment_size_bytes} bytes",
                "use larger segments",
            )
        return self.result(request, reached, status)

    def append_group(
        self, requests: Sequence[AppendRequest], *, durability: Durability | None = None
    ) -> tuple[Durability, PutStatus]:
        """Store messages that arrived together, with one write; each request says where it went.

        A request whose `size` is -1 afterwards was refused (it fits no record); the others are stored. If this
        raises, requests with `size` 0 were not stored.
        """
        if not requests:
            return STORED
        with self._lock:
            if not self.gate.accepting or self.flusher.failure:
                self.gate.check_writable()
            log, dispatcher = self.log, self.dispatcher
            try:
                log.append(requests)
            except StoreFailedError as error:
                self.gate.stop(error)
                raise
            finally:
                # Mostly nobody listens and all is shown: not even the call is worth it then.
                waits = dispatcher.offset != log.max_offset
                if not self._sync_mode and (waits or self._listeners or dispatcher.heavy):
                    self._announce()
            end = log.max_offset
            self._counters["appends"] += len(requests)
        if durability is None:
            durability = self._default_durability
        return STORED if durability is MEMORY else self._reach(end, durability)

    def append_run(self, build: Callable[[RecordBuilder], int]) -> int:
        """Store records that the caller puts into the builder itself, with one write; how far the log reaches then.

        `build` says how many messages it put; it must stop where the builder has no more room. Nothing is put,
        and `build` is not called, where a segment has to be made or cleared up first: `append_group` does that.
        """
        with self._lock:
            if not self.gate.accepting or self.flusher.failure:
                self.gate.check_writable()
            try:
                self._counters["appends"] += self.log.append_run(build)
            except StoreFailedError as error:
                self.gate.stop(error)
                raise
            finally:
                if not self._sync_mode:
                    self._announce()
            return self.log.max_offset

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        *,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: HostAddress | None = None,
        durability: Durability | None = None,
        size_max: int = 0,
    ) -> BatchResult:
        """Store a client's encoded batch: all of its messages, next to each other, or none.

        `size_max` is for batches that grew on the way here, and were looked at when they came in.
        """
        check_place(topic, queue_id)
        check_batch(batch, size_max or self.options.max_message_size_bytes)
        born = self._runtime.clock.now_ms() if born_timestamp is None else born_timestamp
        host = self._host_bytes if born_host is None else born_host.encode()
        with self._lock:
            self.gate.check_writable()
            queue = self.queues.get_or_create(topic, queue_id)
            try:
                placed, first_offset, stored = self.log.append_batch(queue.state, batch, sys_flag, born, host)
            except StoreFailedError as error:
                self.gate.stop(error)
                raise
            finally:
                if not self._sync_mode:
                    self._announce()
            end = self.log.max_offset
            self.meters.add("appends", len(placed))
        reached, status = self._reach(end, self._default_durability if durability is None else durability)
        return BatchResult.of(self._store_host, placed, first_offset, stored, reached, status)

    def _announce(self) -> None:
        """Show what may be seen: all that is written or, under synchronous flush, flushed; tell who waits."""
        visible = self.flusher.flushed_offset if self._sync_mode else self.log.max_offset
        dispatcher = self.dispatcher
        if self.dispatch.offset < visible:
            if visible == self.log.max_offset:
                # Mostly the run just written is all that waits, and is still in memory.
                self.dispatch.written(self.log.last_built())
            self.dispatch.catch_up(visible)
        if dispatcher.heavy:
            for state in dispatcher.take_heavy():
                state.owner.drain_if_possible()
        if self._listeners and dispatcher.touched:
            touched = dispatcher.touched
            dispatcher.next_round()
            self.queues.note(touched)
            for listener in self._listeners:
                listener(touched)

    def _reach(self, end: int, durability: Durability) -> tuple[Durability, PutStatus]:
        """Wait for what was demanded; what was reached is never more than what is true."""
        if durability is Durability.MEMORY:
            return STORED
        try:
            self.flush(end, self.options.sync_flush_timeout_ms)
        except FlushTimeoutError:
            return Durability.MEMORY, PutStatus.FLUSH_DISK_TIMEOUT
        return Durability.FLUSHED, PutStatus.PUT_OK

    def flush(self, position: int | None = None, timeout_ms: int = -1) -> int:
        """Have the disk hold the log up to `position` (default: all of it); how far it does now."""
        flushed = self.flusher.flush_to(self.log.max_offset if position is None else position, timeout_ms)
        self.confirm()
        return flushed

    def confirm(self) -> None:
        """Under synchronous flush: what is flushed becomes visible."""
        if self._sync_mode and self.dispatch.offset < self.flusher.flushed_offset:
            with self._lock:
                self._announce()

    def hold(self) -> int:
        """Let nobody see what is appended from here on until `release` shows it all at once; the log's end now."""
        with self._lock:
            self.gate.check_writable()
            return self.dispatch.hold(self.log.max_offset)

    def release(self) -> None:
        """Show what was held back: what is written or, under synchronous flush, flushed by now."""
        with self._lock:
            self.dispatch.release()
            self._announce()

    def show_more(self) -> None:
        """Show what may be seen by now. The caller holds the lock."""
        self._announce()

    def result(self, request: AppendRequest, durability: Durability, status: PutStatus) -> AppendResult:
        """The full answer for one request of a group."""
        return AppendResult.of(self._store_host, request, durability, status)

    def on_arrival(self, listener: ArrivalListener) -> None:
        """Call it with the queues that got visible messages, once per group; it must be quick."""
        with self._lock:
            self.dispatcher.next_round()  # arrivals are not collected while nobody listens
            self._listeners.append(listener)

    def absorb_keys(self) -> None:
        """Enter the keys of dispatched records into the index, without holding up appends.

        The index lock is taken first, so that two callers enter keys in the order of the log.
        """
        if self.is_read_only or not self.dispatcher.key_count:
            return
        with self.index.lock:
            with self._lock:
                keys, count = self.dispatcher.take_keys()
            try:
                self.index.put(keys, count)
            except OSError as error:
                if self.index.sync_failure is not None:
                    raise self.fail(f"syncing an index file failed: {error}") from error
                raise
            finally:
                with self._lock:
                    self.dispatcher.give_back(keys)

    def delete_topics(self, topics: Iterable[str]) -> list[str]:
        """Delete the queues of topics; their messages stay in the log until retention takes them."""
        with self._lock:
            self.gate.check_writable()
            return self.queues.remove(frozenset(topics), self.log.max_offset)

    @property
    def deleted_topics(self) -> dict[str, int]:
        """Topics that were deleted, and where the log ended then; as far back as the log goes."""
        with self._lock:
            return dict(self.queues.manifest.deleted)

    def stats(self) -> dict[str, object]:
        """Numbers for status pages and the command line."""
        with self._lock:
            return describe(self)
