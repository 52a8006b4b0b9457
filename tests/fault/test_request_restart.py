"""A broker is killed between a request and its reply: both clients are back before the reply is, and it arrives."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from tests.support.server_processes import cluster, wait_known
from tests.waiting import wait_until


@pytest.mark.fault("F1")
@pytest.mark.slow
def test_a_request_outlives_its_broker(tmp_path: Path) -> None:
    taken, restarted = threading.Event(), threading.Event()
    failures: list[penstock.PenstockError] = []

    with (
        cluster(tmp_path) as (names, node),
        penstock.Producer(names.address, group="repliers", reconnect_interval_ms=100) as replier,
        penstock.Producer(
            names.address, group="askers", instance_name="asker", reconnect_interval_ms=100
        ) as asker,
    ):

        def reply(message: ReceivedMessage) -> None:
            taken.set()
            assert restarted.wait(90)

            def is_replied() -> bool:
                try:
                    replier.reply(message, b"pong")
                except penstock.PenstockError as error:
                    failures.append(error)
                    return False
                return True

            wait_until(is_replied, "the reply")

        with penstock.Consumer(
            names.address, group="g", start_from="first", listener=reply, reconnect_interval_ms=100
        ) as consumer:
            consumer.subscribe("T")
            found: list[bytes] = []
            asking = threading.Thread(
                target=lambda: found.append(asker.request("T", b"ping", timeout_ms=90_000).body)
            )
            asking.start()
            assert taken.wait(90)
            node.kill()
            node.start()
            wait_known(names.address)
            restarted.set()
            asking.join(90)
    print(f"{len(failures)} replies were refused before one arrived")
    assert found == [b"pong"]
