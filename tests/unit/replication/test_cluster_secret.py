"""Replication behind the cluster's secret: members copy, strangers get nothing, and classic stays classic without."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.runtime import Runtime
from penstock.security import cluster_runtime
from penstock.security.cluster_network import ClusterNetwork
from tests.support.store_pair import Node, bodies
from tests.waiting import until

SECRET = "a long secret of this cluster"


class SecuredNode(Node):
    """A node whose replication goes over another network."""

    def __init__(self, path: Path, node_id: int, secret: str) -> None:
        network = cluster_runtime(Runtime.system(), secret, None, None)
        super().__init__(path, node_id, classic=True, network=network)


def pair(tmp_path: Path, master_secret: str, slave_secret: str) -> tuple[SecuredNode, SecuredNode]:
    return SecuredNode(tmp_path / "master", 0, master_secret), SecuredNode(
        tmp_path / "slave", 1, slave_secret
    )


async def start(master: SecuredNode, slave: SecuredNode) -> None:
    await master.start()
    await master.lead()
    master.append(0, 50)
    await slave.start()
    await slave.follow(master.address)


async def stop(*nodes: SecuredNode) -> None:
    for node in nodes:
        await node.stop()


def test_members_copy_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        master, slave = pair(tmp_path, SECRET, SECRET)
        await start(master, slave)
        try:
            await until(lambda: slave.store.log.max_offset == master.store.log.max_offset > 0)
            assert bodies(slave.store) == bodies(master.store)
        finally:
            await stop(master, slave)

    asyncio.run(test())


@pytest.mark.abuse("A12")
@pytest.mark.parametrize("secret", ["", "another secret, just as long"])
def test_who_has_it_not_copies_nothing_and_hears_why(
    tmp_path: Path, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        master, slave = pair(tmp_path, SECRET, secret)
        await start(master, slave)
        try:
            await until(lambda: "no member of the cluster" in caplog.text or "cluster_secret" in caplog.text)
            assert slave.store.log.max_offset == 0
        finally:
            await stop(master, slave)

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert SECRET not in caplog.text


@pytest.mark.abuse("A2")
def test_a_peer_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.security.cluster_network.HELLO_TIMEOUT_S", 0.2)

    async def test() -> None:
        runtime = cluster_runtime(Runtime.system(), SECRET, None, None)
        assert isinstance(runtime.network, ClusterNetwork)
        made: list[asyncio.Protocol] = []

        def factory() -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            return made[-1]

        listener = await runtime.network.listen(factory, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.addresses[0])
        try:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        except ConnectionError:
            pass
        finally:
            writer.close()
            await listener.close()
        assert made == []

    asyncio.run(test())
