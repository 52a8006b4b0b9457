"""POP on a master: what was popped is kept in the log, and comes again when nobody acknowledged it in time.

    hand out    a check point for each queue that gave messages, in the revive topic; the pop is answered when it is
                as safe as any message that is sent
    ack         a record behind it; change of the invisible time: a check point of one message, and an ack of the old
                one
    give back   time is over: what is not acknowledged goes to the retry topic with one more try, or to the dead
                letters when the group's tries are over; with it, in the same write, an ack: the next start need not
                do it again
    settle      offsets of groups and of the revive queues are committed when the log is safe so far
    recover     a new master, or a new start, reads the revive topic from where it was committed to its end

With `pop_buffer` a check point stays in memory for a while, and is never written if all of it is acknowledged before;
a crash then gives those messages again. Nothing else is only in memory, so restart, kill and failover lose no message
and forget no acknowledgement that was answered. RocketMQ sends these records through its timer and reads them when
they are due; here they are in the revive topic at once, and the table of `pop_state.py` knows when they are
(docs/decisions/0037). Owned by the event loop; `recover` by a thread that runs before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from penstock._hot.records import AppendRequest
from penstock.broker.flow_control import BusyError
from penstock.broker.groups import Groups
from penstock.broker.offsets import REVIVE_GROUP, ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.pop_order import OrderedLot
from penstock.broker.pop_ordered import Acks, OrderedPops
from penstock.broker.pop_records import (
    Acknowledged,
    CheckKey,
    CheckPoint,
    Moved,
    Ordered,
    PopRun,
    QueueKey,
    ack_record,
    check_point_record,
    ordered_record,
    read_record,
    reset_record,
)
from penstock.broker.pop_returns import PopReturns
from penstock.broker.pop_state import CheckBuffer, PopState
from penstock.broker.record_gate import is_from_client
from penstock.broker.retry_names import RetryNames
from penstock.broker.statistics import Statistics
from penstock.broker.topics import Topics
from penstock.broker.writing import IN_MEMORY, Done, MessageWriter, Written
from penstock.errors import CodecError, PenstockError, RequestError, StoreError
from penstock.message import HostAddress, StoredMessage
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import REVIVE_PREFIX
from penstock.runtime import Runtime
from penstock.runtime.shares import has_share
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
REVIVE_QUEUES = 8
TICK_MS = 100
# Check points given back in one turn, and how long one waits that could not be.
RETURNS_PER_TURN = 64
RETRY_MS = 1_000
# Until what cannot be given back is tried again.
STUCK_RETRY_MS = 60_000
# A check point is written again when it holds up so many records of its revive queue: a start reads no more.
LAG_MAX = 10_000
# A buffered check point is written so long before its time is over.
_STORE_BEFORE_MS = 3_000
_READ_COUNT, _READ_BYTES = 256, 8 << 20
FAR = 1 << 62
# Told how keeping what was handed out ended: with the time of the pop, and the revive queue.
HandedOut = Callable[[Written, int, int], None]


def revive_topic(cluster: str) -> str:
    """Where a cluster's brokers keep what was popped."""
    return f"{REVIVE_PREFIX}{cluster}"


