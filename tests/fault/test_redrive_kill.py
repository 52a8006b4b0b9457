"""`penstock dlq redrive` is killed, and its broker: given again, each dead letter has been sent once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.redrive_marks import MARKS_TOPIC
from tests.fault.test_client_kill import command
from tests.support.server_processes import cluster, wait_known
from tests.waiting import PATIENT_SENDS, wait_until

COUNT = 60


def dead_letters(address: str) -> int:
    with penstock.Admin(address, call_timeout_ms=60_000) as admin:
        return sum(summary.count for summary in admin.dead_letters.groups("g"))


def make_dead_letters(address: str) -> None:
    with (
        penstock.Consumer(
            address, group="g", start_from="first", listener=lambda message: Retry(-1, "no use")
        ) as consumer,
        penstock.Producer(address, **PATIENT_SENDS) as producer,
    ):
        consumer.subscribe("T")
        for number in range(COUNT):
            producer.send("T", b"order %d" % number)
        wait_until(lambda: dead_letters(address) == COUNT, "all are dead")


def copies(address: str) -> list[ReceivedMessage]:
    with penstock.Admin(address) as admin:
        return [
            message
            for queue in admin.queues("T")
            for message in admin.read_messages(queue, 0, limit=10_000)
            if "PENSTOCK_REDRIVEN_FROM" in message.properties
        ]


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.slow
@pytest.mark.parametrize("victims", ["command", "broker", "both"])
def test_killed_in_the_middle_and_given_again(tmp_path: Path, victims: str) -> None:
    words = ("dlq", "redrive", "g", "--all", "--json")
    with cluster(tmp_path, "--set", "broker.queue_lock_expiry_ms=1000") as (names, node):
        make_dead_letters(names.address)
        first = tmp_path / "first"
        slowly = ("--rate", "20", "--timeout", "1000")
        with command(*words, *slowly, "--nameserver", names.address, output=first) as process:
            wait_until(lambda: first.read_bytes().count(b"\n") >= 4, "some were sent")
            time.sleep(0.05)  # into the middle of a step
            if victims in ("command", "both"):
                process.kill()
            if victims in ("broker", "both"):
                node.kill()
            process.wait(90)
        told = first.read_bytes().count(b'"sent"')
        assert told < COUNT
        if victims != "command":
            node.start()
            wait_known(names.address)
        second = tmp_path / "second"
        patient = ("--wait", "60", "--timeout", "60000")
        with command(*words, *patient, "--nameserver", names.address, output=second) as process:
            assert process.wait(90) == 0, second.read_text()
        assert second.read_bytes().count(b"\n") == COUNT
        assert b'"failed"' not in second.read_bytes()
        # What was told as sent before is not sent again, and nothing is missing.
        assert second.read_bytes().count(b'"skipped"') >= told
        bodies = Counter(message.body for message in copies(names.address))
        assert bodies == Counter({b"order %d" % number: 1 for number in range(COUNT)})
        with penstock.Admin(names.address) as admin:
            [summary] = admin.dead_letters.groups("g")
            assert (summary.count, summary.redriven) == (COUNT, COUNT)
            assert admin.describe_topic(MARKS_TOPIC).messages > 0
