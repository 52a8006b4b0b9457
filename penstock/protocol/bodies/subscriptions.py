"""The answer of SUBSCRIPTIONS (9029): who reads a topic, in which mode. Plain values.

A topic has one subscription for each mode in which it is read, and so has each of its partitions. Who is in a group
and which partitions each consumer has, EXPLAIN says, to those who may know of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.metadata.fastjson import JsonObject
from penstock.protocol.bodies.balance import Binding, SubscriptionMode
from penstock.protocol.bodies.body import INT32_MAX, Body, BodyFields


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """A group that reads the topic: how its queues are bound, its consumers, and how many queues they hold."""

    group: str
    binding: Binding = Binding.EVEN
    consumers: int = 0
    queues: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("group", ""),
            Binding(fields.choice("binding", Binding.EVEN, tuple(Binding))),
            fields.integer("consumers", 0, 0, INT32_MAX),
            fields.integer("queues", 0, 0, INT32_MAX),
        )

    def to_json(self) -> JsonObject:
        return {
            "group": self.group,
            "binding": self.binding.value,
            "consumers": self.consumers,
            "queues": self.queues,
        }


@dataclass(frozen=True, slots=True)
class DescribedSubscription:
    """One subscription: its name is the topic's and the mode's; `option` is the mode as a number of eight bits."""

    name: str
    mode: SubscriptionMode
    option: int = 0
    groups: tuple[ReadingGroup, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("name", ""),
            SubscriptionMode(fields.choice("mode", SubscriptionMode.CLUSTERING, tuple(SubscriptionMode))),
            fields.integer("option", 0, 0, 255),
            tuple(ReadingGroup.read(item) for item in fields.object_list("groups")),
        )

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "mode": self.mode.value,
            "option": self.option,
            "groups": [group.to_json() for group in self.groups],
        }


@dataclass(frozen=True, slots=True)
class SubscriptionsBody(Body):
    """The subscriptions of a topic. `join`: the group of a consumer that wants to read the topic point to point and
    names none."""

    topic: str
    subscriptions: tuple[DescribedSubscription, ...] = ()
    join: str = ""

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("topic", ""),
            tuple(DescribedSubscription.read(item) for item in fields.object_list("subscriptions")),
            fields.text("join", ""),
        )

    def to_json(self) -> JsonObject:
        return {
            "topic": self.topic,
            "subscriptions": [one.to_json() for one in self.subscriptions],
            "join": self.join,
        }
