"""A producer and a consumer that know nothing of the storm beside them, in a process of their own.

    python -m tests.abuse.healthy NAMESERVER SEED

Sends and receives until its standard input ends, then waits for what is on its way, has a new group read everything
from the beginning, and prints what it saw as one line of JSON. Being another process it measures what clients feel:
no frame of the storm is made in its interpreter.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field

import penstock
from tests.abuse.observed import ROOT

# No mutation makes this name.
TOPIC, GROUP, LATE_GROUP = "honest-orders-5c1f", "honest-group-5c1f", "honest-late-group-5c1f"
PAUSE_S = 0.005
# Limits for what comes by itself, however busy the machine is.
PATIENCE_MS = 60_000
DRAIN_S = 90.0
FINISH_S = 250.0


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass(slots=True)
class Pair:
    """What was acknowledged and what was received, by message id."""

    acked: dict[str, str] = field(default_factory=dict)
    received: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    strangers: int = 0
    repeated: int = 0
    sends_ms: list[float] = field(default_factory=list)
    trips_ms: list[float] = field(default_factory=list)
    _sent_at: dict[str, float] = field(default_factory=dict)

    async def produce(self, address: str, luck: random.Random, stopping: asyncio.Event) -> None:
        async with penstock.AsyncProducer(
            address, group="honest-producers", send_timeout_ms=PATIENCE_MS
        ) as producer:
            while not stopping.is_set():
                body = luck.randbytes(luck.choice((0, 1, 100, 100, 1_000, 5_000)))
                began = time.perf_counter()
                try:
                    result = await producer.send(TOPIC, body, tag="honest", keys=str(len(self.acked)))
                except penstock.PenstockError as error:
                    self.failures.append(repr(error)[:300])
                else:
                    self.acked[result.msg_id] = _digest(body)
                    self._sent_at[result.msg_id] = began
                    self.sends_ms.append((time.perf_counter() - began) * 1_000)
                await asyncio.sleep(PAUSE_S)

    async def consume(self, address: str) -> None:
        async with penstock.AsyncConsumer(address, group=GROUP, start_from="first") as consumer:
            await consumer.subscribe(TOPIC)
            async for message in consumer:
                self.repeated += message.msg_id in self.received
                self.received[message.msg_id] = _digest(message.body)
                began = self._sent_at.pop(message.msg_id, None)
                if began is not None:
                    self.trips_ms.append((time.perf_counter() - began) * 1_000)

    async def read_again(self, address: str) -> int:
        """Everything once more by another group; how many were as they were sent."""
        found: dict[str, str] = {}
        async with penstock.AsyncConsumer(address, group=LATE_GROUP, start_from="first") as consumer:
            await consumer.subscribe(TOPIC)
            deadline = time.monotonic() + DRAIN_S
            while time.monotonic() < deadline and not self.acked.keys() <= found.keys():
                for message in await consumer.poll(256, 0.5):
                    found[message.msg_id] = _digest(message.body)
        self.strangers += len(found.keys() - self.acked.keys())
        return sum(found.get(msg_id) == digest for msg_id, digest in self.acked.items())


async def run(address: str, seed: int) -> dict[str, object]:
    pair, stopping = Pair(), asyncio.Event()
    consuming = asyncio.ensure_future(pair.consume(address))
    producing = asyncio.ensure_future(pair.produce(address, random.Random(seed), stopping))
    while len(pair.received) < 20:  # noqa: ASYNC110  # both work, before the storm begins
        await asyncio.sleep(0.01)
    # By an operator, now: when it is needed, strangers may have used up all groups that come by being named.
    async with penstock.AsyncAdmin(address, call_timeout_ms=PATIENCE_MS) as admin:
        await admin.create_group(LATE_GROUP)
    print("working", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stopping.set()
    await producing
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline and not pair.acked.keys() <= pair.received.keys():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    again = await pair.read_again(address)
    right = sum(pair.received.get(msg_id) == digest for msg_id, digest in pair.acked.items())
    return {
        "acked": len(pair.acked),
        "received": right,
        "read_again": again,
        "repeated": pair.repeated,
        "strangers": pair.strangers + len(pair.received.keys() - pair.acked.keys()),
        "failures": pair.failures[:5],
        "send_ms": percentiles(pair.sends_ms),
        "trip_ms": percentiles(pair.trips_ms),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {
        name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 2)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


class HealthyPair:
    """The process, seen from the test."""

    def __init__(self, address: str, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.abuse.healthy", address, str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "working\n", "the healthy pair could not begin"

    def finish(self) -> dict[str, object]:
        """End it; what it saw."""
        said, _ = self._process.communicate("", timeout=FINISH_S)
        assert self._process.returncode == 0, said
        found: dict[str, object] = json.loads(said)
        return found

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2])))))
