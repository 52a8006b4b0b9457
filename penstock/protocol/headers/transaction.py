"""Headers of transactions (codes 37, 39, 323).

A half message is named by both its places, in the half queue and in the log; a request that gets one of them wrong
is about something else. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.protocol.headers.header import I32, I64, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequestHeader(Header):
    """A producer ends its transaction (37); `commit_or_rollback` is 8, 12, or 0 where it does not know yet."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionStateRequestHeader(Header):
    """A broker asks a producer how a transaction ended (39). The body is the half message as stored, with the topic
    and the queue that it is for."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str | None = None
    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    """An operator has a parked half message asked about again (323); `msg_id` is its offset id."""

    topic: str | None = None
    msg_id: str
