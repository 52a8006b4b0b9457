"""Candidates in processes of their own, and what they said of themselves."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient

from tests.support.forked_process import ForkedProcess

WAIT_S = 90.0


@dataclass(frozen=True)
class Belief:
    """What a candidate said at one moment."""

    at_ms: int
    leads: bool
    term: int


class Candidate:
    """One process of `zookeeper_candidate`."""

    def __init__(self, address: str, identity: str, session_timeout_ms: int) -> None:
        self.identity = identity
        self._process = ForkedProcess(
            "tests.fault.zookeeper_candidate", address, identity, str(session_timeout_ms)
        )
        self.beliefs: list[Belief] = []
        self._reader = threading.Thread(target=self._read, name=f"reader of {identity}")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def leads(self) -> bool:
        return bool(self.beliefs) and self.beliefs[-1].leads

    def wait_leading(self) -> Belief:
        """The moment in which it began to lead, from now on."""
        seen = len(self.beliefs)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for belief in self.beliefs[max(0, seen - 1) :]:
                if belief.leads:
                    return belief
            time.sleep(0.005)
        raise AssertionError(f"{self.identity} does not lead after {WAIT_S} s")

    def wait_more(self, count: int) -> None:
        """Until it has said so much more."""
        wanted = len(self.beliefs) + count
        deadline = time.monotonic() + WAIT_S
        while len(self.beliefs) < wanted:
            assert time.monotonic() < deadline, f"{self.identity} says nothing"
            time.sleep(0.005)

    def _read(self) -> None:
        with open(self._process.out, "rb", closefd=False) as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    at, belief, term = line.split()
                    self.beliefs.append(Belief(int(at), belief == b"leader", int(term)))


def delete_everything(hosts: str) -> None:
    """All entries of Penstock, of tests that came before."""
    client = KazooClient(hosts=hosts)
    client.start(timeout=WAIT_S)
    client.delete("/penstock", recursive=True)
    client.stop()
    client.close()


def reigns(candidate: Candidate) -> list[tuple[int, int, int]]:
    """First and last moment of each unbroken belief to lead, with its term."""
    found: list[tuple[int, int, int]] = []
    before: Belief | None = None
    for belief in candidate.beliefs:
        if belief.leads:
            if before is not None and before.leads and before.term == belief.term:
                found[-1] = (found[-1][0], belief.at_ms, belief.term)
            else:
                found.append((belief.at_ms, belief.at_ms, belief.term))
        before = belief
    return found


def check_one_at_a_time(*candidates: Candidate) -> list[tuple[int, int, int]]:
    """No two believed to lead at the same moment (I6), and terms grow with time. The reigns, by time."""
    whole = sorted(reign for candidate in candidates for reign in reigns(candidate))
    for (_, end, term), (start, _, next_term) in pairwise(whole):
        assert end < start, f"term {term} was believed in until {end}, term {next_term} from {start}"
        assert term <= next_term
    owners: dict[int, str] = {}
    for candidate in candidates:
        for _, _, term in reigns(candidate):
            assert owners.setdefault(term, candidate.identity) == candidate.identity, (
                f"term {term} came twice"
            )
    return whole
