"""A writer is killed with SIGKILL at random moments, again and again in the same directory.

Kills hit everything the writer does: recovery of the last crash, appends, rolls of segments, queue files and
index files, the keeper's syncs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.runtime import SeededEntropy
from penstock.store import MessageStore
from tests.effort import by_length
from tests.fault.crash_writer import options_of
from tests.fault.seeded import seeded
from tests.support.forked_process import ForkedProcess
from tests.support.server_processes import is_readable
from tests.support.store_checks import Ledger, check_store

ROUNDS = by_length(12, 1_000)
ASYNC_ROUNDS = by_length(12, 250)
ROUNDS_PER_FOLDER = by_length(6, 25)
ROUNDS_PER_CHECK = 5
SERIALS_PER_ROUND = 1_000_000
LIFE_MAX_S = 0.1
# Small segments roll often. Large ones have room for the zeros that a write may leave behind the log's end.
SEGMENT_KIB = (16, 512)


def segment_kib_of(folder: Path) -> int:
    """Folders, which are named by their first round, take turns."""
    return SEGMENT_KIB[int(folder.name) // ROUNDS_PER_FOLDER % len(SEGMENT_KIB)]


def run_and_kill(module: str, *arguments: str, life_s: float, log: Path) -> list[list[str]]:
    """Let a writer work for `life_s` after it is ready, then kill it; the words of each line that it printed."""
    log.unlink(missing_ok=True)
    process = ForkedProcess(module, *arguments, log=log)
    try:
        told = bytearray()
        while not told.endswith(b"ready\n"):
            byte = os.read(process.out, 1)
            assert byte, f"the writer did not start: {log.read_text()}"
            told += byte
        told.clear()
        deadline = time.monotonic() + life_s
        while (left := deadline - time.monotonic()) > 0:  # keep the pipe empty, or the writer would wait
            if is_readable(process.out, min(left, 0.002)):
                told += os.read(process.out, 1 << 20)
        assert process.poll() is None, f"the writer died by itself: {log.read_text()}"
        process.kill()
        while rest := os.read(process.out, 1 << 20):
            told += rest
    finally:
        process.close()
    assert not log.read_text(), log.read_text()
    # A last line without an end was cut by the kill; it was not told.
    return [line.decode().split() for line in bytes(told).split(b"\n")[:-1]]


def check_folder(folder: Path, mode: str, ledger: Ledger, *, clean: bool, has_written: bool) -> None:
    """Open the store here, check all of it, and leave it as a stop or as one more crash would.

    `has_written`: a writer was killed that had opened the store; one that dies before that leaves a clean stop clean.
    """
    store = MessageStore.open(folder, options_of(mode, segment_kib_of(folder)), background=False)
    try:
        shown = check_store(store, ledger)
        assert shown >= ledger.count
        assert not (store.report.clean and has_written)
    except BaseException:
        store.abandon()
        raise
    if clean:
        store.close()
    else:
        store.abandon()


def kill_many_times(folder: Path, mode: str, rounds: int) -> int:
    """How many messages were acknowledged, all of which were found."""
    ledger, acknowledged, here, has_written = Ledger(), 0, folder / "0", False
    with seeded(lambda: f"mode {mode}, folder {here}") as seed:
        entropy = SeededEntropy(seed)
        for number in range(10 * rounds):
            # On a busy machine few writers live until they have written something.
            if number >= rounds and number % ROUNDS_PER_FOLDER == 0 and acknowledged > rounds:
                break
            first = (number + 1) * SERIALS_PER_ROUND
            words = (str(here), str(seed + number), str(first), mode, str(segment_kib_of(here)))
            told = run_and_kill(
                "tests.fault.crash_writer",
                *words,
                life_s=entropy.fraction() * LIFE_MAX_S,
                log=folder / "stderr.log",
            )
            has_written |= bool(told)
            for topic, queue, offset, serial in told:
                ledger.add(topic, int(queue), int(offset), int(serial))
            last_here = (number + 1) % ROUNDS_PER_FOLDER == 0
            if here.exists() and (last_here or (number + 1) % ROUNDS_PER_CHECK == 0):
                check_folder(here, mode, ledger, clean=entropy.below(2) == 0, has_written=has_written)
                has_written = False
            if last_here:
                acknowledged += ledger.count
                ledger, here = Ledger(), folder / str(number + 1)
    return acknowledged


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-53")
@pytest.mark.seed("S4-6")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_crash_kill_under_sync_flush_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged = kill_many_times(tmp_path, "sync", ROUNDS)
    assert acknowledged > ROUNDS, "the writers hardly wrote anything: this proved nothing"


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-54")
@pytest.mark.seed("S3-55")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_crash_kill_under_async_flush_loses_nothing_written(tmp_path: Path) -> None:
    """O-11: what a process wrote is in the page cache; only the machine can lose it."""
    acknowledged = kill_many_times(tmp_path, "async", ASYNC_ROUNDS)
    assert acknowledged > ASYNC_ROUNDS, "the writers hardly wrote anything: this proved nothing"
