"""Bytes that are no frames, and headers that are no headers (A1, A3, A4, A5), at a broker and at a name server.

Whatever of it comes, its own connection is closed or its own request refused; another connection is served before,
between and after, and the log names the peer once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.protocol.command import Command, encode_frame
from tests.abuse.mutation import BOMB
from tests.support.nameserver_wire import name_server
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import BATCH, BROKER_REQUESTS, NAME_SERVER_REQUESTS
from tests.support.running_broker import running

QUESTIONS = {
    "broker": Command(30, {"topic": "T", "queueId": "0"}),
    "nameserver": Command(206),
}
SEND = next(request.fields for request in BROKER_REQUESTS if request.code == 310)


@asynccontextmanager
async def server(kind: str, path: Path) -> AsyncIterator[str]:
    if kind == "broker":
        async with running(path) as bench:
            yield bench.broker.address
    else:
        async with name_server() as found:
            yield found.address


def at(kind: str, path: Path, test: Callable[[str, Command], Awaitable[None]]) -> None:
    async def run() -> None:
        async with server(kind, path) as address:
            honest, question = await RawPeer.connect(address), QUESTIONS[kind]
            assert (await honest.ask(question)).code == 0
            async with asyncio.timeout(240):
                await test(address, question)
            assert (await honest.ask(question)).code == 0
            await honest.close()

    asyncio.run(run())


def prefixed(header: bytes, form: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header) | form << 24) + header + body


def binary(
    ext: bytes, *, remark: bytes = b"", ext_size: int | None = None, remark_size: int | None = None
) -> bytes:
    head = struct.pack(">hBhii", 30, 0, 401, 77, 0)
    sizes = len(remark) if remark_size is None else remark_size, len(ext) if ext_size is None else ext_size
    return prefixed(head + struct.pack(">i", sizes[0]) + remark + struct.pack(">i", sizes[1]) + ext, 1)


def pair(name: bytes, value: bytes, name_size: int | None = None, value_size: int | None = None) -> bytes:
    sizes = len(name) if name_size is None else name_size, len(value) if value_size is None else value_size
    return struct.pack(">h", sizes[0]) + name + struct.pack(">i", sizes[1]) + value


NO_FRAMES = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "longer than allowed": struct.pack(">ii", (16 << 20) + 1, 10),
    "negative": struct.pack(">ii", -5, 10),
    "most negative": struct.pack(">ii", -(2**31), 10),
    "too short": struct.pack(">ii", 3, 0),
    "header over the frame": struct.pack(">ii", 10, 7) + bytes(6),
    "header over the limit": struct.pack(">ii", 1 << 20, (256 << 10) + 1),
    "unknown form": struct.pack(">ii", 6, 2 << 24 | 2) + b"{}",
    "negative form": struct.pack(">iI", 6, 0xFF000002) + b"{}",
}
NO_HEADERS = {
    "no JSON": prefixed(b"hello"),
    "an array": prefixed(b"[]"),
    "no code": prefixed(b"{}"),
    "nothing": prefixed(b""),
    "deep": prefixed(b'{"code":30,"x":' + b"[" * 60_000 + b"]" * 60_000 + b"}"),
    "deep and open": prefixed(b'{"code":30,"x":' + b'{"a":' * 20_000),
    "NaN": prefixed(b'{"code":30,"extFields":{"queueId":NaN}}'),
    "code of the wrong type": prefixed(b'{"code":"30"}'),
    "code with a fraction": prefixed(b'{"code":30.5}'),
    "code too large": prefixed(b'{"code":2147483648}'),
    "opaque too large": prefixed(b'{"code":30,"opaque":9223372036854775808}'),
    "version of a thousand digits": prefixed(b'{"code":30,"version":' + b"9" * 1_000 + b"}"),
    "flag that is null": prefixed(b'{"code":30,"flag":null}'),
    "no UTF-8": prefixed(b'{"code":30,"remark":"\xff\xfe"}'),
    "half a character": prefixed(b'{"code":30,"remark":"\\ud800"}'),
    "fields that are a list": prefixed(b'{"code":30,"extFields":[]}'),
    "binary, nothing": prefixed(b"", 1),
    "binary, cut": prefixed(struct.pack(">hBhii", 30, 0, 401, 77, 0), 1),
    "binary, remark over the end": binary(b"", remark_size=2**31 - 1),
    "binary, remark negative": binary(b"", remark_size=-1),
    "binary, fields over the end": binary(b"", ext_size=1_000),
    "binary, fields negative": binary(b"", ext_size=-(2**31)),
    "binary, bytes behind": binary(pair(b"a", b"b"), ext_size=3),
    "binary, name over the end": binary(pair(b"topic", b"T", name_size=32_767)),
    "binary, name negative": binary(pair(b"topic", b"T", name_size=-1)),
    "binary, value over the end": binary(pair(b"topic", b"T", value_size=2**31 - 1)),
    "binary, value negative": binary(pair(b"topic", b"T", value_size=-7)),
    "binary, name is no UTF-8": binary(pair(b"\xff\xfe", b"T")),
    "binary, value is no UTF-8": binary(pair(b"topic", b"\xc0\x80")),
    "binary, too many fields": binary(pair(b"f", b"v") * 20_000),
}


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.abuse("A1")
@pytest.mark.abuse("A3")
@pytest.mark.abuse("A4")
def test_what_is_no_frame_closes_its_connection_and_no_other(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(address: str, question: Command) -> None:
        honest = await RawPeer.connect(address)
        for name, garbage in {**NO_FRAMES, **NO_HEADERS}.items():
            peer = await RawPeer.connect(address)
            peer.send(question, garbage)
            assert (await peer.read()).code == 0, f"{name}: what came before it is answered"
            assert await peer.is_closed(), name
            await peer.close()
            assert (await honest.ask(question)).code == 0
        await honest.close()

    with caplog.at_level(logging.WARNING):
        at(kind, tmp_path, test)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("penstock.remoting")]
    assert len(said) == 1, "once per peer"
    assert "closing the connection from 127.0.0.1" in said[0]


REFUSED = {
    "too many fields": {f"f{n}": "v" for n in range(257)},
    "a field that is an object": {"topic": {"a": 1}},
    "a field that is a list": {"topic": [[]]},
}
TAKEN = {
    "numbers and truths": {"topic": "T", "queueId": 0, "x": True, "y": 1.5, "z": None},
    "as many fields as allowed": {"topic": "T", "queueId": "0", **{f"f{n}": "v" for n in range(254)}},
}


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.abuse("A3")
def test_fields_of_wrong_kinds_are_refused_and_the_connection_lives(tmp_path: Path, kind: str) -> None:
    async def test(address: str, question: Command) -> None:
        peer = await RawPeer.connect(address)
        for opaque, (name, fields) in enumerate({**REFUSED, **TAKEN}.items()):
            header = {"code": question.code, "opaque": opaque, "extFields": fields}
            peer.send(prefixed(json.dumps(header).encode()))
            answer = await peer.read()
            assert (answer.opaque, answer.code) == (opaque, 1 if name in REFUSED else 0), name
        twice = (
            b'{"code":1,"code":%d,"opaque":1,"opaque":99,"extFields":{"topic":"x","topic":"T","queueId":"0"}}'
        )
        peer.send(prefixed(twice % question.code))
        answer = await peer.read()
        assert (answer.opaque, answer.code) == (99, 0), "of two equal names the last counts"
        await peer.close()

    at(kind, tmp_path, test)


BODIES = {
    "nothing": b"",
    "no JSON": b"hello",
    "deep": b'{"a":' * 5_000 + b"}" * 5_000,
    "deep and open": b"[" * 90_000,
    "many values": b"[" + b"1," * 200_000 + b"1]",
    "many objects": b'{"consumerDataSet":[' + b"{}," * 20_000 + b"{}]}",
    "loose and long": b"{" + b"a:1," * 50_000 + b"}",
    "a number of a thousand digits": b'{"clientID":' + b"9" * 1_000 + b"}",
    "references in a circle": b'{"a":{"$ref":"$"}}',
    "half a character": b'{"clientID":"\\ud800"}',
    "no UTF-8": b'{"clientID":"\xff"}',
    "a bomb": BOMB,
    "a bomb in a bomb": zlib.compress(BOMB),
}


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.abuse("A3")
@pytest.mark.abuse("A5")
def test_bodies_that_are_bombs_or_nonsense_hold_nobody_up(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent with every request there is: each is answered, and none takes much of the one loop that is there for all."""

    async def test(address: str, question: Command) -> None:
        peer, slowest = await RawPeer.connect(address), (0.0, "")
        requests = BROKER_REQUESTS if kind == "broker" else NAME_SERVER_REQUESTS
        codes = {request.code: request.fields for request in requests if request.code not in (11, 361)}
        for name, body in BODIES.items():
            for code, fields in codes.items():
                began = time.thread_time()
                answer = await peer.ask(Command(code, dict(fields), body, opaque=1))
                assert -1 < answer.code < 1_000
                slowest = max(slowest, (time.thread_time() - began, f"{code} {name}"))
        began = time.thread_time()
        sum(range(1_000_000))
        # Processor time: some 10 ms for the additions.
        assert slowest[0] < 300 * (time.thread_time() - began), slowest
        await peer.close()

    with caplog.at_level(logging.ERROR):
        at(kind, tmp_path, test)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


