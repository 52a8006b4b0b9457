"""What a pop finds: messages of a group's queues from where it pops next, and what the answer says of them.

    sources     the retry topics first, one time in five, else last; between them the queue asked for, or all queues
                of the topic from a random one on
    per queue   nothing happens between looking where the group is and moving it, so that a queue needs no lock; what
                does not match is passed over
    retries     come as messages of their topic, with the handle among their properties (POP_CK)

Reads only; what is taken is for the caller to keep. Owned by the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.broker import property_text as text
from penstock.broker.filtering import PullFilter
from penstock.broker.options import BrokerOptions
from penstock.broker.pop_records import QueueKey
from penstock.broker.pop_service import PopService
from penstock.broker.retry_names import RetryNames
from penstock.broker.store_times import memory_window
from penstock.broker.topics import Topics
from penstock.errors import PropertiesTooLargeError, RequestError
from penstock.message import decode_record
from penstock.message.record import encode_record
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.pop_handles import NORMAL, PopHandle
from penstock.runtime import Entropy
from penstock.store import GetStatus, MessageStore

_LOG = logging.getLogger("penstock.broker")
# Runs of messages that do not match which one pop passes over in one queue.
_SKIPS_MAX = 16
_MOVED = (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL)
# Values of `initMode`; the last is ours: from the first, and nobody is moved.
FROM_FIRST, FROM_LAST, PEEK = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Match:
    """Which messages a pop wants: by what queue entries hold, and by what their records say. None: all."""

    codes: frozenset[int] | None = None
    wanted: PullFilter | None = None
    # In order: what the client calls this attempt, which may be made again. Queues that are held are left out.
    attempt: str = ""

    @property
    def is_spent(self) -> bool:
        return self.wanted is not None and self.wanted.is_spent()


ALL = Match()


@dataclass(frozen=True, slots=True)
class Source:
    """A queue that a pop looks at."""

    kind: str
    queue: QueueKey


@dataclass(slots=True)
class Run:
    """Messages of one queue; `records` are theirs as they are stored."""

    kind: str
    queue: QueueKey
    start_offset: int
    offsets: list[int]
    records: list[memoryview]
    next_offset: int

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


@dataclass(slots=True)
class Found:
    """What one pop found, and how many messages more there are. `is_cut`: its filter had no time to look at all of
    them."""

    runs: list[Run] = field(default_factory=list)
    rest: int = 0
    is_cut: bool = False

    @property
    def count(self) -> int:
        return sum(len(run.offsets) for run in self.runs)


class PopReader:
    """Finds messages for pops."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: Topics,
        service: PopService,
        names: RetryNames,
        entropy: Entropy,
    ) -> None:
        self._store = store
        self._topics = topics
        self._service = service
        self._names = names
        self._entropy = entropy
        self.reconfigure(options)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options
        self._memory_window = memory_window(options.memory_percent)

    # -- sources ---------------------------------------------------------------------------------------------

    def sources(
        self, group: str, topic: TopicConfig, queue_id: int, *, in_order: bool = False
    ) -> Iterator[Source]:
        """The queues of a pop in the order in which they are looked at. In order nothing goes to a retry topic."""
        retries = (
            []
            if in_order
            else [
                Source(kind, QueueKey(name, group, number))
                for kind, name in self._names.readable(group, topic.name)
                if (known := self._topics.get(name)) is not None
                for number in range(known.read_queue_nums)
            ]
        )
        is_first = self._entropy.below(100) < self._options.pop_from_retry_percent
        if is_first:
            yield from retries
        if queue_id >= 0:
            yield Source(NORMAL, QueueKey(topic.name, group, queue_id))
        else:
            count = topic.read_queue_nums
            start = self._entropy.below(count) if count else 0
            for number in range(count):
                yield Source(NORMAL, QueueKey(topic.name, group, (start + number) % count))
        if not is_first:
            yield from retries

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, sources: Iterator[Source], most: int, match: Match, init_mode: int) -> Found:
        """Up to so many messages; what is passed over on the way is done with, unless this is only a `PEEK`. Retries
        have matched before. The time of a filter is for all queues together."""
        found = Found()
        room = self._options.pull_bytes_memory_max
        if match.wanted is not None:
            match.wanted.begin()
        for source in sources:
            left = most - found.count
            matching = match if source.kind == NORMAL else ALL
            if left > 0 and room > 0 and not matching.is_spent:
                run = self._run(source, left, room, matching, init_mode)
                if run is not None:
                    found.runs.append(run)
                    room -= run.size
                    found.rest += (
                        self._store.max_offset(source.queue.topic, source.queue.queue_id) - run.next_offset
                    )
                    continue
            found.rest += self.waiting(source)
        found.is_cut = match.is_spent and found.rest > 0
        return found

    def waiting(self, source: Source) -> int:
        """Messages of a queue that the group has not popped, at most as far as can be told without looking at
        them."""
        queue = source.queue
        high = self._store.max_offset(queue.topic, queue.queue_id)
        position = self._service.position(queue)
        low = self._store.min_offset(queue.topic, queue.queue_id)
        return max(high - max(position, low), 0)

    def _run(self, source: Source, most: int, room: int, match: Match, init_mode: int) -> Run | None:
        queue, ordered = source.queue, self._service.ordered
        position = self._service.position(queue)
        if ordered.is_held(queue, match.attempt):
            return None
        high = self._store.max_offset(queue.topic, queue.queue_id)
        if position < 0:
            if high == 0 and source.kind == NORMAL and init_mode == FROM_LAST:
                return None
            position = self._first_position(source, init_mode)
        end = self._store.end_offset(queue.topic, queue.queue_id)
        if position >= high and position <= end:
            return None
        for _ in range(_SKIPS_MAX):
            count, size = self._limits(queue, position, most, room)
            got = self._store.get(
                queue.topic, queue.queue_id, position, count, size, match.codes, match.wanted
            )
            if got.status is GetStatus.FOUND:
                records = list(_split(memoryview(bytes(got.data))))
                offsets = [_offset(record) for record in records]
                return Run(source.kind, queue, position, offsets, records, got.next_offset)
            if init_mode == PEEK:
                pass
            elif got.status in _MOVED:
                _LOG.warning("group %s was at %d of %s, which is not there", queue.group, position, queue)
                self._service.state.move(queue)
                self._service.begin_at(queue, got.next_offset)
            elif got.next_offset > position:
                self._service.skip(queue, got.next_offset)
            if got.next_offset == position or got.next_offset >= got.max_offset:
                return None
            if match.is_spent:
                return None
            position = got.next_offset
        return None

    def _limits(self, queue: QueueKey, position: int, most: int, room: int) -> tuple[int, int]:
        """Messages and bytes: fewer where they have to be read from disk."""
        log, options = self._store.log, self._options
        if log.max_offset - log.min_offset > self._memory_window:
            first = self._store.reader.entries(queue.topic, queue.queue_id, position, 1)
            if first and log.max_offset - first[0].position > self._memory_window:
                return min(most, options.pull_count_disk_max), min(room, options.pull_bytes_disk_max)
        return most, room

    def _first_position(self, source: Source, init_mode: int) -> int:
        """Where a group begins that was never in the queue. As RocketMQ's: at the last message, unless the queue is
        so new that its first is still in memory."""
        queue = source.queue
        low = self._store.min_offset(queue.topic, queue.queue_id)
        high = self._store.max_offset(queue.topic, queue.queue_id)
        if source.kind == NORMAL and init_mode == FROM_LAST and (low or not self._is_in_memory(queue)):
            offset = max(high - 1, low)
        else:
            offset = low
        if init_mode != PEEK:
            self._service.begin_at(queue, offset)
        return offset

    def _is_in_memory(self, queue: QueueKey) -> bool:
        log = self._store.log
        first = self._store.reader.entries(queue.topic, queue.queue_id, 0, 1)
        return not first or log.max_offset - first[0].position <= self._memory_window

    # -- answers ---------------------------------------------------------------------------------------------

    def body(
        self, runs: Sequence[Run], topic: str, popped_ms: int, invisible_ms: int, revive_queue: int
    ) -> bytes:
        """The records as they travel."""
        parts: list[bytes | memoryview] = []
        for run in runs:
            if run.kind == NORMAL:
                parts += run.records
                continue
            for record, offset in zip(run.records, run.offsets, strict=True):
                handle = PopHandle(
                    run.start_offset,
                    popped_ms,
                    invisible_ms,
                    revive_queue,
                    run.kind,
                    self._options.broker_name,
                    run.queue.queue_id,
                    offset,
                )
                parts.append(_renamed(record, topic, str(handle)))
        return b"".join(parts)


def _split(data: memoryview) -> Iterator[memoryview]:
    """The records of an answer; the store has checked their sizes."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size


def _offset(record: memoryview) -> int:
    return int.from_bytes(record[20:28], "big")


def _renamed(record: memoryview, topic: str, handle: str) -> bytes:
    """A record of a retry topic as one of the topic whose message it was."""
    message = decode_record(record, verify=False)
    kept = {
        name: value for name, value in message.properties.items() if name not in (text.SEAL, text.POP_CHECK)
    }
    try:
        return encode_record(replace(message, topic=topic, properties={**kept, text.POP_CHECK: handle}))
    except (RequestError, PropertiesTooLargeError):
        return bytes(record)  # as it is: it can be read, and comes again if it is not acknowledged
