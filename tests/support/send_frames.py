"""Plain sends as a RocketMQ client writes them, and what a broker adds to messages and answers."""

from __future__ import annotations

import struct

from penstock.protocol.command import Command, encode_frame

SUFFIX = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01C\x02"
HEAD = b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true",'
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}


def field(name: str, value: str) -> bytes:
    key, data = name.encode(), value.encode()
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(data)) + data


BINARY = field("MSG_REGION", "DefaultRegion") + field("TRACE_ON", "true")
ID = "7F0000010BAD18B4AAC2000000000001"
PROPERTIES = {"KEYS": "k1 k2", "UNIQ_KEY": ID, "WAIT": "true", "TAGS": "TagA"}
V1_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}


def text(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def fields(**changes: str | None) -> dict[str, str]:
    values: dict[str, str | None] = {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": text(PROPERTIES),
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    values.update(changes)
    return {name: value for name, value in values.items() if value is not None}


def send(
    body: bytes = b"body", *, opaque: int = 7, binary: bool = False, flag: int = 0, **changes: str | None
) -> bytes:
    return encode_frame(Command(310, fields(**changes), body, opaque, flag, language="JAVA", binary=binary))


def item(body: bytes, properties: dict[str, str], flag: int = 0) -> bytes:
    data = text(properties).encode()
    return (
        struct.pack(">iiiii", 22 + len(body) + len(data), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(data))
        + data
    )
