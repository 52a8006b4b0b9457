"""All groups that the coordinator balances: who may join, which topics matter, when rounds are due.

Rules. A group exists while it has a member. Its mode is that of its first member: point to point keeps a second
group of that mode out of a topic, publish/subscribe a second consumer out of the group. Members of one group have one
mode, and one way of binding queues to them. Groups, members, topics and the queues that members report are limited
(A14): a member could make up any number of queues, and each round looks at all of them. What is here is built from
beats alone: a coordinator that begins to lead knows nobody, and divides nothing before everybody had the time to
report what they hold. Sans-I/O; owned by the coordinator's event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.coordinator.balance import (
    Answer,
    BalanceTimes,
    Beat,
    Dropped,
    Event,
    GroupBalance,
    Instruction,
    Left,
    Member,
    Nudge,
    QueuesSeen,
    Tick,
)
from penstock.coordinator.ring import VIRTUAL_NODES
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import (
    ClientBeatAnswer,
    ClientBeatBody,
    SubscriptionMode,
    subscription_name,
)
from penstock.protocol.bodies.subscriptions import DescribedSubscription, ReadingGroup, SubscriptionsBody
from penstock.protocol.codes import ResponseCode
from penstock.runtime.shares import has_share

NAME_MAX = 255
CLIENT_ID_MAX = 1024


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How much of anything there may be."""

    groups_max: int = 10_000
    members_max: int = 1_000
    topics_max: int = 1_024
    # Of all groups together; one group leaves a part to others.
    reported_max: int = 200_000


@dataclass(frozen=True, slots=True)
class NudgeMember:
    """Have a member of a group beat now."""

    group: str
    member: str


