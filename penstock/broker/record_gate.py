"""The one way from a position, an id, a handle or an offset that came over the network to a record.

    record_at          a log position               proven: the queue that the record names has an entry for exactly
                                                    this position and size, and its topic was not deleted since
    record_of_entry    a queue offset               proven: the record is the one that the entry was written for
    RecordGate         either, for request handlers: proven, visible to clients, and permitted to the user
    own_message_at     a position that the broker itself wrote down, in a file, a table or a record: not proven

Why a proof is needed: a position is a number that a client may choose, and the body of a message may hold any bytes.
On an idle broker the position of the next message can be computed, so a body can hold a record that is whole, has
the right checksum and names its own position. Only the broker writes queue entries: an entry tells a record from
bytes that look like one. The pull of a queue offset needs no second proof, because it begins at the entry.

Why a place is not all: records that the broker acts on itself (check points, marks, publications) have to be its own
also if a client ever found a way to write to their topic. `is_from_client` tells the two apart by CLUSTER, which
every path of a client puts behind a message's properties and none takes out, and which neither Penstock nor RocketMQ
puts on records of its own. Messages that wait for their topic (delayed, timed, half) are recognised by REAL_TOPIC,
which the broker takes out of whatever a client sends. docs/decisions/0056 says more.

Rules. `.importlinter` names the modules that may read the log without this gate, and why; request handlers are not
among them. Bytes are copied out of the map: a slice would keep a deleted segment alive. What is damaged is not there.
Any thread may call the functions; a gate belongs to the event loop, because its guard does.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.broker import property_text as text
from penstock.broker.topics import HOLDING_TOPICS
from penstock.errors import CodecError, RequestError
from penstock.message import (
    StoredMessage,
    SystemFlag,
    decode_record,
    parse_message_id,
    pick_properties,
    property_bytes,
    property_keys,
)
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import STAGED_TOPIC
from penstock.security import Guard
from penstock.security.policy import Action
from penstock.store import MessageStore
from penstock.store.consume_queue import Entry

_LOG = logging.getLogger("penstock.broker")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_SIZE_MIN = 91
_MAGIC_V2 = 0xDAA320AB


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A message and the bytes it was read from."""

    message: StoredMessage
    data: bytes

    @property
    def properties(self) -> bytes:
        """The properties as stored."""
        _, at = _topic_place(self.data)
        return self.data[at + 2 : at + 2 + int(_I16.unpack_from(self.data, at)[0])]


def _topic_place(data: bytes | memoryview) -> tuple[int, int]:
    """Where the topic of a record begins and ends."""
    flags = data[39]
    at = 84 + (12 if flags & SystemFlag.BORN_HOST_V6 else 0) + (12 if flags & SystemFlag.STORE_HOST_V6 else 0)
    at += 4 + int(_I32.unpack_from(data, at)[0])
    if int.from_bytes(data[4:8], "big") == _MAGIC_V2:
        return at + 2, at + 2 + int(_I16.unpack_from(data, at)[0])
    return at + 1, at + 1 + data[at]


# -- proofs ------------------------------------------------------------------------------------------------------


def record_at(store: MessageStore, position: int) -> StoredRecord | None:
    """The record that begins at a log position; None unless the queue that it names has an entry for exactly it."""
    if not 0 <= position < store.log.max_offset:
        return None
    head = store.log.slice(position, 4)
    size = 0 if head is None else int(_I32.unpack(head)[0])
    if _proven_view(store, position, size) is None:
        return None
    message = _visible_message(store, position)
    return None if message is None else record_of(store, message)


def record_of_entry(store: MessageStore, entry: Entry, topic: str, queue_id: int) -> StoredRecord | None:
    """The record of a queue entry, which the broker wrote; None if it is a filler, or the record cannot be read."""
    message = None if entry.is_filler else _visible_message(store, entry.position)
    if message is None or (message.topic, message.queue_id, message.size) != (topic, queue_id, entry.size):
        return None
    return record_of(store, message)


def record_of(store: MessageStore, message: StoredMessage) -> StoredRecord | None:
    """The record of a message that was just read; None if retention took it meanwhile."""
    view = store.log.slice(message.physical_offset, message.size)
    return None if view is None else StoredRecord(message, bytes(view))


def own_message_at(store: MessageStore, position: int) -> StoredMessage | None:
    """The message at a position that the broker itself recorded, also while it is not visible yet; None if there is
    none, or a damaged one. Never for a position that came from a client."""
    head = store.log.slice(position, 4) if position >= 0 else None
    view = None if head is None else store.log.slice(position, int.from_bytes(head, "big", signed=True))
    try:
        return None if view is None else decode_record(view, position)
    except CodecError as error:
        _LOG.warning("cannot read the record at log position %d: %s", position, str(error))
        return None


def record_view(
    store: MessageStore, position: int, size: int, *, is_own: bool = False
) -> tuple[StoredMessage, memoryview] | None:
    """As `record_at`, for a large record whose size is known: with a view of the map instead of a copy. With `is_own`
    the position is one that the broker itself recorded. Raises CodecError if no record is there."""
    if is_own:
        view = store.log.slice(position, size) if position >= 0 and size > 0 else None
    else:
        view = _proven_view(store, position, size)
    if view is None:
        return None
    message = decode_record(view, position)
    return (message, view) if message.size == size else None