LYING_BATCHES = {
    "an item longer than the batch": struct.pack(">i", len(BATCH) + 1) + BATCH[4:],
    "an item of nothing": bytes(4) + BATCH[4:],
    "a negative item": struct.pack(">i", -1) + BATCH[4:],
    "a body longer than its item": BATCH[:16] + struct.pack(">i", 2**31 - 1) + BATCH[20:],
    "a negative body": BATCH[:16] + struct.pack(">i", -1) + BATCH[20:],
    "properties longer than their item": BATCH[:26] + struct.pack(">h", 32_767) + BATCH[28:],
    "cut": BATCH[:-1],
    "bytes behind": BATCH + b"x",
    "cut in a length": BATCH + b"\0\0",
    "a batch in a batch": struct.pack(">iiiii", 22 + len(BATCH), 0, 0, 0, len(BATCH)) + BATCH + b"\0\1",
    "nothing": b"",
}


@pytest.mark.parametrize("case", LYING_BATCHES)
@pytest.mark.parametrize("code", [310, 320])
@pytest.mark.abuse("A5")
def test_a_batch_that_lies_is_stored_not_at_all(tmp_path: Path, case: str, code: int) -> None:
    async def test(address: str, question: Command) -> None:
        peer = await RawPeer.connect(address)
        fields = {**SEND, "b": "T", "i": "WAIT\x01true\x02", "m": "true"}
        assert (
            await peer.ask(Command(code, fields, BATCH, opaque=1))
        ).code == 0  # so that its queue is known
        before = await peer.ask(Command(30, {"topic": "T", "queueId": "1"}, opaque=2))
        answer = await peer.ask(Command(code, fields, LYING_BATCHES[case], opaque=3))
        assert answer.code == 13, answer.remark
        after = await peer.ask(Command(30, {"topic": "T", "queueId": "1"}, opaque=4))
        assert before.fields == after.fields == {"offset": "4"}
        await peer.close()

    at("broker", tmp_path, test)


@pytest.mark.abuse("A5")
def test_what_is_stored_is_never_unpacked_by_the_broker(tmp_path: Path) -> None:
    async def test(address: str, question: Command) -> None:
        peer = await RawPeer.connect(address)
        for flag in (1, 1 | 0x300, 1 | 0x100):  # zlib, and what else a client may say it used
            sent = Command(310, {**SEND, "b": "T", "e": "0", "f": str(flag)}, BOMB[:60_000], opaque=flag)
            assert (await peer.ask(sent)).code == 0
        assert len(encode_frame(sent)) < 70_000
        await peer.close()

    at("broker", tmp_path, test)
