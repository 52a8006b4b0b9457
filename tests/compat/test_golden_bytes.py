"""The hand-worked examples of docs/formats/ against the product, byte for byte.

The blocks are read out of the pages, so page and test cannot drift apart. Each is compared twice: with bytes
put together here from the rules alone (`struct`, `zlib`, a hash loop), which proves the page, and with what the
product builds or writes to its files, which proves the product.
"""

import json
import re
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock._hot.checks import check
from penstock._hot.layout import TORN
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.errors import CorruptRecordError
from penstock.message import HostAddress, Message, StoredMessage, decode_record, encode_record
from penstock.message.hashing import java_string_hash
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import dump_pretty
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup
from penstock.metadata.topic_table import TopicConfig, TopicTable
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore, StoreOptions, epochs
from penstock.store.checkpoint import Checkpoint
from penstock.store.consume_queue import Entry
from penstock.store.key_index import IndexHeader
from penstock.store.queue_table import Manifest
from penstock.testing import ManualClock

PAGES = Path(__file__).resolve().parents[2] / "docs" / "formats"
BLOCK = re.compile(
    r"^```text\ngolden: (?P<name>\S+), (?P<kind>\d+ bytes|text)\n(?P<body>.*?)^```$", re.M | re.S
)
LINE = re.compile(r" *(?P<at>\d+)  (?:zeros (?P<zeros>\d+)|(?P<hex>[0-9a-f]{2}(?: [0-9a-f]{2})*))(?:  .*)?")

BORN, STORED = 1_700_000_000_000, 1_700_000_000_123
CLIENT, BROKER = HostAddress("127.0.0.1", 40000), HostAddress("127.0.0.1", 10911)
LONG_TOPIC = "%RETRY%" + "g" * 121
OPTIONS = StoreOptions(
    segment_size_bytes=4096,
    queue_file_entries=4,
    index_slots=8,
    index_entries=8,
    max_message_size_bytes=2048,
)


def parse_hex(name: str, size: int, body: str) -> bytes:
    """The bytes of a block; every line must say the position it is at, and the head the size of all."""
    data = bytearray()
    for line in body.splitlines():
        match = LINE.fullmatch(line)
        assert match, f"{name}: cannot read the line {line!r}"
        assert int(match["at"]) == len(data), f"{name}: the line says {match['at']} and is at {len(data)}"
        data += bytes(int(match["zeros"])) if match["zeros"] else bytes.fromhex(match["hex"])
    assert len(data) == size, f"{name}: says {size} bytes and has {len(data)}"
    return bytes(data)


def read_pages() -> dict[str, bytes]:
    blocks: dict[str, bytes] = {}
    for page in sorted(PAGES.glob("*.md")):
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            name, kind, body = match["name"], match["kind"], match["body"]
            assert name not in blocks, f"two blocks are named {name}"
            if kind == "text":
                blocks[name] = body.removesuffix("\n").encode()
            else:
                blocks[name] = parse_hex(name, int(kind.split()[0]), body)
    return blocks


GOLDEN = read_pages()


# -- the rules, said a second time -----------------------------------------------------------------------------


