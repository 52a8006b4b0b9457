"""Headers of administration, at the broker and relayed to clients (codes 17, 21, 26, 200-225, 300-353).
Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.header import I32, I64, Header

# -- topics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(Header):
    """Code 17. `attributes` is written `+key=value,-key`."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigRequestHeader(Header):
    """Code 21. Newer clients ask page by page, and stop when the answer has no total."""

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponseHeader(Header):
    """The answer of code 21; the total only if there are more pages."""

    total_topic_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfoRequestHeader(Header):
    """Code 202."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(Header):
    """Code 215."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(Header):
    """Code 300."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerRequestHeader(Header):
    """Code 343."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionByConsumerRequestHeader(Header):
    """Code 345."""

    group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfigRequestHeader(Header):
    """Code 351."""

    topic: str
    lo: bool | None = None


# -- groups --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupRequestHeader(Header):
    """Code 201, page by page as code 21."""

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupResponseHeader(Header):
    """The answer of code 201; the total only if there are more pages."""

    total_group_num: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfigRequestHeader(Header):
    """Code 352."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """Code 207."""

    group_name: str
    clean_offset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGroupForbiddenRequestHeader(Header):
    """Code 353; without `readable` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(Header):
    """Code 203."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionListRequestHeader(Header):
    """Code 204."""

    producer_group: str


# -- progress ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(Header):
    """Code 208; `topic_list` is joined by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics asked for by name; empty means all."""
        listed = tuple(name for name in (self.topic_list or "").split(";") if name)
        return listed or ((self.topic,) if self.topic else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConsumeStatsRequestHeader(Header):
    """Code 317."""

    is_order: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    """Code 303."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetRequestHeader(Header):
    """Code 308; `filter_groups` is joined by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetRequestHeader(Header):
    """Code 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequestHeader(Header):
    """Codes 222 (to the broker) and 220 (to a client). `timestamp` -1 is the end of the queue, `queue_id` -1 all
    queues, `offset` -1 none given."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(Header):
    """Codes 223 (to the broker) and 221 (to a client)."""

    topic: str
    group: str
    client_addr: str | None = None


# -- broker, and what it relays ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    """The answer of code 26: the data version as JSON."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsDataRequestHeader(Header):
    """Code 315."""

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequestHeader(Header):
    """Code 307, to the broker and on to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResultRequestHeader(Header):
    """Code 309, to the broker and, with broker name and record, on to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
