"""Publication: the messages of many handles become messages of their topics, all at once and only once.

Write order, on which everything rests. All of it goes into the one log, and after any crash a log is a prefix of
what was written to it:

    hold       from here on nothing that is appended is seen by a reader (`store/dispatching.py`)
    1 begun    ONE record: the decision. Without it in the log nothing is published; with it, everything will be
    2 copies   of the staged messages, a run at a time, with turns of others in between
    3 done     one record: the next start need not look for missing copies
    confirm    in a coordinated set: everybody who could be master next has it up to `done`
    release    readers see all copies, in one step of the loop
    flush      the log is on disk up to `done`; only then is the publication answered and remembered

What a crash leaves:

    before 1   nothing was published; the client publishes again, or runs its batch again
    after 1    `recover` finds `begun` without `done`, counts the copies that the log has, which are the first ones,
               adds the rest and `done`, before the broker listens: no reader has ever seen a part
    after 3    the client, whose answer may be lost, asks again and hears that it is done

In a coordinated set nobody sees what is not confirmed, and replicas are told of nothing that is held back
(`HaServer`), so that no position between `begun` and `done` is ever the end of what can be seen, anywhere. Who
becomes master shows nothing more than before until it has finished what the one before had begun, and that is
confirmed too.

Under synchronous flush a message may not be seen before it is on disk, so there the flush comes before the release.
Of one query only a higher batch number than the last is published; the same one again is answered as done, and a
lower one is refused: it cannot be a repetition of the last batch, so dropping it in silence might lose it.

The hold has no time limit, because half a publication must not be seen. It ends when the copies are there, which is
a matter of writing; while the disk is full it waits with everybody else who writes. If writing fails for good the
store has failed, and takes nothing more that could be seen. Owned by the event loop; `recover` by a thread that
runs before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.broker.flow_control import BusyError, FlowControl, UnknownOutcomeError
from penstock.broker.options import BrokerOptions
from penstock.broker.publication_copies import Copying
from penstock.broker.publication_records import Begun, Done, HomeTold, read
from penstock.broker.published import BATCH_MAX, PublishedBatches
from penstock.broker.record_gate import own_message_at
from penstock.broker.send_rules import SendRules
from penstock.broker.staging import Handle, Publisher, StagedPart, no_handle, open_staged
from penstock.broker.statistics import Statistics
from penstock.broker.table_journal import TableJournal
from penstock.broker.topics import Topics
from penstock.errors import DiskFullError, PenstockError, RequestError, StoreError
from penstock.message import Message, StoredMessage
from penstock.metadata.publication_table import Published
from penstock.metadata.topic_table import Permission
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import PUBLISHED_TOPIC
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, MessageStore
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
QUERY_SIZE_MAX = 255
SPACE_RETRY_MS = 200
_READ_COUNT, _READ_BYTES = 256, 64 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many messages were published; `already`: not now, but before."""

    messages: int
    already: bool


def _no_step(step: str) -> None:
    """Nobody watches."""


async def _no_replicas(position: int) -> None:
    """Nobody else could be master."""


ANYONE = Publisher()


