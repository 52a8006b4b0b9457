"""What the keeper says of work that fails again and again, as on a full disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.testing.clock import ManualClock


def test_the_same_failure_is_said_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    caplog.set_level(logging.ERROR, logger="penstock.store")
    with MessageStore.open(tmp_path, runtime=Runtime(clock=clock), background=False) as store:
        for text in ("full", "full", "worse", "full"):
            store.keeper.failed(OSError(text))
        assert [record.args for record in caplog.records] == [("full",), ("worse",), ("full",)]
        clock.advance(60_000)
        store.keeper.failed(OSError("full"))
        assert len(caplog.records) == 4
