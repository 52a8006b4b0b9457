"""F7: files are damaged while the store is closed. Damage is reported with its place and never served; what lies
before and after it is readable; no queue offset is given out twice; a second open brings no new surprise."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.store import Durability, FlushMode, GetStatus
from penstock.store.inspection import verify
from penstock.store.queue_table import Manifest
from penstock.testing import ManualClock
from tests.effort import by_length
from tests.fault.damaged_sample import NEXT, NEXT_SERIAL, OPTIONS, Sample, flip, overwrite, served
from tests.support.store_checks import (
    Ledger,
    append,
    audit,
    check_store,
    message_of,
    open_store,
    reopened,
    serial_of,
    small_options,
)

pytestmark = pytest.mark.fault("F7")

ENDS = ["clean stop", "crash"]


def check_damaged(sample: Sample, lost: set[int], *, reported_at: int | None = None) -> None:
    """All but the lost is served, offsets go on where they were, and again after the next open."""
    for opened in range(2):
        store = open_store(sample.folder, OPTIONS)
        try:
            found, named = served(store)
            findings = [*store.findings.all(), *audit(store).all()]
            assert found - {NEXT_SERIAL} == set(sample.records) - lost
            if reported_at is not None and opened == 0:
                places = [(f.position, f.position + f.length) for f in findings if f.is_damage]
                assert any(low <= reported_at <= max(high, low) for low, high in places), findings
            for place, end in sample.ends.items():
                lost_here = {o for o, s in sample.ledger.acked[place].items() if s in lost}
                low = store.min_offset(*place)
                assert {o for t, q, o in named if (t, q) == place} >= {o for o in lost_here if o >= low}
                assert store.max_offset(*place) >= end, "offsets would be given out again"
            if opened == 0:
                offset = append(store, NEXT_SERIAL)
                assert offset >= sample.ends[NEXT]
                assert serial_of(store.read(*NEXT, offset)[0]) == NEXT_SERIAL
        except BaseException:
            store.abandon()
            raise
        store.close()


@pytest.fixture(params=ENDS)
def sample(tmp_path: Path, request: pytest.FixtureRequest) -> Sample:
    return Sample(tmp_path, request.param)


def record_in_segment(sample: Sample, number: int) -> tuple[int, int, int]:
    """(serial, position, size) of a record in the middle of a segment."""
    inside = sorted(
        (position, size, serial)
        for serial, (position, size) in sample.records.items()
        if position // 4096 == number
    )
    position, size, serial = inside[len(inside) // 2]
    return serial, position, size


FIELDS = {
    "length": (0, 3),
    "length-high": (0, 0),
    "magic": (4, 2),
    "checksum": (8, 1),
    "body-length": (84, 3),
    "body": (100, 5),
}


@pytest.mark.invariant("I12")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("segment", [0, 1, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_in_a_record(sample: Sample, field: str, segment: int) -> None:
    number = segment if segment >= 0 else len(sample.segments) - 1
    serial, position, _ = record_in_segment(sample, number)
    start, extra = FIELDS[field]
    sample.flip(position + start + extra, bit=1)
    check_damaged(sample, {serial}, reported_at=position)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(("at", "name"), [(15, "queue id"), (27, "queue offset"), (35, "position")])
def test_a_flipped_bit_in_a_field_that_says_where_a_record_belongs(
    sample: Sample, at: int, name: str
) -> None:
    """No checksum covers these fields in RocketMQ's format; the place in the queue gives them away."""
    serial, position, _ = record_in_segment(sample, 1)
    sample.flip(position + at, bit=0)
    check_damaged(sample, {serial})


