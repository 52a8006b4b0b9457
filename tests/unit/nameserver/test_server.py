"""The name server over real sockets: who lives, who is gone, and several side by side."""

import asyncio

import pytest

from penstock.errors import ConnectError
from penstock.nameserver import NameServer, NameServerOptions
from penstock.nameserver.housekeeping import Housekeeping
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.protocol.bodies import TopicRouteData
from penstock.protocol.codes import RequestCode
from penstock.remoting import ProcessorTable
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.nameserver_brokers import route_table, topics, version
from tests.support.nameserver_wire import Peer, name_server, over_sockets, peer
from tests.waiting import until


@pytest.mark.seed("S3-23")
@pytest.mark.seed("S3-26")
@pytest.mark.seed("S3-66")
@pytest.mark.seed("S3-68")
@pytest.mark.seed("S3-73")
@pytest.mark.seed("S2-2")
def test_a_broker_registers_and_a_client_finds_it() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        answer = await broker.register()
        assert (answer.code, answer.fields, answer.body) == (0, {}, b"")
        async with peer(server) as client:
            route = TopicRouteData.decode((await client.route()).body)
            assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
            assert route.queue_datas[0].read_queue_nums == 4
            missing = await client.route("Other")
            assert missing.code == 17
            assert "Other" in (missing.remark or "")
        assert server.meters.snapshot()["registered"] == 1
        assert server.meters.snapshot()["no_route"] == 1

    over_sockets(test)


@pytest.mark.seed("S2-6")
def test_no_reader_sees_half_a_registration() -> None:
    """Instead of a lock around the tables there is one loop: whoever asks sees them before a change or after it."""
    forms = [topics("T", queues=4, perm=6), topics("T", queues=8, perm=4)]
    fields = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": 0}

    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register(tables=forms[0])
        is_done, reads = False, 0

        async def write() -> None:
            nonlocal is_done
            for number in range(60):
                tables, moved = forms[number % 2], version(counter=number + 2)
                assert (await broker.register(tables=tables, data_version=moved)).code == 0
                if number % 3 == 0:
                    assert (await broker.ask(RequestCode.UNREGISTER_BROKER, **fields)).code == 0
                before = reads
                await until(lambda before=before: reads > before)
            is_done = True

        async def read() -> set[object]:
            nonlocal reads
            seen: set[object] = set()
            async with peer(server) as client:
                while not is_done:
                    reads += 1
                    for answer in await asyncio.gather(*(client.route() for _ in range(5))):
                        seen.add(answer.code if answer.code else what_it_says(answer.body))
            return seen

        _, *found = await asyncio.gather(write(), read(), read(), read())
        both = {((0,), 4, 4, 6), ((0,), 8, 8, 4)}
        assert set().union(*found) == {17, *both}, "there with all of it, or not there at all"

    over_sockets(test)


def what_it_says(body: bytes) -> tuple[tuple[int, ...], int, int, int]:
    """Ids of the one broker, and the queues and the permission of the topic there."""
    route = TopicRouteData.decode(body)
    (data,), (queues,) = route.broker_datas, route.queue_datas
    assert data.broker_name == queues.broker_name
    return tuple(data.broker_addrs), queues.read_queue_nums, queues.write_queue_nums, queues.perm


# -- liveness ------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-15")
@pytest.mark.seed("S2-16")
@pytest.mark.seed("S3-27")
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_dropped_connection_removes_the_broker_at_once(how: str) -> None:
    async def test(server: NameServer, client: Peer) -> None:
        async with peer(server) as broker:
            await broker.register()
            assert (await client.route()).code == 0
            if how == "abort":
                connection = await broker.client.connection(server.address)
                connection.abort("killed")
        await until(lambda: not server.routes.live)
        assert (await client.route()).code == 17
        assert server.meters.snapshot()["lost"] == 1

    over_sockets(test)


@pytest.mark.seed("S2-17")
def test_a_connection_that_breaks_its_frames_takes_its_broker_along() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        async with peer(server) as broker:
            await broker.register()
            connection = await broker.client.connection(server.address)
            connection.write(b"\xff" * 16)
            await until(lambda: not server.routes.live)

    over_sockets(test)


def test_a_client_that_leaves_changes_nothing() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register()
        async with peer(server) as client:
            await client.route()
        await until(lambda: len(server.server.connections) == 1)
        assert (await broker.route()).code == 0

    over_sockets(test)


