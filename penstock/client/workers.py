"""Those who call the listener: threads for an ordinary function, tasks for a coroutine function.

Rules: `None` and `True` mean done. `RETRY`, any `Retry`, `False` and whatever it raises mean: again later. In
order, a failure ends the lot and the rest goes back. Between two messages a worker looks whether the queue is
still this consumer's. Threads are made when there is work for them and end when the handout closes; a listener
that hangs keeps its thread, a daemon, and closing does not wait for it for ever.

Threads report through `Reports`, which wakes the loop once for any number of reports.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.client.handout import Handout, LoopHandout, Lot, Report, ThreadHandout
from penstock.client.received import RETRY, ReceivedMessage, Retry
from penstock.message.failures import reason_of
from penstock.runtime import Clock

logger = logging.getLogger(__name__)
Listener = Callable[[ReceivedMessage], Any]
Settle = Callable[[Report], None]
ENDING_S = 0.5


def is_async(listener: Listener) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__)


def verdict_of(result: object, message: ReceivedMessage) -> Retry | None:
    """What a listener's result says: None if the message is done."""
    if message.verdict is not None:
        return message.verdict
    if result is None or result is True:
        return None
    if isinstance(result, Retry):
        return result
    if result is not False:
        logger.warning("the listener returned %r for %r, which counts as RETRY", result, message)
        return Retry(reason=f"the listener returned {type(result).__name__}")
    return RETRY


class Work:
    """A lot in the hands of its taker, message by message.

    Asking for the next message says that the last one is done, unless it carries a verdict that says otherwise.
    """

    __slots__ = ("_at", "_began_ns", "_clock", "_handout", "_messages", "_orderly", "current", "report")

    def __init__(self, lot: Lot, handout: Handout, clock: Clock, *, orderly: bool) -> None:
        self._messages = lot.messages
        self._handout = handout
        self._clock = clock
        self._orderly = orderly
        self._at = 0
        self._began_ns = clock.monotonic_ns()
        self.current: ReceivedMessage | None = None
        self.report = Report(lot.owner)

    def advance(self) -> ReceivedMessage | None:
        """The next message, or None if the lot is over."""
        current = self.current
        if current is not None:
            if current.verdict is None:
                self.report.done.append(current)
            else:
                self._fail(current, current.verdict)
        return self._next()

    def _next(self) -> ReceivedMessage | None:
        at = self._at
        if at >= len(self._messages) or self.report.owner.is_retired:
            self.current = None
            return None
        self._at = at + 1
        message = self.current = self._messages[at]
        message.started_ms = self._handout.now_ms
        if self._handout.on_begin is not None:
            self._handout.on_begin(message)
        return message

    def judge(self, message: ReceivedMessage, result: object) -> None:
        """What the listener returned; it need not be told of None."""
        message.verdict = verdict_of(result, message)

    def failed(self, message: ReceivedMessage, error: BaseException) -> None:
        """Working on the message raised."""
        logger.error("the listener failed for %r", message, exc_info=error)
        message.verdict = Retry(reason=reason_of(error))

    def rewind(self) -> None:
        """The current message was not worked on after all: it is the next one again."""
        if self.current is not None:
            self.current = None
            self._at -= 1

    def end(self) -> Report:
        """What became of the lot; what was not given out goes back, and so does a message that is current."""
        self.rewind()
        self._leave_rest()
        self.report.spent_ms = (self._clock.monotonic_ns() - self._began_ns) / 1e6
        return self.report

    def _fail(self, message: ReceivedMessage, verdict: Retry) -> None:
        message.verdict = None
        self.report.failed.append((message, verdict))
        if self._orderly:
            self._leave_rest()

    def _leave_rest(self) -> None:
        if self._at < len(self._messages):
            self.report.left = self._messages[self._at :]
            self._at = len(self._messages)


class Reports:
    """Reports on their way from threads to the loop, and other calls that must keep their place among them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settle: Settle) -> None:
        self._loop = loop
        self._settle = settle
        self._reports: deque[Report | Callable[[], None]] = deque()
        self._is_due = False
        self._lock = threading.Lock()

    def put(self, report: Report | Callable[[], None]) -> None:
        """From any thread."""
        with self._lock:
            self._reports.append(report)
            if self._is_due:
                return
            self._is_due = True
        try:
            self._loop.call_soon_threadsafe(self.settle_all)
        except RuntimeError:
            # The loop is gone, and with it whoever wanted to know.
            logger.debug("a report came after the consumer was closed")

    def settle_all(self) -> None:
        """In the loop."""
        with self._lock:
            reports, self._reports = self._reports, deque()
            self._is_due = False
        for report in reports:
            if isinstance(report, Report):
                self._settle(report)
            else:
                report()


class ThreadWorkers:
    """Threads that call a listener. Made and closed in the loop."""

    def __init__(
        self,
        listener: Listener,
        handout: ThreadHandout,
        reports: Reports,
        clock: Clock,
        *,
        name: str,
        orderly: bool,
    ) -> None:
        self._listener = listener
        self._handout = handout
        self._reports = reports
        self._clock = clock
        self._name = name
        self._orderly = orderly
        self._threads: list[threading.Thread] = []
        handout.on_short = self._grow

    def is_mine(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    async def close(self) -> None:
        """The handout is closed: threads that are not in the listener end at once, others are left behind."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ENDING_S
        while any(thread.is_alive() for thread in self._threads):
            if loop.time() > deadline:
                logger.warning("a listener of %s is still at work and is left behind", self._name)
                return
            await asyncio.sleep(0.001)

    def _grow(self, missing: int) -> None:
        for number in range(len(self._threads), min(len(self._threads) + missing, self._handout.takers)):
            thread = threading.Thread(target=self._run, name=f"penstock-{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            lot = self._handout.wait()
            if lot is None:
                return
            work = Work(lot, self._handout, self._clock, orderly=self._orderly)
            while (message := work.advance()) is not None:
                try:
                    result = self._listener(message)
                except BaseException as error:
                    # Also what is meant to end the thread: it is ours, and the message would be lost with it.
                    work.failed(message, error)
                else:
                    if result is not None:
                        work.judge(message, result)
            self._reports.put(work.end())


class TaskWorkers:
    """Tasks that await a listener."""

    def __init__(
        self,
        listener: Callable[[ReceivedMessage], Awaitable[Any]],
        handout: LoopHandout,
        settle: Settle,
        clock: Clock,
        *,
        orderly: bool,
    ) -> None:
        self._listener = listener
        self._handout = handout
        self._settle = settle
        self._clock = clock
        self._orderly = orderly
        self._tasks = [asyncio.ensure_future(self._run()) for _ in range(handout.takers)]

    async def close(self) -> None:
        """End the tasks; a listener that is still at work is cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            lot = await self._handout.wait()
            if lot is None:
                return
            work = Work(lot, self._handout, self._clock, orderly=self._orderly)
            while (message := work.advance()) is not None:
                try:
                    result = await self._listener(message)
                except Exception as error:
                    work.failed(message, error)
                else:
                    if result is not None:
                        work.judge(message, result)
            self._settle(work.end())
