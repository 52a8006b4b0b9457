"""The base of typed bodies: JSON in, JSON out.

    HeartbeatData.decode(command.body)          CodecError for whatever is no heartbeat, and nothing else
    TopicRouteData(...).encode()                compact JSON

Rules of reading: size, depth and number of objects are limited; members nobody knows are ignored, absent and
null ones have defaults; numbers and truth values may be written as strings, as some clients do, but an object
where a number belongs is refused. Rules of writing: no spaces, keys sorted, nulls left out. Plain values, any
thread.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Self

from penstock.errors import CodecError
from penstock.metadata.fastjson import JsonObject, JsonValue, dump_compact, loads
from penstock.metadata.json_fields import INT32_MAX, INT64_MAX, JsonFields
from penstock.protocol.bodies.references import has_references, resolve_references

__all__ = ["INT32_MAX", "INT32_MIN", "INT64_MAX", "INT64_MIN", "Body", "BodyFields", "without_nulls"]

INT32_MIN = -(2**31)
INT64_MIN = -(2**63)
# No body can be larger than the frame that brought it.
BODY_BYTES_MAX = 16 * 1024 * 1024
# Objects and lists in one body. Three bytes can be one, and reading one takes microseconds in the only loop.
BODY_OBJECTS_MAX = 100_000
# Of what peers send to servers, as much as is read when it is not strict JSON. Clients that are known write strict.
REQUEST_LOOSE_MAX = 8 * 1024
# Values of one body, for each of its objects. Two bytes can be one.
VALUES_PER_OBJECT = 10
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


class BodyFields(JsonFields):
    """Fields of an object that a peer sent: as forgiving about how a value is written as fastjson is."""

    HINT: ClassVar[str] = "send what RocketMQ sends for it"
    WHOLE: ClassVar[str] = "the body"

    @classmethod
    def parse(
        cls,
        data: bytes | bytearray | str,
        source: str,
        bytes_max: int = BODY_BYTES_MAX,
        objects_max: int = BODY_OBJECTS_MAX,
        loose_max: int = BODY_BYTES_MAX,
    ) -> Self:
        """The fields of a whole JSON document."""
        return cls(parse_document(data, source, bytes_max, objects_max, loose_max), source)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._take(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        text = str(value).lower() if isinstance(value, str | int) else ""
        if text not in ("true", "false", "1", "0"):
            self.fail(key, "must be true or false")
        return text in ("true", "1")

    def text(self, key: str, default: str) -> str:
        value = self._take(key)
        if isinstance(value, str):
            return value
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, "must be a string")
        return str(value)

    def text_or_none(self, key: str) -> str | None:
        return self.text(key, "") if self.has(key) else None

    def text_list(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        items = self._list(key)
        for index, item in enumerate(items):
            if not isinstance(item, str):
                self.fail(f"{key}[{index}]", "must be a string")
        return tuple(item for item in items if isinstance(item, str))

    def number(self, key: str, default: float = 0.0) -> float:
        """A number that may have a fraction."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, "must be a number")
        try:
            return float(value)
        except OverflowError:
            self.fail(key, "is out of range")

    def i32(self, key: str, default: int = 0) -> int:
        return self.integer(key, default, INT32_MIN, INT32_MAX)

    def i64(self, key: str, default: int = 0) -> int:
        return self.integer(key, default, INT64_MIN, INT64_MAX)

    def names(self) -> list[str]:
        """The keys that are there."""
        return list(self._value)

    def all(self) -> JsonObject:
        """The whole object, to be passed on as it is."""
        return self._value

    def is_list(self, key: str) -> bool:
        return isinstance(self._value.get(key), list)

    def raw(self, key: str) -> JsonObject:
        """An object that is passed on as it is; empty if absent."""
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(key, "must be an object")
        return value

    def _in_range(self, key: str, value: JsonValue, low: int, high: int) -> int:
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if digits.isascii() and digits.isdigit() and len(digits) <= 20:
                value = int(value)
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        return super()._in_range(key, value, low, high)


def parse_document(
    data: bytes | bytearray | str,
    source: str,
    bytes_max: int = BODY_BYTES_MAX,
    objects_max: int = BODY_OBJECTS_MAX,
    loose_max: int = BODY_BYTES_MAX,
) -> JsonValue:
    """Any JSON that a peer sent, with fastjson's references resolved. Beyond `loose_max` bytes it must be strict."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    # What is inside strings counts too: bounds, not numbers, and found without parsing.
    if len(raw) <= bytes_max and raw.count(b"{") + raw.count(b"[") > objects_max:
        raise CodecError(f"{source}: more objects and lists than the limit of {objects_max}", BodyFields.HINT)
    if len(raw) <= bytes_max and raw.count(b",") > objects_max * VALUES_PER_OBJECT:
        raise CodecError(
            f"{source}: more values than the limit of {objects_max * VALUES_PER_OBJECT}", BodyFields.HINT
        )
    value = loads(raw, source=source, max_bytes=bytes_max, max_loose=loose_max)
    if _HALF_CHARACTER.search(raw) is not None:
        _refuse_half_characters(value, source)
    return resolve_references(value, source) if has_references(raw) else value


def _refuse_half_characters(value: JsonValue, source: str) -> None:
    """A string with half of a surrogate pair is no text: it could be neither logged nor stored."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CodecError(f"{source}: a string holds half a character", BodyFields.HINT) from error


class Body:
    """What all bodies can do. Subclasses are frozen dataclasses with `read` and `to_json`."""

    __slots__ = ()

    # Whether keys that are integers or objects stand without quotes, as the reference writes them.
    BARE_KEYS: ClassVar[bool] = False
    BYTES_MAX: ClassVar[int] = BODY_BYTES_MAX
    OBJECTS_MAX: ClassVar[int] = BODY_OBJECTS_MAX
    # A body that is larger must be strict JSON. Small for what servers read in their loop.
    LOOSE_BYTES_MAX: ClassVar[int] = BODY_BYTES_MAX

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        raise NotImplementedError

    def to_json(self) -> JsonObject:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Self:
        return cls.read(
            BodyFields.parse(data, cls.__name__, cls.BYTES_MAX, cls.OBJECTS_MAX, cls.LOOSE_BYTES_MAX)
        )

    @classmethod
    def from_json(cls, value: JsonValue) -> Self:
        return cls.read(BodyFields(value, cls.__name__))

    def encode(self, *, bare_keys: bool | None = None) -> bytes:
        return dump_compact(self.to_json(), bare_keys=self.BARE_KEYS if bare_keys is None else bare_keys)


def without_nulls(**members: Any) -> JsonObject:
    """The members that have a value; the wire leaves the others out."""
    return {name: value for name, value in members.items() if value is not None}
