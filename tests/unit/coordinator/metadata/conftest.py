"""Backends as fixtures. ZooKeeper is started once per run, when the first test asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.unit.coordinator.metadata.backends import (
    Backend,
    MemoryBackend,
    SqliteBackend,
    ZooKeeperBackend,
)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper")) as servers:
        yield servers


def made(kind: str, request: pytest.FixtureRequest, folder: Path) -> Backend:
    if kind == "memory":
        return MemoryBackend()
    if kind == "sqlite":
        return SqliteBackend(folder)
    return ZooKeeperBackend(request.getfixturevalue("zookeeper"))


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.java)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return made(request.param, request, tmp_path)


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.java)])
def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Those that several processes use at once."""
    return made(request.param, request, tmp_path)