def is_from_client(message: StoredMessage) -> bool:
    """Whether a message was sent by a client, or is a copy of one that was."""
    return text.CLUSTER in message.properties


def _visible_message(store: MessageStore, position: int) -> StoredMessage | None:
    if not 0 <= position < store.log.max_offset:
        return None
    try:
        return store.message_at(position)
    except CodecError as error:
        # Its text only: the error knows frames that hold the segment's map, and a log record may live long.
        _LOG.warning("cannot read the record at log position %d: %s", position, str(error))
        return None


def _proven_view(store: MessageStore, position: int, size: int) -> memoryview | None:
    """The bytes of the record at a position; None unless the queue that they name has an entry for exactly them.

    Asked before anything is decoded: what only looks like a record may claim to span a segment, whose checksum takes
    long.
    A record that is not visible (dispatched) yet has no entry.
    """
    view = store.log.slice(position, size) if position >= 0 and size >= _SIZE_MIN else None
    if view is None or _I32.unpack_from(view)[0] != size:
        return None
    try:
        begin, end = _topic_place(view)
    except (struct.error, IndexError):
        return None
    if not 0 <= begin < end <= size:
        return None
    (queue_id,), (offset,) = _I32.unpack_from(view, 12), _I64.unpack_from(view, 20)
    topic = bytes(view[begin:end]).decode("utf-8", "replace")
    entries = store.reader.entries(topic, queue_id, offset, 1)
    return view if any((entry.position, entry.size) == (position, size) for entry in entries) else None


# -- for request handlers ----------------------------------------------------------------------------------------


class RecordGate:
    """Records for request handlers. `guard` is None where access control is off."""

    def __init__(self, store: MessageStore, guard: Guard | None = None) -> None:
        self._store = store
        self._guard = guard

    def find(self, position: int) -> StoredRecord | None:
        """The proven record at a log position, if clients may see its kind at all; not yet permitted to the user."""
        record = record_at(self._store, position)
        return None if record is None or is_hidden(record.message.topic) else record

    def at(self, position: int, hint: str) -> StoredRecord:
        """The same. Raises RequestError 1, with this hint, if there is none."""
        record = self.find(position)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"there is no message at log position {position}", hint
            )
        return record

    def by_id(self, message_id: str, hint: str = "use an offset message id") -> StoredRecord:
        """The proven record that an offset message id names. Raises RequestError 1 if there is none."""
        try:
            _, position = parse_message_id(message_id)
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, hint) from error
        record = self.find(position)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no message {message_id[:80]} here", hint)
        return record

    def property_of_entry(self, entry: Entry, topic: str, queue_id: int, name: str) -> str | None:
        """One property of the record of a queue entry, if there is one. Nothing else of the record is read: a request
        may name many entries, of large messages. Any thread may call this."""
        view = None
        if not is_hidden(topic) and not entry.is_filler and entry.size >= _SIZE_MIN:
            view = self._store.log.slice(entry.position, entry.size)
        if view is None:
            return None
        try:
            begin, end = _topic_place(view)
        except (struct.error, IndexError):
            return None
        named = (_I32.unpack_from(view)[0], _I32.unpack_from(view, 12)[0], bytes(view[begin:end]))
        data = property_bytes(view) if named == (entry.size, queue_id, topic.encode()) else None
        return None if data is None else pick_properties(data, property_keys((name,))).get(name)

    def check_search(self, topic: str) -> None:
        """Refuse a search through messages that wait for other topics, unless the user may see all of them."""
        if self._guard is not None and topic in HOLDING_TOPICS and self._guard.sender() is not None:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} holds messages of other topics: only an admin may search it",
                "search the topic that the message was sent to",
            )

    def by_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[StoredRecord]:
        """Records of the newest messages of a topic with a key, newest first, each read when it is asked for. The
        positions are the index's, which the broker writes; topic and key are compared with the record. Any thread may
        call this."""
        if is_hidden(topic):
            return
        for message in self._store.reader.matches(topic, key, begin_ms, end_ms):
            record = record_at(self._store, message.physical_offset)
            if record is not None:
                yield record

    def permit(self, record: StoredRecord, *actions: Action, topic: str = "") -> None:
        """Refuse, with 16, what the user may not do with this record: with the topic that it is in (or `topic`, where
        that stands for it), and with the one that it waits for."""
        if self._guard is None:
            return
        message = record.message
        name = f"the message at log position {message.physical_offset}"
        self._guard.require_topic(topic or message.topic, *actions, record=name)
        real = message.properties.get(text.REAL_TOPIC)
        if real and message.topic in HOLDING_TOPICS:
            self._guard.require_topic(real, *actions, record=name)


def is_hidden(topic: str) -> bool:
    """Whether no client may see records of a topic: staged messages are not published yet."""
    return topic == STAGED_TOPIC
