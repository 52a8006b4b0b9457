"""The compiled way and the ordinary way of a send: the same frames to two brokers, answers and log compared."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.errors import FlushFailedError
from penstock.protocol.command import Command, encode_frame
from penstock.runtime import Runtime, SeededEntropy
from penstock.store import FlushMode
from penstock.testing import FaultyDisk
from tests.support.send_frames import fields
from tests.support.send_paths import (
    Counting,
    Peer,
    comparable,
    corpus,
    log_bytes,
    start,
)


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
        path = quick.fast_path.path
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
        path = broker.fast_path.path
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
