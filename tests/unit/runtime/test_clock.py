"""The machine's clocks, seen through the door."""

import re
import time

from penstock.runtime import Runtime, SystemClock


def test_wall_clock_is_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_monotonic_clock_moves_on_and_agrees_with_itself() -> None:
    clock = SystemClock()
    start_ns, start_ms = clock.monotonic_ns(), clock.monotonic_ms()
    clock.sleep(0.01)
    assert clock.monotonic_ns() - start_ns >= 10_000_000
    assert clock.monotonic_ms() - start_ms >= 9
    assert abs(clock.monotonic_ns() // 1_000_000 - clock.monotonic_ms()) < 1_000


def test_file_name_time_is_seventeen_digits_of_local_time() -> None:
    clock = SystemClock()
    # With the same clock: `strftime` alone asks a coarser one, which may be a tick behind.
    before = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time()))
    name = clock.file_name_time()
    after = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time()))
    assert re.fullmatch(r"[0-9]{17}", name)
    assert before <= name[:14] <= after
    assert 0 <= clock.local_hour() <= 23


def test_the_system_runtime_is_whole() -> None:
    runtime = Runtime.system()
    assert runtime.clock.now_ms() > 0
    assert 0 <= runtime.entropy.fraction() < 1
    assert runtime.disk is not None
    assert runtime.network is not None
