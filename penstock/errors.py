"""Every error that Penstock raises on purpose, in one tree.

    PenstockError
    ├── OptionError                    an option has a value outside its range
    ├── CodecError                     bytes that are not a message
    │   └── CorruptRecordError         a stored record fails its checksum or its own lengths
    ├── MessageError                   a message that may not be stored as it is
    │   ├── MessageTooLargeError
    │   ├── PropertiesTooLargeError
    │   └── TopicNameError
    └── StoreError                     the store cannot do what was asked
        ├── StoreClosedError
        ├── StoreLockedError           another process owns the directory
        ├── StoreFormatError           a directory that is not a store, or one of other file sizes
        ├── DiskFullError              writes are refused until space returns
        ├── StoreFailedError           a write order was broken; only a restart may clear it
        │   └── FlushFailedError       fsync failed: what was not yet flushed counts as not written
        └── FlushTimeoutError          outcome unknown: stored, not yet known to be flushed

Rules: a class carries its wire code (RocketMQ's response codes), whether the same request may be sent
again (`retriable`), whether the route that led here may be stale (`route_stale`), and whether the outcome
is unknown rather than failed (`outcome_unknown`). Retry code asks the exception instead of keeping lists.
A broken invariant is not in this tree: it is `invariant()` below, which also survives `python -O`.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Base class: `message` says what happened, `hint` what to do next."""

    code: ClassVar[int] = 1  # SYSTEM_ERROR
    retriable: ClassVar[bool] = False
    route_stale: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}; {hint}")
        self.message = message
        self.hint = hint


class OptionError(PenstockError):
    """An option was given a value it cannot have."""


class CodecError(PenstockError):
    """Bytes that cannot be read as what they should be."""

    code = 13  # MESSAGE_ILLEGAL


class CorruptRecordError(CodecError):
    """A stored record that fails its checksum or its own lengths, with its position in the log."""

    def __init__(self, message: str, position: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.position = position


class MessageError(PenstockError):
    """A message that the store refuses as it is; sending it again unchanged cannot help."""

    code = 13  # MESSAGE_ILLEGAL


class MessageTooLargeError(MessageError):
    """Body or whole record over the limit."""


class PropertiesTooLargeError(MessageError):
    """Encoded properties over 32767 bytes, the most that the record format can hold."""


class TopicNameError(MessageError):
    """A topic name with characters or a length that no file name and no route may have."""


class StoreError(PenstockError):
    """The store could not do what was asked."""

    code = 14  # SERVICE_NOT_AVAILABLE


class StoreClosedError(StoreError):
    """The store was closed, or was never opened."""

    route_stale = True


class StoreLockedError(StoreError):
    """Another process (a broker of either kind) owns the directory."""


class StoreFormatError(StoreError):
    """The directory is not a store, or one whose files have other sizes than the options say."""


class DiskFullError(StoreError):
    """The disk is over its limit or out of space: reads go on, writes are refused until space returns."""

    retriable = True


class StoreFailedError(StoreError):
    """Something the write order rests on broke. The store stops accepting; a restart recovers it."""

    route_stale = True


class FlushFailedError(StoreFailedError):
    """fsync failed. The kernel may have dropped the pages, so nothing unflushed may be claimed any more: outcome
    unknown, because a restart may still find the message."""

    outcome_unknown = True


class FlushTimeoutError(StoreError):
    """The message is stored but was not known to be on disk before the time limit."""

    code = 10  # FLUSH_DISK_TIMEOUT
    outcome_unknown = True


def invariant(condition: bool, message: str) -> None:
    """Stop on a broken invariant, also under `python -O`, where `assert` is compiled away."""
    if not condition:
        raise AssertionError(f"broken invariant: {message}")
