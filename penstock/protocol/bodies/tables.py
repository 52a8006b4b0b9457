"""Topics, groups, offsets and versions on the wire: the metadata of a broker, whole (21, 43, 201) or one by one
(18, 200, 225, 322, 351, 352). The values themselves are those of penstock.metadata. Plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue, dump_compact
from penstock.metadata.group_table import SubscriptionGroup, SubscriptionGroupTable
from penstock.metadata.offset_table import ConsumerOffsetTable
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies.body import (
    BODY_BYTES_MAX,
    REQUEST_LOOSE_MAX,
    Body,
    BodyFields,
    parse_document,
)

TOPICS_MAX = 100_000
# Whole tables: that many topics or groups, each with an object inside.
TABLE_OBJECTS_MAX = 250_000
# One topic or group, and a list of them, as clients may send it.
ONE_BYTES_MAX, ONE_OBJECTS_MAX = 256 * 1024, 1_000
LIST_BYTES_MAX, LIST_OBJECTS_MAX = 4 * 1024 * 1024, 20_000


@dataclass(frozen=True, slots=True)
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker (21, and inside 103). Mappings of static topics are passed on as they came."""

    OBJECTS_MAX: ClassVar[int] = TABLE_OBJECTS_MAX

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)
    mapping_infos: JsonObject = field(default_factory=dict)
    mapping_details: JsonObject = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        table = fields.inner("topicConfigTable")
        if table is not None and len(table.names()) > TOPICS_MAX:
            fields.fail("topicConfigTable", f"must not have more than {TOPICS_MAX} topics")
        topics = fields.table("topicConfigTable")
        return cls(
            data_version=DataVersion.read(fields.inner("dataVersion")),
            topics={name: TopicConfig.read(name, item) for name, item in topics},
            mapping_data_version=DataVersion.read(fields.inner("mappingDataVersion")),
            mapping_infos=fields.raw("topicQueueMappingInfoMap"),
            mapping_details=fields.raw("topicQueueMappingDetailMap"),
        )

    def to_json(self) -> JsonObject:
        return {
            "dataVersion": self.data_version.to_json(),
            "mappingDataVersion": self.mapping_data_version.to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in self.topics.items()},
            "topicQueueMappingDetailMap": self.mapping_details,
            "topicQueueMappingInfoMap": self.mapping_infos,
        }


def decode_data_version(data: bytes | bytearray) -> DataVersion:
    """Body of 322."""
    return DataVersion.read(_one(data, "DataVersion"))


def encode_data_version(version: DataVersion) -> bytes:
    return dump_compact(version.to_json())


def decode_topic_config(data: bytes | bytearray) -> TopicConfig:
    """Body of 351's answer."""
    return _topic(_one(data, "TopicConfig"))


def encode_topic_config(topic: TopicConfig) -> bytes:
    return dump_compact(topic.to_json())


def decode_topic_config_list(data: bytes | bytearray) -> list[TopicConfig]:
    """Body of 18."""
    return [_topic(item) for item in _list(data, "topicConfigList")]


def encode_topic_config_list(topics: Iterable[TopicConfig]) -> bytes:
    return dump_compact({"topicConfigList": [topic.to_json() for topic in topics]})


def decode_group_config(data: bytes | bytearray) -> SubscriptionGroup:
    """Body of 200 and of 352's answer."""
    return _group(_one(data, "SubscriptionGroupConfig"))


def encode_group_config(group: SubscriptionGroup) -> bytes:
    return dump_compact(group.to_json())


def decode_group_config_list(data: bytes | bytearray) -> list[SubscriptionGroup]:
    """Body of 225."""
    return [_group(item) for item in _list(data, "groupConfigList")]


def encode_group_config_list(groups: Iterable[SubscriptionGroup]) -> bytes:
    return dump_compact({"groupConfigList": [group.to_json() for group in groups]})


def decode_group_table(data: bytes | bytearray) -> SubscriptionGroupTable:
    """Body of 201's answer."""
    return SubscriptionGroupTable.from_json(_table(data, "group table"), "group table")


def encode_group_table(table: SubscriptionGroupTable) -> bytes:
    return dump_compact(table.to_json())


def decode_consumer_offsets(data: bytes | bytearray) -> ConsumerOffsetTable:
    """Body of 43's answer."""
    return ConsumerOffsetTable.from_json(_table(data, "offset table"), "offset table")


def encode_consumer_offsets(table: ConsumerOffsetTable) -> bytes:
    content = table.to_json()
    return dump_compact({"dataVersion": content["dataVersion"], "offsetTable": content["offsetTable"]})


def _topic(fields: BodyFields) -> TopicConfig:
    return TopicConfig.read(fields.text("topicName", ""), fields)


def _group(fields: BodyFields) -> SubscriptionGroup:
    return SubscriptionGroup.read(fields.text("groupName", ""), fields)


def _one(data: bytes | bytearray, source: str) -> BodyFields:
    return BodyFields.parse(data, source, ONE_BYTES_MAX, ONE_OBJECTS_MAX, REQUEST_LOOSE_MAX)


def _list(data: bytes | bytearray, key: str) -> list[BodyFields]:
    fields = BodyFields.parse(data, key, LIST_BYTES_MAX, LIST_OBJECTS_MAX, REQUEST_LOOSE_MAX)
    return fields.object_list(key)


def _table(data: bytes | bytearray, source: str) -> JsonValue:
    return parse_document(data, source, BODY_BYTES_MAX, TABLE_OBJECTS_MAX)