@pytest.mark.seed("S2-19")
@pytest.mark.seed("S2-20")
@pytest.mark.seed("S2-21")
@pytest.mark.seed("S3-31")
def test_the_scan_comes_after_5_s_and_then_every_10_s() -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 4:
            raise asyncio.CancelledError

    config = RuntimeConfig(NameServerOptions())
    housekeeping = Housekeeping(route_table(), config, ManualClock(), sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(housekeeping.run())
    assert delays == [5.0, 10.0, 10.0, 10.0]


def test_a_scan_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            raise asyncio.CancelledError

    housekeeping = Housekeeping(route_table(), RuntimeConfig(NameServerOptions()), ManualClock(), sleep)
    housekeeping._table = None  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(housekeeping.run())
    assert caplog.text.count("it is tried again") == 3


@pytest.mark.seed("S2-3")
@pytest.mark.seed("S2-18")
@pytest.mark.seed("S2-23")
@pytest.mark.seed("S2-24")
@pytest.mark.seed("S3-32")
@pytest.mark.seed("S3-33")
def test_the_scan_removes_a_silent_broker_and_closes_its_connection() -> None:
    async def run() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        heard: list[int] = []
        table = ProcessorTable()
        for code in (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED):
            table.register(code, lambda _, command: heard.append(command.code))
        async with (
            name_server(runtime) as server,
            peer(server) as broker,
            peer(server, table=table) as client,
        ):
            await broker.register()
            assert (await client.route()).code == 0
            clock.advance(60_000)
            assert server.housekeeping.scan() == []
            clock.advance(60_001)
            assert len(server.housekeeping.scan()) == 1
            connection = await broker.client.connection(server.address)
            await until(lambda: not connection.is_open)
            assert (await client.route()).code == 17
            assert heard == [], "the client was not told: it asks"
            await broker.register()
            assert (await client.route()).code == 0

    asyncio.run(run())


def test_a_connection_shared_by_two_brokers_stays_open_for_the_other() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with name_server(Runtime(clock=clock)) as server, peer(server) as both:
            await both.register(heartbeat_timeout_millis=10_000)
            await both.register(broker_name="broker-b", broker_addr="10.0.0.2:10911")
            clock.advance(10_001)
            assert [removed.place.address for removed in server.housekeeping.scan()] == ["10.0.0.1:10911"]
            assert (await both.route()).code == 0
            assert list(server.routes.brokers) == ["broker-b"]

    asyncio.run(run())


def test_an_expiry_of_its_own_has_a_limit() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        for asked, granted in ((10_000, 10_000), (10**12, 3_600_000), (0, 120_000), (-5, 120_000)):
            await broker.register(heartbeat_timeout_millis=asked)
            (live,) = server.routes.live.values()
            assert live.expiry_ms == granted

    over_sockets(test)


@pytest.mark.seed("S2-30")
@pytest.mark.seed("S2-31")
@pytest.mark.seed("S2-32")
@pytest.mark.seed("S3-71")
def test_defaults_and_life_cycle() -> None:
    options = NameServerOptions()
    assert (options.host, options.port) == ("127.0.0.1", 9876)
    assert (options.scan_first_ms, options.scan_interval_ms, options.broker_expiry_ms) == (
        5_000,
        10_000,
        120_000,
    )

    async def run() -> None:
        async with name_server() as server:
            port = int(server.address.rpartition(":")[2])
            assert server.address == f"127.0.0.1:{port}"
            second = NameServer(NameServerOptions(port=port), runtime=Runtime.system())
            with pytest.raises(ConnectError, match="cannot listen"):
                await second.start()
            await second.stop()
        never_started = NameServer(options, runtime=Runtime.system())
        await never_started.stop()

    asyncio.run(run())


# -- several -------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-2")
@pytest.mark.seed("S1-4")
@pytest.mark.seed("S1-5")
@pytest.mark.seed("S2-4")
def test_several_run_side_by_side_and_never_talk() -> None:
    async def run() -> None:
        async with name_server() as one, name_server() as two, peer(one) as at_one, peer(two) as at_two:
            await at_one.register()
            assert (await at_one.route()).code == 0
            assert (await at_two.route()).code == 17, "what one knows, the other does not"
            await at_two.register()
            first, second = await at_one.route(), await at_two.route()
            assert first.body == second.body
            await one.stop()
            assert (await at_two.route()).code == 0, "one gone, the other goes on"
            assert one.remoting_meters.counters["opened"] == two.remoting_meters.counters["opened"] == 1

    asyncio.run(run())


@pytest.mark.seed("S1-3")
@pytest.mark.seed("S2-5")
def test_a_restarted_one_knows_nothing_until_brokers_report() -> None:
    async def run() -> None:
        async with name_server() as server, peer(server) as broker:
            await broker.register()
            port = int(server.address.rpartition(":")[2])
        async with name_server(port=port) as again, peer(again) as broker:
            assert (await broker.route()).code == 17
            await broker.register()
            assert (await broker.route()).code == 0

    asyncio.run(run())
