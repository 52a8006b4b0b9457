"""Keys at a real RocketMQ broker and at Penstock's: values by key at both, subscriptions by key refused by one."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import ClientError
from tests.interop.wire.peer import Peer, Server
from tests.interop.wire.rocketmq_server import RocketMQ
from tests.interop.wire.test_python_clients import QUICK, Listener
from tests.waiting import wait_until


@pytest.fixture
def topic(server: Server) -> str:
    """Six values of three keys."""
    name = Peer.fresh("py-keys")
    with penstock.Admin(server.nameserver) as admin:
        admin.create_topic(name, 4)
        with penstock.Producer(server.nameserver, partition_by_key=True) as producer:
            for number in range(6):
                producer.send(name, b"%d" % number, keys=f"k{number % 3}")
    return name


@pytest.mark.seed("S4-19")
def test_the_value_of_a_key_is_found_in_its_partition(server: Server, topic: str) -> None:
    with penstock.Admin(server.nameserver) as admin:
        for number in range(3):
            # RocketMQ's index follows its log a little later.
            wait_until(
                lambda key=f"k{number}": len(admin.read_by_key(topic, key).messages) == 2,  # type: ignore[misc]
                f"values of k{number}",
            )
            found = admin.read_by_key(topic, f"k{number}")
            assert [one.body for one in found.messages] == [b"%d" % number, b"%d" % (number + 3)]
            # RocketMQ sends everything for an expression that it cannot read; the client chooses.
            whole = admin.read_by_key(topic, f"k{number}", whole=True, limit=2)
            assert [one.body for one in whole.messages] == [b"%d" % number, b"%d" % (number + 3)]


@pytest.mark.seed("S4-51")
def test_a_subscription_by_keys_is_served_or_refused_at_once(server: Server, topic: str) -> None:
    listener = Listener()
    group = Peer.fresh("py-keyed")
    with penstock.Consumer(
        server.nameserver, group, listener=listener, start_from="first", **QUICK
    ) as consumer:
        if isinstance(server, RocketMQ):
            with pytest.raises(ClientError, match=r"cannot be read by keys.*look at message\.keys"):
                consumer.subscribe(topic, keys=["k1"])
        else:
            consumer.subscribe(topic, keys=["k1"])
            listener.await_count(2)
            assert listener.bodies() == [b"1", b"4"]
