"""Idempotent sends: a message that its producer sends again is stored once, and answered as the first time.

    send      producer and sequence come in the header, and are stored as properties of the record itself. Record and
              sequence are one append: there is no moment in which one of them is there without the other
    again     the table (`sequence_table.py`) says where the first one lies; the answer is made of that record, and
              waits for disk and replicas as the first one's does
    start     the file, then the log from where the file ends
    replica   follows the log up to what is confirmed; of a log that was cut nothing else was ever in the table
    master    what is in the log when it becomes one, read before it takes an idempotent send; after that what it
              stores itself

Rules. With access control each user has producers of its own, so that none uses up another's sequences; those without
an owner, which version 0.1 or a time without access control has left, count for each user. Without access control
those of all users count, as nothing is stored twice when it is turned off. The log is the truth, here as everywhere:
the file only makes a start quick, and is written for what is flushed and confirmed, so that it never knows a record
that a crash or an election takes back. While the log is still being read idempotent sends are refused for the moment,
and nothing else waits for it. What the table says is checked against the record before an answer says so (`known`),
so that a message that is not in the log is never called stored.
Owned by the event loop; `recover` runs in a thread, and holds the lock, while the loop takes no send.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.broker import property_text as text
from penstock.broker.flow_control import BusyError, UnknownOutcomeError
from penstock.broker.options import BrokerOptions
from penstock.broker.record_gate import own_message_at
from penstock.broker.sequence_file import FILE_NAME, Frozen, decode, encode, freeze
from penstock.broker.sequence_scan import PRODUCER_NAME, SEQUENCE_MAX, pair_of, scan, sequence_number
from penstock.broker.sequence_table import NOT_STORED, TOO_OLD, Pair, SequenceTable, owned_name
from penstock.broker.topics import Topics
from penstock.errors import CodecError, RequestError
from penstock.message import StoredMessage
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers import PRODUCER_FIELD, SEQUENCE_FIELD
from penstock.runtime import Runtime
from penstock.runtime.disk import write_atomically
from penstock.runtime.shares import has_share
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
TICK_MS = 100
# How long the log is read before a broker begins to answer, and then in one turn of the loop; the next turn follows
# after a moment where there is more.
FIRST_MS = 500
TURN_MS = 10
PAUSE_MS = 20
# The file is written anew when the log has grown by so much, also if nobody sends idempotently.
GROWTH_BYTES = 64 << 20
FAR = 1 << 62
PRODUCER_SIZE_MAX = 64
# A table that takes long to write is written less often.
_PAUSE_FACTOR = 10
_EXPIRY_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class Numbered:
    """What an idempotent send says of itself: whose it is, and the sequences of its messages. It may have been stored
    for one of `others` as well."""

    pair: Pair
    first: int
    count: int = 1
    others: tuple[Pair, ...] = ()

    def properties(self, number: int = 0) -> dict[str, str]:
        """What is stored with one of its messages."""
        return {text.PRODUCER: self.pair.producer, text.SEQUENCE: str(self.first + number)}


class Idempotence:
    """See the module's text. `open` when there is a store, `recover` whenever the broker becomes master, `rest` when
    it stops being it, `tick` again and again, `stop` in the end."""

    def __init__(self, options: BrokerOptions, runtime: Runtime, config: Path) -> None:
        self.options = options
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._path = config / FILE_NAME
        self.table = SequenceTable(options.idempotence_window, options.idempotence_sequences_max)
        self._store: MessageStore
        # How far the log is in the table, and how far it has to be before idempotent sends are taken.
        self.read_to = 0
        self._goal = FAR
        self._cuts = 0
        self._is_leading = False
        # How far the log is with everybody who could be master.
        self.confirmed_offset: Callable[[], int] = lambda: FAR
        self.saved_to = -1
        self._has_news = False
        self._next_save_ms = 0
        self._saving: asyncio.Task[None] | None = None
        self._going_on: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        # When the table may be searched again for pairs that are too old: where all are in use, that is in vain.
        self._next_expiry_ms = 0
        # Sends that were answered as stored before.
        self.repeated = 0

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options
        self.table.window = options.idempotence_window
        self.table.sequences_max = options.idempotence_sequences_max

    # -- following the log -----------------------------------------------------------------------------------

    def open(self, store: MessageStore, topics: Topics) -> None:
        """Begin with what the file says of the log."""
        self._store = store
        self._cuts = len(store.log.cuts)
        topics.on_delete.append(self._topic_deleted)
        self._load()
        end = store.log.max_offset
        if self.read_to > end:
            # Another directory's, or a disk that lost what it had synced: only what lies before the end can be true.
            _LOG.warning("%s knows the log up to %d, which ends at %d", FILE_NAME, self.read_to, end)
            self.table.cut(end)
            self.read_to = self.saved_to = end
        for topic, before in store.deleted_topics.items():
            self.table.forget_topic(topic, before)
        self.read_to = max(self.read_to, self._oldest_needed())

    def _load(self) -> None:
        try:
            data = self._disk.read(self._path) if self._disk.exists(self._path) else None
            if data is None:
                return
            self.read_to = self.saved_to = decode(data, self.table)
        except (OSError, CodecError) as error:
            _LOG.warning("%s cannot be read, so more of the log is: %s", FILE_NAME, error)
            self.table = SequenceTable(self.table.window, self.table.sequences_max)
            self.read_to, self.saved_to = 0, -1

    def _oldest_needed(self) -> int:
        """Where the log begins to be younger than the expiry time: nobody who sent before that is remembered."""
        log, before_ms = self._store.log, self._expired_ms()
        position = log.min_offset
        for base in range(position + log.segment_size, log.max_offset, log.segment_size):
            first = own_message_at(self._store, base)
            if first is None or first.store_timestamp >= before_ms:
                break
            position = base
        return position

    def _expired_ms(self) -> int:
        return self._clock.now_ms() - self.options.idempotence_expiry_ms

    def recover(self) -> None:
        """Before this broker takes messages: know what the log holds, or as much as can be read in a moment."""
        with self._lock:
            self._is_leading = True
            self._goal = self._store.log.max_offset
            self._read(self._goal, FIRST_MS)
            for topic, before in self._store.deleted_topics.items():
                self.table.forget_topic(topic, before)
        if self.read_to < self._goal:
            _LOG.warning(
                "idempotent sends wait: %d bytes of the log are still to be read", self._goal - self.read_to
            )

    def rest(self) -> None:
        """This broker is not master any more: what it stored and nobody confirmed may be cut off."""
        if not self._is_leading:
            return
        confirmed = self._store.dispatch.offset
        self.read_to = confirmed if self.is_ready else min(self.read_to, confirmed)
        self.table.cut(self.read_to)
        self._is_leading = False
        self._goal = FAR

    @property
    def is_ready(self) -> bool:
        """Whether the table knows all that was in the log when this broker became master."""
        return self._is_leading and self.read_to >= self._goal

    def _follow_cuts(self) -> None:
        """What was cut off the log goes out of the table, whatever has come to its place."""
        cuts = self._store.log.cuts
        if self._cuts < len(cuts):
            position = min(cuts[self._cuts :])
            self._cuts = len(cuts)
            self.table.cut(position)
            self.read_to = min(self.read_to, position)
            self.saved_to = min(self.saved_to, position)
            self._has_news = True

    def _read(self, limit: int, for_ms: int) -> None:
        """Take in the log up to a position, or as much of it as can be read in this time."""
        self._follow_cuts()
        if self.read_to >= limit:
            return
        deleted = self._store.deleted_topics
        until_ms = self._clock.monotonic_ms() + for_ms
        while self.read_to < limit and self._clock.monotonic_ms() <= until_ms:
            self.read_to, sends = scan(self._store.log, self.read_to, limit)
            for send in sends:
                if send.position >= deleted.get(send.pair.topic, 0):
                    self.table.add(send.pair, send.sequence, send.position, send.store_timestamp)
                    self._has_news = True

    def _topic_deleted(self, topic: str) -> None:
        """The store knows up to where; one of that name may have been made anew behind it."""
        with self._lock:
            self.table.forget_topic(topic, self._store.deleted_topics.get(topic, 0))
            self._has_news = True

    def tick(self) -> None:
        """Follow the log, and save now and then."""
        if not self._lock.acquire(blocking=False):
            return  # it is being read anyway
        try:
            limit = self._goal if self._is_leading else self._store.dispatch.offset
            self._read(limit, TURN_MS)
            if self.read_to < limit and self._going_on is None:
                self._going_on = asyncio.get_running_loop().call_later(PAUSE_MS / 1000, self._go_on)
            is_time = self._clock.monotonic_ms() >= self._next_save_ms
            if self._saving is None and is_time and self._must_save(GROWTH_BYTES):
                self._saving = asyncio.ensure_future(self._save(*self._freeze()))
        finally:
            self._lock.release()

    def _go_on(self) -> None:
        self._going_on = None
        self.tick()

    # -- the file --------------------------------------------------------------------------------------------

    def _safe(self) -> int:
        """The part of the log that the table knows and that nothing takes back."""
        known = self._store.log.max_offset if self.is_ready else self.read_to
        return min(known, self._store.flusher.flushed_offset, self.confirmed_offset())

    def _must_save(self, growth: int) -> bool:
        """Whether the file would say more than it does; a new master does not know yet what is confirmed."""
        more = self._safe() - self.saved_to
        return more >= growth or (more >= 0 and self._has_news)

    def _freeze(self) -> tuple[Frozen, int]:
        """What is to be written, and the log position that it knows."""
        position = self._safe()
        self._has_news = False
        self.table.expire(self._expired_ms())
        return freeze(self.table, position), position

    async def _save(self, frozen: Frozen, position: int) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            await asyncio.to_thread(self._write, frozen, position)
            self.saved_to = position
        except OSError as error:
            self._has_news = True
            _LOG.error("%s is not written, and tried again: %s", FILE_NAME, error)
        finally:
            now_ms = self._clock.monotonic_ms()
            pause_ms = max(self.options.idempotence_save_interval_ms, (now_ms - began_ms) * _PAUSE_FACTOR)
            self._next_save_ms = now_ms + pause_ms
            self._saving = None

    def _write(self, frozen: Frozen, position: int) -> None:
        self._disk.make_dirs(self._path.parent)
        write_atomically(self._disk, self._path, encode(frozen, position))

    async def stop(self) -> None:
        """Save what is left."""
        if self._going_on is not None:
            self._going_on.cancel()
        if self._saving is not None:
            await self._saving
        if self._must_save(1):
            await self._save(*self._freeze())

    # -- sends -----------------------------------------------------------------------------------------------

    def read(self, fields: Mapping[str, str], topic: str, queue_id: int, user: str | None) -> Numbered | None:
        """What an idempotent send of a user says of itself; None for any other send. The user is None without access
        control, and empty for a trusted address. Raises RequestError."""
        producer, sequence = fields.get(PRODUCER_FIELD), fields.get(SEQUENCE_FIELD)
        if producer is None and sequence is None:
            return None
        if not producer or PRODUCER_NAME.fullmatch(producer) is None:
            raise _illegal(
                f"{PRODUCER_FIELD} is {(producer or '')[:80]!r}",
                f"use 1 to {PRODUCER_SIZE_MAX} letters, digits, _ . -",
            )
        first = sequence_number(sequence)
        if first is None:
            raise _illegal(
                f"{SEQUENCE_FIELD} is {(sequence or '')[:80]!r}",
                f"use a whole number from 0 to {SEQUENCE_MAX}",
            )
        if queue_id < 0:
            raise _illegal("an idempotent send lets the broker choose the queue", "name the queue")
        unowned = pair_of(topic, queue_id, {text.PRODUCER: producer})
        if unowned is None:
            raise _illegal(f"topic {topic} takes no idempotent sends", "send it without a producer")
        if user is None:
            return Numbered(unowned, first, others=tuple(self.table.owned(unowned)))
        if not user:
            return Numbered(unowned, first)
        return Numbered(
            unowned._replace(producer=owned_name(producer, owner_of(user))), first, others=(unowned,)
        )

    def batch(self, send: Numbered, count: int) -> Numbered:
        """The same for a batch of so many messages, whose sequences follow one another. Raises RequestError."""
        if not 0 < count <= self.options.idempotence_window or send.first + count > SEQUENCE_MAX:
            raise _illegal(
                f"an idempotent batch of {count} messages; the limit is {self.options.idempotence_window}",
                "send smaller batches, or raise idempotence_window of the broker",
            )
        return replace(send, count=count)

    def known(self, send: Numbered, bodies: Sequence[bytes | bytearray]) -> list[StoredMessage]:
        """The messages of a send as they were stored before; none if they were not, and may be now. Raises
        RequestError where neither is certain."""
        if not self.is_ready:
            raise BusyError(
                "[REJECTREQUEST]the log is still being read for what was sent idempotently before", TICK_MS
            )
        found = [self._stored_in_any(send, send.first + number) for number in range(send.count)]
        stored = [message for message in found if message is not None]
        if not stored:
            self._check_room(send.pair)
            return []
        if len(stored) < send.count:
            raise UnknownOutcomeError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(stored)} of the {send.count} messages of this batch were stored before, the others not",
                "look which of them are there; send the others as new messages",
            )
        for number, message in enumerate(stored):
            if message.body != bodies[number]:
                raise _illegal(
                    f"sequence {send.first + number} of producer {_shown(send.pair)} in {send.pair.topic}/"
                    f"{send.pair.queue_id} was stored with another body, at offset {message.queue_offset}",
                    "a sequence is for one message; give a new message a new sequence",
                )
        self.repeated += send.count
        return stored

    def _stored_in_any(self, send: Numbered, sequence: int) -> StoredMessage | None:
        for pair in (send.pair, *send.others):
            message = self._stored(pair, sequence)
            if message is not None:
                return message
        return None

    def _stored(self, pair: Pair, sequence: int) -> StoredMessage | None:
        position = self.table.find(pair, sequence)
        if position == NOT_STORED:
            return None
        if position == TOO_OLD or position < self._store.log.min_offset:
            raise UnknownOutcomeError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sequence {sequence} of producer {_shown(pair)} in {pair.topic}/{pair.queue_id} is older than "
                f"those that are kept, the newest {self.options.idempotence_window} or less",
                "it may be stored, and is not stored now; look for it before you send it as a new message",
            )
        message = own_message_at(self._store, position)
        if message is None:
            raise UnknownOutcomeError(
                ResponseCode.SYSTEM_ERROR,
                f"sequence {sequence} of producer {_shown(pair)} was stored, and its record at log position "
                f"{position} cannot be read",
                "run `penstock store verify` on the broker's directory",
            )
        properties = dict(message.properties)
        is_same = pair_of(message.topic, message.queue_id, properties) == pair
        if is_same and sequence_number(properties.get(text.SEQUENCE)) == sequence:
            return message
        _LOG.error("sequence %d of %s is not at log position %d: forgotten", sequence, pair, position)
        self.table.remove(pair, sequence)
        return None

    def _check_room(self, pair: Pair) -> None:
        if pair in self.table or self._has_room(pair.owner):
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_expiry_ms:
            if self.table.expire(self._expired_ms()) and self._has_room(pair.owner):
                return
            self._next_expiry_ms = now_ms + _EXPIRY_PAUSE_MS
        raise BusyError(
            f"the broker remembers idempotent sends of {len(self.table)} pairs of producer and queue, the limit "
            f"(idempotence_queues_max) is {self.options.idempotence_queues_max}",
            60_000,
        )

    def _has_room(self, owner: str) -> bool:
        """Whether one more pair may be remembered; a user leaves a part of the room to others."""
        known, most = len(self.table), self.options.idempotence_queues_max
        if known >= most or not owner:
            return known < most
        return has_share(self.table.pairs_of(owner), known, most)

    def stored(self, send: Numbered, positions: Sequence[int]) -> None:
        """The messages of a send are in the log."""
        now_ms = self._clock.now_ms()
        for number, position in enumerate(positions):
            self.table.add(send.pair, send.first + number, position, now_ms)
        self._has_news = True


def owner_of(user: str) -> str:
    """A user in the name of a producer: a digest, because consumers see the properties of a message."""
    return hashlib.sha256(f"penstock producer {user}".encode()).hexdigest()[:16]


def _illegal(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, message, hint)


def _shown(pair: Pair) -> str:
    return pair.producer.partition(" ")[0]
