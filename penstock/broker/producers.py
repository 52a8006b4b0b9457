"""Producers that are connected, by group and by client id.

Rules: a member lives as long as its connection and its heartbeats; a group without members is gone. The number of
groups is limited (A14), and one user leaves a part of them to others: any name will do, and a producer that is not
kept here is not asked about its transactions and gets no replies. Owned by the event loop; it sends nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from penstock.broker.channels import ClientChannel, Publisher
from penstock.broker.options import BrokerOptions
from penstock.remoting import Connection
from penstock.runtime import Clock
from penstock.runtime.shares import has_share

_LOG = logging.getLogger("penstock.broker")


class Producers:
    """Producer groups and their members."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._groups: dict[str, dict[Connection, ClientChannel]] = {}
        # Where users are asked who they are: whose first member made a group, and how many groups each has made.
        self._makers: dict[str, str] = {}
        self._made_by: Counter[str] = Counter()
        self._groups_of: dict[Connection, set[str]] = {}
        self._by_client_id: dict[str, dict[Connection, ClientChannel]] = {}
        self._turn = 0
        # Who says what is being handled; with access control the guard's.
        self.identify: Callable[[], Publisher | None] = lambda: None

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def heartbeat(
        self, group: str, connection: Connection, client_id: str, language: str, version: int
    ) -> ClientChannel | None:
        """A producer says that it is there. None if there is no room for one more group, or not for this client."""
        joined = self._groups_of.get(connection, ())
        if group not in joined and len(joined) >= self._options.client_groups_max:
            _LOG.warning("client %s is in %d producer groups already", client_id, len(joined))
            return None
        publisher = self.identify()
        if publisher is not None and not publisher.publishes:
            return None  # a consumer, as Java's: it is never asked about transactions, and awaits no reply
        now_ms, seen_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        members = self._groups.get(group)
        if members is None:
            if not self._has_room(publisher):
                _LOG.warning("producer group %s is ignored: there are too many", group)
                return None
            members = self._groups[group] = {}
            if publisher is not None:
                self._makers[group] = publisher.user
                self._made_by[publisher.user] += 1
        channel = members.get(connection)
        if channel is not None and channel.client_id == client_id:
            channel.touch(now_ms, seen_ms)
            channel.publisher = publisher
        else:
            if channel is not None:
                self._forget_id(channel, group)
            channel = ClientChannel(connection, client_id, language, version, now_ms, seen_ms, publisher)
            members[connection] = channel
            self._groups_of.setdefault(connection, set()).add(group)
        if self._is_anothers(client_id, publisher):
            _LOG.warning(
                "client id %s is in use by another user: replies do not reach this producer", client_id
            )
        else:
            self._by_client_id.setdefault(client_id, {})[connection] = channel
        return channel

    def _has_room(self, publisher: Publisher | None) -> bool:
        """Whether there may be one more group, made by this user."""
        known, most = len(self._groups), self._options.producer_groups_max
        if publisher is None:
            return known < most
        return has_share(self._made_by[publisher.user], known, most)

    def _is_anothers(self, client_id: str, publisher: Publisher | None) -> bool:
        """Replies go to the newest connection of a client id: a user must not take another's, nor an admin's, who has
        no publisher."""
        return publisher is not None and any(
            channel.connection.is_open
            and (channel.publisher is None or channel.publisher.user != publisher.user)
            for channel in self._by_client_id.get(client_id, {}).values()
        )

    def unregister(self, group: str, connection: Connection) -> bool:
        """A producer leaves a group; whether it was in it."""
        channel = self._groups.get(group, {}).get(connection)
        if channel is None:
            return False
        self._remove(group, channel)
        return True

    def drop_connection(self, connection: Connection) -> None:
        """The connection is closed: its producers are gone."""
        for group in [*self._groups_of.get(connection, ())]:
            self._remove(group, self._groups[group][connection])

    def scan(self) -> list[Connection]:
        """Drop the silent; their connections, which the caller closes."""
        limit_ms = self._clock.monotonic_ms() - self._options.channel_expiry_ms
        silent = [
            (group, channel)
            for group, members in self._groups.items()
            for channel in members.values()
            if channel.seen_ms < limit_ms
        ]
        for group, channel in silent:
            _LOG.warning("producer %s of group %s is silent and dropped", channel.client_id, group)
            self._remove(group, channel)
        return [*{channel.connection: None for _, channel in silent}]

    def _remove(self, group: str, channel: ClientChannel) -> None:
        members = self._groups[group]
        del members[channel.connection]
        if not members:
            del self._groups[group]
            maker = self._makers.pop(group, None)
            if maker is not None:
                self._made_by[maker] -= 1
                if not self._made_by[maker]:
                    del self._made_by[maker]
        groups = self._groups_of[channel.connection]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel.connection]
        self._forget_id(channel, group)

    def _forget_id(self, channel: ClientChannel, group: str) -> None:
        """Take the client id's entry away, unless another group of the connection has the same id."""
        others = self._groups_of.get(channel.connection, set()) - {group}
        still = next(
            (
                member
                for other in others
                if (member := self._groups[other].get(channel.connection)) is not None
                and member.client_id == channel.client_id
            ),
            None,
        )
        channels = self._by_client_id.get(channel.client_id, {})
        if still is not None:
            channels[channel.connection] = still
            return
        channels.pop(channel.connection, None)
        if not channels:
            self._by_client_id.pop(channel.client_id, None)

    # -- questions -------------------------------------------------------------------------------------------

    def members(self, group: str) -> Collection[ClientChannel]:
        """Members of a group; empty if there is no such group."""
        return self._groups.get(group, {}).values()

    def is_member(self, connection: Connection) -> bool:
        """Whether a connection is in any group."""
        return connection in self._groups_of

    def pick(self, group: str, topic: str) -> ClientChannel | None:
        """Any member with an open connection that may publish to a topic, in turn: names of groups are nobody's, and
        what it is asked about is shown to it."""
        members = [
            channel
            for channel in self.members(group)
            if channel.connection.is_open and channel.may_publish(topic)
        ]
        if not members:
            return None
        self._turn += 1
        return members[self._turn % len(members)]

    def by_client_id(self, client_id: str) -> ClientChannel | None:
        """The newest open connection of a client."""
        for channel in reversed(self._by_client_id.get(client_id, {}).values()):
            if channel.connection.is_open:
                return channel
        return None

    def groups(self) -> Iterator[tuple[str, Collection[ClientChannel]]]:
        """Every group with its members."""
        for group, members in self._groups.items():
            yield group, members.values()
