"""The broker against its peers, driven by the same cheap client (`wire_load.py`): how fast a server takes messages.

    python -m benchmarks.wire [--quick] [--json FILE] [--only async|sync] [--without rocketmq …]

Every server runs for the whole of a point; they take turns, forwards and backwards, and what counts is the median of
the ratios of neighbours. 1x1 is one connection with one request in flight, 8x64 is eight with 64 each. Beside the
rate: the server's own processor time per message, and its memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import machine, require_compiled
from benchmarks.servers import (
    ROOT,
    Nats,
    Penstock,
    Redis,
    RocketMQ,
    Server,
    nats_plan,
    redis_plan,
    running,
    send_plan,
)

POINTS = ((1, 1), (1, 64), (8, 64))
SIZES = (100, 1024)
TARGETS = {"rocketmq": {(8, 64): 2.0}, "redis": {}, "nats": {}}
PLANS: dict[str, Callable[[int], dict[str, str]]] = {
    "penstock": send_plan,
    "rocketmq": send_plan,
    "redis": redis_plan,
    "nats": nats_plan,
}


@dataclass
class Sample:
    """What one server did at one point, over all repeats."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)


def load(
    server: Server, plan: Path, connections: int, depth: int, seconds: float, sample: Sample | None
) -> None:
    """Drive a server once; without a sample it is only warmed up."""
    command = [sys.executable, "-m", "benchmarks.wire_load", "127.0.0.1", str(server.port), str(plan)]
    command += ["--connections", str(connections), "--depth", str(depth), "--seconds", str(seconds)]
    before = server.cpu_s
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"driving {server.name} failed: {done.stderr[-1000:]}")
    result = json.loads(done.stdout)
    if sample is not None:
        sample.rates.append(result["per_second"])
        sample.cpu_us.append((server.cpu_s - before) * 1e6 / max(result["requests"], 1))
        if "p50_us" in result:
            sample.p50_us.append(result["p50_us"])
            sample.p99_us.append(result["p99_us"])


def measure(
    servers: list[Server], folder: Path, size: int, connections: int, depth: int, repeats: int, seconds: float
) -> dict[str, Sample]:
    plans = {}
    for server in servers:
        plans[server.name] = folder / f"{server.name.split()[0]}-{size}.json"
        plans[server.name].write_text(json.dumps(PLANS[server.name.split()[0]](size)))
        load(server, plans[server.name], connections, depth, 0.5, None)
    samples = {server.name: Sample() for server in servers}
    for turn in range(repeats):
        for server in servers if turn % 2 == 0 else reversed(servers):
            load(server, plans[server.name], connections, depth, seconds, samples[server.name])
    return samples


def report(
    samples: dict[str, Sample], mode: str, size: int, connections: int, depth: int
) -> list[dict[str, object]]:
    ours = next(sample for name, sample in samples.items() if name.startswith("penstock"))
    rows: list[dict[str, object]] = []
    for name, sample in samples.items():
        ratios = [mine / theirs for mine, theirs in zip(ours.rates, sample.rates, strict=True)]
        ratio = statistics.median(ratios)
        target = None
        if not name.startswith("penstock"):
            target = TARGETS[name.split()[0]].get((connections, depth), 1.0)
        verdict = "" if target is None else f" target {target:.1f} {'met' if ratio >= target else 'MISSED'}"
        latency = f" p50 {statistics.median(sample.p50_us):6.0f} us" if sample.p50_us else ""
        print(
            f"{mode:<5} {size:>5} B {connections}x{depth:<3} {name:<18} {statistics.median(sample.rates):>10,.0f}/s "
            f"cpu {statistics.median(sample.cpu_us):6.2f} us{latency}  penstock is {ratio:5.2f} x "
            f"({min(ratios):.2f}..{max(ratios):.2f}){verdict}",
            flush=True,
        )
        rows.append(
            {
                "mode": mode,
                "size": size,
                "connections": connections,
                "depth": depth,
                "server": name,
                "per_second": statistics.median(sample.rates),
                "cpu_us": statistics.median(sample.cpu_us),
                "penstock_ratio": ratio,
                "spread": [min(ratios), max(ratios)],
                "target": target,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("async", "sync"))
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    require_compiled()
    repeats, seconds = (3, 0.7) if given.quick else (7, 1.5)
    rows: list[dict[str, object]] = []
    memory: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=given.dir or ROOT) as temporary:
        folder = Path(temporary)
        for mode in (given.only,) if given.only else ("async", "sync"):
            sync = mode == "sync"
            kinds: list[Server] = [Penstock(folder, sync=sync)]
            if "rocketmq" not in given.without:
                kinds.append(RocketMQ(folder, sync=sync))
            if "redis" not in given.without:
                kinds.append(Redis(folder, sync=sync))
            if "nats" not in given.without and not sync:  # this version cannot sync before it answers
                kinds.append(Nats(folder))
            with running(*kinds) as servers:
                for server in servers:
                    print(
                        f"{server.name:<18} ready after {server.started_s:.2f} s, {server.memory_mib:.0f} MiB"
                    )
                for size in SIZES:
                    for connections, depth in POINTS:
                        samples = measure(servers, folder, size, connections, depth, repeats, seconds)
                        rows += report(samples, mode, size, connections, depth)
                for server in servers:
                    memory[server.name] = {"started_s": server.started_s, "memory_mib": server.memory_mib}
                    print(f"{server.name:<18} {server.memory_mib:.0f} MiB after the load")
    if given.json:
        given.json.write_text(
            json.dumps({"machine": machine(), "rows": rows, "servers": memory}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
