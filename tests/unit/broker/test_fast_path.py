"""The compiled way and the ordinary way of a send: the same frames to two brokers, answers and log compared."""

from __future__ import annotations

import asyncio
import errno
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.fast_path import SendFastPath
from penstock.broker.options import BrokerOptions
from penstock.errors import FlushFailedError
from penstock.protocol.command import Command, decode_frame, encode_frame
from penstock.remoting import Connection
from penstock.runtime import Runtime, SeededEntropy
from penstock.store import FlushMode, StoreOptions
from penstock.testing import FaultyDisk
from tests.fault.store_checks import small_options
from tests.unit.store.test_send_path import PROPERTIES, V1_NAMES, fields, item, text


class Counting:
    """A fast path that counts the bytes it took."""

    def __init__(self, path: SendFastPath) -> None:
        self.path = path
        self.taken = 0

    def process(self, connection: Connection, data: bytes, start: int) -> int:
        stopped = self.path.process(connection, data, start)
        self.taken += stopped - start
        return stopped


async def start(folder: Path, *, fast: bool, mode: FlushMode, runtime: Runtime | None = None) -> Broker:
    options = BrokerOptions(port=0, auto_create_topics=True)
    broker = Broker(options, store_options(mode), folder, runtime=runtime or Runtime.system())
    await broker.start()
    broker._fast_path.path = None
    if fast:  # made here, because it is not used uncompiled
        assert broker._writer is not None
        path = SendFastPath(
            broker.rules, broker._writer, broker.flow, broker.offset_ids, broker._remoting.limits
        )
        broker.topics.on_change.append(path.forget)
        broker._fast_path.path = Counting(path)
        sends = broker._table.find(310)
        assert sends is not None
        sends.__self__._learn = path.learn  # type: ignore[attr-defined]
    return broker


def store_options(mode: FlushMode) -> StoreOptions:
    # No delayed message comes due while a test runs, however slowly: it would be stored anew, among the others.
    return small_options(
        segment_size_bytes=1 << 20,
        max_message_size_bytes=1 << 16,
        flush_mode=mode,
        delay_levels=" ".join(["2h"] * 18),
    )


class Peer:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, broker: Broker) -> Peer:
        host, _, port = broker.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def answers(self, count: int) -> list[Command]:
        found = []
        for _ in range(count):
            head = await self.reader.readexactly(4)
            frame = head + await self.reader.readexactly(struct.unpack(">i", head)[0])
            found.append(decode_frame(frame, 0, len(frame)))
        return found


# One moment for both brokers: a delay would be measured from when each of them got the message.
TOMORROW = str(int(time.time() * 1000) + 86_400_000)


