"""Copies of staged messages, put into the log a run at a time, and found again after a crash.

A copy is an ordinary message of its topic: fresh queue offset, born time and host of the staged one, the broker's
properties behind its own. Its prepared offset is the log position of the record that decided its publication.
Copies are made in the order of the handles and of the messages in each, and a log is a prefix of what was written
after any crash: so the copies that a log has are the first ones, and the rest is what is missing. Only if one of them
was damaged since, the count is short; the last one's unique key then says which it is.

`run` holds up the event loop for at most so many bytes and messages. Whoever runs it keeps the copies from being seen
before all are there (`publications.py`).
"""

from __future__ import annotations

import logging
from collections import Counter

from penstock._hot.layout import BLANK
from penstock._hot.queues import QueueState
from penstock._hot.reads import find_record
from penstock._hot.staged import CopyTargets, count_copies
from penstock.broker import property_text as text
from penstock.broker.flow_control import FlowControl
from penstock.broker.record_gate import own_message_at
from penstock.broker.send_rules import SendRules
from penstock.broker.staging import StagedPart
from penstock.broker.topics import Topics
from penstock.errors import RequestError, StoreError
from penstock.message import Message
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.store import Durability, MessageStore

_LOG = logging.getLogger("penstock.broker")
RUN_BYTES = 1 << 20
RUN_MESSAGES = 1_000
_NOTHING_YET = -1


