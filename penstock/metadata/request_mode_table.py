"""How groups get the messages of a topic: `config/messageRequestMode.json`.

    {"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}

A pair that is not here has the broker's default. Plain data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Self

from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT32_MAX, JsonFields


class RequestMode(StrEnum):
    """RocketMQ's words."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class RequestModeConfig:
    """What was set for one topic and group. With `share_queues` above 0 each client pops its own share and those of
    so many clients after it; else everybody pops all queues."""

    mode: RequestMode = RequestMode.PULL
    share_queues: int = 0

    @classmethod
    def read(cls, fields: JsonFields) -> Self:
        return cls(
            RequestMode(fields.choice("mode", RequestMode.PULL, tuple(RequestMode))),
            fields.integer("popShareQueueNum", 0, -INT32_MAX, INT32_MAX),
        )

    def to_json(self, topic: str, group: str) -> JsonObject:
        return {
            "consumerGroup": group,
            "mode": str(self.mode),
            "popShareQueueNum": self.share_queues,
            "topic": topic,
        }


@dataclass(slots=True)
class RequestModeTable:
    """Modes by topic, then by group."""

    FILE_NAME: ClassVar[str] = "messageRequestMode.json"

    modes: dict[str, dict[str, RequestModeConfig]] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        inner = fields.inner("messageRequestModeMap")
        modes: dict[str, dict[str, RequestModeConfig]] = {}
        if inner is not None:
            for topic in list(inner.rest()):
                modes[topic] = {group: RequestModeConfig.read(entry) for group, entry in inner.table(topic)}
        return cls(modes, fields.rest())

    def to_json(self) -> JsonObject:
        table: JsonObject = {
            topic: {group: config.to_json(topic, group) for group, config in groups.items()}
            for topic, groups in self.modes.items()
        }
        return {**self.extra, "messageRequestModeMap": table}

    @property
    def count(self) -> int:
        return sum(map(len, self.modes.values()))
