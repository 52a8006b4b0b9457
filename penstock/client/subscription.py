"""What a consumer wants of its topics: tags, keys, or an SQL expression that the broker evaluates.

Rules: `*` or nothing is everything; else tags are separated by `||`. The broker compares hash codes only, so two
tags may look alike to it: the client compares the text again. A message without a tag is wanted only by `*`. An
SQL expression is evaluated by the broker; here it is only read, so that a wrong one is refused with its place, and
what follows a complete one, which brokers ignore, is refused as well. Of keys a message must have one, letter for
letter; the broker compares them, and so does the client again. A subscription that replaces another has a
larger version, or the broker would keep the older one. A clustering consumer subscribes to its group's retry topic
as well.

`Subscriptions` belongs to the consumer's event loop once it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.client.options import check_name
from penstock.client.received import retry_topic
from penstock.errors import OptionError, RequestError
from penstock.filters import compile_expression
from penstock.protocol.bodies import ExpressionType, SubscriptionData
from penstock.runtime import Clock


class Subscriptions:
    """The topics of one consumer."""

    def __init__(self, group: str, clock: Clock, *, broadcasting: bool) -> None:
        self._clock = clock
        self._by_topic: dict[str, SubscriptionData] = {}
        self._version = 0
        # In broadcasting nothing is handed back to the broker, so there is nothing to be tried again.
        self._retry_topic = "" if broadcasting else retry_topic(group)

    def __iter__(self) -> Iterator[SubscriptionData]:
        return iter(list(self._by_topic.values()))

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: str) -> SubscriptionData | None:
        return self._by_topic.get(topic)

    @property
    def topics(self) -> list[str]:
        """All of them, the retry topic included."""
        return list(self._by_topic)

    def add(
        self, topic: str, expression: str = "*", sql: str = "", keys: Iterable[str] = ()
    ) -> SubscriptionData:
        """Subscribe, or replace the subscription of that topic. Raises FilterError for an SQL expression."""
        added = self.make(topic, expression, sql, keys)
        self.put(added)
        return added

    def make(
        self, topic: str, expression: str = "*", sql: str = "", keys: Iterable[str] = ()
    ) -> SubscriptionData:
        """A subscription that does not count before it is `put`: once a heartbeat has told a broker of one, the
        broker takes no older one for it."""
        check_name("topic", topic)
        text = check_expression(expression, sql, keys)
        if text:
            return self._parse(topic, text, ExpressionType.KEYS)
        return self._parse(topic, sql or expression, ExpressionType.SQL92 if sql else ExpressionType.TAG)

    def put(self, made: SubscriptionData) -> None:
        """Subscribe to what was made, unless something newer has come in between."""
        known = self._by_topic.get(made.topic)
        if known is not None and known.sub_version > made.sub_version:
            return
        if self._retry_topic and self._retry_topic not in self._by_topic:
            self._by_topic[self._retry_topic] = self._parse(self._retry_topic, "*", ExpressionType.TAG)
        self._by_topic[made.topic] = made

    def remove(self, topic: str) -> bool:
        """Unsubscribe; whether it was subscribed."""
        found = self._by_topic.pop(topic, None) is not None
        if list(self._by_topic) == [self._retry_topic]:
            self._by_topic.clear()
        return found

    def _parse(self, topic: str, expression: str, kind: str) -> SubscriptionData:
        self._version = max(self._version + 1, self._clock.now_ms())
        try:
            return SubscriptionData.parse(topic, expression.strip(" \t\r\n"), kind, self._version)
        except RequestError as error:
            raise OptionError(error.message, error.hint) from error


def check_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """One key, or several; OptionError for anything else."""
    given: object = keys
    if not isinstance(given, Iterable):
        raise OptionError(f"keys is {given!r}", "use a key, or a list of keys")
    return (keys,) if isinstance(keys, str) else tuple(keys)


def check_expression(expression: str, sql: str, keys: Iterable[str] = ()) -> str:
    """Refuse what no broker could make sense of; the text for keys, empty if there are none. Raises OptionError or
    FilterError."""
    given: tuple[tuple[str, object], ...] = (("expression", expression), ("sql", sql))
    for name, value in given:
        if not isinstance(value, str):
            raise OptionError(f"{name} is {value!r}", 'use text: "*" for all messages, "a || b" for tags')
    text = _key_text(keys)
    if sum((bool(sql), bool(text), expression not in ("", "*"))) > 1:
        raise OptionError("more than one of tags, keys and an SQL expression was given", "use one of them")
    if sql:
        compile_expression(sql, whole=True)
    return text


def _key_text(keys: Iterable[str]) -> str:
    wanted = [_checked_key(key) for key in ([keys] if isinstance(keys, str) else keys)]
    return " ".join(dict.fromkeys(wanted))


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not key or not key.isprintable() or " " in key:
        raise OptionError(f"a key is {str(key)[:80]!r}", "use printable text without spaces")
    return key


def wants(subscription: SubscriptionData, tag: str) -> bool:
    """Whether a message with this tag (empty: none) is wanted, as far as the client can tell."""
    return not subscription.tags_set or tag in subscription.tags_set
