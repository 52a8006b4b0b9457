"""The frames of docs/formats/frame.md against the codec and the compiled send path, byte for byte.

Each block is compared twice: with bytes put together here from the rules alone, and with what the product writes
and reads. The blocks are read out of the page by `test_golden_bytes`.
"""

import json
import struct
from pathlib import Path

import pytest

from penstock._hot.frames import TopicQueues
from penstock._hot.sends import SendPath
from penstock.message import HostAddress, Message
from penstock.protocol.bodies import decode_batch, encode_batch_record
from penstock.protocol.codes import LANGUAGES
from penstock.protocol.command import Command, decode_frame, encode_frame
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.store import MessageStore
from tests.compat.test_golden_bytes import BROKER, CLIENT, GOLDEN, OPTIONS

SUFFIX = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
ANSWER_FIELDS = b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true",'
UNIQUE = "7F0000010BAD18B4AAC2000000000001"

REQUEST = Command(105, {"topic": "orders"}, opaque=1)
ANSWER = Command(105, opaque=1).answer(17, "no route: orders")
BINARY_REQUEST = Command(
    310,
    {"a": "g", "b": "T", "e": "1", "j": "0", "k": "false", "m": "false", "n": "b-a"},
    opaque=7,
    language="JAVA",
    version=0,
    binary=True,
)
BINARY_ANSWER = BINARY_REQUEST.answer(17, "no topic T", {"MSG_REGION": "DefaultRegion"})
SEND = Command(
    310,
    {
        **dict(
            zip("abcdefgh", ("mills", "orders", "TBW102", "4", "1", "0", "1700000000000", "7"), strict=True)
        ),
        "i": f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01turbine\x02WAIT\x01true\x02",
        **dict(zip("jkmn", ("0", "false", "false", "broker-a"), strict=True)),
    },
    b"water",
    opaque=2,
)
FRAMES = {
    "request": (REQUEST, GOLDEN["frame-request-prefix"] + GOLDEN["frame-request-header"]),
    "answer": (ANSWER, GOLDEN["frame-answer-prefix"] + GOLDEN["frame-answer-header"]),
    "binary request": (BINARY_REQUEST, GOLDEN["frame-binary-request"]),
    "binary answer": (BINARY_ANSWER, GOLDEN["frame-binary-answer"]),
    "send": (SEND, GOLDEN["frame-send-prefix"] + GOLDEN["frame-send-header"] + b"water"),
}
each_frame = pytest.mark.parametrize(("command", "golden"), FRAMES.values(), ids=FRAMES)


def by_the_rules(command: Command) -> bytes:
    """The frame said a second time: `struct` for the binary form, `json` of sorted members for the other."""
    if command.binary:
        remark = (command.remark or "").encode()
        ext = b"".join(
            struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
            for key, value in command.fields.items()
        )
        numbers = (
            command.code,
            LANGUAGES.index(command.language),
            command.version,
            command.opaque,
            command.flag,
        )
        header = struct.pack(">hBhii", *numbers) + struct.pack(">i", len(remark)) + remark
        header += struct.pack(">i", len(ext)) + ext
    else:
        members = {
            "code": command.code,
            "extFields": command.fields or None,
            "flag": command.flag,
            "language": command.language,
            "opaque": command.opaque,
            "remark": command.remark,
            "serializeTypeCurrentRPC": "JSON",
            "version": command.version,
        }
        known = {name: value for name, value in sorted(members.items()) if value is not None}
        header = json.dumps(known, separators=(",", ":")).encode()
    word = len(header) | (1 << 24 if command.binary else 0)
    return struct.pack(">ii", 4 + len(header) + len(command.body), word) + header + command.body


@each_frame
def test_frame_on_the_page_follows_the_rules(command: Command, golden: bytes) -> None:
    assert by_the_rules(command) == golden


@each_frame
def test_codec_writes_the_frame(command: Command, golden: bytes) -> None:
    assert encode_frame(command) == golden


@each_frame
def test_codec_reads_the_frame(command: Command, golden: bytes) -> None:
    assert decode_frame(golden, 0, len(golden)) == command


def test_the_header_of_the_send_means_what_the_page_says() -> None:
    header = SendMessageRequestHeader.decode_v2(SEND.fields)
    assert (header.topic, header.queue_id, header.flag, header.batch) == ("orders", 1, 7, False)
    assert header.encode() == SEND.fields


def test_the_compiled_path_takes_the_send_and_gives_the_answer(tmp_path: Path) -> None:
    frame = GOLDEN["frame-send-prefix"] + GOLDEN["frame-send-header"] + b"water"
    with MessageStore.open(tmp_path / "store", OPTIONS, background=False) as store:
        path = SendPath(SUFFIX, ANSWER_FIELDS, b"", 1 << 24, 1 << 16)
        path.put_topic(
            TopicQueues(b"orders", [store.request(Message("orders", b""), i).queue for i in (0, 1)])
        )
        store.append(Message.of("orders", b"water", tag="turbine", keys="k1", flag=7), 1, born_host=CLIENT)
        assert path.scan(frame, 0) == len(frame)
        store.append_run(lambda builder: path.build(builder, CLIENT.encode()))
        answer = bytes(path.answers(BROKER.encode().hex().upper().encode()))
        (stored,) = store.read("orders", 1, 1)
    assert answer[8:] == GOLDEN["frame-send-answer-header"]
    assert struct.unpack_from(">ii", answer) == (4 + len(answer[8:]), len(answer[8:]))
    assert (stored.body, stored.flag, stored.born_host) == (b"water", 7, HostAddress("127.0.0.1", 40000))
    assert dict(stored.properties) == {
        "UNIQ_KEY": UNIQUE,
        "TAGS": "turbine",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_batch_of_the_page() -> None:
    properties = b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01tagA\x02"
    by_the_rules = (
        struct.pack(">iiiii", 52, 0, 0, 0, 2) + b"hi" + struct.pack(">h", len(properties)) + properties
    )
    assert GOLDEN["batch-body"] == by_the_rules
    (record,) = decode_batch(GOLDEN["batch-body"])
    assert (record.body, record.properties, record.flag) == (b"hi", properties, 0)
    assert encode_batch_record(b"hi", properties, 0) == GOLDEN["batch-body"]
