"""Crashes of either side: what was acknowledged is there for the other, what was torn is not."""

from __future__ import annotations

import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.store import FlushMode, MessageStore
from tests.interop import penstock_side
from tests.interop.conftest import CopyStore, WrittenStore
from tests.interop.java_messages import SMALL_SIZES, QueuedMessage, StoredMessage
from tests.interop.java_store import JavaStore
from tests.interop.killed_writer import QUEUES, numbered
from tests.interop.penstock_side import OPTIONS, check_content, check_java_content, same
from tests.interop.workload import expected_of_java, expected_record, more_messages

ROOT = Path(__file__).resolve().parents[2]
ACKNOWLEDGED_MIN = 600
WRITER_TIMEOUT_S = 120


# -- Penstock is killed ------------------------------------------------------------------------------------------


def run_and_kill(directory: Path, flush_mode: FlushMode) -> dict[int, StoredMessage]:
    """Let a writer work until it has acknowledged enough, kill it at a random moment; what it acknowledged, by
    the number of the message."""
    command = [sys.executable, "-m", "tests.interop.killed_writer", str(directory), flush_mode.value]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as writer:
        try:
            said = b""
            deadline = time.monotonic() + WRITER_TIMEOUT_S
            while said.count(b"\n") < ACKNOWLEDGED_MIN:
                readable, _, _ = select.select([writer.stdout], [], [], deadline - time.monotonic())
                part = writer.stdout.read(65536) if readable else b""
                assert part, "the writer ended, or became too slow"
                said += part
            time.sleep(random.random() / 50)
        finally:
            writer.kill()
        said += writer.stdout.read()
    complete = said[: said.rindex(b"\n")].decode().splitlines()
    return dict(acknowledged(line) for line in complete)


def acknowledged(line: str) -> tuple[int, StoredMessage]:
    number, queue_offset, position, size, stored_ms = map(int, line.split())
    # A batch goes to the queue of its first message, so the queue does not follow from the number; Java says it.
    record = expected_record(
        numbered(number, -1),
        queue_offset=queue_offset,
        position=position,
        size_bytes=size,
        store_timestamp_ms=stored_ms,
    )
    return number, record


def check_survivors(
    queues: dict[tuple[str, int], list[QueuedMessage]], promised: dict[int, StoredMessage]
) -> list[StoredMessage]:
    """Every promised message is where it was said to be, and everything else that is there is whole. All
    records, in log order."""
    found = sorted(
        (message.record for queue in queues.values() for message in queue),
        key=lambda record: record.physical_offset,
    )
    for key, queue in queues.items():
        assert [message.record.queue_offset for message in queue] == list(range(len(queue))), key
    numbers = [int(record.properties["KEYS"][1:]) for record in found]
    # Numbered in the order of appending: none is missing, none comes twice, none out of order.
    assert numbers == list(range(len(found)))
    assert len(found) >= len(promised) >= ACKNOWLEDGED_MIN
    for number, record in enumerate(found):
        assert record.queue_id in range(QUEUES)
        wanted = promised.get(number) or expected_record(
            numbered(number, -1),
            queue_offset=record.queue_offset,
            position=record.physical_offset,
            size_bytes=record.size_bytes,
            store_timestamp_ms=record.store_timestamp_ms,
        )
        same(wanted, replace(record, queue_id=-1), f"message {number}")
    return found


