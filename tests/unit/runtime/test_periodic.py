"""A thread that ticks: it goes on after errors, can be woken, and ends when told."""

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.runtime import PeriodicThread

LIMIT_S = 90
NEVER_MS = 3_600_000


class Ticks:
    """Counts calls; `reached(n)` waits for the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self) -> None:
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def reached(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, LIMIT_S)


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def stopped_later() -> Iterator[list[PeriodicThread]]:
    threads: list[PeriodicThread] = []
    yield threads
    for thread in threads:
        thread.stop()


def test_ticks_at_its_interval(stopped_later: list[PeriodicThread], errors: list[BaseException]) -> None:
    ticks = Ticks()
    thread = PeriodicThread("ticker", 5, ticks, errors.append)
    stopped_later.append(thread)
    start = time.monotonic()
    thread.start()
    assert ticks.reached(4)
    assert time.monotonic() - start >= 4 * 0.005
    assert errors == []


def test_the_first_tick_comes_after_one_interval_or_a_wake(
    stopped_later: list[PeriodicThread], errors: list[BaseException]
) -> None:
    ticks = Ticks()
    thread = PeriodicThread("sleeper", NEVER_MS, ticks, errors.append)
    stopped_later.append(thread)
    thread.start()
    assert ticks.count == 0
    thread.wake()
    assert ticks.reached(1)


def test_an_error_is_reported_and_the_thread_goes_on(
    stopped_later: list[PeriodicThread], errors: list[BaseException]
) -> None:
    ticks = Ticks()

    def tick() -> None:
        ticks()
        if ticks.count == 1:
            raise ValueError("first tick")

    thread = PeriodicThread("stumbler", 1, tick, errors.append)
    stopped_later.append(thread)
    thread.start()
    assert ticks.reached(3)
    assert [str(error) for error in errors] == ["first tick"]


def test_stop_waits_for_the_call_under_way(errors: list[BaseException]) -> None:
    entered, finished = threading.Event(), []

    def tick() -> None:
        entered.set()
        time.sleep(0.05)
        finished.append(True)

    thread = PeriodicThread("slow", 1, tick, errors.append)
    thread.start()
    assert entered.wait(LIMIT_S)
    thread.stop()
    assert finished
    assert not any(one.name == "slow" for one in threading.enumerate()), "no call may come after stop()"


def test_stop_does_not_wait_for_the_interval(errors: list[BaseException]) -> None:
    ticks = Ticks()
    thread = PeriodicThread("sleeper", NEVER_MS, ticks, errors.append)
    thread.start()
    start = time.monotonic()
    thread.stop()
    assert time.monotonic() - start < LIMIT_S
    assert ticks.count == 0


def test_a_tick_may_stop_its_own_thread(errors: list[BaseException]) -> None:
    stopped = threading.Event()

    def tick() -> None:
        thread.stop()
        stopped.set()

    thread = PeriodicThread("self-stopping", 1, tick, errors.append)
    thread.start()
    assert stopped.wait(LIMIT_S)
    thread.stop()
    assert errors == []


def test_stop_before_start_is_harmless(errors: list[BaseException]) -> None:
    PeriodicThread("never", 1, Ticks(), errors.append).stop()
