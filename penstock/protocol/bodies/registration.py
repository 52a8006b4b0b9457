"""The body of REGISTER_BROKER (103): all topics of a broker, plain or compressed.

    plain        {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{},...}}

    compressed   one zlib stream over, every length and count as i32:
                 length, data version as JSON
                 count of topics, each: length, line
                 length, filter servers as a JSON list
                 count of mappings, each: length, JSON            (only from brokers of version 5.0.0 on)

    line         name readQueues writeQueues perm filterType attributes-as-JSON       (4.9 has no attributes)

Rules: inflating is bounded, every length and count is checked before it is used, and a body that says less than
its lengths promise is refused. Brokers older than 3.0.11 send the inner wrapper alone; no body at all means no
topics. Plain values.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.errors import CodecError
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, JsonValue, dump_compact
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies.body import Body, BodyFields, parse_document
from penstock.protocol.bodies.tables import (
    TABLE_OBJECTS_MAX,
    TOPICS_MAX,
    TopicConfigSerializeWrapper,
    decode_data_version,
)
from penstock.protocol.codes import CURRENT_VERSION, V3_0_11, V5_0_0

# A broker with a hundred thousand topics needs about half of it.
INFLATED_BYTES_MAX = 16 * 1024 * 1024
# Mappings of static topics have keys that Java writes without quotes, and then the whole takes long to read.
LOOSE_BYTES_MAX = 1024 * 1024
_I32 = struct.Struct(">i")
_SOURCE = "RegisterBrokerBody"


def body_crc32(data: bytes | bytearray) -> int:
    """The checksum in the header of a registration, over the bytes as sent."""
    return zlib.crc32(data) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(Body):
    """What a broker registers."""

    OBJECTS_MAX: ClassVar[int] = TABLE_OBJECTS_MAX
    LOOSE_BYTES_MAX: ClassVar[int] = LOOSE_BYTES_MAX

    wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_servers: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        wrapper = fields.inner("topicConfigSerializeWrapper")
        return cls(
            TopicConfigSerializeWrapper() if wrapper is None else TopicConfigSerializeWrapper.read(wrapper),
            fields.text_list("filterServerList"),
        )

    def to_json(self) -> JsonObject:
        return {
            "filterServerList": list(self.filter_servers),
            "topicConfigSerializeWrapper": self.wrapper.to_json(),
        }

    @classmethod
    def decode_for(
        cls, data: bytes | bytearray, *, compressed: bool = False, version: int = CURRENT_VERSION
    ) -> Self:
        """From a request of that protocol version, whichever form it says it has."""
        if not data:
            return cls()
        if compressed:
            return cls.decode_compressed(data, version)
        fields = BodyFields.parse(data, _SOURCE, cls.BYTES_MAX, cls.OBJECTS_MAX, cls.LOOSE_BYTES_MAX)
        if version < V3_0_11:
            return cls(TopicConfigSerializeWrapper.read(fields))
        return cls.read(fields)

    @classmethod
    def decode_compressed(
        cls,
        data: bytes | bytearray,
        version: int = CURRENT_VERSION,
        inflated_bytes_max: int = INFLATED_BYTES_MAX,
    ) -> Self:
        cursor = _Cursor(inflate(data, inflated_bytes_max))
        data_version = decode_data_version(cursor.block())
        topics = [_read_line(cursor.block()) for _ in range(cursor.count())]
        filter_servers = _read_texts(cursor.block())
        mappings: JsonObject = {}
        if version >= V5_0_0 and not cursor.is_at_end:
            for _ in range(cursor.count()):
                info = BodyFields.parse(cursor.block(), _SOURCE, objects_max=1_000)
                mappings[info.text("topic", "")] = info.all()
        wrapper = TopicConfigSerializeWrapper(
            data_version, {topic.name: topic for topic in topics}, mapping_infos=mappings
        )
        return cls(wrapper, filter_servers)

    def encode_compressed(self, version: int = CURRENT_VERSION) -> bytes:
        parts = [_block(dump_compact(self.wrapper.data_version.to_json()))]
        parts.append(_I32.pack(len(self.wrapper.topics)))
        parts += [_block(_line(topic)) for topic in self.wrapper.topics.values()]
        parts.append(_block(dump_compact(list(self.filter_servers))))
        if version >= V5_0_0:
            parts.append(_I32.pack(len(self.wrapper.mapping_infos)))
            parts += [_block(dump_compact(info)) for info in self.wrapper.mapping_infos.values()]
        return zlib.compress(b"".join(parts), 9)

    @property
    def data_version(self) -> DataVersion:
        return self.wrapper.data_version


def inflate(data: bytes | bytearray, bytes_max: int) -> bytes:
    """One whole zlib stream, never more than `bytes_max` of it."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise CodecError(f"not a zlib stream: {error}", "send it again, or uncompressed") from error
    if len(inflated) > bytes_max:
        raise CodecError(f"the data inflates to more than {bytes_max} bytes", "send less at a time")
    if not stream.eof or stream.unused_data:
        raise CodecError("the zlib stream is cut, or other data follows it", "send it again")
    return inflated


class _Cursor:
    """A place in bytes that other lengths say how to read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def count(self) -> int:
        """A number of blocks; each takes at least its length."""
        count = self._number()
        if not 0 <= count <= min(TOPICS_MAX, (len(self._data) - self._at) // 4):
            raise CodecError(
                f"{_SOURCE}: a count of {count} where {len(self._data) - self._at} bytes are left"
            )
        return count

    def block(self) -> bytes:
        size = self._number()
        begin = self._at
        if not 0 <= size <= len(self._data) - begin:
            raise CodecError(f"{_SOURCE}: a length of {size} where {len(self._data) - begin} bytes are left")
        self._at = begin + size
        return self._data[begin : self._at]

    def _number(self) -> int:
        if len(self._data) - self._at < 4:
            raise CodecError(f"{_SOURCE}: the data ends where a length should be")
        self._at += 4
        return int(_I32.unpack_from(self._data, self._at - 4)[0])


def _block(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _line(topic: TopicConfig) -> bytes:
    counts = f"{topic.name} {topic.read_queue_nums} {topic.write_queue_nums} {int(topic.perm)}"
    line = f"{counts} {topic.filter_type} {dump_compact(topic.attributes).decode()}"
    if line.count(" ") != 5:
        raise CodecError(f"topic {topic.name!r} has a space in its name or attributes", "register it plain")
    return line.encode()


def _read_line(data: bytes) -> TopicConfig:
    try:
        items = data.decode().split(" ")
    except UnicodeDecodeError as error:
        raise CodecError(f"{_SOURCE}: a topic's line is not UTF-8") from error
    if len(items) not in (5, 6) or not items[0]:
        raise CodecError(f"{_SOURCE}: a topic's line has {len(items)} items", "it takes five or six")
    name, read, write, perm, filter_type = items[:5]
    members: dict[str, JsonValue] = {
        "readQueueNums": read,
        "writeQueueNums": write,
        "perm": perm,
        "topicFilterType": filter_type,
    }
    if len(items) == 6 and items[5]:
        members["attributes"] = parse_document(items[5], _SOURCE, objects_max=100)
    return TopicConfig.read(name, BodyFields(members, _SOURCE, name[:80]))


def _read_texts(data: bytes) -> tuple[str, ...]:
    if not data:
        return ()
    return BodyFields({"filterServerList": parse_document(data, _SOURCE)}, _SOURCE).text_list(
        "filterServerList"
    )
