"""Masters of epochs and their replicas, on sockets and stores: joining, confirming, elections, cutting back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import OptionError, StoreRoleError
from penstock.replication import Outcome
from penstock.store import FlushMode
from tests.support.store_pair import QUICK, Node, bodies, log_bytes, message
from tests.waiting import until

BOTH_MODES = pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])


async def nodes(path: Path, count: int = 2, mode: FlushMode = FlushMode.ASYNC) -> list[Node]:
    return [await Node(path / f"node{n}", n, mode=mode).start() for n in range(1, count + 1)]


def in_sync(master: Node, *ids: int) -> bool:
    return master.server.tracker is not None and master.server.tracker.members == set(ids)


def equal(*several: Node) -> bool:
    return len({node.store.log.max_offset for node in several}) == 1


async def stop(*several: Node) -> None:
    for node in several:
        await node.stop()


@BOTH_MODES
@pytest.mark.invariant("I1", "I7")
def test_replicas_join_and_confirm(tmp_path: Path, mode: FlushMode) -> None:
    async def scene() -> None:
        one, two, three = await nodes(tmp_path, 3, mode)
        await one.lead(1)
        first = one.append(0, 20)
        if mode is FlushMode.SYNC:
            one.store.flush()
        assert await one.replicated(first) is Outcome.REPLICATED, "a master alone is the whole set"
        await two.follow(one.address, 1)
        await three.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2, 3))
        end = one.append(20, 300)
        if mode is FlushMode.SYNC:
            one.store.flush()
            one.server.appended()
        assert await one.replicated(end) is Outcome.REPLICATED
        for node in (two, three):
            assert log_bytes(node.store) == log_bytes(one.store)
            assert node.epochs.entries == ((1, 0),)
            if mode is FlushMode.SYNC:
                assert node.store.flusher.flushed_offset == end
        await until(lambda: len(bodies(two.store)) == len(bodies(three.store)) == 160)
        assert bodies(two.store) == bodies(one.store)
        assert [(status.replica_id, status.is_in_sync) for status in one.server.replicas()] == [
            (2, True),
            (3, True),
        ]
        await stop(three, two, one)

    asyncio.run(scene())


@pytest.mark.invariant("I5")
def test_nobody_sees_what_is_not_confirmed(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        one.append(0, 10)
        await until(lambda: len(bodies(one.store)) == 5)
        one.grants = False
        await two.client.stop()
        two.client = None
        end = one.append(10, 10)
        assert await one.replicated(end, timeout_ms=50) is Outcome.TIMED_OUT
        assert len(bodies(one.store)) == 5
        await until(lambda: one.proposals[-1].members == {1}, "the master proposes to go on alone")
        proposal = one.proposals[-1]
        one.server.tracker.decided({1}, proposal.set_epoch + 1)
        assert len(bodies(one.store)) == 10, "the coordinator let the replica go"
        assert await one.replicated(end) is Outcome.REPLICATED
        await stop(two, one)

    asyncio.run(scene())


@BOTH_MODES
@pytest.mark.invariant("I1", "I4", "I7", "I11")
@pytest.mark.fault("F12")
def test_an_old_master_comes_back_and_drops_what_was_never_confirmed(tmp_path: Path, mode: FlushMode) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path, mode=mode)
        await one.lead(1)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        confirmed = one.append(0, 30)
        one.store.flush()
        one.server.appended()
        assert await one.replicated(confirmed) is Outcome.REPLICATED
        # Cut off from each other; the old master goes on for a while and is told nothing.
        one.grants = False
        await two.client.stop()
        two.client = None
        lost = one.append(30, 30)
        outcome = one.replicated(lost)
        await two.lead(2)
        new = two.append(100, 50)
        two.store.flush()
        await one.follow(two.address, 2)
        assert await outcome is Outcome.SUPERSEDED
        await until(lambda: in_sync(two, 1, 2))
        assert await two.replicated(new) is Outcome.REPLICATED
        assert log_bytes(one.store) == log_bytes(two.store)
        assert one.epochs.entries == two.epochs.entries == ((1, 0), (2, confirmed))
        wanted = [message(n).body for n in (*range(0, 30, 2), *range(100, 150, 2))]
        await until(lambda: bodies(one.store) == wanted)
        assert bodies(two.store) == wanted
        # And back again: queue offsets go on where the other left them.
        await two.stop()
        await one.lead(3)
        one.append(200, 2)
        one.store.flush()
        assert bodies(one.store) == [*wanted, message(200).body]
        await one.stop()

    asyncio.run(scene())


@pytest.mark.invariant("I6")
@pytest.mark.fault("F12")
def test_a_replica_of_a_newer_epoch_ends_an_old_master(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        waiting = one.replicated(one.append(0, 5) + 1)
        two.client.follow(one.address, 2)
        await until(lambda: one.superseded_by == [2])
        assert await waiting is Outcome.SUPERSEDED
        assert one.server.tracker is None
        end = one.store.log.max_offset
        assert await one.replicated(end) is Outcome.SUPERSEDED
        with pytest.raises(StoreRoleError):
            one.server.send_tables(b"x")
        two.client.follow("127.0.0.1:1", 1)
        assert two.client.epoch == 2, "an older master is not followed"
        await stop(two, one)

    asyncio.run(scene())


def test_a_master_that_is_elected_again_goes_on_with_its_replicas(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        one.append(0, 5)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        await until(lambda: equal(one, two))
        start = one.store.log.max_offset
        await one.lead(2, {1, 2}, 9)
        two.client.follow(one.address, 2)
        end = one.append(5, 5)
        assert await one.replicated(end) is Outcome.REPLICATED
        assert two.epochs.entries == ((1, 0), (2, start))
        with pytest.raises(StoreRoleError):
            one.server.lead(1, {1}, 10)
        await stop(two, one)

    asyncio.run(scene())


def test_a_member_that_stops_reading_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        two.client.link.transport.pause_reading()
        end = one.append(0, 10)
        assert await one.replicated(end) is Outcome.REPLICATED, "without it, once it has left"
        assert in_sync(one, 1)
        await until(lambda: in_sync(one, 1, 2))
        assert await one.replicated(one.append(10, 10)) is Outcome.REPLICATED
        assert equal(one, two)
        await stop(two, one)

    asyncio.run(scene())


def test_an_empty_replica_gets_the_whole_log_or_the_last_segment(tmp_path: Path) -> None:
    async def scene() -> None:
        (one,) = await nodes(tmp_path, 1)
        await one.lead(1)
        one.append(0, 1_500)
        whole = await Node(tmp_path / "whole", 2).start()
        last = await Node(
            tmp_path / "last", 3, options=replace(QUICK, sync_from_last_file=True, is_learner=True)
        ).start()
        await whole.follow(one.address, 1)
        await last.follow(one.address, 1)
        await until(lambda: equal(one, whole, last))
        assert log_bytes(whole.store) == log_bytes(one.store)
        assert last.store.log.min_offset == one.store.log.max_offset // 65536 * 65536
        assert log_bytes(last.store) == log_bytes(one.store)[last.store.log.min_offset :]
        await until(lambda: in_sync(one, 1, 2))
        one.append(1_500, 10)
        await until(lambda: equal(one, whole, last))
        assert in_sync(one, 1, 2), "a learner never joins"
        await stop(whole, last, one)

    asyncio.run(scene())


def test_a_log_from_before_epochs_belongs_to_the_first_one(tmp_path: Path) -> None:
    async def scene() -> None:
        old = await Node(tmp_path / "node1", classic=True).start()
        await old.lead()
        old.append(0, 10)
        await old.stop()
        one, two = await nodes(tmp_path)
        await one.lead(4)
        one.append(10, 10)
        await two.follow(one.address, 4)
        await until(lambda: in_sync(one, 1, 2))
        await until(lambda: equal(one, two))
        assert two.epochs.entries == ((4, 0),)
        assert log_bytes(two.store) == log_bytes(one.store)
        await stop(two, one)

    asyncio.run(scene())


def test_a_replica_of_another_history_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await two.lead(1)
        two.append(0, 3)
        before = log_bytes(two.store)
        await one.lead(2)
        one.append(10, 5)
        await two.follow(one.address, 2)
        await until(lambda: "shares no epoch" in caplog.text)
        assert log_bytes(two.store) == before
        assert not two.client.is_following
        await stop(two, one)

    asyncio.run(scene())


@BOTH_MODES
@pytest.mark.invariant("I12")
def test_first_master_that_replicated_nothing_rejoins_the_set(tmp_path: Path, mode: FlushMode) -> None:
    """Nothing that it wrote was confirmed, so it discards that and follows the next master."""

    async def scene() -> None:
        one, two = await nodes(tmp_path, mode=mode)
        await two.lead(1, {1, 2})
        two.append(0, 3)
        await one.lead(2)
        one.append(10, 5)
        await two.follow(one.address, 2)
        await until(lambda: in_sync(one, 1, 2))
        await until(lambda: equal(one, two))
        assert log_bytes(two.store) == log_bytes(one.store)
        assert two.epochs.entries == ((2, 0),)
        await stop(two, one)

    asyncio.run(scene())


@pytest.mark.invariant("I1")
def test_side_tables_reach_every_member_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        one.tables = b"all at 0"
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        assert two.applied == [b"all at 0"]
        done: list[Outcome] = []
        for number in range(1, 4):
            assert one.server.send_tables(b"change %d" % number) == number
        one.server.when_tables_replicated(3, done.append)
        await until(lambda: done == [Outcome.REPLICATED])
        assert two.applied[1:] == [b"change 1", b"change 2", b"change 3"]
        await two.client.stop()
        two.client = None
        one.tables = b"all at 4"
        sequence = one.server.send_tables(b"change 4")
        await two.follow(one.address, 1)
        one.server.when_tables_replicated(sequence, done.append)
        await until(lambda: len(done) == 2)
        await until(lambda: two.applied[-1] == b"all at 4")
        await stop(two, one)

    asyncio.run(scene())


def test_a_master_without_side_tables_waits_for_none(tmp_path: Path) -> None:
    async def scene() -> None:
        one = await Node(tmp_path / "node1", 1, has_tables=False).start()
        two = await Node(tmp_path / "node2", 2).start()
        await one.lead(1)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        assert two.applied == []
        with pytest.raises(OptionError):
            one.server.send_tables(b"x")
        await stop(two, one)

    asyncio.run(scene())


def test_a_replica_that_connects_twice_is_one_replica(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        twin = await Node(tmp_path / "twin", 2).start()
        await one.lead(1)
        one.append(0, 3)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        await twin.follow(one.address, 1)
        await until(lambda: equal(one, twin))
        assert len(one.server.replicas()) <= 1
        await stop(twin, two, one)

    asyncio.run(scene())


@pytest.mark.fault("F2")
def test_without_a_word_a_connection_ends_on_both_sides(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = await nodes(tmp_path)
        await one.lead(1)
        one.append(0, 3)
        await two.follow(one.address, 1)
        await until(lambda: in_sync(one, 1, 2))
        link = two.client.link
        link.transport.pause_reading()
        await until(lambda: two.client.link is not link, "the replica gives up a silent master")
        await until(lambda: two.client.is_following)
        await until(lambda: len(one.server.links) == 1, "the old connection has ended")
        (served,) = one.server.links
        served.transport.pause_reading()
        await until(lambda: served not in one.server.links, "the master gives up a silent replica")
        await until(lambda: in_sync(one, 1, 2))
        await stop(two, one)

    asyncio.run(scene())


@pytest.mark.abuse("A2", "A14")
def test_too_many_connections_are_turned_away_and_silent_ones_closed(tmp_path: Path) -> None:
    async def scene() -> None:
        # Silent ones are closed only when the test has counted them.
        options = replace(QUICK, connections_max=3, housekeeping_interval_ms=2_000)
        one = await Node(tmp_path, 1, options=options).start()
        await one.lead(1)
        pairs = [await asyncio.open_connection(*one.server.address) for _ in range(6)]
        for reader, _ in pairs[3:]:
            assert await reader.read() == b""
        assert len(one.server.links) == 3
        await until(lambda: not one.server.links)
        for _, writer in pairs:
            writer.close()
        await one.stop()

    asyncio.run(scene())
