"""`penstock status` and errors while brokers are dead: killed processes, real commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock.errors import RouteNotFoundError
from tests.support.cluster_commands import Commands
from tests.support.server_processes import broker, name_server, wait_known
from tests.waiting import wait_until


def is_down(run: Commands, name: str) -> bool:
    """Whether the name server has noticed that a broker died. Who asks the broker itself may know it earlier."""
    brokers = json.loads(run("status", "--json").stdout)["brokers"]
    return any(one["name"] == name and one["error"].startswith("down since 20") for one in brokers)


@pytest.mark.fault("F1")
def test_dead_brokers_are_down_until_they_are_back(tmp_path: Path) -> None:
    with name_server(tmp_path / "names") as names:
        first = broker(tmp_path / "a", names.address, "--name", "broker-a")
        second = broker(tmp_path / "b", names.address, "--name", "broker-b")
        with first, second:
            wait_known(names.address)
            run = Commands(names.address)
            wait_until(lambda: len(run.json("status")["brokers"]) == 2, "both brokers are registered")
            second.kill()
            wait_until(lambda: is_down(run, "broker-b"), "the dead broker is noticed")
            found = json.loads(run("status", "--json").stdout)
            assert found["healthy"] is False
            errors = {one["name"]: one["error"] for one in found["brokers"]}
            assert errors["broker-a"] == ""
            assert errors["broker-b"].startswith("down since 20")
            shown = run("status", columns=80).stdout
            assert "NOT ALL ANSWER" in shown
            assert max(map(len, shown.splitlines())) <= 80
            second.start()
            wait_until(lambda: run("status").exit_code == 0, "the broker is back")
            second.stop()
            wait_until(
                lambda: len(run.json("status")["brokers"]) == 1, "a broker that was stopped is not missed"
            )


@pytest.mark.fault("F1")
def test_with_all_brokers_dead_nobody_is_told_to_create_the_topic(tmp_path: Path) -> None:
    with name_server(tmp_path / "names") as names, broker(tmp_path / "a", names.address) as node:
        wait_known(names.address)
        run = Commands(names.address)
        with penstock.Admin(names.address) as admin:
            admin.create_topic("orders")
            node.kill()
            wait_until(lambda: is_down(run, "broker-a"), "the dead broker is noticed")
            with pytest.raises(RouteNotFoundError, match="no broker is registered: start the brokers"):
                admin.describe_topic("orders")
        assert "no broker is registered" in run.refused("topic", "describe", "orders")
        node.start()
