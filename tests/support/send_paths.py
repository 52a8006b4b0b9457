"""Two brokers, one with the compiled send path and one without: frames for both, and the comparison of their logs."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from pathlib import Path

from penstock.broker.broker import Broker
from penstock.broker.fast_path import SendFastPath
from penstock.broker.options import BrokerOptions
from penstock.protocol.command import Command, decode_frame, encode_frame
from penstock.remoting import Connection
from penstock.runtime import Runtime
from penstock.store import FlushMode, StoreOptions
from tests.support.send_frames import PROPERTIES, V1_NAMES, fields, item, text
from tests.support.store_checks import small_options


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
    broker.fast_path.path = None
    if fast:  # made here, because it is not used uncompiled
        assert broker.writer is not None
        path = SendFastPath(
            broker.rules, broker.writer, broker.flow, broker.offset_ids, broker.remoting_options.limits
        )
        broker.topics.on_change.append(path.forget)
        broker.fast_path.path = Counting(path)
        sends = broker.table.find(310)
        assert sends is not None
        sends.__self__.learn = path.learn  # type: ignore[attr-defined]
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
