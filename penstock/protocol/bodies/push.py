"""Bodies of pushing: what operators see (9045), and what became of each resumed task (9044). Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.metadata.fastjson import JsonObject
from penstock.protocol.bodies.body import Body, BodyFields


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSubscriptionInfo(Body):
    """One delivery task. `since_ms` is how long it has been in its state."""

    group: str
    topic: str
    queue_id: int
    state: str
    since_ms: int
    # Up to where it was sent, taken by the client, and done with.
    sent_offset: int
    taken_offset: int
    done_offset: int
    window_messages: int
    window_bytes: int
    unanswered: int
    unanswered_bytes: int
    resends: int

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            group=fields.text("group", ""),
            topic=fields.text("topic", ""),
            queue_id=fields.i32("queueId"),
            state=fields.text("state", ""),
            since_ms=fields.i64("sinceMs"),
            sent_offset=fields.i64("sentOffset"),
            taken_offset=fields.i64("takenOffset"),
            done_offset=fields.i64("doneOffset"),
            window_messages=fields.i32("windowMessages"),
            window_bytes=fields.i64("windowBytes"),
            unanswered=fields.i32("unanswered"),
            unanswered_bytes=fields.i64("unansweredBytes"),
            resends=fields.i32("resends"),
        )

    def to_json(self) -> JsonObject:
        return {
            "group": self.group,
            "topic": self.topic,
            "queueId": self.queue_id,
            "state": self.state,
            "sinceMs": self.since_ms,
            "sentOffset": self.sent_offset,
            "takenOffset": self.taken_offset,
            "doneOffset": self.done_offset,
            "windowMessages": self.window_messages,
            "windowBytes": self.window_bytes,
            "unanswered": self.unanswered,
            "unansweredBytes": self.unanswered_bytes,
            "resends": self.resends,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PushClientInfo(Body):
    """One client with its subscriptions. `since_ms` is how long it has been in its state."""

    name: str
    address: str
    state: str
    since_ms: int
    missed_pings: int
    subscriptions: tuple[PushSubscriptionInfo, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            name=fields.text("name", ""),
            address=fields.text("address", ""),
            state=fields.text("state", ""),
            since_ms=fields.i64("sinceMs"),
            missed_pings=fields.i32("missedPings"),
            subscriptions=tuple(map(PushSubscriptionInfo.read, fields.object_list("subscriptions"))),
        )

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "address": self.address,
            "state": self.state,
            "sinceMs": self.since_ms,
            "missedPings": self.missed_pings,
            "subscriptions": [one.to_json() for one in self.subscriptions],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PushListBody(Body):
    """Who is pushed to; `left_off` says how many subscriptions there was no room for."""

    clients: tuple[PushClientInfo, ...] = ()
    timeout_queue: int = 0
    dead_letter_queue: int = 0
    left_off: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            clients=tuple(map(PushClientInfo.read, fields.object_list("clients"))),
            timeout_queue=fields.i32("timeoutQueue"),
            dead_letter_queue=fields.i32("deadLetterQueue"),
            left_off=fields.i32("leftOff"),
        )

    def to_json(self) -> JsonObject:
        return {
            "clients": [one.to_json() for one in self.clients],
            "timeoutQueue": self.timeout_queue,
            "deadLetterQueue": self.dead_letter_queue,
            "leftOff": self.left_off,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResumed(Body):
    """One task: what it was, whether it goes on, from which offset, and else why not."""

    client: str
    group: str
    topic: str
    queue_id: int
    was: str
    goes_on: bool
    offset: int
    reason: str = ""

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            client=fields.text("client", ""),
            group=fields.text("group", ""),
            topic=fields.text("topic", ""),
            queue_id=fields.i32("queueId"),
            was=fields.text("was", ""),
            goes_on=fields.boolean("goesOn", False),
            offset=fields.i64("offset"),
            reason=fields.text("reason", ""),
        )

    def to_json(self) -> JsonObject:
        return {
            "client": self.client,
            "group": self.group,
            "topic": self.topic,
            "queueId": self.queue_id,
            "was": self.was,
            "goesOn": self.goes_on,
            "offset": self.offset,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResumedBody(Body):
    """What became of each task that was asked for."""

    tasks: tuple[PushResumed, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(tasks=tuple(map(PushResumed.read, fields.object_list("tasks"))))

    def to_json(self) -> JsonObject:
        return {"tasks": [one.to_json() for one in self.tasks]}
