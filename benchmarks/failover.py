"""How long a coordinated set is without a master when that is killed, and what waiting for replicas costs.

    python -m benchmarks.failover [--kills 20] [--sync] [--no-rates]

Three brokers, one coordinator, one name server, all processes of their own on loopback, default settings. A producer
sends one message after the other; each kill (SIGKILL of the master, at a random moment between two beats) is timed to
the next message that is acknowledged. The killed broker is started again, and the next kill waits until all three are
in sync. The rates compare sends that wait for all replicas with those that wait for the master's memory only, in
turns of the same run. Nothing acknowledged may be missing at the end: what is measured is checked.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import statistics
import tempfile
import time
from pathlib import Path

import penstock
from penstock.client.results import SendResult
from penstock.runtime import SeededEntropy
from tests.fault.test_failover import TOPIC, Sends, consume_all, ready
from tests.support.broker_set import BrokerSet

RATE_S = 1.0
RATE_ROUNDS = 6
IN_FLIGHT = 256
BODY = b"x" * 1024


def measure_kills(found: BrokerSet, kills: int, entropy: SeededEntropy) -> list[float]:
    times: list[float] = []
    with Sends(found.names.address) as sends:
        for number in range(kills):
            found.wait(3)
            time.sleep(0.5 + entropy.fraction() * 0.5)
            master = found.master()
            master.kill()
            times.append(sends.after(time.monotonic()))
            print(f"kill {number + 1:3d}: {times[-1]:.2f} s", flush=True)
            master.start()
        found.wait(3)
    for failure in sends.failures:
        print(f"a send failed: {failure}")
    consume_all(found.names.address, sends.bodies, 120.0)
    print(f"{len(sends.bodies)} messages were acknowledged, all of them are there")
    return times


def measure_rate(name_servers: str, durability: str) -> float:
    """Acknowledged messages per second of one producer with many sends under way."""
    count, ends = 0, time.monotonic() + RATE_S
    waiting: collections.deque[concurrent.futures.Future[SendResult]] = collections.deque()
    with penstock.Producer(name_servers, durability=durability) as producer:
        producer.send(TOPIC, BODY)
        started = time.monotonic()
        while time.monotonic() < ends:
            waiting.append(producer.send_async(TOPIC, BODY))
            if len(waiting) >= IN_FLIGHT:
                waiting.popleft().result()
                count += 1
        for future in waiting:
            future.result()
            count += 1
        return count / (time.monotonic() - started)


def measure_cost(found: BrokerSet) -> None:
    found.wait(3)
    ratios, rates = [], []
    for _ in range(RATE_ROUNDS):
        memory = measure_rate(found.names.address, "memory")
        replicated = measure_rate(found.names.address, "replicated")
        rates.append((memory, replicated))
        ratios.append(replicated / memory)
    memory, replicated = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        f"memory {memory:,.0f}/s, replicated to both {replicated:,.0f}/s, ratio {statistics.median(ratios):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Failover of a coordinated set.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sync", action="store_true", help="synchronous flush")
    parser.add_argument("--no-rates", action="store_true", help="only the kills")
    arguments = parser.parse_args()
    flush = "sync" if arguments.sync else "async"
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder), flush=flush) as found:
        if not arguments.no_rates:
            measure_cost(found)
        times = measure_kills(found, arguments.kills, SeededEntropy(arguments.seed))
        print(
            f"{len(times)} kills, flush {flush}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s"
        )


if __name__ == "__main__":
    main()
