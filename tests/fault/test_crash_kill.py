"""A writer is killed with SIGKILL at random moments, again and again in the same directory.

Kills hit everything the writer does: recovery of the last crash, appends, rolls of segments, queue files and
index files, the keeper's syncs. `make crash ROUNDS=n` runs more of it; a failure prints its seed, and
PENSTOCK_CRASH_SEED repeats it as far as timing allows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.runtime import SeededEntropy
from penstock.store import MessageStore
from tests.fault.crash_writer import options_of
from tests.fault.store_checks import Ledger, check_store

WRITER = Path(__file__).with_name("crash_writer.py")
ROUNDS_PER_FOLDER = 25
ROUNDS_PER_CHECK = 5
SERIALS_PER_ROUND = 1_000_000
LIFE_MAX_S = 0.2
# Small segments roll often. Large ones have room for the zeros that a write may leave behind the log's end.
SEGMENT_KIB = (16, 512)


def segment_kib_of(folder: Path) -> int:
    """Folders, which are named by their first round, take turns."""
    return SEGMENT_KIB[int(folder.name) // ROUNDS_PER_FOLDER % len(SEGMENT_KIB)]


class Writer:
    """One writer process, waiting to be told where to write."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WRITER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run_and_kill(self, folder: Path, mode: str, seed: int, first: int, life_s: float) -> list[list[str]]:
        """Let it write, kill it after `life_s`, and return its acknowledgements."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            pytest.fail(f"the writer did not start: {process.communicate()[1].decode()}")
        process.stdin.write(f"{folder} {seed} {first} {mode} {segment_kib_of(folder)}\n".encode())
        process.stdin.flush()
        deadline = time.monotonic() + life_s
        os.set_blocking(process.stdout.fileno(), False)
        told = bytearray()
        while (left := deadline - time.monotonic()) > 0:  # keep the pipe empty, or the writer would wait
            told += process.stdout.read() or b""
            time.sleep(min(left, 0.002))
        assert process.poll() is None, (
            f"the writer died by itself: {process.stderr and process.stderr.read()!r}"
        )
        os.set_blocking(process.stdout.fileno(), True)
        process.kill()
        rest, errors = process.communicate()
        assert not errors, errors.decode()
        lines = (bytes(told) + rest).split(b"\n")
        # A last line without an end was cut by the kill; it was not told.
        return [line.decode().split() for line in lines[:-1] if line != b"open"]

    def stop(self) -> None:
        """Also after `run_and_kill`, whose failure must not leave a process behind."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def check_folder(folder: Path, mode: str, ledger: Ledger, *, clean: bool) -> None:
    """Open the store here, check all of it, and leave it as a stop or as one more crash would."""
    store = MessageStore.open(folder, options_of(mode, segment_kib_of(folder)), background=False)
    try:
        shown = check_store(store, ledger)
        assert shown >= ledger.count
        assert not store.report.clean
    except BaseException:
        store.abandon()
        raise
    if clean:
        store.close()
    else:
        store.abandon()


def kill_many_times(folder: Path, mode: str, rounds: int, seed: int) -> int:
    """How many messages were acknowledged, all of which were found."""
    entropy = SeededEntropy(seed)
    ledger, acknowledged, here = Ledger(), 0, folder / "0"
    writer = Writer()
    try:
        for number in range(rounds):
            current, writer = writer, Writer()
            life_s = entropy.fraction() * LIFE_MAX_S
            try:
                told = current.run_and_kill(
                    here, mode, seed + number, (number + 1) * SERIALS_PER_ROUND, life_s
                )
            finally:
                current.stop()
            for topic, queue, offset, serial in told:
                ledger.add(topic, int(queue), int(offset), int(serial))
            last_here = (number + 1) % ROUNDS_PER_FOLDER == 0 or number + 1 == rounds
            if here.exists() and (last_here or (number + 1) % ROUNDS_PER_CHECK == 0):
                check_folder(here, mode, ledger, clean=entropy.below(2) == 0)
            if last_here:
                acknowledged += ledger.count
                ledger, here = Ledger(), folder / str(number + 1)
    except BaseException as error:
        error.add_note(f"crash round failed with PENSTOCK_CRASH_SEED={seed}, mode {mode}, folder {here}")
        raise
    finally:
        writer.stop()
    return acknowledged


def chosen_seed() -> int:
    return int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 1_000_000_007)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-53")
@pytest.mark.seed("S4-6")
@pytest.mark.slow
@pytest.mark.unforgiven("the next kills come at other moments")
@pytest.mark.timeout(0)
def test_crash_kill_under_sync_flush_loses_nothing_acknowledged(tmp_path: Path, crash_rounds: int) -> None:
    acknowledged = kill_many_times(tmp_path, "sync", crash_rounds, chosen_seed())
    assert acknowledged > crash_rounds, "the writers hardly wrote anything: this proved nothing"


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-54")
@pytest.mark.seed("S3-55")
@pytest.mark.slow
@pytest.mark.unforgiven("the next kills come at other moments")
@pytest.mark.timeout(0)
def test_crash_kill_under_async_flush_loses_nothing_written(tmp_path: Path, crash_rounds: int) -> None:
    """O-11: what a process wrote is in the page cache; only the machine can lose it."""
    rounds = max(crash_rounds // 5, 1)
    acknowledged = kill_many_times(tmp_path, "async", rounds, chosen_seed())
    assert acknowledged > rounds, "the writers hardly wrote anything: this proved nothing"
