"""The broker as a whole: starting, stopping, restarting, crashing, and what must be there afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.errors import (
    ConnectError,
    ConnectionLostError,
    PenstockError,
    StoreClosedError,
    StoreLockedError,
)
from penstock.message import Message
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.testing import ManualClock
from penstock.testing.reserved_port import ReservedPort
from tests.support.running_broker import BROKER, STORE, Bench, Client, pulls_held, records, run, running
from tests.waiting import turns, until

SYNC = replace(STORE, flush_mode=FlushMode.SYNC)
ROOT = Path(__file__).parents[3]


@pytest.mark.seed("S4-6")
@pytest.mark.seed("S4-12")
@pytest.mark.seed("S4-14")
@pytest.mark.parametrize("is_crash", [False, True])
def test_everything_is_there_after_a_restart(tmp_path: Path, is_crash: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for topic in ("A", "B"):
                for queue in range(4):
                    for number in range(5):
                        await bench.client.send(topic, b"%d" % number, queue, KEYS=f"{topic}{queue}{number}")
            await bench.client.heartbeat("g", "A")
            flag = PullSysFlag.COMMIT_OFFSET
            await bench.client.pull("A", 1, 4, sysFlag=flag, commitOffset=4)
            if is_crash:
                for table in (bench.broker.topics, bench.broker.groups, bench.broker.offsets):
                    assert await table.save()
                bench.broker.store.abandon()
        async with running(tmp_path) as bench:
            for topic in ("A", "B"):
                for queue in range(4):
                    found = records((await bench.client.pull(topic, queue)).body)
                    assert [m.body for m in found] == [b"%d" % number for number in range(5)]
            assert bench.broker.offsets.query("consumers", "A", 1) == 4
            assert bench.broker.groups.find("g") is not None
            assert bench.broker.topics.get("%RETRY%g") is not None
            answer = await bench.client.call(
                RequestCode.QUERY_MESSAGE,
                {
                    "topic": "A",
                    "key": "A23",
                    "maxNum": "5",
                    "beginTimestamp": "0",
                    "endTimestamp": str(2**62),
                },
            )
            assert [m.body for m in records(answer.body)] == [b"3"]
            assert (await bench.client.send("A", b"next", 0)).fields["queueOffset"] == "5"

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_a_killed_broker_has_every_message_it_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        acknowledged: list[tuple[int, bytes]] = []
        for attempt in range(2):
            script = ROOT / "tests" / "unit" / "broker" / "killed_broker.py"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(script),
                str(tmp_path),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            clients = [Client(address) for _ in range(4)]

            async def produce(client: Client, number: int, attempt: int = attempt) -> None:
                for count in range(10_000):
                    body = b"%d-%d-%d" % (attempt, number, count)
                    try:
                        answer = await client.send(body=body)
                    except PenstockError:
                        return
                    assert answer.code == 0
                    acknowledged.append((int(answer.fields["queueOffset"]), body))

            producing = [asyncio.ensure_future(produce(client, i)) for i, client in enumerate(clients)]
            enough = len(acknowledged) + 40
            await until(lambda enough=enough: len(acknowledged) > enough)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await asyncio.gather(*producing)
            for client in clients:
                await client.close()
        assert len(acknowledged) > 50
        async with running(tmp_path, store=SYNC) as bench:
            offset, found = 0, {}
            while True:
                answer = await bench.client.pull(offset=offset)
                if answer.code != 0:
                    break
                for message in records(answer.body):
                    assert message.queue_offset == len(found)
                    found[message.queue_offset] = message.body
                offset = int(answer.fields["nextBeginOffset"])
            assert [item for item in acknowledged if found.get(item[0]) != item[1]] == []

    run(scenario)


def test_stopping_answers_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=SYNC) as bench:
            await bench.client.send()
            waiting = [asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=600_000)) for _ in range(3)]
            await pulls_held(bench, 3)
            # The send goes first: it wakes the pulls, or the stop answers them.
            sending = asyncio.ensure_future(bench.client.send(body=b"last"))
            await turns()
            await bench.broker.stop()
            for future in waiting:
                assert (await future).code in (0, ResponseCode.PULL_NOT_FOUND)
            try:
                code = (await sending).code
            except ConnectionLostError:
                code = None
            assert code in (0, ResponseCode.SERVICE_NOT_AVAILABLE, None)
        with MessageStore.open(tmp_path, SYNC, read_only=True) as store:
            assert store.max_offset("T", 0) == (2 if code == 0 else 1)
        assert not (tmp_path / "abort").exists()

    run(scenario)


def test_a_broker_that_is_being_stopped_takes_no_more_sends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for _ in range(2):
                await bench.client.send()
            bench.broker.rules.is_stopping = True
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "being stopped" in (answer.remark or "")

    run(scenario)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "first") as bench:
            port = int(bench.broker.address.rpartition(":")[2])
            second = Broker(replace(BROKER, port=port), STORE, tmp_path / "second", runtime=Runtime.system())
            with pytest.raises(ConnectError, match="cannot listen"):
                await second.start()
            locked = Broker(BROKER, STORE, tmp_path / "first", runtime=Runtime.system())
            with pytest.raises(StoreLockedError):
                await locked.start()
            with pytest.raises(StoreClosedError):
                _ = locked.store
            assert (await bench.client.send()).code == 0
        async with running(tmp_path / "second") as bench:
            assert (await bench.client.send()).code == 0

    run(scenario)


def test_a_config_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
        for name in ("delayOffset.json", "topics.json"):
            for suffix in ("", ".bak"):
                (tmp_path / "config" / f"{name}{suffix}").write_bytes(b"{broken")
            broker = Broker(BROKER, STORE, tmp_path, runtime=Runtime.system())
            with pytest.raises(PenstockError, match=name):
                await broker.start()
            for suffix in ("", ".bak"):
                (tmp_path / "config" / f"{name}{suffix}").unlink()

    run(scenario)


def test_a_store_without_configs_is_served(tmp_path: Path) -> None:
    """As after a crash before the first save, or with the files of another tool."""

    async def scenario() -> None:
        with MessageStore.open(tmp_path, STORE) as store:
            for number in range(3):
                store.append(Message("Found", b"%d" % number), 2)
        async with running(tmp_path) as bench:
            found = records((await bench.client.pull("Found", 2)).body)
            assert [m.body for m in found] == [b"0", b"1", b"2"]
            config = bench.broker.topics.get("Found")
            assert config is not None
            assert config.read_queue_nums == 3

    run(scenario)


@pytest.mark.seed("S3-66")
def test_name_servers_are_told_once_the_broker_answers(tmp_path: Path) -> None:
    from penstock.nameserver.options import NameServerOptions
    from penstock.nameserver.server import NameServer

    async def scenario() -> None:
        nameserver = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
        await nameserver.start()
        try:
            async with running(tmp_path, name_servers=(nameserver.address,)) as bench:
                assert await bench.broker.registration.wait_registered(60_000)
                asking = Client(nameserver.address)
                await bench.client.send("Fresh")
                request = (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"})
                while (answer := await asking.call(*request)).code != 0:
                    pass  # each answer takes a turn of the name server
                route = TopicRouteData.decode(answer.body)
                assert [data.broker_addrs for data in route.broker_datas] == [{0: bench.broker.address}]
                await bench.broker.stop()
                answer = await asking.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"})
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST
                await asking.close()
        finally:
            await nameserver.stop()

    run(scenario)


@contextmanager
def port_with_vip_port() -> Iterator[tuple[int, socket.socket]]:
    """A reserved port, and a socket bound to the port two below, which no other test has reserved."""
    for _ in range(100):
        with ReservedPort() as reserved, socket.socket() as below:
            try:
                below.bind(("127.0.0.1", reserved.number - 2))
            except OSError:
                continue
            below.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield reserved.number, below
            return
    pytest.fail("no port whose VIP port is free")


def test_the_vip_port_is_open_by_default_and_answers_all_but_pulls(tmp_path: Path) -> None:
    async def scenario(port: int) -> None:
        async with running(tmp_path, port=port) as bench:
            vip = bench.connect()
            vip.address = f"127.0.0.1:{port - 2}"
            assert (await vip.send()).code == 0
            assert (await vip.pull()).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (await bench.client.pull()).code == 0

    with port_with_vip_port() as (port, _):
        run(lambda: scenario(port))


def test_a_broker_whose_vip_port_is_taken_runs_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(port: int) -> None:
        async with running(tmp_path, port=port) as bench:
            assert (await bench.client.send()).code == 0

    with port_with_vip_port() as (port, below):
        below.listen()
        run(lambda: scenario(port))
    warnings = [
        record.getMessage() for record in caplog.records if "vipChannelEnabled" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert f"127.0.0.1:{port - 2}" in warnings[0]


def test_silent_clients_are_dropped_and_others_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        settings = {"channel_expiry_ms": 150, "channel_scan_interval_ms": 50}
        async with running(tmp_path, runtime=Runtime(clock=clock), **settings) as bench:
            await bench.client.heartbeat("g", client_id="silent")
            assert bench.broker.consumers.group("g") is not None
            other = bench.connect()
            await other.heartbeat("h", client_id="alive")
            for _ in range(8):
                clock.advance(50)
                await other.heartbeat("h", client_id="alive")
            await until(lambda: bench.broker.consumers.group("g") is None)
            assert bench.broker.consumers.group("h") is not None
            await until(lambda: len(bench.broker.connections) == 1)

    run(scenario)


def test_unknown_requests_are_said_to_be(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            answer = await bench.client.call(4_242)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.remark == " request type 4242 not supported"

    run(scenario)


def test_a_deleted_topic_begins_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for _ in range(3):
                await bench.client.send("Gone", b"old")
            assert (await bench.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})).code == 0
            assert (await bench.client.pull("Gone")).code == ResponseCode.TOPIC_NOT_EXIST
            for _ in range(3):  # the compiled way knew the topic's old queues
                assert (await bench.client.send("Gone", b"new")).code == 0
            found = records((await bench.client.pull("Gone")).body)
            assert [m.body for m in found] == [b"new"] * 3

    run(scenario)


async def _throughput(bench: Bench, count: int) -> None:
    answers = await asyncio.gather(*(bench.client.send(body=b"%d" % i) for i in range(count)))
    assert {answer.code for answer in answers} == {0}


@pytest.mark.invariant("I16")
def test_nothing_grows_with_clients_that_come_and_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bench.broker.topics.update(TopicConfig("T", 4, 4, Permission(6)))
            await _throughput(bench, 50)
            for round_number in range(10):
                client = bench.connect()
                await client.heartbeat("g", client_id=f"c{round_number}")
                waiting = [
                    asyncio.ensure_future(client.pull(queue=q, offset=0, wait_ms=60_000)) for q in (1, 2)
                ]
                await pulls_held(bench, 2)
                await client.close()
                await asyncio.gather(*waiting, return_exceptions=True)
                await pulls_held(bench, 0)
            await until(lambda: len(bench.broker.connections) == 1)
            assert bench.broker.consumers.group("g") is None
            assert bench.broker.flow.waiting == 0
            command = Command(RequestCode.SEND_MESSAGE_V2, {})
            assert (await bench.client.remoting.call(bench.broker.address, command)).code == 1

    run(scenario)
