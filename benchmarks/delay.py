"""How exactly messages for a time of their own come, with thousands of them due every second.

    python -m benchmarks.delay [--rate 5000] [--seconds 10] [--sends 2000] [--sync]

A name server and a broker, processes of their own on loopback, default settings. The messages are sent before the
first of them is due, each for a millisecond of its own; then nobody sends. Two errors are told for every message:
from the time that was asked for to when the broker stored it in its topic, where consumers find it, and to when a
consumer that was there all the time had it in hand. Nothing may be early, missing or there twice: what is measured
is checked.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import tempfile
import time
from pathlib import Path

import penstock
from penstock.client.results import SendResult
from tests.support.server_processes import cluster

TOPIC = "timed"
BODY = b"x" * 256
IN_FLIGHT = 200
# The store's own sizes, not those of the tests.
LARGE = ("--set", f"store.segment_size_bytes={1 << 30}", "--set", "store.queue_file_entries=300000")
TARGET_MS = 100


def send_all(address: str, count: int, start_ms: int, rate: int) -> None:
    waiting: collections.deque[concurrent.futures.Future[SendResult]] = collections.deque()
    with penstock.Producer(address, send_timeout_ms=30_000) as producer:
        for number in range(count):
            due_s = (start_ms + number * 1000 // rate) / 1000
            waiting.append(producer.send_async(TOPIC, BODY, keys=str(number), deliver_at=due_s))
            if len(waiting) >= IN_FLIGHT:
                waiting.popleft().result()
        for future in waiting:
            future.result()


def receive_all(address: str, count: int, until_s: float) -> dict[str, tuple[int, int, int]]:
    """By key: when it was due, stored and in hand."""
    found: dict[str, tuple[int, int, int]] = {}
    twice = 0
    with penstock.Consumer(address, "readers", start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        while len(found) < count and time.time() < until_s:
            messages = consumer.poll(1_024, timeout_s=0.1)
            now_ms = time.time_ns() // 1_000_000
            for message in messages:
                key = message.properties["KEYS"]
                twice += key in found
                due_ms = int(message.properties["TIMER_DELIVER_MS"])
                found[key] = (due_ms, message.store_timestamp, now_ms)
    assert not twice, f"{twice} came twice"
    assert len(found) == count, f"{count - len(found)} of {count} are missing"
    return found


def told(name: str, errors: list[int]) -> str:
    ordered = sorted(errors)
    figures = [
        f"{label} {ordered[min(int(len(ordered) * part), len(ordered) - 1)]} ms"
        for label, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("worst", 1.0))
    ]
    within = sum(error <= TARGET_MS for error in ordered) / len(ordered)
    return f"{name:28} {', '.join(figures)}; {within:.2%} within {TARGET_MS} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description="Delivery error of timers.")
    parser.add_argument("--rate", type=int, default=5_000, help="messages due per second")
    parser.add_argument("--seconds", type=int, default=10, help="for how long")
    parser.add_argument("--sends", type=int, default=2_000, help="sends per second to reckon with beforehand")
    parser.add_argument("--sync", action="store_true", help="synchronous flush")
    arguments = parser.parse_args()
    rate, count = arguments.rate, arguments.rate * arguments.seconds
    flush = "sync" if arguments.sync else "async"
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), *LARGE, flush=flush) as (names, _):
        ahead_s = count / arguments.sends + 5
        start_ms = time.time_ns() // 1_000_000 + int(ahead_s * 1000)
        started = time.monotonic()
        send_all(names.address, count, start_ms, rate)
        took_s = time.monotonic() - started
        print(f"{count} messages sent in {took_s:.1f} s, {count / took_s:,.0f}/s, flush {flush}", flush=True)
        assert time.time() * 1000 < start_ms, "the first were due before the last was sent: see --sends"
        found = receive_all(names.address, count, start_ms / 1000 + arguments.seconds + 60)
    stored = [at - due for due, at, _ in found.values()]
    print(f"{rate} due messages/s for {arguments.seconds} s:")
    print(told("stored in their topic", stored))
    print(told("in a consumer's hand", [at - due for due, _, at in found.values()]))
    assert min(stored) >= -1, f"a message was {-min(stored)} ms early"


if __name__ == "__main__":
    main()
