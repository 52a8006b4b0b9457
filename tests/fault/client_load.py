"""Producers and consumers at work, each in a thread of its own, all of them writing one history.

    sync      one message at a time, waiting for each
    keyed     the same, all with one queue key
    async     futures, gathered by the client into batches; half of them with a queue key
    batch     batches made by the program

Consumers of the group `workers` iterate and hand some messages back once, so that the retry topic takes part; those
of `audit` listen in order. `stop_sending`, `drain` and the end of the block come in this order.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import penstock
from penstock.client.received import ReceivedMessage
from tests.fault.operation_history import History, Send

WORKERS, AUDIT = "workers", "audit"
ASYNC_AT_ONCE = 16
BATCH = 8
PAUSE_S = 0.01
TROUBLE_PAUSE_S = 0.05
CLOSE_S = 90.0
RETRIED_EVERY = 61


class Load:
    """Clients of one topic. `settings` are options of all clients, `producer_settings` of the producers."""

    def __init__(
        self,
        name_servers: str,
        history: History,
        *,
        kinds: tuple[str, ...] = ("sync", "keyed", "async", "batch"),
        members: int = 2,
        settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        consumer_settings: dict[str, Any] | None = None,
    ) -> None:
        self._name_servers = name_servers
        self.history = history
        self._kinds = kinds
        self._members = members
        self._settings = settings or {}
        self._producer_settings = {"retries": 1, **(producer_settings or {})}
        self._consumer_settings = consumer_settings or {}
        self._stopping = threading.Event()
        self._producing: list[threading.Thread] = []
        self._consuming: list[threading.Thread] = []
        self._consumers: list[penstock.Consumer] = []
        self._failures: list[BaseException] = []

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for number in range(self._members):
                self._begin_worker(f"w{number}")
                self._begin_audit(f"a{number}")
            for kind in self._kinds:
                self._begin_producer(kind)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None and self._failures:
            raise self._failures[0]

    def _end(self) -> None:
        self._stopping.set()
        for consumer in self._consumers:
            consumer.close()
        for thread in [*self._producing, *self._consuming]:
            thread.join(CLOSE_S)
            if thread.is_alive():
                self._failures.append(AssertionError(f"{thread.name} does not end"))

    def stop_sending(self) -> None:
        """Let every producer finish what it began."""
        self._stopping.set()
        for thread in self._producing:
            thread.join(CLOSE_S)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self.check()

    def check(self) -> None:
        """Raise what a thread stumbled over."""
        if self._failures:
            raise self._failures[0]

    def drain(self, ends: Callable[[], dict[int, int]], timeout_s: float = 120.0) -> float:
        """Wait until both groups have seen all there is and are done with what was acknowledged; the seconds."""
        started = time.monotonic()
        wanted = ends()
        for name in (WORKERS, AUDIT):
            while not self.history.is_drained(name, wanted):
                waited = time.monotonic() - started
                assert waited < timeout_s, f"{name} after {waited:.0f} s: {self._missing(name, wanted)}"
                time.sleep(0.05)
        return time.monotonic() - started

    def _missing(self, name: str, ends: dict[int, int]) -> str:
        group = self.history.group(name)
        open_ones = sorted(self.history.acknowledged - group.done)
        seen = {queue: sum(1 for topic, place in list(group.seen) if place[0] == queue) for queue in ends}
        return f"not done: {len(open_ones)} {open_ones[:10]}; seen {seen} of {ends}"

    # -- producers -------------------------------------------------------------------------------------------

    def _begin_producer(self, kind: str) -> None:
        settings = dict(self._producer_settings)
        if kind == "async":
            settings.update(linger_ms=2, batch_size=64)
        producer = penstock.Producer(
            self._name_servers, group=f"producers-{kind}", **self._settings, **settings
        ).start()
        self._producing.append(
            self._thread(f"producer-{kind}", lambda: self._produce(producer, getattr(self, f"_{kind}")))
        )

    def _produce(self, producer: penstock.Producer, once: Callable[[penstock.Producer], list[Send]]) -> None:
        try:
            while not self._stopping.is_set():
                sends = once(producer)
                time.sleep(TROUBLE_PAUSE_S if any(send.error for send in sends) else PAUSE_S)
        finally:
            producer.close()

    def _sync(self, producer: penstock.Producer) -> list[Send]:
        send, message = self.history.begin("sync")
        return [self._wait(send, lambda: producer.send(message))]

    def _keyed(self, producer: penstock.Producer) -> list[Send]:
        send, message = self.history.begin("keyed", "keyed")
        return [self._wait(send, lambda: producer.send(message, queue_key="account-1"))]

    def _wait(self, send: Send, call: Callable[[], penstock.SendResult]) -> Send:
        try:
            self.history.stored(send, call())
        except penstock.PenstockError as error:
            self.history.not_stored(send, error)
        return send

    def _async(self, producer: penstock.Producer) -> list[Send]:
        sends: list[Send] = []
        futures: list[concurrent.futures.Future[penstock.SendResult]] = []
        for number in range(ASYNC_AT_ONCE):
            key = f"account-{number % 4}" if number % 2 else ""
            send, message = self.history.begin("async", f"async {key}" if key else "")
            sends.append(send)
            try:
                future = producer.send_async(message, queue_key=key)
            except penstock.PenstockError as error:
                self.history.not_stored(send, error)
                continue
            future.add_done_callback(lambda done, send=send: self._answered(send, done))
            futures.append(future)
        _, late = concurrent.futures.wait(futures, 120)
        assert not late, f"{len(late)} sends have no end"
        return sends

    def _answered(self, send: Send, done: concurrent.futures.Future[penstock.SendResult]) -> None:
        error = done.exception()
        if error is None:
            self.history.stored(send, done.result())
        else:
            self.history.not_stored(send, error)

    def _batch(self, producer: penstock.Producer) -> list[Send]:
        begun = [self.history.begin("batch") for _ in range(BATCH)]
        sends = [send for send, _ in begun]
        try:
            results = producer.send_batch([message for _, message in begun])
        except penstock.PenstockError as error:
            for send in sends:
                self.history.not_stored(send, error)
        else:
            for send, result in zip(sends, results, strict=True):
                self.history.stored(send, result)
        return sends

    # -- consumers -------------------------------------------------------------------------------------------

    def _begin_worker(self, name: str) -> None:
        consumer = penstock.Consumer(
            self._name_servers, group=WORKERS, start_from="first", **self._settings, **self._consumer_settings
        ).start()
        self._consumers.append(consumer)
        consumer.subscribe(self.history.topic)
        self._consuming.append(self._thread(f"consumer-{name}", lambda: self._consume(consumer, name)))

    def _consume(self, consumer: penstock.Consumer, name: str) -> None:
        for message in consumer:
            again = message.tries == 0 and message.queue_offset % RETRIED_EVERY == 7
            self.history.delivered(WORKERS, name, message, done=not again)
            if again:
                message.retry_later(1)

    def _begin_audit(self, name: str) -> None:
        def listen(message: ReceivedMessage) -> None:
            self.history.delivered(AUDIT, name, message)

        consumer = penstock.Consumer(
            self._name_servers,
            group=AUDIT,
            listener=listen,
            orderly=True,
            start_from="first",
            **self._settings,
            **self._consumer_settings,
        ).start()
        self._consumers.append(consumer)
        consumer.subscribe(self.history.topic)

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread
