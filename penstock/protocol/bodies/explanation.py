"""The answer of EXPLAIN (9023): who owns which queue of a group, who is to own it, and why. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.metadata.fastjson import JsonObject
from penstock.protocol.bodies.body import Body, BodyFields
from penstock.protocol.bodies.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class ExplainedMember:
    """One member: what it subscribes to, how much it holds, how long ago it was heard, what it is doing."""

    client_id: str
    mode: str
    topics: tuple[str, ...]
    queues: int
    joined_ago_ms: int
    beat_ago_ms: int
    state: str

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("clientId", ""),
            fields.text("mode", ""),
            fields.text_list("topics"),
            fields.i32("queues"),
            fields.i64("joinedAgoMs"),
            fields.i64("beatAgoMs"),
            fields.text("state", ""),
        )

    def to_json(self) -> JsonObject:
        return {
            "clientId": self.client_id,
            "mode": self.mode,
            "topics": list(self.topics),
            "queues": self.queues,
            "joinedAgoMs": self.joined_ago_ms,
            "beatAgoMs": self.beat_ago_ms,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class ExplainedQueue:
    """One queue: who holds it by its own word (empty: nobody), who is to hold it, and why."""

    queue: MessageQueue
    owner: str
    wanted: str
    why: str

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            MessageQueue.read(fields),
            fields.text("owner", ""),
            fields.text("wanted", ""),
            fields.text("why", ""),
        )

    def to_json(self) -> JsonObject:
        return {**self.queue.to_json(), "owner": self.owner, "wanted": self.wanted, "why": self.why}


@dataclass(frozen=True, slots=True)
class ExplanationBody(Body):
    """One group as its coordinator sees it."""

    group: str
    term: int = 0
    round: int = 0
    state: str = ""
    members: tuple[ExplainedMember, ...] = ()
    queues: tuple[ExplainedQueue, ...] = ()
    mode: str = ""
    binding: str = ""
    # The names of the subscriptions that the group is in, one for each topic.
    subscriptions: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("group", ""),
            fields.i64("term"),
            fields.i64("round"),
            fields.text("state", ""),
            tuple(ExplainedMember.read(item) for item in fields.object_list("members")),
            tuple(ExplainedQueue.read(item) for item in fields.object_list("queues")),
            fields.text("mode", ""),
            fields.text("binding", ""),
            fields.text_list("subscriptions"),
        )

    def to_json(self) -> JsonObject:
        return {
            "group": self.group,
            "term": self.term,
            "round": self.round,
            "state": self.state,
            "members": [member.to_json() for member in self.members],
            "queues": [queue.to_json() for queue in self.queues],
            "mode": self.mode,
            "binding": self.binding,
            "subscriptions": list(self.subscriptions),
        }
