"""Brokers that died are remembered for a day, and only those."""

from __future__ import annotations

import asyncio

from penstock.nameserver import NameServer
from penstock.nameserver.lost_brokers import COUNT_MAX, KEPT_MS, LostBrokers
from penstock.nameserver.route_table import Place, Registration, Removed
from penstock.protocol.bodies.route import ClusterInfo
from penstock.protocol.codes import RequestCode
from penstock.testing import ManualClock
from tests.support.nameserver_wire import Peer, name_server, peer
from tests.waiting import until


async def lost(client: Peer) -> list[tuple[str, int, str]]:
    answer = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    found = ClusterInfo.decode(answer.body).lost_brokers
    return [(one.broker_name, one.broker_id, one.address) for one in found]


def test_a_broker_whose_connection_breaks_is_lost_until_it_registers_again() -> None:
    async def test(server: NameServer) -> None:
        async with peer(server) as client:
            async with peer(server) as broker:
                await broker.register()
                assert await lost(client) == []
            await until(lambda: not server.routes.live)
            assert await lost(client) == [("broker-a", 0, "10.0.0.1:10911")]
            async with peer(server) as broker:
                await broker.register()
                assert await lost(client) == []

    run(test)


def test_a_broker_that_says_that_it_leaves_is_not_lost() -> None:
    async def test(server: NameServer) -> None:
        async with peer(server) as client:
            async with peer(server) as broker:
                await broker.register()
                fields = {
                    "brokerName": "broker-a",
                    "brokerAddr": "10.0.0.1:10911",
                    "clusterName": "c",
                    "brokerId": 0,
                }
                assert (await broker.ask(RequestCode.UNREGISTER_BROKER, **fields)).code == 0
            await until(lambda: not server.routes.live)
            assert await lost(client) == []

    run(test)


def test_a_lost_broker_can_be_unregistered_by_hand() -> None:
    async def test(server: NameServer) -> None:
        async with peer(server) as client:
            async with peer(server) as broker:
                await broker.register()
            await until(lambda: not server.routes.live)
            fields = {
                "brokerName": "broker-a",
                "brokerAddr": "10.0.0.1:10911",
                "clusterName": "c",
                "brokerId": 0,
            }
            await client.ask(RequestCode.UNREGISTER_BROKER, **fields)
            assert await lost(client) == []

    run(test)


def test_a_new_process_replaces_the_lost_one_and_a_new_master_does_not() -> None:
    async def test(server: NameServer) -> None:
        async with peer(server) as client, peer(server) as replica:
            async with peer(server) as master:
                await master.register()
                await replica.register(broker_addr="10.0.0.2:10911", broker_id=1)
            await until(lambda: len(server.routes.live) == 1)
            await replica.register(broker_addr="10.0.0.2:10911", broker_id=0)
            assert await lost(client) == [("broker-a", 0, "10.0.0.1:10911")], (
                "its id has moved, it is still down"
            )
            async with peer(server) as other:
                await other.register(broker_addr="10.0.0.3:10911", broker_id=0)
                assert await lost(client) == [], "a process at another address took its place"

    run(test)


def test_lost_brokers_are_forgotten_after_a_day_and_beyond_the_limit() -> None:
    clock = ManualClock()
    table = LostBrokers(clock)
    for number in range(COUNT_MAX + 1):
        table.add(Removed(Place("c", f"10.0.0.1:{number}"), "b", number, 1))
    assert len(table.all()) == COUNT_MAX
    assert table.all()[0].broker_id == 1
    clock.advance(KEPT_MS)
    table.add(Removed(Place("c", "10.0.0.2:1"), "new", 0, 1))
    assert [one.broker_name for one in table.all()] == ["new"]


def test_a_broker_whose_id_another_address_has_taken_is_not_lost() -> None:
    clock = ManualClock()
    table = LostBrokers(clock)
    table.add(Removed(Place("c", "10.0.0.1:1"), "b", None, 1))
    table.registered(
        Registration(cluster="c", broker="b", broker_id=0, address="10.0.0.9:1", connection=1), was_live=False
    )
    assert table.all() == ()


def run(test: object) -> None:
    async def with_server() -> None:
        async with name_server() as server:
            await test(server)  # type: ignore[operator]

    asyncio.run(with_server())
