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
from penstock.metadata.json_fields import INT32_MAX, INT64_MAX, JsonFields
from penstock.metadata.table_json import Members, Rows, table_json

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
        return table_json(self.members())

    def members(self) -> Members:
        # Gathered while the offsets are taken: a table may have too many for another look at all of them.
        topics: dict[str, list[str]] = {}

        def row(key: TopicGroup) -> tuple[str, dict[int, int]] | None:
            queues = self.offsets.get(key)
            if queues is None:
                return None
            topics.setdefault(key.group, []).append(key.topic)
            return str(key), dict(queues)

        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "offsetTable": Rows(lambda: list(self.offsets), row, _by_text),
            "groupTopicMap": Rows(lambda: list(topics), lambda group: (group, sorted(topics[group])), list),
        }

    def apply(self, change: JsonFields) -> None:
        """Take over what `offset_change` or `offsets_change` says."""
        topic, separator, group = change.text("key", "").partition("@")
        if not separator:
            change.fail("key", "must be topic@group")
        key, queues = TopicGroup(topic, group), change.inner("queues")
        if queues is not None:
            self.offsets[key] = queues.all_integers(0, _LOWEST_OFFSET, INT64_MAX)
        elif change.has("queue"):
            queue_id = change.integer("queue", 0, 0, INT32_MAX)
            offset = change.integer("offset", 0, _LOWEST_OFFSET, INT64_MAX)
            self.offsets.setdefault(key, {})[queue_id] = offset
        else:
            self.offsets.pop(key, None)


def offset_change(key: TopicGroup, queue_id: int, offset: int) -> JsonObject:
    """What the journal has to know of one commit."""
    return {"key": str(key), "queue": queue_id, "offset": offset}


def offsets_change(key: TopicGroup, queues: dict[int, int] | None) -> JsonObject:
    """What the journal has to know where all offsets of a group in a topic were replaced; None: they are gone."""
    return {"key": str(key)} if queues is None else {"key": str(key), "queues": _by_text(queues)}


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
        return table_json(self.members())

    def members(self) -> Members:
        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "offsetTable": _by_text(self.offsets),
        }

    def change_of(self) -> JsonObject:
        """What the journal has to know: there are few levels, so it is all of them."""
        return {"dataVersion": self.data_version.to_json(), "offsetTable": _by_text(self.offsets)}

    def apply(self, change: JsonFields) -> None:
        """Take over what `change_of` says."""
        version = DataVersion.read(change.inner("dataVersion"))
        self.offsets = change.integers("offsetTable", 1, _LOWEST_OFFSET, INT64_MAX)
        self.data_version = version


def _by_text(numbers: dict[int, int]) -> JsonObject:
    return {str(key): numbers[key] for key in sorted(numbers)}
