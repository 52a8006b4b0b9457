"""Commands and their frames: what travels in both directions of a connection.

    frame    length i32 = 4 + header + body | word i32: form (top byte), header length (low 24 bits) | header | body

    header, form 0 (JSON)   {"code":310,"extFields":{...},"flag":0,"language":"JAVA","opaque":7,...}
    header, form 1 (binary) code i16 | language i8 | version i16 | opaque i32 | flag i32
                            | remark length i32, remark | ext length i32, then per field:
                              key length i16, key, value length i32, value

Rules: an answer has the form of its request. Ext values go out as strings and come in as any JSON scalar.
Every length is checked before it is used, and every limit before memory is asked for. Sans-I/O: bytes in,
commands out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import FieldError, FrameError
from penstock.protocol.codes import CURRENT_VERSION, LANGUAGE_NUMBERS, LANGUAGES

PREFIX_SIZE = 8
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_PREFIX = struct.Struct(">ii")
_BINARY_HEAD = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a peer may send; over it the connection is closed before memory is asked for."""

    # A whole frame (com.rocketmq.remoting.frameMaxLength).
    frame_bytes_max: int = 16 * 1024 * 1024
    # The header inside it.
    header_bytes_max: int = 256 * 1024
    # Ext fields of one header.
    fields_max: int = 256


DEFAULT_LIMITS = FrameLimits()


