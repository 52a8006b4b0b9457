"""Topics and their queues: `config/topics.json`.

    {"dataVersion":{...},
     "topicConfigTable":{"T1":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,
       "topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":0,"writeQueueNums":8}}}

Rules: absent fields have RocketMQ's defaults, unknown ones are kept and written back. A config is a value: a
change makes a new one. Plain data, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from typing import ClassVar, Self

from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT32_MAX, JsonFields
from penstock.metadata.table_json import Members, Rows, table_json


class Permission(IntFlag):
    """What clients may do with a topic; `INHERIT` lets new topics take it as their model."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


_ALL_PERMISSIONS = 15
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. `sys_flag` has bit 0 for a unit topic and bit 1 for one with unit subscribers."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: Permission = Permission.READ | Permission.WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, fields: JsonFields) -> Self:
        if fields.text("topicName", name) != name:
            fields.fail("topicName", f"must be the name it is listed under, {name!r}")
        return cls(
            name=name,
            read_queue_nums=fields.integer("readQueueNums", 16, 0, INT32_MAX),
            write_queue_nums=fields.integer("writeQueueNums", 16, 0, INT32_MAX),
            perm=Permission(fields.integer("perm", 6, 0, _ALL_PERMISSIONS)),
            filter_type=fields.choice("topicFilterType", "SINGLE_TAG", _FILTER_TYPES),
            sys_flag=fields.integer("topicSysFlag", 0, 0, INT32_MAX),
            order=fields.boolean("order", False),
            attributes=fields.texts("attributes"),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": int(self.perm),
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(slots=True)
class TopicTable:
    """All topics of a broker, by name."""

    FILE_NAME: ClassVar[str] = "topics.json"

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, source: str = FILE_NAME) -> Self:
        fields = JsonFields(value, source)
        return cls(
            data_version=DataVersion.read(fields.inner("dataVersion")),
            topics={name: TopicConfig.read(name, topic) for name, topic in fields.table("topicConfigTable")},
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return table_json(self.members())

    def members(self) -> Members:
        return {
            **self.extra,
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": Rows(lambda: list(self.topics), self._row, TopicConfig.to_json),
        }

    def _row(self, name: str) -> tuple[str, TopicConfig] | None:
        config = self.topics.get(name)
        return None if config is None else (name, config)

    def change_of(self, name: str) -> JsonObject:
        """What the journal has to know now that a topic was made, changed or deleted; no name: only the version."""
        config = self.topics.get(name)
        change: JsonObject = {"dataVersion": self.data_version.to_json(), "name": name}
        return change if config is None else {**change, "config": config.to_json()}

    def apply(self, change: JsonFields) -> None:
        """Take over what `change_of` says."""
        version, name = DataVersion.read(change.inner("dataVersion")), change.text("name", "")
        fields = change.inner("config")
        config = None if fields is None else TopicConfig.read(name, fields)
        self.data_version = version
        if config is None:
            self.topics.pop(name, None)
        else:
            self.topics[name] = config