class Copying:
    """The copies of one publication."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        rules: SendRules,
        flow: FlowControl,
    ) -> None:
        self._store = store
        self._topics = topics
        self._rules = rules
        self._flow = flow
        self._parts: list[StagedPart] = []
        self._at = 0
        self._begun = _NOTHING_YET
        self._queues: dict[tuple[str, int], QueueState] = {}
        self._targets: CopyTargets | None = None
        # Topics that were deleted since the first look: none of their messages may come after the others went.
        self.gone: set[str] = set()
        self.messages = 0
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    # -- before the decision ---------------------------------------------------------------------------------

    def add(self, part: StagedPart) -> None:
        """One more part; refused if it could not be copied: its topic is gone, there is no room for its queue."""
        for target in part.targets:
            config = self._topics.get(target.topic)
            if config is None:
                raise RequestError(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic {target.topic} was deleted after its messages were staged; nothing is published",
                    "create it, then run the batch again",
                )
            self._rules.check_sendable(target.topic)
            self._rules.queue(config, target.queue_id)
            self._queue(target.topic, target.queue_id)
        self._levels(part)
        self.take(part)

    def take(self, part: StagedPart) -> None:
        """The same for what was decided already: it is copied as far as that is possible."""
        self._parts.append(part)
        for target in part.targets:
            self.counts[target.topic] += target.messages
        self.messages += part.handle.messages

    # -- after it --------------------------------------------------------------------------------------------

    def begin(self, position: int) -> None:
        """The decision is the record at this log position."""
        self._begun = position

    def resume(self, position: int) -> int:
        """The same after a crash; how many copies the log has already."""
        self.begin(position)
        count, key = find_copies(self._store, position)
        self._skip(count - 1)
        if count and self._next_key() == key:
            self._skip(1)
        elif count:
            self._go_behind(key, count)
        return count

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted while its messages were copied: the rest is deleted with it."""
        self.gone.add(topic)
        self._queues.clear()
        self._targets = None

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._parts)

    def run(self) -> None:
        """Copy some. If this raises, what it tried is tried again by the next call."""
        part = self._parts[self._at]
        items, start = part.items, self._store.log.max_offset
        if self._targets is None:
            self._targets = self._make_targets(part)
        items.begin(self._targets, part.born_timestamp, part.born_host, RUN_BYTES, RUN_MESSAGES)
        before = items.pos
        try:
            self._store.append_run(items.build)
        except StoreError:
            items.rewind()
            raise
        if items.pos == before:
            self._over_the_end(part)
        self.bytes += self._store.log.max_offset - start
        if items.is_done:
            if items.refused:
                _LOG.error("%d staged messages fit no record any more and are left out", items.refused)
            self._at += 1
            self._targets = None

    def _over_the_end(self, part: StagedPart) -> None:
        """One message the ordinary way, which ends a full segment and makes the next."""
        request = part.items.request()
        if request is None:
            return
        try:
            self._store.append_group([request], durability=Durability.MEMORY)
        except StoreError:
            if request.size <= 0:
                part.items.rewind()
            raise
        if request.size < 0:
            _LOG.error("a staged message for %s fits no segment; left out", request.queue.topic.decode())

    # -- targets ---------------------------------------------------------------------------------------------

    def _make_targets(self, part: StagedPart) -> CopyTargets:
        queues: list[QueueState | None] = [None] * part.targets_count
        flags = [0] * part.targets_count
        places = [b""] * part.targets_count
        for target in part.targets:
            config = self._topics.get(target.topic)
            if config is None or target.topic in self.gone:
                continue
            place = text.pair(text.REAL_TOPIC, target.topic)
            place += text.pair(text.REAL_QUEUE_ID, str(target.queue_id))
            queues[target.number] = self._queue(target.topic, target.queue_id)
            flags[target.number] = self._rules.system_flag(config, 0)
            places[target.number] = place.encode()
        return CopyTargets(queues, flags, places, self._levels(part), self._rules.suffix_bytes, self._begun)

    def _levels(self, part: StagedPart) -> list[QueueState | None]:
        """The queues of the delay levels in use."""
        most = len(self._store.options.delays_ms)
        used = {min(level, most) for level in range(63) if part.items.levels >> level & 1} - {0}
        return [
            self._queue(SCHEDULE_TOPIC, level - 1) if level in used else None for level in range(1, most + 1)
        ]

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        """Once the decision is written, a queue is made whether there is room for it or not."""
        known = self._queues.get((topic, queue_id))
        if known is None:
            found = self._store.queues.get(topic, queue_id)
            if found is None and self._begun == _NOTHING_YET:
                self._flow.admit_queue(topic, len(self._store.queues))
            known = self._store.request(Message(topic, b""), queue_id).queue if found is None else found.state
            self._queues[topic, queue_id] = known
        return known

    # -- after a crash ---------------------------------------------------------------------------------------

    def _skip(self, count: int) -> None:
        while count > 0 and not self.is_done:
            items = self._parts[self._at].items
            count -= items.skip(count)
            if items.is_done:
                self._at += 1

    def _next_key(self) -> str:
        if self.is_done:
            return ""
        properties = self._parts[self._at].items.properties()
        return text.parse(text.decode(properties)).get(text.UNIQ_KEY, "")

    def _go_behind(self, key: str, count: int) -> None:
        """Some copies are damaged, or their topic was deleted: find the last one among the messages by its key."""
        for part in self._parts:
            part.items.restart()
        self._at = 0
        while not self.is_done and self._next_key() != key:
            self._skip(1)
        if self.is_done:
            _LOG.error("the last copy of a publication is none of its messages; going on after %d", count)
            for part in self._parts:
                part.items.restart()
            self._at = 0
            self._skip(count - 1)
        self._skip(1)


def find_copies(store: MessageStore, begun: int) -> tuple[int, str]:
    """How many messages of a publication the log has, and the unique key of the last one."""
    log = store.log
    position, count, last = begun, 0, -1
    while position < log.max_offset:
        segment = log.segment_of(position)
        if segment is None:
            position += log.segment_size - position % log.segment_size
            continue
        end = min(log.max_offset - segment.base, segment.available)
        stop, why, found, newest = count_copies(
            segment.view, position - segment.base, end, segment.base, begun
        )
        count += found
        last = segment.base + newest if newest >= 0 else last
        if why in (0, BLANK):
            position = segment.base + segment.size
            continue
        following = find_record(segment.view, stop + 1, end, segment.base)
        position = segment.base + (following if following >= 0 else segment.size)
    message = own_message_at(store, last)
    return count, message.properties.get(text.UNIQ_KEY, "") if message is not None else ""
