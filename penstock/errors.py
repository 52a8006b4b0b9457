"""Every error that Penstock raises on purpose, in one tree.

    PenstockError
    ├── OptionError                    an option has a value outside its range
    ├── FilterError                    an SQL92 filter that cannot be understood
    ├── CodecError                     bytes that are not a message
    │   ├── CorruptRecordError         a stored record fails its checksum or its own lengths
    │   └── FrameError                 a peer sent what is no frame: its connection is closed
    ├── RequestError                   a request is refused, with any wire code
    │   └── FieldError                 a header field is missing or has no such value
    ├── RemotingError                  a call to a peer did not end with an answer
    │   ├── ConnectError               nothing was sent: the peer cannot be reached
    │   ├── ConnectionLostError        outcome unknown: the connection broke after sending
    │   └── CallTimeoutError           outcome unknown: no answer in time
    ├── ResponseError                  the peer answered with an error code
    ├── ClientError                    a client cannot do what was asked of it
    │   ├── ClientClosedError
    │   ├── RouteNotFoundError         no broker has the topic
    │   ├── ReplyTimeoutError          nobody replied to a request in time
    │   ├── BufferFullError            not sent: too much waits for being sent already
    │   ├── GapError                   messages that a read was to find are not there any more
    │   └── SendError                  a send did not end with a stored message
    │       ├── SendFailedError        it is not stored: sending again makes no duplicate
    │       └── SendUnknownError       outcome unknown: it may be stored, sending again may duplicate it
    ├── MessageError                   a message that may not be stored as it is
    │   ├── MessageTooLargeError
    │   ├── PropertiesTooLargeError
    │   └── TopicNameError
    ├── MetadataError                  the metadata store cannot do what was asked
    │   ├── EntryExistsError
    │   ├── NoEntryError
    │   ├── VersionConflictError       someone else changed the entry since it was read
    │   ├── NotEmptyError              an entry with others below it cannot be deleted
    │   ├── MetadataUnavailableError   out of reach: nothing was changed
    │   ├── MetadataUnknownError       outcome unknown: the connection broke after sending a change
    │   ├── MetadataClosedError
    │   ├── MetadataLockedError        another process owns the file
    │   └── MetadataFormatError        a file that is none of ours, or damaged
    └── StoreError                     the store cannot do what was asked
        ├── StoreClosedError
        ├── StoreLockedError           another process owns the directory
        ├── StoreFormatError           a directory that is not a store, or one of other file sizes
        ├── StoreRoleError             a master's work asked of a replica, or the other way round
        ├── LogPositionError           bytes that do not continue the log, or a cut inside a record
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

from collections.abc import Iterable
from typing import ClassVar


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """`did you mean x?`, or nothing if no known name looks like this one."""
    from difflib import get_close_matches

    found = get_close_matches(name, list(known), 1, likeness)
    return f"did you mean {found[0]}?" if found else ""


def install_hint(extra: str) -> str:
    """How to install an optional part of Penstock. No package index has Penstock, so it comes from a clone."""
    return f"in a clone of Penstock: pip install '.[{extra}]'"


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


class FilterError(PenstockError):
    """An SQL92 filter that cannot be understood; `position` is the character, from 0, or -1 for the whole."""

    code = 23  # SUBSCRIPTION_PARSE_FAILED

    def __init__(self, message: str, hint: str = "", position: int = -1) -> None:
        super().__init__(message if position < 0 else f"at character {position + 1}: {message}", hint)
        self.reason = message
        self.position = position


class CodecError(PenstockError):
    """Bytes that cannot be read as what they should be."""

    code = 13  # MESSAGE_ILLEGAL


class CorruptRecordError(CodecError):
    """A stored record that fails its checksum or its own lengths, with its position in the log."""

    def __init__(self, message: str, position: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.position = position


class FrameError(CodecError):
    """Bytes from a peer that are no frame, or one over the limits.

    `opaque` is the request's number where its header could be read: it is refused, and the next frame can be
    trusted. Without it nothing can, and the connection is closed.
    """

    def __init__(self, message: str, hint: str = "", opaque: int | None = None) -> None:
        super().__init__(message, hint)
        self.opaque = opaque


class RequestError(PenstockError):
    """A request that is refused; the wire code is the instance's own."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code  # type: ignore[misc]


