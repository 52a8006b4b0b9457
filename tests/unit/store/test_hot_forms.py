"""The two forms of the hot modules, compiled and pure, do the same to the last byte.

A corpus made from a seed is sent through building, dispatching, choosing, gathering, walking and indexing; every
byte that comes out goes into digests. This process computes them with the form it has loaded, a second process
with the other form; `python -m` of this file prints them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import _hot
from penstock._hot.checks import check, checksum
from penstock._hot.dispatch import Dispatcher
from penstock._hot.index import SlotTable, find_key
from penstock._hot.layout import GAP, NEW_QUEUE
from penstock._hot.mapped import MappedBytes
from penstock._hot.queues import QueueState
from penstock._hot.reads import EntrySelection, find_record, gather, is_zero, store_timestamp, walk
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.message import decode_record

RECORDS = 300
NOW = 1_700_000_000_000
TOPICS = ["orders", "Aa", "BB", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 200, "x" * 127]
HOSTS = [b"\x7f\0\0\1" + struct.pack(">i", 10911), bytes(range(16)) + struct.pack(">i", 9876)]
NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT", "TAGSX", "KEY", "", "ключ"]
VALUES = [
    "a",
    "Aa BB",
    "k1 k2  k3 ",
    "3",
    "99",
    "-1",
    "",
    "grün",
    "标签",
    "😀",
    "v" * 300,
    "\0",
    "polygenelubricants",
]


def random_properties(chooser: random.Random) -> bytes:
    pairs = [(chooser.choice(NAMES), chooser.choice(VALUES)) for _ in range(chooser.randrange(5))]
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    if chooser.random() < 0.1:  # what other writers may leave: no end mark, torn or foreign bytes
        text = text[:-1] + bytes(chooser.randrange(256) for _ in range(chooser.randrange(6)))
    return text


def build(chooser: random.Random, *, seal: bool, store_host: bytes) -> tuple[bytes, list[tuple[int, ...]]]:
    """Random records as one run of bytes, and what each request says afterwards."""
    queues = [QueueState(topic.encode(), n) for topic in TOPICS for n in range(2)]
    builder = RecordBuilder(store_host, 3000, seal)
    out, said, stored = bytearray(), [], 0
    while stored < RECORDS:
        group = [
            AppendRequest(
                chooser.choice(queues),
                chooser.randbytes(chooser.choice([0, 1, 7, 8, 64, 500, 3000, 3001])),
                random_properties(chooser),
                chooser.choice([0, NOW, -1, 2**62]),
                chooser.choice([*HOSTS * 5, b"short"]),
                chooser.randrange(-(2**31), 2**31),
                chooser.choice([0, 1, 4, 8, 12, 0x30]),
                chooser.randrange(20),
                chooser.randrange(2**40),
            )
            for _ in range(chooser.randrange(1, 20))
        ]
        builder.begin(len(out), chooser.choice([5000, 100_000]), NOW + len(out))
        after = builder.add_all(group, 0)
        if chooser.random() < 0.1:
            builder.take_back()
        stored += builder.count
        out += builder.content()
        said += [(r.size, r.physical_offset, r.queue_offset, r.store_timestamp) for r in group]
        said.append((after, *(queue.next_offset for queue in queues)))
    return bytes(out), said


def build_batches(chooser: random.Random) -> list[object]:
    """Sound and lying batches through both halves of the batch path."""
    queue, builder = QueueState(b"batch", 1), RecordBuilder(HOSTS[0], 3000)
    found: list[object] = []
    for _ in range(RECORDS):
        batch = bytearray()
        for _ in range(chooser.randrange(1, 5)):
            body, text = chooser.randbytes(chooser.randrange(60)), random_properties(chooser)
            batch += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 3, len(body))
            batch += body + struct.pack(">h", len(text)) + text
        if chooser.random() < 0.5:
            at = chooser.randrange(len(batch))
            batch[at] ^= 1 << chooser.randrange(8)
        total = builder.measure_batch(queue, bytes(batch), 16)
        found.append(total)
        if total >= 0:
            builder.begin(4096, total + 8, NOW)
            found.append(builder.add_batch(queue, bytes(batch), 0, NOW, HOSTS[0]))
            found.append(bytes(builder.content()))
    return found


@dataclass
class Dispatched:
    """What a run left behind: everything that came out, the queues, and the keys on their way to the index."""

    found: list[object]
    queues: dict[tuple[bytes, int], QueueState]
    keys: bytes


def dispatch(data: bytes) -> Dispatched:
    """Entries and keys of a run, from two kinds of bytes, which must give the same."""
    outcomes = []
    for source in (MappedBytes(data), MappedBytes(bytearray(data))):
        dispatcher, queues = Dispatcher((1000, 5000, 10_000), True), {}
        found: list[object] = []
        run = dispatcher.run_mapped
        at = 0
        while True:
            status = run(source, at, len(data), 0)
            found.append((status, dispatcher.position, dispatcher.last_timestamp))
            at = dispatcher.position
            if status not in (NEW_QUEUE, GAP):
                break
            key = queue_of(data, at)
            if status == NEW_QUEUE:
                queues[key] = QueueState(*key)
                dispatcher.add_queue(queues[key])
            else:  # taken-back records left a hole
                queues[key].restart(struct.unpack_from(">q", data, at + 20)[0], -1)
        for key, state in sorted(queues.items(), key=lambda item: item[0]):
            found.append((key, state.tail_first, state.tail_count, state.max_phy))
            found.append(state.tail_bytes(state.tail_first, state.end_offset))
        found.append(sorted((state.topic, state.queue_id) for state in dispatcher.touched))
        keys, count = dispatcher.take_keys()
        outcomes.append(Dispatched(found, queues, bytes(keys[: count * 20])))
    assert outcomes[0].found == outcomes[1].found
    assert outcomes[0].keys == outcomes[1].keys
    return outcomes[0]


def queue_of(data: bytes, at: int) -> tuple[bytes, int]:
    record = decode_record(memoryview(data)[at:], -1, verify=False)
    return record.topic.encode(), record.queue_id


def select(data: bytes, dispatched: Dispatched, chooser: random.Random) -> list[object]:
    """Choose and gather entries of every queue under all kinds of limits and filters."""
    found: list[object] = []
    maps = [MappedBytes(data)]
    for key, state in sorted(dispatched.queues.items(), key=lambda item: item[0]):
        entries = bytearray(state.tail_bytes(state.tail_first, state.end_offset))
        if len(entries) >= 60:
            entries[48 : 48 + 4] = b"\x7f\xff\xff\xff"  # a filler's size
            entries[20 + 7] ^= 1  # an entry that leads elsewhere
        if not entries:
            continue
        codes = [struct.unpack_from(">i", entries, n + 16)[0] for n in range(0, len(entries), 20)]
        for count, size, tags in (
            (1, 100, None),
            (1000, 1 << 30, None),
            (5, 1000, frozenset(codes[:2])),
            (1000, 1 << 20, frozenset(chooser.sample(range(1 << 20), 3))),
        ):
            for mapped in (False, True):
                selection = EntrySelection(count, size, tags)
                if mapped:
                    selection.scan_mapped(
                        MappedBytes(bytes(entries)), 0, len(entries) // 20, state.tail_first
                    )
                else:
                    selection.scan_bytes(bytes(entries), state.tail_first)
                found.append((selection.count, selection.total_bytes, selection.scanned_to, selection.full))
                found.append(
                    [
                        (selection.position(i), selection.size(i), selection.offset(i))
                        for i in range(selection.count)
                    ]
                )
                for verify in (False, True):
                    again = EntrySelection(count, size, tags)
                    again.scan_bytes(bytes(entries), state.tail_first)
                    out, damaged, missing = gather(again, maps, 0, len(data), *key, verify)
                    found.append((bytes(out), damaged, missing))
    return found


def read_damaged(data: bytes, chooser: random.Random) -> list[object]:
    """Walk, check and search bytes with every kind of damage."""
    found: list[object] = []
    for _ in range(60):
        piece = bytearray(data[: chooser.randrange(1, min(len(data), 20_000))])
        for _ in range(chooser.randrange(4)):
            at = chooser.randrange(len(piece))
            end = min(len(piece), at + chooser.choice([1, 4, 100]))
            piece[at:end] = chooser.choice([bytes(end - at), chooser.randbytes(end - at)])
        mapped = MappedBytes(bytes(piece))
        position = 0
        for verify in (0, 1, 2):
            stop, why, count, last = walk(mapped, 0, len(piece), 0, verify)
            found.append((stop, why, count, last))
            found.append(check(bytes(piece), stop, len(piece), stop, verify))
            position = stop
        found.append(find_record(mapped, min(position + 1, len(piece)), len(piece), 0))
        found.append(is_zero(mapped, len(piece) // 2, len(piece)))
        found.append(store_timestamp(mapped, 0) if len(piece) > 200 else None)
        found.append(checksum(bytes(piece)))
    return found


def index(dispatched: Dispatched, chooser: random.Random) -> list[object]:
    """Enter keys until the table is full; find them; rebuild the slots from the entries."""
    keys = bytearray(dispatched.keys)
    edges = [0, -1, -(2**31), 2**31 - 1]
    for n in range(200):
        value = chooser.choice([*edges, chooser.randrange(-(2**31), 2**31)])
        keys += struct.pack(">iqq", value, 10**9 + n, NOW + chooser.randrange(-(10**6), 10**13))
    found: list[object] = []
    slots, capacity = 97, len(keys) // 20 - 50
    table = SlotTable(bytearray(slots * 4), slots, capacity)
    done, entries = 0, bytearray(20)
    while done < len(keys) // 20:
        new = table.put_keys(keys, done, min(33, len(keys) // 20 - done))
        entries += new
        done += len(new) // 20
        if not new:
            break
    found.append((done, table.next_entry, table.used_slots, table.begin_timestamp, table.end_timestamp))
    found.append((table.begin_phy, table.end_phy, bytes(table.memory), bytes(table.dirty), bytes(entries)))
    file = MappedBytes(bytes(40) + bytes(table.memory) + bytes(entries))
    for n in range(0, done, 3):
        value = struct.unpack_from(">i", entries, (n + 1) * 20)[0]
        for begin, end in ((0, 2**62), (NOW, NOW + 5000), (2**62, 0)):
            hits = find_key(file, None, slots, table.next_entry, table.begin_timestamp, value, begin, end, 7)
            found.append(hits)
    again = SlotTable(bytearray(slots * 4), slots, capacity)
    again.next_entry = table.next_entry
    again.rebuild(file)
    found.append((again.used_slots, bytes(again.memory) == bytes(table.memory), bytes(again.dirty)))
    return found


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def digests() -> dict[str, str]:
    """One digest per stage, so that a difference says where it is."""
    made: dict[str, str] = {}
    for number, (seal, host) in enumerate([(False, HOSTS[0]), (True, HOSTS[0]), (False, HOSTS[1])]):
        chooser = random.Random(number)
        data, said = build(chooser, seal=seal, store_host=host)
        dispatched = dispatch(data)
        outcomes: dict[str, object] = {
            "records": data,
            "requests": said,
            "dispatch": (dispatched.found, dispatched.keys),
            "select": select(data, dispatched, chooser),
            "damage": read_damaged(data, chooser),
            "index": index(dispatched, chooser),
            "batches": build_batches(chooser),
        }
        for name, outcome in outcomes.items():
            made[f"{name} {number}"] = digest(outcome)
    return made


def digests_of_other_form(pure: bool) -> tuple[str, dict[str, str]]:
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_PURE"}
    if pure:
        environment["PENSTOCK_PURE"] = "1"
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["form"], answer["digests"]


def is_compiled_beside() -> bool:
    folder = Path(_hot.__file__).parent
    return all(any(folder.glob(f"{name}.*.so")) for name in _hot.MODULES)


def test_both_forms_do_the_same(hot_form: str) -> None:
    """In the pure run there may be no compiled form; then a second pure process must at least agree."""
    mine = digests()
    other_is_pure = hot_form == "compiled" or not is_compiled_beside()
    form, others = digests_of_other_form(other_is_pure)
    assert form == ("pure" if other_is_pure else "compiled")
    assert mine == others
    assert len(mine) == 21


def test_the_corpus_is_worth_comparing() -> None:
    """Records of both versions and families, refused and taken back ones, queues with entries, keys, hits."""
    data, said = build(random.Random(0), seal=False, store_host=HOSTS[0])
    dispatched = dispatch(data)
    assert b"\xda\xa3\x20\xa7" in data
    assert b"\xda\xa3\x20\xab" in data
    assert {size for size, *_ in said if size <= 0} >= {-1, 0}
    assert sum(state.tail_count for state in dispatched.queues.values()) > 50
    assert len(dispatched.queues) == 2 * len(TOPICS)
    assert len(dispatched.keys) // 20 > 100


def test_a_difference_of_one_byte_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests()
    assert before == digests()
    monkeypatch.setattr(sys.modules[__name__], "NOW", NOW + 1)
    assert {name for name, value in digests().items() if value != before[name]} >= {"records 0", "dispatch 1"}


if __name__ == "__main__":
    print(json.dumps({"form": _hot.form(), "digests": digests()}))