class PopService:
    """See the module's text. `recover`, `start` and `stop` as often as the broker becomes master and stops being
    it."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        flusher: LoopFlusher,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        statistics: Statistics,
        runtime: Runtime,
        host: HostAddress,
        names: RetryNames,
    ) -> None:
        self.options = options
        self._store = store
        self._writer = writer
        self._flusher = flusher
        self._offsets = offsets
        self._clock = runtime.clock
        self._host = host.encode()
        self.topic = revive_topic(options.cluster_name)
        self.state = PopState(REVIVE_QUEUES)
        self.ordered = OrderedPops(self, runtime.clock)
        self.returns = PopReturns(options, store, writer, topics, groups, offsets, statistics, names)
        # How far each revive queue is read, and how far it has to be before anybody pops.
        self._cursors: list[int] = []
        self._ends: list[int] = []
        self._floors: deque[tuple[int, int, int]] = deque()
        self._committed_floors: list[int] = []
        self.revive_turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._buffer = CheckBuffer()
        # How far the log is safe in whatever else holds it; a member of a set says how far it is confirmed.
        self.confirmed_offset: Callable[[], int] = lambda: FAR
        topics.on_delete.append(self._topic_deleted)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = self.returns.options = options

    @property
    def broker_name(self) -> str:
        return self.options.broker_name

    # -- lifecycle -------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read what the master before, or the last run, has left."""
        count = REVIVE_QUEUES
        self.state = PopState(count)
        self.ordered.begin()
        self._buffer.clear()
        self._floors.clear()
        self._ends = [self._store.end_offset(self.topic, queue) for queue in range(count)]
        self._cursors = [self._begin(queue) for queue in range(count)]
        self._committed_floors = [*self._cursors]
        for queue, cursor in enumerate(self._cursors):
            self.state.applied(queue, min(cursor, self._ends[queue]) - 1)
        self._catch_up()
        if self.state.open:
            _LOG.info("%d check points of popped messages are open", len(self.state))

    def _begin(self, queue: int) -> int:
        cursor = max(self._offsets.query(REVIVE_GROUP, self.topic, queue) + 1, 0)
        if cursor <= self._ends[queue]:
            return cursor
        _LOG.warning(
            "popped messages were done with up to %d of a queue that ends at %d", cursor, self._ends[queue]
        )
        return self._store.min_offset(self.topic, queue)

    @property
    def is_ready(self) -> bool:
        """Whether everything is known that was popped before."""
        return self._loop is not None and all(
            cursor >= end for cursor, end in zip(self._cursors, self._ends, strict=True)
        )

    def _catch_up(self) -> None:
        """Read on; what the set has not confirmed yet becomes visible later. In the order of the log, because a move
        of one queue speaks of check points in all revive queues."""
        found: list[StoredMessage] = []
        for queue, end in enumerate(self._ends):
            self._cursors[queue] = max(self._cursors[queue], self._store.min_offset(self.topic, queue))
            while self._cursors[queue] < end:
                got = self._store.get(self.topic, queue, self._cursors[queue], _READ_COUNT, _READ_BYTES)
                if got.next_offset <= self._cursors[queue]:
                    break
                found += got.messages()
                self._cursors[queue] = got.next_offset
                if not got.count and got.next_offset >= got.max_offset:
                    break
        found.sort(key=lambda message: message.physical_offset)
        for message in found:
            self._replay(message)

    def _replay(self, message: StoredMessage) -> None:
        self.state.applied(message.queue_id, message.queue_offset)
        if is_from_client(message):
            _LOG.error("record %s of the revive topic was sent by a client; ignored", message.message_id)
            return
        try:
            record = read_record(message)
        except CodecError as error:
            _LOG.error("a record of the revive topic cannot be read: %s", error)
            return
        if isinstance(record, CheckPoint | Ordered):
            key = (record.check if isinstance(record, Ordered) else record).key
            if message.physical_offset < self._store.deleted_topics.get(key.queue.topic, -1):
                return  # of a topic that had the same name
        if isinstance(record, Ordered) or (isinstance(record, Acknowledged) and record.is_ordered):
            self.ordered.replay(record)
        elif record is not None:
            if isinstance(record, CheckPoint):
                self.ordered.overtaken(record)
            elif isinstance(record, Moved):
                self.ordered.forget(record.queue)
            self.state.replay(record, self._due_again)

    def _due_again(self, check: CheckPoint) -> int:
        """When a check point of an earlier run is due: never later than it would have been, whatever the clock
        did."""
        left_ms = check.key.pop_time + check.invisible_ms - self._clock.now_ms()
        return self._clock.monotonic_ms() + min(max(left_ms, 0), check.invisible_ms)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._plan()

    async def stop(self) -> None:
        """Write what is only in memory, and commit what is safe then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            return
        if self.is_ready and (self.state.queues or self.state.open or self._floors):
            try:
                self._store_buffered(FAR)
                async with asyncio.timeout(self._store.options.sync_flush_timeout_ms / 1000):
                    await self._flusher.flushed(self._store.log.max_offset)
            except (PenstockError, TimeoutError) as error:
                _LOG.warning("popped messages may come again: %s", str(error) or "the disk does not answer")
            self._settle()
        self._loop = None

    def _plan(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(TICK_MS / 1000, self._turn)

    def _turn(self) -> None:
        self._timer = None
        try:
            self.tick()
        except PenstockError as error:
            _LOG.warning("popped messages wait: %s", error)
        except Exception:
            _LOG.exception("POP failed; it goes on")
        self._plan()

    def tick(self) -> None:
        """What is to be done from time to time."""
        if not self.is_ready:
            self._catch_up()
            return
        now_ms = self._clock.monotonic_ms()
        self._store_buffered(now_ms)
        self._give_back(now_ms)
        self.ordered.tick(now_ms)
        self._rewrite()
        self._settle()

    # -- handing out -----------------------------------------------------------------------------------------

    def check_ready(self) -> None:
        """Refuse while this broker is no master, or does not know yet what is popped, or has too much to remember."""
        if not self.is_ready:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]{self.options.broker_name} is no master that knows what was popped",
                "try again; ask for the route again if it repeats",
            )

    def check_room(self, group: str) -> None:
        """Refuse one more pop of a group: each leaves a part of the room to others."""
        count, own = len(self.state) + len(self.ordered.lots), self.state.of_group[group]
        if not has_share(own, count, self.options.pop_check_points_max):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]{count} pops are not acknowledged yet, {own} of them of group {group[:80]}",
                "acknowledge messages, or raise pop_check_points_max",
            )

    def position(self, queue: QueueKey) -> int:
        """Where a group pops a queue next, -1 if it never did; the target of a reset, over with this."""
        if self._offsets.has_reset(queue.group, queue.topic, queue.queue_id):
            target = self._offsets.query(queue.group, queue.topic, queue.queue_id)
            record = reset_record(queue, target, self.options.broker_name, self._clock.now_ms())
            # In every revive queue: whoever replays what was popped before replays this behind it.
            self._writer.append_copies(copies := [self.request(n, record) for n in range(REVIVE_QUEUES)])
            for number, copy in enumerate(copies):
                self.state.applied(number, copy.queue_offset)
            self.state.move(queue)
            self.ordered.forget(queue)
            self._offsets.take_reset(queue.group, queue.topic, queue.queue_id)
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        return self.state.position(queue, committed)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def bounds(self, queue: QueueKey) -> tuple[int, int]:
        """The first offset of a queue and the one behind its last."""
        name, queue_id = queue.topic, queue.queue_id
        return self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)

    def is_popped(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group has popped of a queue what its committed offset does not tell of yet."""
        queue = QueueKey(topic, group, queue_id)
        return queue in self.state.queues or self.ordered.is_held(queue)

    def begin_at(self, queue: QueueKey, offset: int) -> None:
        """A group that has no offset, or none that is in the queue, begins here."""
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, offset)

    def skip(self, queue: QueueKey, end: int) -> None:
        """Messages up to here are not for this group."""
        self.state.advance(queue, end)

    def hand_out(self, runs: Sequence[PopRun], invisible_ms: int, done: HandedOut) -> None:
        """Keep check points of what is handed out. Raises if that is not possible: then nothing is handed out."""
        revive_queue = self.next_revive_queue()
        popped_ms = self._pop_time([(run.queue, run.start_offset) for run in runs])
        checks = []
        for run in runs:
            key = CheckKey(run.queue, run.start_offset, popped_ms)
            checks.append(self._check_point(key, invisible_ms, revive_queue, tuple(run.offsets)))
        is_buffered = self.options.pop_buffer and invisible_ms > 2 * _STORE_BEFORE_MS
        if not is_buffered:
            self._store_checks(checks, (), lambda written: done(written, popped_ms, revive_queue))
        for run, check in zip(runs, checks, strict=True):
            self.ordered.overtaken(check)
            self.state.add(check)
            self.state.advance(run.queue, run.next_offset, check)
        if is_buffered:
            for check in checks:
                self._buffer.add(check)
            done(IN_MEMORY, popped_ms, revive_queue)

    def next_revive_queue(self) -> int:
        revive_queue = self.revive_turn
        self.revive_turn = (revive_queue + 1) % REVIVE_QUEUES
        return revive_queue

    def _pop_time(self, starts: Sequence[tuple[QueueKey, int]]) -> int:
        """Now, or the next moment at which no other pop of the same messages was."""
        popped_ms = self._clock.now_ms()
        while any(self.state.find(CheckKey(queue, start, popped_ms)) for queue, start in starts):
            popped_ms += 1
        return popped_ms

    def _check_point(
        self, key: CheckKey, invisible_ms: int, revive_queue: int, offsets: tuple[int, ...]
    ) -> CheckPoint:
        now_ms = self._clock.monotonic_ms()
        check = CheckPoint(key, invisible_ms, revive_queue, offsets, due_ms=now_ms + invisible_ms)
        stay_ms = min(self.options.pop_buffer_stay_ms, invisible_ms - _STORE_BEFORE_MS)
        check.store_by_ms = now_ms + stay_ms
        return check

    def _store_checks(self, checks: Sequence[CheckPoint], acks: Sequence[AppendRequest], done: Done) -> None:
        """Check points, and then acknowledgements, with one write."""
        broker = self.options.broker_name
        requests = [self.request(c.revive_queue, check_point_record(c, broker)) for c in checks]
        self.write([*requests, *acks], done)
        for check, request in zip(checks, requests, strict=True):
            self.state.stored(check, request.queue_offset, request.physical_offset + request.size)

    def write(self, requests: Sequence[AppendRequest], done: Done) -> None:
        """Records, with one write; `done` is told when they are as safe as a message that is sent."""
        self._writer.append(self.topic, requests, None, done)
        for request in requests:
            self.state.applied(request.queue.queue_id, request.queue_offset)

    def request(self, revive_queue: int, record: tuple[bytes, bytes]) -> AppendRequest:
        body, properties = record
        queue = self._writer.queue(self.topic, revive_queue)
        return AppendRequest(queue, body, properties, self._clock.now_ms(), self._host)

    # -- the buffer ------------------------------------------------------------------------------------------

    def _store_buffered(self, now_ms: int) -> None:
        """Write what has been in memory for long enough; what was acknowledged meanwhile never is."""
        while (check := self._buffer.first(now_ms)) is not None:
            if not check.is_closed:
                request = self.request(check.revive_queue, check_point_record(check, self.broker_name))
                self._writer.append_copies([request])
                self.state.stored(check, request.queue_offset, request.physical_offset + request.size)
            self._buffer.remove_first()

    # -- acknowledging ---------------------------------------------------------------------------------------

    def ack(self, acks: Acks, done: Done, ordered: Acks = ()) -> int:
        """Messages are done, some of them popped in order; how many of them were waited for. If none was, `done` is
        not called."""
        # Each pop once, however often a request names it: it is one record.
        wanted: dict[CheckPoint, int] = {}
        for key, offsets in acks:
            check = self.state.find(key)
            bits = 0 if check is None else check.bits(offsets)
            if check is not None and bits:
                wanted[check] = wanted.get(check, 0) | bits
        lots = self.ordered.wanted(ordered)
        requests = [self._ack(check, bits) for check, bits in wanted.items() if check.revive_offset >= 0]
        requests += [self.ordered.ack_request(lot, bits) for lot, bits in lots.items()]
        if requests:
            self.write(requests, done)
        for check, bits in wanted.items():
            self.state.ack(check, bits)
        for lot, bits in lots.items():
            self.ordered.acknowledge(lot, bits)
        if wanted and not requests:
            done(IN_MEMORY)
        return sum(bits.bit_count() for bits in (*wanted.values(), *lots.values()))

    def _ack(self, check: CheckPoint, bits: int) -> AppendRequest:
        offsets = [offset for place, offset in enumerate(check.offsets) if bits >> place & 1]
        return self.request(check.revive_queue, ack_record(check, offsets, self.options.broker_name))

    def change(
        self, key: CheckKey, offset: int, invisible_ms: int, done: Callable[[Written, CheckPoint], None]
    ) -> bool:
        """Have one message invisible for so long from now on; False if nobody waits for it, then `done` is not
        called."""
        old = self.state.find(key)
        bits = 0 if old is None else old.bits([offset])
        if old is None or not bits:
            return False
        new_key = CheckKey(key.queue, offset, self._pop_time([(key.queue, offset)]))
        check = self._check_point(new_key, invisible_ms, old.revive_queue, (offset,))
        acks = [self._ack(old, bits)] if old.revive_offset >= 0 else []
        self._store_checks([check], acks, lambda written: done(written, check))
        self.state.add(check)
        old.done_at = max(old.done_at, check.log_end)
        self.state.ack(old, bits)
        return True

    # -- time ------------------------------------------------------------------------------------------------

    def _give_back(self, now_ms: int) -> None:
        due = self.state.due(now_ms, RETURNS_PER_TURN)
        for place, check in enumerate(due):
            try:
                self._return(check)
            except (BusyError, StoreError):
                for left in due[place:]:
                    self.state.again(left, now_ms + RETRY_MS)
                raise
            except Exception as error:
                # Only this one cannot be given back, whatever its messages are; the others must not wait for it.
                _LOG.error(
                    "popped messages of %s cannot be given back, and are tried again: %s",
                    check.key,
                    error,
                    exc_info=None if isinstance(error, PenstockError) else error,
                )
                self.state.again(check, now_ms + STUCK_RETRY_MS)

    def _return(self, check: CheckPoint) -> None:
        """What is not acknowledged comes again. What was stored when the store failed is not stored again."""
        copies = self.returns.copies(check)
        requests = [request for _, request in copies]
        ack = self._ack(check, check.bits(check.left())) if check.revive_offset >= 0 else None
        try:
            self._writer.append_copies([*requests, *([] if ack is None else [ack])])
        finally:
            for offset, request in copies:
                if request.size != 0:
                    check.acked |= check.bits([offset])
        if ack is not None:
            self.state.applied(ack.queue.queue_id, ack.queue_offset)
        self.returns.returned(check, len(requests))
        check.done_at = self._store.log.max_offset
        check.acked = (1 << len(check.offsets)) - 1
        self.state.close(check)

    def _rewrite(self) -> None:
        """A message that stays invisible for long must not keep all records behind it from being done with."""
        for queue in range(REVIVE_QUEUES):
            oldest = self.state.oldest(queue)
            if oldest is not None and self.state.lag(queue) > LAG_MAX:
                if isinstance(oldest, OrderedLot):
                    record = ordered_record(oldest, oldest.notes, self.broker_name)
                else:
                    record = check_point_record(oldest, self.broker_name)
                request = self.request(queue, record)
                self._writer.append_copies([request])
                self.state.stored(oldest, request.queue_offset, request.physical_offset + request.size)

    def _settle(self) -> None:
        """Commit what is safe."""
        safe = min(self._store.flusher.flushed_offset, self.confirmed_offset())
        for queue, reached in self.state.settle(safe):
            self._commit(queue, reached)
        end = self._store.log.max_offset
        for number in range(REVIVE_QUEUES):
            floor = self.state.floor(number)
            if floor > self._committed_floors[number]:
                self._committed_floors[number] = floor
                self._floors.append((end, number, floor))
        while self._floors and self._floors[0][0] <= safe:
            _, number, floor = self._floors.popleft()
            # RocketMQ's: the last record that is done with, not the first that is not.
            self._commit(QueueKey(self.topic, REVIVE_GROUP, number), floor - 1)

    def _commit(self, queue: QueueKey, offset: int) -> None:
        try:
            if offset > self._offsets.query(queue.group, queue.topic, queue.queue_id):
                keep = self._offsets.restore if queue.group == REVIVE_GROUP else self._offsets.commit
                keep(queue.group, queue.topic, queue.queue_id, offset)
        except RequestError as error:
            _LOG.warning("the offset of group %s in %s is not kept: %s", queue.group, queue.topic, error)

    def _topic_deleted(self, name: str) -> None:
        for check in [check for key, check in self.state.open.items() if key.queue.topic == name]:
            self.state.close(check)
        self.ordered.forget_topic(name)
        for queue in [queue for queue in self.state.queues if queue.topic == name]:
            self.state.move(queue)
