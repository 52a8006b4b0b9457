"""Candidates in processes of their own and three real servers, all of them killed and stopped at random: never two
leaders, never a term twice, and one leader when it is over.

The seed decides what is done to whom.
"""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.effort import by_length
from tests.fault.seeded import seeded
from tests.fault.zookeeper_candidates import Candidate, check_one_at_a_time

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
LASTS_S = by_length(8.0, 180.0)
TICK_MS = 200
SESSION_MS = by_length(1_500, 3_000)
CALM_S = 120.0


class Storm:
    """Who there is, and what was done to them."""

    def __init__(self, seed: int, ensemble: ZooKeeperEnsemble, stack: ExitStack, story: list[str]) -> None:
        self._choice = random.Random(seed)
        self._ensemble = ensemble
        self._stack = stack
        self.all: list[Candidate] = []
        self.living: list[Candidate] = []
        self.story = story
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


@pytest.mark.long
@pytest.mark.fault("F1", "F2", "F11", "F12")
@pytest.mark.invariant("I6")
def test_never_two_leaders_among_real_processes(tmp_path: Path) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    story: list[str] = []
    with seeded(lambda: "\n".join(story)) as seed, ExitStack() as stack:
        ensemble = stack.enter_context(zookeeper_servers(tmp_path, count=3, tick_ms=TICK_MS))
        storm = Storm(seed, ensemble, stack, story)
        storm.living[0].wait_more(1)
        storm.wait_calm()
        deadline = time.monotonic() + LASTS_S
        while time.monotonic() < deadline:
            storm.strike()
            time.sleep(0.3)
        storm.wait_calm()
        found = check_one_at_a_time(*storm.all)
    print(f"seed {seed}: {len(story)} misfortunes, {len({term for _, _, term in found})} terms")
    assert found
