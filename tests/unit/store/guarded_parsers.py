"""Every parser of the hot modules, fed with inputs that end exactly where readable memory ends.

    python -m tests.unit.store.guarded_parsers NAME [SEED]

For each valid input: all its prefixes; each of its words replaced by lengths that lie; and, from a seed, flipped
bits. A parser may take an input, refuse it or raise. It must not read behind it: that would kill this process.
Prints how many inputs there were.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock._hot.checks import check, checksum
from penstock._hot.columns import Columns
from penstock._hot.decode import decode_run
from penstock._hot.dispatch import Dispatcher
from penstock._hot.encode import Column, RowEncoder
from penstock._hot.frames import TopicQueues
from penstock._hot.index import SlotTable, find_key
from penstock._hot.layout import GAP, NEW_QUEUE
from penstock._hot.mapped import MappedBytes
from penstock._hot.queues import QueueState
from penstock._hot.reads import EntrySelection, find_record, gather, is_zero, store_timestamp, walk
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock._hot.sends import SendPath
from penstock._hot.staged import CopyTargets, StagedItems, count_copies
from penstock.message import decode_record
from tests.guard_page import GuardedMemory
from tests.support.send_frames import BINARY, HEAD, SUFFIX, send
from tests.support.send_frames import item as batch_item
from tests.support.staged import item as staged_item

NOW = 1_700_000_000_000
HOST = b"\x7f\0\0\1" + struct.pack(">i", 10911)
WIDE_HOST = bytes(range(16)) + struct.pack(">i", 9876)
LIES = (-1, 0, 1, 21, 22, 90, 0x7FFF, 0x7FFFFFFF, -0x80000000, 0x10000)
# What an input may be refused with; an AssertionError if the caller should have judged it before.
REFUSED = (IndexError, ValueError, OverflowError, AssertionError)
COLUMNS = (
    *("queue_id", "queue_offset", "born_time", "store_time", "reconsume_times", "physical_offset", "size", "topic"),
    *("broker", "message_id", "keys", "tags", "body", "born_host", "properties"),
)  # fmt: skip


# -- inputs --------------------------------------------------------------------------------------------------


def mutated(data: bytes, luck: random.Random) -> Iterator[bytes]:
    """All prefixes of an input, lengths in it that lie, and flipped bits."""
    for size in range(len(data), -1, -1):
        yield data[:size]
    for at in range(len(data) - 3):
        lie = luck.choice((*LIES, len(data) - at, len(data) + 1))
        yield data[:at] + struct.pack(">i", max(min(lie, 0x7FFFFFFF), -0x80000000)) + data[at + 4 :]
    for _ in range(len(data)):
        changed = bytearray(data)
        for _ in range(luck.choice((1, 2, 5))):
            changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
        yield bytes(changed)


def records(*, wide: bool = False, topic: bytes = b"orders") -> bytes:
    """Three records in a row: plain, with a seal, in a topic that may need the second version."""
    queue = QueueState(topic, 1)
    host = WIDE_HOST if wide else HOST
    builder = RecordBuilder(host, 1 << 20)
    builder.begin(0, 1 << 20, NOW)
    properties = (
        "TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02",
        "k\x01\0\x02",
        "DELAY\x013\x02TAGS\x01grün",
    )
    requests = [
        AppendRequest(queue, b"body" * number, text.encode(), NOW, host, 0, number & 1)
        for number, text in enumerate(properties)
    ]
    assert builder.add_all(requests, 0) == 3
    return bytes(builder.content())


def entries(data: bytes) -> bytes:
    """Queue entries of the records."""
    found, at = b"", 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        found += struct.pack(">qiq", at, size, 97)
        at += size
    return found


# -- parsers -------------------------------------------------------------------------------------------------

Parser = Callable[[GuardedMemory, bytes], None]


def feed_log(memory: GuardedMemory, data: bytes) -> None:
    """Walking, searching, dispatching."""
    view = MappedBytes(memory.view(data))
    for verify in (0, 1, 2):
        walk(view, 0, view.size, 0, verify)
    find_record(view, 0, view.size, 0)
    is_zero(view, 0, view.size)
    count_copies(view, 0, view.size, 0, 0)
    check(memory.view(data), 0, len(data), 0, 2)
    for at in range(0, view.size, 7):
        refused_or(partial(store_timestamp, view, at))
        find_record(view, at, view.size, 0)
        walk(view, at, view.size, at, 1)
    # The room for keys is megabytes: one input in sixteen is worth it.
    dispatcher = Dispatcher((1_000, 5_000), sum(data) % 16 == 0)
    dispatcher.add_queue(QueueState(b"orders", 1))
    start = 0
    for _ in range(8):
        status = dispatcher.run_mapped(view, start, view.size, 0)
        if status not in (NEW_QUEUE, GAP):
            break
        record = decode_record(view.slice(dispatcher.position, view.size), -1, verify=False)
        if status == NEW_QUEUE:
            dispatcher.add_queue(QueueState(record.topic.encode("utf-8", "surrogatepass"), record.queue_id))
        start = dispatcher.position + (record.size if status == GAP else 0)


def feed_gather(memory: GuardedMemory, data: bytes) -> None:
    """Records that entries lead to, wherever they lead; the entries themselves at the border."""
    view = MappedBytes(memory.view(data))
    ends = (0, 1, view.size - 91, view.size - 1, view.size, 2**62, 2**63 - 1, -(2**63), -1)
    places = [struct.pack(">qiq", at, size, 0) for at in ends for size in (1, 91, 100, 0x7FFFFFFE, -5)]
    selection = EntrySelection(1 << 10, 1 << 40, None)
    selection.scan_bytes(b"".join(places) + entries(records()), 0)
    gather(selection, [view], 0, max(view.size, 1), b"orders", 1, True)


def feed_entries(memory: GuardedMemory, data: bytes) -> None:
    map_of_entries = MappedBytes(memory.view(data))
    for tags in (None, frozenset((97,))):
        for start in range(0, map_of_entries.size, 11):
            selection = EntrySelection(4, 1 << 20, tags)
            selection.scan_mapped(map_of_entries, start, (map_of_entries.size - start) // 20, 0)
    with_bytes = EntrySelection(4, 1 << 20, None)
    with_bytes.scan_bytes(memory.bytes(data), 0)
    log = MappedBytes(records())
    refused_or(lambda: columns().take_entries(log, 0, memory.bytes(data), 0, 0, b"orders", 1, True))


def columns(key: bytes = b"") -> Columns:
    return Columns(
        COLUMNS, b"broker", 64, 1 << 20, [b"a"] if key else [], key, True, lambda body, flags: b"unpacked" + body,
        lambda host: b"[::1]:1",
    )  # fmt: skip


def feed_rows(memory: GuardedMemory, data: bytes) -> None:
    """Rows and columns, from a pull's answer and through entries."""
    view = MappedBytes(memory.view(data))
    for rows in (columns(), columns(b"k2")):
        for start in (0, min(30, view.size)):
            rows.take_run(view, start, 0, 1 << 62, b"orders", 1, False)
        rows.take()
        rows.take_entries(
            view, 0, entries(records()) + struct.pack(">qiq", 2**63 - 1, 91, 0), 0, 0, b"", -1, False
        )
        rows.take()


