"""The compiled way of plain sends: which frames it takes, what it stores, what it answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._hot.frames import TopicQueues
from penstock._hot.sends import SendPath
from penstock.message import HostAddress, Message, decode_properties, parse_message_id
from penstock.protocol.command import Command, decode_frame, encode_frame
from penstock.store import FlushMode, MessageStore
from tests.support.send_frames import (
    ADDED,
    BINARY,
    HEAD,
    ID,
    PROPERTIES,
    SUFFIX,
    V1_NAMES,
    fields,
    item,
    send,
    text,
)
from tests.support.store_checks import small_options


class Bench:
    def __init__(self, folder: Path) -> None:
        options = small_options(
            segment_size_bytes=1 << 20, max_message_size_bytes=1 << 16, flush_mode=FlushMode.ASYNC
        )
        self.store = MessageStore.open(folder, options, background=False)
        self.store.append(Message("T", b"first"))
        queues = [self.store.request(Message("T", b""), i).queue for i in range(4)]
        self.topic = TopicQueues(b"T", queues)
        self.path = SendPath(SUFFIX, HEAD, BINARY, 1 << 24, 1 << 16)
        self.path.put_topic(self.topic)
        self.host = HostAddress("10.0.0.9", 4321)

    def run(self, data: bytes, start: int = 0) -> tuple[int, list[Command]]:
        """Scan, build, write, answer: where it stopped, and the answers decoded."""
        stopped = self.path.scan(data, start)
        self.store.append_run(lambda builder: self.path.build(builder, self.host.encode()))
        if self.path.built < self.path.count:
            stopped = self.path.frame_at(self.path.built)
        prefix = HostAddress("127.0.0.1", 10911).encode().hex().upper().encode()
        raw, at, answers = bytes(self.path.answers(prefix)), 0, []
        while at < len(raw):
            size = 4 + int.from_bytes(raw[at : at + 4], "big")
            answers.append(decode_frame(raw, at, at + size))
            at += size
        return stopped, answers


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    yield made
    made.store.close()


@pytest.mark.parametrize("binary", [False, True])
def test_a_plain_send_is_stored_and_answered(bench: Bench, binary: bool) -> None:
    frame = send(b"payload", binary=binary, h="5", f="1")
    stopped, (answer,) = bench.run(frame)
    assert stopped == len(frame)
    (stored,) = bench.store.read("T", 1, 0)
    assert (stored.body, stored.flag, stored.born_host, stored.born_timestamp) == (
        b"payload",
        5,
        bench.host,
        1700000000000,
    )
    assert stored.sys_flag == 1
    assert dict(stored.properties) == {k: v for k, v in PROPERTIES.items() if k != "WAIT"} | ADDED
    assert (answer.code, answer.opaque, answer.binary, answer.is_response) == (0, 7, binary, True)
    assert (answer.language, answer.version, answer.remark) == ("JAVA", 479, None)
    message_id = answer.fields.pop("msgId")
    assert parse_message_id(message_id) == (HostAddress("127.0.0.1", 10911), stored.physical_offset)
    assert answer.fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "queueId": "1",
        "queueOffset": "0",
        "transactionId": ID,
    }
    assert bench.store.reader.query("T", "k2")[0].body == b"payload"


def test_the_long_names_of_the_first_form(bench: Bench) -> None:
    named = {V1_NAMES[letter]: value for letter, value in fields(e="2").items()}
    for binary in (False, True):
        frame = encode_frame(Command(10, named, b"x", 9, language="GO", binary=binary))
        stopped, answers = bench.run(frame)
        assert (stopped, answers[0].fields["queueId"]) == (len(frame), "2")
    # Long names with the short form's code are nobody's, and the other way round.
    assert bench.run(encode_frame(Command(310, named, b"x", 9)))[0] == 0
    assert bench.run(encode_frame(Command(10, fields(), b"x", 9)))[0] == 0


def test_many_frames_in_one_chunk_keep_their_order(bench: Bench) -> None:
    frames = b"".join(
        send(str(i).encode(), opaque=i, e=str(i % 4), binary=i % 3 == 0, flag=2 if i % 10 == 9 else 0)
        for i in range(200)
    )
    stopped, answers = bench.run(frames)
    assert stopped == len(frames)
    assert [answer.opaque for answer in answers] == [i for i in range(200) if i % 10 != 9]
    assert [m.body for m in bench.store.read("T", 1, 0, 100)] == [str(i).encode() for i in range(1, 200, 4)]
    assert bench.store.max_offset("T", 1) == 50
    ((name, messages, size),) = bench.path.take_counts()
    assert (name, messages) == (b"T", 200)
    assert size > 200 * 100
    assert bench.path.take_counts() == []


def test_a_batch_is_stored_message_by_message(bench: Bench) -> None:
    items = [
        item(f"b{i}".encode(), {"UNIQ_KEY": f"{ID}{i}", "WAIT": "true", "TAGS": "a"}, flag=i)
        for i in range(3)
    ]
    frame = encode_frame(
        Command(320, fields(m="true", i="WAIT\x01true\x02"), b"".join(items), 5, language="JAVA")
    )
    stopped, _ = bench.run(frame + send(opaque=6))
    assert stopped == len(frame) + len(send(opaque=6))
    stored = bench.store.read("T", 1, 0)
    assert [m.body for m in stored] == [b"b0", b"b1", b"b2", b"body"]
    assert [m.flag for m in stored] == [0, 1, 2, 0]
    assert dict(stored[1].properties) == {"UNIQ_KEY": f"{ID}1", "TAGS": "a"} | ADDED


def test_the_answer_to_a_batch_names_every_message(bench: Bench) -> None:
    items = [item(bytes(50), {"UNIQ_KEY": f"{ID}{i}"}) for i in range(40)]
    for binary in (False, True):
        frame = encode_frame(
            Command(320, fields(m="true", i=None), b"".join(items), 5, language="JAVA", binary=binary)
        )
        before = bench.store.max_offset("T", 1)
        _, (answer,) = bench.run(frame)
        ids = answer.fields["msgId"].split(",")
        positions = [m.physical_offset for m in bench.store.read("T", 1, before, 40)]
        assert [parse_message_id(one)[1] for one in ids] == positions
        assert answer.fields["queueOffset"] == str(before)
        assert "transactionId" not in answer.fields
    named = fields(m="true", i=text({"UNIQ_KEY": ID, "WAIT": "true"}))
    _, (answer,) = bench.run(encode_frame(Command(320, named, b"".join(items), 5, language="JAVA")))
    assert answer.fields["transactionId"] == ID
    assert bench.store.read("T", 1, before + 40, 1)[0].properties["UNIQ_KEY"] == f"{ID}0"
    odd = fields(m="true", i=text({"UNIQ_KEY": ID, "DELAY": "1"}))
    assert bench.run(encode_frame(Command(320, odd, b"".join(items), 5)))[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"b": "unknown"},
        {"b": None},
        {"a": None},
        {"c": None},
        {"d": "x"},
        {"e": "4"},
        {"e": "-1"},
        {"e": "1x"},
        {"e": ""},
        {"e": None},
        {"f": "4"},
        {"f": "128"},
        {"f": "2"},
        {"g": "-1"},
        {"g": "9" * 19},
        {"h": "9" * 12},
        {"h": None},
        {"j": "1"},
        {"k": "true"},
        {"m": "true"},
        {"i": None},
        {"i": ""},
        {"z": "1"},
        {"AccessKey": "me"},
        {"penstockDurability": "flushed"},
        *(
            {"i": text(PROPERTIES | extra)}
            for extra in (
                {"DELAY": "3"},
                {"TRAN_MSG": "true"},
                {"TIMER_DELAY_MS": "5"},
                {"POP_CK": "x"},
                {"MSG_REGION": "x"},
                {"CLUSTER": "x"},
                {"TRACE_ON": "x"},
                {"__CRC32#": "x"},
                {"__RMQ.TRANSIENT.x": "1"},
                {"WAIT": "false"},
                {"UNIQ_KEY": 'a"b'},
                {"UNIQ_KEY": "a\\b"},
                {"name": "ü"},
                {"name": "a\x00b"},
                {"name": "a\x01b"},
            )
        ),
        {"i": "TAGS\x01a\x02"},
        {"i": text(PROPERTIES)[:-1]},
        {"i": text(PROPERTIES) + "\x02"},
        {"i": text(PROPERTIES) + "noseparator\x02"},
        {"i": text(PROPERTIES) + "\x01empty\x02"},
        {"i": text(PROPERTIES) + "empty\x01\x02"},
        {"i": text(PROPERTIES) + f"UNIQ_KEY\x01{ID}\x02"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("binary", [False, True])
def test_everything_else_is_left_to_the_ordinary_path(
    bench: Bench, changes: dict[str, str | None], binary: bool
) -> None:
    good, odd = send(opaque=1), send(opaque=2, binary=binary, **changes)
    stopped, answers = bench.run(good + odd + good)
    assert stopped == len(good)
    assert len(answers) == 1
    assert bench.store.max_offset("T", 1) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"code"', b'{ "code"'),
        (b'"code":310', b'"code":0310'),
        (b'"code":310', b'"code":"310"'),
        (b'"opaque":7', b'"opaque":7.0'),
        (b'"opaque":7', b'"opaque":99999999999'),
        (b'"flag":0', b'"flag":1'),
        (b'"e":"1"', b'"e":1'),
        (b'"e":"1"', b'"e":"\\u0031"'),
        (b'"e":"1"', b'"e":"1","e":"2"'),
        (b'"a":"g"', b'"a":{"x":"y"}'),
        (b'"version":479}', b'"version":479,"more":1}'),
        (b'"version":479}', b'"version":479} '),
        (b'"version":479}', b'"version":479'),
        (b"\\u0001", b"\\u0100"),
        (b"\\u0001", b"\\n0001"),
        (b"\\u0001", b"\x01"),
        (b"\\u0002", b"\\u00zz"),
    ],
)
def test_json_of_another_kind_is_declined(bench: Bench, old: bytes, new: bytes) -> None:
    frame = send()
    header_size = struct.unpack_from(">i", frame, 4)[0]
    header, body = frame[8 : 8 + header_size], frame[8 + header_size :]
    assert old in header
    changed = header.replace(old, new, 1)
    odd = struct.pack(">ii", 4 + len(changed) + len(body), len(changed)) + changed + body
    assert bench.run(odd) == (0, [])


def test_incomplete_frames_wait(bench: Bench) -> None:
    frame = send()
    for cut in range(len(frame)):
        assert bench.run(frame[:cut])[0] == 0
    assert bench.run(frame + frame[:-1])[0] == len(frame)


def test_a_batch_whose_lengths_lie_is_declined(bench: Bench) -> None:
    good = item(b"abc", {"UNIQ_KEY": ID})
    for at in (0, 16, 23):
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            body = bytearray(good + good)
            body[at : at + 4] = value.to_bytes(4, "big")
            frame = encode_frame(Command(320, fields(m="true", i=None), bytes(body), 5))
            assert bench.run(frame)[0] == 0
    assert bench.run(encode_frame(Command(320, fields(m="true", i=None), b"", 5)))[0] == 0


def test_the_end_of_a_segment_stops_the_run(bench: Bench) -> None:
    """What does not fit goes the ordinary way, which rolls to the next segment."""
    frames = [send(bytes(4000), opaque=i) for i in range(300)]
    chunk = b"".join(frames)
    stopped, answers = bench.run(chunk)
    assert 0 < len(answers) < 300
    assert stopped == sum(len(frame) for frame in frames[: len(answers)])
    assert bench.store.max_offset("T", 1) == len(answers)
    bench.store.append(Message("T", bytes(4000)), 1)
    rest, more = bench.run(chunk, stopped)
    assert rest > stopped
    assert more[0].opaque == len(answers)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("fuzz") / "store")
    yield made
    made.store.close()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_mutation_reaches_beyond_its_frame(fuzzed: Bench, data: st.DataObject) -> None:
    """Whatever the bytes, it stops or takes; what it took decodes and is what the frame says."""
    binary = data.draw(st.booleans())
    batch = data.draw(st.booleans())
    if batch:
        body = item(b"abc", {"UNIQ_KEY": ID}) + item(b"", {"UNIQ_KEY": ID, "WAIT": "true"})
        frame = bytearray(
            encode_frame(Command(320, fields(m="true", i="WAIT\x01true\x02"), body, 5, binary=binary))
        )
    else:
        frame = bytearray(send(binary=binary))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    chunk = bytes(frame[: len(frame) - cut])
    before = [fuzzed.store.max_offset("T", i) for i in range(4)]
    stopped, answers = fuzzed.run(chunk)
    after = [fuzzed.store.max_offset("T", i) for i in range(4)]
    assert 0 <= stopped <= len(chunk)
    if stopped == 0:
        assert (before, answers) == (after, [])
    for queue_id in range(4):
        for stored in fuzzed.store.read("T", queue_id, before[queue_id]):
            assert decode_properties(stored.properties["UNIQ_KEY"].encode()) == {}
            assert stored.properties["CLUSTER"] == "C"
