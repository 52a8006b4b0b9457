"""What a client does when it starts: its names, its states, what begins to run, and the hook around its requests."""

import asyncio
import json
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest

import penstock
from penstock import ServiceState
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.client.consumer import Consumer
from penstock.client.instance import ClientInstance
from penstock.client.options import ClientOptions, ConsumerOptions
from penstock.client.producer import Producer
from penstock.client.received import RETRY
from penstock.errors import ClientClosedError, ConnectError, SendFailedError
from penstock.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, send
from tests.unit.client.consumer_cluster import scripted
from tests.unit.client.producer_cluster import cluster
from tests.waiting import until, wait_until


@dataclass
class Recorder:
    """A hook that signs every request, keeps what passes and stops the codes it is told to stop."""

    refused: set[int] = field(default_factory=set)
    requests: list[tuple[str, Command]] = field(default_factory=list)
    responses: list[tuple[str, Command, Command]] = field(default_factory=list)

    def before_request(self, address: str, request: Command) -> None:
        if request.code in self.refused:
            raise PermissionError("not today")
        request.fields["AccessKey"] = "key"
        self.requests.append((address, request))

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.responses.append((address, request, response))

    @property
    def codes(self) -> Counter[int]:
        return Counter(int(request.code) for _, request in self.requests)


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-38", "S2-39")
def test_the_constructor_takes_the_group_and_starts_nothing():
    for kind in (AsyncProducer, Producer, AsyncConsumer, Consumer):
        client = kind("127.0.0.1:9876", "rmq-group", rpc_hook=Recorder())
        assert client.options.group == "rmq-group"
        assert client.client_id == ""
        assert client.state is ServiceState.CREATE_JUST
    assert not any(thread.name == "penstock-client" for thread in threading.enumerate())


@pytest.mark.seed("S2-41")
def test_brokers_know_a_client_by_its_instance_name():
    async def main():
        async with cluster() as fake:
            async with AsyncProducer(
                fake.address, "rmq-group", instance_name="rmq-instance", unit_name="north"
            ) as producer:
                assert producer.client_id == "127.0.0.1@rmq-instance@north"
                await producer.send("T", b"x")
                await until(lambda: fake.brokers[0].heartbeats)
            (told,) = {beat.client_id for beat in fake.brokers[0].heartbeats}
            assert told == "127.0.0.1@rmq-instance@north"

    asyncio.run(main())


# -- states --------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-42", "S2-50")
@pytest.mark.parametrize("kind", [AsyncProducer, AsyncConsumer])
def test_a_start_has_failed_until_everything_runs(kind):
    async def main():
        async with cluster() as fake:
            client = kind(fake.address, "g")
            starting = asyncio.ensure_future(client.start())
            await asyncio.sleep(0)
            assert client.state is ServiceState.START_FAILED
            await starting
            assert client.state is ServiceState.RUNNING
            await client.close()
            assert client.state is ServiceState.SHUTDOWN_ALREADY
            with pytest.raises(ClientClosedError):
                await client.start()
            assert client.state is ServiceState.SHUTDOWN_ALREADY

    asyncio.run(main())


@pytest.mark.seed("S2-42")
@pytest.mark.parametrize("kind", [AsyncProducer, AsyncConsumer])
def test_a_start_that_failed_says_so_leaves_nothing_and_may_be_tried_again(kind):
    async def main():
        async with cluster() as fake:
            name_server = fake.name_server
            await name_server.stop()
            client = kind(fake.address, "g")
            with pytest.raises(ConnectError):
                await client.start()
            assert client.state is ServiceState.START_FAILED
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await name_server.start()
            await client.start()
            assert client.state is ServiceState.RUNNING
            await client.close()

    asyncio.run(main())