@pytest.mark.feature("store-after-kill", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize(
    "flush_mode",
    [
        pytest.param(FlushMode.SYNC, id="sync"),
        pytest.param(
            FlushMode.ASYNC, id="async", marks=[pytest.mark.seed("S3-54"), pytest.mark.seed("S3-55")]
        ),
    ],
)
def test_java_has_all_that_a_killed_penstock_acknowledged(
    java: JavaStore, flush_mode: FlushMode, tmp_path: Path, copy_store: CopyStore
) -> None:
    """Also without flush: the system has what a process wrote before it was killed."""
    directory = tmp_path / "store"
    promised = run_and_kill(directory, flush_mode)
    assert (directory / "abort").exists()
    recovered_by_penstock = copy_store(directory)
    read = java.read(directory)
    assert read.gaps == ()
    records = check_survivors(penstock_side.by_queue(read), promised)
    check_java_content(read, records)
    for opened, was_clean in ((directory, True), (recovered_by_penstock, False)):
        with MessageStore.open(opened, OPTIONS) as store:
            assert store.report.clean is was_clean
            check_content(store, records)
            # RocketMQ's own recovery may forget the keys of old messages; Penstock's does not.
            for record in records[-1:] if was_clean else (records[0], records[-1]):
                found = store.reader.query("killed", record.properties["KEYS"])
                assert [message.physical_offset for message in found] == [record.physical_offset]
    records += penstock_side.write(recovered_by_penstock, more_messages(20, "later"))
    check_java_content(java.read(recovered_by_penstock, halt=True), records)


# -- Java crashed and left something behind its end ----------------------------------------------------------------


def half_record(record: bytes, end: int) -> bytes:
    """The first part of what would have been the next record."""
    return _placed(record, end)[: len(record) * 2 // 3]


def record_without_its_last_page(record: bytes, end: int) -> bytes:
    """All lengths are right and the body is not: its later part never reached the disk."""
    whole = _placed(record, end)
    return whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)


def noise(record: bytes, end: int) -> bytes:
    return random.Random(end).randbytes(5000)


def record_of_another_place(record: bytes, end: int) -> bytes:
    """Whole and valid, but it says that it is somewhere else: left over from a file used before."""
    return record


def _placed(record: bytes, position: int) -> bytes:
    return record[:28] + struct.pack(">q", position) + record[36:]


LEFTOVERS = (half_record, record_without_its_last_page, noise, record_of_another_place)


def segment_path(directory: Path, position: int) -> Path:
    base = position - position % SMALL_SIZES.segment_bytes
    return directory / "commitlog" / f"{base:020d}"


def leave_behind(
    directory: Path, records: Sequence[StoredMessage], end: int, leftover: Callable[[bytes, int], bytes]
) -> bytes:
    """Write something after the end of the log, made from one of its records."""
    model = next(record for record in records if 2000 < record.size_bytes < 4000)
    with open(segment_path(directory, model.physical_offset), "rb") as segment:
        segment.seek(model.physical_offset % SMALL_SIZES.segment_bytes)
        garbage = leftover(segment.read(model.size_bytes), end)
    with open(segment_path(directory, end), "r+b") as segment:
        segment.seek(end % SMALL_SIZES.segment_bytes)
        segment.write(garbage)
    return garbage


@pytest.mark.feature("store-after-kill", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.fault("F5")
@pytest.mark.invariant("I11")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("leftover", LEFTOVERS, ids=lambda leftover: leftover.__name__)
def test_penstock_cuts_what_a_crash_of_java_left_behind(
    java_halted: WrittenStore, copy_store: CopyStore, leftover: Callable[[bytes, int], bytes]
) -> None:
    directory, records = copy_store(java_halted.directory), java_halted.records
    end = java_halted.java.max_physical_offset
    garbage = leave_behind(directory, records, end, leftover)
    with MessageStore.open(directory, OPTIONS, read_only=True) as store:
        assert store.log.max_offset == end
        check_content(store, records)
    with MessageStore.open(directory, OPTIONS) as store:
        assert store.log.max_offset == end
        assert store.report.bytes_dropped >= len(garbage.rstrip(b"\0"))
        check_content(store, records)
    with open(segment_path(directory, end), "rb") as segment:
        segment.seek(end % SMALL_SIZES.segment_bytes)
        assert not any(segment.read())


@pytest.mark.feature("store-after-kill", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I11")
def test_java_goes_on_where_penstock_cut(
    java: JavaStore, java_halted: WrittenStore, copy_store: CopyStore
) -> None:
    """With the leftover that RocketMQ itself would take for a message, because it does not compare positions."""
    directory = copy_store(java_halted.directory)
    end = java_halted.java.max_physical_offset
    leave_behind(directory, java_halted.records, end, record_of_another_place)
    records = java_halted.records + penstock_side.write(directory, more_messages(3, "after"))
    by_java = more_messages(30, "java")
    records += expected_of_java(by_java, java.write(directory, by_java, halt=True).puts)
    with MessageStore.open(directory, OPTIONS) as store:
        check_content(store, records)
    check_java_content(java.read(directory, halt=True), records)


# -- Java crashed before its queues were there -----------------------------------------------------------------------


def without_queues(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue")


def without_queue_files(directory: Path) -> None:
    for path in queue_files(directory):
        path.unlink()


def with_empty_queue_files(directory: Path) -> None:
    """Made, and not yet given their size."""
    for path in queue_files(directory):
        path.write_bytes(b"")


def queue_files(directory: Path) -> list[Path]:
    return [path for path in (directory / "consumequeue").rglob("*") if path.is_file()]


@pytest.mark.feature("store-after-kill", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.fault("F7")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize(
    "lose", [without_queues, without_queue_files, with_empty_queue_files], ids=lambda lose: lose.__name__
)
def test_penstock_builds_queues_that_java_had_not_written(
    java_halted: WrittenStore, copy_store: CopyStore, lose: Callable[[Path], None]
) -> None:
    directory = copy_store(java_halted.directory)
    lose(directory)
    records = java_halted.records + penstock_side.write(directory, more_messages(8, "after"))
    with MessageStore.open(directory, OPTIONS, read_only=True) as store:
        check_content(store, records)
