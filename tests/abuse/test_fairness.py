"""One crowd of peers against everybody else (A14, A15): time of the loop, memory and threads are shared.

Each test does at a real server what one client can do, and looks at what the server handled or held, not at the
clock. `python -m benchmarks.slow_readers` has the figures.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.message import StoredMessage
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingServer
from penstock.remoting.connection import IN_THREADS_MAX
from penstock.remoting.threads import WORKERS
from penstock.runtime import Runtime
from penstock.store.reading import StoreReader as Reader
from tests.abuse.limits import limit
from tests.abuse.test_limits_remoting import QUESTION, at_broker
from tests.abuse.test_slow_readers import fill, pull, unread
from tests.effort import by_length
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import Bench
from tests.waiting import until

MIB = 1 << 20
WORK = 9_001
# A request takes so long by itself, so that a crowd of them takes much longer than any turn.
WORK_S = 0.000_5


class Server:
    """A server whose requests take time, and count."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        table = ProcessorTable()
        table.register(WORK, self._work)
        self.server = RemotingServer("127.0.0.1", 0, table, runtime=Runtime.system())

    def _work(self, connection: Connection, command: Command) -> Command:
        time.sleep(WORK_S)
        self.handled.append(connection.id)
        return command.answer()

    async def crowd(self, peers: int, requests: int) -> list[RawPeer]:
        """Peers that have connected, each with so many requests on their way."""
        many = [await RawPeer.connect(str(self.server.address)) for _ in range(peers)]
        await until(lambda: len(self.server.connections) >= peers)
        for peer in many:
            peer.send(*(Command(WORK, opaque=number) for number in range(requests)))
        return many


def at_server(test: Callable[[Server], Awaitable[None]]) -> None:
    async def scenario() -> None:
        server = Server()
        await server.server.start()
        try:
            async with asyncio.timeout(90):
                await test(server)
        finally:
            await server.server.stop()

    asyncio.run(scenario())


@pytest.mark.abuse("A14")
def test_a_turn_of_the_loop_handles_only_so_many_requests_of_all_peers_together() -> None:
    async def test(server: Server) -> None:
        many = await server.crowd(20, 60)
        most = before = 0
        while len(server.handled) < 20 * 60:
            await asyncio.sleep(0)
            most, before = max(most, len(server.handled) - before), len(server.handled)
        # Two milliseconds and one quantum, plus what is read in between and handled in place; not 20 peers' worth.
        assert most <= 20
        await asyncio.gather(*(peer.abort() for peer in many))

    at_server(test)


@pytest.mark.abuse("A14")
def test_one_request_at_a_time_is_answered_between_thousands() -> None:
    async def test(server: Server) -> None:
        honest = await RawPeer.connect(str(server.server.address))
        await honest.ask(Command(WORK, opaque=1))
        many = await server.crowd(20, 100)
        await until(lambda: len(server.handled) > 100)
        for number in range(10):
            before = len(server.handled)
            assert (await honest.ask(Command(WORK, opaque=number))).code == 0
            assert len(server.handled) - before <= 40, "it waited for the whole crowd"
        assert len(server.handled) < 20 * 100, "the crowd was not waiting any more"
        await asyncio.gather(honest.abort(), *(peer.abort() for peer in many))

    at_server(test)


@pytest.mark.abuse("A14")
@pytest.mark.abuse("A15")
@pytest.mark.long
def test_a_crowd_that_does_not_read_takes_little_memory_and_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The assessment's: connections that are open first, each with 200 pulls of large answers, none of them read."""
    peers = by_length(60, 300)

    async def test(bench: Bench) -> None:
        await fill(bench)
        many = [await RawPeer.connect(bench.broker.address, window=64 * 1024) for _ in range(peers)]
        await until(lambda: len(bench.broker.connections) > peers)
        for peer in many:
            peer.send(*(pull(number) for number in range(200)))
        most = sends = 0
        while len(bench.broker.connections) > 1:
            assert (await bench.client.send(body=b"x" * 100)).code == 0
            sends += 1
            most = max(most, sum(connection.unread_bytes for connection in bench.broker.connections))
        assert sends > 100, "the sends were answered while the crowd was there"
        assert 0 < most <= 96 * MIB
        await asyncio.gather(*(peer.abort() for peer in many))

    with caplog.at_level(logging.WARNING, logger="penstock.remoting"):
        at_broker(tmp_path, test, write_timeout_ms=3_000)
    reasons = [record.getMessage() for record in caplog.records if "closing the connection" in record.message]
    assert len(reasons) == peers
    assert all("bytes" in reason and ("read none" in reason or "not read" in reason) for reason in reasons)


