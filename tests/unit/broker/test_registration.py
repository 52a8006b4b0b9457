"""Registration with name servers: all of them, side by side, again and again, at once on change."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.registration import Registration
from penstock.broker.topics import Topics
from penstock.message import HostAddress
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import RegisterBrokerBody, body_crc32
from penstock.protocol.command import Command
from penstock.protocol.headers import RegisterBrokerRequestHeader
from penstock.remoting import ProcessorTable, RemotingServer
from penstock.runtime import Runtime
from penstock.testing.reserved_port import ReservedPort
from tests.unit.broker.journals import journal
from tests.unit.broker.metadata_bench import run
from tests.waiting import until

OPTIONS = BrokerOptions(broker_name="b-a", cluster_name="c1", register_timeout_ms=60_000)
LISTENING = HostAddress("127.0.0.1", 10911)
REGISTER, UNREGISTER = 103, 104


@dataclass
class Registered:
    header: RegisterBrokerRequestHeader
    body: RegisterBrokerBody

    @property
    def topics(self) -> set[str]:
        return set(self.body.wrapper.topics)


@dataclass
class NameServer:
    """Takes registrations and keeps them; hangs or refuses on demand."""

    hangs: bool = False
    refuses: bool = False
    answer_body: bytes = b""
    registrations: list[Registered] = field(default_factory=list)
    unregistered: list[dict[str, str]] = field(default_factory=list)
    attempts: int = 0
    reserved: ReservedPort = field(default_factory=ReservedPort)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        table = ProcessorTable()
        table.register(REGISTER, self._register)
        table.register(UNREGISTER, self._unregister)
        self.server = RemotingServer("127.0.0.1", self.reserved.number, table, runtime=Runtime.system())

    async def start(self) -> None:
        await self.server.start()

    async def restart(self) -> None:
        await self.server.stop()
        self.registrations.clear()
        self._open()
        await self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.reserved.number}"

    def _register(self, _: object, command: Command) -> Command | None:
        self.attempts += 1
        if self.hangs:
            return None
        if self.refuses:
            return command.answer(1, "register broker failed")
        header = RegisterBrokerRequestHeader.decode(command.fields)
        assert header.body_crc32 == body_crc32(command.body)
        body = RegisterBrokerBody.decode_for(
            command.body, compressed=header.compressed, version=command.version
        )
        self.registrations.append(Registered(header, body))
        return command.answer(body=self.answer_body)

    def _unregister(self, _: object, command: Command) -> Command | None:
        self.unregistered.append(command.fields)
        return None if self.hangs else command.answer()


@asynccontextmanager
async def registering(
    path: Path, *servers: NameServer, options: BrokerOptions = OPTIONS, listening: HostAddress = LISTENING
) -> AsyncIterator[tuple[Registration, Topics]]:
    for server in servers:
        await server.start()
    options = replace(options, name_servers=tuple(server.address for server in servers))
    topics = Topics(options, Runtime.system(), journal(path))
    topics.load()
    registration = Registration(options, Runtime.system(), topics, lambda: listening)
    registration.start()
    try:
        yield registration, topics
    finally:
        await registration.stop()
        for server in servers:
            await server.server.stop()


@pytest.mark.seed("S1-6")
@pytest.mark.seed("S1-7")
@pytest.mark.seed("S1-9")
@pytest.mark.seed("S2-5")
@pytest.mark.seed("S3-23")
@pytest.mark.seed("S3-66")
def test_a_broker_registers_with_every_name_server(tmp_path: Path) -> None:
    async def life() -> None:
        one, two = NameServer(), NameServer()
        async with registering(tmp_path, one, two) as (registration, topics):
            assert await registration.wait_registered(60_000)
            for server in (one, two):
                first = server.registrations[0]
                assert first.header == RegisterBrokerRequestHeader(
                    broker_name="b-a",
                    broker_addr="127.0.0.1:10911",
                    cluster_name="c1",
                    ha_server_addr="127.0.0.1:10912",
                    broker_id=0,
                    body_crc32=first.header.body_crc32,
                )
                assert first.topics == set(topics.all())
                assert first.body.data_version == topics.data_version
                assert first.body.filter_servers == ()

    run(life())


@pytest.mark.seed("S1-8")
def test_without_name_servers_nothing_is_registered(tmp_path: Path) -> None:
    async def life() -> None:
        async with registering(tmp_path) as (registration, _):
            assert await registration.register_all() == {}
            assert await registration.wait_registered(0)

    run(life())


@pytest.mark.seed("S1-10")
@pytest.mark.seed("S1-11")
@pytest.mark.seed("S1-12")
def test_one_name_server_that_fails_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def life() -> None:
        bad, good = NameServer(refuses=True), NameServer()
        async with registering(tmp_path, bad, good) as (registration, _):
            await until(lambda: len(good.registrations) >= 1)
            assert await registration.register_all() == {bad.address: False, good.address: True}
            assert not await registration.wait_registered(10)
            bad.refuses = False
            await until(lambda: len(bad.registrations) >= 1)
            assert await registration.wait_registered(60_000)

    with caplog.at_level(logging.INFO, "penstock.broker"):
        run(life())
    assert caplog.text.count("cannot register") == 1  # once for each trouble
    assert caplog.text.count("registered with name server") == 2


def test_one_name_server_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """A listener that never answers: the other is told at once, of the start and of every change."""

    async def life() -> None:
        hanging, good = NameServer(hangs=True), NameServer()
        loop = asyncio.get_running_loop()
        async with registering(tmp_path, hanging, good) as (_, topics):
            began = loop.time()
            await until(lambda: len(good.registrations) == 1)
            await until(lambda: hanging.attempts == 1)
            topics.create_for_send("T", "TBW102", 4)
            await until(lambda: len(good.registrations) == 2)
            assert loop.time() - began < 30.0  # long before the hanging one's time is over
            began = loop.time()
        assert loop.time() - began < 30.0  # nor does it hold up the stop

    run(life())


def test_a_name_server_that_is_not_there(tmp_path: Path) -> None:
    async def life() -> None:
        absent, good = NameServer(), NameServer()
        await absent.start()
        await absent.server.stop()
        await good.start()
        options = replace(OPTIONS, name_servers=(absent.address, "not an address", good.address))
        topics = Topics(options, Runtime.system(), journal(tmp_path))
        topics.load()
        registration = Registration(options, Runtime.system(), topics, lambda: LISTENING)
        registration.start()
        await until(lambda: len(good.registrations) == 1)
        await absent.restart()
        await until(lambda: len(absent.registrations) >= 1)
        await registration.stop()
        assert len(absent.unregistered) == len(good.unregistered) == 1
        await absent.server.stop()
        await good.server.stop()

    run(life())


@pytest.mark.seed("S3-4", "S3-26", "S3-29")
def test_everything_is_registered_again_at_the_interval(tmp_path: Path) -> None:
    assert BrokerOptions().register_interval_ms == 30_000

    async def life() -> None:
        server = NameServer()
        options = replace(OPTIONS, register_interval_ms=50)
        async with registering(tmp_path, server, options=options) as (_, topics):
            await until(lambda: len(server.registrations) >= 4)
            assert all(item.topics == set(topics.all()) for item in server.registrations)

    run(life())


def test_a_change_is_registered_at_once_and_alone(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer()
        async with registering(tmp_path, server) as (registration, topics):
            await registration.wait_registered(60_000)
            topics.create_for_send("T", "TBW102", 4)
            await until(lambda: len(server.registrations) == 2)
            second = server.registrations[1]
            assert second.body.wrapper.topics == {"T": topics.get("T")}
            assert second.body.data_version == topics.data_version
            for name in ("U", "V"):  # changes of one moment go together
                topics.update(TopicConfig(name, 1, 1))
            await until(lambda: len(server.registrations) == 3)
            assert server.registrations[2].topics == {"U", "V"}
            topics.delete("T")  # what is gone cannot be named
            await until(lambda: len(server.registrations) == 4)
            assert server.registrations[3].topics == set(topics.all())

    run(life())


def test_changes_before_a_full_registration_become_a_full_one(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer(refuses=True)
        async with registering(tmp_path, server) as (_, topics):
            await until(lambda: server.attempts >= 1)
            topics.create_for_send("T", "TBW102", 4)
            server.refuses = False
            await until(lambda: len(server.registrations) == 1)
            assert server.registrations[0].topics == set(topics.all())

    run(life())


@pytest.mark.fault("F1")
def test_a_name_server_that_restarts_is_told_everything_again(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer()
        async with registering(tmp_path, server) as (registration, topics):
            await registration.wait_registered(60_000)
            await server.restart()
            await until(lambda: len(server.registrations) >= 1)
            assert server.registrations[0].topics == set(topics.all())

    run(life())


def test_stopping_unregisters_everywhere(tmp_path: Path) -> None:
    async def life() -> None:
        one, two = NameServer(), NameServer()
        async with registering(tmp_path, one, two) as (registration, _):
            await registration.wait_registered(60_000)
            assert [link.registered_as for link in registration.links] == ["127.0.0.1:10911"] * 2
        expected = {
            "brokerName": "b-a",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "c1",
            "brokerId": "0",
        }
        assert one.unregistered == two.unregistered == [expected]

    run(life())


def test_a_registration_under_way_is_taken_back_too(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer(hangs=True)
        async with registering(tmp_path, server):
            await until(lambda: server.attempts == 1)
            server.hangs = False
        assert len(server.unregistered) == 1

    run(life())


def test_a_name_server_that_hangs_at_the_end(tmp_path: Path) -> None:
    async def life() -> None:
        one, two = NameServer(), NameServer()
        options = replace(OPTIONS, register_timeout_ms=1_000)
        async with registering(tmp_path, one, two, options=options) as (registration, _):
            await registration.wait_registered(60_000)
            one.hangs = True
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 30.0
        assert len(two.unregistered) == 1

    run(life())


@pytest.mark.parametrize(
    ("listening", "advertised", "address"),
    [
        ("127.0.0.1", "", "127.0.0.1:10911"),
        ("0.0.0.0", "", "0.0.0.0:10911"),
        ("0.0.0.0", "broker.example", "broker.example:10911"),
        ("10.1.2.3", "broker.example:7", "broker.example:7"),
    ],
)
def test_the_address_that_is_registered(
    tmp_path: Path, listening: str, advertised: str, address: str
) -> None:
    async def life() -> None:
        server = NameServer()
        options = replace(OPTIONS, advertised_address=advertised)
        place = HostAddress(listening, 10911)
        async with registering(tmp_path, server, options=options, listening=place) as (registration, _):
            await registration.wait_registered(60_000)
            assert server.registrations[0].header.broker_addr == address

    run(life())


@pytest.mark.parametrize("compressed", [False, True])
def test_compressed_registration(tmp_path: Path, compressed: bool) -> None:
    async def life() -> None:
        server = NameServer()
        options = replace(OPTIONS, compressed_register=compressed)
        async with registering(tmp_path, server, options=options) as (registration, topics):
            await registration.wait_registered(60_000)
            assert server.registrations[0].header.compressed is compressed
            assert server.registrations[0].body.wrapper.topics == topics.all()

    run(life())


def test_the_broker_s_permission_caps_that_of_its_topics(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer()
        async with registering(tmp_path, server, options=replace(OPTIONS, permission=4)) as (registration, _):
            await registration.wait_registered(60_000)
            topics = server.registrations[0].body.wrapper.topics
            assert {int(config.perm) for config in topics.values()} == {0, 4}
            registration.reconfigure(
                replace(OPTIONS, permission=6, name_servers=(server.address,))
            )  # and is told at once when it changes
            await until(lambda: len(server.registrations) == 2)
            assert server.registrations[1].body.wrapper.topics["TBW102"].perm == 7

    run(life())


def test_ordered_topics_are_learnt_from_the_name_server(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer(answer_body=b'{"table":{"T":"b-a:4","unknown":"b-a:1"}}')
        async with registering(tmp_path, server) as (_, topics):
            topics.update(TopicConfig("T", 4, 4))
            await until(lambda: topics.get("T") == TopicConfig("T", 4, 4, order=True))
            assert topics.get("unknown") is None
            server.answer_body = b"nonsense"
            topics.update(TopicConfig("U", 4, 4))
            await until(lambda: server.registrations[-1].topics == {"U"})

    run(life())


def test_many_topics_are_registered(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer()
        async with registering(tmp_path, server) as (registration, topics):
            await registration.wait_registered(60_000)
            for number in range(3_000):
                topics.update(TopicConfig(f"T{number}", 1, 1))
            assert await registration.register_all() == {server.address: True}
            assert max(len(item.topics) for item in server.registrations) == len(topics.all())

    run(life())
