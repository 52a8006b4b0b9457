"""Messages of the timer topic as their records are: checked, and taken apart no further than their copy needs.

Thousands a second are read, once when they go to the wheel and once when they are due; addresses and most
properties only pass through. What is damaged, or of another topic, is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from penstock._hot.checks import check
from penstock._hot.layout import MAGIC_V2
from penstock.message.properties import decode_properties
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.store import MessageStore

_HEAD = struct.Struct(">iiiiiqqiq")
_MIDDLE = struct.Struct(">iqi")
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_BORN_V6, _STORE_V6 = 0x10, 0x20
_TOPIC = WHEEL_TIMER_TOPIC.encode()


class TimerMessage:
    """One message. `text` are the properties as stored."""

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "position",
        "properties",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_timestamp",
        "sys_flag",
        "text",
    )

    def __init__(self, data: bytes) -> None:
        """Of a record that was checked, and is one of the timer topic."""
        self.size, _, _, _, self.flag, self.queue_offset, self.position, flags, born_ms = _HEAD.unpack_from(
            data
        )
        self.sys_flag = flags
        self.born_timestamp = born_ms
        at = 68 if flags & _BORN_V6 else 56
        self.born_host = data[48:at]
        (self.store_timestamp,) = _I64.unpack_from(data, at)
        at += 28 if flags & _STORE_V6 else 16
        self.reconsume_times, _, body_size = _MIDDLE.unpack_from(data, at)
        at += 16
        self.body = data[at : at + body_size]
        at += body_size + 1 + len(_TOPIC) + 2
        self.text = data[at : self.size]
        self.properties: Mapping[str, str] = decode_properties(self.text)


def timer_message(store: MessageStore, position: int) -> TimerMessage | None:
    """The message of the timer topic at a log position; None if none is there."""
    if position < 0:
        return None
    head = store.log.slice(position, 4)
    size = 0 if head is None else int(_I32.unpack(head)[0])
    if size <= 0 or position + size > store.dispatch.offset:
        return None
    view = store.log.slice(position, size)
    if view is None:
        return None
    # Copied first: a slice would keep a deleted segment alive, and a log that is cut changes under it.
    data = bytes(view)
    if check(data, 0, size, position, 1) < 0 or _I32.unpack_from(data, 4)[0] == MAGIC_V2:
        return None
    flags = data[39]
    at = 84 + (12 if flags & _BORN_V6 else 0) + (12 if flags & _STORE_V6 else 0)
    at += 4 + int(_I32.unpack_from(data, at)[0])
    if data[at] != len(_TOPIC) or not data.startswith(_TOPIC, at + 1):
        return None
    return TimerMessage(data)