def corpus(chooser: random.Random, first: int, count: int) -> tuple[list[bytes], int]:
    """Frames of every kind, most of them plain; and how many answers they get."""
    frames, answers = [], 0
    for opaque in range(first, first + count):
        changes: dict[str, str | None] = {"e": str(chooser.randrange(5)), "b": chooser.choice("TTTU")}
        kind = chooser.random()
        properties = {**PROPERTIES, "UNIQ_KEY": f"ID{opaque:08d}"}
        code, body = 310, chooser.randbytes(chooser.choice((0, 1, 100, 3000)))
        if kind > 0.6:
            properties |= chooser.choice(
                [
                    {"WAIT": "false"},
                    {"WAIT": "TRUE"},
                    {"user": "ü\u20ac"},
                    {"user": 'quo"te\\'},
                    {"CLUSTER": "mine"},
                    {"TRACE_ON": "false"},
                    {"MSG_REGION": "elsewhere"},
                    {"POP_CK": "1 2 3"},
                    {"DELAY": "3"},
                    {"DELAY": "0"},
                    {"DELAY": "x"},
                    {"TRAN_MSG": "true"},
                    {"TIMER_DELIVER_MS": TOMORROW},
                    {"TIMER_DELAY_MS": "x"},
                    {"__RMQ.TRANSIENT.a": "b"},
                    {"__CRC32#": "1234567890"},
                    {"Z" * 300: "long"},
                    {"user": "x" * 33000},
                ]
            )
        changes["i"] = text(properties)
        if kind > 0.75:
            changes |= chooser.choice(
                [
                    {"e": "-1"},
                    {"e": "99"},
                    {"e": "x"},
                    {"e": None},
                    {"b": None},
                    {"b": "bad/topic"},
                    {"b": "SCHEDULE_TOPIC_XXXX"},
                    {"b": "%RETRY%group"},
                    {"f": "1"},
                    {"f": "4"},
                    {"f": "769"},
                    {"h": "-7"},
                    {"j": "2"},
                    {"k": "true"},
                    {"i": ""},
                    {"i": None},
                    {"i": "TAGS\x01a"},
                    {"i": f"UNIQ_KEY\x01A{opaque}\x02junk\x02\x02=\x01\x02"},
                    {"extra": "field"},
                    {"n": None},
                ]
            )
        named = fields(**changes)
        if kind < 0.15:
            code = 320
            named["m"] = "true"
            named["i"] = chooser.choice(
                ("WAIT\x01true\x02", text({"UNIQ_KEY": f"A{opaque}", "WAIT": "true"}))
            )
            body = b"".join(
                item(chooser.randbytes(20), {"UNIQ_KEY": f"B{opaque}-{n}", "WAIT": "true", "TAGS": "x"}, n)
                for n in range(chooser.randrange(1, 6))
            )
            if kind < 0.03:
                body = body[: chooser.randrange(len(body))]
        elif kind < 0.3:
            code, named = 10, {V1_NAMES[name]: value for name, value in named.items() if name in V1_NAMES}
        oneway = chooser.random() < 0.1
        frames.append(
            encode_frame(
                Command(
                    code,
                    named,
                    body,
                    opaque,
                    2 if oneway else 0,
                    language="JAVA",
                    binary=chooser.random() < 0.4,
                )
            )
        )
        answers += not oneway
    return frames, answers


def comparable(answers: list[Command]) -> list[tuple[object, ...]]:
    """Answers without what must differ: the address inside ids, and unique keys that the broker made."""
    rows = []
    for answer in sorted(answers, key=lambda one: one.opaque):
        named = dict(answer.fields)
        if "msgId" in named:
            named["msgId"] = ",".join(one[16:] for one in named["msgId"].split(","))
        if not named.get("transactionId", "ID").startswith(("ID", "A")):
            named["transactionId"] = "made"
        rows.append((answer.opaque, answer.code, answer.remark, answer.binary, named, answer.body))
    return rows


def log_bytes(broker: Broker) -> bytes:
    """Every record, with store time, hosts, and keys that the broker made blotted out."""
    log, out = broker.store.log, bytearray()
    for position, size in _records(broker):
        record = bytearray(log.slice(position, size) or b"")
        record[52:64], record[68:72] = bytes(12), bytes(4)
        # A half message has its key twice.
        for name in (b"UNIQ_KEY", b"__transactionId__"):
            made = record.find(name + b"\x017F000001")
            if made >= 0 and name + b"\x017F0000010BAD" not in record:
                record[made + len(name) + 1 : made + len(name) + 33] = b"made"
        out += record
    return bytes(out)


def _records(broker: Broker) -> list[tuple[int, int]]:
    log, found, at = broker.store.log, [], 0
    while at < log.max_offset:
        head = log.slice(at, 8)
        assert head is not None
        size, magic = struct.unpack(">iI", head)
        if magic != 0xCBD43194:
            found.append((at, size))
        at += size
    return found


@pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])
def test_both_ways_store_and_answer_the_same(tmp_path: Path, mode: FlushMode) -> None:
    async def main() -> None:
        # The same luck for both, where a broker chooses the queue.
        lucks = [Runtime(entropy=SeededEntropy(7)) for _ in range(2)]
        quick = await start(tmp_path / "fast", fast=True, mode=mode, runtime=lucks[0])
        plain = await start(tmp_path / "plain", fast=False, mode=mode, runtime=lucks[1])
        chooser = random.Random(20261115)
        peers = [await Peer.connect(quick), await Peer.connect(plain)]
        first = 1
        for _ in range(40):
            frames, count = corpus(chooser, first, 40)
            first += 40
            chunk = b"".join(frames)
            cut = chooser.randrange(len(chunk))
            found = []
            for peer in peers:
                peer.writer.write(chunk[:cut])
                await asyncio.sleep(0)
                peer.writer.write(chunk[cut:])
            for peer in peers:
                async with asyncio.timeout(60):
                    found.append(comparable(await peer.answers(count)))
            for one, other in zip(*found, strict=True):
                assert one == other
        if mode is FlushMode.SYNC:
            quick.store.flush()
            plain.store.flush()
        assert log_bytes(quick) == log_bytes(plain)
        for topic in ("T", "U"):
            for queue_id in range(4):
                ends = [broker.store.max_offset(topic, queue_id) for broker in (quick, plain)]
                assert ends[0] == ends[1] > 0
        counts = [broker.statistics.puts.value for broker in (quick, plain)]
        assert counts[0] == counts[1] > 500
        path = quick._fast_path.path
        assert isinstance(path, Counting)
        assert path.taken > 100_000
        for peer in peers:
            peer.writer.close()
        await quick.stop()
        await plain.stop()

    asyncio.run(main())


