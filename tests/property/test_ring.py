"""Binding by a ring: every queue has one owner, and whoever comes or goes moves nothing but its own share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.division import Cause
from penstock.coordinator.ring import HashRing
from penstock.coordinator.ring_division import divide_by_ring
from penstock.protocol.bodies import MessageQueue

members = st.sets(st.text(min_size=1, max_size=12), min_size=1, max_size=8)
virtual = st.integers(1, 40)


def queues_of(count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("T", f"b-{number % 3}", number // 3) for number in range(count))


def shares(names: set[str], count: int, virtual_nodes: int) -> dict[str, set[MessageQueue]]:
    topics = dict.fromkeys(names, ("T",))
    return divide_by_ring(topics, {}, {"T": queues_of(count)}, virtual_nodes).shares


@pytest.mark.feature("hash-ring", "fifth-seed")
@pytest.mark.seed("S4-32")
@pytest.mark.invariant("I10")
@given(members, st.integers(0, 60), virtual)
def test_every_queue_has_exactly_one_owner(names: set[str], count: int, virtual_nodes: int) -> None:
    found = shares(names, count, virtual_nodes)
    assert found.keys() == names
    assert sorted(queue for share in found.values() for queue in share) == sorted(queues_of(count))


@pytest.mark.feature("hash-ring", "fifth-seed")
@given(members, st.text(min_size=1, max_size=12), st.integers(0, 60), virtual)
def test_who_joins_takes_and_who_leaves_gives_and_nothing_else_moves(
    names: set[str], new: str, count: int, virtual_nodes: int
) -> None:
    names = names | {"first"}
    before, after = shares(names, count, virtual_nodes), shares(names | {new}, count, virtual_nodes)
    for name in names - {new}:
        # Read forwards a join, backwards a departure: the others have what they had, less what the new one has.
        assert after[name] == before[name] - after[new]


@given(members, st.lists(st.text(min_size=1, max_size=12), max_size=6), virtual)
def test_a_ring_depends_on_its_nodes_and_not_on_its_history(
    names: set[str], passing: list[str], virtual_nodes: int
) -> None:
    ring = HashRing(virtual_nodes=virtual_nodes)
    for name in [*passing, *sorted(names, reverse=True)]:
        ring.add(name)
    for name in passing:
        if name not in names:
            ring.remove(name)
    fresh = HashRing(names, virtual_nodes)
    assert ring.hashes == fresh.hashes
    assert [ring.node_at(one) for one in ring.hashes] == [fresh.node_at(one) for one in fresh.hashes]


@given(members, members, st.integers(1, 40))
def test_who_holds_what_changes_only_the_reasons(names: set[str], others: set[str], count: int) -> None:
    queues = queues_of(count)
    held = {name: set(queues[number :: len(others)]) for number, name in enumerate(sorted(others))}
    topics = dict.fromkeys(names, ("T",))
    division = divide_by_ring(topics, held, {"T": queues})
    assert division.shares == shares(names, count, 64)
    again = divide_by_ring(topics, division.shares, {"T": queues})
    assert {reason.cause for reason in again.reasons.values()} == {Cause.KEPT}


def test_shares_are_level_on_average() -> None:
    """2000 queues among ten: 64 places each keep everybody within a factor of two of the even share."""
    found = shares({f"10.0.0.{number}@c" for number in range(10)}, 2_000, 64)
    sizes = sorted(map(len, found.values()))
    assert sizes[0] >= 100
    assert sizes[-1] <= 400