def feed_decode(memory: GuardedMemory, data: bytes) -> None:
    for topic in (b"", b"orders"):
        decode_run(memory.bytes(data), topic)
    checksum(memory.bytes(data))
    if len(data) < 256:
        QueueState(memory.bytes(data), 0)


class Sends:
    """A path that knows a topic, and what it builds."""

    def __init__(self) -> None:
        self.path = SendPath(SUFFIX, HEAD, BINARY, 1 << 24, 1 << 16)
        self.path.put_topic(TopicQueues(b"T", [QueueState(b"T", number) for number in range(4)]))
        self.builder = RecordBuilder(HOST, 1 << 16)

    def __call__(self, memory: GuardedMemory, data: bytes) -> None:
        for start in range(0, min(len(data), 9), 4):
            self.path.scan(memory.bytes(data), start)
            self.builder.begin(0, 1 << 20, NOW)
            self.path.build(self.builder, HOST)
            self.path.answers(b"7F000001")
            self.path.take_counts()
        # What was scanned last is kept until the next scan, and this memory is about to change.
        self.path.scan(b"", 0)


def feed_batch(memory: GuardedMemory, data: bytes) -> None:
    """A client's batch, measured or not."""
    builder = RecordBuilder(HOST, 1 << 16)
    builder.begin(0, 1 << 20, NOW)
    builder.measure_batch(QueueState(b"orders", 0), memory.bytes(data), 16)
    refused_or(partial(builder.add_batch, QueueState(b"orders", 0), memory.bytes(data), 0, NOW, HOST))


def feed_staged(memory: GuardedMemory, data: bytes) -> None:
    """Staged items, checked or not: after a crash they come back out of a log that may be damaged."""
    levels = [QueueState(b"SCHEDULE_TOPIC_XXXX", number) for number in range(3)]
    queues = [QueueState(b"T", 0), None]
    targets = CopyTargets(queues, [0, 0], [b"REAL_TOPIC\x01T\x02", b""], levels, SUFFIX, 77)
    for is_checked, start in ((True, 0), (False, 0), (True, 2), (False, 2)):
        content = MappedBytes(memory.view(data))
        items = StagedItems(content, min(start, len(data)), len(data))
        if is_checked and items.check(2, 1_000):
            continue
        items.begin(targets, NOW, HOST, 1 << 20, 100)
        builder = RecordBuilder(HOST, 1 << 20)
        builder.begin(0, 1 << 20, NOW)
        steps = (partial(items.skip, 1_000), items.properties, partial(items.build, builder), items.request)
        for step in steps:
            items.restart()
            refused_or(step)
        content.release()
        for step in (*steps, partial(items.check, 2, 100)):
            items.restart()
            refused_or(step)


