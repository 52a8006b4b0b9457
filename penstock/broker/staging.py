"""Staged messages: kept in the log, in no queue of their topics, until they are published (`publications.py`).

    STAGE     a client's request, checked item by item, becomes one record of PENSTOCK_STAGED; its body is the
              request's, byte for byte
    handle    position.size.messages.key of that record: what the client publishes it by

Rules. PENSTOCK_STAGED has a queue (0) and no topic config, so no client can pull from it. Everything that could be
wrong with a message is found when it is staged: topic, queue, properties, sizes; after that only the topic may go. A
handle proves nothing: the record it leads to must be whole, of this topic, staged by the user who publishes it, have
the handle's own key, and have an entry in the staged queue (`record_gate.py`). The key is random and part of the
record: it is known to those who were given the handle, and survives restart and failover as the record does.
Records that 0.1 staged have no entry (their system flag says "rolled back"): they are published only if 0.1 had
already decided to.

Staged records are not swept: what is never published ages out with the log. Owned by the event loop.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock._hot.layout import BLANK_SIZE, DELAY_ROOM, ITEM_REFUSALS, SEAL_SIZE
from penstock._hot.mapped import MappedBytes
from penstock._hot.records import AppendRequest
from penstock._hot.staged import StagedItems
from penstock.broker import property_text as text
from penstock.broker.record_gate import is_from_client, record_view
from penstock.broker.send_rules import SendRules, is_compacted
from penstock.broker.writing import MessageWriter
from penstock.errors import CodecError, MessageTooLargeError, RequestError
from penstock.message.properties import PROPERTIES_SIZE_MAX
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies.staged import TopicQueues, decode_head
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers import ROW_FIELD, SendMessageRequestHeader, StageMessagesRequestHeader
from penstock.protocol.topic_names import RETRY_PREFIX, STAGED_TOPIC
from penstock.store import MessageStore

TOPIC_SIZE_MAX = 127
_KEY_SIZE_MAX = 64
# What a record takes beside body, topic and properties, IPv6 addresses and all; and REAL_TOPIC and REAL_QID.
_RECORD_ROOM = 120
_PLACE_ROOM = 26 + TOPIC_SIZE_MAX + 10
_ITEM = struct.Struct(">iiiii")


class RowError(RequestError):
    """One of the messages cannot be staged, so none of them is; `row` is its number in the request."""

    def __init__(self, row: int, code: int, message: str, hint: str = "") -> None:
        super().__init__(code, f"message {row} cannot be staged: {message}", hint)
        self.row = row

    @property
    def fields(self) -> dict[str, str]:
        """What the answer's header says besides."""
        return {ROW_FIELD: str(self.row)}


class Handle(NamedTuple):
    """Where a staged record is, and by what it is recognised."""

    position: int
    size: int
    messages: int
    key: str

    def __str__(self) -> str:
        return f"{self.position}.{self.size}.{self.messages}.{self.key}"

    @staticmethod
    def parse(handle: str) -> Handle:
        """RequestError for what is no handle."""
        parts = handle.split(".")
        numbers = [int(part) for part in parts[:3] if part.isascii() and part.isdigit() and len(part) <= 18]
        if len(parts) != 4 or len(numbers) != 3 or not 0 < len(parts[3]) <= _KEY_SIZE_MAX:
            raise no_handle(handle, "it is none", "give back what staging answered, as it is")
        return Handle(numbers[0], numbers[1], numbers[2], parts[3])


def any_topic(topic: str) -> bool:
    """Access control is off."""
    return True


@dataclass(frozen=True, slots=True)
class Publisher:
    """The user who stages and publishes; `name` is empty where access control is off. `sees_all`: without access
    control, and for admins, what others have staged counts as one's own."""

    name: str = ""
    may_publish: Callable[[str], bool] = any_topic
    sees_all: bool = True

    def owns(self, owner: str) -> bool:
        return self.sees_all or owner == self.name


class Target(NamedTuple):
    """A queue that messages go to: its number in their head, and how many they are."""

    number: int
    topic: str
    queue_id: int
    messages: int


@dataclass(slots=True)
class StagedPart:
    """The messages of one handle, ready to be copied."""

    handle: Handle
    items: StagedItems
    # Those that messages go to, and how many there are in all.
    targets: list[Target]
    targets_count: int
    born_timestamp: int
    born_host: bytes


def no_handle(handle: object, why: str, hint: str) -> RequestError:
    """Nothing can be published by this handle."""
    return RequestError(ResponseCode.INVALID_PARAMETER, f"handle {str(handle)[:120]!r}: {why}", hint)


def targets_of(topics: list[TopicQueues], items: StagedItems) -> list[Target]:
    """The targets that checked items go to."""
    found: list[Target] = []
    used, base = iter(items.used()), 0
    pair = next(used, None)
    for topic, count in topics:
        while pair is not None and pair[0] < base + count:
            found.append(Target(pair[0], topic, pair[0] - base, pair[1]))
            pair = next(used, None)
        base += count
    return found


