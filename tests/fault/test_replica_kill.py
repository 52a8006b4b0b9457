"""A replica is killed with SIGKILL while it follows two masters in turn and is cut in between.

Kills hit everything: copying, cuts, recovery, cuts that recovery finishes. After each kill the log is one of the two
masters', byte for byte, as far as it was told, and never a mixture.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.runtime import SeededEntropy
from penstock.store import MessageStore
from tests.effort import by_length
from tests.fault.crash_writer import options_of
from tests.fault.seeded import seeded
from tests.fault.test_crash_kill import run_and_kill
from tests.support.replica_checks import Branches, check_copy, is_prefix, make_branches

ROUNDS = by_length(4, 250)
LIFE_MAX_S = 0.4


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
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_crash_kill_of_a_replica_leaves_one_masters_log(
    tmp_path: Path, mode: str, branches: Branches
) -> None:
    cuts = 0
    with seeded(lambda: f"mode {mode}") as seed, ExitStack() as opened:
        entropy = SeededEntropy(seed)
        masters = {
            which: MessageStore.open(tmp_path / "masters" / which, options_of(mode), read_only=True)
            for which in ("old", "new")
        }
        for master in masters.values():
            opened.callback(master.close)
        for number in range(10 * ROUNDS):
            if number >= ROUNDS and cuts:  # on a busy machine few replicas live until they are cut
                break
            words = (str(tmp_path / "masters"), str(tmp_path / "replica"), str(branches.fork))
            told = run_and_kill(
                "tests.fault.replica_writer",
                *(*words, str(seed + number), mode),
                life_s=entropy.fraction() * LIFE_MAX_S + 0.05,
                log=tmp_path / "stderr.log",
            )
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
    assert cuts > 0, "no replica lived long enough to be cut: this proved nothing"


def whole_before(source: MessageStore, position: int) -> int:
    """The end of the last record that ends before a position: what is there in part is dropped by recovery."""
    ends = [
        message.physical_offset + message.size
        for queue in source.queues
        for message in source.read(queue.topic, queue.queue_id, 0, 10_000)
    ]
    return max((end for end in ends if end <= position), default=0)
