"""Peers that ask and do not read (A15): what waits for them is bounded, what they asked is not lost, others are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from tests.abuse.limits import limit
from tests.abuse.test_limits_remoting import at_broker
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import properties
from tests.support.running_broker import Bench, send_fields
from tests.waiting import until

PAUSE = 256 * 1024
PULLS = 400

SEARCH = {"topic": "Large", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}


def pull(opaque: int, offset: int = 0, *, wait_ms: int = 0, group: str = "slow") -> Command:
    flag = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if wait_ms else 0)
    fields = {
        "consumerGroup": group,
        "topic": "Large",
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": int(flag),
        "commitOffset": 0,
        "suspendTimeoutMillis": wait_ms,
        "subscription": "*",
        "subVersion": 0,
    }
    return Command(11, {name: str(value) for name, value in fields.items()}, opaque=opaque)


async def fill(bench: Bench, count: int = 4, size: int = 60_000) -> None:
    for _ in range(count):
        assert (await bench.client.send("Large", bytes(size))).code == 0


def unread(bench: Bench) -> int:
    return max((connection.unread_bytes for connection in bench.broker.connections), default=0)


@limit("remoting.write_buffer_pause_bytes")
@pytest.mark.abuse("A15")
def test_pulls_of_one_chunk_are_answered_as_fast_as_they_are_read_and_no_faster(tmp_path: Path) -> None:
    """A chunk of pulls asks for a thousand times its size: only so much of that is ever in memory."""

    async def test(bench: Bench) -> None:
        await fill(bench)
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(pull(n) for n in range(PULLS)))
        await until(lambda: unread(bench) > 0)
        for _ in range(50):
            assert (await bench.client.send()).code == 0
        assert unread(bench) < PAUSE + 2 * 256 * 1024, "the rest was read, too"
        answers = [await peer.read() for _ in range(PULLS)]
        assert [answer.opaque for answer in answers] == [*range(PULLS)]
        assert {(answer.code, len(answer.body) > 200_000) for answer in answers} == {(0, True)}
        assert (await peer.ask(Command(30, {"topic": "Large", "queueId": "0"}, opaque=9_999))).code == 0
        await peer.close()

    at_broker(tmp_path, test, write_buffer_pause_bytes=PAUSE)


@pytest.mark.abuse("A15")
def test_searches_wait_for_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """Threads make no answers that nobody reads: not for those under way, and no more are begun."""

    async def test(bench: Bench) -> None:
        keyed = send_fields("Large", props=properties(KEYS="k", UNIQ_KEY="u"))
        for _ in range(4):
            assert (await bench.client.call(310, keyed, bytes(60_000))).code == 0
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(Command(12, SEARCH, opaque=n) for n in range(PULLS)))
        await until(lambda: unread(bench) > PAUSE)
        for _ in range(50):
            assert (await bench.client.send()).code == 0
        assert unread(bench) < 2 << 20, "the rest was searched, too"
        assert sorted([(await peer.read()).opaque for _ in range(PULLS)]) == [*range(PULLS)]
        await peer.close()

    at_broker(tmp_path, test, write_buffer_pause_bytes=PAUSE)


@limit("remoting.write_buffer_bytes_max")
@pytest.mark.abuse("A15")
def test_answers_that_threads_have_made_are_not_kept_without_end(tmp_path: Path) -> None:
    """Searches that are under way are answered, whether their peer reads or not."""

    async def test(bench: Bench) -> None:
        keyed = send_fields("Large", props=properties(KEYS="k", UNIQ_KEY="u"))
        for _ in range(4):
            assert (await bench.client.call(310, keyed, bytes(60_000))).code == 0
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(Command(12, SEARCH, opaque=n) for n in range(200)))
        await peer.read()
        await until(lambda: len(bench.broker.connections) == 1)
        await peer.close()

    # Less than pauses it, so that threads go on.
    at_broker(tmp_path, test, write_buffer_pause_bytes=64 << 20, write_buffer_bytes_max=2 << 20)


@limit("remoting.write_timeout_ms")
@pytest.mark.abuse("A15")
def test_a_peer_that_never_reads_is_closed(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await fill(bench)
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(pull(n) for n in range(PULLS)))
        await until(lambda: len(bench.broker.connections) == 2)
        await until(lambda: len(bench.broker.connections) == 1)
        await peer.close()

    at_broker(tmp_path, test, write_buffer_pause_bytes=PAUSE, write_timeout_ms=400)


@pytest.mark.abuse("A15")
def test_a_peer_that_is_refused_and_does_not_read_is_not_kept(tmp_path: Path) -> None:
    """It is closed once its answers have gone out; who leaves them unread would stay for good."""

    async def test(bench: Bench) -> None:
        await fill(bench)
        peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
        peer.send(*(pull(n) for n in range(100)), b"\xff" * 16)
        await until(
            lambda: unread(bench) > PAUSE and any(not one.is_open for one in bench.broker.connections)
        )
        await until(lambda: len(bench.broker.connections) == 1)
        await peer.close()

    # More than the system takes for it, and less than what pauses it.
    at_broker(
        tmp_path,
        test,
        write_timeout_ms=400,
        write_buffer_pause_bytes=64 << 20,
        write_buffer_bytes_max=96 << 20,
        unread_bytes_max=1 << 30,
    )


@limit("remoting.unread_bytes_max", "remoting.write_timeout_pressed_ms")
@pytest.mark.abuse("A14")
@pytest.mark.abuse("A15")
def test_all_slow_readers_together_keep_only_so_much(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await fill(bench)
        peers = []
        for _ in range(12):
            peer = await RawPeer.connect(bench.broker.address, window=64 * 1024)
            peer.send(*(pull(n) for n in range(50)))
            peers.append(peer)
        await until(lambda: len(bench.broker.connections) <= 5)
        assert sum(connection.unread_bytes for connection in bench.broker.connections) <= 4 << 20
        reader = await RawPeer.connect(bench.broker.address)
        reader.send(*(pull(n) for n in range(50)))
        assert [(await reader.read()).opaque for _ in range(50)] == [*range(50)], "one that reads is served"
        for peer in (reader, *peers):
            await peer.close()

    at_broker(
        tmp_path,
        test,
        write_buffer_pause_bytes=PAUSE,
        unread_bytes_max=1 << 20,
        write_timeout_pressed_ms=1_500,
    )
