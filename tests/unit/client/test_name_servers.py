import asyncio

import pytest

from penstock.client.instance import ClientInstance
from penstock.client.name_servers import NameServerChoice
from penstock.client.options import ClientOptions
from penstock.errors import ConnectError
from penstock.runtime import Runtime, SeededEntropy
from tests.unit.client.producer_cluster import FakeNameServer, cluster


@pytest.mark.seed("S1-13")
@pytest.mark.seed("S1-14")
def test_who_answered_is_asked_first_until_it_fails():
    choice = NameServerChoice(["a", "b", "c"], start=1)
    assert choice.chosen is None
    assert choice.order() == ["b", "c", "a"]
    choice.answered("c")
    assert (choice.chosen, choice.order()) == ("c", ["c", "a", "b"])
    choice.failed("a")  # not the one in use
    assert choice.order() == ["c", "a", "b"]
    choice.failed("c")
    assert (choice.chosen, choice.order()) == (None, ["a", "b", "c"])


def seeds_starting_at(number, count):
    """A runtime whose first random choice among `count` is `number`."""
    return next(
        Runtime(entropy=SeededEntropy(seed))
        for seed in range(100)
        if SeededEntropy(seed).below(count) == number
    )


async def three_name_servers():
    servers = [FakeNameServer() for _ in range(3)]
    for server in servers:
        await server.start()
    return servers


def route_asked(servers):
    return [len(server.requests) for server in servers]


@pytest.mark.seed("S1-2")
@pytest.mark.seed("S1-13")
def test_a_client_uses_one_that_it_can_reach_and_moves_on_when_it_dies():
    async def main():
        async with cluster() as fake:
            servers = await three_name_servers()
            for server in servers:
                server.routes = fake.name_server.routes
            addresses = [server.address for server in servers]
            await servers[0].stop()  # unreachable from the beginning
            instance = ClientInstance(ClientOptions(name_servers=addresses), runtime=seeds_starting_at(0, 3))
            await instance.start()
            try:
                assert instance.name_servers.chosen == addresses[1]
                for _ in range(3):
                    await instance.routes.refresh("T")
                assert route_asked(servers) == [0, 3, 0]
                await servers[1].stop()
                await instance.routes.refresh("T")
                assert instance.name_servers.chosen == addresses[2]
                assert route_asked(servers) == [0, 3, 1]
                await servers[1].start()  # it is back, but the new choice is kept
                await instance.routes.refresh("T")
                assert route_asked(servers) == [0, 3, 2]
                await servers[2].stop()
                await servers[1].stop()
                with pytest.raises(ConnectError, match="no name server answers") as caught:
                    await instance.routes.refresh("T")
                assert all(address in str(caught.value) for address in addresses)
                await servers[0].start()
                await instance.routes.refresh("T")
                assert instance.name_servers.chosen == addresses[0]
            finally:
                await instance.close()
                for server in servers:
                    await server.stop()

    asyncio.run(main())


@pytest.mark.fault("F2")
def test_a_silent_one_is_left_after_the_time_limit():
    async def main():
        async with cluster() as fake:
            servers = await three_name_servers()
            for server in servers:
                server.routes = fake.name_server.routes
            servers[0].behave = lambda connection, request: None
            options = ClientOptions(name_servers=[s.address for s in servers], call_timeout_ms=50)
            instance = ClientInstance(options, runtime=seeds_starting_at(0, 3))
            await instance.start()
            try:
                await asyncio.gather(*(instance.routes.refresh(topic) for topic in ("T", "T")))
                assert instance.name_servers.chosen == servers[1].address
                await instance.routes.refresh("T")
                assert route_asked(servers) == [1, 2, 0]
            finally:
                await instance.close()
                for server in servers:
                    await server.stop()

    asyncio.run(main())


@pytest.mark.seed("S1-16")
def test_many_callers_dial_a_dead_one_once():
    async def main():
        async with cluster(topics=("T", "U", "V")) as fake:
            servers = await three_name_servers()
            for server in servers:
                server.routes = fake.name_server.routes
            instance = ClientInstance(
                ClientOptions(name_servers=[s.address for s in servers]), runtime=seeds_starting_at(0, 3)
            )
            await instance.start()
            try:
                await servers[0].stop()
                await asyncio.gather(*(instance.routes.refresh(topic) for topic in ("T", "U", "V")))
                assert instance.name_servers.chosen == servers[1].address
                assert route_asked(servers) == [0, 3, 0]
            finally:
                await instance.close()
                for server in servers:
                    await server.stop()

    asyncio.run(main())


def test_all_are_told_and_a_dead_one_does_not_hold_up_the_others():
    async def main():
        servers = await three_name_servers()
        addresses = [server.address for server in servers]
        await servers[1].stop()
        instance = ClientInstance(ClientOptions(name_servers=addresses))
        await instance.start()
        try:
            from penstock.protocol.command import Command

            answers = await instance.name_servers.call_all(Command(105, {"topic": "T"}))
            assert [isinstance(answers[address], Command) for address in addresses] == [True, False, True]
        finally:
            await instance.close()
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_a_client_without_any_name_server_does_not_start():
    async def main():
        with pytest.raises(ConnectError, match="penstock up"):
            await ClientInstance.acquire(ClientOptions(name_servers="127.0.0.1:1"))

    asyncio.run(main())
