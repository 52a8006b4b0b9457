"""The message store: commit log, consume queues, key index, flush, recovery, retention."""

from penstock.store.filtering import RecordFilter
from penstock.store.findings import Finding, Findings
from penstock.store.message_store import MessageStore
from penstock.store.options import FlushMode, StoreOptions
from penstock.store.reading import GetResult, GetStatus, TimeBoundary, tag_codes
from penstock.store.recovery import RecoveryReport
from penstock.store.results import AppendResult, BatchResult, Durability, PutStatus

__all__ = [
    "AppendResult",
    "BatchResult",
    "Durability",
    "Finding",
    "Findings",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutStatus",
    "RecordFilter",
    "RecoveryReport",
    "StoreOptions",
    "TimeBoundary",
    "tag_codes",
]
