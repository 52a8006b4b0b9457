"""Subscriptions by SQL92 expressions and by keys, as filters that a read of the store can ask.

    heartbeat   a subscription is kept as it came; what it means is found out when somebody reads
    check (46)  1 while filters are off, 23 with place and reason if it cannot be understood
    pull        the expression of the request, else of the group: 23 or 27 if that cannot be understood. RocketMQ
                delivers everything for a broken expression in a request; here nobody gets what was not asked for
    retries     `%RETRY%` topics are delivered whole, unless `filter_retries`: then by the filter of the topic that a
                message came from

Expressions are understood once and remembered in a cache of limited size, not with each group: however many groups
subscribe, what they take in memory is bounded. A filter looks only at the properties that its expression names, and
belongs to one pull: it knows when that pull has had its time. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.broker.consumers import Consumers
from penstock.broker.options import BrokerOptions
from penstock.broker.property_text import RETRY_TOPIC
from penstock.errors import FilterError, RequestError
from penstock.filters import Expression, compile_expression
from penstock.message import PropertyName, pick_properties, property_keys
from penstock.protocol.bodies import ExpressionType, SubscriptionData
from penstock.protocol.codes import ResponseCode
from penstock.protocol.topic_names import RETRY_PREFIX
from penstock.runtime import Clock

# What a subscription takes in memory at most for each character of its expression: compiled, or as tags with their
# hashes.
EXPRESSION_COST = 16
TAGS_COST = 32
# Says of a record's properties whether it is wanted.
Wanted = Callable[[bytes], bool]
_RETRY_KEYS = property_keys([RETRY_TOPIC])
_KEYS_KEYS = property_keys([PropertyName.KEYS])


class PullFilter:
    """The store's `RecordFilter` for one pull; `begin` starts the time of each try."""

    def __init__(self, wanted: Wanted, clock: Clock, time_max_ms: int) -> None:
        self._wanted = wanted
        self._clock = clock
        self._time_max_ms = time_max_ms
        self._end_ms = 0

    def begin(self) -> None:
        self._end_ms = self._clock.monotonic_ms() + self._time_max_ms

    def accepts(self, properties: bytes) -> bool:
        return self._wanted(properties)

    def is_spent(self) -> bool:
        return self._clock.monotonic_ms() >= self._end_ms


class Filters:
    """Makes filters of the subscriptions that pulls name."""

    def __init__(self, options: BrokerOptions, consumers: Consumers, clock: Clock) -> None:
        self._options = options
        self._consumers = consumers
        self._clock = clock

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def of_pull(self, group: str, subscription: SubscriptionData, *, is_inline: bool) -> PullFilter | None:
        """What has to be asked of each message; None if tags decide, or nothing has to. Raises RequestError."""
        options = self._options
        if not subscription.is_tag_type:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED if is_inline else ResponseCode.FILTER_DATA_NOT_EXIST
            wanted = _wanted(options, subscription, code)
            _check_enabled(options, subscription)
        elif options.filter_retries and subscription.topic.startswith(RETRY_PREFIX):
            wanted = self._by_first_topic(group)
        else:
            return None
        return PullFilter(wanted, self._clock, options.filter_time_max_ms)

    def _by_first_topic(self, group: str) -> Wanted:
        online = self._consumers.group(group)
        by_topic: dict[str, Wanted] = {}
        for subscription in () if online is None else online.subscriptions.values():
            if not subscription.is_tag_type:
                code = ResponseCode.FILTER_DATA_NOT_EXIST
                by_topic[subscription.topic] = _wanted(self._options, subscription, code)
        return _by_retry_topic(by_topic)


def expression_bytes(subscription: SubscriptionData) -> int:
    """The memory that the expression of a request takes while the request waits."""
    if subscription.is_all:
        return 0
    cost = TAGS_COST if subscription.is_tag_type else EXPRESSION_COST
    return cost * len(subscription.sub_string)


def check_filter(options: BrokerOptions, subscription: SubscriptionData) -> None:
    """Refuse a subscription that no pull could be answered for. Raises RequestError."""
    if not subscription.is_tag_type:
        _check_enabled(options, subscription)
        _wanted(options, subscription, ResponseCode.SUBSCRIPTION_PARSE_FAILED)


def _wanted(options: BrokerOptions, subscription: SubscriptionData, code: ResponseCode) -> Wanted:
    """What a subscription that is not by tags asks of a message. Raises RequestError."""
    if subscription.expression_type == ExpressionType.KEYS:
        return _by_keys(_keys(options, subscription, code))
    return _by_expression(_expression(options, subscription, code))


def _by_keys(keys: frozenset[str]) -> Wanted:
    """Whether one of a message's keys, which spaces separate, is one of these, letter for letter."""

    def wanted(properties: bytes) -> bool:
        text = pick_properties(properties, _KEYS_KEYS).get(PropertyName.KEYS, "")
        return not keys.isdisjoint(text.split(" "))

    return wanted


def _keys(options: BrokerOptions, subscription: SubscriptionData, code: ResponseCode) -> frozenset[str]:
    topic, keys = subscription.topic[:80], subscription.keys
    if not keys:
        raise RequestError(code, f"the subscription to {topic!r} names no key", "name at least one")
    if (
        len(keys) > options.subscription_keys_max
        or len(subscription.sub_string) > options.expression_size_max
    ):
        raise RequestError(
            code,
            f"the subscription to {topic!r} has {len(keys)} keys in {len(subscription.sub_string)} characters",
            f"use at most {options.subscription_keys_max} keys in {options.expression_size_max} characters, or tags",
        )
    return keys


def _by_expression(expression: Expression) -> Wanted:
    keys, matches = property_keys(expression.names), expression.matches
    return lambda properties: matches(pick_properties(properties, keys))


def _by_retry_topic(by_topic: Mapping[str, Wanted]) -> Wanted:
    def wanted(properties: bytes) -> bool:
        first = by_topic.get(pick_properties(properties, _RETRY_KEYS).get(RETRY_TOPIC, ""))
        return first is None or first(properties)

    return wanted


def _check_enabled(options: BrokerOptions, subscription: SubscriptionData) -> None:
    if not options.property_filters:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"this broker does not filter by {subscription.expression_type[:40]}",
            "subscribe with tags, or set property_filters",
        )


def _expression(options: BrokerOptions, subscription: SubscriptionData, code: ResponseCode) -> Expression:
    topic, kind, text = subscription.topic[:80], subscription.expression_type, subscription.sub_string
    if kind != ExpressionType.SQL92:
        raise RequestError(code, f"no such expression type: {kind[:40]!r}", "use TAG, SQL92 or KEYS")
    if len(text) > options.expression_size_max:
        raise RequestError(code, f"the expression for {topic!r} is too long", "use a shorter one")
    try:
        return compile_expression(text)
    except FilterError as error:
        message = f"the SQL92 expression for {topic!r} cannot be understood: {error.message}"
        raise RequestError(code, message, error.hint) from error