SLOTS = 5


def index_file() -> bytes:
    table = SlotTable(bytearray(SLOTS * 4), SLOTS, 20)
    keys = bytearray(b"".join(struct.pack(">iqq", number * 3, 100 + number, NOW) for number in range(8)))
    found = table.put_keys(keys, 0, 8)
    return bytes(40) + bytes(table.memory) + bytes(20) + bytes(found)


def feed_index(memory: GuardedMemory, data: bytes) -> None:
    view = MappedBytes(memory.view(data))
    for count in (9, 100, 2**31, 2**40, -(2**40)):
        for begin in (NOW, 2**63 - 1, -(2**63)):
            find_key(view, None, SLOTS, count, begin, 3, 0, 2**62, 10)
        table = SlotTable(bytearray(SLOTS * 4), SLOTS, 20)
        table.next_entry = count
        refused_or(partial(table.rebuild, view))
    for slots in (0, -3, 1 << 40):
        find_key(view, None, slots, 9, NOW, 3, 0, 2**62, 10)


def own(*values: int) -> bytes:
    return struct.pack(f"={len(values)}i", *values)


ENDS, DATA = own(0, 3, 3, 7), b"abcdefg"


def feed_encode(memory: GuardedMemory, data: bytes) -> None:
    """A column's offsets at the border, then its content, in every role that a column may have."""
    other = GuardedMemory(1 << 12)
    for ends, content in ((data, DATA), (ENDS, data)):
        for count in (1, 2, 3):
            for given in roles(memory.view(ends), other.view(content), count):
                refused_or(partial(encode, count, given))


def roles(offsets: memoryview, text: memoryview, count: int) -> Iterator[dict[str, Callable[[], Column]]]:
    """What a column is used as, made when it is used: it may be refused."""

    def content() -> Column:
        return Column(offsets, text, None, 0, count)

    def numbers() -> Column:
        return Column(offsets, None, None, 0, count)

    def body() -> Column:
        return Column(own(0, 1, 2, 3), b"xyz", None, 0, 3)

    def pairs() -> Column:
        return Column(own(0, 1, 2, 3), b"", None, 0, 3)

    yield {"body": content}
    yield {"body": body, "keys": content}
    yield {"body": body, "tags": content}
    yield {"body": body, "pairs": content, "names": body, "values": body}
    yield {"body": body, "pairs": pairs, "names": content, "values": content}
    # A column of numbers, where it belongs and where one with ends does.
    for role in ("delay", "queue", "topic", "body", "keys", "pairs"):
        yield {"body": body, "names": body, "values": body, role: numbers}


def encode(count: int, given: dict[str, Callable[[], Column]]) -> None:
    encoder = RowEncoder(1_000)
    encoder.set_topics([(0, 2)], 0, 1 << 16)
    encoder.set_ids(b"7F00")
    encoder.load(count, {name: make() for name, make in given.items()})
    encoder.run(1 << 16, 100)


def refused_or(step: Callable[[], object]) -> None:
    """Done, or refused in an orderly way."""
    try:
        step()
    except REFUSED:
        pass


def inputs_and_parser(name: str) -> tuple[Sequence[bytes], Parser]:
    logs = (records(), records(wide=True), records(topic=b"%RETRY%" + b"g" * 200))
    batch = batch_item(b"one", {"UNIQ_KEY": "U1", "WAIT": "true"}) + batch_item(b"", {"UNIQ_KEY": "U2"})
    staged = staged_item(1) + staged_item(2, 1) + staged_item(3, level=2, size=9)
    frames = (
        send(b"body"),
        send(b"body", binary=True),
        send(batch, m="true", e="2").replace(b'"code":310', b'"code":320'),
    )
    found: dict[str, tuple[Sequence[bytes], Parser]] = {
        "log": (logs, feed_log),
        "gather": (logs[:2], feed_gather),
        "entries": ((entries(logs[0]) * 3,), feed_entries),
        "rows": (logs, feed_rows),
        "decode": (logs, feed_decode),
        "sends": (frames, Sends()),
        "batch": ((batch,), feed_batch),
        "staged": ((staged,), feed_staged),
        "index": ((index_file(),), feed_index),
        "encode": ((ENDS, DATA), feed_encode),
    }
    return found[name]


NAMES = ("log", "gather", "entries", "rows", "decode", "sends", "batch", "staged", "index", "encode")


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    luck = random.Random(seed)
    inputs, parser = inputs_and_parser(name)
    memory = GuardedMemory(1 << 16)
    count = 0
    for data in inputs:
        for one in mutated(data, luck):
            if one:  # an empty map does not exist
                parser(memory, one)
                count += 1
    print(count)


if __name__ == "__main__":
    main()
