"""Subscriptions of the fifth seed with real processes: an owner is killed, and so is the broker of the keys."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support.broker_set import broker_set
from tests.waiting import until_done, wait_until

KEYS = [f"k{number}" for number in range(24)]
# A consumer in a process of its own; each line is a message that it got.
OWNER = """
import sys
import penstock
names, coordinator = sys.argv[1:]
with penstock.Consumer(
    names, balance="coordinator", coordinators=coordinator, subscription_mode="point_to_point", binding="ring",
    start_from="first", coordinator_interval_ms=300, persist_interval_ms=100,
) as consumer:
    consumer.subscribe("orders")
    print(consumer.group, flush=True)
    for message in consumer:
        print(message.body.decode(), flush=True)
"""


def read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    lines.extend(line.strip() for line in process.stdout)


@pytest.mark.feature("partition-by-key", "fifth-seed")
@pytest.mark.slow
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I10")
@pytest.mark.seed("S4-15")
@pytest.mark.seed("S4-17")
@pytest.mark.seed("S4-31")
@pytest.mark.seed("S4-34")
@pytest.mark.seed("S4-42")
def test_an_owner_and_the_broker_of_a_key_are_killed(tmp_path: Path) -> None:
    """A consumer is a process here and a thread there; both name no group and are in the topic's."""
    with broker_set(tmp_path, "--set", "broker.partition_lease_ms=2000", count=2) as found:
        names, coordinator = found.names.address, found.coordinator.address
        with penstock.Admin(names) as admin, penstock.Producer(names, partition_by_key=True) as producer:
            # The master is elected, and perhaps not yet known to the name server.
            until_done(lambda: admin.create_topic("orders", queues=12))
            for key in KEYS:
                producer.send("orders", f"1 {key}".encode(), keys=key)
            lines: list[str] = []
            mine: list[str] = []
            process = subprocess.Popen(
                [sys.executable, "-c", OWNER, names, coordinator], stdout=subprocess.PIPE, text=True
            )
            reader = threading.Thread(target=read, args=(process, lines))
            reader.start()
            try:
                wait_until(
                    lambda: len(lines) >= 1 + len(KEYS), lambda: f"all for the owner, who got {len(lines)}"
                )
                assert lines[0] == "orders-point_to_point"
                settings: Any = {"balance": "coordinator", "coordinators": coordinator, "binding": "ring"}
                with penstock.Consumer(
                    names,
                    listener=lambda message: mine.append(message.body.decode()),
                    subscription_mode="point_to_point",
                    start_from="first",
                    coordinator_interval_ms=300,
                    **settings,
                ) as consumer:
                    consumer.subscribe("orders")
                    assert consumer.group == lines[0]
                    wait_until(
                        lambda: any(one.topic == "orders" for one in consumer.assignment),
                        "a queue that was moved",
                    )
                    process.kill()
                    found.master().kill()
                    for key in KEYS:
                        producer.send("orders", f"2 {key}".encode(), keys=key)
                    wait_until(
                        lambda: {f"2 {key}" for key in KEYS} <= set(mine),
                        lambda: f"the second of each key: {sorted(mine)}",
                    )
                    # Also those that no key leads to, which may come later.
                    wait_until(
                        lambda: sum(one.topic == "orders" for one in consumer.assignment) == 12, "all queues"
                    )
            finally:
                process.kill()
                process.wait()
                reader.join()
                assert process.stdout is not None
                process.stdout.close()
            for key in KEYS:
                values = admin.read_by_key("orders", key, whole=True)
                assert [one.body for one in values.messages] == [f"1 {key}".encode(), f"2 {key}".encode()]
                latest = admin.read_by_key("orders", key).latest
                assert latest is not None
                assert latest.body == f"2 {key}".encode()
