"""Headers of staged publication, Penstock's own codes 9010 to 9013.

    STAGE_MESSAGES      messages are kept by the broker and seen by nobody; the answer is a handle
    PUBLISH_STAGED      the messages of many handles become messages of their topics, all at once and only once
    STAGED_STATUS       what a query published last, and how much may be published at once
    TELL_HOME           which other broker publishes for a query

`query_id` names who publishes and `batch_id` counts its publications upwards: of one query only a higher number
than the last is published. A handle is the broker's text; clients hand it back as it is. Plain values.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.header import I32, I64, Header

# In a refusal of STAGE_MESSAGES: the number of the message, from 0, that it is about.
ROW_FIELD = "penstockRow"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMessagesRequestHeader(Header):
    """The body has the messages (`bodies/staged.py`); topics that are new are made as a send would make them."""

    producer_group: str
    born_timestamp: I64
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMessagesResponseHeader(Header):
    """What to publish them by."""

    handle: str
    messages: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStagedRequestHeader(Header):
    """The body has the handles, in the order in which their messages are to be published, one in each line."""

    query_id: str
    batch_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStagedResponseHeader(Header):
    """`already`: this batch, or a later one of the query, was published before; nothing was done now."""

    messages: I64
    already: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStatusRequestHeader(Header):
    """Whose publications are asked for."""

    query_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStatusResponseHeader(Header):
    """The last batch, if this broker has published one for the query; its limits; and the broker that publishes for
    the query now, if this one was told that it is another."""

    batch_id: I64 | None = None
    messages: I64 | None = None
    published_time: I64 | None = None
    stage_bytes_max: I32
    publish_bytes_max: I64
    publish_handles_max: I32
    home: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TellHomeRequestHeader(Header):
    """`broker_name` publishes for the query. The answer has no fields; it comes when this is on disk."""

    query_id: str
    broker_name: str
