"""Histories of a balanced group that a seed decides, and proof that a broken rule would be found.

A failing history prints the command that replays it.
"""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import pytest

from penstock.broker.partition_leases import LeaseOutcome, PartitionLeases
from penstock.coordinator.events import EventLines
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import Binding
from penstock.testing.simulation import Broken, simulate_balance
from tests.effort import by_length, first_seed

HISTORIES = by_length(300, 10_000)
RING_HISTORIES = by_length(30, 500)
FIRST = first_seed(1)
LOTS = by_length(5, 20)
# Histories among which a broken rule has to show.
SEARCH = 100


@pytest.mark.long
@pytest.mark.parametrize("lot", range(LOTS))
@pytest.mark.fault("F1", "F2", "F3")
@pytest.mark.invariant("I10")
def test_no_queue_has_two_readers_and_in_the_end_each_has_one(lot: int) -> None:
    reports = [simulate_balance(seed) for seed in range(FIRST + lot, FIRST + HISTORIES, LOTS)]
    assert sum(one.faults for one in reports) > 5 * len(reports)
    assert sum(one.rounds for one in reports) > 5 * len(reports)
    assert sum(one.moves for one in reports) > 5 * len(reports)
    assert sum(one.refusals for one in reports) > len(reports)


@pytest.mark.seed("S4-32")
@pytest.mark.long
@pytest.mark.fault("F1", "F2", "F3")
@pytest.mark.invariant("I10")
def test_the_same_holds_where_a_ring_binds_queues_to_consumers() -> None:
    seeds = range(FIRST, FIRST + RING_HISTORIES)
    reports = [simulate_balance(seed, binding=Binding.RING) for seed in seeds]
    assert sum(one.moves for one in reports) > 5 * len(reports)
    assert sum(one.refusals for one in reports) > len(reports)
    with pytest.raises(Broken, match=r"--balance --ring --seed \d+"):
        search(Generous, binding=Binding.RING)


def test_the_same_seed_is_the_same_history() -> None:
    first: list[str] = []
    second: list[str] = []
    assert simulate_balance(77, show=first.append) == simulate_balance(77, show=second.append)
    assert first == second
    assert len(first) > 10


# -- broken rules ------------------------------------------------------------------------------------------------


class Generous(PartitionLeases):
    """A broker that lets everybody have everything."""

    def claim(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LeaseOutcome:
        return LeaseOutcome(tuple(queues))

    refresh = claim


class Forgetful(PartitionLeases):
    """A broker that grants at once after a start, although somebody may hold what it does not know of."""

    def begin(self, topics: Iterable[str]) -> None:
        super().begin(())


class Forgiving(PartitionLeases):
    """A broker that lets somebody go on whose lease is over, whoever has read on meanwhile."""

    def refresh(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LeaseOutcome:
        return LeaseOutcome(tuple(queues))


def search(leases: type[PartitionLeases], *, gentle: bool = False, binding: Binding = Binding.EVEN) -> None:
    for seed in range(1, SEARCH + 1):
        simulate_balance(seed, leases=leases, gentle=gentle, binding=binding)


@pytest.mark.parametrize("leases", [Generous, Forgetful, Forgiving])
def test_a_broken_lease_is_found(leases: type[PartitionLeases]) -> None:
    with pytest.raises(Broken, match=r"seed \d+: I10: queue .*--balance --seed \d+"):
        search(leases)


def test_the_barrier_alone_keeps_living_consumers_apart_and_its_lack_is_found() -> None:
    """Whatever is late or lost: without deaths and take-overs the coordinator gives away nothing that is held."""
    search(Generous, gentle=True)
    with (
        patch.object(EventLines, "is_deliverable", lambda self, member, is_taken: True),
        pytest.raises(Broken, match="I10: queue"),
    ):
        search(Generous, gentle=True)


@pytest.mark.parametrize("seed", [2242, 2554])
def test_who_slept_through_its_lease_does_not_renew_it_at_a_broker_that_has_forgotten(seed: int) -> None:
    """Rare: a sleeper wakes while the broker, just started, believes everybody who says that it holds a queue."""
    with (
        patch("penstock.testing.simulation.balancing.is_renewable", lambda asked_ms, lease_ms, now_ms: True),
        pytest.raises(Broken, match="I10: queue"),
    ):
        simulate_balance(seed)
    simulate_balance(seed)
