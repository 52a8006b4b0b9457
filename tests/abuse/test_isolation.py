"""Bytes of one topic never reach another, nor one client's answers another client (A26), under mixed traffic.

Buffers are reused everywhere: for received chunks, records, answers, gathered pulls. Every message says in its
body, its properties and its key whose it is, so that a byte in the wrong place is seen wherever it comes out.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from penstock.message import StoredMessage
from penstock.protocol.command import Command
from tests.abuse.test_slow_readers import pull as pull_of
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import Bench, batch_item, properties, records, run, running, send_fields

TOPICS = ("alpha", "beta", "gamma", "delta", "epsilon")
ROUNDS = 25
CHUNK = 30


def body_of(topic: str, number: int, size: int) -> bytes:
    mark = f"<{topic}:{number}>".encode()
    return mark * (size // len(mark) + 1)


def belongs(message: StoredMessage, topic: str) -> bool:
    """Whether everything in a message is its own topic's."""
    owner, _, number = message.properties["OWNER"].partition("/")
    keys = message.properties["KEYS"]
    whole = body_of(topic, int(number), len(message.body) - len(f"<{topic}:{number}>"))
    return (message.topic, owner, keys) == (topic, topic, f"{topic}-{number}") and message.body == whole


class Sender:
    """One client of one topic; its opaques and unique keys are its own."""

    def __init__(self, bench: Bench, topic: str, lane: int, luck: random.Random) -> None:
        self._bench = bench
        self._topic = topic
        self._lane = lane
        self._luck = luck
        self._numbers = iter(range(lane * 100_000, (lane + 1) * 100_000))
        self.stored = 0

    def _frame(self, opaque: int) -> tuple[Command, list[str]]:
        """A send of some kind, and the unique keys in it."""
        luck, topic = self._luck, self._topic
        code, fields, binary = luck.choice((310, 310, 320)), {}, luck.random() < 0.4
        count = luck.randrange(1, 5) if code == 320 else 1
        items, keys = [], []
        for _ in range(count):
            number = next(self._numbers)
            keys.append(f"ID-{topic}-{number}")
            pairs = properties(
                UNIQ_KEY=keys[-1], OWNER=f"{topic}/{number}", KEYS=f"{topic}-{number}", TAGS=topic
            )
            items.append((body_of(topic, number, luck.choice((0, 10, 300, 3_000))), pairs))
        if code == 320:
            fields = send_fields(topic, luck.randrange(2), m="true")
            body = b"".join(batch_item(*item) for item in items)
        else:
            body, pairs = items[0]
            odd = luck.random() < 0.2  # takes the ordinary way
            fields = send_fields(topic, luck.randrange(2), pairs + (properties(x="\u00e9") if odd else ""))
        return Command(code, fields, body, opaque, binary=binary, language="JAVA"), keys

    async def run(self) -> None:
        peer = await RawPeer.connect(self._bench.broker.address)
        for turn in range(ROUNDS):
            sent = {}
            frames = []
            for place in range(CHUNK):
                opaque = self._lane << 20 | turn << 10 | place
                command, keys = self._frame(opaque)
                sent[opaque] = command.code, keys
                frames.append(command)
            peer.send(*frames)
            for _ in range(CHUNK):
                answer = await peer.read()
                code, keys = sent.pop(answer.opaque)  # an answer to somebody else would not be here
                assert answer.code == 0, answer.remark
                assert answer.fields["msgId"].count(",") == len(keys) - 1
                if code == 310:
                    assert answer.fields["transactionId"] == keys[0]
                self.stored += len(keys)
            if self._luck.random() < 0.1:
                await peer.close()
                peer = await RawPeer.connect(self._bench.broker.address)
        await peer.close()


class Reader:
    """One client that reads one topic while it is written."""

    def __init__(self, bench: Bench, topic: str, luck: random.Random) -> None:
        self._bench = bench
        self._topic = topic
        self._luck = luck
        self.read = 0
        self.is_over = False

    async def run(self) -> None:
        peer = await RawPeer.connect(self._bench.broker.address)
        following = [0, 0]
        opaque = 0
        while True:
            was_over = self.is_over
            found = 0
            for queue in (0, 1):
                opaque += 1
                asked = pull_of(opaque, following[queue], wait_ms=20, group=f"readers-{self._topic}")
                asked.fields |= {"topic": self._topic, "queueId": str(queue), "subscription": self._topic}
                answer = await peer.ask(asked)
                messages = records(answer.body)
                assert all(belongs(message, self._topic) for message in messages)
                assert [message.queue_id for message in messages] == [queue] * len(messages)
                following[queue] = int(answer.fields["nextBeginOffset"])
                found += len(messages)
                for message in messages[:1]:
                    await self._look_up(peer, message)
            self.read += found
            if was_over and not found:
                break
        await peer.close()

    async def _look_up(self, peer: RawPeer, message: StoredMessage) -> None:
        """By its place, and by its key."""
        seen = await peer.ask(Command(33, {"offset": str(message.physical_offset)}, opaque=1))
        (same,) = records(seen.body)
        assert belongs(same, self._topic)
        assert same.body == message.body
        if self._luck.random() < 0.2:
            key = message.properties["KEYS"]
            fields = {
                "topic": self._topic,
                "key": key,
                "maxNum": "8",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            found = await peer.ask(Command(12, fields, opaque=2))
            assert all(belongs(one, self._topic) for one in records(found.body))


@pytest.mark.abuse("A26")
@pytest.mark.invariant("I2", "I4")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fast", [False, True])
def test_nothing_crosses_over(tmp_path: Path, seed: int, fast: bool) -> None:
    luck = random.Random(seed)

    async def scenario() -> None:
        async with running(tmp_path, fast=fast) as bench:
            for topic in TOPICS:
                for queue in range(2):
                    first = properties(
                        UNIQ_KEY=f"first-{topic}", OWNER=f"{topic}/0", KEYS=f"{topic}-0", TAGS=topic
                    )
                    sent = await bench.client.call(
                        310, send_fields(topic, queue, first), body_of(topic, 0, 0)
                    )
                    assert sent.code == 0
            senders = [
                Sender(bench, topic, lane, random.Random(luck.random()))
                for lane, topic in enumerate(TOPICS * 2, start=1)
            ]
            readers = [Reader(bench, topic, random.Random(luck.random())) for topic in TOPICS]
            reading = [asyncio.ensure_future(reader.run()) for reader in readers]
            await asyncio.gather(*(sender.run() for sender in senders))
            for reader in readers:
                reader.is_over = True
            await asyncio.gather(*reading)
            stored = sum(sender.stored for sender in senders) + 2 * len(TOPICS)
            assert sum(reader.read for reader in readers) == stored
            ends = [bench.broker.store.max_offset(topic, queue) for topic in TOPICS for queue in range(2)]
            assert sum(ends) == stored

    run(scenario)
