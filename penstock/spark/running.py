"""Runs streaming queries until they are done or somebody asks them to stop, and starts those again that fail.

    with stopping_on_signals() as stop:
        done = run({"archive": start}, stop=stop, report=print_batch)

Rules: a stop waits for the batch at hand, within a limit, so that little is done twice; a batch that is cut off
all the same is run again by the next start, with the same offsets. Jobs without batches are cancelled (`cancelling`).
No interrupt is raised while Py4J waits for the JVM, unless the user insists with a second Ctrl-C. A query that fails
is started again after a wait that doubles; several failures with no finished batch between them end the run. A start
that raises because the
cluster is out of reach counts as such a failure; any other is not repeated: it would raise again. One query that
gives up takes the others down, cleanly, before the error is told.

Runs on the driver, in the caller's thread. Never prints; signals are taken only in the main thread.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from penstock.client.access import REFUSED
from penstock.errors import PenstockError
from penstock.runtime import Clock, SystemClock
from penstock.spark.progress import Batch, Report, ignore
from penstock.spark.reasons import reason_of

POLL_S = 0.1
BATCH_WAIT_S = 15.0
FAILURES_MAX = 5
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Start = Callable[[], Any]
# Name of the query, why it failed, seconds until it is started again.
OnFailure = Callable[[str, str, float], None]


class StoppedError(PenstockError):
    """A job ended early because it was asked to stop."""


class Stop:
    """The wish to stop: set by a signal, by another thread, by whoever holds it. A plain flag, because a signal
    handler may run in the middle of anything, a lock included. `on_ask` is called with the first wish."""

    def __init__(self, on_ask: Callable[[], None] | None = None) -> None:
        self.is_asked = False
        self._on_ask = on_ask

    def ask(self) -> None:
        first, self.is_asked = not self.is_asked, True
        if first and self._on_ask is not None:
            self._on_ask()

    def check(self) -> None:
        """Raise if the job is to stop: between two steps, either of which can be left out."""
        if self.is_asked:
            raise StoppedError("interrupted")


@dataclass(frozen=True, slots=True)
class Run:
    """What a query did until it ended. `rows` were read; `written` is what the sink of a pipeline wrote.
    `stopped`: it was asked to, and there may be more to do."""

    name: str
    batches: int
    rows: int
    seconds: float
    restarts: int
    stopped: bool
    written: int = 0


@contextmanager
def stopping_on_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """SIGINT and SIGTERM ask for a stop; a second SIGINT interrupts. In another thread there are no signals."""
    stop = stop or Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.ask()

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def cancelling(spark: Any, stop: Stop, patience_s: float = 0.0, clock: Clock | None = None) -> Iterator[None]:
    """Cancel Spark's jobs once a stop was asked for and `patience_s` have passed: those that run, and those that the
    block still starts. Spark's complaint about a cancelled job becomes a StoppedError."""
    clock, ended, cancelled = clock or SystemClock(), threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_asked:
            if ended.wait(POLL_S):
                return
        due_ms = clock.monotonic_ms() + int(patience_s * 1000)
        while not ended.wait(POLL_S):
            if clock.monotonic_ms() >= due_ms:
                cancelled.set()
                spark.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=watch, name="penstock-cancel", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if cancelled.is_set() and "cancel" in str(error).lower():
            raise StoppedError("interrupted") from error
        raise
    finally:
        ended.set()
        watcher.join()


def run(
    starts: Mapping[str, Start],
    *,
    stop: Stop | None = None,
    report: Report = ignore,
    on_failure: OnFailure | None = None,
    failures_max: int = FAILURES_MAX,
    clock: Clock | None = None,
) -> dict[str, Run]:
    """Start the queries and watch them until all have ended. Raises PenstockError when one cannot be kept up."""
    stop, clock = stop or Stop(), clock or SystemClock()
    watched = [
        _Watched(name, start, report, on_failure, failures_max, clock) for name, start in starts.items()
    ]
    try:
        for item in watched:
            item.begin()
        while not stop.is_asked:
            going = [item.look() for item in watched]
            if not any(going):
                break
            clock.sleep(POLL_S)
        _finish(watched, clock)
    except Exception:
        _finish(watched, clock)
        raise
    finally:
        # Also after an error or an interrupt, which waits for no batch: a query left behind would go on in the JVM.
        for item in watched:
            item.end()
    return {item.name: item.result(stop.is_asked) for item in watched}


