"""Where TubeMQ keeps an offset in ZooKeeper, and how it is written.

    /tubemq/consumers-v3/tboy/offsets/test/2130706433-0        4711-100
    |root  |            |group       |topic |broker id          |message id
                                             |partition          |offset

Rules. The broker id is 32 bits wide: a configured number, or the broker's IPv4 address (2130706433 is 127.0.0.1). The
value is text, two decimal numbers; the message id is 0 where nobody knows one, as in RocketMQ's offsets. Plain
functions over text; no I/O.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from typing import NamedTuple

from penstock.errors import CodecError, OptionError
from penstock.metadata.json_fields import INT64_MAX

CONSUMERS = "/consumers-v3"
OFFSETS = "offsets"
BROKER_ID_MAX = 2**32 - 1

_LEAF = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")
_VALUE = re.compile(rb"([0-9]{1,19})-([0-9]{1,19})")


class OffsetKey(NamedTuple):
    """Whose progress, and in what; the broker is the storage's own."""

    group: str
    topic: str
    partition: int


class StoredOffset(NamedTuple):
    """The next offset to take, and the id of the message before it, if known."""

    offset: int
    message_id: int = 0


def normalised_root(text: str) -> str:
    """As TubeMQ takes it: with a slash before it and none behind it."""
    return "/" + text.strip().strip("/")


def broker_id_of(address: str) -> int:
    """The number of an IPv4 address, with or without a port, for brokers that were given no number."""
    host = address.rpartition(":")[0] if ":" in address else address
    try:
        return int(ipaddress.IPv4Address(host))
    except ValueError:
        raise OptionError(
            f"{host!r} is no IPv4 address to take a broker id from", "give the broker a number of its own"
        ) from None


def broker_id_of_set(cluster: str, name: str) -> int:
    """The number of a whole broker set, the same for each member, whatever machine it runs on. 31 bits: TubeMQ's own
    ids are Java's int."""
    return zlib.crc32(f"{cluster}/{name}".encode()) & 0x7FFF_FFFF


def groups_path() -> str:
    return CONSUMERS


def group_path(group: str) -> str:
    return f"{CONSUMERS}/{_named('group', group)}"


def topics_path(group: str) -> str:
    return f"{group_path(group)}/{OFFSETS}"


def topic_path(group: str, topic: str) -> str:
    return f"{topics_path(group)}/{_named('topic', topic)}"


def leaf(broker_id: int, partition: int) -> str:
    return f"{broker_id}-{partition}"


def offset_path(key: OffsetKey, broker_id: int) -> str:
    return f"{topic_path(key.group, key.topic)}/{leaf(broker_id, key.partition)}"


def partition_of(name: str, broker_id: int) -> int | None:
    """The partition that a leaf is about, or None if it is another broker's, or no leaf at all."""
    found = _LEAF.fullmatch(name)
    if found is None or int(found[1]) != broker_id:
        return None
    return int(found[2])


def encoded(stored: StoredOffset) -> bytes:
    return b"%d-%d" % (stored.message_id, stored.offset)


def decoded(value: bytes, path: str) -> StoredOffset:
    """CodecError if it is none of TubeMQ's values."""
    found = _VALUE.fullmatch(value)
    if found is None or int(found[1]) > INT64_MAX or int(found[2]) > INT64_MAX:
        raise CodecError(
            f"{path} holds {value[:64]!r}, which is no messageId-offset", "correct the entry, or delete it"
        )
    return StoredOffset(offset=int(found[2]), message_id=int(found[1]))


def _named(what: str, name: str) -> str:
    if not name or "/" in name:
        raise CodecError(f"{name!r} cannot be the name of a {what} in ZooKeeper", "use one without a slash")
    return name
