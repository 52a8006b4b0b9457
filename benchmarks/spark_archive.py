"""How the archive scales: the same archive of 1, 2 and 4 times the messages, with 1 and 2 cores.

    python -m benchmarks.spark_archive [--quick] [--rows N] [--body-size N] [--repeats N] [--dir DIR] [--json FILE]

A broker in a process of its own holds three topics of 1, 2 and 4 times the rows, eight queues each. For each number
of cores a Spark of its own archives all three, in turns, `repeats` times, into new directories, after some runs for
nothing, so that no figure has a start in it. Ratios are of rows per second: of n times the data to once the data (1
is linear), and of two cores to one (the broker has its share of both). Beside them, in the same session: the same
rows read and written as Parquet by Spark itself, which promises nothing to other readers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Figure, machine, print_figure, require_compiled, save
from benchmarks.servers import Penstock
from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 8
TIMES = (1, 2, 4)
CORES = (1, 2)
WARM_ROWS = 20_000
GROUP = 256
PLAIN = "plain"


def topic_of(times: int) -> str:
    return f"bench-{times}"


def fill(path: Path, rows: int, body_size: int) -> None:
    """The topics, one after the other, as a broker would have stored them."""
    noise = os.urandom((1 << 22) + body_size)
    sizes = {0: WARM_ROWS} | {times: times * rows for times in TIMES}
    with MessageStore.open(path, StoreOptions()) as store:
        for times, count in sizes.items():
            for first in range(0, count, GROUP):
                group = []
                for number in range(first, min(first + GROUP, count)):
                    at = number * 7919 % (1 << 22)
                    unique = f"7F0000010C8A18B4AAC{times}{number:012X}"
                    properties = {"TAGS": "TagA", "KEYS": f"order-{number}", "UNIQ_KEY": unique}
                    message = Message(topic_of(times), noise[at : at + body_size], properties)
                    group.append(store.request(message, number % QUEUES))
                store.append_group(group)


# -- one Spark ---------------------------------------------------------------------------------------------------


def run_child(order: dict[str, Any]) -> None:
    """Archive the topics with one number of cores; a line of JSON for each."""
    from penstock.spark import session

    folder = Path(order["folder"])
    conf = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = session("archive", f"local[{order['cores']}]", log=folder / "spark.log", **conf)
    try:
        # Twice, and the plain copy once: the first runs of each path are two to three times slower than later ones.
        archive_once(spark, order["nameserver"], 0, folder / "warm-0")
        archive_once(spark, order["nameserver"], 1, folder / "warm-1")
        plain_once(spark, order["nameserver"], folder / "warm-plain")
        for number in range(order["repeats"]):
            for times in TIMES if number % 2 == 0 else TIMES[::-1]:
                took = archive_once(spark, order["nameserver"], times, folder / f"a{number}-{times}")
                print(json.dumps({"times": times, **took}), flush=True)
            took = plain_once(spark, order["nameserver"], folder / f"p{number}")
            print(json.dumps({"times": PLAIN, **took}), flush=True)
    finally:
        spark.stop()


def archive_once(spark: SparkSession, nameserver: str, times: int, to: Path) -> dict[str, float]:
    from penstock.spark import archive

    started = time.perf_counter()
    done = archive(topic_of(times), str(to), spark=spark, nameserver=nameserver, once=True, merge=False)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in to.rglob("*.parquet"))
    shutil.rmtree(to)
    return {"seconds": seconds, "rows": done.rows, "batches": done.batches, "size": size}


def plain_once(spark: SparkSession, nameserver: str, to: Path) -> dict[str, float]:
    started = time.perf_counter()
    frame = spark.read.format("penstock").option("nameserver", nameserver).option("topic", topic_of(1)).load()
    frame.write.option("compression", "zstd").parquet(str(to))
    seconds = time.perf_counter() - started
    shutil.rmtree(to)
    return {"seconds": seconds}


# -- all of them -------------------------------------------------------------------------------------------------


def measure(nameserver: str, cores: int, folder: Path, repeats: int) -> dict[Any, list[float]]:
    folder.mkdir()
    order = {"cores": cores, "folder": str(folder), "nameserver": nameserver, "repeats": repeats}
    line = [sys.executable, "-m", "benchmarks.spark_archive", "--child", json.dumps(order)]
    child = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    taken: dict[Any, list[float]] = {}
    for text in child.stdout.splitlines():
        found = json.loads(text)
        taken.setdefault(found["times"], []).append(found["seconds"])
    shutil.rmtree(folder)
    return taken


def report(rows: int, body_size: int, taken: dict[int, dict[Any, list[float]]]) -> list[Figure]:
    """Each case against its neighbour: more data against once the data, two cores against one."""
    figures = []

    def add(name: str, amount: int, case: list[float], base_amount: int, base: list[float]) -> None:
        case_s, base_s = statistics.median(case), statistics.median(base)
        rate, base_rate = amount / case_s, base_amount / base_s
        ratios = [amount / a / (base_amount / b) for a, b in zip(case, base, strict=True)]
        figures.append(Figure(name, "rows/s", rate, base_rate, rate / base_rate, (min(ratios), max(ratios))))
        print_figure(figures[-1])

    for cores, found in taken.items():
        where = f"{body_size} B, {cores} core{'s' if cores > 1 else ''}"
        for times in TIMES[1:]:
            add(f"archive x{times} to x1, {where}", times * rows, found[times], rows, found[1])
        add(f"archive to Spark's own Parquet, {where}", rows, found[1], rows, found[PLAIN])
    first, last = CORES[0], CORES[-1]
    for times in TIMES:
        amount = times * rows
        name = f"archive x{times}, {last} cores to {first}, {body_size} B"
        add(name, amount, taken[last][times], amount, taken[first][times])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="How the archive scales")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, two repeats")
    parser.add_argument("--rows", type=int, default=400_000, help="of once the data")
    parser.add_argument("--body-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(json.loads(arguments.child))
        return
    require_compiled()
    for name, value in machine().items():
        print(f"{name}: {value}")
    rows = arguments.rows // (4 if arguments.quick else 1)
    repeats = arguments.repeats or (2 if arguments.quick else 3)
    folder = Path(tempfile.mkdtemp(prefix="penstock-archive-", dir=arguments.dir))
    try:
        node = Penstock(folder)
        fill(node.folder / "data", rows, arguments.body_size)
        with node:
            taken = {
                cores: measure(node.nameserver, cores, folder / f"cores-{cores}", repeats) for cores in CORES
            }
        figures = report(rows, arguments.body_size, taken)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        seconds = {f"{cores} cores": found for cores, found in taken.items()}
        save(arguments.json, figures, {"rows": rows, "body_size": arguments.body_size, "seconds": seconds})


if __name__ == "__main__":
    main()
