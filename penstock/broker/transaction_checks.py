"""Asking producers how their transactions ended, round by round.

    younger than its time         left alone: 6 s, or CHECK_IMMUNITY_TIME_IN_SECONDS if that is longer
    committed, and not marked     marked; only what an earlier run of a broker has left can be so
    asked too often, or too old   parked in TRANS_CHECK_MAX_TIME_TOPIC (15 times, or as old as the log may be)
    nobody of its group is here   left alone, and not counted: it is asked when somebody is
    else                          put back behind the others with one check more counted, then asked (39)

Rules. A question goes to one connection of the producer group, to another each time. It names the copy that was put
back, and is sent when that one can be found by the answer. What is left alone for long is put back as well, without
being counted, once so many others are behind it: the progress of the half queue moves on, and a broker that starts
reads little. Progress is what the log has on disk, and with the replicas; one that is lost in a crash is made again.
A round reads and writes a bounded number of messages at a time, so that it is no pause for others.

Owned by the event loop; runs while this broker is master. It decides nothing about a transaction: producers do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest
from penstock.broker import half_messages as halves
from penstock.broker.delay import SteadyTime
from penstock.broker.half_messages import HALF_QUEUE, Half
from penstock.broker.offsets import TRANSACTION_GROUP, ConsumerOffsets
from penstock.broker.open_transactions import OpenTransactions
from penstock.broker.options import BrokerOptions
from penstock.broker.producers import Producers
from penstock.broker.topics import Topics
from penstock.broker.transaction_ends import TransactionEnds
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import PenstockError
from penstock.message import encode_record, format_message_id
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import CheckTransactionStateRequestHeader
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC
from penstock.runtime import Clock
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
HALVES_PER_TURN = 64
BYTES_PER_TURN = 1 << 20
# A half message that is left alone is put back when so many offsets are behind it.
LEFT_BEHIND = 10_000
# How often is looked whether progress is safe by now.
SAFE_MS = 1_000
# One that seems to be stored later than this from now was stored before the clock was set: it is old enough.
CLOCK_MS = -1_000
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Turn:
    """What one turn stores: copies first, then marks that name what they replace."""

    asked: list[tuple[Half, AppendRequest]]
    moved: list[tuple[Half, AppendRequest]]
    parked: list[tuple[Half, AppendRequest]]
    # Newest copies that are over without being copied.
    found: list[int]
    # The half messages behind these are too young.
    is_last: bool = False


class TransactionChecks:
    """See the module's text. `start` and `stop` as often as this broker becomes master and stops being it."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        topics: Topics,
        offsets: ConsumerOffsets,
        producers: Producers,
        opened: OpenTransactions,
        ends: TransactionEnds,
        clock: Clock,
        safe_offset: Callable[[], int],
    ) -> None:
        self.options = options
        self._store = store
        self._writer = writer
        self._topics = topics
        self._offsets = offsets
        self._producers = producers
        self._open = opened
        self._ends = ends
        self._time = SteadyTime(clock)
        # How far the log is on disk and with whoever could be master next.
        self.safe_offset = safe_offset
        # Where the log ended, and the progress of both queues that counts once that is safe.
        self._reached: deque[tuple[int, int, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.asked = 0
        self.parked = 0

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._reached.clear()
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End; progress that is safe is kept."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.keep_progress()

    async def _run(self) -> None:
        waited_ms = 0
        while True:
            pause_ms = min(SAFE_MS, self.options.transaction_check_interval_ms)
            await asyncio.sleep(pause_ms / 1000)
            waited_ms += pause_ms
            try:
                if waited_ms >= self.options.transaction_check_interval_ms:
                    waited_ms = 0
                    await self.check()
                self.keep_progress()
            except PenstockError as error:
                _LOG.warning("checks of transactions wait: %s", error)
            except Exception:
                _LOG.exception("checks of transactions failed; they go on")

    # -- a round ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """One round over everything that is open when it begins."""
        self._open.catch_up()
        waiting = deque(self._open.offsets())
        now_ms = self._time.now_ms()
        while waiting:
            batch = self._load(waiting)
            inherited = [half for half in batch if half.offset < self._open.inherited]
            found: set[int] = set()
            if inherited:
                found = await asyncio.get_running_loop().run_in_executor(None, self._find, inherited)
            turn = self._decide(batch, found, now_ms)
            self._store_turn(turn)
            if turn.is_last:
                break
            await asyncio.sleep(0)
        half, marks = self._open.progress()
        self._reached.append((self._store.log.max_offset, half, marks))

    def _load(self, waiting: deque[int]) -> list[Half]:
        batch: list[Half] = []
        size = 0
        while waiting and len(batch) < HALVES_PER_TURN and size < BYTES_PER_TURN:
            offset = waiting.popleft()
            half = self._open.load(offset) if self._open.is_open(offset) else None
            if half is not None:
                batch.append(half)
                size += half.message.size
        return batch

    def _find(self, inherited: list[Half]) -> set[int]:
        return {half.offset for half in inherited if self._ends.find_committed(half)}

    def _decide(self, batch: list[Half], found: set[int], now_ms: int) -> _Turn:
        turn = _Turn([], [], [], [])
        timeout_ms = self.options.transaction_timeout_ms
        for half in batch:
            if not self._open.is_open(half.offset):
                continue  # it ended meanwhile
            if half.offset in found:
                turn.found.append(half.offset)
                continue
            age_ms = now_ms - half.first_stored_ms
            if CLOCK_MS <= age_ms <= timeout_ms and not half.has_immunity:
                turn.is_last = True  # and all that were stored after it are younger still
                break
            if half.checks >= self.options.transaction_check_max or age_ms > self._age_max_ms:
                self._park(turn, half)
            elif CLOCK_MS <= age_ms <= half.immunity_ms(timeout_ms) or not self._is_there(half):
                self._leave(turn, half)
            else:
                self._put_back(turn, half, half.checks + 1)
        return turn

    @property
    def _age_max_ms(self) -> int:
        return self._store.options.file_reserved_hours * _HOUR_MS

    def _is_there(self, half: Half) -> bool:
        return any(
            channel.connection.is_open and channel.may_publish(half.topic)
            for channel in self._producers.members(half.group)
        )

    def _leave(self, turn: _Turn, half: Half) -> None:
        if self._open.seen - half.offset > LEFT_BEHIND:
            self._put_back(turn, half, half.checks)

    def _put_back(self, turn: _Turn, half: Half, checks: int) -> None:
        try:
            copy = halves.put_back(half, self._half_queue(), checks)
        except PenstockError as error:
            # Its properties leave no room to count in: it would be asked about for ever.
            _LOG.error("half message %d cannot be put back and is parked: %s", half.offset, error)
            self._park(turn, half)
            return
        (turn.asked if checks > half.checks else turn.moved).append((half, copy))

    def _park(self, turn: _Turn, half: Half) -> None:
        self._topics.ensure(CHECK_MAX_TOPIC, 1)
        turn.parked.append((half, halves.parked(half, self._writer.queue(CHECK_MAX_TOPIC, 0))))

    def _half_queue(self) -> QueueState:
        return self._writer.queue(HALF_TOPIC, HALF_QUEUE)

    # -- storing ---------------------------------------------------------------------------------------------

    def _store_turn(self, turn: _Turn) -> None:
        copies = [*turn.asked, *turn.moved]
        requests = [copy for _, copy in (*copies, *turn.parked)]
        over = [*turn.found, *(half.offset for half, _ in turn.parked)]
        # An immune one is not marked: a Java broker takes the mark of its first copy for the end of all.
        replaced = [half.offset for half, _ in copies if not half.has_immunity]
        marks = [self._ends.mark(over)] if over else []
        marks += [self._ends.mark(replaced, is_put_back=True)] if replaced else []
        if not requests and not marks:
            return

        def done(written: Written) -> None:
            if written.error is None:
                # Not at once: where memory is enough this is called before the table has the copies.
                asyncio.get_running_loop().call_soon(self._ask, turn.asked)

        try:
            self._writer.append_together([*requests, *marks], done)
        finally:
            self._stored(turn, over, replaced, marks)

    def _stored(
        self, turn: _Turn, over: list[int], replaced: list[int], marks: Sequence[AppendRequest]
    ) -> None:
        """Take in what is in the log now, which may be a part if the store failed; the rest is open as before."""
        for half, copy in (*turn.asked, *turn.moved):
            if copy.size > 0:
                self._open.opened(copy.queue_offset, copy.physical_offset, half.origin)
        for half, copy in turn.parked:
            if copy.size > 0:
                self._open.end(half.offset)
                self.parked += 1
                _LOG.warning(
                    "transaction %s of group %s is parked after %d checks",
                    *(half.unique, half.group, half.checks),
                )
        for offset in turn.found:
            self._open.end(offset)
        for mark, named in zip(
            marks, [*([over] if over else []), *([replaced] if replaced else [])], strict=True
        ):
            if mark.size > 0:
                self._open.marked(mark.queue_offset, named)

    # -- asking ----------------------------------------------------------------------------------------------

    def _ask(self, asked: Sequence[tuple[Half, AppendRequest]]) -> None:
        for half, copy in asked:
            channel = self._producers.pick(half.group, half.topic)
            if channel is None or copy.size <= 0 or not self._open.is_open(copy.queue_offset):
                continue
            self.asked += 1
            channel.connection.send(self._question(half, copy))

    def _question(self, half: Half, copy: AppendRequest) -> Command:
        message = replace(
            half.message,
            topic=half.topic,
            queue_id=half.queue_id,
            queue_offset=copy.queue_offset,
            physical_offset=copy.physical_offset,
            store_timestamp=copy.store_timestamp,
        )
        header = CheckTransactionStateRequestHeader(
            topic=half.topic,
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.physical_offset,
            msg_id=half.unique,
            transaction_id=half.unique,
            offset_msg_id=format_message_id(message.store_host, copy.physical_offset),
            broker_name=self.options.broker_name,
        )
        return Command(
            RequestCode.CHECK_TRANSACTION_STATE,
            header.encode(),
            encode_record(message, copy.properties),
            language="JAVA",
        )

    # -- progress --------------------------------------------------------------------------------------------

    def keep_progress(self) -> None:
        """Commit what the log is safe for. Both at once: a mark that is passed over names nothing that is not."""
        safe, found = self.safe_offset(), None
        while self._reached and self._reached[0][0] <= safe:
            _, *found = self._reached.popleft()
        if found is not None:
            for topic, offset in zip((HALF_TOPIC, HALF_DONE_TOPIC), found, strict=True):
                self._offsets.restore(TRANSACTION_GROUP, topic, HALF_QUEUE, offset)