class Staging:
    """Takes messages in."""

    def __init__(
        self, store: MessageStore, rules: SendRules, writer: MessageWriter, batch_count_max: int
    ) -> None:
        self._store = store
        self._rules = rules
        self._writer = writer
        self._batch_count_max = batch_count_max

    @property
    def bytes_max(self) -> int:
        """Of one request: it becomes the body of one record."""
        return self._store.options.max_message_size_bytes

    @property
    def _properties_max(self) -> int:
        """What the copy of a message has room for, beside all that may be added to its properties."""
        added = len(self._rules.suffix_bytes) + DELAY_ROOM + _PLACE_ROOM + SEAL_SIZE + 1
        return PROPERTIES_SIZE_MAX - added

    def request(
        self, header: StageMessagesRequestHeader, body: bytes, born_host: bytes, key: str, owner: str = ""
    ) -> tuple[AppendRequest, int, list[str]]:
        """The record that stages these messages, how many they are, and the topics they go to, which exist now."""
        if len(body) > self.bytes_max:
            raise MessageTooLargeError(
                f"staged messages of {len(body)} bytes, the limit is {self.bytes_max}", "stage fewer at once"
            )
        topics, at = decode_head(body)
        if at >= len(body):
            raise CodecError("there are no messages to stage")
        items = StagedItems(MappedBytes(body), at, len(body))
        why = items.check(sum(count for _, count in topics), self._properties_max)
        if why:
            raise RowError(items.row, ResponseCode.MESSAGE_ILLEGAL, ITEM_REFUSALS[why], "send it corrected")
        if items.count > self._batch_count_max:
            raise CodecError(
                f"{items.count} messages in one request", f"stage at most {self._batch_count_max} at once"
            )
        used = self._check_targets(header, topics, items, body, at)
        request = AppendRequest(
            self._writer.queue(STAGED_TOPIC, 0),
            body,
            (text.pair(text.UNIQ_KEY, key) + (text.pair(text.OWNER, owner) if owner else "")).encode(),
            header.born_timestamp,
            born_host,
        )
        return request, items.count, used

    def _check_targets(
        self,
        header: StageMessagesRequestHeader,
        topics: list[TopicQueues],
        items: StagedItems,
        body: bytes,
        at: int,
    ) -> list[str]:
        """What a send to each queue in use would have to satisfy. A topic that is refused names its first message."""
        used: dict[str, list[Target]] = {}
        for target in targets_of(topics, items):
            used.setdefault(target.topic, []).append(target)
        for topic, targets in used.items():
            rows = _rows(body, at, targets[0].number, targets[-1].number + 1)
            try:
                config = self._check_topic(header, topic, targets, items.largest)
            except RequestError as error:
                raise RowError(next(rows)[0], error.code, error.message, error.hint) from error
            if is_compacted(config):
                _require_keys(topic, rows)
        return list(used)

    def _check_topic(
        self, header: StageMessagesRequestHeader, topic: str, targets: list[Target], largest: int
    ) -> TopicConfig:
        if len(topic) > TOPIC_SIZE_MAX or topic.startswith(RETRY_PREFIX):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"messages of topic {topic[:80]} cannot be staged", "send them"
            )
        config = self._rules.topic(
            SendMessageRequestHeader(
                producer_group=header.producer_group,
                topic=topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=0,
                born_timestamp=header.born_timestamp,
            )
        )
        for target in targets:
            self._rules.queue(config, target.queue_id)
        room = self._store.options.segment_size_bytes - BLANK_SIZE - _RECORD_ROOM - len(topic)
        if largest > room - (PROPERTIES_SIZE_MAX - self._properties_max):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a message of {largest} bytes fits no segment of {self._store.options.segment_size_bytes}",
                "send it in parts, or use larger segments",
            )
        return config


def open_staged(
    store: MessageStore, handle: Handle, publisher: Publisher, *, is_decided: bool = False
) -> StagedPart:
    """The messages of a handle; RequestError if they are not there, not what was staged, or not the publisher's.

    `is_decided`: the handle comes from the broker's own `begun` record, so it was proven before that was written.
    """
    if not 0 <= handle.position < store.log.max_offset:
        raise no_handle(handle, "its messages are not in the log (any more)", "run the batch again")
    try:
        found = record_view(store, handle.position, handle.size, is_own=is_decided)
    except CodecError as error:
        raise no_handle(handle, f"there is no record: {error.message}", "run the batch again") from error
    if found is None:
        raise no_handle(handle, "no staged record begins there", "run the batch again")
    record, view = found
    key = record.properties.get(text.UNIQ_KEY, "")
    if record.topic != STAGED_TOPIC or is_from_client(record):
        raise no_handle(handle, "another record is in its place", "run the batch again")
    if not hmac.compare_digest(key.encode(), handle.key.encode()):
        raise no_handle(handle, "no staged record has this key", "give back what staging answered, as it is")
    if not is_decided and not publisher.owns(record.properties.get(text.OWNER, "")):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"handle {str(handle)[:120]!r}: another user staged these messages",
            "stage them as the user who publishes them",
        )
    topics, at = decode_head(record.body)
    # The part keeps a view of the map, so its bytes stay even if retention takes the segment meanwhile.
    born_host = record.born_host.encode()
    start = 72 + len(born_host) + len(record.store_host.encode())
    items = StagedItems(MappedBytes(view), start + at, start + len(record.body))
    count = sum(count for _, count in topics)
    why = items.check(count, PROPERTIES_SIZE_MAX)
    if why or items.count != handle.messages:
        raise no_handle(
            handle, f"it has {items.count} messages, not {handle.messages}", "run the batch again"
        )
    targets = targets_of(topics, items)
    return StagedPart(handle, items, targets, count, record.born_timestamp, born_host)


def _rows(body: bytes, at: int, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    """Number and properties of the items, in a body that was checked, that go to targets in [low, high)."""
    row = 0
    while at < len(body):
        size, target, _, _, body_size = _ITEM.unpack_from(body, at)
        if low <= target < high:
            yield row, body[at + 22 + body_size : at + size]
        at += size
        row += 1


def _require_keys(topic: str, rows: Iterator[tuple[int, bytes]]) -> None:
    """Of a compacted topic the last message of each key is kept."""
    for row, properties in rows:
        if not text.parse(text.decode(properties)).get(text.KEYS, "").strip():
            raise RowError(
                row, ResponseCode.MESSAGE_ILLEGAL, f"topic {topic} is compacted", "give the message KEYS"
            )
