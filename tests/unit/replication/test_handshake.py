"""Where two logs part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.handshake import common_point, epoch_at


@pytest.mark.parametrize(
    ("local", "local_max", "remote", "remote_max", "point"),
    [
        ([(1, 0)], 50, [(1, 0)], 80, 50),
        ([(1, 0)], 80, [(1, 0)], 50, 50),
        ([(1, 0)], 80, [(1, 0), (2, 60)], 100, 60),
        ([(1, 0), (2, 50)], 80, [(1, 0), (3, 60)], 100, 50),
        ([(1, 0), (2, 50), (4, 70)], 80, [(1, 0), (2, 50), (3, 60)], 100, 60),
        ([(1, 0), (2, 50)], 80, [(1, 0), (2, 40)], 100, 40),
        ([(2, 50)], 80, [(1, 0), (2, 50)], 100, 80),
        ([(1, 0)], 80, [(2, 0)], 100, None),
        ([], 80, [(2, 0)], 100, None),
        ([(2, 10)], 80, [], 0, None),
    ],
)
def test_common_point(
    local: list[tuple[int, int]],
    local_max: int,
    remote: list[tuple[int, int]],
    remote_max: int,
    point: int | None,
) -> None:
    assert common_point(local, local_max, remote, remote_max) == point


def test_the_epoch_of_a_position() -> None:
    epochs = [(1, 10), (3, 50), (4, 70)]
    assert epoch_at(epochs, 9) is None
    assert epoch_at(epochs, 10) == ((1, 10), 50)
    assert epoch_at(epochs, 49) == ((1, 10), 50)
    assert epoch_at(epochs, 69) == ((3, 50), 70)
    assert epoch_at(epochs, 70) == ((4, 70), (1 << 63) - 1)
    assert epoch_at([], 0) is None


class Node:
    """A log whose bytes are the epochs that wrote them, with a number that no other byte has."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, int]] = []

    def enter(self, epoch: int, start: int) -> None:
        self.epochs = [entry for entry in self.epochs if entry[1] < start] + [(epoch, start)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 7), st.integers(0, 7)), max_size=12
    )
)
@pytest.mark.invariant("I7")
def test_logs_are_equal_up_to_the_common_point(elections: list[tuple[int, int, int, int]]) -> None:
    """Any master of any three, any part of its bytes copied before the next election: what the common point keeps is
    equal, and a replica that follows ends with its master's log."""
    nodes = [Node(), Node(), Node()]
    number = 0
    for epoch, (master, written, *copied) in enumerate(elections, 1):
        leader, *others = nodes[master:] + nodes[:master]
        leader.enter(epoch, len(leader.log))
        for _ in range(written):
            number += 1
            leader.log.append((epoch, number))
        for replica, count in zip(others, copied, strict=True):
            if count == 7:
                continue  # cut off all the time
            if replica.log:
                point = common_point(replica.epochs, len(replica.log), leader.epochs, len(leader.log))
                if point is None:
                    assert replica.log[0] != leader.log[0:1]
                    point = 0
                assert replica.log[:point] == leader.log[:point]
                del replica.log[point:]
                replica.epochs = [entry for entry in replica.epochs if entry[1] < point]
            for byte in leader.log[len(replica.log) : len(replica.log) + count]:
                entry, _ = epoch_at(leader.epochs, len(replica.log)) or ((0, 0), 0)
                if not replica.epochs or replica.epochs[-1] != entry:
                    assert not replica.epochs or entry[1] == len(replica.log)
                    replica.enter(*entry)
                replica.log.append(byte)
            assert replica.log == leader.log[: len(replica.log)]
