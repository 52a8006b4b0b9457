"""How fast one Python producer sends single messages, with batches made by the client and without.

    python -m benchmarks.producers [--rounds N] [--messages N] [--json FILE]

single      `batch_size=1`: a request for each message
default     no options: messages that are sent while others are under way share a request
lingering   `linger_ms=2`: every message waits for others

`enqueue` and `send_async` of 100 B bodies are measured until everything is answered, and `send` one by one. The three
take turns, and what counts is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, require_compiled
from benchmarks.servers import TOPIC, Penstock
from penstock import Producer
from penstock.client.async_producer import ProducerSettings

BODY = b"x" * 100
FORMS: dict[str, ProducerSettings] = {
    "single": {"batch_size": 1},
    "default": {},
    "lingering": {"linger_ms": 2},
}
Row = dict[str, Any]


def enqueue(producer: Producer, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        producer.enqueue(TOPIC, BODY)
    producer.flush()
    return count / (time.perf_counter() - started)


def send_async(producer: Producer, count: int) -> float:
    started = time.perf_counter()
    futures = [producer.send_async(TOPIC, BODY) for _ in range(count)]
    for future in futures:
        future.result()
    return count / (time.perf_counter() - started)


def lone_sends(producer: Producer, count: int) -> tuple[float, float]:
    """Microseconds: the median and the 99th percentile."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        producer.send(TOPIC, BODY)
        times.append(time.perf_counter() - started)
    times.sort()
    return times[count // 2] * 1e6, times[count * 99 // 100] * 1e6


def rates(work: Callable[[Producer, int], float], producers: dict[str, Producer], count: int) -> Row:
    found: Row = {}
    for form, producer in producers.items():
        # A request for each message takes long: fewer of them, for about as long.
        found[form] = work(producer, count // 8 if form == "single" else count)
    return found


def median(rows: list[Row], name: str) -> float:
    return statistics.median(float(row[name]) for row in rows)


def show(what: str, rows: list[Row]) -> None:
    forms = "  ".join(f"{form} {median(rows, form):>9,.0f}/s" for form in FORMS)
    gain = statistics.median(row["default"] / row["single"] for row in rows)
    share = statistics.median(row["default"] / row["lingering"] for row in rows)
    print(f"{what:<12} {forms}  default/single {gain:.1f}  default/lingering {share:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the ways of one Python producer to send.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=100_000, help="of a round and form")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    require_compiled()
    found: dict[str, list[Row]] = {"enqueue": [], "send_async": [], "send": []}
    with tempfile.TemporaryDirectory() as folder, Penstock(Path(folder)) as server:
        producers = {form: Producer(server.nameserver, **settings) for form, settings in FORMS.items()}
        for producer in producers.values():
            enqueue(producer, 2_000)
        for _ in range(options.rounds):
            found["enqueue"].append(rates(enqueue, producers, options.messages))
            found["send_async"].append(rates(send_async, producers, options.messages))
            row: Row = {}
            for form in ("single", "default"):
                row[form], row[f"{form} p99"] = lone_sends(producers[form], 1_000)
            found["send"].append(row)
        for producer in producers.values():
            producer.close()
    print(machine())
    show("enqueue", found["enqueue"])
    show("send_async", found["send_async"])
    figures = "  ".join(
        f"{form} p50 {median(found['send'], form):.0f} us, p99 {median(found['send'], f'{form} p99'):.0f} us"
        for form in ("single", "default")
    )
    print(f"{'send':<12} {figures}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
