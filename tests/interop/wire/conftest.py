"""Servers and client drivers, shared by all tests of a session and run one server at a time.

All tests of a server run together, those with the real RocketMQ first: they show that the tests themselves are right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.go_release import GO_CLIENT, missing_go, prepare_driver
from tests.interop.java_release import VERSIONS, missing_tools
from tests.interop.wire import rocketmq_server
from tests.interop.wire.driver import Driver
from tests.interop.wire.peer import Peer, Server
from tests.interop.wire.servers import SERVERS, or_skip, started

JAVA_CLIENTS = [f"java-{version}" for version in VERSIONS]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After pytest's own grouping by fixtures, which would start a server for each kind of client."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    others = [item for item in items if item not in here]
    left_out = [item for item in here if _tells_nothing_new(_parameters(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = [*others, *sorted((item for item in here if item not in left_out), key=_turn)]


def _parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _tells_nothing_new(parameters: dict[str, object]) -> bool:
    """Tests at RocketMQ show that the tests are right, for which one client will do; a clean stop of its broker
    takes 15 seconds. PENSTOCK_INTEROP=all runs the second client there, too."""
    if parameters.get("server") != "rocketmq":
        return False
    is_second_client = parameters.get("java_client", JAVA_CLIENTS[0]) != JAVA_CLIENTS[0]
    return parameters.get("crash") is False or (
        is_second_client and os.environ.get("PENSTOCK_INTEROP") != "all"
    )


def _turn(item: pytest.Item) -> tuple[int, str]:
    names = list(SERVERS)
    server = str(_parameters(item).get("server", names[-1]))
    return names.index(server), item.path.name


@pytest.fixture(scope="session", params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = started(request.param, tmp_path_factory.mktemp(request.param))
    yield running
    running.stop()


class Drivers:
    """Client processes, each started once and used by many tests."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._tmp_path_factory = tmp_path_factory
        self._running: dict[str, Driver] = {}

    def get(self, name: str) -> Driver:
        if name not in self._running:
            self._running[name] = self.start(name)
        return self._running[name]

    def start(self, name: str) -> Driver:
        """A process of the test's own, which the test ends."""
        directory = self._tmp_path_factory.mktemp(name)
        if name == GO_CLIENT:
            command = [str(or_skip(prepare_driver, missing_go()))]
        else:
            version = name.removeprefix("java-")
            command = or_skip(lambda: rocketmq_server.client_command(version, directory), missing_tools())
        return Driver(name, command, directory)

    def stop(self) -> None:
        for driver in self._running.values():
            driver.kill()


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    running = Drivers(tmp_path_factory)
    yield running
    running.stop()


@pytest.fixture(scope="session", params=JAVA_CLIENTS)
def java_client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peer(server: Server, drivers: Drivers, java_client: str) -> Iterator[Peer]:
    """A Java client of each release at each server."""
    found = Peer(drivers.get(java_client), server)
    yield found
    found.end()


@pytest.fixture
def go_peer(server: Server, drivers: Drivers) -> Iterator[Peer]:
    """The Go client at each server."""
    found = Peer(drivers.get(GO_CLIENT), server)
    yield found
    found.end()
