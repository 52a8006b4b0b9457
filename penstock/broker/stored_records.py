"""Records of the store as they are, for handlers that pass them on or store them again.

Bytes are copied out of the map: a slice would keep a deleted segment alive. What is damaged is not there. Any
thread may call this.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass

from penstock.errors import CodecError
from penstock.message import StoredMessage, SystemFlag, decode_record
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_MAGIC_V2 = 0xDAA320AB


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A message and the bytes it was read from."""

    message: StoredMessage
    data: bytes

    @property
    def properties(self) -> bytes:
        """The properties as stored."""
        data = self.data
        flags = data[39]
        at = (
            84
            + (12 if flags & SystemFlag.BORN_HOST_V6 else 0)
            + (12 if flags & SystemFlag.STORE_HOST_V6 else 0)
        )
        at += 4 + int(_I32.unpack_from(data, at)[0])
        if int.from_bytes(data[4:8], "big") == _MAGIC_V2:
            at += 2 + int(_I16.unpack_from(data, at)[0])
        else:
            at += 1 + data[at]
        return data[at + 2 : at + 2 + int(_I16.unpack_from(data, at)[0])]


def record_at(store: MessageStore, position: int) -> StoredRecord | None:
    """The record that begins at a log position; None if there is none, or a damaged one."""
    if position < 0:
        return None
    try:
        message = store.message_at(position)
    except CodecError as error:
        # Its text only: the error knows frames that hold the segment's map, and whoever keeps logs would keep that.
        _LOG.warning("a record that was asked for cannot be read: %s", str(error))
        return None
    return None if message is None else record_of(store, message)


def message_in_log(store: MessageStore, position: int) -> StoredMessage | None:
    """The message of a record that nobody may see yet; None if there is none, or a damaged one."""
    head = store.log.slice(position, 4) if position >= 0 else None
    view = None if head is None else store.log.slice(position, int.from_bytes(head, "big", signed=True))
    try:
        return None if view is None else decode_record(view, position)
    except CodecError as error:
        _LOG.warning("a record that was asked for cannot be read: %s", error)
        return None


def is_queued(store: MessageStore, message: StoredMessage) -> bool:
    """Whether the queue that a record names has an entry for exactly this record.

    A client can put bytes that decode as a record into the body of a message. Those have no queue entry, so a
    position that comes from a client proves nothing until this is true. The record must be visible (dispatched).
    """
    entries = store.reader.entries(message.topic, message.queue_id, message.queue_offset, 1)
    return any((entry.position, entry.size) == (message.physical_offset, message.size) for entry in entries)


def record_of(store: MessageStore, message: StoredMessage) -> StoredRecord | None:
    """The record of a message that was just read; None if retention took it meanwhile."""
    view = store.log.slice(message.physical_offset, message.size)
    return None if view is None else StoredRecord(message, bytes(view))
