"""Consumers that a real broker pushes to: in order, filtered, with retries, held for want of room, coming back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from penstock.client.received import DEAD_LETTER, ReceivedMessage, Retry
from penstock.errors import OptionError
from penstock.message import Message
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, numbered, send
from tests.waiting import wait_until

PUSH: dict[str, Any] = {"group": "g", "delivery": "push", "start_from": "first"}


def lag(address: str, group: str = "g") -> int:
    with penstock.Admin(address) as admin:
        return admin.describe_group(group).lag


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.seed("S4-24", "S4-25", "S4-38", "S4-40", "S4-78", "S4-79")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
def test_ten_thousand_messages_in_order() -> None:
    with broker() as address:
        with penstock.Admin(address) as admin:
            admin.create_topic("T", queues=1)
        bodies = numbered(10_000)
        with penstock.Producer(address) as producer:
            for start in range(0, len(bodies), 500):
                producer.send_batch([Message("T", body) for body in bodies[start : start + 500]])
        seen = Seen()
        with penstock.Consumer(address, listener=seen, orderly=True, **PUSH) as consumer:
            consumer.subscribe("T")
            wait_until(lambda: len(seen.messages) >= len(bodies))
            assert seen.bodies == bodies
            with penstock.Admin(address) as admin:
                [client] = [one for found in admin.push_clients().values() for one in found.clients]
                assert client.state == "alive"
                assert {one.state for one in client.subscriptions} == {"sending"}
        assert lag(address) == 0
        with penstock.Admin(address) as admin:
            assert not any(found.clients for found in admin.push_clients().values())


@pytest.mark.feature("push", "fifth-seed")
def test_several_queues_and_consumers_share_them() -> None:
    with broker() as address:
        seen = Seen()
        with penstock.Consumer(address, listener=seen, **PUSH) as one:
            one.subscribe("T")
            send(address, "T", *numbered(40))
            wait_until(lambda: len(seen.messages) == 40)
            # The queues of the second were the first's: it has to leave them before they are pushed to the other.
            with penstock.Consumer(address, listener=seen, **PUSH) as two:
                two.subscribe("T")
                wait_until(
                    lambda: one.assignment and two.assignment and not {*one.assignment} & {*two.assignment}
                )
                send(address, "T", *numbered(40, 40))
                wait_until(lambda: len({*seen.bodies}) == 80)
            send(address, "T", *numbered(10, 80))
            wait_until(lambda: len({*seen.bodies}) == 90)
        assert lag(address) == 0


def test_tags_and_sql_choose_at_the_broker_and_the_lag_follows() -> None:
    with broker() as address:
        send(address, "T", *numbered(5), tag="a")
        send(address, "T", *numbered(50, 5), tag="b")
        for group, expression, sql in (("g", "a", ""), ("sql", "*", "TAGS = 'a'")):
            seen = Seen()
            settings = {**PUSH, "group": group, "persist_interval_ms": 200}
            with penstock.Consumer(address, listener=seen, **settings) as consumer:
                consumer.subscribe("T", expression, sql=sql)
                wait_until(lambda seen=seen: sorted(seen.bodies) == sorted(numbered(5)))  # type: ignore[misc]
                # What nobody wanted was not sent, and counts as done.
                wait_until(lambda group=group: lag(address, group) == 0)  # type: ignore[misc]


@pytest.mark.feature("retries", "fifth-seed")
def test_failures_are_retried_and_end_among_the_dead_letters() -> None:
    with broker(store=QUICK) as address:
        send(address, "T", b"0", b"1")

        def outcome(message: ReceivedMessage) -> object:
            if message.body == b"0":
                return DEAD_LETTER
            return Retry(1) if message.tries < 2 else None

        seen = Seen(outcome)
        with penstock.Consumer(address, listener=seen, **PUSH) as consumer:
            consumer.subscribe("T")
            wait_until(lambda: seen.bodies.count(b"1") == 3)
        with penstock.Consumer(address, group="graves", start_from="first") as graves:
            graves.subscribe("%DLQ%g")
            assert [message.body for message in graves.poll(timeout_s=60)] == [b"0"]


@pytest.mark.abuse("A15")
def test_a_slow_consumer_is_sent_no_more_than_it_has_room_for() -> None:
    with broker() as address:
        with penstock.Admin(address) as admin:
            admin.create_topic("T", queues=1)
        send(address, "T", *numbered(300))
        gate = threading.Event()
        seen = Seen(lambda message: gate.wait(120) and None)
        settings = {**PUSH, "threads": 1, "queue_messages_max": 20}
        with penstock.Consumer(address, listener=seen, **settings) as consumer:
            consumer.subscribe("T")
            with penstock.Admin(address) as admin:

                def states() -> set[str]:
                    found = admin.push_clients("g").values()
                    tasks = [task for one in found for client in one.clients for task in client.subscriptions]
                    return {task.state for task in tasks if task.topic == "T"}

                wait_until(lambda: states() == {"held"})
                [owner] = [one for one in consumer.core.holdings.owners if one.queue.topic == "T"]
                # The window is as large as the room: what was on its way comes on top of it once.
                assert 20 <= len(owner) <= 40
                gate.set()
                wait_until(lambda: len(seen.messages) == 300)
                wait_until(lambda: states() == {"sending"})
        assert seen.bodies == numbered(300)


def test_pausing_seeking_and_resetting() -> None:
    with broker() as address:
        with penstock.Admin(address) as admin:
            admin.create_topic("T", queues=1)
        send(address, "T", *numbered(10))
        seen = Seen()
        with penstock.Consumer(address, listener=seen, **PUSH) as consumer:
            consumer.subscribe("T")
            wait_until(lambda: len(seen.messages) == 10)
            [queue] = [one for one in consumer.assignment if one.topic == "T"]
            consumer.pause([queue])
            send(address, "T", b"paused")
            consumer.resume()
            wait_until(lambda: seen.bodies[10:] == [b"paused"])
            consumer.seek(queue, 5)
            wait_until(lambda: seen.bodies[11:] == [*numbered(5, 5), b"paused"])
            with penstock.Admin(address) as admin:
                admin.reset_offsets("g", "T", "first")
            wait_until(lambda: seen.bodies[17:] == [*numbered(10), b"paused"])


def test_assigned_queues_are_pushed_too() -> None:
    with broker() as address:
        send(address, "T", *numbered(8))
        with penstock.Consumer(address, **PUSH) as consumer:
            consumer.assign(consumer.queues("T"))
            found: list[bytes] = []
            while len(found) < 8:
                found += [message.body for message in consumer.poll(timeout_s=60)]
            assert sorted(found) == numbered(8)


def test_what_does_not_go_together() -> None:
    with pytest.raises(OptionError, match="broadcasting"):
        penstock.Consumer("127.0.0.1:1", group="g", delivery="push", model="broadcasting")
    with pytest.raises(OptionError, match="delivery"):
        penstock.Consumer("127.0.0.1:1", group="g", delivery="shove")
