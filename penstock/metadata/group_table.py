"""Consumer groups: `config/subscriptionGroup.json`.

    {"dataVersion":{...},"forbiddenTable":{"G1":{"T1":4}},
     "subscriptionGroupTable":{"G1":{"groupName":"G1","retryMaxTimes":16,"groupRetryPolicy":{...},...}}}

Rules: absent fields have RocketMQ's defaults, unknown ones are kept and written back. Optional parts that
were not there are not written. A config is a value: a change makes a new one. Plain data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT32_MAX, INT64_MAX, JsonFields
from penstock.metadata.table_json import Members, Rows, table_json

INT32_MIN = -(2**31)
FORBIDDEN_TO_READ = 4
_POLICY_TYPES = ("CUSTOMIZED", "EXPONENTIAL")
_EXPONENT_MAX = 32
# The 18 delay levels, 1 s to 2 h.
DEFAULT_WAITS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


@dataclass(frozen=True, slots=True)
class ExponentialRetry:
    """Delays that grow by a factor."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, fields: JsonFields) -> Self:
        return cls(
            initial_ms=fields.integer("initial", 5_000, 0, INT64_MAX),
            max_ms=fields.integer("max", 7_200_000, 0, INT64_MAX),
            multiplier=fields.integer("multiplier", 2, 0, INT64_MAX),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "initial": self.initial_ms,
            "max": self.max_ms,
            "multiplier": self.multiplier,
        }