def _finish(watched: Iterable[_Watched], clock: Clock) -> None:
    """End each query after its batch at hand, at once: while others still work it would begin, and even publish,
    batches that are not counted. What is not finished within the limit is cut off."""
    deadline_ms = clock.monotonic_ms() + int(BATCH_WAIT_S * 1000)
    left = {item: item.seen for item in watched}
    while left and clock.monotonic_ms() < deadline_ms:
        for item, seen in list(left.items()):
            if item.is_between_batches(seen):
                item.end()
                del left[item]
        if left:
            clock.sleep(POLL_S / 4)


class _Watched:
    """One query: what it has reported, and when it may be started again."""

    def __init__(
        self,
        name: str,
        start: Start,
        report: Report,
        on_failure: OnFailure | None,
        failures_max: int,
        clock: Clock,
    ) -> None:
        self.name = name
        self._start, self._report, self._on_failure = start, report, on_failure
        self._failures_max, self._clock = failures_max, clock
        self._query: Any = None
        # The last batch that was reported.
        self.seen: tuple[int, str] = (-1, "")
        self._batches = self._rows = self._restarts = self._failures = 0
        self._again_ms: int | None = None
        self._began_ms = clock.monotonic_ms()
        self._ended_ms: int | None = None

    def begin(self) -> None:
        self._again_ms = None
        try:
            self._query = self._start()
        except PenstockError as error:
            # A broker that is away is in no route: its topics seem not to exist, and the route may be stale.
            if not error.retriable and not error.route_stale:
                raise
            self._failed(error)

    def look(self) -> bool:
        """Report what is new; whether there is more to come."""
        if self._again_ms is not None:
            if self._clock.monotonic_ms() >= self._again_ms:
                self._restarts += 1
                self.begin()
            return True
        if self._query is None:
            return False
        # Asked before its reports are read: a batch that ends between the two questions is not missed.
        active = bool(self._query.isActive)
        self._take_reports()
        if active:
            return True
        error = self._query.exception()
        self._query = None
        if error is not None:
            self._failed(error)
            return True
        self._ended_ms = self._clock.monotonic_ms()
        return False

    def _take_reports(self) -> None:
        last = self._query.lastProgress
        if last is None or _place(_plain(last)) == self.seen:
            return
        for progress in map(_plain, self._query.recentProgress):
            place = _place(progress)
            # Batches in order; an idle trigger reports the batch that is to come, under a later time.
            if place[1] <= self.seen[1]:
                continue
            self.seen = place
            batch = Batch.of(progress)
            if batch.rows or "addBatch" in (progress.get("durationMs") or {}):
                self._batches += 1
                self._rows += batch.rows
                self._failures = 0
                self._report(batch)

    def _failed(self, error: Any) -> None:
        """Plan another start, or give up."""
        reason = reason_of(error)
        self._failures += 1
        # Who was refused before the first batch has wrong keys or no right, and waiting mends neither.
        is_hopeless = reason.startswith(REFUSED) and not self._batches
        if self._failures > self._failures_max or is_hopeless:
            times = f" {self._failures} times in a row" if self._failures > 1 else ""
            raise PenstockError(
                f"{self.name} failed{times}: {reason}",
                "its checkpoint is whole: remove the cause and start it again",
            ) from error
        wait_s = min(BACK_OFF_FIRST_S * 2 ** (self._failures - 1), BACK_OFF_MAX_S)
        self._again_ms = self._clock.monotonic_ms() + int(wait_s * 1000)
        if self._on_failure is not None:
            self._on_failure(self.name, reason, wait_s)

    def is_between_batches(self, seen: tuple[int, str]) -> bool:
        """Whether the batch has ended that was at hand when `seen` was the last one."""
        query = self._query
        if query is None or not query.isActive or not query.status["isTriggerActive"]:
            return True
        self._take_reports()
        return self.seen != seen

    def end(self) -> None:
        self._again_ms = None
        query, self._query = self._query, None
        if query is None:
            return
        query.stop()
        self._query = query
        self._take_reports()
        self._query, self._ended_ms = None, self._clock.monotonic_ms()

    def result(self, stopped: bool) -> Run:
        ended = self._ended_ms if self._ended_ms is not None else self._clock.monotonic_ms()
        seconds = (ended - self._began_ms) / 1000
        return Run(self.name, self._batches, self._rows, seconds, self._restarts, stopped)


def _plain(progress: Any) -> Mapping[str, Any]:
    """Spark's progress as its JSON: an object in some versions, a mapping in others."""
    text = getattr(progress, "json", None)
    found: Mapping[str, Any] = json.loads(text) if isinstance(text, str) else progress
    return found


def _place(progress: Mapping[str, Any]) -> tuple[int, str]:
    return int(progress.get("batchId") or 0), str(progress.get("timestamp") or "")
