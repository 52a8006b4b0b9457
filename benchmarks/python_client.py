"""The Python client as a load: batched sends, or draining a topic. Prints one JSON line.

python -m benchmarks.python_client NAMESERVER TOPIC batch BODY_SIZE SECONDS
python -m benchmarks.python_client NAMESERVER TOPIC drain COUNT GROUP
"""

from __future__ import annotations

import json
import sys
import time

from penstock import Consumer, Message, Producer

BATCH = 64
WARM_UP_S = 0.5


def batch(name_server: str, topic: str, size: int, seconds: float) -> dict[str, float]:
    body = b"x" * size
    with Producer(name_server, group="bench-python") as producer:
        warm = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < warm:
            producer.send_batch([Message(topic, body, {"TAGS": "TagA"}) for _ in range(BATCH)])
        sent, times = 0, []
        started = now = time.perf_counter()
        while now < started + seconds:
            producer.send_batch([Message(topic, body, {"TAGS": "TagA"}) for _ in range(BATCH)])
            after = time.perf_counter()
            times.append(after - now)
            now = after
            sent += BATCH
    times.sort()
    return {
        "messages": sent,
        "seconds": now - started,
        "per_second": sent / (now - started),
        "failures": 0,
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[len(times) * 99 // 100] * 1e6,
    }


def drain(name_server: str, topic: str, count: int, group: str) -> dict[str, float]:
    seen, first, size = 0, 0.0, 0
    with Consumer(name_server, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            if not seen:
                first = time.perf_counter()
            seen += 1
            size += len(message.body)
            if seen >= count:
                break
        last = time.perf_counter()
    return {
        "messages": seen,
        "seconds": last - first,
        "per_second": seen / (last - first),
        "failures": 0,
        "bytes": size,
        "p50_us": 0,
        "p99_us": 0,
    }


def main() -> None:
    name_server, topic, mode, number, last = sys.argv[1:6]
    if mode == "batch":
        result = batch(name_server, topic, int(number), float(last))
    else:
        result = drain(name_server, topic, int(number), last)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
