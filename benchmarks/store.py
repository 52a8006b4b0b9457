"""The store against the raw disk: append, sync flush, read, recovery, memory, steady state.

    python -m benchmarks.store [--quick] [--steady SECONDS] [--dir DIR] [--json FILE]

Baselines, in the same run: sequential `pwrite` of the same bytes in the same groups into a preallocated file;
the same with one fdatasync per group; reading the same bytes with `pread`.
"""

from __future__ import annotations

import argparse
import functools
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Figure, compare, compare_bursts, machine, print_figure, require_compiled, save
from penstock._hot.records import AppendRequest
from penstock.message import Message
from penstock.store import FlushMode, MessageStore, StoreOptions
from penstock.telemetry import Histogram

MIB = 1 << 20
QUEUES = 8
BURST_BYTES = 8 * MIB


def options(**changes: object) -> StoreOptions:
    values: dict[str, object] = {
        "segment_size_bytes": 1 << 30,
        "disk_max_used_percent": 100,
        "disk_clean_forcibly_percent": 100,
        "disk_refuse_writes_percent": 100,
        "disk_warning_percent": 100,
        "scrub_bytes_per_second": 0,
    }
    return StoreOptions(**{**values, **changes})  # type: ignore[arg-type]


class Bench:
    """Runs the cases in one directory and collects their figures."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.repeats = 3 if quick else 9
        self.figures: list[Figure] = []

    def fresh(self) -> Path:
        path = self.folder / "case"
        shutil.rmtree(path, ignore_errors=True)
        return path

    # -- append --------------------------------------------------------------------------------------------------

    def requests(self, store: MessageStore, body_size: int, group: int, keys: bool) -> list[AppendRequest]:
        """Messages as clients send them: each with a body and a unique key of its own, unless `keys` is off."""
        made = []
        for i in range(group):
            body = os.urandom(body_size)
            properties = {"TAGS": "TagA"}
            if keys:
                properties["UNIQ_KEY"] = os.urandom(16).hex().upper()
            made.append(store.request(Message("BenchTopic", body, properties), i % QUEUES))
        return made

    def groups_of(
        self, store: MessageStore, body_size: int, group: int, keys: bool
    ) -> list[list[AppendRequest]]:
        """A thousand different messages: enough that no index slot is hot, few enough to be in the cache as
        messages are that have just arrived."""
        return [self.requests(store, body_size, group, keys) for _ in range(max(1, 1024 // group))]

    def stored(self, store: MessageStore, requests: list[AppendRequest]) -> bytes:
        """The bytes that a group becomes in the log: what the raw write writes, too."""
        store.append_group(requests)
        size = sum(request.size for request in requests)
        found = store.slice_for_transfer(requests[0].physical_offset, size)
        if found is None or len(found) != size:
            raise AssertionError("a segment ended within the group")
        return bytes(found)

    def record_size(self, body_size: int, keys: bool) -> int:
        with MessageStore.open(self.fresh(), options(segment_size_bytes=MIB * 8), background=False) as store:
            requests = self.requests(store, body_size, 1, keys)
            store.append_group(requests)
            return requests[0].size

    def append_bursts(
        self, body_size: int, group: int, groups: int, mode: FlushMode, keys: bool
    ) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
        """Bursts of appends to a store, and of raw writes of the same bytes to a preallocated file."""
        sync = mode is FlushMode.SYNC
        burst = min(groups, max(1, BURST_BYTES // ((body_size + 150) * group)))
        path = self.folder / "raw"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            with MessageStore.open(self.fresh(), options(flush_mode=mode)) as store:
                pool = self.groups_of(store, body_size, group, keys)
                bytes_of = [self.stored(store, requests) for requests in pool]
                os.posix_fallocate(fd, 0, 1 << 30)
                os.pwrite(fd, bytes_of[0], 0)
                os.fdatasync(fd)
                position = len(bytes_of[0])
                time.sleep(0.3)  # the first rounds of the keeper belong to opening, not to appending

                def appends() -> None:
                    append, kinds = store.append_group, len(pool)
                    for i in range(burst):
                        append(pool[i % kinds])

                def writes() -> None:
                    nonlocal position
                    pwrite, kinds = os.pwrite, len(bytes_of)
                    for i in range(burst):
                        data = bytes_of[i % kinds]
                        pwrite(fd, data, position)
                        if sync:
                            os.fdatasync(fd)
                        position += len(data)

                for _ in range(groups // burst):
                    yield appends, writes
        finally:
            os.close(fd)
            path.unlink()

    def appends(self) -> None:
        for mode in (FlushMode.ASYNC, FlushMode.SYNC):
            sync = mode is FlushMode.SYNC
            for body_size in (100, 1024):
                for group in (1, 64):
                    for keys in (False, True) if group == 64 and not sync else (True,):
                        size = self.record_size(body_size, keys)
                        budget = (8 if sync else 192) * MIB if group == 64 else (2 if sync else 32) * MIB
                        groups = max(50, budget // (size * group) // (4 if self.quick else 1))
                        target = None
                        if group == 64 and body_size == 1024:
                            target = 0.8 if sync else 0.6
                        burst = min(groups, max(1, BURST_BYTES // ((body_size + 150) * group)))
                        self.figures.append(
                            compare_bursts(
                                f"append {body_size} B, group {group}, {mode.value} flush"
                                + ("" if keys else ", no keys"),
                                "msg/s",
                                groups // burst * burst * group,
                                functools.partial(self.append_bursts, body_size, group, groups, mode, keys),
                                self.repeats,
                                target,
                            )
                        )

    # -- read and recovery -----------------------------------------------------------------------------------------

    def fill(self, path: Path, total: int, body_size: int, *, close: bool) -> int:
        """A store with about `total` bytes of records; their exact size."""
        store = MessageStore.open(path, options())
        pool = self.groups_of(store, body_size, 64, True)
        i = 0
        while store.log.max_offset < total:
            store.append_group(pool[i % len(pool)])
            i += 1
        end = store.log.max_offset
        store.keeper.finish()
        if close:
            store.close()
        else:
            store.abandon()
        return end

    def raw_read(self, path: Path, size: int) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            done = 0
            for segment in sorted((path / "commitlog").iterdir()):
                fd = os.open(segment, os.O_RDONLY)
                buffer = bytearray(MIB)
                while done < size and (got := os.preadv(fd, [buffer], done % (1 << 30))):
                    done += got
                os.close(fd)
            return time.perf_counter() - started

        return run

    def reads(self) -> None:
        path = self.fresh()
        total = (64 if self.quick else 512) * MIB
        size = self.fill(path, total, 1024, close=True)
        with MessageStore.open(path, options(), read_only=True) as store:

            def drain() -> float:
                started = time.perf_counter()
                for queue in range(QUEUES):
                    offset, end = 0, store.max_offset("BenchTopic", queue)
                    while offset < end:
                        offset = store.get("BenchTopic", queue, offset, 32, 256 << 10).next_offset
                return time.perf_counter() - started

            self.figures.append(
                compare(
                    "read 1 KiB by queue, 32 a call, checksums on",
                    "MiB/s",
                    size / MIB,
                    drain,
                    self.raw_read(path, size),
                    self.repeats,
                )
            )

    def recovery(self) -> None:
        path = self.fresh()
        total = (128 if self.quick else 1024) * MIB - 4 * MIB
        size = self.fill(path, total, 1024, close=False)

        def recover() -> float:
            # After a crash, and nothing derived is left: all of the log is read, all queues and the index made.
            for name in ("consumequeue", "index"):
                shutil.rmtree(path / name, ignore_errors=True)
            (path / "penstock.manifest.json").unlink(missing_ok=True)
            (path / "abort").touch()
            started = time.perf_counter()
            store = MessageStore.open(path, options(), background=False)
            elapsed = time.perf_counter() - started
            assert store.log.max_offset == size, (store.log.max_offset, size)
            store.abandon()
            return elapsed

        self.figures.append(
            compare(
                "recovery of 1 KiB records, everything rebuilt",
                "MiB/s",
                size / MIB,
                recover,
                self.raw_read(path, size),
                max(3, self.repeats // 3),
                0.25,
            )
        )
        figure = self.figures[-1]
        figure.extra["seconds_per_gib"] = 1024 / figure.case
        print(f"{'':<52} {figure.extra['seconds_per_gib']:.2f} s per GiB")

    # -- memory and steady state -----------------------------------------------------------------------------------

    def memory(self) -> dict[str, float]:
        """Resident memory of a process that opened a store and appended 256 MiB, by a child of its own."""
        code = (
            "import resource,sys\n"
            "from pathlib import Path\n"
            "from benchmarks.store import Bench, options\n"
            "from penstock.store import MessageStore\n"
            "def private():\n"
            "    lines = Path('/proc/self/smaps_rollup').read_text().splitlines()\n"
            "    return sum(int(l.split()[1]) for l in lines if l.startswith('Private_')) / 1024\n"
            "idle = private()\n"
            "bench = Bench(Path(sys.argv[1]), True)\n"
            "store = MessageStore.open(bench.fresh(), options())\n"
            "opened = private()\n"
            "requests = bench.requests(store, 1024, 64, True)\n"
            "while store.log.max_offset < 256 << 20: store.append_group(requests)\n"
            "print(idle, opened, private())\n"
            "store.abandon()\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", code, str(self.folder)], capture_output=True, text=True, check=True
        ).stdout.split()
        figures = dict(zip(("imported_mib", "opened_mib", "after_256_mib_mib"), map(float, out), strict=True))
        print("memory (private): " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
        return figures

    def steady(self, seconds: float) -> dict[str, object]:
        """Grouped 1 KiB appends, then raw writes, each long enough to pass the page cache's write-back limits.

        Both write 1 GiB files one after the other and delete a file only after it is on disk, so neither gains
        by throwing dirty pages away.
        """
        size = self.record_size(1024, True)
        store = MessageStore.open(self.fresh(), options(file_reserved_hours=0, delete_batch_max=100))
        pool = self.groups_of(store, 1024, 64, True)

        def append(i: int) -> None:
            store.append_group(pool[i % len(pool)])

        def clean() -> None:
            store.flush()
            store.keeper.request_clean()
            store.keeper.clean()

        try:
            cleaner = Repeater(10, clean)
            store_seconds, store_groups = paced(append, seconds)
            cleaner.stop()
            written = store.log.max_offset
        finally:
            store.abandon()
            shutil.rmtree(store.path)
        raw = RawLog(self.folder, os.urandom(size * 64))
        raw_seconds, raw_groups = paced(raw.write, seconds)
        raw.close()
        rate, raw_rate = store_groups["count"] * 64 / seconds, raw_groups["count"] * 64 / seconds
        figure = Figure(
            f"steady {seconds:.0f} s, 1 KiB, group 64, async flush",
            "msg/s",
            rate,
            raw_rate,
            rate / raw_rate,
            (rate / raw_rate, rate / raw_rate),
            None,
            {f"store_{k}": v for k, v in store_groups.items()}
            | {f"raw_{k}": v for k, v in raw_groups.items()},
        )
        self.figures.append(figure)
        print_figure(figure)
        for name, groups in (("store", store_groups), ("raw", raw_groups)):
            print(
                f"{'':<10} {name:<6} a group of 64: p50 {groups['p50_us']:,.0f} us, p99 {groups['p99_us']:,.0f} us, "
                f"p99.9 {groups['p999_us']:,.0f} us, slowest {groups['max_us'] / 1000:,.0f} ms"
            )
        print(f"{'':<10} {written / 2**30:.1f} GiB written by the store")
        print(f"{'':<10} store, each second: {sparkline(store_seconds)}")
        print(f"{'':<10} raw, each second:   {sparkline(raw_seconds)}")
        return {"store_groups_each_second": store_seconds, "raw_groups_each_second": raw_seconds}


class Repeater:
    """Calls a function every few seconds, beside the measured thread."""

    def __init__(self, interval_s: float, action: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._interval_s = interval_s
        self._action = action
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._action()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class RawLog:
    """1 GiB files written one after the other; a full one is synced and deleted by a thread, as a log's is."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self._folder = folder
        self._data = data
        self._number = 0
        self._done: queue.Queue[int | None] = queue.Queue()
        self._thread = threading.Thread(target=self._finish_files, daemon=True)
        self._thread.start()
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._folder / f"raw{self._number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._number += 1
        self._position = 0
        os.posix_fallocate(self._fd, 0, 1 << 30)

    def write(self, _: int) -> None:
        if self._position + len(self._data) > 1 << 30:
            self._done.put(self._fd)
            self._open()
        os.pwrite(self._fd, self._data, self._position)
        self._position += len(self._data)

    def _finish_files(self) -> None:
        """Sync a full file at once; delete every 10 s, as the store's retention does here: who deletes sooner writes
        into memory that is still warm, which on a virtual machine makes all the difference."""
        synced: list[int] = []
        first, deleted_at = 0, time.monotonic()
        while (fd := self._done.get()) is not None:
            os.fdatasync(fd)
            os.close(fd)
            synced.append(first + len(synced))
            if time.monotonic() - deleted_at > 10:
                for number in synced:
                    (self._folder / f"raw{number}").unlink()
                first, deleted_at = first + len(synced), time.monotonic()
                synced = []

    def close(self) -> None:
        self._done.put(self._fd)
        self._done.put(None)
        self._thread.join()


