"""The table of waiting pulls by itself: threads that announce, slots of time, and nothing left behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from penstock._hot.queues import QueueState
from penstock.broker.long_polling import HeldPull, LongPolling
from penstock.broker.options import BrokerOptions
from penstock.runtime import Clock, SystemClock
from penstock.testing import ManualClock
from tests.support.running_broker import run
from tests.waiting import turns, until


def connection() -> SimpleNamespace:
    """Served at once: its turns are tested where they are made."""
    return SimpleNamespace(attributes={}, is_open=True, submit=lambda job: job())


class Table:
    """A table whose pulls are names, answered when a test says so."""

    def __init__(self, clock: Clock | None = None, **options: int) -> None:
        self.tried: list[tuple[str, bool]] = []
        self.ready: set[str] = set()
        self.polling: LongPolling[str] = LongPolling(
            BrokerOptions(**options),  # type: ignore[arg-type]
            clock or SystemClock(),
            self._retry,
        )
        self.polling.start()

    def _retry(self, held: HeldPull[str], is_final: bool) -> bool:
        self.tried.append((held.pull, is_final))
        return is_final or held.pull in self.ready

    def hold(
        self, name: str, topic: str = "T", queue: int = 0, wait_ms: int = 60_000, **more: object
    ) -> None:
        self.polling.hold(more.get("connection") or connection(), topic, queue, name, wait_ms)  # type: ignore[arg-type]


def test_an_arrival_announced_by_another_thread_wakes_the_loop() -> None:
    async def scenario() -> None:
        table = Table()
        table.hold("a")
        table.hold("b", queue=1)
        table.ready = {"a", "b"}
        queues = [QueueState(b"T", 0), QueueState(b"Other", 1)]
        thread = threading.Thread(target=table.polling.on_arrival, args=(queues,))
        thread.start()
        thread.join()
        await until(lambda: table.tried)
        assert table.tried == [("a", False)]
        assert len(table.polling) == 1
        table.polling.stop()
        assert table.tried == [("a", False), ("b", True)]
        assert len(table.polling) == 0

    run(scenario)


def test_many_announcements_are_one_try() -> None:
    async def scenario() -> None:
        table = Table()
        table.hold("a")
        for _ in range(100):
            table.polling.on_arrival([QueueState(b"T", 0)])
        table.polling.wake("T", 0)
        await turns()
        assert table.tried == [("a", False)]
        table.polling.stop()

    run(scenario)


def test_deadlines_and_the_regular_check() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        table = Table(clock, long_poll_check_interval_ms=150)
        table.hold("long", wait_ms=60_000)
        table.hold("short", queue=1, wait_ms=0)
        table.hold("odd", queue=2, wait_ms=-5)
        clock.advance(200)
        await until(lambda: ("long", False) in table.tried)
        assert [name for name, is_final in table.tried if is_final] == ["short", "odd"]
        table.ready = {"long"}
        clock.advance(200)
        await until(lambda: len(table.polling) == 0)
        await until(lambda: table.polling._timer is None)  # nothing held, nothing runs
        table.hold("again", wait_ms=100)
        clock.advance(300)
        await until(lambda: table.tried[-1] == ("again", True))
        table.polling.stop()

    run(scenario)


def test_a_connection_that_goes_is_forgotten_everywhere() -> None:
    async def scenario() -> None:
        table = Table()
        gone, stays = connection(), connection()
        for queue in range(3):
            table.hold("g", queue=queue, connection=gone)
        table.hold("s", connection=stays)
        assert table.polling.held_by(gone) == 3  # type: ignore[arg-type]
        table.polling.drop_connection(gone)  # type: ignore[arg-type]
        assert (table.polling.held_by(gone), len(table.polling)) == (0, 1)  # type: ignore[arg-type]
        assert [table.polling.held_for("T", queue) for queue in range(3)] == [1, 0, 0]
        assert table.tried == []
        table.polling.stop()
        assert not table.polling._slots

    run(scenario)