def hash_of(text: str) -> int:
    """Java's hash, from its definition."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (31 * value + units[i] * 256 + units[i + 1]) % 2**32
    return value - 2**32 if value >= 2**31 else value


def crc31(data: bytes) -> int:
    return zlib.crc32(data) % 2**31


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


@dataclass(frozen=True)
class Example:
    """One record of the pages, as its page describes it in words."""

    name: str
    body: bytes
    topic: str
    properties: bytes
    flag: int = 0
    queue_offset: int = 0
    position: int = 0
    born: int = BORN
    stored: int = STORED
    born_host: str = "127.0.0.1"
    store_host: str = "127.0.0.1"
    seal: bool = False
    # Whether the option asks for the seal; a zero byte in the properties brings it anyway.
    seal_asked: bool = True

    def by_the_rules(self) -> bytes:
        addresses = {
            "127.0.0.1": bytes([127, 0, 0, 1]),
            "::1": bytes(15) + b"\x01",
            "2001:db8::1": bytes.fromhex("20010db8") + bytes(11) + b"\x01",
        }
        born, store = addresses[self.born_host], addresses[self.store_host]
        long_topic = len(self.topic) > 127
        topic = self.topic.encode()
        properties_size = len(self.properties) + (20 if self.seal else 0)
        after_size = b"".join(
            (
                bytes.fromhex("daa320ab" if long_topic else "daa320a7"),
                i32(crc31(self.body)),
                i32(1),
                i32(self.flag),
                i64(self.queue_offset),
                i64(self.position),
                i32((16 if len(born) == 16 else 0) + (32 if len(store) == 16 else 0)),
                i64(self.born),
                born + i32(40000),
                i64(self.stored),
                store + i32(10911),
                i32(0),
                i64(0),
                i32(len(self.body)) + self.body,
                len(topic).to_bytes(2 if long_topic else 1, "big") + topic,
                properties_size.to_bytes(2, "big") + self.properties,
            )
        )
        record = i32(4 + len(after_size) + (20 if self.seal else 0)) + after_size
        if self.seal:
            digits = str(crc31(record))[::-1].ljust(10, "0")
            record += b"__CRC32#\x01" + digits.encode() + b"\x02"
        return record

    def as_stored_message(self) -> StoredMessage:
        pairs = [part.split("\x01") for part in self.properties.decode().split("\x02") if part]
        return StoredMessage(
            topic=self.topic,
            body=self.body,
            properties=dict(pairs),
            queue_id=1,
            queue_offset=self.queue_offset,
            physical_offset=self.position,
            size=len(GOLDEN[self.name]),
            body_crc=crc31(self.body),
            flag=self.flag,
            sys_flag=(0x10 if ":" in self.born_host else 0) | (0x20 if ":" in self.store_host else 0),
            born_timestamp=self.born,
            born_host=HostAddress(self.born_host, 40000),
            store_timestamp=self.stored,
            store_host=HostAddress(self.store_host, 10911),
            reconsume_times=0,
            prepared_transaction_offset=0,
        )


FIRST = Example("record-v1", b"water", "orders", b"TAGS\x01turbine\x02KEYS\x01k1\x02", flag=7)
SECOND = Example(
    "record-second",
    b"steam",
    "orders",
    b"KEYS\x01k2 42\x02",
    queue_offset=1,
    position=123,
    born=BORN + 2000,
    stored=STORED + 2000,
)
IPV6 = Example("record-ipv6", b"water", "orders", b"", born_host="2001:db8::1", store_host="::1")
VERSION_2 = Example("record-v2", b"", LONG_TOPIC, b"")
SEALED = Example("record-sealed", b"water", "orders", b"KEYS\x01k1\x02", seal=True)
ZERO_BYTE = Example("record-zero-byte", b"water", "orders", b"KEYS\x01k\0\x02", seal=True, seal_asked=False)
# The page prints only what differs from the sealed record.
GOLDEN["record-zero-byte"] = GOLDEN["record-sealed"][:102] + GOLDEN["record-zero-byte-properties"]
EXAMPLES = [FIRST, SECOND, IPV6, VERSION_2, SEALED, ZERO_BYTE]
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


def entry(position: int, size: int, tags_code: int) -> bytes:
    return i64(position) + i32(size) + i64(tags_code)


def index_entry(key: str, position: int, seconds: int, previous: int) -> bytes:
    return i32(abs(hash_of(key))) + i64(position) + i32(seconds) + i32(previous)


def index_file_by_the_rules() -> bytes:
    slots = [0] * 8
    entries = [bytes(20)]
    for number, (key, position, seconds) in enumerate(
        (("orders#k1", 0, 0), ("orders#k2", 123, 2), ("orders#42", 123, 2)), start=1
    ):
        slot = abs(hash_of(key)) % 8
        entries.append(index_entry(key, position, seconds, slots[slot]))
        slots[slot] = number
    header = i64(STORED) + i64(STORED + 2000) + i64(0) + i64(123) + i32(8 - slots.count(0)) + i32(4)
    return header + b"".join(i32(slot) for slot in slots) + b"".join(entries).ljust(160, b"\0")


def checkpoint_by_the_rules() -> bytes:
    values = i64(STORED + 2000) + i64(STORED + 2000) + i64(0) + i64(0) + i64(123 + 113)
    values += b"PEN2" + i64(123 + 113)
    return (values + struct.pack(">I", zlib.crc32(values))).ljust(4096, b"\0")


# -- records -----------------------------------------------------------------------------------------------------


@each_example
def test_record_on_the_page_follows_the_rules(example: Example) -> None:
    assert GOLDEN[example.name] == example.by_the_rules()


@each_example
def test_reference_codec_builds_the_record(example: Example) -> None:
    properties = GOLDEN[example.name][102:] if example.seal else None  # The seal is the hot builder's work.
    assert encode_record(example.as_stored_message(), properties) == GOLDEN[example.name]


@each_example
def test_hot_builder_builds_the_record(example: Example) -> None:
    store_host = HostAddress(example.store_host, 10911).encode()
    builder = RecordBuilder(store_host, 1024, example.seal and example.seal_asked)
    builder.begin(example.position, 4096, example.stored)
    request = AppendRequest(
        QueueState(example.topic.encode(), 1, example.queue_offset),
        example.body,
        example.properties,
        example.born,
        HostAddress(example.born_host, 40000).encode(),
        example.flag,
    )
    assert builder.add_all([request], 0) == 1
    assert bytes(builder.content()) == GOLDEN[example.name]
    assert (request.physical_offset, request.size) == (example.position, len(GOLDEN[example.name]))


@each_example
def test_record_reads_back(example: Example) -> None:
    message = decode_record(GOLDEN[example.name], example.position)
    expected = example.as_stored_message()
    if example.seal:
        seal = GOLDEN[example.name][119:129].decode()
        assert message.properties == {**expected.properties, "__CRC32#": seal}
        assert message.body == expected.body
    else:
        assert message == expected


@pytest.mark.invariant("I12")
@each_example
def test_every_bit_that_a_checksum_covers_is_checked(example: Example) -> None:
    golden = GOLDEN[example.name]
    body_at = golden.find(example.body) if example.body else 0
    covered = range(len(golden)) if example.seal else range(body_at, body_at + len(example.body))
    for at in covered:
        damaged = bytearray(golden)
        damaged[at] ^= 0x01
        try:
            message = decode_record(bytes(damaged), example.position)
        except CorruptRecordError:
            continue
        # Only the seal's own name and end may change unseen: the record then has no seal.
        assert example.seal, f"a changed byte {at} was not noticed"
        assert 110 <= at < 119 or at == 129
        assert message.body == example.body


@pytest.mark.fault("F5")
@pytest.mark.invariant("I2")
@each_example
def test_a_write_torn_at_any_byte_is_no_record(example: Example) -> None:
    """What was not written is zero. Where the lost bytes are zeros anyway, nothing is lost."""
    golden, torn = GOLDEN[example.name], 0
    for kept in range(len(golden)):
        content = golden[:kept].ljust(len(golden), b"\0")
        if content != golden:
            torn += 1
            assert check(content, 0, len(content), example.position, 2) < 0, f"cut at byte {kept}"
    assert torn > 100
    assert check(golden, 0, len(golden), example.position, 2) == len(golden)


def test_torn_properties_are_looked_for_at_level_2_only() -> None:
    """Below it a zero byte is a zero byte: records of a Java broker may have one, and no seal."""
    record = FIRST.by_the_rules().replace(b"k1\x02", b"k\0\x02")
    assert check(record, 0, len(record), 0, 1) == len(record)
    assert check(record, 0, len(record), 0, 2) == TORN


def test_message_id_of_the_page() -> None:
    page = (PAGES / "record.md").read_text(encoding="utf-8")
    by_the_rules = (bytes([127, 0, 0, 1]) + i32(10911) + i64(0)).hex().upper()
    assert f"`{by_the_rules}`" in page
    assert decode_record(GOLDEN["record-v1"], 0).message_id == by_the_rules


# -- files of a store --------------------------------------------------------------------------------------------


def put_example(store: MessageStore, clock: ManualClock) -> None:
    """The two messages that the pages share."""
    store.append(
        Message.of("orders", b"water", tag="turbine", keys="k1", flag=7),
        queue_id=1,
        born_timestamp=BORN,
        born_host=CLIENT,
    )
    clock.advance(2000)
    store.append(
        Message.of("orders", b"steam", keys="k2 42"), 1, born_timestamp=BORN + 2000, born_host=CLIENT
    )


@pytest.fixture(params=[FlushMode.ASYNC, FlushMode.SYNC], ids=["async", "sync"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The shared example as a closed store; the flush mode must not show in the bytes."""
    clock = ManualClock(STORED)
    options = replace(OPTIONS, flush_mode=request.param)
    with MessageStore.open(
        tmp_path / "store", options, runtime=Runtime(clock=clock), store_host=BROKER, background=False
    ) as store:
        put_example(store, clock)
    return tmp_path / "store"


