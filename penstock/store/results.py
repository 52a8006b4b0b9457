"""What an append answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from penstock._hot.records import AppendRequest
from penstock.message import HostAddress, format_message_id


class Durability(IntEnum):
    """How safe a message is, from the least to the most."""

    MEMORY = 0  # in the page cache: survives the process, not the machine
    FLUSHED = 1  # on this machine's disk
    REPLICATED = (
        2  # with the in-sync replicas too; on all their disks under synchronous flush, else in their memory
    )


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

    @staticmethod
    def of(
        host: HostAddress, request: AppendRequest, durability: Durability, status: PutStatus
    ) -> AppendResult:
        """The answer to a request that was written."""
        return AppendResult(
            status,
            durability,
            format_message_id(host, request.physical_offset),
            request.physical_offset,
            request.queue_offset,
            request.size,
            request.store_timestamp,
        )


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

    @staticmethod
    def of(
        host: HostAddress,
        placed: list[tuple[int, int]],
        first_queue_offset: int,
        store_timestamp: int,
        durability: Durability,
        status: PutStatus,
    ) -> BatchResult:
        """The answer to a batch whose records lie at these positions, with these sizes."""
        return BatchResult(
            status,
            durability,
            tuple(format_message_id(host, position) for position, _ in placed),
            placed[0][0],
            first_queue_offset,
            len(placed),
            sum(size for _, size in placed),
            store_timestamp,
        )
