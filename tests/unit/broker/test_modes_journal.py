"""The journal of a member of a set stays until every table's own file has what it holds: the request modes too."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.side_tables import SideTables
from penstock.metadata.request_mode_table import RequestMode, RequestModeConfig, RequestModeTable
from penstock.runtime import Runtime
from tests.support.running_broker import BROKER, STORE


@pytest.mark.fault("F5")
@pytest.mark.invariant("I13")
@pytest.mark.parametrize("can_save", [False, True])
def test_request_modes_that_could_not_be_saved_are_in_the_journal(tmp_path: Path, can_save: bool) -> None:
    """A replica has taken a mode over from its master and acknowledged it; then the disk refuses the file, and the
    broker ends. The next start must know the mode."""
    mode = RequestModeConfig(RequestMode.POP, 3)

    def broker() -> Broker:
        # Nobody answers there: it stays a replica without a master.
        options = replace(BROKER, coordinators=("127.0.0.1:1",))
        return Broker(options, STORE, tmp_path, runtime=Runtime.system())

    def tables(found: Broker) -> SideTables:
        assert found.side_tables is not None
        return found.side_tables

    async def scenario() -> None:
        first = broker()
        await first.start()
        obstacle = tmp_path / "config" / (RequestModeTable.FILE_NAME + ".tmp")
        if not can_save:
            obstacle.mkdir()
        body = json.loads(tables(first).snapshot())
        body["modes"] = RequestModeTable({"T": {"G": mode}}).to_json()
        tables(first).apply(json.dumps(body).encode())
        await first.stop()
        assert bool(list((tmp_path / "config").glob("tables.*.log"))) is not can_save
        if not can_save:
            obstacle.rmdir()
        again = broker()
        await again.start()
        assert again.modes.get("T", "G") == mode
        await again.stop()
        assert not list((tmp_path / "config").glob("tables.*.log"))

    asyncio.run(scenario())
