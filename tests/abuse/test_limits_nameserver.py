"""Limits of a name server, each over a socket: over it a request is refused with its code, and the routes stay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.nameserver import NameServer
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.limits import limit
from tests.abuse.mutation import BOMB
from tests.support.nameserver_brokers import topics
from tests.support.nameserver_wire import Peer, name_server, over_sockets, peer


@limit("nameserver.clusters_max", "nameserver.brokers_max")
@pytest.mark.abuse("A14")
def test_clusters_and_brokers(tmp_path: Path) -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        codes = [
            (
                await broker.register(cluster_name=f"c{n}", broker_name=f"b{n}", broker_addr=f"10.0.0.{n}:1")
            ).code
            for n in range(10)
        ]
        assert codes == [0] * 3 + [1] * 7
        codes = [
            (await broker.register(cluster_name="c0", broker_name=f"d{n}", broker_addr=f"10.0.1.{n}:1")).code
            for n in range(10)
        ]
        assert codes == [0] * 2 + [1] * 8
        assert len(server.routes.live) == 5
        again = await broker.register(cluster_name="c0", broker_name="b0", broker_addr="10.0.0.0:1")
        assert again.code == 0, "who is there stays"

    over_sockets(test, clusters_max=3, brokers_max=5)


@limit("nameserver.topics_max", "nameserver.topic_queues_max")
@pytest.mark.abuse("A14")
def test_topics_and_their_queues() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register(tables=topics("A", "B", "C"))).code == 0
        refused = await broker.register(
            broker_name="other", broker_addr="10.0.0.2:1", tables=topics(*(f"T{n}" for n in range(10)))
        )
        assert refused.code == 1
        known = set(server.routes.queues)
        assert {"A", "B", "C"} <= known
        assert len(known) <= 6
        assert not {name for name in known if name.startswith("T") and name[1:].isdigit()}
        body = json.dumps(
            {"queueDatas": [{"brokerName": "broker-a", "readQueueNums": 101, "perm": 6}]}
        ).encode()
        assert (await broker.ask(217, body, topic="Wide")).code == 29

    over_sockets(test, topics_max=6, topic_queues_max=100)


@limit("nameserver.registration_bytes_max")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A14")
def test_a_registration(tmp_path: Path) -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        many = topics(*(f"T{n}" for n in range(2_000)))
        assert (await broker.register(tables=many)).code == 1
        assert (await broker.register(tables=many, is_compressed=True)).code == 1
        assert (await broker.register(body=BOMB, is_compressed=True)).code == 1
        assert not server.routes.live
        assert (await broker.register()).code == 0

    over_sockets(test, registration_bytes_max=50_000)


@limit("nameserver.kv_entries_max", "nameserver.kv_value_chars_max", "nameserver.kv_chars_max")
@pytest.mark.abuse("A14")
def test_the_kv_config(tmp_path: Path) -> None:
    async def test(server: NameServer, admin: Peer) -> None:
        put = [(await admin.ask(100, namespace="n", key=f"k{n}", value="v")).code for n in range(20)]
        assert put == [0] * 10 + [1] * 10
        assert (await admin.ask(100, namespace="n", key="k0", value="x" * 101)).code == 29
        codes = [(await admin.ask(100, namespace="n", key=f"k{n}", value="x" * 100)).code for n in range(10)]
        assert codes == [0] * 4 + [1] * 6, "together they may be no more than kv_chars_max"

    over_sockets(
        test,
        kv_entries_max=10,
        kv_value_chars_max=100,
        kv_chars_max=480,
        kv_config_path=str(tmp_path / "kv.json"),
    )


@pytest.mark.abuse("A14")
def test_namespaces_that_were_emptied_do_not_pile_up(tmp_path: Path) -> None:
    async def test(server: NameServer, admin: Peer) -> None:
        for number in range(40):
            place = {"namespace": f"n{number}", "key": "k"}
            assert (await admin.ask(100, **place, value="v")).code == 0
            assert (await admin.ask(102, **place)).code == 0
        assert len(server._kv._table) <= 11
        assert len(json.loads((tmp_path / "kv.json").read_text())["configTable"]) <= 11

    over_sockets(test, kv_entries_max=10, kv_config_path=str(tmp_path / "kv.json"))


@limit("nameserver.broker_expiry_max_ms")
@pytest.mark.abuse("A14")
def test_the_longest_time_that_a_broker_may_be_silent() -> None:
    async def run() -> None:
        clock = ManualClock()
        options = {"broker_expiry_ms": 1_000, "broker_expiry_max_ms": 5_000}
        async with name_server(Runtime(clock=clock), **options) as server:
            for asked in (2**63 - 1, 10_000):
                async with peer(server) as broker:
                    assert (await broker.register(heartbeat_timeout_millis=asked)).code == 0
                    clock.advance(5_001)
                    assert len(server.housekeeping.scan()) == 1

    asyncio.run(run())
