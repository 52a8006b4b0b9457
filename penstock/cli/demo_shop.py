"""Producers and consumers of the demonstration, each in threads of its own, against a running node.

Four producers send what was planned, at its pace. Two consumers of the group `billing` work on it: an order for
which payment is out of reach is tried again a second later, a body that nobody can read is tried again twice and
then becomes a dead letter. What happened is counted, for the live line and for the verdict.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from penstock.cli.demo_orders import CLOSING, Plan, closing_body, is_flaky, read_order
from penstock.client.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.received import ReceivedMessage, Retry

ORDERS = "orders"
TOTALS = "order-totals"
POISON = "orders-poison"
GROUP = "billing"
QUEUES = 4
RETRIES = 2
CONSUMERS = 2
AFTER_A_SECOND = Retry(1)
SETTLE_LIMIT_S = 30.0


class Shop:
    """`with` opens the consumers; `open` starts the producers, `close_day` waits until all was sent and billed."""

    def __init__(self, nameserver: str, plan: Plan) -> None:
        self._nameserver, self._plan = nameserver, plan
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._leaving = False
        self._billed: set[str] = set()
        self.sent = 0
        self.failed_sends = 0
        self.retried = 0
        self.worked = 0

    def __enter__(self) -> Self:
        with Admin(self._nameserver) as admin:
            for topic in (ORDERS, TOTALS, POISON):
                admin.create_topic(topic, QUEUES)
            admin.create_group(GROUP, retry_max_times=RETRIES)
        for number in range(CONSUMERS):
            consumer = Consumer(
                self._nameserver,
                GROUP,
                listener=self._bill,
                threads=2,
                start_from="first",
                instance_name=f"till-{number + 1}",
                retries_max=RETRIES,
            )
            self._stack.enter_context(consumer)
            consumer.subscribe(ORDERS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        for thread in self._threads:
            thread.join()
        self._stack.close()

    # -- producers -------------------------------------------------------------------------------------------

    def open(self) -> None:
        for channel in self._plan.messages:
            thread = threading.Thread(target=self._send, args=(channel,), name=f"penstock-demo-{channel}")
            self._threads.append(thread)
            thread.start()

    def _send(self, channel: str) -> None:
        """Send what is due; a producer that falls behind catches up."""
        started = time.monotonic()
        with Producer(self._nameserver, group=f"shop-{channel}", linger_ms=5) as producer:
            for message in self._plan.messages[channel]:
                while (early := started + message.due_s - time.monotonic()) > 0 and not self._leaving:
                    time.sleep(min(early, 0.05))
                if self._leaving:
                    break
                producer.enqueue(
                    ORDERS, message.body, tag=channel, keys=message.key, on_result=self._answered
                )
            producer.flush()

    def _answered(self, result: object, error: BaseException | None) -> None:
        with self._lock:
            if error is None:
                self.sent += 1
            else:
                self.failed_sends += 1

    @property
    def is_selling(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def send_after_hours(self) -> None:
        """Orders of the day before, then the one that closes the windows."""
        with Producer(self._nameserver, group="shop-till") as producer:
            for message in self._plan.after_hours:
                producer.send(ORDERS, message.body, tag=message.channel, keys=message.key)
                self._answered(None, None)
            producer.send(ORDERS, closing_body(), tag=CLOSING, keys=CLOSING)
            self._answered(None, None)

    # -- consumers -------------------------------------------------------------------------------------------

    def _bill(self, message: ReceivedMessage) -> Retry | None:
        with self._lock:
            self.worked += 1
        try:
            order_id = str(read_order(message.body)["order_id"])
        except ValueError:
            with self._lock:
                self.retried += message.tries < RETRIES
            return AFTER_A_SECOND
        if message.tries == 0 and is_flaky(order_id):
            with self._lock:
                self.retried += 1
            return AFTER_A_SECOND
        with self._lock:
            self._billed.add(order_id)
        return None

    @property
    def billed(self) -> int:
        """Orders, each counted once."""
        return len(self._billed)

    def dead_letters(self, admin: Admin) -> int:
        name = f"%DLQ%{GROUP}"
        if name not in admin.list_topics(internal=True):
            return 0
        return admin.describe_topic(name).messages
