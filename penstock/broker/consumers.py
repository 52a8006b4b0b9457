"""Consumers that are connected: groups, their members and what they subscribed to.

Rules. A member is a connection; it lives as long as its heartbeats and its connection do. Subscriptions belong
to the group: each full heartbeat replaces the list of topics, and a topic's expression only by a newer version.
When a member comes or goes, or the list of topics changes, the members of a clustering group are told at
once (one-way, code 40), so that they share the queues anew; they are never waited for. Notices are
rate-limited: a group that changes again and again gets a few at once, later ones together (`tick`), because a small
request causes a notice to every member. Owned by the event loop; the limits of a heartbeat are
checked before it gets here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.broker.channels import ClientChannel
from penstock.broker.options import BrokerOptions
from penstock.errors import RequestError
from penstock.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.broker")
Subscription = SubscriptionData
# Notices to a group within a span; later changes are sent together when it ends.
NOTICES_MAX = 8
NOTICE_SPAN_MS = 500


@dataclass(slots=True)
class ConsumerGroup:
    """The online part of a group."""

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    notify: bool = True
    # Of the last heartbeat that had one; says whether the short form of the next will do.
    fingerprint: int = 0
    # Since when notices are counted, and how many there were.
    _span_ms: int = -NOTICE_SPAN_MS
    _notices: int = 0
    _members: dict[Connection, ClientChannel] = field(default_factory=dict)
    _subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def members(self) -> Collection[ClientChannel]:
        return self._members.values()

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return MappingProxyType(self._subscriptions)

    @property
    def client_ids(self) -> list[str]:
        """Each client once, also where an old connection of it is not closed yet."""
        return [*dict.fromkeys(channel.client_id for channel in self._members.values())]

    def subscription(self, topic: str) -> Subscription | None:
        return self._subscriptions.get(topic)

    def member(self, client_id: str) -> ClientChannel | None:
        """The newest open connection of a client."""
        for channel in reversed(self._members.values()):
            if channel.client_id == client_id and channel.connection.is_open:
                return channel
        return None

    def _merge(self, subscriptions: Iterable[Subscription]) -> bool:
        """Take over a full list; whether topics came or went."""
        is_changed = False
        named: set[str] = set()
        for subscription in subscriptions:
            topic = subscription.topic
            named.add(topic)
            known = self._subscriptions.get(topic)
            if known is None:
                is_changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self._subscriptions[topic] = subscription
        for topic in self._subscriptions.keys() - named:
            del self._subscriptions[topic]
            is_changed = True
        return is_changed


class Consumers:
    """All groups that have a member online."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, set[str]] = {}
        # Groups whose notices wait for the end of the span.
        self._delayed: dict[str, ConsumerGroup] = {}
        # Told of a group that a connection is no member of any more.
        self.on_leave: list[Callable[[str, Connection], None]] = []

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    # -- coming and going ------------------------------------------------------------------------------------

    def heartbeat(
        self,
        data: ConsumerData,
        connection: Connection,
        client_id: str,
        language: str,
        version: int,
        *,
        notify: bool = True,
        with_subscriptions: bool = True,
    ) -> bool:
        """A consumer says that it is there; whether that changed the group. Raises RequestError if one connection
        would be in too many groups.

        `notify` is the group's setting. The short form of a heartbeat has no subscriptions and leaves them alone.
        """
        joined = self._groups_of.get(connection, ())
        if data.group_name not in joined and len(joined) >= self._options.client_groups_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"client {client_id} is in {len(joined)} consumer groups already",
                "use several clients, or raise client_groups_max",
            )
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.notify = notify
        is_new = self._touch(group, connection, client_id, language, version)
        is_changed = False
        if with_subscriptions:
            is_changed = group._merge(data.subscriptions)
            group._members[connection].terms = data.terms
        if is_new:
            _LOG.info("consumer %s joins group %s", client_id, group.name)
        if is_new or is_changed:
            self._tell(group)
        return is_new or is_changed

    def _touch(
        self, group: ConsumerGroup, connection: Connection, client_id: str, language: str, version: int
    ) -> bool:
        now_ms, seen_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        channel = group._members.get(connection)
        if channel is not None and channel.client_id == client_id:
            channel.touch(now_ms, seen_ms)
            return False
        if channel is not None:
            _LOG.warning("client %s calls itself %s now", channel.client_id, client_id)
        group._members[connection] = ClientChannel(connection, client_id, language, version, now_ms, seen_ms)
        self._groups_of.setdefault(connection, set()).add(group.name)
        return True

    def unregister(self, group: str, connection: Connection) -> bool:
        """A consumer leaves a group; whether it was in it. The others are told."""
        found = self._groups.get(group)
        if found is None or connection not in found._members:
            return False
        self._remove(found, connection)
        self._tell(found)
        return True

    def drop_connection(self, connection: Connection) -> None:
        """The connection is closed: its consumers are gone and the rest of each group is told."""
        for name in [*self._groups_of.get(connection, ())]:
            self.unregister(name, connection)

    def scan(self) -> list[Connection]:
        """Drop the silent and tell the rest; their connections, which the caller closes."""
        limit_ms = self._clock.monotonic_ms() - self._options.channel_expiry_ms
        silent: dict[Connection, None] = {}
        for group in [*self._groups.values()]:
            expired = [channel for channel in group.members if channel.seen_ms < limit_ms]
            for channel in expired:
                _LOG.warning("consumer %s of group %s is silent and dropped", channel.client_id, group.name)
                silent[channel.connection] = None
                self._remove(group, channel.connection)
            if expired:
                self._tell(group)
        return [*silent]

    def tick(self) -> None:
        """Send the notices that were delayed."""
        now_ms = self._clock.monotonic_ms()
        for name, group in [*self._delayed.items()]:
            if now_ms - group._span_ms >= NOTICE_SPAN_MS:
                del self._delayed[name]
                self._tell(group)

    def _remove(self, group: ConsumerGroup, connection: Connection) -> None:
        channel = group._members.pop(connection)
        _LOG.info("consumer %s leaves group %s", channel.client_id, group.name)
        groups = self._groups_of[connection]
        groups.discard(group.name)
        if not groups:
            del self._groups_of[connection]
        if not group._members:
            del self._groups[group.name]
        for listener in self.on_leave:
            listener(group.name, connection)

    def _tell(self, group: ConsumerGroup) -> None:
        """Everyone in a clustering group shares the queues anew, now or with the next tick."""
        if not group.notify or group.message_model is MessageModel.BROADCASTING:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - group._span_ms >= NOTICE_SPAN_MS:
            group._span_ms, group._notices = now_ms, 0
        group._notices += 1
        if group._notices > NOTICES_MAX:
            self._delayed[group.name] = group
            return
        for channel in group.members:
            notice = Command(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}, language="JAVA"
            )
            channel.connection.send(notice)

    # -- questions -------------------------------------------------------------------------------------------

    def group(self, name: str) -> ConsumerGroup | None:
        """A group that has a member online."""
        return self._groups.get(name)

    def all(self) -> Collection[ConsumerGroup]:
        return self._groups.values()

    def is_member(self, connection: Connection) -> bool:
        """Whether a connection is in any group."""
        return connection in self._groups_of

    def member(self, group: str, client_id: str) -> ClientChannel | None:
        """The connection of a client in a group."""
        found = self._groups.get(group)
        return None if found is None else found.member(client_id)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups online that subscribed to a topic."""
        return [group.name for group in self._groups.values() if topic in group._subscriptions]