@pytest.mark.abuse("A15")
def test_one_that_reads_slowly_is_kept_however_long_it_takes(tmp_path: Path) -> None:
    """Slow, not silent: a busy consumer over a thin network. All of it takes many times the deadline."""

    async def test(bench: Bench) -> None:
        await fill(bench)
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(pull(number) for number in range(60)))
        await until(lambda: unread(bench) > 0)
        began = time.monotonic()
        for number in range(60):
            assert (await peer.read()).opaque == number
            if time.monotonic() - began < 4.0:
                await asyncio.sleep(0.15)
        await peer.close()

    at_broker(tmp_path, test, write_timeout_ms=1_000, write_buffer_pause_bytes=8 * MIB)


@pytest.mark.abuse("A14")
@pytest.mark.abuse("A15")
def test_scans_that_nobody_reads_get_smaller_answers(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await fill(bench, 150)
        scan = pull(1)
        scan.fields |= {"maxMsgNums": "65536", "maxMsgBytes": str(8 * MIB), "penstockPull": "scan"}
        many = [await RawPeer.connect(bench.broker.address, window=64 * 1024) for _ in range(40)]
        most = 0
        for peer in many:
            peer.send(scan, scan, scan)
            assert (await bench.client.send(body=b"x")).code == 0
            most = max(most, sum(connection.unread_bytes for connection in bench.broker.connections))
        assert most <= 96 * MIB
        honest = await RawPeer.connect(bench.broker.address)
        assert len((await honest.ask(scan)).body) >= 200_000, (
            "less than it asked for, but as much as any pull gets"
        )
        await asyncio.gather(honest.abort(), *(peer.abort() for peer in many))

    at_broker(tmp_path, test)


@pytest.mark.abuse("A14")
@pytest.mark.abuse("A15")
def test_held_pulls_of_a_peer_that_does_not_read_wait_until_it_does(tmp_path: Path) -> None:
    """A message wakes them all; each would be answered with a quarter of a megabyte."""

    async def test(bench: Bench) -> None:
        await fill(bench, 1)
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        question = Command(30, {"topic": "T", "queueId": "0"}, opaque=9_999)
        peer.send(*(pull(number, 1, wait_ms=60_000) for number in range(300)), question)
        assert (await peer.read()).opaque == 9_999
        await fill(bench, 4)
        await until(lambda: unread(bench) > 0)
        for _ in range(50):
            assert (await bench.client.send()).code == 0
        assert unread(bench) < 6 * MIB
        answers = [await peer.read() for _ in range(300)]
        assert sorted(answer.opaque for answer in answers) == [*range(300)]
        assert {answer.code for answer in answers} == {0}
        await peer.close()

    at_broker(tmp_path, test)


@limit("broker.long_poll_bytes_max")
@pytest.mark.abuse("A14")
def test_held_pulls_with_much_in_their_headers_take_only_so_much_memory(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await fill(bench, 1)
        peer = await RawPeer.connect(bench.broker.address)
        for number in range(100):
            one = pull(number, 1, wait_ms=60_000)
            one.fields["bname"] = "x" * 100_000
            peer.send(one)
        early = [await peer.read() for _ in range(90)]
        assert {answer.code for answer in early} == {19}
        assert [answer.opaque for answer in early] == [*range(90)], "the oldest first"
        plain = await RawPeer.connect(bench.broker.address)
        plain.send(pull(1, 1, wait_ms=60_000))
        await fill(bench, 1)
        assert (await plain.read()).code == 0
        await asyncio.gather(peer.close(), plain.close())

    at_broker(tmp_path, test, {"long_poll_bytes_max": 1 * MIB})


@pytest.mark.abuse("A14")
def test_requests_that_wait_for_threads_leave_some_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches of one client on a slow disk: another client's is the next, not the last."""
    gate = threading.Semaphore(0)
    search = Reader.matches
    # With more, the question behind them would have to wait as well.
    searches = IN_THREADS_MAX - 1

    def slow(reader: Reader, *arguments: Any) -> Iterator[StoredMessage]:
        assert gate.acquire(timeout=60)
        return search(reader, *arguments)

    async def test(bench: Bench) -> None:
        query = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        greedy = await RawPeer.connect(bench.broker.address)
        greedy.send(
            *(Command(12, query, opaque=number) for number in range(searches)),
            Command(30, QUESTION, opaque=99),
        )
        assert (await greedy.read()).opaque == 99, "all of them wait"
        honest = await RawPeer.connect(bench.broker.address)
        honest.send(Command(12, query, opaque=1), Command(30, QUESTION, opaque=2))
        assert (await honest.read()).opaque == 2
        gate.release(WORKERS + 2)
        assert (await honest.read()).opaque == 1
        gate.release(searches)
        assert sorted([(await greedy.read()).opaque for _ in range(searches)]) == [*range(searches)]
        await asyncio.gather(greedy.close(), honest.close())

    monkeypatch.setattr(Reader, "matches", slow)
    at_broker(tmp_path, test)