class _JsonHeader(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """The members that mean something; unknown ones are skipped without being built."""

    code: int
    flag: int = 0
    opaque: int = 0
    version: int = 0
    language: Any = "OTHER"
    remark: str | None = None
    ext_fields: dict[str, Any] | None = None


_decode_json = msgspec.json.Decoder(_JsonHeader).decode
_encode_json = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Command:
    """One request or response. `fields` are the ext fields; `binary` is the header's form."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = CURRENT_VERSION
    binary: bool = False
    # Of a request: ext fields that its answer gets besides its own, set by a server's guard.
    answer_fields: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def size(self) -> int:
        """Bytes of its fields and its body."""
        return len(self.body) + sum(len(name) + len(value) for name, value in self.fields.items())

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | bytearray = b"",
    ) -> Command:
        """The response to this request. Servers call themselves JAVA, because clients expect a Java broker."""
        return Command(
            int(code),
            fields or {},
            body,
            self.opaque,
            RESPONSE_FLAG,
            remark,
            "JAVA",
            CURRENT_VERSION,
            self.binary,
        )

    # -- header fields ---------------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """A field that must be there."""
        value = self.fields.get(name)
        if value is None:
            raise FieldError(f"the request has no field {name!r}", "it is mandatory")
        return value

    def text_or(self, name: str, default: str = "") -> str:
        return self.fields.get(name, default)

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        """A number that must be there, within its range."""
        return parse_integer(name, self.text(name), low, high)

    def integer_or(self, name: str, default: int, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self.fields.get(name)
        return default if value is None or not value else parse_integer(name, value, low, high)

    def boolean_or(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name)
        return default if value is None else value.lower() == "true"


def parse_integer(name: str, text: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """A decimal number from the wire. Length is looked at first: Python would parse megabytes of digits."""
    digits = text if text.isdigit() else text[1:] if text[:1] in ("-", "+") else ""
    if len(text) > 20 or not digits.isdigit() or not digits.isascii():
        raise FieldError(f"field {name!r} is no number: {text[:40]!r}")
    value = int(text)
    if not low <= value <= high:
        raise FieldError(f"field {name!r} is {value}, outside {low}..{high}")
    return value


# -- encoding ------------------------------------------------------------------------------------------------


def encode_frame(command: Command) -> bytes:
    """The whole frame."""
    return encode_head(command, len(command.body)) + command.body


def encode_head(command: Command, body_size: int) -> bytes:
    """Prefix and header of a frame whose body the caller writes itself."""
    header = _binary_header(command) if command.binary else _json_header(command)
    word = len(header) | (1 << 24 if command.binary else 0)
    return _PREFIX.pack(4 + len(header) + body_size, word) + header


def _json_header(command: Command) -> bytes:
    members: dict[str, object] = {"code": command.code}
    if command.fields:
        members["extFields"] = command.fields
    members["flag"] = command.flag
    members["language"] = command.language
    members["opaque"] = command.opaque
    if command.remark is not None:
        members["remark"] = command.remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    try:
        return _encode_json(members)
    except (UnicodeEncodeError, TypeError) as error:
        raise FrameError(f"a header field is not text: {error}") from error


def _binary_header(command: Command) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    ext = bytearray()
    for name, value in command.fields.items():
        key, data = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(key) > 32767:
            raise FrameError(f"a field name of {len(key)} bytes fits no binary header")
        ext += _I16.pack(len(key)) + key + _I32.pack(len(data)) + data
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000  # codes above 32767 do not survive this form
    head = _BINARY_HEAD.pack(
        code,
        LANGUAGE_NUMBERS.get(command.language, 7),
        command.version,
        command.opaque,
        command.flag,
    )
    return b"".join((head, _I32.pack(len(remark)), remark, _I32.pack(len(ext)), ext))


# -- decoding ------------------------------------------------------------------------------------------------


def frame_size(data: bytes | bytearray | memoryview, start: int, limits: FrameLimits = DEFAULT_LIMITS) -> int:
    """Size of the frame that begins at `start`, prefix included; the caller has made sure of eight bytes.

    Raises FrameError for what no frame can be, before anything is kept or allocated for it.
    """
    length, word = _PREFIX.unpack_from(data, start)
    header_size = word & 0xFFFFFF
    if length < 4 or length > limits.frame_bytes_max:
        raise FrameError(f"a frame of {length} bytes; the limit is {limits.frame_bytes_max}")
    if header_size > length - 4 or header_size > limits.header_bytes_max:
        raise FrameError(
            f"a header of {header_size} bytes in a frame of {length}; the limit is {limits.header_bytes_max}"
        )
    if word >> 24 not in (0, 1):
        raise FrameError(f"unknown header form {word >> 24 & 0xFF}")
    return int(length) + 4


def decode_frame(
    data: bytes | bytearray | memoryview, start: int, end: int, limits: FrameLimits = DEFAULT_LIMITS
) -> Command:
    """The command in the whole frame data[start:end], prefix included."""
    if end - start < PREFIX_SIZE or frame_size(data, start, limits) != end - start:
        raise FrameError("the frame's length is not what it says")
    word = _I32.unpack_from(data, start + 4)[0]
    body_at = start + PREFIX_SIZE + (word & 0xFFFFFF)
    header = bytes(data[start + PREFIX_SIZE : body_at])
    body = bytes(data[body_at:end])
    if word >> 24 == 1:
        return _from_binary(header, body, limits)
    return _from_json(header, body, limits)


def _from_json(header: bytes, body: bytes, limits: FrameLimits) -> Command:
    try:
        found = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the header is no JSON header: {error}") from error
    numbers = (
        ("opaque", found.opaque),
        ("flag", found.flag),
        ("code", found.code),
        ("version", found.version),
    )
    for name, value in numbers:
        if not -INT32_MAX - 1 <= value <= INT32_MAX:
            raise FrameError(f"header member {name} is outside 32 bits")
    try:
        fields = _ext_texts(found.ext_fields or {}, limits)
    except FrameError as error:
        # The header itself was read: only this request is refused.
        error.opaque = None if found.flag & (RESPONSE_FLAG | ONEWAY_FLAG) else found.opaque
        raise
    language = found.language if isinstance(found.language, str) else "OTHER"
    return Command(
        found.code, fields, body, found.opaque, found.flag, found.remark, language, found.version, False
    )


def _ext_texts(members: Mapping[str, Any], limits: FrameLimits) -> dict[str, str]:
    """Ext values as text: some clients send numbers, booleans or nulls."""
    if len(members) > limits.fields_max:
        raise FrameError(f"{len(members)} header fields; the limit is {limits.fields_max}")
    fields: dict[str, str] = {}
    for name, value in members.items():
        if type(value) is str:
            fields[name] = value
        elif value is True or value is False:
            fields[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            fields[name] = str(value)
        elif value is not None:
            raise FrameError(f"header field {name[:40]!r} is neither text nor number")
    return fields


def _from_binary(header: bytes, body: bytes, limits: FrameLimits) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header, 0)
        remark, at = _sized(header, _BINARY_HEAD.size, _I32)
        ext, at = _sized(header, at, _I32)
        if at != len(header):
            raise FrameError(f"{len(header) - at} bytes after the header's end")
        fields: dict[str, str] = {}
        at = count = 0
        while at < len(ext):
            count += 1
            if count > limits.fields_max:
                raise FrameError(f"more than {limits.fields_max} header fields")
            name, at = _sized(ext, at, _I16)
            value, at = _sized(ext, at, _I32)
            if name and value:
                fields[name.decode()] = value.decode()
        text = remark.decode() if remark else None
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the header is no binary header: {error}") from error
    name_of = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return Command(code, fields, body, opaque, flag, text, name_of, version, True)


def _sized(data: bytes, at: int, size_format: struct.Struct) -> tuple[bytes, int]:
    """Bytes behind their length, and where the next thing begins."""
    (size,) = size_format.unpack_from(data, at)
    at += size_format.size
    if size < 0 or size > len(data) - at:
        raise FrameError(f"a length of {size} where {len(data) - at} bytes are left")
    return data[at : at + size], at + size
