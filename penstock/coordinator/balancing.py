"""Runs the balance of all groups: carries beats to the cores, holds rounds in time, nudges members that have events.

    heartbeats   a consumer that times out or closes leaves its group, one whose connection drops may come back
    reports      queues that appear or vanish are told to the groups that subscribe to them
    lead         a new term knows nobody and divides nothing before everybody had time to report

Rules. A nudge is NOTIFY_CONSUMER_IDS_CHANGED (40) over the connection of the last beat: it only makes the member beat
sooner, so it may be lost. Nothing here is written down: who holds what is known by the members and by the brokers'
leases. Owned by the coordinator's event loop; the decisions are in balance.py and division.py.
"""

from __future__ import annotations

import logging

from penstock.coordinator.balance import BalanceTimes
from penstock.coordinator.explain import explain
from penstock.coordinator.groups import CLIENT_ID_MAX, NAME_MAX, GroupLimits, Groups, NudgeMember
from penstock.coordinator.heartbeats import Gone, Heartbeats, TimeoutInfo
from penstock.coordinator.leadership import Lead
from penstock.coordinator.publishers import Publishers
from penstock.coordinator.ring import VIRTUAL_NODES
from penstock.coordinator.topic_reports import SetName, TopicReports
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import ClientBeatAnswer, ClientBeatBody, ClientKind
from penstock.protocol.bodies.explanation import ExplanationBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.coordinator")
FIRST_BALANCE_MS = 5_000
# The first leader there ever was: nobody can hold anything yet.
FIRST_TERM = 1


class Balancing:
    """See the module's text."""

    def __init__(
        self,
        heartbeats: Heartbeats,
        reports: TopicReports,
        clock: Clock,
        *,
        times: BalanceTimes | None = None,
        limits: GroupLimits | None = None,
        first_balance_ms: int = FIRST_BALANCE_MS,
        virtual_nodes: int = VIRTUAL_NODES,
    ) -> None:
        self._heartbeats = heartbeats
        self._reports = reports
        self._clock = clock
        self._first_balance_ms = first_balance_ms
        self._limits = limits or GroupLimits()
        self.groups = Groups(times, self._limits, virtual_nodes=virtual_nodes)
        self.publishers = Publishers()
        # Over which connection each member reported last, by its node id.
        self._connections: dict[str, Connection] = {}
        heartbeats.consumers.listen(self._consumer_gone)
        heartbeats.producers.listen(self._producer_gone)
        reports.on_change(self._topics_changed)

    @property
    def term(self) -> int:
        return self.groups.term

    # -- what clients say ------------------------------------------------------------------------------------

    def consumer_beat(self, body: ClientBeatBody, connection: Connection) -> ClientBeatAnswer:
        """A consumer reports; RequestError if it may not be a member."""
        now_ms = self._clock.monotonic_ms()
        before = self._topics_of(body)
        answer, nudges = self.groups.beat(body, now_ms)
        node, table = node_id(body.client_id, body.group), self._heartbeats.consumers
        if not table.beat(node, now_ms, connection=connection.id):
            table.register(node, now_ms, connection=connection.id)
        self._connections[node] = connection
        if self._topics_of(body) != before:
            self._tell_queues(only=body.group)
        self._nudge(nudges)
        return answer

    def _topics_of(self, body: ClientBeatBody) -> frozenset[str] | None:
        group = self.groups.get(body.group)
        member = group.members.get(body.client_id) if group is not None else None
        return member.topics if member is not None else None

    def producer_beat(self, body: ClientBeatBody, connection: Connection) -> None:
        """A producer reports what it publishes."""
        now_ms = self._clock.monotonic_ms()
        if not 0 < len(body.client_id) <= CLIENT_ID_MAX or len(body.group) > NAME_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"client id {body.client_id[:80]!r}, group {body.group[:80]!r}",
                f"use 1 to {CLIENT_ID_MAX} characters for the id, and up to {NAME_MAX} for the group",
            )
        if len(body.topics) > self._limits.topics_max:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"{len(body.topics)} topics of one producer")
        self.publishers.beat(body.client_id, body.group, frozenset(body.topics))
        table = self._heartbeats.producers
        if not table.beat(body.client_id, now_ms, connection=connection.id):
            table.register(body.client_id, now_ms, connection=connection.id)

    def close(self, body: ClientBeatBody) -> None:
        """A client says goodbye: it has let go of everything."""
        if "@" in body.group:
            # The node `a@b@c` is client `a@b` in group `c`: a group `b@c` must not close a member of `c`.
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"invalid group name {body.group[:80]!r}",
                "use letters, digits, _ - % |",
            )
        if body.kind is ClientKind.PRODUCER:
            self._heartbeats.producers.close(body.client_id)
        elif not self._heartbeats.consumers.close(node_id(body.client_id, body.group)):
            # Its connection dropped before: not in the table any more, but its group may still wait for it.
            self._nudge(self.groups.left(body.group, body.client_id, self._clock.monotonic_ms()))

    def explain(self, name: str) -> ExplanationBody:
        """Who owns what in a group, and why."""
        group = self.groups.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no consumer of group {name[:80]!r} is balanced by this coordinator",
                'consumers choose it with balance="coordinator"; of others `penstock group describe` knows',
            )
        return explain(group, self.term, self._clock.monotonic_ms())

    # -- what else happens -----------------------------------------------------------------------------------

    def lead_changed(self, event: Lead, term: int) -> None:
        """A new term knows nobody; after a moment of doubt in the same term everybody is still known."""
        if event in (Lead.TOOK_OVER, Lead.RESTED):
            wait_ms = self._first_balance_ms if term > FIRST_TERM else 0
            self.groups.lead(term, self._clock.monotonic_ms() + wait_ms)
            self.publishers.clear()
            self._connections.clear()

    def _consumer_gone(self, node: str, info: TimeoutInfo) -> None:
        client_id, _, group = node.rpartition("@")
        now_ms = self._clock.monotonic_ms()
        self._connections.pop(node, None)
        if info.gone is Gone.DROPPED:
            self.groups.dropped(group, client_id, now_ms)
        else:
            _LOG.info("consumer %s of group %s is gone (%s)", client_id, group, info.gone)
            self._nudge(self.groups.left(group, client_id, now_ms))

    def _producer_gone(self, node: str, info: TimeoutInfo) -> None:
        self.publishers.release(node)

    def _topics_changed(self, of: SetName) -> None:
        self._tell_queues()

    def _tell_queues(self, only: str | None = None) -> None:
        brokers = frozenset(one.name for one in self._reports.sets)
        group = self.groups.get(only) if only is not None else None
        topics = group.topics if group is not None else self.groups.topics
        queues = {
            topic: tuple(
                MessageQueue(topic, broker, number)
                for broker, count in sorted(counts.items())
                for number in range(count)
            )
            for topic, counts in self._reports.readable(topics).items()
        }
        self.groups.seen(queues, brokers, self._clock.monotonic_ms(), only)

    # -- rounds ----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Hold the rounds that are due."""
        self._nudge(self.groups.tick(now_ms))

    def _nudge(self, nudges: list[NudgeMember]) -> None:
        for one in nudges:
            connection = self._connections.get(node_id(one.member, one.group))
            if connection is not None and connection.is_open:
                command = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": one.group})
                connection.send(command)


def node_id(client_id: str, group: str) -> str:
    """TubeMQ's `consumerId@group`; a group has no @, a client id may."""
    return f"{client_id}@{group}"
