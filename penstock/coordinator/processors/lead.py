"""What a coordinator that does not lead answers to whoever wants something changed.

Rule: 2007, with the leader's address in the remark (for people and RocketMQ's brokers) and in the header (for ours),
if anybody knows it. Whether this coordinator leads is asked anew for every request.
"""

from __future__ import annotations

from penstock.coordinator.leadership import Leadership
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import NotLeaderResponseHeader


def not_leader(command: Command, leadership: Leadership) -> Command:
    """The refusal."""
    leader = leadership.leader
    if leader == leadership.identity:
        leader = None  # It is us, but not surely so; whoever asks tries the others, then us again.
    known = f"the leader is {leader}" if leader else "no leader is known at this moment; ask again"
    header = NotLeaderResponseHeader(leader_address=leader, term=leadership.term)
    return command.answer(
        ResponseCode.CONTROLLER_NOT_LEADER, f"this coordinator does not lead; {known}", header.encode()
    )
