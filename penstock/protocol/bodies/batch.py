"""A batch: many messages of one topic in the body of one send (320).

    record    total size i32 | magic 0 i32 | body CRC 0 i32 | flag i32 | body size i32 | body
              | properties size i16 | properties

Rules: topic, queue, born time and system flag are the request's. Every record must be exactly as long as it
says and the records must fill the body, or the whole batch is refused. Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import CodecError
from penstock.message.message import Message
from penstock.message.properties import decode_properties, encode_properties

_HEAD = struct.Struct(">iiiii")  # total size, magic, crc, flag, body size
_I16 = struct.Struct(">h")
_RECORD_MIN = _HEAD.size + _I16.size
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


class BatchRecord(NamedTuple):
    """One message of a batch; properties as the bytes they are stored as."""

    flag: int
    body: bytes
    properties: bytes

    def message(self, topic: str) -> Message:
        return Message(topic, self.body, decode_properties(self.properties), self.flag)


def encode_batch_record(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """One record, from properties that are encoded already."""
    if len(properties) > 32767:
        raise CodecError(f"properties of {len(properties)} bytes fit no record", "at most 32767 do")
    if not _INT32_MIN <= flag <= _INT32_MAX:
        raise CodecError(f"a flag of {flag} is outside 32 bits")
    size = _RECORD_MIN + len(body) + len(properties)
    head = _HEAD.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, _I16.pack(len(properties)), properties))


def encode_batch(messages: Iterable[Message]) -> bytes:
    """The body of a batch send."""
    return b"".join(
        encode_batch_record(bytes(message.body), encode_properties(message.properties), message.flag)
        for message in messages
    )


def decode_batch(data: bytes | bytearray | memoryview) -> list[BatchRecord]:
    """The records of a batch; CodecError if a single one is wrong."""
    data = bytes(data)
    records: list[BatchRecord] = []
    at = 0
    while at < len(data):
        if len(data) - at < _RECORD_MIN:
            raise CodecError(f"{len(data) - at} bytes are left in the batch, too few for a record")
        size, _, _, flag, body_size = _HEAD.unpack_from(data, at)
        end = at + size
        properties_at = at + _HEAD.size + body_size
        if size < _RECORD_MIN or end > len(data) or body_size < 0 or properties_at + _I16.size > end:
            raise CodecError(
                f"record {len(records)} of the batch says {size} bytes with a body of {body_size}"
            )
        (properties_size,) = _I16.unpack_from(data, properties_at)
        properties_at += _I16.size
        if properties_size < 0 or properties_at + properties_size != end:
            raise CodecError(f"record {len(records)} of the batch is not as long as it says")
        body_at = at + _HEAD.size
        body = data[body_at : body_at + body_size]
        records.append(BatchRecord(flag, body, data[properties_at:end]))
        at = end
    return records