@pytest.mark.seed("S2-58")
def test_segment_holds_the_two_records_and_zeros(directory: Path) -> None:
    content = (directory / "commitlog" / "00000000000000000000").read_bytes()
    assert content == (GOLDEN["record-v1"] + GOLDEN["record-second"]).ljust(4096, b"\0")


@pytest.mark.seed("S3-6")
@pytest.mark.seed("S4-43")
def test_queue_file(directory: Path) -> None:
    by_the_rules = (entry(0, 123, hash_of("turbine")) + entry(123, 113, 0)).ljust(80, b"\0")
    assert GOLDEN["consume-queue-file"] == by_the_rules
    content = (directory / "consumequeue" / "orders" / "1" / "00000000000000000000").read_bytes()
    assert content == GOLDEN["consume-queue-file"]


def test_queue_entries_read_back() -> None:
    data = GOLDEN["consume-queue-file"]
    entries = [Entry.decode(data[at : at + 20]) for at in range(0, 80, 20)]
    assert entries[:2] == [Entry(0, 123, -965839409), Entry(123, 113, 0)]
    assert [entry.is_valid for entry in entries] == [True, True, False, False]


def test_filler() -> None:
    assert GOLDEN["consume-queue-filler"] == entry(0, 2**31 - 1, 0)
    state = QueueState(b"orders", 1)
    state.add_entry(0, 2**31 - 1, 0)
    assert state.tail_bytes(0, 1) == GOLDEN["consume-queue-filler"]
    assert Entry.decode(GOLDEN["consume-queue-filler"]).is_filler


