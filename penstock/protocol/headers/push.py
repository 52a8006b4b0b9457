"""Headers of pushing (9040 to 9047): what a client asks for, and what the broker calls it with. Plain values.

A subscription (9041) has the fields of a pull besides: what may be pulled may be pushed, and is chosen the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.protocol.headers.header import I32, I64, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRegisterRequestHeader(Header):
    """Under which name a client can be called over this connection."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRegisterResponseHeader(Header):
    """How the broker will treat it."""

    answer_timeout_ms: I64
    ping_interval_ms: I64
    ping_misses: I32
    # Tasks of before that go on.
    resumed: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSubscribeWindow(Header):
    """What a subscription has besides the fields of a pull; absent or 0 is as much as the broker allows."""

    window_messages: I32 = 0
    window_bytes: I32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSubscribeResponseHeader(Header):
    """Where it begins, and how much will be on its way at most."""

    next_begin_offset: I64
    window_messages: I32
    window_bytes: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PushQueueRequestHeader(Header):
    """One queue of a group: to unsubscribe from."""

    consumer_group: str
    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResumeRequestHeader(Header):
    """Tasks of a group that are to go on: all, or those of a client, of a topic, of a queue."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    consumer_group: str
    client_id: str | None = None
    topic: str | None = None
    queue_id: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushListRequestHeader(Header):
    """Of which group; absent: of all."""

    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushDeliverRequestHeader(Header):
    """A piece of a queue; the body has its records, as a pull's answer has. With a `status` other than 0 it is the
    last word about a subscription, and why; 21 says where to go on."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    next_begin_offset: I64
    status: I32 = 0
    reason: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushDeliverResponseHeader(Header):
    """Up to where the client has taken the queue, and up to where it has done with it (-1: nothing to commit). With
    `hold` it has no room until it says `resume`."""

    next_offset: I64
    commit_offset: I64 = -1
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPingRequestHeader(Header):
    """How many tasks of the client are parked: one that has not noticed says `resume`."""

    parked: I32 = 0