class Groups:
    """Every group, for as long as this coordinator leads (`term`)."""

    def __init__(
        self,
        times: BalanceTimes | None = None,
        limits: GroupLimits | None = None,
        *,
        term: int = 0,
        first_round_ms: int = 0,
        virtual_nodes: int = VIRTUAL_NODES,
    ) -> None:
        self._virtual_nodes = virtual_nodes
        self._times = times or BalanceTimes()
        self._limits = limits or GroupLimits()
        self.term = term
        # No group is divided before this time.
        self._first_round_ms = first_round_ms
        self._groups: dict[str, GroupBalance] = {}
        self._numbers = itertools.count(1)
        # Queues that all groups keep of their members' reports.
        self._reported = 0

    def lead(self, term: int, first_round_ms: int) -> None:
        """Begin to lead: nothing that was known counts."""
        self.term = term
        self._first_round_ms = first_round_ms
        self._groups.clear()
        self._reported = 0

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> GroupBalance | None:
        return self._groups.get(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._groups)

    @property
    def topics(self) -> set[str]:
        """All topics that any group subscribes to."""
        return {topic for group in self._groups.values() for topic in group.topics}

    # -- what members say ------------------------------------------------------------------------------------

    def beat(self, body: ClientBeatBody, now_ms: int) -> tuple[ClientBeatAnswer, list[NudgeMember]]:
        """A consumer reports. RequestError if it may not be a member."""
        self._check_reported(body)
        if not self._is_known(body):
            self._check(body)
            if body.queues and now_ms < self._first_round_ms:
                self._make_way(body)
            self._check_place(body)
        group = self._groups.get(body.group)
        if group is None:
            begins_ms = max(self._first_round_ms, now_ms)
            group = GroupBalance(
                body.group, self.term, self._times, begins_ms, self._numbers, self._virtual_nodes
            )
            self._groups[body.group] = group
        answer = ClientBeatAnswer(self.term)
        nudges = []
        for step in self._handle(group, Beat(body, now_ms)):
            if isinstance(step, Answer):
                answer = ClientBeatAnswer(self.term, step.is_divided, step.event)
            else:
                nudges.append(NudgeMember(group.name, step.member))
        return answer, nudges

    def left(self, name: str, member: str, now_ms: int) -> list[NudgeMember]:
        """A consumer closed, or was silent for too long."""
        group = self._groups.get(name)
        if group is None:
            return []
        nudges = _nudges(group, self._handle(group, Left(member, now_ms)))
        self._forget_empty(group)
        return nudges

    def dropped(self, name: str, member: str, now_ms: int) -> None:
        """The connection of a consumer is gone."""
        group = self._groups.get(name)
        if group is not None:
            group.handle(Dropped(member, now_ms))

    # -- what else happens -----------------------------------------------------------------------------------

    def seen(
        self,
        queues: Mapping[str, tuple[MessageQueue, ...]],
        brokers: frozenset[str],
        now_ms: int,
        only: str | None = None,
    ) -> None:
        """Queues of topics, and the broker sets that told theirs; of interest to all groups, or to one."""
        for group in self._groups.values():
            if only is None or only == group.name:
                known = {topic: queues[topic] for topic in sorted(group.topics) if topic in queues}
                group.handle(QueuesSeen(known, brokers, now_ms))

    def tick(self, now_ms: int) -> list[NudgeMember]:
        """Hold the rounds that are due."""
        nudges: list[NudgeMember] = []
        for group in list(self._groups.values()):
            if now_ms >= group.due_ms:
                nudges += _nudges(group, self._handle(group, Tick(now_ms)))
                self._forget_empty(group)
        return nudges

    def _handle(self, group: GroupBalance, event: Event) -> list[Instruction]:
        before = group.reported
        steps = group.handle(event)
        self._reported += group.reported - before
        return steps

    def _forget_empty(self, group: GroupBalance) -> None:
        if not group.members:
            self._groups.pop(group.name, None)

    # -- who may join ----------------------------------------------------------------------------------------

    def _is_known(self, body: ClientBeatBody) -> bool:
        """Whether it is a member already, as it is: most beats are such."""
        group = self._groups.get(body.group)
        member = group.members.get(body.client_id) if group is not None else None
        if group is None or member is None or group.binding is not body.binding:
            return False
        return member.mode is body.mode and member.topics == frozenset(body.topics)

    def _make_way(self, body: ClientBeatBody) -> None:
        """Who held queues before this coordinator led comes before those who hold none and were only quicker."""
        held = {queue.topic for queue in body.queues}.intersection(body.topics)
        for group in list(self._groups.values()):
            if group.name == body.group:
                is_rival = group.mode is not body.mode or group.binding is not body.binding
                is_rival = is_rival or body.mode is SubscriptionMode.PUBLISH_SUBSCRIBE
            else:
                is_rival = body.mode is group.mode is SubscriptionMode.POINT_TO_POINT
                is_rival = is_rival and not group.topics.isdisjoint(held)
            if is_rival and not any(one.held for one in group.members.values()):
                del self._groups[group.name]
                self._reported -= group.reported

    def _check(self, body: ClientBeatBody) -> None:
        _check_name("group", body.group, NAME_MAX)
        if "@" in body.group:
            raise _refused(f"group is {body.group[:80]!r}", "use letters, digits, _ - % |")
        _check_name("clientId", body.client_id, CLIENT_ID_MAX)
        for topic in body.topics:
            _check_name("topic", topic, NAME_MAX)
        if len(body.topics) > self._limits.topics_max:
            raise _refused(
                f"{len(body.topics)} topics", f"at most {self._limits.topics_max} are divided at once"
            )

    def _check_reported(self, body: ClientBeatBody) -> None:
        """Refuse queues that no broker can have, and more of them than there is room for."""
        for queue in body.queues:
            _check_name("brokerName", queue.broker_name, NAME_MAX)
        for one in body.refused:
            _check_name("brokerName", one.queue.broker_name, NAME_MAX)
            if len(one.holder) > CLIENT_ID_MAX:
                raise _refused(f"holder is {one.holder[:80]!r}", f"use up to {CLIENT_ID_MAX} characters")
        group = self._groups.get(body.group)
        member = group.members.get(body.client_id) if group is not None else None
        before = 0 if member is None else member.reported
        wanted, most = len(body.queues) + len(body.refused), self._limits.reported_max
        if group is None or wanted > before:
            own = wanted - before + (0 if group is None else group.reported)
            known = wanted - before + self._reported
            if own and not has_share(own - 1, known - 1, most):
                raise _refused(
                    f"{known} queues are reported, {own} of them by group {body.group[:80]}",
                    f"at most {most} are kept here, and one group leaves a part of them to others",
                )

    def _check_place(self, body: ClientBeatBody) -> None:
        """Whether it may be where it wants to, beside those that are there."""
        group = self._groups.get(body.group)
        if group is None and len(self._groups) >= self._limits.groups_max:
            raise _refused("too many groups", f"at most {self._limits.groups_max} are balanced here")
        others = [m for m in group.members.values() if m.client_id != body.client_id] if group else []
        if len(others) >= self._limits.members_max:
            raise _refused(f"group {body.group} is full", f"it has {self._limits.members_max} members")
        if group is not None and others:
            _check_alike(body, group, others)
        if body.mode is SubscriptionMode.POINT_TO_POINT:
            for topic in sorted(body.topics):
                holder = self.point_to_point_group(topic)
                if holder and holder != body.group:
                    raise _refused(
                        f"topic {topic} is read point to point by group {holder}",
                        f"one group reads a topic in this mode: join {holder}, name no group, or use mode clustering",
                    )

    # -- subscriptions ---------------------------------------------------------------------------------------

    def point_to_point_group(self, topic: str) -> str:
        """The group that reads a topic point to point; empty if none does."""
        for group in self._groups.values():
            if group.mode is SubscriptionMode.POINT_TO_POINT and topic in group.topics:
                return group.name
        return ""

    def subscriptions(self, topic: str) -> SubscriptionsBody:
        """The subscriptions of a topic, one for each mode in which it is read, and which group a consumer that wants
        to read it point to point and names none is to be in: the one that does, or a new one."""
        _check_name("topic", topic, NAME_MAX)
        readers: dict[SubscriptionMode, list[ReadingGroup]] = {}
        for name in self.names:
            group = self._groups[name]
            if topic in group.topics:
                members = [one for one in group.members.values() if topic in one.topics]
                held = sum(1 for one in members for queue in one.held if queue.topic == topic)
                readers.setdefault(group.mode, []).append(
                    ReadingGroup(name, group.binding, len(members), held)
                )
        found = tuple(
            DescribedSubscription(subscription_name(topic, mode), mode, mode.option, tuple(readers[mode]))
            for mode in SubscriptionMode
            if mode in readers
        )
        group_name = self.point_to_point_group(topic)
        return SubscriptionsBody(
            topic, found, group_name or subscription_name(topic, SubscriptionMode.POINT_TO_POINT)
        )


def _check_alike(body: ClientBeatBody, group: GroupBalance, others: list[Member]) -> None:
    """Refuse whoever does not go together with the members that there are."""
    if group.mode is not body.mode:
        raise _refused(
            f"group {body.group} is in mode {group.mode}, this consumer in {body.mode}",
            "all consumers of a group must use the same mode",
        )
    if body.mode is SubscriptionMode.PUBLISH_SUBSCRIBE:
        raise _refused(
            f"group {body.group} has its consumer, {others[0].client_id}",
            "in publish_subscribe a group is one consumer: use a group for each, or mode clustering",
        )
    if group.binding is not body.binding:
        raise _refused(
            f"group {body.group} binds its queues in the way {group.binding}, this consumer wants {body.binding}",
            "all consumers of a group must use the same binding",
        )


def _nudges(group: GroupBalance, steps: list[Instruction]) -> list[NudgeMember]:
    return [NudgeMember(group.name, step.member) for step in steps if isinstance(step, Nudge)]


def _check_name(what: str, name: str, most: int) -> None:
    if not 0 < len(name) <= most or not name.isprintable():
        raise _refused(f"{what} is {name[:80]!r}", f"use 1 to {most} printable characters")


def _refused(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, message, hint)
