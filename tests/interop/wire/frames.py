"""A remoting codec of the tests' own, written from the format's description and not from Penstock's code.

Frame:   i32 length of what follows, i32 (header form << 24 | header length), header, body.
Header:  form 0 is JSON; form 1 is i16 code, i8 language, i16 version, i32 opaque, i32 flag, i32 remark length, remark,
         i32 length of the fields, then i16 key length, key, i32 value length, value for each.

`Wire` is a blocking connection: it keeps what the peer asks of its own accord apart from the answers.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FIXED = struct.Struct(">hbhii")
_LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
)
CLIENT_VERSION = 479


@dataclass(slots=True)
class Frame:
    """One command, either way."""

    code: int
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "JAVA"
    version: int = CLIENT_VERSION
    is_binary: bool = False
    header: dict[str, Any] = field(default_factory=dict)
    """The JSON header as it came, for looking at members that have no attribute here."""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & 1)


def encode(frame: Frame) -> bytes:
    header = _binary_header(frame) if frame.is_binary else _json_header(frame)
    length = 4 + len(header) + len(frame.body)
    return struct.pack(">iI", length, frame.is_binary << 24 | len(header)) + header + frame.body


def _json_header(frame: Frame) -> bytes:
    header: dict[str, Any] = {
        "code": frame.code,
        "flag": frame.flag,
        "language": frame.language,
        "opaque": frame.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": frame.version,
    }
    if frame.fields:
        header["extFields"] = frame.fields
    if frame.remark is not None:
        header["remark"] = frame.remark
    return json.dumps(header, separators=(",", ":")).encode()


def _binary_header(frame: Frame) -> bytes:
    remark = (frame.remark or "").encode()
    block = b"".join(
        struct.pack(">h", len(key.encode())) + key.encode() + struct.pack(">i", len(value)) + value
        for key, value in ((key, str(value).encode()) for key, value in frame.fields.items())
    )
    language = _LANGUAGES.index(frame.language)
    fixed = _FIXED.pack(frame.code, language, frame.version, frame.opaque, frame.flag)
    return fixed + struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(block)) + block


def decode(data: bytes) -> Frame:
    """What follows the length word."""
    (word,) = struct.unpack_from(">I", data)
    end = 4 + (word & 0xFFFFFF)
    assert end <= len(data), f"a header of {end - 4} bytes in a frame of {len(data)}"
    header, body = data[4:end], data[end:]
    frame = _from_binary(header) if word >> 24 else _from_json(header)
    frame.body = body
    return frame


def _from_json(header: bytes) -> Frame:
    parsed = json.loads(header)
    return Frame(
        code=parsed["code"],
        fields=parsed.get("extFields") or {},
        opaque=parsed["opaque"],
        flag=parsed["flag"],
        remark=parsed.get("remark"),
        language=parsed["language"],
        version=parsed["version"],
        header=parsed,
    )


def _from_binary(header: bytes) -> Frame:
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    at = _FIXED.size
    remark, at = _text(header, at, ">i")
    (length,) = struct.unpack_from(">i", header, at)
    at += 4
    assert at + length == len(header), "the fields do not fill the header"
    fields = {}
    while at < len(header):
        key, at = _text(header, at, ">h")
        fields[key], at = _text(header, at, ">i")
    return Frame(
        code, fields, b"", opaque, flag, remark or None, _LANGUAGES[language], version, is_binary=True
    )


def _text(data: bytes, at: int, width: str) -> tuple[str, int]:
    (length,) = struct.unpack_from(width, data, at)
    at += struct.calcsize(width)
    return data[at : at + length].decode(), at + length


class Wire:
    """One connection. Requests are answered in the order in which they are waited for, whatever the peer's order."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._opaque = itertools.count(1)
        self._received: dict[int, Frame] = {}
        self.asked: list[Frame] = []
        """Requests of the peer, in the order of arrival."""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def own_address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def send(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", **more: Any) -> int:
        """Writes a request; its opaque."""
        frame = Frame(code, dict(fields or {}), body, **more)
        frame.opaque = next(self._opaque)
        self._socket.sendall(encode(frame))
        return frame.opaque

    def call(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 10,
        **more: Any,
    ) -> Frame:
        return self.answer(self.send(code, fields, body, **more), timeout_s)

    def answer(self, opaque: int, timeout_s: float = 10) -> Frame:
        """The answer to a request, or TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while opaque not in self._received:
            self._receive(deadline - time.monotonic())
        return self._received.pop(opaque)

    def listen(self, seconds: float) -> None:
        """Takes what comes for that long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._receive(left)
            except TimeoutError:
                return

    def await_request(self, code: int, timeout_s: float = 10) -> Frame:
        """The next request of the peer with this code."""
        deadline = time.monotonic() + timeout_s
        while True:
            for frame in self.asked:
                if frame.code == code:
                    self.asked.remove(frame)
                    return frame
            self._receive(deadline - time.monotonic())

    def reply(self, request: Frame, code: int = 0, body: bytes = b"") -> None:
        """Answers a request of the peer."""
        answer = Frame(code, {}, body, opaque=request.opaque, flag=1, is_binary=request.is_binary)
        self._socket.sendall(encode(answer))

    def _receive(self, timeout_s: float) -> None:
        frame = decode(self._exactly(struct.unpack(">i", self._exactly(4, timeout_s))[0], 10))
        if frame.is_response:
            self._received[frame.opaque] = frame
        else:
            self.asked.append(frame)

    def _exactly(self, count: int, timeout_s: float) -> bytes:
        if timeout_s <= 0:
            raise TimeoutError
        self._socket.settimeout(timeout_s)
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the peer closed the connection")
            data += piece
        return bytes(data)


def has_route(nameserver: str, topic: str) -> bool:
    try:
        with Wire(nameserver) as wire:
            return wire.call(105, {"topic": topic}).code == 0
    except OSError:
        return False
