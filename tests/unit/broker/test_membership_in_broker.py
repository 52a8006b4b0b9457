"""Members, resets, topics and registration in a whole broker, with real name servers."""

import asyncio
from pathlib import Path

import pytest

from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.server import NameServer
from penstock.protocol.bodies import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.running_broker import pulls_held, run, running
from tests.waiting import until


async def route(client: RemotingClient, address: str, topic: str) -> TopicRouteData | None:
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    answer = await client.call(address, request)
    return TopicRouteData.decode(answer.body) if answer.code == 0 else None


@pytest.mark.seed("S1-6")
@pytest.mark.seed("S2-4")
@pytest.mark.seed("S2-5")
@pytest.mark.seed("S3-23")
def test_a_new_topic_is_known_to_every_name_server_at_once(tmp_path: Path) -> None:
    async def life() -> None:
        options = NameServerOptions(port=0)
        servers = [NameServer(options, runtime=Runtime.system()) for _ in range(2)]
        for server in servers:
            await server.start()
        asking = RemotingClient(runtime=Runtime.system())
        addresses = tuple(server.address for server in servers)
        async with running(tmp_path, name_servers=addresses) as bench:
            assert await bench.broker.registration.wait_registered(60_000)
            for address in addresses:
                model = await route(asking, address, "TBW102")
                assert model is not None
                assert model.broker_datas[0].broker_addrs == {0: bench.broker.address}
                assert await route(asking, address, "T") is None
            assert (await bench.client.send("T")).code == 0
            await bench.client.heartbeat("g")
            for address in addresses:
                for topic in ("T", "%RETRY%g"):
                    await until(lambda address=address, topic=topic: route(asking, address, topic))  # type: ignore[misc]
        for address in addresses:  # stopped: it has unregistered
            assert await route(asking, address, "T") is None
        await asking.close()
        for server in servers:
            await server.stop()

    run(life)


def test_a_reset_moves_a_consumer_whose_pull_is_waiting(tmp_path: Path) -> None:
    async def life() -> None:
        async with running(tmp_path) as bench:
            for _ in range(3):
                await bench.client.send("T")
            await bench.client.heartbeat("consumers")
            waiting = asyncio.ensure_future(bench.client.pull("T", offset=3, wait_ms=60_000))
            await pulls_held(bench)
            fields = {"topic": "T", "group": "consumers", "timestamp": "0", "isForce": "true"}
            operator = bench.connect()
            assert (await operator.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == 0
            moved = await waiting
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED
            assert moved.fields["nextBeginOffset"] == "0"
            again = await bench.client.pull("T", offset=0)
            assert again.code == 0

    run(life)


def test_silent_clients_are_closed_unless_another_group_of_theirs_lives(tmp_path: Path) -> None:
    clock = ManualClock()

    async def life() -> None:
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime, channel_scan_interval_ms=10) as bench:
            broker, quiet = bench.broker, bench.connect()
            await bench.client.heartbeat("g1")
            await bench.client.heartbeat("g2")
            await quiet.heartbeat("g2", client_id="quiet@1")
            clock.advance(100_000)
            await bench.client.heartbeat("g2")
            clock.advance(20_001)
            await until(lambda: broker.consumers.group("g1") is None)
            await until(lambda: len(broker.connections) == 1)
            group = broker.consumers.group("g2")
            assert group is not None
            assert group.client_ids == ["client@1"]
            assert (await bench.client.send("T")).code == 0

    run(life)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_topic_whose_config_was_lost_in_a_crash_is_not_lost(tmp_path: Path) -> None:
    async def first() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send("T", b"kept", queue=2)).code == 0
            await until(lambda: bench.broker.topics.stored.is_clean)

    async def second() -> None:
        async with running(tmp_path) as bench:
            found = bench.broker.topics.get("T")
            assert found is not None
            assert found.read_queue_nums == 3
            assert (await bench.client.pull("T", queue=2)).code == 0

    run(first)
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).unlink(missing_ok=True)
    run(second)
