import asyncio

import pytest

from penstock.client.instance import ClientInstance
from penstock.client.name_servers import NameServerChoice
from penstock.client.options import ClientOptions
from penstock.errors import ConnectError, RouteNotFoundError
from penstock.protocol.command import Command
from penstock.runtime import Runtime, SeededEntropy
from tests.unit.client.producer_cluster import FakeNameServer, cluster
from tests.waiting import until


@pytest.mark.seed("S1-13")
@pytest.mark.seed("S1-14")
@pytest.mark.seed("S1-19")
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
@pytest.mark.seed("S1-17")
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
            answers = await instance.name_servers.call_all(Command(105, {"topic": "T"}))
            assert [isinstance(answers[address], Command) for address in addresses] == [True, False, True]
        finally:
            await instance.close()
            for server in servers:
                await server.stop()

    asyncio.run(main())


@pytest.mark.seed("S1-15")
@pytest.mark.seed("S1-20")
@pytest.mark.seed("S1-21")
def test_the_first_that_can_be_dialled_is_the_connection_for_all():
    """One connection to an address, whoever asks. Unlike the seed's client, an address is called chosen once it has
    answered, not before it is dialled: nobody is sent to one that may be dead."""

    async def main():
        servers = await three_name_servers()
        addresses = [server.address for server in servers]
        await servers[0].stop()
        instance = ClientInstance(ClientOptions(name_servers=addresses), runtime=seeds_starting_at(0, 3))
        try:
            names = instance.name_servers
            assert names.chosen is None
            first = await names.connect()
            assert (names.chosen, str(first.peer)) == (addresses[1], addresses[1])
            assert await names.connect() is first
            assert await instance.remoting.connection(addresses[1]) is first
        finally:
            await instance.close()
            for server in servers:
                await server.stop()

    asyncio.run(main())


@pytest.mark.seed("S1-22")
@pytest.mark.seed("S1-23")
def test_when_none_can_be_reached_that_is_said_and_the_next_call_tries_again(caplog):
    """The seed's client returns null; here it is an error that names each of them and what was wrong."""

    async def main():
        servers = await three_name_servers()
        addresses = [server.address for server in servers]
        for server in servers:
            await server.stop()
        instance = ClientInstance(ClientOptions(name_servers=addresses, call_timeout_ms=500))
        try:
            for _ in range(2):  # the second would wait for ever if the lock were still held
                with pytest.raises(ConnectError) as raised:
                    await instance.name_servers.call(Command(105, {"topic": "T"}))
                assert all(address in str(raised.value) for address in addresses)
        finally:
            await instance.close()
        assert all(f"name server {address}" in caplog.text for address in addresses)

    asyncio.run(main())


@pytest.mark.seed("S1-24")
def test_who_waits_too_long_for_the_choice_is_told_so():
    async def main():
        servers = await three_name_servers()
        for server in servers:
            server.behave = lambda connection, request: None
        addresses = [server.address for server in servers]
        instance = ClientInstance(ClientOptions(name_servers=addresses, call_timeout_ms=60_000))
        try:
            slow = asyncio.ensure_future(instance.name_servers.call(Command(105, {"topic": "T"})))
            await until(lambda: any(server.requests for server in servers))
            with pytest.raises(ConnectError, match="still being tried"):
                await instance.name_servers.call(Command(105, {"topic": "T"}), timeout_ms=20)
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
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


def test_a_failure_is_said_once_until_it_answers_again(caplog):
    async def main():
        server = FakeNameServer()
        await server.start()
        instance = ClientInstance(ClientOptions(name_servers=[server.address]))
        await instance.start()
        servers, question = instance.name_servers, Command(105, {"topic": "T"})

        async def down(times):
            await server.stop()
            for _ in range(times):
                with pytest.raises(ConnectError):
                    await servers.call(question)

        await servers.call(question)
        await down(3)
        assert len(caplog.records) == 1
        await server.start()
        await servers.call(question)
        await down(2)
        assert len(caplog.records) == 2
        await instance.close()

    with caplog.at_level("WARNING", logger="penstock.client.name_servers"):
        asyncio.run(main())


def test_who_has_answered_for_a_route_is_a_name_server_whatever_else_it_does_not_know(caplog):
    """A proxy may answer for routes only, and its brokers are reached through the same connection."""

    async def main():
        async with cluster() as fake:
            instance = ClientInstance(ClientOptions(name_servers=[fake.address]))
            await instance.start()
            try:
                connection = await instance.remoting.connection(fake.address)
                await instance.routes.refresh("T")
                with pytest.raises(RouteNotFoundError, match="create it first"):
                    await instance.routes.refresh("unknown")
                assert await instance.remoting.connection(fake.address) is connection
            finally:
                await instance.close()
            # It answered nothing so far, so it may be a broker.
            instance = ClientInstance(ClientOptions(name_servers=[fake.brokers[0].address]))
            await instance.start()
            try:
                with pytest.raises(ConnectError, match="another kind of server"):
                    await instance.routes.refresh("T")
            finally:
                await instance.close()

    asyncio.run(main())
    assert caplog.text.count("is another kind of server") == 1