class Publications:
    """See the module's text. `recover`, then `start`; `stop` before the store is closed."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: Topics,
        rules: SendRules,
        flow: FlowControl,
        statistics: Statistics,
        runtime: Runtime,
        journal: TableJournal,
    ) -> None:
        self._options = options
        self._store = store
        self._topics = topics
        self._rules = rules
        self._flow = flow
        self._statistics = statistics
        self._flusher: LoopFlusher | None = None
        self._is_sync = store.options.flush_mode is FlushMode.SYNC
        self._is_stopping = False
        self._turn = asyncio.Lock()
        self._running: dict[tuple[str, str, int], asyncio.Task[Outcome]] = {}
        self._copying: Copying | None = None
        self.published = PublishedBatches(options, runtime, journal)
        # Told of each step as it is done; tests kill the process there.
        self.on_step: Callable[[str], None] = _no_step
        # Returns when whoever could be master next has the log up to a position; UnknownOutcomeError where that is
        # not in time, or somebody else is master.
        self.confirmed: Callable[[int], Awaitable[None]] = _no_replicas
        # The names of the brokers that clients can reach, None if they are not known; None where this broker has
        # nothing to compare a name with.
        self.known_brokers: Callable[[], Awaitable[Collection[str] | None]] | None = None
        # Told when a hold has ended.
        self.on_released: Callable[[], None] = lambda: None
        # The end of what `recover` has finished, while that waits for being shown.
        self._finished_at = -1
        self._showing: asyncio.Task[None] | None = None
        # The same for replicas that sends wait for; raises where that is not known in the end.
        self.replicated: Callable[[int], Awaitable[None]] = _no_replicas

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options
        self.published.reconfigure(options)

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self, flusher: LoopFlusher) -> None:
        self._flusher = flusher
        self._is_stopping = False
        self._topics.on_delete.append(self._deleted)
        self.published.stored.start()
        if self._finished_at < 0:
            self._release()
        else:
            self._showing = asyncio.ensure_future(self._show_finished())

    async def stop(self) -> None:
        """Let what is under way come to its end, unless it waits for space; then save."""
        self._is_stopping = True
        if self._deleted in self._topics.on_delete:
            self._topics.on_delete.remove(self._deleted)
        waiting = [*self._running.values(), *([self._showing] if self._showing is not None else [])]
        self._showing = None
        await asyncio.gather(*waiting, return_exceptions=True)
        await self.published.stored.stop()

    def _deleted(self, topic: str) -> None:
        if self._copying is not None:
            self._copying.forget_topic(topic)

    # -- publishing ------------------------------------------------------------------------------------------

    async def publish(
        self, query: str, batch: int, handles: Sequence[str], publisher: Publisher = ANYONE
    ) -> Outcome:
        """Publish, and return when it is on disk. A batch that is just being published is waited for.

        `publisher` is the user who asks: queries, batch numbers and handles of other users are none of theirs, and
        permission is asked for every topic.
        """
        _check_query(query)
        _check_batch(batch)
        key = (publisher.name, query, batch)
        running = self._running.get(key)
        if running is None:
            if self._is_stopping or self._flusher is None:
                raise _being_stopped()
            if len(self._running) >= self._options.publications_waiting_max:
                raise BusyError(f"{len(self._running)} publications are under way already", 1_000)
            # A task of its own: the client that asked may go away, the publication may not stop half-way.
            running = asyncio.ensure_future(self._take_turn(query, batch, handles, publisher, self._flusher))
            self._running[key] = running
            running.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(running)

    def _ended(self, key: tuple[str, str, int], done: asyncio.Task[Outcome]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # whoever still waits has been told

    async def _take_turn(
        self,
        query: str,
        batch: int,
        handles: Sequence[str],
        publisher: Publisher,
        flusher: LoopFlusher,
    ) -> Outcome:
        async with self._turn:
            if self._is_stopping:
                raise _being_stopped()
            last = self.published.last(query, publisher.name)
            if last is not None and batch <= last.batch:
                outcome = _repeated(query, batch, last)
            else:
                try:
                    found = self._parse(handles)
                    await self._show_staged(found, flusher)
                    outcome = await self._publish(query, batch, found, publisher, flusher)
                finally:
                    self._copying = None
        # Also a repetition waits: the first one may have ended without knowing.
        await self.replicated(self._store.log.max_offset)
        return outcome

    async def tell_home(self, query: str, broker: str, publisher: Publisher = ANYONE) -> None:
        """Remember that another broker publishes for a query; returns when that is on disk, and with whoever could be
        master next: this broker must not become the query's home because the other one is away for a while."""
        _check_query(query)
        _check_query(broker, "name of a broker")
        if self.published.home(query, publisher.name) != broker:
            await self._check_broker(broker)
        async with self._turn:  # else `covered` could pass a `begun` that has no `done` yet
            if self._is_stopping or self._flusher is None:
                raise _being_stopped()
            if self.published.home(query, publisher.name) != broker:
                self._topics.ensure(PUBLISHED_TOPIC, 1, int(Permission.READ))
                try:
                    _, offset = self._append(HomeTold(query, broker, publisher.name).message())
                    await self._flusher.flushed(self._store.log.max_offset)
                except StoreError as error:
                    raise self._flow.explain(error) from error
                self.published.remember_home(query, broker, offset + 1, owner=publisher.name)
            end = self._store.log.max_offset
        await self.confirmed(end)
        await self.replicated(end)

    async def _check_broker(self, broker: str) -> None:
        """Refuse a home that is no broker of the cluster: the query would wait for it for ever."""
        if self.known_brokers is None or broker == self._options.broker_name:
            return
        known = await self.known_brokers()
        if known is None or broker not in known:
            why = "the name servers do not say which brokers there are" if known is None else "no such broker"
            raise BusyError(f"{broker!r} cannot become the home of a query: {why}", 1_000)

    def _parse(self, handles: Sequence[str]) -> tuple[Handle, ...]:
        limits = self._options
        if not 0 < len(handles) <= limits.publish_handles_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(handles)} handles in one publication, the limit is {limits.publish_handles_max}",
                "write smaller batches, or raise publish_handles_max of the broker",
            )
        found = tuple(Handle.parse(handle) for handle in handles)
        size = sum(handle.size for handle in found)
        if size > limits.publish_bytes_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{size} bytes in one publication, the limit is {limits.publish_bytes_max}; nothing is published",
                "write smaller batches, or raise publish_bytes_max of the broker",
            )
        seen: set[int] = set()
        for handle in found:
            if handle.position in seen:
                raise no_handle(handle, "it is there twice", "name each handle once")
            seen.add(handle.position)
        return found

    async def _show_staged(self, handles: tuple[Handle, ...], flusher: LoopFlusher) -> None:
        """Wait until the staged records have their queue entries, which prove that they are records."""
        log, dispatch = self._store.log, self._store.dispatch
        end = min(max(handle.position + handle.size for handle in handles), log.max_offset)
        if dispatch.offset >= end:
            return
        if self._is_sync:
            await flusher.flushed(end)
        await self.confirmed(end)
        if dispatch.offset < end:
            raise BusyError("the staged messages are not confirmed by the replicas yet", SPACE_RETRY_MS)

    async def _publish(
        self,
        query: str,
        batch: int,
        handles: tuple[Handle, ...],
        publisher: Publisher,
        flusher: LoopFlusher,
    ) -> Outcome:
        copying = self._copying = Copying(self._store, self._topics, self._rules, self._flow)
        for handle in handles:
            part = open_staged(self._store, handle, publisher)
            _check_permission(part, publisher)
            copying.add(part)
            await asyncio.sleep(0)
        begun = Begun(query, batch, copying.messages, handles, publisher.name)
        position = self._decide(begun, copying)
        try:
            covered = await self._carry_out(begun, position, copying, flusher)
        except UnknownOutcomeError:
            raise
        except StoreError as error:
            raise self._broken(error.message, error.hint) from error
        except Exception as error:
            # Half of it is in the log: nothing may be shown any more until a restart has added the rest.
            self._store.fail(f"a publication failed half-way: {error!r}")
            raise self._broken(repr(error), "look into the broker's log, then restart it") from error
        self.published.remember(query, batch, copying.messages, covered, owner=publisher.name)
        self.on_step("safe")
        for topic, count in copying.counts.items():
            self._statistics.put(topic, count, copying.bytes * count // copying.messages)
        return Outcome(copying.messages, False)

    def _decide(self, begun: Begun, copying: Copying) -> int:
        """Write the decision; its log position. If this raises, nothing is published."""
        if copying.gone:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {min(copying.gone)} was just deleted; nothing is published",
                "create it, then run the batch again",
            )
        self._topics.ensure(PUBLISHED_TOPIC, 1, int(Permission.READ))
        message = begun.message()
        if len(message.body) > self._store.options.max_message_size_bytes:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(begun.handles)} handles do not fit one record; nothing is published",
                "write smaller batches, or stage more messages at once",
            )
        try:
            self._store.hold()
            try:
                position, _ = self._append(message)
            except BaseException:
                self._store.release()
                raise
        except StoreError as error:
            raise self._flow.explain(error) from error
        copying.begin(position)
        self.on_step("begun")
        return position

    async def _carry_out(self, begun: Begun, position: int, copying: Copying, flusher: LoopFlusher) -> int:
        """Steps 2 and 3, and what follows them; the offset behind `done`. What is left: to remember and to answer."""
        while not copying.is_done:
            await self._with_space(copying.run)
            self.on_step("copied")
            # The disk works along, so that little is left to flush at the end.
            flusher.when_flushed(self._store.log.max_offset, _nothing_to_do)
            await asyncio.sleep(0)
        done = Done(begun.query, begun.batch, begun.messages, position, owner=begun.owner)
        self.on_step("all copied")
        offset = await self._with_space(lambda: self._append(done.message())[1])
        end = self._store.log.max_offset
        self.on_step("done")
        if self._is_sync:
            await flusher.flushed(end)
            self.on_step("flushed")
        await self._show(end)
        self.on_step("released")
        await flusher.flushed(end)
        return offset + 1

    async def _show(self, end: int) -> None:
        """Let all of it be seen, once it is confirmed. UnknownOutcomeError if somebody else is master by then, who
        shows it."""
        while True:
            try:
                await self.confirmed(end)
                break
            except UnknownOutcomeError:
                # Else it is only a replica that takes its time, until it is left out of the set.
                if self._is_stopping or self._store.is_replica:
                    raise
                await asyncio.sleep(SPACE_RETRY_MS / 1000)
        self._release()

    async def _show_finished(self) -> None:
        async with self._turn:
            try:
                await self._show(self._finished_at)
                self._finished_at = -1
            except UnknownOutcomeError as error:
                _LOG.info("what was finished is shown by the next master: %s", error)

    def _release(self) -> None:
        self._store.release()
        self.on_released()

    async def _with_space(self, write: Callable[[], T]) -> T:
        """Write; where the disk is full, when it has room again."""
        while True:
            try:
                return write()
            except DiskFullError as error:
                if self._is_stopping:
                    raise
                # Text, not the error: its frames hold views of the log, and a log record may live long.
                _LOG.warning("a publication waits for space: %s", str(error))
                await asyncio.sleep(SPACE_RETRY_MS / 1000)

    def _append(self, message: Message) -> tuple[int, int]:
        """Store a record of a publication: its log position and its queue offset."""
        request = self._store.request(message)
        self._store.append_group([request], durability=Durability.MEMORY)
        if request.size < 0:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the record of the publication fits no segment",
                "use larger ones",
            )
        return request.physical_offset, request.queue_offset

    def _broken(self, message: str, hint: str) -> UnknownOutcomeError:
        text = f"the publication is decided but not finished: {message}; the next start of the broker finishes it"
        _LOG.error("%s", text)
        return UnknownOutcomeError(ResponseCode.SERVICE_NOT_AVAILABLE, text, hint or "publish again then")

    # -- after a crash ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Before anybody is served: read what was published since the table was saved, and finish what was begun. Who
        becomes master has a hold by now, which ends with `start`, or once what was finished is confirmed.

        Raises CodecError if there is a table but none readable, StoreError if what was begun cannot be finished.
        """
        self.published.load()
        store = self._store
        low, high = store.min_offset(PUBLISHED_TOPIC, 0), store.max_offset(PUBLISHED_TOPIC, 0)
        # A table that knows more than the log belongs to another log, or to one whose end was lost.
        offset = min(max(self.published.covered, low), high)
        unfinished: dict[tuple[str, str, int], tuple[Begun, int]] = {}
        for message in self._messages(offset):
            try:
                record = read(message)
            except PenstockError as error:
                _LOG.error("%s; passed over", error)
                continue
            if isinstance(record, Begun):
                unfinished[record.owner, record.query, record.batch] = record, message.physical_offset
                continue
            covered, when_ms = message.queue_offset + 1, message.store_timestamp
            if isinstance(record, HomeTold):
                self.published.remember_home(record.query, record.broker, covered, when_ms, record.owner)
            else:
                unfinished.pop((record.owner, record.query, record.batch), None)
                self.published.remember(
                    record.query, record.batch, record.messages, covered, when_ms, record.owner
                )
        for begun, position in unfinished.values():
            self._finish(begun, position)
        self._finished_at = store.log.max_offset if unfinished else -1

    def _messages(self, offset: int) -> Iterator[StoredMessage]:
        """The records of the publications' topic from an offset on, those that cannot be seen yet included."""
        ahead = self._store.positions_ahead(PUBLISHED_TOPIC, 0)
        while offset < self._store.max_offset(PUBLISHED_TOPIC, 0):
            found = self._store.get(PUBLISHED_TOPIC, 0, offset, _READ_COUNT, _READ_BYTES)
            yield from found.messages()
            offset = max(found.next_offset, offset + 1)
        for position in ahead:
            message = own_message_at(self._store, position)
            if message is not None:
                yield message

    def _finish(self, begun: Begun, position: int) -> None:
        """Add the copies that are missing, and say so."""
        copying = Copying(self._store, self._topics, self._rules, self._flow)
        missing = 0
        for handle in begun.handles:
            try:
                copying.take(open_staged(self._store, handle, ANYONE, is_decided=True))
            except PenstockError as error:
                missing += handle.messages
                _LOG.error(
                    "%d messages of %s cannot be published: %s", handle.messages, begun.query, str(error)
                )
        found = copying.resume(position)
        while not copying.is_done:
            copying.run()
            self.on_step("copied again")
        done = Done(begun.query, begun.batch, copying.messages, position, missing, begun.owner)
        _, offset = self._append(done.message())
        self._store.flush()
        self.published.remember(begun.query, begun.batch, copying.messages, offset + 1, owner=begun.owner)
        _LOG.warning(
            "batch %d of query %s was being published; %d of its %d messages were there, now all are",
            begun.batch,
            begun.query,
            found,
            begun.messages,
        )


