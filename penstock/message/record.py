"""The stored-record codec in plain Python: the reference that the hot builder is compared with.

Layout: see `docs/formats/record.md`. `decode_record` accepts both versions, both address families and the
sealing property; it checks every length and both checksums, and says where in the log the damage is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from penstock._hot.checks import check
from penstock._hot.layout import BLANK, MAGIC_V1, MAGIC_V2, NOTHING, REASONS, RECORD_SIZE_MIN
from penstock.errors import CorruptRecordError, MessageTooLargeError, TopicNameError
from penstock.message.address import HostAddress
from penstock.message.message import StoredMessage, SystemFlag
from penstock.message.properties import decode_properties, encode_properties

_HEAD = struct.Struct(
    ">i"  # total size
    "i"  # magic
    "i"  # body checksum
    "i"  # queue id
    "i"  # flag
    "q"  # queue offset
    "q"  # physical offset
    "i"  # system flag
    "q"  # born time
)
_MIDDLE = struct.Struct(
    ">i"  # reconsume times
    "q"  # prepared transaction offset
    "i"  # body length
)
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
# Flags as plain numbers: arithmetic with an enumeration's members costs a microsecond each time.
_BORN_V6, _STORE_V6 = int(SystemFlag.BORN_HOST_V6), int(SystemFlag.STORE_HOST_V6)
_MAGIC_V2 = MAGIC_V2 & 0xFFFFFFFF
TOPIC_SIZE_MAX = 255
TOPIC_SIZE_V1_MAX = 127


def encode_record(message: StoredMessage, properties: bytes | None = None) -> bytes:
    """The record of a message; `size`, `body_crc` and the host bits of the flag are computed, not taken."""
    topic = message.topic.encode()
    if len(topic) > TOPIC_SIZE_MAX:
        raise TopicNameError(f"topic takes {len(topic)} bytes, at most {TOPIC_SIZE_MAX} fit a record")
    text = encode_properties(message.properties) if properties is None else properties
    born, store = message.born_host.encode(), message.store_host.encode()
    flags = message.sys_flag & ~(SystemFlag.BORN_HOST_V6 | SystemFlag.STORE_HOST_V6)
    flags |= SystemFlag.BORN_HOST_V6 if len(born) == 20 else 0
    flags |= SystemFlag.STORE_HOST_V6 if len(store) == 20 else 0
    version_2 = len(topic) > TOPIC_SIZE_V1_MAX
    size = 75 + len(born) + len(store) + len(message.body) + len(topic) + version_2 + len(text)
    if size > 0x7FFFFFFF:
        raise MessageTooLargeError(f"record would take {size} bytes")
    head = _HEAD.pack(
        size,
        MAGIC_V2 if version_2 else MAGIC_V1,
        zlib.crc32(message.body) & 0x7FFFFFFF if message.body else 0,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        flags,
        message.born_timestamp,
    )
    middle = _MIDDLE.pack(message.reconsume_times, message.prepared_transaction_offset, len(message.body))
    return b"".join(
        (
            head,
            born,
            struct.pack(">q", message.store_timestamp),
            store,
            middle,
            message.body,
            struct.pack(">h" if version_2 else ">B", len(topic)),
            topic,
            struct.pack(">h", len(text)),
            text,
        )
    )


def decode_record(data: bytes | memoryview, physical_offset: int = -1, verify: bool = True) -> StoredMessage:
    """The message in a record that begins at data[0]; `physical_offset` is checked unless negative."""
    found = check(data, 0, len(data), physical_offset, int(verify))
    if found < 0:
        at = max(physical_offset, 0)
        reason = REASONS[found]
        hint = "" if found in (BLANK, NOTHING) else "run `penstock store verify` on the directory"
        raise CorruptRecordError(f"no valid record at log position {at}: {reason}", at, hint)
    size, magic, crc, queue_id, flag, queue_offset, phy, sys_flag, born_time = _HEAD.unpack_from(data, 0)
    born_size = 20 if sys_flag & SystemFlag.BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & SystemFlag.STORE_HOST_V6 else 8
    at = 48
    born_host = HostAddress.decode(data[at : at + born_size])
    at += born_size
    (store_time,) = struct.unpack_from(">q", data, at)
    at += 8
    store_host = HostAddress.decode(data[at : at + store_size])
    at += store_size
    reconsume_times, prepared_offset, body_size = _MIDDLE.unpack_from(data, at)
    at += _MIDDLE.size
    body = bytes(data[at : at + body_size])
    at += body_size
    topic_size = struct.unpack_from(">h", data, at)[0] if magic == MAGIC_V2 else data[at]
    at += 2 if magic == MAGIC_V2 else 1
    topic = bytes(data[at : at + topic_size]).decode("utf-8", "replace")
    at += topic_size + 2
    properties: Mapping[str, str] = decode_properties(data[at:size])
    return StoredMessage(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=phy,
        size=size,
        body_crc=crc,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_time,
        born_host=born_host,
        store_timestamp=store_time,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
    )


def topic_bytes(data: bytes | memoryview) -> bytes:
    """The topic of a record whose lengths were checked, as the bytes it is."""
    flags = data[39]
    at = 84 + (12 if flags & SystemFlag.BORN_HOST_V6 else 0) + (12 if flags & SystemFlag.STORE_HOST_V6 else 0)
    at += 4 + int.from_bytes(data[at : at + 4], "big")
    wide = int.from_bytes(data[4:8], "big", signed=True) == MAGIC_V2
    size = int.from_bytes(data[at : at + 2], "big") if wide else data[at]
    at += 2 if wide else 1
    return bytes(data[at : at + size])


def property_bytes(data: memoryview) -> bytes | None:
    """The properties of a record as the bytes they are; None where its lengths do not fit. Reads nothing else."""
    size = len(data)
    if size < RECORD_SIZE_MIN:
        return None
    flags = data[39]
    at = 84 + (12 if flags & _BORN_V6 else 0) + (12 if flags & _STORE_V6 else 0)
    if at + 4 > size:
        return None
    at += 4 + _U32.unpack_from(data, at)[0]
    if at + 2 > size:
        return None
    if _U32.unpack_from(data, 4)[0] == _MAGIC_V2:
        at += 2 + _U16.unpack_from(data, at)[0]
    else:
        at += 1 + data[at]
    if at + 2 > size:
        return None
    end = at + 2 + _U16.unpack_from(data, at)[0]
    return None if end > size else bytes(data[at + 2 : end])