def test_queue_that_begins_later_starts_with_fillers(tmp_path: Path) -> None:
    """A queue whose first record has offset 2: two fillers come before it in the file."""
    clock = ManualClock(STORED)
    with MessageStore.open(tmp_path, OPTIONS, runtime=Runtime(clock=clock), background=False) as store:
        queue = store.queues.get_or_create("orders", 1)
        queue.start_at(2)
        queue.state.next_offset = 2
        put_example(store, clock)
    content = (tmp_path / "consumequeue" / "orders" / "1" / "00000000000000000000").read_bytes()
    entries = entry(0, 123, hash_of("turbine")) + entry(123, 113, 0)
    assert content == GOLDEN["consume-queue-filler"] * 2 + entries


def test_index_file(directory: Path) -> None:
    assert GOLDEN["index-file"] == index_file_by_the_rules()
    (path,) = (directory / "index").iterdir()
    assert path.read_bytes() == GOLDEN["index-file"]


def test_index_header_reads_back() -> None:
    assert IndexHeader.decode(GOLDEN["index-file"][:40]) == IndexHeader(STORED, STORED + 2000, 0, 123, 2, 4)


def test_keys_of_the_page_are_found(directory: Path) -> None:
    """Also `k1`, whose entry is behind that of `42` in the same slot."""
    with MessageStore.open(directory, OPTIONS, read_only=True) as store:
        for key, body in (("k1", b"water"), ("k2", b"steam"), ("42", b"steam")):
            assert [message.body for message in store.reader.query("orders", key)] == [body]
        assert store.reader.query("orders", "k3") == []


def test_checkpoint_file(directory: Path) -> None:
    assert GOLDEN["checkpoint-file"] == checkpoint_by_the_rules()
    assert (directory / "checkpoint").read_bytes() == GOLDEN["checkpoint-file"]


def test_checkpoint_reads_back() -> None:
    checkpoint = Checkpoint.decode(GOLDEN["checkpoint-file"])
    assert (checkpoint.trusted, checkpoint.sealed) == (True, True)
    assert checkpoint.durable_offset == 236
    assert checkpoint.min_timestamp == STORED + 2000 - 3000


@pytest.mark.fault("F7")
@pytest.mark.parametrize("at", range(44))
def test_checkpoint_with_a_flipped_bit_is_not_trusted(at: int) -> None:
    data = bytearray(GOLDEN["checkpoint-file"])
    data[at] ^= 0x10
    checkpoint = Checkpoint.decode(bytes(data))
    assert not checkpoint.trusted
    assert checkpoint.durable_offset == 0


def test_blank_record_ends_a_full_segment(tmp_path: Path) -> None:
    by_the_rules = i32(96) + bytes.fromhex("cbd43194")
    assert GOLDEN["blank-record"] == by_the_rules
    with MessageStore.open(tmp_path, OPTIONS, store_host=BROKER, background=False) as store:
        positions = [store.append(Message("orders", b"w" * 903)).physical_offset for _ in range(5)]
    assert positions == [0, 1000, 2000, 3000, 4096]
    first = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert first[4000:4008] == GOLDEN["blank-record"]
    second = (tmp_path / "commitlog" / "00000000000000004096").read_bytes()
    assert second[:8] == i32(1000) + bytes.fromhex("daa320a7")


