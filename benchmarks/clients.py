"""One client, two brokers; and two clients, one broker.

    python -m benchmarks.clients [--quick] [--only java|python] [--mode async|sync] [--json FILE]

java     the unmodified Java client (5.3) drives Apache RocketMQ and Penstock in turns: synchronous sends from 1, 8
         and 64 threads, asynchronous sends, batches of 64, and consumption
python   against the same Penstock broker: the Python client's batched sends and drain beside the Java client's

Each Java measurement is a process of its own that warms up for two seconds first. What counts is the median of the
ratios of neighbours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, require_compiled
from benchmarks.servers import ROOT, Penstock, RocketMQ, running

SIZES = (100, 1024)
SENDS = (("sync", 1), ("sync", 8), ("sync", 64), ("async", 1), ("batch", 1))
_NUMBERS = itertools.count(1)
Row = dict[str, Any]


def java_home() -> Path:
    """The driver, compiled against the published client."""
    from tests.interop.java_release import JavaBuild, prepare_build

    return prepare_build(JavaBuild("bench-5.3.3", "client-5.3", ("bench",)))


def java(home: Path, folder: Path, *arguments: object) -> Row:
    command = ["java", "-Xmx512m", f"-Duser.home={folder}", "-cp", f"{home / 'classes'}:{home / 'lib'}/*"]
    command += ["penstock.bench.ClientBench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"the Java client failed: {done.stdout[-500:]} {done.stderr[-1500:]}")
    result: Row = json.loads(lines[-1])
    return result


def python(*arguments: object) -> Row:
    command = [sys.executable, "-m", "benchmarks.python_client", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"the Python client failed: {done.stderr[-1500:]}")
    result: Row = json.loads(done.stdout.splitlines()[-1])
    return result


def median_of(rows: list[Row], name: str) -> float:
    return statistics.median(float(row[name]) for row in rows)


def show(what: str, ours: list[Row], theirs: list[Row], names: tuple[str, str], target: float | None) -> Row:
    ratios = [mine["per_second"] / other["per_second"] for mine, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    verdict = "" if target is None else f" target {target:.1f} {'met' if ratio >= target else 'MISSED'}"
    latency = ""
    if median_of(ours, "p50_us"):
        latency = (
            f"  p50 {median_of(ours, 'p50_us'):.0f} / {median_of(theirs, 'p50_us'):.0f} us"
            f"  p99 {median_of(ours, 'p99_us'):.0f} / {median_of(theirs, 'p99_us'):.0f} us"
        )
    print(
        f"{what:<34} {names[0]} {median_of(ours, 'per_second'):>10,.0f}/s  {names[1]} "
        f"{median_of(theirs, 'per_second'):>10,.0f}/s  ratio {ratio:5.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        f"{verdict}{latency}",
        flush=True,
    )
    return {
        "what": what,
        names[0]: ours,
        names[1]: theirs,
        "ratio": ratio,
        "spread": [min(ratios), max(ratios)],
        "target": target,
    }


def two_brokers(folder: Path, mode: str, repeats: int, seconds: float) -> list[Row]:
    home = java_home()
    rows: list[Row] = []
    kinds = (Penstock(folder, sync=mode == "sync"), RocketMQ(folder, sync=mode == "sync"))
    with running(*kinds) as servers:
        if len(servers) < 2:
            raise SystemExit("this needs both brokers")
        for server in servers:
            print(f"{server.name:<18} ready after {server.started_s:.2f} s, {server.memory_mib:.0f} MiB")
        sent: dict[str, dict[str, int]] = {server.name: {} for server in servers}
        for size, (kind, threads) in itertools.product(SIZES, SENDS):
            found: dict[str, list[Row]] = {server.name: [] for server in servers}
            for turn in range(repeats):
                for server in servers if turn % 2 == 0 else reversed(servers):
                    topic = f"bench-{kind}-{threads}-{size}"
                    result = java(home, folder, server.nameserver, topic, kind, threads, size, seconds)  # type: ignore[attr-defined]
                    if result["failures"]:
                        print(f"-- {result['failures']} sends to {server.name} failed", flush=True)
                    found[server.name].append(result)
                    sent[server.name][topic] = sent[server.name].get(topic, 0) + result["messages"]
            what = f"{mode} flush {size} B {kind} x{threads}"
            rows.append(
                show(what, found[servers[0].name], found[servers[1].name], ("penstock", "rocketmq"), 1.0)
            )
        for size in SIZES:
            topic = f"bench-batch-1-{size}"
            count = min(sent[server.name][topic] for server in servers)
            found = {server.name: [] for server in servers}
            for turn in range(repeats):
                for server in servers if turn % 2 == 0 else reversed(servers):
                    group = f"drain-{next(_NUMBERS)}"
                    found[server.name].append(
                        java(home, folder, server.nameserver, topic, "drain", 4, count, group)  # type: ignore[attr-defined]
                    )
            what = f"{mode} flush {size} B drain of {count:,}"
            rows.append(
                show(what, found[servers[0].name], found[servers[1].name], ("penstock", "rocketmq"), 1.0)
            )
        for server in servers:
            print(f"{server.name:<18} {server.memory_mib:.0f} MiB after the load")
        ours, theirs = (server.memory_mib for server in servers)
        rows.append(
            {"what": f"{mode} memory", "penstock_mib": ours, "rocketmq_mib": theirs, "ratio": ours / theirs}
        )
    return rows


def two_clients(folder: Path, repeats: int, seconds: float) -> list[Row]:
    home = java_home()
    rows: list[Row] = []
    with running(Penstock(folder)) as servers:
        if not servers:
            raise SystemExit("Penstock did not start")
        name_server = servers[0].nameserver  # type: ignore[attr-defined]
        for size in SIZES:
            topic = f"clients-{size}"
            ours, theirs = [], []
            for _ in range(repeats):
                ours.append(python(name_server, topic, "batch", size, seconds))
                theirs.append(java(home, folder, name_server, topic, "batch", 1, size, seconds))
            rows.append(show(f"{size} B batched sends", ours, theirs, ("python", "java"), 1.0))
            count = int(sum(row["messages"] for row in theirs + ours))
            ours, theirs = [], []
            for _ in range(repeats):
                stamp = f"{next(_NUMBERS)}-{time.time_ns()}"
                ours.append(python(name_server, topic, "drain", count, f"python-{stamp}"))
                theirs.append(java(home, folder, name_server, topic, "drain", 4, count, f"java-{stamp}"))
            rows.append(show(f"{size} B drain of {count:,}", ours, theirs, ("python", "java"), 1.0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("java", "python"))
    parser.add_argument("--mode", choices=("async", "sync"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    require_compiled()
    repeats, seconds = (1, 1.0) if given.quick else (3, 2.0)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT) as temporary:
        folder = Path(temporary)
        if given.only != "python":
            for mode in (given.mode,) if given.mode else ("async", "sync"):
                rows += two_brokers(folder, mode, repeats, seconds)
        if given.only != "java":
            rows += two_clients(folder, repeats, seconds)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
