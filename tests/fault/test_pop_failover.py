"""The master of a set dies while messages are popped: the next one knows what was handed out, and what was done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from penstock.metadata.request_mode_table import RequestMode, RequestModeConfig
from penstock.protocol.bodies.pop import SetMessageRequestModeRequestBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.support.broker_set import BrokerSet, broker_set, raw
from tests.waiting import DEADLINE_S, until_done

TOPIC, GROUP = "orders", "poppers"
COUNT = 40
# Longer than it takes until another broker is master, also on a busy machine.
INVISIBLE_MS = 16_000


def popped(consumer: penstock.Consumer, count: int, timeout_s: float = DEADLINE_S) -> list[ReceivedMessage]:
    deadline = time.monotonic() + timeout_s
    found: list[ReceivedMessage] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        found += consumer.pop(count - len(found), timeout_s=1.0)
    return found


def prepare(found: BrokerSet) -> None:
    with penstock.Admin(found.names.address) as admin:
        until_done(lambda: admin.create_topic(TOPIC, queues=4))
        admin.create_group(GROUP)
    found.wait(3)
    with penstock.Producer(found.names.address, send_timeout_ms=60_000) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"%02d" % number)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I13")
def test_what_was_popped_and_acknowledged_outlives_the_master(tmp_path: Path) -> None:
    with broker_set(tmp_path) as found:
        prepare(found)
        mode = SetMessageRequestModeRequestBody(TOPIC, GROUP, RequestModeConfig(RequestMode.POP, 0))
        command = Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode.encode())
        assert raw(found.master().address, command).code == 0
        names = found.names.address
        with penstock.Consumer(
            names, GROUP, delivery="pop", start_from="first", invisible_ms=INVISIBLE_MS, pull_retry_ms=200
        ) as consumer:
            consumer.subscribe(TOPIC)
            first = popped(consumer, COUNT)
            over = time.monotonic() + INVISIBLE_MS / 1_000 + 1
            bodies = {message.body for message in first}
            assert len(bodies) == COUNT
            kept, done = first[: COUNT // 2], first[COUNT // 2 :]
            for message in done:
                consumer.ack(message)
            master, epoch = found.leader()
            master.kill()
            assert found.wait(2, epoch=epoch + 1).master_epoch > epoch
            # What was in hand when the master died is acknowledged to the next one.
            for message in kept[:5]:
                consumer.ack(message)
            for message in kept[5:]:
                consumer.retry(message, delay_level=1)
            again = popped(consumer, len(kept) - 5)
            assert {message.body for message in again} == {message.body for message in kept[5:]}
            assert {message.tries for message in again} == {1}
            for message in again:
                consumer.ack(message)
            # Nothing that was acknowledged comes again, also after its time.
            assert consumer.pop(timeout_s=max(over - time.monotonic(), 0.5)) == []
        answer = raw(found.master().address, Command(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        assert json.loads(answer.body)["messageRequestModeMap"][TOPIC][GROUP]["mode"] == "POP"


@pytest.mark.fault("F1")
@pytest.mark.invariant("I3")
def test_the_next_master_holds_queues_that_are_popped_in_order(tmp_path: Path) -> None:
    """Who has a lot goes on with it; nobody else gets the queue, and what comes next is in order."""
    with broker_set(tmp_path) as found:
        prepare(found)
        settings = {"delivery": "pop", "orderly": True, "start_from": "first", "pull_retry_ms": 200}
        with penstock.Consumer(found.names.address, GROUP, invisible_ms=30_000, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(TOPIC)
            seen: dict[int, list[int]] = {}

            def work(until: int) -> None:
                deadline = time.monotonic() + DEADLINE_S
                while sum(map(len, seen.values())) < until:
                    assert time.monotonic() < deadline, seen
                    for message in consumer.pop(timeout_s=1.0):
                        seen.setdefault(message.queue.queue_id, []).append(int(message.body))
                        consumer.ack(message)

            work(8)
            before = {queue: len(numbers) for queue, numbers in seen.items()}
            master, epoch = found.leader()
            master.kill()
            assert found.wait(2, epoch=epoch + 1).master_epoch > epoch
            work(COUNT)
        # Every queue in the order in which it was sent to, and nothing of what was acknowledged before again.
        for queue, numbers in seen.items():
            assert numbers == sorted(set(numbers)), (queue, before)
        assert sorted(number for numbers in seen.values() for number in numbers) == list(range(COUNT))