@pytest.mark.invariant("I12")
def test_a_zeroed_page(sample: Sample) -> None:
    _, position, _ = record_in_segment(sample, 1)
    sample.write(position - 20, bytes(1000))
    check_damaged(sample, sample.lost_to(position - 20, position + 980), reported_at=position)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_whole_segment_of_zeros(sample: Sample, number: int) -> None:
    sample.write(number * 4096, bytes(4096))
    check_damaged(sample, sample.lost_to(number * 4096, number * 4096 + 4096), reported_at=number * 4096)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("number", [1, -2], ids=["middle", "last"])
def test_a_short_segment(sample: Sample, number: int) -> None:
    used = sorted({position // 4096 for position, _ in sample.records.values()})
    base = used[number if number > 0 else -1] * 4096
    path, _ = sample.segment_file(base)
    with path.open("r+b") as file:
        file.truncate(700)
    check_damaged(sample, sample.lost_to(base + 700, base + 4096), reported_at=base + 700)


@pytest.mark.invariant("I12")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("which", ["middle", "last", "all"])
def test_a_missing_segment(sample: Sample, which: str) -> None:
    used = sorted({position // 4096 * 4096 for position, _ in sample.records.values()})
    gone = {"middle": used[1:2], "last": used[-1:], "all": used}[which]
    for name in sample.segments:
        if int(name) in gone or (which == "all" or (which == "last" and int(name) > used[-1])):
            (sample.folder / "commitlog" / name).unlink(missing_ok=True)
    lost = set().union(*(sample.lost_to(base, base + 4096) for base in gone))
    check_damaged(sample, lost, reported_at=gone[0])


@pytest.mark.invariant("I12")
def test_a_missing_first_segment_is_reported(sample: Sample) -> None:
    """It looks like retention's work, but retention would have told the manifest."""
    (sample.folder / "commitlog" / sample.segments[0]).unlink()
    check_damaged(sample, sample.lost_to(0, 4096))
    store = open_store(sample.folder, OPTIONS)
    store.close()
    fresh = Sample(sample.folder / "second", "crash")
    (fresh.folder / "commitlog" / fresh.segments[0]).unlink()
    store = open_store(fresh.folder, OPTIONS)
    damage = store.findings.damage()
    store.abandon()
    assert any(finding.position == 0 for finding in damage), damage


def damage_queue(folder: Path, how: str) -> None:
    queue = folder / "consumequeue" / "orders" / "0"
    files = sorted(queue.iterdir())
    assert len(files) >= 2
    if how == "first missing":
        files[0].unlink()
    elif how == "last missing":
        files[-1].unlink()
    elif how == "all files missing":
        for file in files:
            file.unlink()
    elif how == "folder missing":
        shutil.rmtree(queue)
    elif how == "topic missing":
        shutil.rmtree(queue.parent)
    elif how == "everything missing":
        shutil.rmtree(folder / "consumequeue")
    elif how == "short first":
        files[0].write_bytes(files[0].read_bytes()[:50])
    elif how == "short last":
        files[-1].write_bytes(files[-1].read_bytes()[:50])
    elif how == "long":
        files[-1].write_bytes(files[-1].read_bytes() + b"x" * 20)


QUEUE_DAMAGE = [
    "first missing",
    "last missing",
    "all files missing",
    "folder missing",
    "topic missing",
    "everything missing",
    "short first",
    "short last",
    "long",
]


@pytest.mark.invariant("I4")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("how", QUEUE_DAMAGE)
def test_damaged_queue_files_are_rebuilt_from_the_log(sample: Sample, how: str) -> None:
    """The log has everything, so everything must be readable again."""
    damage_queue(sample.folder, how)
    store = open_store(sample.folder, OPTIONS)
    noted = store.findings.all()
    try:
        assert check_store(store, sample.ledger) == len(sample.records)
        assert noted, "a repair without a word"
    finally:
        store.close()
    with open_store(sample.folder, OPTIONS) as again:
        assert again.findings.all() == []
        check_store(again, sample.ledger)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("at", [*range(0, 20, 3), "zeroed"], ids=str)
def test_a_damaged_queue_entry_is_never_served_and_the_scrubber_repairs_it(
    sample: Sample, at: int | str
) -> None:
    path = sorted((sample.folder / "consumequeue" / "orders" / "0").iterdir())[0]
    if isinstance(at, int):
        flip(path, 3 * 20 + at, bit=2)
    else:
        overwrite(path, 3 * 20, bytes(20))
    clock = ManualClock()
    options = small_options(
        segment_size_bytes=4096, max_message_size_bytes=1024, scrub_bytes_per_second=1 << 20
    )
    with open_store(sample.folder, options, clock=clock) as store:
        found, named = served(store)
        if (
            at == "zeroed" or int(at) < 12
        ):  # not the tags code, which takes nothing away from a read without a filter
            assert len(found) >= len(sample.records) - 1
            assert (len(found) == len(sample.records)) or ("orders", 0, 3) in named
        for _ in range(20):
            clock.advance(150)
            store.keeper.tick()
        found, named = served(store)
        assert (found, named) == (set(sample.records), set())
        assert audit(store).all() == []
    reopened(sample.folder, sample.ledger, OPTIONS).close()


@pytest.mark.invariant("I2")
@pytest.mark.abuse("A26")
def test_a_queue_entry_that_leads_to_another_topic_is_not_served(tmp_path: Path) -> None:
    """One bit apart: two topics whose records have 256 bytes lie side by side in the log."""
    options = small_options()
    with open_store(tmp_path, options) as store:
        probe = store.append(Message("alpha", b""), 0)
        body = b"a" * (256 - probe.size)
        # Bring the log to a multiple of 512 first.
        store.append(Message("filler", b"f" * (512 - probe.size - probe.size - 1)), 0)
        first = store.append(Message("alpha", body), 1)
        second = store.append(Message("bravo", body.replace(b"a", b"b")), 1)
        assert (first.size, second.size) == (256, 256)
        assert first.physical_offset % 512 == 0
    flip(tmp_path / "consumequeue" / "alpha" / "1" / f"{0:020d}", 6, bit=0)
    with open_store(tmp_path, options) as store:
        result = store.get("alpha", 1, 0)
        assert [m.topic for m in result.messages()] == []
        assert result.damaged == (0,)


def damage_index(folder: Path, how: str) -> None:
    files = sorted((folder / "index").iterdir())
    assert len(files) >= 3
    if how == "missing last":
        files[-1].unlink()
    elif how == "missing all":
        shutil.rmtree(folder / "index")
    elif how == "missing first":
        files[0].unlink()
    elif how == "short":
        files[-1].write_bytes(files[-1].read_bytes()[:100])
    elif how == "header count":
        flip(files[-1], 36, bit=6)
    elif how == "header end position":
        flip(files[-1], 24, bit=7)
    elif how == "header zeroed":
        overwrite(files[-1], 0, bytes(40))
    elif how == "slots zeroed":
        overwrite(files[0], 40, bytes(20 * 4))
    elif how == "entry":
        flip(files[0], 40 + 20 * 4 + 20 * 2 + 2, bit=1)


INDEX_DAMAGE = [
    "missing last",
    "missing all",
    "missing first",
    "short",
    "header count",
    "header end position",
    "header zeroed",
    "slots zeroed",
]
SILENT_INDEX_DAMAGE = ["slots zeroed", "entry"]


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("how", SILENT_INDEX_DAMAGE)
def test_damage_inside_an_index_file_is_found_by_verify(sample: Sample, how: str) -> None:
    """Keys that such damage hides are not found; the messages are, by offset. Opening does not read old index
    files, `verify` does, and without the files the index is built again."""
    damage_index(sample.folder, how)
    report = verify(sample.folder)
    assert not report.sound
    assert any("index" in issue.kind for issue in report.issues)
    shutil.rmtree(sample.folder / "index")
    with open_store(sample.folder, OPTIONS) as store:
        check_store(store, sample.ledger)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("how", [how for how in INDEX_DAMAGE if how not in SILENT_INDEX_DAMAGE])
def test_a_damaged_index_is_rebuilt_and_keys_find_their_messages(sample: Sample, how: str) -> None:
    damage_index(sample.folder, how)
    with open_store(sample.folder, OPTIONS) as store:
        check_store(store, sample.ledger)
    reopened(sample.folder, sample.ledger, OPTIONS).close()


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("at", [0, 7, 15, 31, 39, 41, 46, None, -1], ids=str)
def test_a_damaged_checkpoint_costs_time_only(sample: Sample, at: int | None) -> None:
    path = sample.folder / "checkpoint"
    if at is None:
        path.unlink()
    elif at < 0:
        path.write_bytes(bytes(4096))
    else:
        flip(path, at, bit=6)
    with open_store(sample.folder, OPTIONS) as store:
        assert check_store(store, sample.ledger) == len(sample.records)
    reopened(sample.folder, sample.ledger, OPTIONS).close()


def manifest_of(folder: Path) -> Path:
    return folder / "penstock.manifest.json"


@pytest.mark.invariant("I12")
@pytest.mark.invariant("I4")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_flipped_bit_of_the_manifest(tmp_path: Path) -> None:
    """Ours, and small: many bits of it in turn. The store opens and serves everything, whatever it says."""
    sample = Sample(tmp_path / "sample", "clean stop")
    content = manifest_of(sample.folder).read_bytes()
    failures: dict[str, str] = {}
    for at in range(0, len(content), by_length(7, 1)):
        for bit in (0, 2, 6):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            manifest_of(sample.folder).write_bytes(changed)
            try:
                store = open_store(sample.folder, OPTIONS, read_only=True)
            except Exception as error:
                failures[f"{at}.{bit}"] = f"{changed[max(at - 8, 0) : at + 8]!r}: {error!r}"
                continue
            found, _ = served(store)
            if found != set(sample.records):
                failures[f"{at}.{bit}"] = f"{changed[max(at - 8, 0) : at + 8]!r}: {len(found)} served"
            store.close()
    assert not failures, f"{len(failures)} flips: {dict(list(failures.items())[:6])}"


def manifest_with(**changes: object) -> bytes:
    """A manifest with a checksum that is right, and content that is not."""
    value = json.loads(Manifest(log_start=0).encode().partition(b"\n")[0]) | changes
    return sealed_line(json.dumps(value).encode())


def sealed_line(line: bytes) -> bytes:
    return b"%s\ncrc32 %08x\n" % (line, zlib.crc32(line))


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        manifest_with()[:-3],
        sealed_line(b"[]"),
        sealed_line(b"null"),
        sealed_line(b'{"version": 1}'),
        sealed_line(b"\xff\xfe\x00"),
        sealed_line(b"[" * 5000),
        manifest_with(queues=[]),
        manifest_with(queues={"../../x": {"0": [0, 3]}}),
        manifest_with(queues={"orders": {"-1": [0, 3]}}),
        manifest_with(queues={"orders": {"0": [0, -3]}}),
        manifest_with(queues={"orders": {"0": [0, 1 << 70]}}),
        manifest_with(queues={"orders": {"99999999999": [0, 1]}}),
        manifest_with(queues={"orders": {"0": ["0", "1"]}}),
        manifest_with(indexEnd=1 << 70),
        manifest_with(flushedTo=-5),
        manifest_with(deletedTopics={"a/b": 4}),
        manifest_with(deletedTopics={"orders": -1}),
    ],
    ids=range(19),
)
def test_an_impossible_manifest(sample: Sample, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Manifest.decode(content)
    manifest_of(sample.folder).write_bytes(content)
    with open_store(sample.folder, OPTIONS) as store:
        assert any(finding.kind == "manifest unreadable" for finding in store.findings.all())
        found, _ = served(store)
        assert found == set(sample.records)
        assert append(store, NEXT_SERIAL) >= sample.ends[NEXT]


def stray_file(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"stray")

    return make


def stray_folder(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).mkdir(parents=True)


STRAYS = {
    "file beside segments": stray_file("commitlog/notes.txt"),
    "backup of a segment": stray_file("commitlog/00000000000000000000.bak"),
    "folder beside segments": stray_folder("commitlog/00000000000000090112"),
    "empty segment at the end": lambda folder: (folder / "commitlog" / f"{40960:020d}").touch(),
    "file among topics": stray_file("consumequeue/readme"),
    "file among queues": stray_file("consumequeue/orders/readme"),
    "queue id too large": stray_folder("consumequeue/orders/99999999999"),
    "topic that is no topic": stray_file("consumequeue/not a topic!/0/readme"),
    "topic that is no text": lambda folder: (folder / "consumequeue" / "bad\udcff" / "0").mkdir(parents=True),
    "folder in a queue": stray_folder("consumequeue/orders/0/sub"),
    "file in a queue": stray_file("consumequeue/orders/0/x.tmp"),
    "file in the index": stray_file("index/lost+found"),
    "folder in the index": stray_folder("index/20231114221320000"),
    "file in the root": stray_file("core.1234"),
    "file in prepare": stray_file("prepare/00000000000000000000"),
    "folder in prepare": stray_folder("prepare/lost+found"),
    "half of a manifest": stray_file("penstock.manifest.json.tmp"),
}


@pytest.mark.parametrize(
    "what",
    list(STRAYS),
)
def test_stray_files_are_left_alone(sample: Sample, what: str) -> None:
    STRAYS[what](sample.folder)
    with open_store(sample.folder, OPTIONS) as store:
        found, named = served(store)
        assert (found, named) == (set(sample.records), set())
        assert store.findings.damage() == []
        assert append(store, NEXT_SERIAL) == sample.ends[NEXT]
    with open_store(sample.folder, OPTIONS) as store:
        assert served(store)[0] == set(sample.records) | {NEXT_SERIAL}


@pytest.mark.invariant("I12")
def test_reads_name_what_they_leave_out(tmp_path: Path) -> None:
    sample = Sample(tmp_path, "clean stop")
    position, _ = sample.records[18]
    sample.flip(position + 100)
    with open_store(sample.folder, OPTIONS) as store:
        offset = next(o for o, s in sample.ledger.acked[("orders", 0)].items() if s == 18)
        result = store.get("orders", 0, offset, max_count=1)
        assert (result.status, result.damaged) == (GetStatus.MESSAGE_WAS_REMOVING, (offset,))
        assert result.next_offset == offset + 1
        assert any(f.position == position and f.is_damage for f in store.findings.all())
        assert store.reader.query("orders", "k18") == []


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("mode", list(FlushMode))
def test_damage_behind_the_checkpoint_but_flushed_is_not_cut_away(tmp_path: Path, mode: FlushMode) -> None:
    """After a crash a bad record in front of flushed ones must not take them with it."""
    options = small_options(flush_mode=mode)
    ledger, clock = Ledger(), ManualClock()
    store = open_store(tmp_path, options, clock=clock)
    positions = {}
    for serial in range(6, 120, 6):
        result = store.append(
            message_of(serial, 50),
            0,
            durability=Durability.FLUSHED,
        )
        ledger.add("orders", 0, result.queue_offset, serial)
        positions[serial] = result.physical_offset
        clock.advance(1000)
        store.keeper.tick()
    clock.advance(15_000)
    store.keeper.tick()
    store.abandon()
    flip(tmp_path / "commitlog" / f"{0:020d}", positions[60] + 100)
    with open_store(tmp_path, options) as store:
        found, _ = served(store)
        assert found == set(range(6, 120, 6)) - {60}
        assert any(f.position == positions[60] for f in store.findings.damage())
