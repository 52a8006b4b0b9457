"""How far consumers and delay levels have come: `config/consumerOffset.json`, `config/delayOffset.json`.

    {"dataVersion":{...},"groupTopicMap":{"G1":["T1"]},"offsetTable":{"T1@G1":{"0":100,"1":98}}}
    {"dataVersion":{...},"offsetTable":{"1":10,"3":7}}

Rules: an offset is that of the next message to take. `groupTopicMap` is derived: written for RocketMQ, not
read. A Java broker writes the inner keys without quotes; both forms are read, the quoted one is written.
Plain data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT64_MAX, JsonFields

# RocketMQ stores -1 for "nothing consumed yet" in places.
_LOWEST_OFFSET = -1


class TopicGroup(NamedTuple):
    """Key of consumer progress, `topic@group` in the file."""

    topic: str
    group: str

    def __str__(self) -> str:
        return f"{self.topic}@{self.group}"


@dataclass(slots=True)
class ConsumerOffsetTable:
    """Next offset by topic and group, then by queue."""

    FILE_NAME: ClassVar[str] = "consumerOffset.json"

    data_version: DataVersion = field(default_factory=DataVersion)
    offsets: dict[TopicGroup, dict[int, int]] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        fields.ignore("groupTopicMap")
        offsets: dict[TopicGroup, dict[int, int]] = {}
        for key, queues in fields.table("offsetTable"):
            topic, separator, group = key.partition("@")
            if not separator:
                queues.fail("", "must be named topic@group")
            offsets[TopicGroup(topic, group)] = queues.all_integers(0, _LOWEST_OFFSET, INT64_MAX)
        return cls(DataVersion.read(fields.inner("dataVersion")), offsets, fields.rest())

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "groupTopicMap": self._topics_by_group(),
            "offsetTable": {str(key): _by_text(queues) for key, queues in self.offsets.items()},
        }

    def _topics_by_group(self) -> JsonObject:
        topics: dict[str, list[JsonValue]] = {}
        for key in sorted(self.offsets):
            topics.setdefault(key.group, []).append(key.topic)
        return {**topics}


@dataclass(slots=True)
class DelayOffsetTable:
    """Next offset in the schedule topic, by delay level (from 1)."""

    FILE_NAME: ClassVar[str] = "delayOffset.json"

    data_version: DataVersion = field(default_factory=DataVersion)
    offsets: dict[int, int] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        return cls(
            data_version=DataVersion.read(fields.inner("dataVersion")),
            offsets=fields.integers("offsetTable", 1, _LOWEST_OFFSET, INT64_MAX),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "offsetTable": _by_text(self.offsets),
        }


def _by_text(numbers: dict[int, int]) -> JsonObject:
    return {str(key): numbers[key] for key in sorted(numbers)}
