"""Headers of POP consumption (200050 to 200055). Plain values.

What a pop hands out is named by three texts in its answer, from which the client makes a handle for each message:
see `penstock/protocol/pop_handles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.header import I32, I64, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageRequestHeader(Header):
    """Code 200050. A queue id of -1 is all queues of the topic; init mode 0 begins a new group at the first message,
    1 at the last."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageResponseHeader(Header):
    """The infos are there where messages are."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMessageRequestHeader(Header):
    """Code 200051. The topic is the one that the message was popped from, which may be a retry topic."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeRequestHeader(Header):
    """Code 200053; the time counts from now."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


# In a successful answer to an acknowledgement or a change without effect: no pop is known that waits for it.
UNKNOWN_POP_FIELD = "penstockUnknownPop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """What the new handle is made of."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekMessageRequestHeader(Header):
    """Code 200052: what a pop would give, without taking it."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRequestHeader(Header):
    """Code 200054: tell me when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationResponseHeader(Header):
    has_msg: bool
    polling_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoRequestHeader(Header):
    """Code 200055: how many pops wait."""

    consumer_group: str
    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoResponseHeader(Header):
    polling_num: I32
