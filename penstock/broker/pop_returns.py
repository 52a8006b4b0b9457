"""Popped messages that nobody acknowledged in time, made ready to come again.

    tries left     %RETRY%<group>_<topic>, queue 0; from there a pop gets them as messages of their topic
    none left      %DLQ%<group>, queue 0, as for messages that consumers give back

The copy keeps body, born time, flag and properties; it has one more try counted, and 1ST_POP_TIME says when it was
popped first. RocketMQ's broker leaves dead letters of POP to its clients, of which only some write them; here a
group's `retryMaxTimes` holds for whatever way it reads (docs/decisions/0037). What is gone by then, with its topic,
its group or its segment, is not missed. Owned by the event loop."""

from __future__ import annotations

import logging

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.groups import GroupConfig, Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.pop_records import CheckPoint
from penstock.broker.record_gate import StoredRecord, record_of_entry
from penstock.broker.retry_names import RetryNames
from penstock.broker.statistics import Statistics
from penstock.broker.topics import Topics, dead_letter_topic
from penstock.broker.writing import MessageWriter
from penstock.errors import PropertiesTooLargeError, RequestError
from penstock.protocol.pop_handles import RETRY_V1, RETRY_V2, pop_retry_topic, topic_kind
from penstock.protocol.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
FIRST_POP_TIME = "1ST_POP_TIME"
_BORN_AND_COMPRESSION = ~0x30
_DROPPED = (text.WAIT, text.SEAL, text.POP_CHECK, *text.DEAD_LETTER_ORIGINS)
# In an ordinary topic a sender may have set them; the broker sets them on what was tried before.
_NOTED = (text.RETRY_TOPIC, text.ORIGIN_MESSAGE_ID)


class PopReturns:
    """Makes the copies; storing them is the service's."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        statistics: Statistics,
        names: RetryNames,
    ) -> None:
        self.options = options
        self._names = names
        self._store = store
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._statistics = statistics
        self.returned_count = 0
        self.dead_count = 0

    def copies(self, check: CheckPoint) -> list[tuple[int, AppendRequest]]:
        """Queue offset and copy of each message of a check point that is to come again."""
        queue = check.key.queue
        group = self._groups.find(queue.group)
        if group is None or self._topics.get(queue.topic) is None:
            return []
        found = []
        for offset in check.left():
            record = self._record(check, offset)
            if record is None:
                _LOG.warning("the popped message %d of %s cannot be read any more", offset, queue)
            else:
                found.append((offset, self._copy(check, group, record)))
        return found

    def _record(self, check: CheckPoint, offset: int) -> StoredRecord | None:
        queue = check.key.queue
        if offset < self._store.min_offset(queue.topic, queue.queue_id):
            return None
        entries = self._store.reader.entries(queue.topic, queue.queue_id, offset, 1)
        return record_of_entry(self._store, entries[0], queue.topic, queue.queue_id) if entries else None

    def _copy(self, check: CheckPoint, group: GroupConfig, record: StoredRecord) -> AppendRequest:
        message, queue = record.message, check.key.queue
        kind, topic = topic_kind(queue.group, queue.topic)
        # Maybe retries of another group, which were popped by the name of their topic.
        is_foreign = kind == RETRY_V1 and self._names.is_guarded and self._names.is_shared(queue.group, topic)
        put = {}
        was_tried = queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        if message.tries == 0:
            put[FIRST_POP_TIME] = str(check.key.pop_time)
        if message.tries >= group.retry_max_times:
            place = self._topics.ensure(dead_letter_topic(group.name), 1).name
            put[text.RETRY_TOPIC] = (
                message.properties.get(text.RETRY_TOPIC, queue.topic) if is_foreign else topic
            )
            noted = message.properties.get(text.ORIGIN_MESSAGE_ID) if was_tried else None
            put[text.ORIGIN_MESSAGE_ID] = noted or message.message_id
            self.dead_count += 1
            self._statistics.sent_back(group.name, topic, is_dead=True)
            _LOG.info("message %s is a dead letter of group %s", message.message_id, group.name)
        else:
            is_kept = is_foreign or kind == RETRY_V2 or (kind == RETRY_V1 and not self._names.is_guarded)
            place = queue.topic if is_kept else self._retry_topic(queue.group, topic)
            self._statistics.sent_back(group.name, topic, is_dead=False)
        properties, pairs = text.decode(record.properties), dict(message.properties)
        try:
            drop = _DROPPED if was_tried else (*_DROPPED, *_NOTED)
            stored = text.encode(text.changed(properties, pairs, drop, put))
        except PropertiesTooLargeError:
            stored = record.properties  # rather without the notes than never again
        return AppendRequest(
            self._writer.queue(place, 0),
            message.body,
            stored,
            message.born_timestamp,
            message.born_host.encode(),
            message.flag,
            message.sys_flag & _BORN_AND_COMPRESSION,
            message.tries + 1,
        )

    def _retry_topic(self, group: str, topic: str) -> str:
        """The topic that retries of a group go to; there from its first message on."""
        kind = self._names.kind(is_second=self.options.pop_retry_topic_v2)
        name = self._topics.ensure(pop_retry_topic(group, topic, kind), 1).name
        if self._offsets.query(group, name, 0) < 0:
            try:
                self._offsets.commit(group, name, 0, 0)
            except RequestError as error:
                _LOG.warning("the offset of group %s in %s is not kept: %s", group, name, error)
        return name

    def returned(self, check: CheckPoint, count: int) -> None:
        """Copies of a check point's messages are stored."""
        self.returned_count += count
        if count:
            queue = check.key.queue
            _LOG.debug("%d messages of %s come again for group %s", count, queue.topic, queue.group)
