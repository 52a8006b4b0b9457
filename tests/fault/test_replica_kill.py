"""A replica is killed with SIGKILL while it follows two masters in turn and is cut in between.

Kills hit everything: copying, cuts, recovery, cuts that recovery finishes. After each kill the log is one of the two
masters', byte for byte, as far as it was told, and never a mixture. `make crash ROUNDS=n` runs more of it.
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
from tests.fault.replica_checks import Branches, check_copy, is_prefix, make_branches
from tests.fault.test_crash_kill import chosen_seed

WRITER = Path(__file__).with_name("replica_writer.py")
LIFE_MAX_S = 0.4


def run_and_kill(line: str, life_s: float) -> list[list[str]]:
    """Let a replica work for `life_s` after it is ready; what it told."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            pytest.fail(f"the replica did not start: {process.communicate()[1].decode()}")
        process.stdin.write(line.encode())
        process.stdin.flush()
        os.set_blocking(process.stdout.fileno(), False)
        told, deadline = bytearray(), time.monotonic() + life_s
        while (left := deadline - time.monotonic()) > 0:
            told += process.stdout.read() or b""
            time.sleep(min(left, 0.002))
        assert process.poll() is None, f"it died by itself: {process.stderr and process.stderr.read()!r}"
        os.set_blocking(process.stdout.fileno(), True)
    finally:
        process.kill()
        rest, errors = process.communicate()
    assert not errors, errors.decode()
    return [text.decode().split() for text in (bytes(told) + rest).split(b"\n")[:-1]]


@pytest.fixture
def branches(tmp_path: Path, mode: str) -> Branches:
    made = make_branches(
        tmp_path / "masters", options_of(mode), range(1, 120), range(120, 240), range(1120, 1240)
    )
    made.close()  # read from here on by everybody, written by nobody
    return made


@pytest.mark.fault("F1")
@pytest.mark.invariant("I7")
@pytest.mark.invariant("I11")
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_crash_kill_of_a_replica_leaves_one_masters_log(
    tmp_path: Path, mode: str, branches: Branches, crash_rounds: int
) -> None:
    seed = chosen_seed()
    entropy, cuts = SeededEntropy(seed), 0
    masters = {
        which: MessageStore.open(tmp_path / "masters" / which, options_of(mode), read_only=True)
        for which in ("old", "new")
    }
    try:
        rounds = max(crash_rounds // 4, 4)
        for number in range(10 * rounds):
            if number >= rounds and cuts:  # on a busy machine few replicas live until they are cut
                break
            line = f"{tmp_path / 'masters'} {tmp_path / 'replica'} {branches.fork} {seed + number} {mode}\n"
            told = run_and_kill(line, entropy.fraction() * LIFE_MAX_S + 0.05)
            cuts += sum(step[0] == "cut" for step in told)
            if not told:
                continue
            _, which, end = told[-1]
            with MessageStore.open(
                tmp_path / "replica", options_of(mode), replica=True, background=False
            ) as store:
                # The next step may have begun: more bytes, or a cut and then bytes of the other log.
                at_least = (
                    branches.fork if int(end) > branches.fork else whole_before(masters[which], int(end))
                )
                source = masters[which]
                if not is_prefix(store, source):
                    source = masters["new" if which == "old" else "old"]
                check_copy(store, source, at_least)
                assert store.queues.manifest.cut_to == -1
    except BaseException as error:
        error.add_note(f"crash round failed with PENSTOCK_CRASH_SEED={seed}, mode {mode}")
        raise
    finally:
        for master in masters.values():
            master.close()
    assert cuts > 0, "no replica lived long enough to be cut: this proved nothing"


def whole_before(source: MessageStore, position: int) -> int:
    """The end of the last record that ends before a position: what is there in part is dropped by recovery."""
    ends = [
        message.physical_offset + message.size
        for queue in source.queues
        for message in source.read(queue.topic, queue.queue_id, 0, 10_000)
    ]
    return max((end for end in ends if end <= position), default=0)
