"""Stored messages as they travel, taken apart by code of the tests' own."""

from __future__ import annotations

import struct
from typing import Any

_HEAD = struct.Struct(">iIiiiqqiq")


def take_apart(data: bytes) -> list[dict[str, Any]]:
    """All records of a body, one after the other."""
    records = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        records.append(_record(data[at : at + size]))
        at += size
    return records


def _record(data: bytes) -> dict[str, Any]:
    size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_at = _HEAD.unpack_from(data)
    assert size == len(data)
    at = _HEAD.size
    born_host, at = _host(data, at, sys_flag & 0x10)
    (stored_at,) = struct.unpack_from(">q", data, at)
    store_host, at = _host(data, at + 8, sys_flag & 0x20)
    reconsumed, prepared, length = struct.unpack_from(">iqi", data, at)
    at += 16
    body = data[at : at + length]
    at += length
    topic = data[at + 1 : at + 1 + data[at]].decode()
    at += 1 + data[at]
    (length,) = struct.unpack_from(">h", data, at)
    assert at + 2 + length == size
    return {
        "size": size,
        "magic": f"{magic:08x}",
        "bodyCrc": crc,
        "queueId": queue_id,
        "flag": flag,
        "queueOffset": queue_offset,
        "position": position,
        "sysFlag": sys_flag,
        "bornTimestamp": born_at,
        "bornHost": born_host,
        "storeTimestamp": stored_at,
        "storeHost": store_host,
        "reconsumeTimes": reconsumed,
        "preparedTransactionOffset": prepared,
        "body": body.decode(errors="replace"),
        "topic": topic,
        "properties": properties_of(data[at + 2 :].decode()),
    }


def _host(data: bytes, at: int, is_long: int) -> tuple[str, int]:
    width = 16 if is_long else 4
    (port,) = struct.unpack_from(">i", data, at + width)
    return f"{'.'.join(map(str, data[at : at + width]))}:{port}", at + width + 4


def properties_of(text: str) -> dict[str, str]:
    """Name and value of each entry, in order."""
    entries = (entry.partition("\x01") for entry in text.split("\x02") if entry)
    return {name: value for name, _, value in entries}


def property_text(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def batch(messages: list[tuple[bytes, dict[str, str]]]) -> bytes:
    """The body of a batch send."""
    return b"".join(_batch_entry(body, property_text(properties).encode()) for body, properties in messages)


def _batch_entry(body: bytes, properties: bytes) -> bytes:
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
