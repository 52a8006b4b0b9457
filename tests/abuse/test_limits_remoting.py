"""Limits of connections, each at a running broker: over it the peer is refused or closed, and nobody else notices."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.protocol.command import Command, encode_frame
from penstock.remoting import RemotingOptions
from tests.abuse.limits import limit
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import STORE, Bench, run, running, send_fields
from tests.waiting import until

QUESTION = {"topic": "T", "queueId": "0"}
BIG = replace(STORE, max_message_size_bytes=256 * 1024, segment_size_bytes=8 << 20)


def ask(opaque: int = 1, fields: dict[str, str] | None = None, **header: object) -> Command:
    return Command(30, {**QUESTION, **(fields or {})}, opaque=opaque, **header)  # type: ignore[arg-type]


def at_broker(
    path: Path,
    test: Callable[[Bench], Awaitable[None]],
    broker: dict[str, object] | None = None,
    **options: int,
) -> None:
    """Run a test with these options of remoting, and see that an honest client is served all the while."""

    async def scenario() -> None:
        async with running(path, store=BIG, remoting=RemotingOptions(**options), **(broker or {})) as bench:
            assert (await bench.client.send()).code == 0
            serving = asyncio.ensure_future(serve(bench))
            await test(bench)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            assert not serving.done() or serving.cancelled(), serving.exception()
            assert (await bench.client.send()).code == 0

    async def serve(bench: Bench) -> None:
        while True:
            assert (await bench.client.call(30, QUESTION)).code == 0
            await asyncio.sleep(0.02)

    run(scenario)


@limit("remoting.frame_bytes_max")
@pytest.mark.abuse("A1")
@pytest.mark.parametrize("length", [10_001, 2**31 - 1, -1, -(2**31), 0, 3])
def test_frames_longer_than_allowed_close_before_they_come(tmp_path: Path, length: int) -> None:
    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        body = 10_000 - len(encode_frame(ask())) + 4
        exact = replace(ask(7), body=bytes(body))
        assert len(encode_frame(exact)) == 10_004
        assert (await peer.ask(exact)).code == 0
        peer.send(struct.pack(">ii", length, 0))  # and not a byte of it
        assert await peer.is_closed()
        await peer.close()

    at_broker(tmp_path, test, frame_bytes_max=10_000)


@limit("remoting.header_bytes_max")
@pytest.mark.abuse("A1")
@pytest.mark.abuse("A3")
def test_headers_longer_than_allowed_or_than_their_frame_close(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for length, header in ((5_000, 2_001), (100, 97), (100, 0xFFFFFF), (1_000, 0x01000000 | 999)):
            peer = await RawPeer.connect(bench.broker.address)
            assert (await peer.ask(ask(3, {"filler": "x" * 1_500}))).code == 0
            peer.send(struct.pack(">ii", length, header))
            assert await peer.is_closed()
            await peer.close()

    at_broker(tmp_path, test, header_bytes_max=2_000)


@limit("remoting.header_fields_max")
@pytest.mark.abuse("A3")
def test_a_header_of_too_many_fields_is_refused(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        fields = {f"f{n}": "" for n in range(20)}
        answer = await peer.ask(ask(5, fields))
        assert (answer.code, "header fields" in (answer.remark or "")) == (1, True)
        assert (await peer.ask(ask(6))).code == 0, "only the request was refused"
        assert (await peer.ask(ask(7, dict(list(fields.items())[:18])))).code == 0
        peer.send(ask(8, {f"f{n}": "v" for n in range(20)}, binary=True))
        assert await peer.is_closed()
        await peer.close()

    at_broker(tmp_path, test, header_fields_max=20)


@limit("remoting.connections_max", "remoting.connections_per_ip_max")
@pytest.mark.abuse("A14")
@pytest.mark.parametrize("name", ["connections_max", "connections_per_ip_max"])
def test_a_flood_of_connections_is_turned_away(tmp_path: Path, name: str) -> None:
    async def test(bench: Bench) -> None:
        peers = [await RawPeer.connect(bench.broker.address) for _ in range(200)]
        await until(lambda: len(bench.broker.connections) <= 20)
        await asyncio.gather(*(peer.close() for peer in peers))
        await until(lambda: len(bench.broker.connections) == 1)
        peer = await RawPeer.connect(bench.broker.address)
        assert (await peer.ask(ask())).code == 0
        await peer.close()

    at_broker(tmp_path, test, **{name: 20})


@limit("remoting.frame_timeout_ms")
@pytest.mark.abuse("A2")
def test_a_frame_that_trickles_and_a_peer_that_says_nothing_are_closed(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        silent, slow, honest = [await RawPeer.connect(bench.broker.address) for _ in range(3)]
        assert (await honest.ask(ask())).code == 0
        slow.send(struct.pack(">ii", 1 << 24, 100))
        trickling = asyncio.ensure_future(trickle(slow))
        assert await silent.is_closed()
        assert await slow.is_closed()
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        assert (await honest.ask(ask())).code == 0, "one that has asked once may rest"
        for peer in (silent, slow, honest):
            await peer.close()

    async def trickle(peer: RawPeer) -> None:
        while True:
            peer.send(b"{")
            await asyncio.sleep(0.02)

    at_broker(tmp_path, test, frame_timeout_ms=1_500)


@limit("remoting.idle_timeout_ms")
@pytest.mark.abuse("A2")
def test_a_peer_that_rests_too_long_is_closed(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        assert (await peer.ask(ask())).code == 0
        assert await peer.is_closed()
        await peer.close()

    at_broker(tmp_path, test, idle_timeout_ms=1_500)


@limit("remoting.incomplete_bytes_max")
@pytest.mark.abuse("A14")
def test_frames_that_are_never_completed_take_only_so_much_memory(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        small = await RawPeer.connect(bench.broker.address)
        small.send(encode_frame(ask(9))[:-1])
        peers = [await RawPeer.connect(bench.broker.address) for _ in range(8)]
        for peer in peers:
            peer.send(struct.pack(">ii", 1 << 20, 100) + bytes(400_000))
        await until(lambda: len(bench.broker.connections) < 8)
        kept = sum(connection.partial_size for connection in bench.broker.connections)
        assert kept <= 1_000_000
        small.send(encode_frame(ask(9))[-1:])
        assert (await small.read()).opaque == 9, "it had hardly anything waiting"
        for peer in (small, *peers):
            await peer.close()

    at_broker(tmp_path, test, incomplete_bytes_max=1_000_000)


@pytest.mark.abuse("A2")
@pytest.mark.abuse("A14")
def test_pieces_of_a_frame_cost_no_more_than_they_hold(tmp_path: Path) -> None:
    """Kept apart, two bytes would take fifty."""

    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        frame = encode_frame(replace(ask(4), body=bytes(5_000)))
        connection = None
        for at in range(0, len(frame), 2):
            peer.send(frame[at : at + 2])
            await asyncio.sleep(0)
            if at % 1_000 == 998:
                least = at - 2_000
                await until(
                    lambda least=least: any(one.partial_size >= least for one in bench.broker.connections)
                )
                connection = max(bench.broker.connections, key=lambda one: one.partial_size)
                assert len(connection._partial) <= 4
        assert connection is not None
        assert (await peer.read()).opaque == 4
        await peer.close()

    at_broker(tmp_path, test)


@limit("remoting.requests_in_flight_max")
@pytest.mark.abuse("A14")
def test_a_peer_may_have_only_so_many_requests_under_way(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        query = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        peer.send(*(Command(12, query, opaque=n) for n in range(50)))
        answers = [await peer.read() for _ in range(50)]
        busy = [answer for answer in answers if answer.code == 2]
        assert len(busy) == 47
        assert "wait for answers" in (busy[0].remark or "")
        await peer.close()

    at_broker(tmp_path, test, requests_in_flight_max=3)


@pytest.mark.abuse("A14")
def test_requests_that_take_long_leave_time_for_others(tmp_path: Path) -> None:
    """Thousands of requests in one read are handled in slices; an honest client is answered in between."""

    async def test(bench: Bench) -> None:
        wide = {"topic": "Wide", "readQueueNums": "500", "writeQueueNums": "500", "perm": "6"}
        assert (await bench.client.call(17, wide)).code == 0
        peer = await RawPeer.connect(bench.broker.address)
        peer.send(*(Command(202, {"topic": "Wide"}, opaque=n) for n in range(80)))
        reading = asyncio.ensure_future(read_all(peer))
        turns = 0
        while not reading.done():
            assert (await bench.client.call(30, QUESTION)).code == 0
            turns += 1
        assert await reading == [*range(80)]
        assert turns > 10, "nobody else had a turn"
        await peer.close()

    async def read_all(peer: RawPeer) -> list[int]:
        return [(await peer.read()).opaque for _ in range(80)]

    at_broker(tmp_path, test)


@pytest.mark.abuse("A14")
def test_requests_that_were_put_off_are_handled_although_their_peer_leaves(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        peer = await RawPeer.connect(bench.broker.address)
        sends = [Command(310, send_fields("Left"), b"x", opaque=n, flag=2) for n in range(2_000)]
        peer.send(Command(310, send_fields("Left"), b"x", opaque=1))
        await peer.read()
        slow = [Command(29, {**QUESTION, "timestamp": "0"}, opaque=n, flag=2) for n in range(200)]
        peer.send(*slow, *sends)
        await peer.drain()
        await peer.close()
        await until(lambda: bench.broker.store.max_offset("Left", 0) == 2_001)

    at_broker(tmp_path, test)