def paced(action: Callable[[int], None], seconds: float) -> tuple[list[int], dict[str, float]]:
    """Run for some seconds as fast as it goes: calls in each second, and how long one call took."""
    each_second = [0] * (int(seconds) + 1)
    times = Histogram()
    clock = time.perf_counter_ns
    count, started = 0, clock()
    end = started + int(seconds * 1e9)
    now = started
    while now < end:
        action(count)
        after = clock()
        times.record(after - now)
        each_second[(after - started) // 1_000_000_000 if after < end else -1] += 1
        now = after
        count += 1
    percentiles = {
        name: times.percentile(p) / 1000 for name, p in (("p50_us", 50), ("p99_us", 99), ("p999_us", 99.9))
    }
    return each_second[: int(seconds)], {"count": count, **percentiles, "max_us": times.maximum / 1000}


def sparkline(values: list[int]) -> str:
    """A plot in one line; the highest bar is the best second."""
    top = max(values, default=1) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, value * 8 // (top + 1))] for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small amounts: shows that it runs, not how fast"
    )
    parser.add_argument(
        "--steady", type=float, default=None, metavar="SECONDS", help="length of the steady state"
    )
    parser.add_argument("--only", default="", help="appends, reads, recovery, memory or steady")
    parser.add_argument("--dir", type=Path, default=None, help="a directory on the disk to measure")
    parser.add_argument("--json", type=Path, default=None, help="also write the report to this file")
    arguments = parser.parse_args()
    require_compiled()
    print(" ".join(f"{name}={value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=arguments.dir))
    extra: dict[str, object] = {}
    steady_s = arguments.steady if arguments.steady is not None else (5 if arguments.quick else 70)
    try:
        bench = Bench(folder, arguments.quick)
        for name in ("appends", "reads", "recovery", "memory", "steady"):
            if arguments.only in ("", name):
                result = bench.steady(steady_s) if name == "steady" else getattr(bench, name)()
                if result is not None:
                    extra[name] = result
        extra["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if arguments.json:
            save(arguments.json, bench.figures, extra)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