@pytest.mark.seed("S2-42", "S2-50")
@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_the_states_of_clients_for_threads(kind):
    with pytest.raises(ConnectError):
        (failed := kind("127.0.0.1:1", "g")).start()
    assert failed.state == "START_FAILED"
    failed.close()
    with broker() as address:
        client = kind(address, "g")
        assert client.state == "CREATE_JUST"
        with client:
            assert client.state == "RUNNING"
        assert client.state == "SHUTDOWN_ALREADY"


# -- what begins to run --------------------------------------------------------------------------------------


@pytest.mark.seed("S2-45")
def test_first_of_all_the_remoting_client_is_up():
    async def main():
        async with cluster() as fake:
            instance = ClientInstance(ClientOptions(name_servers=fake.address))
            assert instance.remoting.open_connection(fake.address) is None
            own_tasks = []
            connect = instance.name_servers.connect

            async def watched():
                connection = await connect()
                own_tasks.append(list(instance._tasks))
                return connection

            instance.name_servers.connect = watched
            await instance.start()
            assert instance.remoting.open_connection(fake.address) is not None
            assert own_tasks == [[]], "nothing is planned before somebody can be asked"
            assert instance._tasks
            await instance.close()
            assert instance.remoting.open_connection(fake.address) is None

    asyncio.run(main())


@pytest.mark.seed("S2-46")
def test_then_what_recurs_does():
    """Routes, heartbeats and offsets, each at its interval."""
    assert (ClientOptions().route_interval_ms, ClientOptions().heartbeat_interval_ms) == (30_000, 30_000)
    assert ConsumerOptions().persist_interval_ms == 5_000

    async def main():
        async with scripted() as fake:
            hook = Recorder()
            consumer = AsyncConsumer(
                fake.address,
                "g",
                route_interval_ms=20,
                heartbeat_interval_ms=20,
                persist_interval_ms=20,
                rpc_hook=hook,
            )
            async with consumer:
                await consumer.subscribe("T")
                (queue,) = await consumer.wait_assigned()
                routes, beats = (hook.codes[code] for code in (105, 34))
                await until(lambda: hook.codes[105] >= routes + 4)
                await until(lambda: hook.codes[34] >= beats + 4)
                for offset in (7, 8):
                    consumer.core.offsets.set(queue, offset)
                    await until(lambda wanted=offset: wanted in fake.commits)

    asyncio.run(main())


@pytest.mark.seed("S2-49")
def test_the_inner_producer_uses_the_client_that_is_there():
    """It sends the copy of a message that its broker does not take back; nothing is started for it."""
    hook = Recorder(refused={RequestCode.CONSUMER_SEND_MSG_BACK})
    seen = Seen(lambda message: None if message.tries else RETRY)
    with broker(store=QUICK) as address:
        send(address, "T", b"before")
        with Consumer(address, group="g", start_from="last", listener=seen, rpc_hook=hook) as consumer:
            consumer.subscribe("T")
            consumer.wait_assigned()
            wait_until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
            send(address, "T", b"again")
            wait_until(lambda: len(seen.messages) >= 2)
            shared = ClientInstance._shared[consumer._thread.loop].values()
            clients = [one for found in shared for one in found]
            assert len(clients) == 1
    assert [message.body for message in seen.messages] == [b"again", b"again"]
    copies = [request for _, request in hook.requests if request.code == RequestCode.SEND_MESSAGE_V2]
    assert [(copy.fields["a"], copy.fields["b"]) for copy in copies] == [
        ("CLIENT_INNER_PRODUCER", "%RETRY%g")
    ]


