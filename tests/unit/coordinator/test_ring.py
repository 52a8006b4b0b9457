"""The consistent-hash ring: its places, whose they are, and who has something to do."""

from __future__ import annotations

import pytest

from penstock.coordinator.ring import HashRing, ring_hash, virtual_hashes
from penstock.coordinator.ring_division import divide_by_ring, queue_key
from penstock.protocol.bodies import MessageQueue

NODES = ["10.0.0.1@a", "10.0.0.2@b", "10.0.0.3@c"]


@pytest.mark.feature("hash-ring", "fifth-seed")
@pytest.mark.seed("S4-58")
@pytest.mark.seed("S4-60")
def test_a_ring_is_a_sorted_array_of_virtual_hashes_of_32_bits() -> None:
    ring = HashRing(NODES, virtual_nodes=50)
    assert ring.virtual_nodes == 50
    assert list(ring.hashes) == sorted(set(ring.hashes))
    assert len(ring.hashes) == 150
    assert all(0 <= virtual < 1 << 32 for virtual in ring.hashes)
    # Beyond 31 bits: they are unsigned.
    assert max(ring.hashes) > 1 << 31


@pytest.mark.feature("hash-ring", "fifth-seed")
@pytest.mark.seed("S4-59")
def test_each_virtual_hash_leads_to_its_real_node() -> None:
    ring = HashRing(NODES, virtual_nodes=8)
    for node in NODES:
        assert {ring.node_at(virtual) for virtual in virtual_hashes(node, 8)} == {node}
    with pytest.raises(KeyError):
        ring.node_at(min(set(range(30)) - set(ring.hashes)))


def test_hashes_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert [ring_hash(text) for text in ("", "T/b/0", "10.0.0.1@a#0")] == [0x1271CF25, 0x35697AD7, 0x8F562DE1]


@pytest.mark.feature("hash-ring", "fifth-seed")
@pytest.mark.seed("S4-61")
@pytest.mark.seed("S4-62")
def test_a_node_is_bound_once_something_fell_to_it() -> None:
    ring = HashRing(NODES)
    assert ring.idle == NODES
    key = next(f"k{number}" for number in range(1_000) if ring.owner(f"k{number}") == NODES[1])
    assert not ring.is_bound(NODES[1])
    assert ring.bind(key) == NODES[1]
    assert ring.is_bound(NODES[1])
    assert ring.idle == [NODES[0], NODES[2]]
    assert not ring.is_bound("stranger")
    ring.remove(NODES[1])
    ring.add(NODES[1])
    assert not ring.is_bound(NODES[1])


def test_an_empty_ring_owns_nothing() -> None:
    ring = HashRing()
    assert (len(ring), ring.owner("k"), ring.bind("k"), ring.idle) == (0, None, None, [])
    ring.add("a")
    ring.add("a")
    assert (len(ring), "a" in ring, ring.nodes, ring.owner("k")) == (1, True, ["a"], "a")
    ring.remove("a")
    ring.remove("a")
    assert (ring.hashes, ring.owner("k")) == ((), None)
    with pytest.raises(ValueError, match="at least one"):
        HashRing(virtual_nodes=0)


def test_behind_the_last_place_comes_the_first() -> None:
    ring = HashRing(["a", "b"], virtual_nodes=1)
    first, last = ring.hashes
    behind = next(f"k{number}" for number in range(100_000) if ring_hash(f"k{number}") > last)
    assert ring.owner(behind) == ring.node_at(first)


def test_two_nodes_with_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of their coming: the first by name has it, and the other when that one leaves."""
    monkeypatch.setattr("penstock.coordinator.ring.virtual_hashes", lambda node, count: (7,))
    for order in (["a", "b"], ["b", "a"]):
        ring = HashRing()
        for node in order:
            ring.add(node)
        assert (ring.hashes, ring.owner("k")) == ((7,), "a")
        ring.remove("a")
        assert (ring.hashes, ring.owner("k")) == ((7,), "b")


@pytest.mark.seed("S4-54")
def test_a_queue_goes_to_whom_its_name_falls_to_among_its_subscribers() -> None:
    queues = {topic: tuple(MessageQueue(topic, "b", number) for number in range(40)) for topic in "TU"}
    topics = {"a": {"T", "U"}, "b": {"T"}, "c": {"U"}}
    division = divide_by_ring(topics, {}, queues)
    both, other = HashRing(["a", "b"]), HashRing(["a", "c"])
    for queue in queues["T"]:
        assert queue in division.shares[str(both.owner(queue_key(queue)))]
    for queue in queues["U"]:
        assert queue in division.shares[str(other.owner(queue_key(queue)))]
