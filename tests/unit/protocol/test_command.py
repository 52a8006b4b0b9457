"""Frames: vectors from the protocol's description, round trips, and everything that is no frame."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FieldError, FrameError
from penstock.protocol.command import Command, FrameLimits, decode_frame, encode_frame, frame_size

BINARY_VECTOR = bytes.fromhex(
    "0000005b 01000057 0136 00 0000 00000007 00000000 00000000 00000042"
    "0001 61 00000001 67   0001 62 00000001 54   0001 65 00000001 31   0001 6a 00000001 30"
    "0001 6b 00000005 66616c7365   0001 6d 00000005 66616c7365   0001 6e 00000003 622d61"
)
FIELDS = {"a": "g", "b": "T", "e": "1", "j": "0", "k": "false", "m": "false", "n": "b-a"}


def decode(frame: bytes, limits: FrameLimits | None = None) -> Command:
    return decode_frame(frame, 0, len(frame), limits or FrameLimits())


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def test_the_binary_vector_both_ways() -> None:
    command = Command(310, dict(FIELDS), opaque=7, language="JAVA", version=0, binary=True)
    assert encode_frame(command) == BINARY_VECTOR
    assert decode(BINARY_VECTOR) == command


def test_the_json_header_is_compact_and_sorted_as_java_writes_it() -> None:
    answer = Command(10, opaque=3, version=0).answer()
    answer.version = 0
    text = b'{"code":0,"flag":1,"language":"JAVA","opaque":3,"serializeTypeCurrentRPC":"JSON","version":0}'
    assert encode_frame(answer) == json_frame(text)


def test_an_answer_has_the_form_and_the_number_of_its_request() -> None:
    for binary in (False, True):
        answer = Command(34, opaque=-5, binary=binary).answer(17, "no such topic")
        assert (answer.binary, answer.opaque, answer.is_response, answer.code) == (binary, -5, True, 17)


_texts = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() or "\x01" in text)


@given(
    code=st.integers(0, 32767),
    fields=st.dictionaries(_texts, _texts, max_size=10),
    body=st.binary(max_size=200),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | _texts,
    binary=st.booleans(),
)
def test_round_trip(
    code: int, fields: dict[str, str], body: bytes, opaque: int, flag: int, remark: str | None, binary: bool
) -> None:
    command = Command(code, fields, body, opaque, flag, remark, "GO", 317, binary)
    assert decode(encode_frame(command)) == command


def test_ext_values_of_any_scalar_are_read_as_text() -> None:
    header = (
        b'{"code":11,"extFields":{"a":1,"b":true,"c":"x","d":null,"e":-5,"f":1.5},"opaque":1,"unknown":[{}]}'
    )
    assert decode(json_frame(header)).fields == {"a": "1", "b": "true", "c": "x", "e": "-5", "f": "1.5"}


def test_a_language_that_nobody_knows_is_no_error() -> None:
    assert decode(json_frame(b'{"code":1,"language":"KLINGON"}')).language == "KLINGON"
    assert decode(json_frame(b'{"code":1,"language":7}')).language == "OTHER"


@pytest.mark.abuse("A1")
@pytest.mark.parametrize(
    "prefix",
    [(0, 0), (3, 0), (-1, 0), (2**31 - 1, 0), (16 * 1024 * 1024 + 1, 4), (10, 7), (10, 0xFFFFFF), (4, 1)],
)
def test_lengths_that_no_frame_has(prefix: tuple[int, int]) -> None:
    with pytest.raises(FrameError):
        frame_size(struct.pack(">ii", *prefix), 0)


@pytest.mark.abuse("A4")
def test_unknown_header_form() -> None:
    with pytest.raises(FrameError, match="form"):
        frame_size(struct.pack(">iI", 4, 0x02000000), 0)


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"code":"310"}',
        b'{"code":1.5}',
        b'{"code":NaN}',
        b'{"code":1e400}',
        b'{"code":99999999999}',
        b'{"opaque":1}',
        b'{"code":1,"flag":[]}',
        b'{"code":1,"opaque":4294967296}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{"b":1}}}',
        b'{"code":1,"extFields":{"a":[1]}}',
        b'{"code":1,"remark":7}',
        b'{"code":1,"extFields":{"a":"\xff\xfe"}}',
        b'{"code":1,"extFields":{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}}",
        b'{"code":1,"x":' + b"[" * 30_000,
        b"\x00" * 100,
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(json_frame(header))


@pytest.mark.abuse("A3")
def test_too_many_fields_refuse_the_request_and_name_it() -> None:
    header = json.dumps({"code": 1, "opaque": 77, "extFields": {str(i): "" for i in range(300)}}).encode()
    with pytest.raises(FrameError, match="300") as caught:
        decode(json_frame(header))
    assert caught.value.opaque == 77
    oneway = json.dumps({"code": 1, "flag": 2, "extFields": {str(i): "" for i in range(300)}}).encode()
    with pytest.raises(FrameError) as caught:
        decode(json_frame(oneway))
    assert caught.value.opaque is None


@pytest.mark.abuse("A4")
@given(data=st.data())
def test_a_damaged_binary_header_is_an_error_and_never_more(data: st.DataObject) -> None:
    frame = bytearray(BINARY_VECTOR)
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(frame))
    except FrameError:
        pass


def test_binary_field_limits() -> None:
    many = encode_frame(Command(1, {str(i): "x" for i in range(300)}, binary=True))
    with pytest.raises(FrameError, match="256"):
        decode(many)


@pytest.mark.parametrize("text", ["", "x", "1.0", "0x10", "\u0661", "9" * 21, "1 ", "--1"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(FieldError, match="queueId"):
        Command(11, {"queueId": text}).integer("queueId")


def test_fields_are_looked_up_with_their_ranges() -> None:
    command = Command(11, {"queueId": "-3", "order": "TRUE", "max": ""})
    assert command.integer("queueId") == -3
    assert command.integer_or("max", 7) == 7
    assert command.boolean_or("order") is True
    assert command.boolean_or("absent", True) is True
    with pytest.raises(FieldError, match="outside 0"):
        command.integer("queueId", 0, 5)
    with pytest.raises(FieldError, match="'topic'"):
        command.text("topic")
