"""Says who owns what in a group, who is to own it, and why: in sentences, from what the balance knows anyway.

Rule: an owner is who says so in its beats; who is to own a queue is what the last round decided. Where the two
differ, the reason is what the queue waits for. Pure functions; nothing is computed anew, so explaining changes
nothing.
"""

from __future__ import annotations

from penstock.coordinator.balance import GroupBalance, Member
from penstock.coordinator.division import Cause, Reason
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import AssignmentEvent, Binding, EventStatus, subscription_name
from penstock.protocol.bodies.explanation import ExplainedMember, ExplainedQueue, ExplanationBody


def explain(group: GroupBalance, term: int, now_ms: int) -> ExplanationBody:
    """Everything about one group."""
    owners: dict[MessageQueue, list[str]] = {}
    for client_id, member in group.members.items():
        for queue in member.held:
            owners.setdefault(queue, []).append(client_id)
    known = {queue for queues in group.queues.values() for queue in queues}
    return ExplanationBody(
        group=group.name,
        term=term,
        round=group.round,
        state=_group_state(group, now_ms),
        members=tuple(_member(group, group.members[name], now_ms) for name in sorted(group.members)),
        queues=tuple(_queue(group, queue, owners.get(queue, [])) for queue in sorted(known | owners.keys())),
        mode=group.mode.value,
        binding=group.binding.value,
        subscriptions=tuple(subscription_name(topic, group.mode) for topic in sorted(group.topics)),
    )


def _group_state(group: GroupBalance, now_ms: int) -> str:
    events = group.events
    if events:
        waits = ", ".join(sorted({member for member, _ in events}))
        text = f"{len(events)} events are not finished; waiting for {waits}"
        if group.unfinished_rounds:
            text += f", for {group.unfinished_rounds} rounds"
        return text
    if not group.round:
        return f"not divided yet; the first round is in {max(0, group.due_ms - now_ms)} ms"
    return f"settled; divided {now_ms - group.divided_ms} ms ago"


def _member(group: GroupBalance, member: Member, now_ms: int) -> ExplainedMember:
    return ExplainedMember(
        member.client_id,
        member.mode.value,
        tuple(sorted(member.topics)),
        len(member.held),
        now_ms - member.joined_ms,
        now_ms - member.beat_ms,
        _member_state(group, member, now_ms),
    )


def _member_state(group: GroupBalance, member: Member, now_ms: int) -> str:
    if member.dropped_ms is not None:
        return f"its connection dropped {now_ms - member.dropped_ms} ms ago"
    events = [event for name, event in group.events if name == member.client_id]
    if events:
        return "; then ".join(_event(event) for event in events)
    if not member.is_divided:
        return "waits for a round"
    is_idle = group.binding is Binding.RING and not member.held
    return "settled; no queue falls to it on the ring" if is_idle else "settled"


def _event(event: AssignmentEvent) -> str:
    verb = "take over" if event.type.is_connect else "give up"
    told = "was told to" if event.status is EventStatus.PROCESSING else "is to"
    return f"{told} {verb} {len(event.queues)} queues"


def _queue(group: GroupBalance, queue: MessageQueue, owners: list[str]) -> ExplainedQueue:
    round_number, reason = group.reasons.get(queue, (0, None))
    wanted = reason.owner if reason is not None else ""
    owner = wanted if wanted in owners else min(owners, default="")
    parts = [_why(reason, round_number, group.binding)]
    if len(owners) > 1:
        parts.append(f"reported by {' and '.join(sorted(owners))}; the broker's lease decides")
    parts += _waits(group, queue, owner, wanted)
    return ExplainedQueue(queue, owner, wanted, "; ".join(part for part in parts if part))


def _why(reason: Reason | None, round_number: int, binding: Binding) -> str:
    if reason is None:
        return "its broker set has not reported it, so nothing was decided"
    if reason.cause is Cause.UNWANTED:
        return "no member subscribes to its topic"
    members = f"{reason.members} member{'' if reason.members == 1 else 's'}"
    share = f"its share is {reason.share} of {reason.queues} among {members}"
    if binding is Binding.RING:
        share = f"it falls to it on the ring, with {reason.share} of {reason.queues} among {members}"
    if reason.cause is Cause.GIVEN:
        return f"was free and went to {reason.owner} in round {round_number}: {share}"
    if reason.cause is Cause.MOVED:
        return f"moved from {reason.before} to {reason.owner} in round {round_number}: {share}"
    return f"was {reason.owner}'s before round {round_number} and stays: {share}"


def _waits(group: GroupBalance, queue: MessageQueue, owner: str, wanted: str) -> list[str]:
    """What keeps the queue from being where it is to be."""
    found = []
    for name, event in group.events:
        if queue in event.queues:
            verb = "take it over" if event.type.is_connect else "give it up"
            told = "was told to" if event.status is EventStatus.PROCESSING else "will be told to"
            found.append(f"{name} {told} {verb}")
    if not owner and wanted:
        refused = group.members[wanted].refused.get(queue) if wanted in group.members else None
        if refused is not None:
            holder = refused.holder or "a holder from before its start"
            found.append(f"the broker leases it to {holder} for up to {refused.left_ms} ms")
        elif not found:
            found.append("it is given out in the next round")
    return found