def _check_permission(part: StagedPart, publisher: Publisher) -> None:
    for topic in sorted({target.topic for target in part.targets}):
        if not publisher.may_publish(topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"no permission to publish to topic {topic}; nothing is published",
                "ask an admin; `penstock acl explain` shows what a user may do",
            )


def _check_query(query: str, what: str = "query id") -> None:
    if not 0 < len(query) <= QUERY_SIZE_MAX or not query.isprintable() or " " in query:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{query[:80]!r} is no {what}",
            f"use 1 to {QUERY_SIZE_MAX} printable characters without blanks",
        )


def _check_batch(batch: int) -> None:
    if not 0 <= batch <= BATCH_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"batch number {batch} is outside 0 to {BATCH_MAX}; nothing is published",
            "count the batches of a query upwards from 0",
        )


def _repeated(query: str, batch: int, last: Published) -> Outcome:
    """A batch that is not newer than the last: done before, or a mistake that dropping it would hide."""
    if batch == last.batch:
        return Outcome(last.messages, True)
    raise RequestError(
        ResponseCode.INVALID_PARAMETER,
        f"query {query} has published batch {last.batch}; batch {batch} comes too late, nothing is published",
        "another run of the same query is ahead, or its checkpoint is an old copy: start with a new checkpoint",
    )


def _being_stopped() -> RequestError:
    return RequestError(
        ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is being stopped", "publish again when it is back"
    )


def _nothing_to_do(error: StoreError | None) -> None:
    pass
