"""The two faces of a message: as it is produced, and as it was stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from penstock.message.address import HostAddress, format_message_id
from penstock.message.properties import PropertyName

# One more than this still fits the field of a record.
_TRIES_MAX = (1 << 31) - 2


class SystemFlag(IntFlag):
    """Bits of the system flag; they reach the disk and must keep their values."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEEDS_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_MASK = 0x700


class TransactionKind(IntEnum):
    """The transaction bits of the system flag."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer wants stored."""

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0

    @staticmethod
    def of(topic: str, body: bytes, *, tag: str = "", keys: str = "", flag: int = 0) -> Message:
        """A message with the two properties most messages have; `keys` are separated by spaces."""
        properties = {}
        if tag:
            properties[PropertyName.TAGS] = tag
        if keys:
            properties[PropertyName.KEYS] = keys
        return Message(topic, body, properties, flag)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A decoded record; body and properties are byte for byte what was sent."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: HostAddress
    store_timestamp: int
    store_host: HostAddress
    reconsume_times: int
    prepared_transaction_offset: int

    @property
    def message_id(self) -> str:
        """The id made of the broker's address and the place in the log."""
        return format_message_id(self.store_host, self.physical_offset)

    @property
    def tries(self) -> int:
        """How often it was consumed before, so that one more can be counted: a sender may have written any number."""
        return min(max(self.reconsume_times, 0), _TRIES_MAX)

    @property
    def tag(self) -> str:
        return self.properties.get(PropertyName.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The unique key, if any, then the words of KEYS: what the index holds for this message."""
        keys = [key for key in self.properties.get(PropertyName.KEYS, "").split(" ") if key]
        unique = self.properties.get(PropertyName.UNIQ_KEY)
        return [unique, *keys] if unique else keys
