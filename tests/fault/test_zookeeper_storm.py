"""Candidates in processes of their own and three real servers, all of them killed and stopped at random: never two
leaders, never a term twice, and one leader when it is over.

The seed decides what is done to whom; PENSTOCK_STORM_SEED repeats one as far as timing allows, PENSTOCK_STORM_S makes
it longer.
"""

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.fault.zookeeper_candidates import Candidate, check_one_at_a_time

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
SESSION_MS = 3000
CALM_S = 90.0


class Storm:
    """Who there is, and what was done to them."""

    def __init__(self, seed: int, ensemble: ZooKeeperEnsemble, stack: ExitStack) -> None:
        self._choice = random.Random(seed)
        self._ensemble = ensemble
        self._stack = stack
        self.all: list[Candidate] = []
        self.living: list[Candidate] = []
        self.story: list[str] = []
        for _ in range(3):
            self._join()

    def _join(self) -> None:
        name = f"candidate-{len(self.all)}"
        candidate = self._stack.enter_context(
            Candidate(f"zookeeper:{self._ensemble.hosts}", name, SESSION_MS)
        )
        self.all.append(candidate)
        self.living.append(candidate)

    def strike(self) -> None:
        """One misfortune, and its end."""
        choice = self._choice
        leading = [candidate for candidate in self.living if candidate.leads]
        # Mostly the leader: the others have little to lose.
        candidate = (
            choice.choice(leading or self.living) if choice.random() < 0.7 else choice.choice(self.living)
        )
        server = choice.choice(self._ensemble.servers)
        seconds = choice.uniform(0.2, 2 * SESSION_MS / 1000)
        kind = choice.choice(
            ["pause candidate", "kill candidate", "pause server", "kill server", "pause both"]
        )
        self.story.append(
            f"{time.monotonic_ns() // 1_000_000} {kind}: {candidate.identity}, {server.number}, {seconds:.1f} s"
        )
        match kind:
            case "pause candidate":
                candidate.pause()
                time.sleep(seconds)
                candidate.resume()
            case "kill candidate":
                candidate.kill()
                self.living.remove(candidate)
                time.sleep(seconds)
                self._join()
            case "pause server":
                server.pause()
                time.sleep(seconds)
                server.resume()
            case "kill server":
                server.kill()
                time.sleep(seconds)
                server.start()
            case "pause both":
                candidate.pause()
                server.pause()
                time.sleep(seconds)
                candidate.resume()
                time.sleep(choice.uniform(0, 1))
                server.resume()

    def wait_calm(self) -> None:
        """Until exactly one of the living leads, and goes on doing so."""
        self._ensemble.wait_serving(3)
        deadline = time.monotonic() + CALM_S
        while time.monotonic() < deadline:
            if sum(candidate.leads for candidate in self.living) == 1:
                return
            time.sleep(0.05)
        raise AssertionError("nobody leads although all is well again")


@pytest.mark.fault("F1", "F2", "F11", "F12")
@pytest.mark.invariant("I6")
def test_never_two_leaders_among_real_processes(tmp_path: Path) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    seed = int(os.environ.get("PENSTOCK_STORM_SEED") or random.SystemRandom().randrange(10**6))
    lasts_s = float(os.environ.get("PENSTOCK_STORM_S") or 40)
    with ExitStack() as stack:
        ensemble = stack.enter_context(zookeeper_servers(tmp_path, count=3, tick_ms=200))
        storm = Storm(seed, ensemble, stack)
        try:
            storm.living[0].wait_more(1)
            storm.wait_calm()
            deadline = time.monotonic() + lasts_s
            while time.monotonic() < deadline:
                storm.strike()
                time.sleep(0.5)
            storm.wait_calm()
            found = check_one_at_a_time(*storm.all)
        except AssertionError as error:
            error.add_note(f"PENSTOCK_STORM_SEED={seed}\n" + "\n".join(storm.story))
            raise
    print(f"seed {seed}: {len(storm.story)} misfortunes, {len({term for _, _, term in found})} terms")
    assert found
