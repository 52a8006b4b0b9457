"""A classic master and its slaves, on sockets and stores."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.errors import StoreRoleError
from penstock.replication import Outcome
from penstock.store import FlushMode
from tests.support.store_pair import Node, bodies, log_bytes, message
from tests.waiting import until


async def classic_pair(path: Path, mode: FlushMode = FlushMode.ASYNC) -> tuple[Node, Node]:
    master = await Node(path / "master", classic=True, mode=mode).start()
    slave = await Node(path / "slave", classic=True, mode=mode).start()
    await master.lead()
    return master, slave


def same(master: Node, slave: Node) -> bool:
    return master.store.log.max_offset == slave.store.log.max_offset


@pytest.mark.seed("S1-27", "S1-28", "S1-29", "S1-34", "S1-35", "S1-36", "S1-37", "S1-38")
@pytest.mark.invariant("I7")
def test_a_slave_is_a_copy_of_its_master(tmp_path: Path) -> None:
    async def scene() -> None:
        master, slave = await classic_pair(tmp_path)
        master.append(0, 50)
        await slave.follow(master.address)
        await until(lambda: same(master, slave))
        master.append(50, 1_000)
        await until(lambda: same(master, slave))
        assert len(master.store.log.segments) > 2
        assert log_bytes(slave.store) == log_bytes(master.store)
        assert bodies(slave.store) == bodies(master.store)
        assert [found.body for found in slave.store.reader.query("T", "k7")] == [message(7).body]
        with pytest.raises(StoreRoleError):
            slave.store.append(message(1))
        await until(lambda: [one.behind_bytes for one in master.server.replicas()] == [0])
        assert master.server.replicas()[0].is_in_sync
        await slave.stop()
        await until(lambda: master.server.replicas() == [])
        await master.stop()

    asyncio.run(scene())


def test_a_slave_that_is_told_of_a_master_and_stopped_at_once_stops(tmp_path: Path) -> None:
    """The wait that the news ends is the one that is cancelled: it must not take that for the news alone."""

    async def scene() -> None:
        slave = await Node(tmp_path / "slave", classic=True).start()
        await slave.follow("127.0.0.1:1")
        await asyncio.sleep(0.05)  # it waits by now, for that address or between two attempts
        slave.client.follow("127.0.0.1:2")
        stopping = asyncio.ensure_future(slave.stop())
        done, _ = await asyncio.wait([stopping], timeout=20)
        assert done
        await stopping

    asyncio.run(scene())


@pytest.mark.seed("S1-31")
@pytest.mark.seed("S1-32", "S1-33")
@pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_synchronous_master_waits_for_a_copy(tmp_path: Path, mode: FlushMode) -> None:
    async def scene() -> None:
        master, slave = await classic_pair(tmp_path, mode)
        end = master.append(0)
        assert await master.replicated(end, 1) is Outcome.REPLICATED
        assert await master.replicated(end, 2, 100) is Outcome.TIMED_OUT
        await slave.follow(master.address)
        assert await master.replicated(end, 2) is Outcome.REPLICATED
        end = master.append(1, 20)
        assert await master.replicated(end, 2) is Outcome.REPLICATED
        if mode is FlushMode.SYNC:
            assert slave.store.flusher.flushed_offset == end
        assert await master.replicated(end, 3, 50) is Outcome.TIMED_OUT
        waiting = master.replicated(end + 1, 2)
        await master.stop()
        assert await waiting is Outcome.SUPERSEDED
        await slave.stop()

    asyncio.run(scene())


def test_an_empty_slave_begins_with_the_last_segment(tmp_path: Path) -> None:
    async def scene() -> None:
        master, slave = await classic_pair(tmp_path)
        master.append(0, 1_500)
        await slave.follow(master.address)
        await until(lambda: same(master, slave))
        size = master.store.log.segment_size
        first = master.store.log.max_offset // size * size
        assert slave.store.log.min_offset == first > 0
        assert log_bytes(slave.store) == log_bytes(master.store)[first:]
        assert bodies(slave.store)[-1] == bodies(master.store)[-1]
        await slave.stop()
        await master.stop()

    asyncio.run(scene())


@pytest.mark.seed("S1-46", "S1-47", "S1-53", "S1-54", "S1-72", "S1-84", "S1-85")
@pytest.mark.fault("F1", "F3")
def test_a_slave_comes_back_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.replication")

    async def scene() -> None:
        master, slave = await classic_pair(tmp_path)
        master.append(0, 10)
        await slave.follow(master.address)
        await until(lambda: same(master, slave))
        for link in list(master.server.links):
            link.abort("a test")
        master.append(10, 10)
        await until(lambda: same(master, slave))
        slave_path = slave.store.path
        await slave.stop(crash=True)
        for said in (
            "this node is a replica",
            "the connection to the master is over",
            "follows nobody any more",
        ):
            assert said in caplog.text
        master.append(20, 10)
        again = await Node(slave_path, classic=True).start()
        await again.follow(master.address)
        await until(lambda: same(master, again))
        assert log_bytes(again.store) == log_bytes(master.store)
        await again.stop()
        await master.stop()

    asyncio.run(scene())


def test_a_slave_can_be_made_master_by_hand(tmp_path: Path) -> None:
    async def scene() -> None:
        master, slave = await classic_pair(tmp_path)
        master.append(0, 10)
        await slave.follow(master.address)
        await until(lambda: same(master, slave))
        await master.stop()
        await slave.lead()
        slave.append(10, 10)
        assert bodies(slave.store) == [message(number).body for number in range(0, 20, 2)]
        other = await Node(tmp_path / "other", classic=True).start()
        await other.follow(slave.address)
        await until(lambda: same(slave, other))
        assert log_bytes(other.store) == log_bytes(slave.store)
        await other.stop()
        await slave.stop()

    asyncio.run(scene())


def test_who_is_not_master_turns_everybody_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.replication")

    async def scene() -> None:
        master, slave = await classic_pair(tmp_path)
        master.server.step_down()
        await slave.follow(master.address)
        await until(lambda: "not following" in caplog.text or "is over" in caplog.text)
        await until(lambda: not slave.client.is_connected, "the slave is turned away")
        master.server.serve()
        master.append(0)
        await until(lambda: same(master, slave))
        await slave.stop()
        await master.stop()

    asyncio.run(scene())