def run_one(
    tmp_path: Path,
    test: Callable[[Broker, Peer, Counting], object],
    mode: FlushMode,
    runtime: Runtime | None = None,
) -> None:
    async def main() -> None:
        broker = await start(tmp_path / "store", fast=True, mode=mode, runtime=runtime)
        peer = await Peer.connect(broker)
        path = broker._fast_path.path
        assert isinstance(path, Counting)
        async with asyncio.timeout(60):
            await test(broker, peer, path)  # type: ignore[misc]
        peer.writer.close()
        await broker.stop()

    asyncio.run(main())


def plain(opaque: int, queue_id: int = 0, topic: str = "T") -> bytes:
    return encode_frame(Command(310, fields(b=topic, e=str(queue_id)), b"x", opaque, language="JAVA"))


def test_a_queue_is_learned_and_forgotten_when_its_topic_changes(tmp_path: Path) -> None:
    async def test(broker: Broker, peer: Peer, path: Counting) -> None:
        for opaque in range(3):
            peer.writer.write(plain(opaque))
            await peer.answers(1)
        assert path.taken == 2 * len(plain(1))
        peer.writer.write(plain(5, queue_id=1))  # another queue: not known yet
        await peer.answers(1)
        assert path.taken == 2 * len(plain(1))
        peer.writer.write(encode_frame(Command(215, {"topic": "T"}, opaque=50)))
        assert (await peer.answers(1))[0].code == 0
        peer.writer.write(plain(6))
        (answer,) = await peer.answers(1)
        assert (answer.code, answer.fields["queueOffset"]) == (0, "0")  # made anew, its old queue is gone
        peer.writer.write(plain(7))
        (answer,) = await peer.answers(1)
        assert answer.fields["queueOffset"] == "1"

    run_one(tmp_path, test, FlushMode.ASYNC)


def test_a_pull_between_sends_sees_those_before_it(tmp_path: Path) -> None:
    async def test(broker: Broker, peer: Peer, path: Counting) -> None:
        peer.writer.write(plain(1))
        await peer.answers(1)
        ask = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        pull = encode_frame(Command(11, ask, opaque=99))
        peer.writer.write(plain(2) + plain(3) + pull + plain(4))
        answers = {answer.opaque: answer for answer in await peer.answers(4)}
        assert answers[99].fields["maxOffset"] == "3"
        assert answers[4].fields["queueOffset"] == "3"

    run_one(tmp_path, test, FlushMode.ASYNC)


@pytest.mark.fault("F5")
def test_a_failed_flush_answers_every_frame_of_the_run_with_an_error(tmp_path: Path) -> None:
    """Whether the messages survive is not known, so no answer may say that they are stored."""
    disk = FaultyDisk(tmp_path)

    async def test(broker: Broker, peer: Peer, path: Counting) -> None:
        peer.writer.write(plain(1))
        (answer,) = await peer.answers(1)
        assert answer.code == 0
        disk.fail_next("sync", errno.EIO, path_contains="commitlog", times=None)
        peer.writer.write(b"".join(plain(i) for i in range(2, 12)))
        answers = await peer.answers(10)
        assert {answer.code for answer in answers} == {FlushFailedError.code}
        assert all("queueOffset" not in answer.fields for answer in answers)
        assert {answer.opaque for answer in answers} == set(range(2, 12))

    run_one(tmp_path, test, FlushMode.SYNC, Runtime(disk=disk))
