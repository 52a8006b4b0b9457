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
from penstock.metadata.table_json import Members, Rows, table_json


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
        return table_json(self.members())

    def members(self) -> Members:
        return {**self.extra, "messageRequestModeMap": Rows(lambda: list(self.modes), self._row, _row_json)}

    def _row(self, topic: str) -> tuple[str, tuple[str, dict[str, RequestModeConfig]]] | None:
        groups = self.modes.get(topic)
        return None if groups is None else (topic, (topic, dict(groups)))

    def change_of(self, topic: str) -> JsonObject:
        """What the journal has to know now that modes of a topic were changed, or are gone with it."""
        row = self._row(topic)
        return {"topic": topic} if row is None else {"topic": topic, "groups": _row_json(row[1])}

    def apply(self, change: JsonFields) -> None:
        """Take over what `change_of` says."""
        topic = change.text("topic", "")
        groups = {group: RequestModeConfig.read(entry) for group, entry in change.table("groups")}
        if groups:
            self.modes[topic] = groups
        else:
            self.modes.pop(topic, None)

    @property
    def count(self) -> int:
        return sum(map(len, self.modes.values()))


def _row_json(row: tuple[str, dict[str, RequestModeConfig]]) -> JsonObject:
    topic, groups = row
    return {group: config.to_json(topic, group) for group, config in groups.items()}