class FieldError(RequestError):
    """A header field that is missing, or whose value is none of those it may have."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(1, message, hint)


class RemotingError(PenstockError):
    """A call to a peer that ended without an answer. `reason` says why without naming the peer."""

    def __init__(self, message: str, hint: str = "", *, reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or message


class ConnectError(RemotingError):
    """The peer cannot be reached; nothing was sent, so sending elsewhere cannot make a duplicate."""

    retriable = True
    route_stale = True


class ConnectionLostError(RemotingError):
    """The connection broke after the request was sent."""

    retriable = True
    outcome_unknown = True
    route_stale = True


class CallTimeoutError(RemotingError):
    """No answer in time."""

    retriable = True
    outcome_unknown = True


class ResponseError(PenstockError):
    """The peer answered with an error code."""

    def __init__(self, code: int, remark: str, hint: str = "") -> None:
        super().__init__(f"the peer answered {code}: {remark}", hint)
        self.code = code  # type: ignore[misc]
        self.remark = remark


class ClientError(PenstockError):
    """A client could not do what was asked of it."""


class ClientClosedError(ClientError):
    """The client was closed, or was never started."""


class RouteNotFoundError(ClientError):
    """No name server knows a broker with this topic. `topic` is its name where one was asked for."""

    topic: str = ""

    code = 17  # TOPIC_NOT_EXIST
    route_stale = True


class ReplyTimeoutError(ClientError):
    """A request was sent and nobody replied in time; it may still be worked on."""

    retriable = True


class BufferFullError(ClientError):
    """Messages come faster than the brokers take them; this one was not sent."""

    retriable = True


class GapError(ClientError):
    """Messages in the range of a read are deleted, damaged or lost, and it was told not to go on without them."""


class SendError(ClientError):
    """A send that did not end with a stored message. `attempts` says what happened at which broker; `result`
    is there if the message was stored, but not as durably as was demanded."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: int = 1,
        attempts: tuple[str, ...] = (),
        result: object = None,
    ) -> None:
        super().__init__(message, hint)
        self.code = code  # type: ignore[misc]
        self.attempts = attempts
        self.result = result


class SendFailedError(SendError):
    """The message is not stored anywhere: every attempt was refused, or never left this machine."""


class SendUnknownError(SendError):
    """The message may be stored: an attempt was sent and its answer is missing. Whoever sends it again should
    expect consumers to see it twice, under two message ids; its keys tell them that it is one."""

    outcome_unknown = True


class MessageError(PenstockError):
    """A message that the store refuses as it is; sending it again unchanged cannot help."""

    code = 13  # MESSAGE_ILLEGAL


class MessageTooLargeError(MessageError):
    """Body or whole record over the limit."""


class PropertiesTooLargeError(MessageError):
    """Encoded properties over 32767 bytes, the most that the record format can hold."""


class TopicNameError(MessageError):
    """A topic name with characters or a length that no file name and no route may have."""


class MetadataError(PenstockError):
    """The metadata store could not do what was asked; also a path, a value or a nesting that it does not take."""

    code = 14  # SERVICE_NOT_AVAILABLE


class EntryExistsError(MetadataError):
    """The entry is there already."""


class NoEntryError(MetadataError):
    """There is no such entry."""


class VersionConflictError(MetadataError):
    """The entry has another version than the one that was named: read it again and decide anew."""


class NotEmptyError(MetadataError):
    """The entry has others below it."""


class MetadataUnavailableError(MetadataError):
    """The metadata store cannot be reached; nothing was changed."""

    retriable = True


class MetadataUnknownError(MetadataError):
    """The connection to the metadata store broke after a change was sent: it may have been made, or not."""

    outcome_unknown = True


class MetadataClosedError(MetadataError):
    """The metadata store was stopped, or was never started."""


class MetadataLockedError(MetadataError):
    """Another process owns the metadata file."""


class MetadataFormatError(MetadataError):
    """The metadata file is none of ours, or is damaged."""


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


class StoreRoleError(StoreError):
    """The store is a replica and takes no messages, or is none and takes no master's bytes."""

    route_stale = True


class LogPositionError(StoreError):
    """A position that does not fit the log: bytes that do not continue it, or a cut where no record begins."""


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
