"""The VIP port, two below a broker's port: clients with `vipChannelEnabled` send there. RocketMQ 4.9.8's client at
both servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.driver import DriverError
from tests.interop.wire.peer import Peer, Server, bodies
from tests.interop.wire.penstock_server import Penstock
from tests.interop.wire.rocketmq_server import RocketMQ
from tests.interop.wire.servers import or_skip

CLIENT = "java-4.9.8"
_ESTABLISHED = "01"


def connections(port: int) -> int:
    """How many connections of this machine end at a local port."""
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count


@pytest.mark.feature("sends", "rocketmq-4.9")
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(RocketMQ, id="rocketmq"),
        # Its default; other tests have it closed, because ports are few.
        pytest.param(lambda path: Penstock(path, "broker.vip_listener=true"), id="penstock"),
    ],
)
def test_an_old_client_sends_to_the_vip_port(
    start: Callable[[Path], Server], drivers: Drivers, tmp_path: Path
) -> None:
    running = or_skip(lambda: start(tmp_path), None)
    peer = Peer(drivers.get(CLIENT), running)
    vip_port = int(running.broker.rpartition(":")[2]) - 2
    try:
        assert connections(vip_port) == 0
        name, topic = peer.fresh("producer"), peer.fresh("topic")
        at = {"nameserver": running.nameserver, "vip": True}
        peer.driver.do("producer", name=name, group=f"group-of-{name}", **at)
        sent = {"name": name, "topic": topic, "how": "sync"}
        assert len(peer.driver.do("send", messages=[{"body": "a"}, {"body": "b"}], **sent)["results"]) == 2
        assert connections(vip_port) == 1
        consumer = peer.push(topic, vip=True)
        assert bodies(peer.received(consumer, 2)) == ["a", "b"]
    finally:
        peer.end()
        running.stop()


def test_without_a_vip_port_such_a_client_cannot_send(drivers: Drivers, tmp_path: Path) -> None:
    """So the test above does send there."""
    running = Penstock(tmp_path, "broker.vip_listener=false")
    peer = Peer(drivers.get(CLIENT), running)
    try:
        name = peer.fresh("producer")
        peer.driver.do(
            "producer", name=name, group=f"group-of-{name}", nameserver=running.nameserver, vip=True
        )
        with pytest.raises(DriverError, match="still failed"):
            peer.driver.do("send", name=name, topic=peer.fresh("topic"), how="sync", messages=[{"body": "a"}])
    finally:
        peer.end()
        running.stop()
