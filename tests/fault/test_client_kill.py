"""Clients are killed, too: their work goes to those who are left, and comes again where nobody knows if it was done.

Figures are printed: `pytest -s`, or `-rP` after the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.client.admin_results import TopicDescription
from tests.fault.load_scenarios import QUEUES, TOPIC, new_history
from tests.support.server_processes import ROOT, cluster
from tests.waiting import wait_until

MESSAGES = 600


@contextmanager
def command(*words: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `penstock` command that writes to a file, killed at the end at the latest."""
    with open(output, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *words], stdin=subprocess.PIPE, stdout=out, cwd=ROOT
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def held(consumer: penstock.Consumer) -> int:
    """Queues of the topic that a consumer has, its retry queue left aside."""
    return sum(queue.topic == TOPIC for queue in consumer.assignment)


def printed(output: Path) -> list[str]:
    """Bodies of the messages that a `penstock consume --json` has printed; a cut last line does not count."""
    lines = output.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["body"] for line in lines]


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I10")
@pytest.mark.slow
def test_the_queues_of_a_killed_consumer_go_to_the_others(tmp_path: Path) -> None:
    output = tmp_path / "printed"
    seen: list[str] = []
    with cluster(tmp_path) as (names, _):
        history = new_history(names.address)
        words = ("consume", history.topic, "--group", "g", "--follow", "--json")
        with (
            penstock.Producer(names.address) as producer,
            penstock.Consumer(
                names.address,
                group="g",
                start_from="first",
                listener=lambda message: seen.append(message.body.decode()),
                threads=1,
            ) as consumer,
            command(*words, "--nameserver", names.address, output=output) as other,
        ):
            consumer.subscribe(history.topic)
            wait_until(lambda: held(consumer) == QUEUES // 2, "half of the queues")
            sending = threading.Thread(target=send_all, args=(producer, history.topic))
            sending.start()
            wait_until(lambda: len(printed(output)) > 50 and len(seen) > 50, "messages in both hands")
            other.kill()
            other.wait()
            killed = time.monotonic()
            wait_until(lambda: held(consumer) == QUEUES, "all queues")
            taken_over = time.monotonic() - killed
            sending.join()
            everything = {str(number) for number in range(MESSAGES)}
            wait_until(lambda: {*seen, *printed(output)} >= everything, "every message")
    again = len(seen) + len(printed(output)) - MESSAGES
    print(
        f"\n[a consumer of two killed] its queues were taken over after {taken_over:.2f} s; {again} of",
        end="",
    )
    print(f" {MESSAGES} messages were seen by both")
    assert again < MESSAGES // 2


def send_all(producer: penstock.Producer, topic: str) -> None:
    for number in range(MESSAGES):
        producer.send(topic, str(number).encode())
        time.sleep(0.002)


def settled(describe: Callable[[], TopicDescription]) -> TopicDescription:
    """What is the same ten times in a row."""
    found, same = describe(), 0
    while same < 10:
        time.sleep(0.05)
        before, found = found, describe()
        same = same + 1 if found.messages == before.messages else 0
    return found


@pytest.mark.fault("F1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_a_killed_producer_leaves_whole_messages_only(tmp_path: Path) -> None:
    """`penstock produce` is killed in the middle of its input."""
    lines = [f"line {number} {'x' * (number % 500)}" for number in range(50_000)]
    with cluster(tmp_path) as (names, _):
        history = new_history(names.address)
        words = ("produce", history.topic, "--batch", "16", "--nameserver", names.address)
        with command(*words, output=tmp_path / "out") as process:
            assert process.stdin is not None

            def feed() -> None:
                try:
                    process.stdin.write("\n".join(lines).encode())  # type: ignore[union-attr]
                except BrokenPipeError:
                    pass  # as planned

            feeding = threading.Thread(target=feed)
            feeding.start()
            with penstock.Admin(names.address, call_timeout_ms=60_000) as admin:
                wait_until(lambda: admin.describe_topic(history.topic).messages > 200, "some messages")
                process.kill()
                process.wait()
                feeding.join()
                # What lay in the broker's sockets when the producer died is stored by now, or soon.
                described = settled(lambda: admin.describe_topic(history.topic))
        bodies: list[str] = []
        with penstock.Consumer(names.address, group="g", start_from="first") as consumer:
            consumer.subscribe(history.topic)
            for message in consumer:
                bodies.append(message.body.decode())
                if len(bodies) == described.messages:
                    break
    sent = set(lines)
    assert len(set(bodies)) == len(bodies)
    assert set(bodies) <= sent
    print(f"\n[a producer killed] {len(bodies)} of its {len(lines)} lines are there, each of them whole")
