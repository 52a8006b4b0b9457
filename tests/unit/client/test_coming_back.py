"""Servers that come back: an empty name server takes no route away, a restarted broker scatters no group."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import rebalancing
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.instance import ClientInstance
from penstock.client.options import ClientOptions
from penstock.protocol.bodies import ConsumerList
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.unit.client.consumer_cluster import ScriptedBroker, scripted
from tests.unit.client.producer_cluster import cluster
from tests.waiting import until

# Sorts before every client id, so the only queue is its.
FIRST = "!"


@pytest.mark.seed("S2-5")
def test_a_route_that_no_name_server_knows_is_kept_while_its_broker_is_connected() -> None:
    async def scenario() -> None:
        async with cluster() as fake:
            instance = ClientInstance(ClientOptions(name_servers=fake.address))
            await instance.start()
            try:
                route = await instance.routes.get("T")
                master = route.master(route.publish_queues[0].broker_name)
                assert master is not None
                await instance.remoting.connection(master)
                fake.name_server.routes.clear()
                await instance.routes.refresh_all()
                assert instance.routes.cache.get("T") == route
                instance.remoting.drop(master)
                await instance.routes.refresh_all()
                assert instance.routes.cache.get("T") is None
            finally:
                await instance.close()

    asyncio.run(scenario())


RETURN_S = 1.5


def set_members(broker: ScriptedBroker, *ids: str) -> None:
    def answer(request: Command) -> Command:
        return request.answer(body=ConsumerList(ids).encode())

    broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = answer


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("returns", [True, False])
def test_members_are_waited_for_after_a_broker_has_come_back(
    monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """Whoever reaches it first is alone in the group for a moment, and would read the others' queues from offsets of
    before the restart."""
    monkeypatch.setattr(rebalancing, "RETURN_MS", int(RETURN_S * 1000))

    async def scenario() -> None:
        async with scripted() as broker:
            broker.topics.add("%RETRY%g")
            async with AsyncConsumer(broker.address, group="g", rebalance_interval_ms=50) as consumer:
                await consumer.subscribe("T")
                await consumer.wait_assigned()
                assert consumer.assignment
                set_members(broker, FIRST, consumer.client_id)
                await until(lambda: not consumer.assignment)
                set_members(broker, consumer.client_id)
                assert broker.server is not None
                beats = len(broker.heartbeats)
                began = asyncio.get_running_loop().time()
                for connection in list(broker.server.connections):
                    connection.abort()
                await until(lambda: len(broker.heartbeats) > beats)
                if returns:
                    set_members(broker, FIRST, consumer.client_id)
                    await asyncio.sleep(RETURN_S + 0.1)
                    assert not consumer.assignment
                else:
                    await until(lambda: consumer.assignment)
                    assert asyncio.get_running_loop().time() - began >= RETURN_S

    asyncio.run(scenario())