def test_directory_listing(directory: Path) -> None:
    lines = [line.split() for line in GOLDEN["directory-listing"].decode().splitlines()]
    expected = {words[0]: int(words[1]) if len(words) == 2 else None for words in lines}
    found = {
        str(path.relative_to(directory)) + ("/" if path.is_dir() else ""): (
            None if path.is_dir() else path.stat().st_size
        )
        for path in directory.rglob("*")
    }
    assert found == expected


def test_lock_file(directory: Path) -> None:
    assert GOLDEN["lock-file"] == b"lock"
    assert (directory / "lock").read_bytes() == GOLDEN["lock-file"]


MANIFEST = GOLDEN["manifest"] + b"\n"  # the page's block ends before the last line break


def test_manifest(directory: Path) -> None:
    line, checksum = GOLDEN["manifest"].split(b"\n")
    assert checksum == f"crc32 {zlib.crc32(line):08x}".encode()
    assert (directory / "penstock.manifest.json").read_bytes() == MANIFEST


def test_manifest_reads_back() -> None:
    assert Manifest.decode(MANIFEST) == Manifest(
        starts={("orders", 1): 0},
        ends={("orders", 1): 2},
        index_end=123,
        index_files=["20231114221322123"],
        log_start=0,
        flushed_to=236,
        dispatched_to=236,
        segment_size_bytes=4096,
        queue_file_entries=4,
        deleted={},
    )


def test_manifest_fields_of_the_page() -> None:
    """The table of the page names every field, and no other."""
    page = (PAGES / "config-files.md").read_text(encoding="utf-8").partition("## Manifest")[2]
    rows = re.findall(r"^\| (`.+?`) \|", page.partition("\n## ")[0], re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == list(json.loads(GOLDEN["manifest"].split(b"\n")[0]))


def test_epoch_file() -> None:
    lines = GOLDEN["epoch-file"].split(b"\n")
    entries = b"".join(line + b"\n" for line in lines[2:])
    assert lines[:2] == [b"2", b"%d" % (zlib.crc32(entries) & 0x7FFFFFFF)]
    assert epochs.encode(((7, 7000), (8, 8000))) == GOLDEN["epoch-file"] + b"\n"
    assert epochs.decode(GOLDEN["epoch-file"] + b"\n") == ((7, 7000), (8, 8000))


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_manifest_with_a_flipped_bit_is_refused() -> None:
    for at in range(len(MANIFEST)):
        data = bytearray(MANIFEST)
        data[at] ^= 0x04
        with pytest.raises(ValueError, match="checksum"):
            Manifest.decode(bytes(data))


def test_manifest_remembers_a_deleted_topic(tmp_path: Path) -> None:
    """With the end of the log at its deletion, and without its queues."""
    clock = ManualClock(STORED)
    with MessageStore.open(
        tmp_path, OPTIONS, runtime=Runtime(clock=clock), store_host=BROKER, background=False
    ) as store:
        put_example(store, clock)
        store.delete_topics(["orders"])
    value = json.loads((tmp_path / "penstock.manifest.json").read_bytes().partition(b"\n")[0])
    assert (value["queues"], value["deletedTopics"]) == ({}, {"orders": 236})


# -- config files ------------------------------------------------------------------------------------------------

VERSION = DataVersion(0, 1, BORN)


def test_topics_file() -> None:
    table = TopicTable(VERSION, {"orders": TopicConfig("orders", read_queue_nums=2, write_queue_nums=2)})
    assert dump_pretty(table.to_json()) == GOLDEN["topics.json"]
    assert GOLDEN["topics.json"].startswith(GOLDEN["topics.json-head"])


def test_consumer_offset_file() -> None:
    table = ConsumerOffsetTable(VERSION, {TopicGroup("orders", "billing"): {1: 2}})
    assert dump_pretty(table.to_json()) == GOLDEN["consumerOffset.json"]


# -- the pages themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["turbine", "orders#k1", "orders#k2", "orders#42"])
def test_hashes_said_on_the_pages(text: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert str(hash_of(text)) in pages
    assert java_string_hash(text) == hash_of(text)


def test_no_example_is_left_out() -> None:
    """A block on a page that no test of this folder mentions would prove nothing."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in GOLDEN if f'"{name}"' not in source] == []
    assert len(GOLDEN) >= 16