@dataclass(frozen=True, slots=True)
class CustomizedRetry:
    """Delays one by one."""

    next_ms: tuple[int, ...] = ()
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, fields: JsonFields) -> Self:
        return cls(next_ms=fields.integer_list("next", 0, INT64_MAX), extra=fields.rest())

    def to_json(self) -> JsonObject:
        return {**self.extra, "next": list(self.next_ms)}


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy:
    """When a message that could not be consumed comes again."""

    type: str = "CUSTOMIZED"
    customized: CustomizedRetry | None = None
    exponential: ExponentialRetry | None = None
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, fields: JsonFields | None) -> Self:
        if fields is None:
            return cls()
        customized = fields.inner("customizedRetryPolicy")
        exponential = fields.inner("exponentialRetryPolicy")
        return cls(
            type=fields.choice("type", "CUSTOMIZED", _POLICY_TYPES),
            customized=None if customized is None else CustomizedRetry.read(customized),
            exponential=None if exponential is None else ExponentialRetry.read(exponential),
            extra=fields.rest(),
        )

    @property
    def is_own(self) -> bool:
        """Whether somebody set it: the default is the broker's delay levels."""
        return self.type == "EXPONENTIAL" or (self.customized is not None and bool(self.customized.next_ms))

    def wait_ms(self, tries: int) -> int:
        """How long until the next try, after this many that failed, by RocketMQ's reckoning: a list is entered at
        its third value, because the default's first two are too short for retries."""
        tries = max(tries, 0)
        if self.type == "EXPONENTIAL":
            policy = self.exponential or ExponentialRetry()
            grown: int = policy.initial_ms * policy.multiplier ** min(tries, _EXPONENT_MAX)
            return min(policy.max_ms, grown)
        waits = (self.customized.next_ms if self.customized is not None else ()) or DEFAULT_WAITS_MS
        return waits[min(tries + 2, len(waits) - 1)]

    def to_json(self) -> JsonObject:
        written: JsonObject = {**self.extra, "type": self.type}
        if self.customized is not None:
            written["customizedRetryPolicy"] = self.customized.to_json()
        if self.exponential is not None:
            written["exponentialRetryPolicy"] = self.exponential.to_json()
        return written


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic that a group subscribed to, fixed by an operator."""

    topic: str
    expression_type: str = "TAG"
    expression: str = "*"
    version: int = 0
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, fields: JsonFields) -> Self:
        return cls(
            topic=fields.text("topic", ""),
            expression_type=fields.text("expressionType", "TAG"),
            expression=fields.text("expression", "*"),
            version=fields.integer("version", 0, -INT64_MAX - 1, INT64_MAX),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscriptions: tuple[Subscription, ...] | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, fields: JsonFields) -> Self:
        if fields.text("groupName", name) != name:
            fields.fail("groupName", f"must be the name it is listed under, {name!r}")
        has_subscriptions = fields.has("subscriptionDataSet")
        subscriptions = tuple(Subscription.read(item) for item in fields.object_list("subscriptionDataSet"))
        return cls(
            name=name,
            consume_enable=fields.boolean("consumeEnable", True),
            consume_from_min_enable=fields.boolean("consumeFromMinEnable", True),
            consume_broadcast_enable=fields.boolean("consumeBroadcastEnable", True),
            consume_message_orderly=fields.boolean("consumeMessageOrderly", False),
            retry_queue_nums=fields.integer("retryQueueNums", 1, 0, INT32_MAX),
            retry_max_times=fields.integer("retryMaxTimes", 16, INT32_MIN, INT32_MAX),
            retry_policy=GroupRetryPolicy.read(fields.inner("groupRetryPolicy")),
            broker_id=fields.integer("brokerId", 0, 0, INT64_MAX),
            which_broker_when_consume_slowly=fields.integer("whichBrokerWhenConsumeSlowly", 1, 0, INT64_MAX),
            notify_consumer_ids_changed_enable=fields.boolean("notifyConsumerIdsChangedEnable", True),
            sys_flag=fields.integer("groupSysFlag", 0, 0, INT32_MAX),
            consume_timeout_minute=fields.integer("consumeTimeoutMinute", 15, 0, INT32_MAX),
            subscriptions=subscriptions if has_subscriptions else None,
            attributes=fields.texts("attributes"),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        written: JsonObject = {
            **self.extra,
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.name,
            "groupRetryPolicy": self.retry_policy.to_json(),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        if self.subscriptions is not None:
            written["subscriptionDataSet"] = [item.to_json() for item in self.subscriptions]
        return written


@dataclass(slots=True)
class SubscriptionGroupTable:
    """All consumer groups of a broker by name, and what is forbidden: group, then topic, then bits."""

    FILE_NAME: ClassVar[str] = "subscriptionGroup.json"

    data_version: DataVersion = field(default_factory=DataVersion)
    groups: dict[str, SubscriptionGroup] = field(default_factory=dict)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        groups = fields.table("subscriptionGroupTable")
        forbidden = fields.table("forbiddenTable")
        return cls(
            data_version=DataVersion.read(fields.inner("dataVersion")),
            groups={name: SubscriptionGroup.read(name, group) for name, group in groups},
            forbidden={name: topics.named_integers(INT32_MIN, INT32_MAX) for name, topics in forbidden},
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return table_json(self.members())

    def members(self) -> Members:
        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "forbiddenTable": Rows(lambda: list(self.forbidden), self._forbidden_row, dict),
            "subscriptionGroupTable": Rows(lambda: list(self.groups), self._row, SubscriptionGroup.to_json),
        }

    def _row(self, name: str) -> tuple[str, SubscriptionGroup] | None:
        group = self.groups.get(name)
        return None if group is None else (name, group)

    def _forbidden_row(self, name: str) -> tuple[str, dict[str, int]] | None:
        topics = self.forbidden.get(name)
        return None if topics is None else (name, dict(topics))

    def change_of(self, name: str) -> JsonObject:
        """What the journal has to know now that a group, or what it may do, was changed; no name: only the
        version."""
        group, forbidden = self.groups.get(name), self.forbidden.get(name)
        change: JsonObject = {"dataVersion": self.data_version.to_json(), "name": name}
        if forbidden:
            change["forbidden"] = {**forbidden}
        return change if group is None else {**change, "config": group.to_json()}

    def apply(self, change: JsonFields) -> None:
        """Take over what `change_of` says."""
        version, name = DataVersion.read(change.inner("dataVersion")), change.text("name", "")
        fields, topics = change.inner("config"), change.inner("forbidden")
        group = None if fields is None else SubscriptionGroup.read(name, fields)
        forbidden = {} if topics is None else topics.named_integers(INT32_MIN, INT32_MAX)
        self.data_version = version
        self.groups.pop(name, None)
        self.forbidden.pop(name, None)
        if group is not None:
            self.groups[name] = group
        if forbidden:
            self.forbidden[name] = forbidden
