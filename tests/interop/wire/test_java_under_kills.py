"""A Java producer at full speed while the broker is killed and restarted: what was acknowledged is there afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.peer import Peer
from tests.interop.wire.penstock_server import Penstock
from tests.waiting import wait_until

FLOOD_S = 6
KILLS = 3


@pytest.mark.feature("sends", "rocketmq-5.3")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(drivers: Drivers, tmp_path: Path) -> None:
    server = Penstock(tmp_path, "store.flush_mode=sync")
    peer = Peer(drivers.get("java-5.3.3"), server)
    try:
        topic, group = peer.create_topic(queues=4), peer.fresh("group")
        consumer = peer.push(topic, group=group)
        acknowledged_path = tmp_path / "acknowledged"
        told: dict[str, int] = {}

        def flood() -> None:
            command = {
                "name": peer.producer(),
                "topic": topic,
                "seconds": FLOOD_S,
                "file": str(acknowledged_path),
            }
            told.update(peer.driver.do("flood", wait_s=60, **command))

        flooding = threading.Thread(target=flood, name="flood")
        flooding.start()
        for _ in range(KILLS):
            time.sleep(FLOOD_S / (KILLS + 1.5))
            server.restart(crash=True)
        flooding.join(60)
        assert not flooding.is_alive()

        acknowledged = acknowledged_path.read_text().split()
        assert len(acknowledged) == told["sent"] > 100
        wait_until(
            lambda: set(acknowledged) <= {message["body"] for message in peer.received(consumer, 0)},
            "everything acknowledged is delivered",
        )
        delivered = peer.received(consumer, 0)
        places = {(message["queueId"], message["queueOffset"]) for message in delivered}
        stored = Counter(message["body"] for message in delivered if message["reconsumeTimes"] == 0)
        by_place = {(m["queueId"], m["queueOffset"]): m["body"] for m in delivered}
        assert all(by_place[m["queueId"], m["queueOffset"]] == m["body"] for m in delivered)
        print(
            f"{told['sent']} acknowledged, {told['failed']} refused or unknown; {len(places)} stored, "
            f"{len(delivered) - len(places)} delivered again, {len(places) - len(stored)} stored twice by retries"
        )
        # Delivered again: at most what the consumer had not committed at each kill (every second, and its cache).
        assert len(delivered) - len(places) <= len(places)
    finally:
        peer.end()
        server.stop()
