"""Replication under access control: without a cluster secret no port, and no start where replicas are needed."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions, BrokerRole
from penstock.client.async_producer import AsyncProducer
from penstock.coordinator.metadata.addresses import metadata_store
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.server import Coordinator
from penstock.errors import OptionError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.testing.embedded import BROKER, STORE, EmbeddedBroker
from tests.support.guarded import ADMIN, SECRET, USERS, caller, guarded, run

CLUSTER_SECRET = "cluster-" + SECRET
BODY = b"only for some"


async def replication_address(server: EmbeddedBroker, keys: dict[str, str] | None) -> str:
    """Where name servers send a slave of the broker."""
    fields = {"brokerName": "test-broker", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster"}
    fields |= {"haServerAddr": "127.0.0.1:2", "brokerId": "1"}
    async with caller(keys) as client:
        answer = await client.call(server.address, Command(RequestCode.REGISTER_BROKER, fields))
    assert answer.code == 0, answer.remark
    return answer.fields["haServerAddr"]


def copied_from(address: str) -> bytes:
    """What the port sends to a peer that reports as a slave with an empty log."""
    host, _, port = address.rpartition(":")
    found = b""
    try:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(struct.pack(">q", 0))
            while BODY not in found:
                piece = connection.recv(65_536)
                if not piece:
                    break
                found += piece
    except ConnectionError:
        pass
    return found


async def in_thread(address: str) -> bytes:
    return await asyncio.to_thread(copied_from, address)


@pytest.mark.abuse("A9")
@pytest.mark.abuse("A12")
def test_no_secret_no_replication_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, AsyncProducer(server.address, **ADMIN) as producer:
            await producer.send("orders", BODY)
            assert await in_thread(await replication_address(server, ADMIN)) == b""

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "no replication port is opened" in caplog.text
    assert "access.cluster_secret" in caplog.text


@pytest.mark.abuse("A12")
def test_with_a_secret_strangers_get_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path, cluster_secret=CLUSTER_SECRET) as server:
            async with AsyncProducer(server.address, **ADMIN) as producer:
                await producer.send("orders", BODY)
            assert await in_thread(await replication_address(server, ADMIN)) == b""

    run(test)


def test_without_access_control_the_port_is_rocketmqs(tmp_path: Path) -> None:
    async def test() -> None:
        server = EmbeddedBroker(tmp_path)
        await server.start()
        try:
            async with AsyncProducer(server.address) as producer:
                await producer.send("orders", BODY)
            assert BODY in await in_thread(await replication_address(server, None))
        finally:
            await server.stop()

    run(test)


def access_of(folder: Path, **options: str) -> NodeAccess:
    (folder / "access.toml").write_text(USERS)
    return NodeAccess.of(AccessOptions(enabled=True, **options), folder, Runtime.system())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (replace(BROKER, coordinators=("127.0.0.1:1",)), "under a coordinator"),
        (replace(BROKER, broker_id=1), "a slave"),
        (replace(BROKER, role=BrokerRole.SLAVE, broker_id=1), "a slave"),
        (replace(BROKER, role=BrokerRole.SYNC_MASTER), "waits for replicas"),
        (replace(BROKER, ha_port=10912), "ha_port"),
    ],
    ids=["coordinated", "slave", "slave by role", "sync master", "replication port"],
)
def test_a_broker_that_replicates_needs_the_secret(
    tmp_path: Path, options: BrokerOptions, reason: str
) -> None:
    def make(access: NodeAccess) -> Broker:
        return Broker(options, STORE, tmp_path / "data", runtime=Runtime.system(), access=access)

    with pytest.raises(OptionError, match=reason) as caught:
        make(access_of(tmp_path))
    assert "access.cluster_secret" in caught.value.message
    assert "PENSTOCK_ACCESS_CLUSTER_SECRET" in caught.value.hint
    make(access_of(tmp_path, cluster_secret=CLUSTER_SECRET))
    make(NodeAccess())


def test_a_coordinator_needs_the_secret(tmp_path: Path) -> None:
    runtime = Runtime.system()

    def make(access: NodeAccess) -> Coordinator:
        store = metadata_store(f"sqlite:{tmp_path / 'metadata.db'}", runtime, session_timeout_ms=5_000)
        return Coordinator(CoordinatorOptions(port=0), store, runtime=runtime, access=access)

    with pytest.raises(OptionError, match=r"access\.cluster_secret"):
        make(access_of(tmp_path))
    make(access_of(tmp_path, cluster_secret=CLUSTER_SECRET))
    make(NodeAccess())
