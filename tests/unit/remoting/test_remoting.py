"""Connections over real sockets: both directions, one-way, timeouts, back-pressure, limits, closing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.errors import CallTimeoutError, ConnectError, ConnectionLostError, RequestError, ResponseError
from penstock.protocol.command import Command, decode_frame, encode_frame
from penstock.remoting import (
    Connection,
    ProcessorTable,
    RemotingClient,
    RemotingOptions,
    RemotingServer,
    TlsOptions,
    check,
)
from penstock.runtime import Runtime
from tests.waiting import until

ECHO, LATER, FAIL, BROKEN, NEVER, COUNT, BIG, ASK_BACK = range(9001, 9009)
OPTIONS = RemotingOptions()


class Bench:
    """A server with a few handlers, and a client that can be asked back."""

    def __init__(self, options: RemotingOptions = OPTIONS, tls: TlsOptions | None = None) -> None:
        self.runtime = Runtime.system()
        self.seen: list[Command] = []
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        table = ProcessorTable()
        table.register(ECHO, lambda _, c: c.answer(0, fields=c.fields, body=c.body))
        table.register(LATER, self.later)
        table.register(FAIL, self.fail)
        table.register(BROKEN, lambda _, c: 1 // 0)  # type: ignore[arg-type, return-value]
        table.register(NEVER, lambda _, c: None)
        table.register(COUNT, self.count)
        table.register(BIG, self.big)
        table.register(ASK_BACK, self.ask_back)
        self.server = RemotingServer(
            "127.0.0.1",
            0,
            table,
            runtime=self.runtime,
            options=options,
            tls=tls,
            on_open=self.opened.append,
            on_close=self.closed.append,
        )
        asked = ProcessorTable()
        asked.register(ECHO, lambda _, c: c.answer(0, body=b"client:" + c.body))
        self.client = RemotingClient(asked, runtime=self.runtime, options=options)

    async def later(self, _: Connection, command: Command) -> Command:
        await asyncio.sleep(0.01)
        return command.answer(0, body=b"later")

    def fail(self, _: Connection, command: Command) -> Command:
        raise RequestError(17, "no such topic", "make it first")

    def big(self, _: Connection, command: Command) -> Command:
        self.seen.append(command)
        return command.answer(0, body=bytes(1 << 20))

    def count(self, _: Connection, command: Command) -> None:
        self.seen.append(command)

    async def ask_back(self, connection: Connection, command: Command) -> Command:
        answer = await connection.call(Command(ECHO, body=b"who"), 60_000)
        return command.answer(0, body=answer.body)

    @property
    def address(self) -> str:
        return str(self.server.address)


def run(test: Callable[[Bench], Awaitable[None]], options: RemotingOptions = OPTIONS) -> Bench:
    async def main() -> Bench:
        bench = Bench(options)
        await bench.server.start()
        try:
            async with asyncio.timeout(60):
                await test(bench)
        finally:
            await bench.client.close()
            await bench.server.stop()
        return bench

    return asyncio.run(main())


def test_request_and_response_in_both_forms() -> None:
    async def test(bench: Bench) -> None:
        for binary in (False, True):
            answer = await bench.client.call(bench.address, Command(ECHO, {"a": "ü"}, b"body", binary=binary))
            assert (answer.code, answer.fields, answer.body, answer.binary) == (
                0,
                {"a": "ü"},
                b"body",
                binary,
            )

    bench = run(test)
    assert len(bench.opened) == len(bench.closed) == 1


def test_many_requests_at_once_find_their_answers() -> None:
    async def test(bench: Bench) -> None:
        codes = [ECHO, LATER, FAIL]
        answers = await asyncio.gather(
            *(
                bench.client.call(bench.address, Command(codes[i % 3], body=str(i).encode()))
                for i in range(300)
            )
        )
        for i, answer in enumerate(answers):
            if codes[i % 3] == ECHO:
                assert answer.body == str(i).encode()
            elif codes[i % 3] == LATER:
                assert answer.body == b"later"
            else:
                assert (answer.code, answer.remark) == (17, "no such topic; make it first")

    bench = run(test)
    assert len(bench.opened) == 1


def test_the_server_calls_the_client_on_the_same_connection() -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.call(bench.address, Command(ASK_BACK))).body == b"client:who"

    run(test)


def test_errors_become_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        broken = await bench.client.call(bench.address, Command(BROKEN))
        assert broken.code == 1
        assert "ZeroDivisionError" in (broken.remark or "")
        unknown = await bench.client.call(bench.address, Command(12345))
        assert (unknown.code, unknown.remark) == (3, " request type 12345 not supported")
        with pytest.raises(ResponseError, match="12345"):
            check(unknown)
        assert check(unknown, 3) is unknown

    run(test)
    assert "request 9004" in caplog.text


def test_one_way_requests_are_never_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
        for code in (COUNT, FAIL, BROKEN, LATER, 12345, ECHO):
            writer.write(encode_frame(Command(code, flag=2, opaque=1)))
        writer.write(encode_frame(Command(ECHO, opaque=99)))
        head = await reader.readexactly(4)
        frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
        assert decode_frame(frame, 0, len(frame)).opaque == 99
        writer.close()
        await bench.client.send(bench.address, Command(COUNT, {"n": "1"}))
        await until(lambda: len(bench.seen) == 2)
        assert bench.seen[1].is_oneway

    run(test)


def test_frames_in_pieces_and_many_in_one_write() -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
        frames = b"".join(encode_frame(Command(ECHO, opaque=i, body=bytes(i))) for i in range(50))
        for at in range(0, len(frames), 97):
            writer.write(frames[at : at + 97])
            await asyncio.sleep(0)
        writer.write(frames)
        for i in [*range(50), *range(50)]:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
            answer = decode_frame(frame, 0, len(frame))
            assert (answer.opaque, len(answer.body)) == (i, i)
        writer.close()

    run(test)


def test_a_large_frame_that_comes_in_many_reads() -> None:
    async def test(bench: Bench) -> None:
        body = bytes(range(256)) * 40_000
        answer = await bench.client.call(bench.address, Command(ECHO, body=body), 10_000)
        assert answer.body == body

    run(test)


def test_no_answer_in_time_is_an_unknown_outcome() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(CallTimeoutError) as caught:
            await bench.client.call(bench.address, Command(NEVER), 100)
        assert caught.value.outcome_unknown
        assert (await bench.client.call(bench.address, Command(ECHO, body=b"alive"))).body == b"alive"

    run(test)


def test_a_lost_connection_ends_what_waits_on_it() -> None:
    async def test(bench: Bench) -> None:
        waiting = asyncio.ensure_future(bench.client.call(bench.address, Command(NEVER), 10_000))
        await until(lambda: bench.opened)
        next(iter(bench.server.connections)).abort()
        with pytest.raises(ConnectionLostError) as caught:
            await waiting
        assert caught.value.outcome_unknown
        assert (await bench.client.call(bench.address, Command(ECHO))).code == 0  # a new connection

    assert len(run(test).opened) == 2


def test_nobody_there_is_not_an_unknown_outcome() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(ConnectError) as caught:
            await bench.client.call("127.0.0.1:1", Command(ECHO))
        assert not caught.value.outcome_unknown
        for address in ("", "localhost", "x:99999", "x:-1", ":80"):
            with pytest.raises(ConnectError, match="address"):
                await bench.client.call(address, Command(ECHO))

    run(test)


def test_a_port_in_use_says_so() -> None:
    async def test(bench: Bench) -> None:
        second = RemotingServer(
            "127.0.0.1", bench.server.address.port, ProcessorTable(), runtime=bench.runtime
        )
        with pytest.raises(ConnectError, match="another port"):
            await second.start()

    run(test)


@pytest.mark.abuse("A1")
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\0" * 64, b"\x7f\xff\xff\xff\0\0\0\0"]
)
def test_garbage_closes_its_connection_and_no_other(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
            writer.write(encode_frame(Command(ECHO, opaque=5)) + garbage)
            assert len(await reader.read()) > 0  # the good frame before it is answered, then it is closed
            writer.close()
        assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
        assert bench.server.meters.counters["refused_frames"] == 3

    run(test)
    assert caplog.text.count("closing the connection") == 1  # once per peer


@pytest.mark.abuse("A2")
def test_silent_and_slow_peers_are_closed() -> None:
    async def test(bench: Bench) -> None:
        silent = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
        slow = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
        slow[1].write(struct.pack(">ii", 1 << 24, 100))
        healthy = asyncio.ensure_future(drip(bench))
        for reader, writer in (silent, slow):
            assert await reader.read() == b""
            writer.close()
        healthy.cancel()
        assert bench.server.meters.counters["timed_out"] == 2

    async def drip(bench: Bench) -> None:
        while True:
            assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
            await asyncio.sleep(0.1)

    run(test, replace(OPTIONS, frame_timeout_ms=300))


def test_an_idle_connection_is_closed() -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
        await until(lambda: bench.closed)

    run(test, replace(OPTIONS, idle_timeout_ms=200))


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes a connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.abuse("A14")
def test_connections_are_limited_in_all_and_per_address() -> None:
    for options in (replace(OPTIONS, connections_max=3), replace(OPTIONS, connections_per_ip_max=3)):

        async def test(bench: Bench) -> None:
            peers = [await asyncio.open_connection("127.0.0.1", bench.server.address.port) for _ in range(3)]
            # Who says nothing makes room for others...
            assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
            assert await ended(peers[0][0])
            for reader, writer in peers[1:]:
                writer.write(encode_frame(Command(ECHO)))
                await reader.readexactly(4)
            # ... and where all have asked something, the new one is closed.
            late, late_writer = await asyncio.open_connection("127.0.0.1", bench.server.address.port)
            assert await ended(late)
            assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
            for writer in (late_writer, *(writer for _, writer in peers)):
                writer.close()
            await until(lambda: len(bench.server.connections) == 1)

        run(test, options)


@pytest.mark.abuse("A15")
def test_a_peer_that_does_not_read_is_not_read_from_and_then_closed() -> None:
    async def test(bench: Bench) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", bench.server.address.port, limit=1)
        for i in range(200):
            writer.write(encode_frame(Command(BIG, opaque=i)))
        await until(lambda: bench.server.meters.counters["timed_out"] == 1)
        assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
        writer.close()

    run(test, replace(OPTIONS, write_buffer_pause_bytes=1 << 20, write_timeout_ms=300))


def test_too_many_requests_under_way_are_told_to_wait() -> None:
    async def test(bench: Bench) -> None:
        # Over a connection that is there all of them arrive together, before the first is answered.
        assert (await bench.client.call(bench.address, Command(ECHO))).code == 0
        answers = await asyncio.gather(*(bench.client.call(bench.address, Command(LATER)) for _ in range(20)))
        busy = [answer for answer in answers if answer.code == 2]
        assert len(busy) == 15
        assert "wait for answers" in (busy[0].remark or "")

    run(test, replace(OPTIONS, requests_in_flight_max=5))


def test_stopping_lets_answers_go_out() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.server.start()
        big = asyncio.ensure_future(bench.client.call(bench.address, Command(BIG), 60_000))
        await until(lambda: bench.seen)
        await bench.server.stop()
        assert len((await big).body) == 1 << 20
        await bench.client.close()

    asyncio.run(main())


@pytest.mark.fault("F3")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_connection_is_forgotten_when_a_server_stops_while_it_is_accepted(loop: str) -> None:
    """uvloop tells nobody of a connection that is cancelled while it is accepted: requests of it were still handled,
    and their answers failed."""
    failures: list[dict[str, object]] = []

    async def scenario(steps: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        bench = Bench(tls=TlsOptions())
        await bench.server.start()
        host, port = bench.address.split(":")
        peers = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        for _, writer in peers:
            writer.write(encode_frame(Command(ECHO)) * 20)
        for _ in range(steps):
            await asyncio.sleep(0)
        await bench.server.stop()
        for _, writer in peers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await bench.client.close()
        assert set(bench.opened) == set(bench.closed)

    factory = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    for steps in range(12):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(scenario(steps))
    assert failures == []