# -- requests ------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-52")
def test_a_send_is_a_remoting_command():
    """What arrives is taken apart by hand: lengths, a JSON header with RocketMQ's names, the body."""

    async def main():
        frames = []

        async def serve(reader, writer):
            try:
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    data = await reader.readexactly(size)
                    mark = struct.unpack(">I", data[:4])[0]
                    kind, head_size = mark >> 24, mark & 0xFFFFFF
                    header = json.loads(data[4 : 4 + head_size])
                    frames.append((kind, header, data[4 + head_size :]))
                    fields = {"msgId": "1", "queueId": "0", "queueOffset": "5"}
                    answer = json.dumps(
                        {
                            "code": 0,
                            "language": "JAVA",
                            "version": 479,
                            "opaque": header["opaque"],
                            "flag": 1,
                            "extFields": fields,
                        }
                    ).encode()
                    writer.write(struct.pack(">ii", 4 + len(answer), len(answer)) + answer)
            except asyncio.IncompleteReadError:
                writer.close()
                await writer.wait_closed()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        async with cluster(0) as fake:
            fake.name_server.routes["T"] = TopicRouteData(
                (BrokerData("c", "b", {0: f"{host}:{port}"}),), (QueueData("b", 1, 1, 6),)
            )
            async with AsyncProducer(fake.address, "rmq-group") as producer:
                assert (await producer.send("T", b"body")).queue_offset == 5
        listening.close()
        await listening.wait_closed()
        kind, header, body = next(frame for frame in frames if frame[1]["code"] == 310)
        assert (kind, body) == (0, b"body")
        known = {
            "code",
            "language",
            "version",
            "opaque",
            "flag",
            "remark",
            "extFields",
            "serializeTypeCurrentRPC",
        }
        assert header.keys() - {"remark"} == known - {"remark"}
        assert (header["language"], header["flag"] & 0b11) == ("PYTHON", 0)
        assert header["extFields"]["a"] == "rmq-group"

    asyncio.run(main())


# -- the hook ------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-39")
def test_a_hook_sees_every_request_and_every_response():
    async def main():
        async with cluster() as fake:
            hook, other = Recorder(), Recorder()
            async with (
                AsyncProducer(fake.address, "pg", rpc_hook=hook) as producer,
                AsyncProducer(fake.address, "pg") as plain,
                AsyncProducer(fake.address, "pg", rpc_hook=other) as another,
            ):
                assert len({producer.client_id, plain.client_id, another.client_id}) == 3
                await producer.send("T", b"1")
                await producer.send_oneway("T", b"2")
                await plain.send("T", b"3")
                await until(lambda: len(fake.stored) == 3)
                await until(lambda: hook.codes[34] >= 1)
            sends = [request for request in fake.brokers[0].requests if request.code == 310]
            assert [request.fields.get("AccessKey") for request in sends] == ["key", "key", None]
            assert {code: hook.codes[code] > 0 for code in (105, 310, 34, 35)} == dict.fromkeys(
                (105, 310, 34, 35), True
            )
            assert {address for address, _ in hook.requests} == {fake.address, fake.brokers[0].address}
            answered = Counter(int(request.code) for _, request, _ in hook.responses)
            assert (hook.codes[310], answered[310]) == (2, 1)
            assert all(response.is_response for _, _, response in hook.responses)
            assert other.codes[310] == 0

    asyncio.run(main())


def test_a_request_that_the_hook_stops_is_not_sent():
    async def main():
        async with cluster() as fake:
            hook = Recorder(refused={310})
            async with AsyncProducer(fake.address, "pg", rpc_hook=hook) as producer:
                with pytest.raises(SendFailedError, match="not today"):
                    await producer.send("T", b"x")
                with pytest.raises(penstock.PenstockError, match="not today"):
                    await producer.send_oneway("T", b"x")
            assert not fake.stored

    asyncio.run(main())


def test_a_hook_that_fails_at_a_response_is_logged_and_changes_nothing(caplog):
    class Clumsy(Recorder):
        def after_response(self, address, request, response):
            raise ValueError("oops")

    with broker() as address, penstock.Admin(address, rpc_hook=Clumsy()) as admin:
        admin.create_topic("T", queues=1)
        assert admin.describe_topic("T").messages == 0
    assert any("RPC hook failed" in record.message for record in caplog.records)
