"""The classic stream with a real RocketMQ 5.3.3 at the other end, both ways, and the logs compared byte for byte.

The Penstock side is a bare store with `HaServer` or `HaClient`: the stream is what is compared, not the brokers.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import penstock
from penstock.message import Message
from penstock.replication import Outcome, ReplicationOptions
from penstock.store import StoreOptions
from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_release import missing_tools, prepare_build
from tests.interop.wire.rocketmq_server import SERVER_BUILD, RocketMQ
from tests.interop.wire.small_rocketmq import SEGMENT, SmallRocketMQ
from tests.support.store_pair import Node, log_bytes
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]
# RocketMQ's own timings, but for a slave that does not wait five seconds to connect again.
OPTIONS = ReplicationOptions(reconnect_interval_ms=500)
STORE = StoreOptions(
    segment_size_bytes=SEGMENT, max_message_size_bytes=SEGMENT // 4, queue_file_entries=15_000
)


@pytest.fixture(autouse=True)
def java() -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        prepare_build(SERVER_BUILD)
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))


def body(number: int) -> bytes:
    """Something that no client compresses."""
    return b"%d:" % number + random.Random(number).randbytes(5_000)


def send(server: RocketMQ, first: int, count: int) -> None:
    with penstock.Producer(server.nameserver, linger_ms=0) as producer:
        for number in range(first, first + count):
            producer.send(penstock.Message.of("replicated", body(number), keys=f"k{number}"))


@pytest.mark.feature("ha-slave", "rocketmq-5.3")
@pytest.mark.seed("S1-29", "S1-38", "S1-40", "S1-42")
@pytest.mark.invariant("I7")
def test_a_penstock_slave_follows_a_java_master(tmp_path: Path) -> None:
    master = SmallRocketMQ(tmp_path / "java")
    try:
        with penstock.Admin(master.nameserver) as admin:
            admin.create_topic("replicated", 2)

        async def follow(first: int, count: int) -> tuple[bytes, int, list[bytes]]:
            slave = await Node(tmp_path / "slave", classic=True, options=OPTIONS, store_options=STORE).start()
            await slave.follow(master.ha_address)
            await asyncio.to_thread(send, master, first, count)
            await until(lambda: offsets(slave) == first + count, "everything is copied")
            end = slave.store.log.max_offset
            data, base, seen = log_bytes(slave.store), slave.store.log.min_offset, found(slave)
            assert data == master.log(base, end)
            await slave.stop()
            return data, base, seen

        def offsets(slave: Node) -> int:
            return sum(slave.store.max_offset("replicated", queue) for queue in (0, 1))

        def found(slave: Node) -> list[bytes]:
            store = slave.store
            messages = [
                one
                for queue in (0, 1)
                for one in store.read("replicated", queue, store.min_offset("replicated", queue), 100_000)
            ]
            return [one.body.split(b":")[0] for one in messages]

        data, base, _ = asyncio.run(follow(0, 300))
        assert len(data) > SEGMENT, "over a segment's end"
        again, base_again, seen = asyncio.run(follow(300, 100))
        assert (base_again, again[: len(data)]) == (base, data), "it went on where it was"
        assert len(seen) == len(set(seen)) == 400
    finally:
        master.stop()


@pytest.mark.feature("ha-master", "rocketmq-5.3")
@pytest.mark.seed("S1-29", "S1-38", "S1-40", "S1-42")
@pytest.mark.invariant("I7")
def test_a_java_slave_follows_a_penstock_master(tmp_path: Path) -> None:
    async def scene() -> None:
        master = await Node(tmp_path / "master", classic=True, options=OPTIONS, store_options=STORE).start()
        await master.lead()
        first = append(master, 0, 300)
        base = master.store.log.max_offset // SEGMENT * SEGMENT
        assert base > 0
        slave = await asyncio.to_thread(
            SmallRocketMQ,
            tmp_path / "java",
            master.address,
            brokerRole="SLAVE",
            brokerId=1,
        )
        try:
            assert await master.replicated(first, 2, 60_000) is Outcome.REPLICATED
            end = append(master, 300, 300)
            assert await master.replicated(end, 2, 60_000) is Outcome.REPLICATED
            assert sorted(path.name for path in slave.folder.iterdir())[0] == f"{base:020}", (
                "the last segment first"
            )
            assert slave.log(base, end) == log_bytes(master.store)[base:]
            await asyncio.to_thread(slave.restart)
            end = append(master, 600, 300)
            assert await master.replicated(end, 2, 60_000) is Outcome.REPLICATED
            assert slave.log(base, end) == log_bytes(master.store)[base:]
        finally:
            await asyncio.to_thread(slave.stop)
        await master.stop()

    def append(master: Node, first: int, count: int) -> int:
        store = master.store
        for number in range(first, first + count):
            message = Message.of("replicated", body(number), tag="t", keys=f"k{number}")
            store.append_group([store.request(message, number % 4)])
            master.server.appended()
        return store.log.max_offset

    asyncio.run(scene())
