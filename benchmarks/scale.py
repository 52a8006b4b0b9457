"""What a change costs a broker that has much already: groups, topics, committed offsets, queues with messages.

    python -m benchmarks.scale [--counts 100 1000 10000 100000] [--queues] [--folder DIR]

One broker process on loopback with default settings. So many groups, offsets and topics of 8 queues (an eighth as
many) are put into its files before it starts; with `--queues` each queue gets a message. Then groups and topics are
created and offsets committed one after the other, and the broker is stopped. A cost is processor time of the broker
process per change, from /proc, which other load on the machine changes little; times on the wall stand beside it.
Last, one connection sends one message after the other while nothing else happens (right after all that, and again
after a restart), and while another connection creates groups. Only the protocol is used, so the same script measures
an earlier version: run it with that one's interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.protocol.command import Command
from penstock.remoting import ProcessorTable, RemotingClient
from penstock.runtime import Runtime

CREATE_TOPIC, COMMIT, CREATE_GROUP, SEND = 17, 15, 200, 310
QUEUES = 8
CREATED, COMMITTED, SENT = 20, 300, 2_000
IN_FLIGHT = 64
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}


class Server:
    """The broker's process and what the system says of it."""

    def __init__(self, data: Path) -> None:
        self._line = [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "broker",
            "--json",
            "--port",
            "0",
            "--data",
            str(data),
        ]
        self._log = data.with_suffix(".log")

    def start(self) -> float:
        started = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._line, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-2_000:]
        self.facts: dict[str, Any] = json.loads(line)
        return time.monotonic() - started

    @property
    def address(self) -> str:
        found = next(
            value for value in _texts(self.facts) if value.count(":") == 1 and value.split(":")[1].isdigit()
        )
        return f"127.0.0.1:{found.split(':')[1]}"

    def processor_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> tuple[float, float]:
        """Seconds on the wall, and of processor time."""
        before, started = self.processor_s(), time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, _, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        return time.monotonic() - started, usage.ru_utime + usage.ru_stime - before


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def seed(data: Path, count: int) -> None:
    """The tables as a broker with so many groups, offsets and queues has them in RocketMQ's files."""
    config = data / "config"
    config.mkdir(parents=True)
    topics = {
        f"topic-{number:06}": {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
        for number in range(max(count // QUEUES, 1))
    }
    groups = {f"group-{number:06}": {"groupName": f"group-{number:06}"} for number in range(count)}
    names = [*topics]
    offsets = {f"{names[number % len(names)]}@group-{number:06}": {"0": 0} for number in range(count)}
    for name, member, table in (
        ("topics", "topicConfigTable", topics),
        ("subscriptionGroup", "subscriptionGroupTable", groups),
        ("consumerOffset", "offsetTable", offsets),
    ):
        (config / f"{name}.json").write_text(json.dumps({"dataVersion": VERSION, member: table}))


def topic_fields(name: str) -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "8",
        "writeQueueNums": "8",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def send_fields(topic: str, queue: int) -> dict[str, str]:
    return {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "8",
        "e": str(queue),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }


class Bench:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = RemotingClient(ProcessorTable(), runtime=Runtime.system())

    async def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        answer = await self.client.call(self.server.address, Command(code, fields, body), 120_000)
        assert answer.code == 0, (code, answer.code, answer.remark)

    async def create_group(self, number: int) -> None:
        await self.call(CREATE_GROUP, {}, json.dumps({"groupName": f"new-{number:06}"}).encode())

    async def cost(self, count: int, change: Any) -> tuple[float, float]:
        """Milliseconds of processor time and on the wall, for each of so many."""
        before, started = self.server.processor_s(), time.monotonic()
        for number in range(count):
            await change(number)
        wall = time.monotonic() - started
        return (self.server.processor_s() - before) / count * 1000, wall / count * 1000

    async def fill_queues(self, count: int) -> None:
        """One message for each queue."""
        limit = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            async with limit:
                topic = f"topic-{number // QUEUES:06}"
                await self.call(SEND, send_fields(topic, number % QUEUES), b"x" * 100)

        for first in range(0, count, 1_000):
            await asyncio.gather(*(one(number) for number in range(first, min(first + 1_000, count))))

    async def p99_ms(self) -> float:
        times: list[float] = []
        client = RemotingClient(ProcessorTable(), runtime=Runtime.system())
        for _ in range(SENT):
            started = time.perf_counter()
            command = Command(SEND, send_fields("topic-000000", 0), b"x" * 100)
            assert (await client.call(self.server.address, command, 60_000)).code == 0
            times.append(time.perf_counter() - started)
        await client.close()
        return sorted(times)[len(times) * 99 // 100] * 1000

    async def p99_while_creating_ms(self) -> float:
        is_over = False

        async def create() -> None:
            number = 100_000
            while not is_over:
                await self.create_group(number)
                number += 1
                await asyncio.sleep(0.01)

        creating = asyncio.ensure_future(create())
        found = await self.p99_ms()
        is_over = True
        await creating
        return found


async def measure(folder: Path, count: int, with_queues: bool) -> dict[str, float]:
    data = folder / f"{count}"
    seed(data, count)
    server = Server(data)
    found: dict[str, float] = {"count": count, "start s": server.start()}
    bench = Bench(server)
    try:
        if with_queues:
            await bench.fill_queues(count)
        found["create group ms"], found["  wall ms"] = await bench.cost(CREATED, bench.create_group)
        found["create topic ms"], _ = await bench.cost(
            CREATED, lambda number: bench.call(CREATE_TOPIC, topic_fields(f"new-{number}"))
        )

        async def commit(number: int) -> None:
            fields = {"consumerGroup": "group-000000", "topic": "topic-000000"}
            await bench.call(COMMIT, {**fields, "queueId": "0", "commitOffset": str(number + 1)})

        found["commit ms"], _ = await bench.cost(COMMITTED, commit)
        found["send p99 ms"] = await bench.p99_ms()
        found["p99 while creating"] = await bench.p99_while_creating_ms()
        found["memory MiB"], found["descriptors"] = server.memory_mib(), server.descriptors()
    finally:
        await bench.client.close()
        found["stop s"], found["stop cpu s"] = server.stop()
    found["start again s"] = server.start()
    found["memory again MiB"] = server.memory_mib()
    bench = Bench(server)
    try:
        await bench.p99_ms()
        found["send p99 ms again"] = await bench.p99_ms()
    finally:
        await bench.client.close()
        found["stop again s"], _ = server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost against count.")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--queues", action="store_true", help="a message in each queue")
    parser.add_argument("--folder", type=Path, help="where the data directories are made; they need some GB")
    arguments = parser.parse_args()
    for count in arguments.counts:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            found = asyncio.run(measure(Path(folder), count, arguments.queues))
        print("  ".join(f"{name.strip()} {value:,.2f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
