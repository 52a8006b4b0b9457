"""What an append answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class Durability(IntEnum):
    """How safe a message is; each level includes those before it."""

    MEMORY = 0  # in the page cache: survives the process, not the machine
    FLUSHED = 1  # on this machine's disk
    REPLICATED = 2  # on the in-sync replicas


class PutStatus(Enum):
    """How an append that stored its message ended; RocketMQ's words."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where a message is and how safe it is."""

    status: PutStatus
    durability: Durability
    message_id: str
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The same for the messages of one batch, which lie one after the other."""

    status: PutStatus
    durability: Durability
    message_ids: tuple[str, ...]
    physical_offset: int
    first_queue_offset: int
    count: int
    size: int
    store_timestamp: int
