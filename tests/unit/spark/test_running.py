"""Queries are watched, stopped after the batch at hand, and started again when they fail. With queries of straw."""

import os
import signal
import threading
from typing import Any

import pytest

from penstock.errors import CallTimeoutError, ClientError, ConnectError, PenstockError, RouteNotFoundError
from penstock.spark import running
from penstock.spark.progress import Batch
from penstock.spark.running import Stop, StoppedError, cancelling, run, stopping_on_signals


class SteppingClock:
    """Time passes only while somebody waits; then the next thing happens."""

    def __init__(self) -> None:
        self.now = 0
        self.waits: list[float] = []
        self.on_sleep: list[Any] = []

    def monotonic_ms(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += max(1, int(seconds * 1000))
        for action in self.on_sleep:
            action()


class Query:
    """One look at a time: each takes the next of what was planned. A number is a batch with so many rows, `busy`
    and `idle` are looks without news, an exception is a failure, and the end of the plan is the end."""

    def __init__(self, plan: list[Any], first_batch: int = 0) -> None:
        self.plan, self.batch = plan, first_batch
        self.isActive = True
        self.status = {"isTriggerActive": False}
        self.recentProgress: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.stops = 0

    def step(self) -> None:
        if not self.isActive:
            return
        if not self.plan:
            self.isActive = False
            return
        event = self.plan.pop(0)
        self.status = {"isTriggerActive": event != "idle"}
        if isinstance(event, Exception):
            self.error, self.isActive = event, False
        elif isinstance(event, int):
            stamp = f"2025-01-31T15:00:00.{self.batch:03d}Z"
            durations = {"addBatch": 5, "triggerExecution": 10}
            progress = {
                "batchId": self.batch,
                "timestamp": stamp,
                "numInputRows": event,
                "durationMs": durations,
            }
            self.recentProgress.append(progress)
            self.batch += 1

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


def started(clock: SteppingClock, *queries: Query) -> Any:
    """A start that gives these queries, one after the other."""
    waiting = list(queries)

    def start() -> Query:
        query = waiting.pop(0)
        clock.on_sleep.append(query.step)
        return query

    return start


def test_a_query_that_ends_is_reported_batch_by_batch(clock: SteppingClock) -> None:
    seen: list[Batch] = []
    done = run({"q": started(clock, Query([5, "busy", 7, "idle", 1]))}, report=seen.append, clock=clock)
    assert [(batch.batch, batch.rows) for batch in seen] == [(0, 5), (1, 7), (2, 1)]
    assert (done["q"].batches, done["q"].rows, done["q"].restarts, done["q"].stopped) == (3, 13, 0, False)


def test_batches_that_finish_between_two_looks_are_all_reported(clock: SteppingClock) -> None:
    query = Query([1, 2, 3, 4])
    clock.on_sleep.append(query.step)
    seen: list[Batch] = []
    run({"q": started(clock, query)}, report=seen.append, clock=clock)
    assert [batch.rows for batch in seen] == [1, 2, 3, 4]


def test_a_stop_waits_for_the_batch_at_hand(clock: SteppingClock) -> None:
    stop = Stop()
    query = Query([5, "busy", "busy", "busy", 7, 9, 9, 9])
    clock.on_sleep.append(lambda: stop.ask() if len(clock.waits) == 2 else None)
    done = run({"q": started(clock, query)}, stop=stop, clock=clock)
    assert (done["q"].rows, done["q"].stopped, query.stops) == (12, True, 1)
    assert query.plan == [9, 9, 9]


def test_a_query_ends_after_its_batch_while_others_still_work(clock: SteppingClock) -> None:
    """It would begin, and publish, batches that are cut off and counted nowhere."""
    stop = Stop()
    quick, slow = Query([5, "busy", 7, *[9] * 100]), Query([3, *["busy"] * 200, 4])
    started_both = {"quick": started(clock, quick), "slow": started(clock, slow)}
    clock.on_sleep.append(lambda: stop.ask() if len(clock.waits) == 2 else None)
    done = run(started_both, stop=stop, clock=clock)
    assert (done["quick"].rows, len(quick.plan)) == (12, 100)
    assert (done["slow"].rows, slow.plan) == (7, [])


def test_an_interrupt_waits_for_no_batch(clock: SteppingClock) -> None:
    def insist() -> None:
        if clock.now > 1_000:
            raise KeyboardInterrupt

    stop = Stop()
    stop.ask()
    query = Query(["busy"] * 100_000)
    query.status = {"isTriggerActive": True}
    clock.on_sleep.append(insist)
    with pytest.raises(KeyboardInterrupt):
        run({"q": lambda: query}, stop=stop, clock=clock)
    assert query.stops == 1
    assert clock.now < 2_000


class Jobs:
    """What a session does when its jobs are cancelled: nothing, until it has been asked to."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.cancelled = threading.Event()

    def cancelAllJobs(self) -> None:
        self.cancelled.set()

    def work(self) -> None:
        assert self.cancelled.wait(60), "nobody cancels it"
        raise ValueError("Job 3 cancelled as part of cancellation of all jobs")


def test_a_stop_cancels_jobs_that_wait_for_nothing() -> None:
    jobs, stop = Jobs(), Stop()
    stop.ask()
    with pytest.raises(StoppedError), cancelling(jobs, stop):
        jobs.work()


def test_a_failure_is_not_taken_for_a_stop() -> None:
    jobs, stop = Jobs(), Stop()
    stop.ask()
    with pytest.raises(ValueError, match="no such column"), cancelling(jobs, stop, patience_s=600):
        raise ValueError("no such column: cancelled_at")
    assert not jobs.cancelled.is_set()


def test_a_stop_while_nothing_is_at_hand_is_quick(clock: SteppingClock) -> None:
    stop = Stop()
    clock.on_sleep.append(lambda: stop.ask() if len(clock.waits) == 2 else None)
    done = run({"q": started(clock, Query([5, "idle", "idle", "idle"]))}, stop=stop, clock=clock)
    assert done["q"].stopped
    assert len(clock.waits) == 2


def test_a_batch_that_takes_too_long_is_cut_off(clock: SteppingClock) -> None:
    stop = Stop()
    stop.ask()
    query = Query(["busy"] * 100_000)
    query.status = {"isTriggerActive": True}
    run({"q": started(clock, query)}, stop=stop, clock=clock)
    assert query.stops == 1
    assert running.BATCH_WAIT_S * 1000 <= clock.now < running.BATCH_WAIT_S * 1000 + 1_000


def test_a_query_that_fails_is_started_again_after_a_growing_wait(clock: SteppingClock) -> None:
    told: list[tuple[str, str, float]] = []
    failing = [Query([ValueError("no broker")]), Query([ValueError("no broker")])]
    start = started(clock, Query([5, ValueError("x")]), *failing, Query([7], first_batch=1))
    done = run({"q": start}, on_failure=lambda *failure: told.append(failure), clock=clock)
    assert [(name, wait) for name, _, wait in told] == [("q", 1.0), ("q", 2.0), ("q", 4.0)]
    assert told[1][1] == "no broker"
    assert (done["q"].rows, done["q"].batches, done["q"].restarts) == (12, 2, 3)


def test_progress_between_failures_makes_them_count_anew(clock: SteppingClock) -> None:
    queries = [Query([1, ValueError("x")], first_batch=number) for number in range(10)]
    done = run({"q": started(clock, *queries, Query([1], first_batch=10))}, failures_max=1, clock=clock)
    assert (done["q"].rows, done["q"].restarts) == (11, 10)


def test_failing_again_and_again_ends_the_run_and_stops_the_others(clock: SteppingClock) -> None:
    other = Query(["idle"] * 100_000)
    failing = [Query([ValueError("the disk is full")]) for _ in range(3)]
    starts = {"other": started(clock, other), "q": started(clock, *failing)}
    with pytest.raises(
        PenstockError, match=r"q failed 3 times in a row: the disk is full; its checkpoint is whole"
    ):
        run(starts, failures_max=2, clock=clock)
    assert other.stops == 1


def test_who_is_refused_before_the_first_batch_does_not_wait(clock: SteppingClock) -> None:
    refused = ClientError("refused: the signature of 'app' is not valid")
    with pytest.raises(PenstockError, match="q failed: refused: the signature of 'app' is not valid"):
        run({"q": started(clock, Query([refused]))}, clock=clock)
    # After a batch the users may just be changing.
    queries = (Query([5, refused]), Query([7], first_batch=1))
    assert run({"q": started(clock, *queries)}, clock=clock)["q"].rows == 12


def test_a_start_that_raises_is_not_repeated_and_stops_the_others(clock: SteppingClock) -> None:
    other = Query(["idle"] * 100)

    def refuse() -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        run({"other": started(clock, other), "q": refuse}, clock=clock)
    assert other.stops == 1


def test_a_start_that_finds_nobody_is_a_failure_like_others(clock: SteppingClock) -> None:
    """A broker that is away when a query starts may be back after the pause."""
    told: list[tuple[str, float]] = []
    away = [
        ConnectError("no broker answers"),
        RouteNotFoundError("no topic orders"),
        CallTimeoutError("late"),
    ]
    query = started(clock, Query([5]))

    def start() -> Any:
        if away:
            raise away.pop(0)
        return query()

    done = run({"q": start}, on_failure=lambda _, why, wait: told.append((why, wait)), clock=clock)
    assert told == [("no broker answers", 1.0), ("no topic orders", 2.0), ("late", 4.0)]
    assert (done["q"].rows, done["q"].restarts) == (5, 3)


def test_starts_that_never_find_anybody_end_the_run(clock: SteppingClock) -> None:
    def start() -> None:
        raise ConnectError("no broker answers")

    with pytest.raises(PenstockError, match="q failed 3 times in a row: no broker answers"):
        run({"q": start}, failures_max=2, clock=clock)


def test_signals_ask_for_a_stop_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals() as stop:
        assert not stop.is_asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_asked
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_there_are_no_signals_but_a_stop() -> None:
    found: list[Stop] = []

    def use() -> None:
        with stopping_on_signals() as stop:
            found.append(stop)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not found[0].is_asked
