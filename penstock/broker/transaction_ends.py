"""Ends of transactions on their way to the log: the message, if it is committed, and the mark that it is over.

Rules. What arrives together is written together: the committed messages, and behind them, in the same write, one mark
that names all of them. So there is no moment in which a message is committed and its mark only in memory; a crash
leaves both, or neither, unless it tears the write in between, and then the next master finds the message by its key
before it asks anybody (`find_committed`). An end that comes again while the first is being written shares its
outcome; one that comes later finds the transaction over and stores nothing. A committed message is stored in its real
topic with everything that it asked for, a delay too. Answered when message and mark are as safe as any message. How a
transaction ended is remembered until it can be read: a publication under way, or a set that has not confirmed it,
keeps the index from telling, and whoever asks meanwhile must not hear the opposite.

Owned by the event loop, except `find_committed`, which reads the index and runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from penstock._hot.records import AppendRequest
from penstock.broker import half_messages as halves
from penstock.broker.flow_control import BusyError
from penstock.broker.half_messages import HALF_QUEUE, Half, is_same, read_half
from penstock.broker.message_ids import UniqueIds
from penstock.broker.open_transactions import UNSEEN_RETRY_MS, OpenTransactions
from penstock.broker.processors.send import Place, delayed
from penstock.broker.record_gate import record_at
from penstock.broker.send_rules import SendRules
from penstock.broker.topics import Topics, may_be_delivered_to
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import MessageTooLargeError, PenstockError, RequestError
from penstock.message import HostAddress, SystemFlag, TransactionKind
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import HALF_DONE_TOPIC, SCHEDULE_TOPIC
from penstock.runtime import Clock
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
ENDS_PER_WRITE = 256
BYTES_PER_WRITE = 4 << 20
_FOUND_MAX = 32
# Ends that are remembered while they cannot be read.
UNSEEN_MAX = 100_000
# More than a record takes besides body and properties.
RECORD_BYTES_MAX = 512
_TRANSACTION_BITS = int(SystemFlag.TRANSACTION_MASK)
# What became of an end: stored with this durability, or the error that it met.
Ended = Callable[[Written | PenstockError], None]


@dataclass(slots=True)
class _End:
    """One transaction that is being ended; `copy` is there if it is committed."""

    copy: AppendRequest | None
    waiting: list[Ended] = field(default_factory=list)


class TransactionEnds:
    """See the module's text."""

    def __init__(
        self,
        rules: SendRules,
        store: MessageStore,
        writer: MessageWriter,
        topics: Topics,
        opened: OpenTransactions,
        unique_ids: UniqueIds,
        clock: Clock,
        store_host: HostAddress,
    ) -> None:
        self._rules = rules
        self._store = store
        self._writer = writer
        self._topics = topics
        self._open = opened
        self._unique_ids = unique_ids
        self._clock = clock
        self._host = store_host.encode()
        # By the newest copy's offset, until the next write.
        self._ending: dict[int, _End] = {}
        self._size = 0
        # Ended by a write that stored the message and then failed: their mark goes with the next.
        self._unmarked: list[int] = []
        # Ends that nobody can read yet: by half message whether it was committed, and up to where the log has to be
        # seen, the oldest first.
        self._unseen: dict[int, tuple[bool, int]] = {}
        self._unseen_order: deque[tuple[int, int]] = deque()
        self._unknown_below = 0
        self.committed = 0
        self.rolled_back = 0

    def forget(self) -> None:
        """This broker becomes master: what it still owed the log as an earlier one may have been cut off that."""
        self._unmarked = []
        self._unseen.clear()
        self._unseen_order.clear()
        self._unknown_below = 0

    # -- ending ----------------------------------------------------------------------------------------------

    def end(self, half: Half, newest: int, *, is_commit: bool, ended: Ended) -> None:
        """End an open transaction; `ended` is called once, later. Raises RequestError if it cannot be ended so."""
        known = self._ending.get(newest)
        if known is not None:
            if (known.copy is not None) != is_commit:
                raise RequestError(ResponseCode.SYSTEM_ERROR, "the transaction is being ended the other way")
            known.waiting.append(ended)
            return
        copy = self._committed(half) if is_commit else None
        if not self._ending:
            asyncio.get_running_loop().call_soon(self._write)
        self._ending[newest] = _End(copy, [ended])
        self._size += 0 if copy is None else len(copy.body)
        if len(self._ending) >= ENDS_PER_WRITE or self._size >= BYTES_PER_WRITE:
            self._write()

    def _committed(self, half: Half) -> AppendRequest:
        """Ready for its real topic, or for the schedule if it is to be delayed."""
        if not may_be_delivered_to(half.topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the message is meant for topic {half.topic}, which only the broker writes to",
                "roll back",
            )
        if self._topics.get(half.topic) is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {half.topic} was deleted while the transaction was open",
                "create it again, and commit again; or roll back",
            )
        place = Place(half.topic, half.queue_id, half.queue_id)
        level = self._rules.delay_level(dict(half.message.properties))
        put = delayed(place, level) if level else {}
        copy = halves.committed(half, self._writer.queue(place.topic, place.queue_id), put)
        self._check_size(copy)
        return copy

    def _check_size(self, copy: AppendRequest) -> None:
        """Limits may have been lowered meanwhile: what fits no record must not be marked as over."""
        options = self._store.options
        size = len(copy.body) + len(copy.properties) + RECORD_BYTES_MAX
        if len(copy.body) > options.max_message_size_bytes or size > options.segment_size_bytes:
            raise MessageTooLargeError(
                f"the message has {len(copy.body)} bytes, which this broker does not take any more",
                "raise max_message_size_bytes, and commit again; or roll back",
            )

    def _write(self) -> None:
        ending, self._ending, self._size = self._ending, {}, 0
        if not ending:
            return
        copies = [end.copy for end in ending.values() if end.copy is not None]
        unmarked = self._unmarked
        try:
            mark = self.mark([*unmarked, *ending])
            self._writer.append_together([*copies, mark], lambda written: _tell(ending, written))
        except Exception as error:
            self._failed(ending, error)
            return
        self._unmarked = []
        self._open.marked(mark.queue_offset, [*unmarked, *ending])
        for newest, end in ending.items():
            self._over(newest, end, mark.physical_offset + mark.size)

    def mark(self, offsets: Sequence[int], *, is_put_back: bool = False) -> AppendRequest:
        """The mark of these half messages, ready to be stored."""
        queue = self._writer.queue(HALF_DONE_TOPIC, HALF_QUEUE)
        return halves.mark(
            offsets,
            queue,
            self._unique_ids.next(),
            self._clock.now_ms(),
            self._host,
            is_put_back=is_put_back,
        )

    def _over(self, newest: int, end: _End, log_end: int) -> None:
        origin = self._open.end(newest)
        if self._store.dispatch.offset < log_end:
            for offset in {newest, newest if origin is None else origin}:
                self._unseen[offset] = end.copy is not None, log_end
                self._unseen_order.append((log_end, offset))
        self._look()
        if end.copy is None:
            self.rolled_back += 1
        else:
            self.committed += 1

    def _failed(self, ending: dict[int, _End], error: Exception) -> None:
        """Nothing is over, except what was stored all the same: that is committed, whoever hears of it."""
        if not isinstance(error, PenstockError):
            _LOG.error("ends of transactions could not be written", exc_info=error)
            error = RequestError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        for newest, end in ending.items():
            if end.copy is not None and end.copy.size > 0:
                self._unmarked.append(newest)
                self._over(newest, end, end.copy.physical_offset + end.copy.size)
        _tell(ending, error)

    # -- what is over already --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Forget what can be read by now, and the oldest if there are too many."""
        order, seen = self._unseen_order, self._store.dispatch.offset
        while order and (order[0][0] <= seen or len(order) > UNSEEN_MAX):
            log_end, offset = order.popleft()
            self._unseen.pop(offset, None)
            self._unknown_below = max(self._unknown_below, log_end)

    def unseen(self, half: Half) -> tuple[bool, int] | None:
        """Whether a transaction was committed whose end cannot be read yet, and where that ends in the log; None if
        the log can tell. Raises BusyError if nobody can."""
        self._look()
        for offset in (half.offset, half.origin):
            if offset in self._unseen:
                return self._unseen[offset]
        if self._store.dispatch.offset < self._unknown_below:
            raise BusyError("it cannot be told yet how that transaction ended", UNSEEN_RETRY_MS)
        return None

    def find_committed(self, half: Half) -> bool:
        """Whether the message of this transaction is in its topic. Reads the index and the log: in a thread."""
        for topic in (half.topic, SCHEDULE_TOPIC):
            if not half.unique:
                break
            for message in islice(self._store.reader.matches(topic, half.unique), _FOUND_MAX):
                if message.sys_flag & _TRANSACTION_BITS != TransactionKind.COMMIT:
                    continue
                record = record_at(self._store, message.prepared_transaction_offset)
                first = None if record is None else read_half(record)
                if first is not None and is_same(first, half):
                    return True
        return False


def _tell(ending: dict[int, _End], outcome: Written | PenstockError) -> None:
    for end in ending.values():
        for ended in end.waiting:
            ended(outcome)
