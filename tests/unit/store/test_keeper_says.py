"""What the keeper says of work that fails again and again, as on a full disk."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions
from penstock.testing import FaultyDisk
from penstock.testing.clock import ManualClock
from tests.disk_limits import NO_DISK_LIMITS


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


def test_a_segment_that_cannot_be_prepared_is_said_ever_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disk = ManualClock(), FaultyDisk(tmp_path)
    caplog.set_level(logging.WARNING, logger="penstock.store")
    options = StoreOptions(
        segment_size_bytes=8192, max_message_size_bytes=2048, prepare_next_at_percent=1, **NO_DISK_LIMITS
    )

    def said(seconds: int) -> int:
        caplog.clear()
        for _ in range(seconds):
            clock.advance(1_000)
            store.keeper.tick()
        return sum("Next segment cannot be prepared" in record.getMessage() for record in caplog.records)

    runtime = Runtime(clock=clock, disk=disk)
    with MessageStore.open(tmp_path, options, runtime=runtime, background=False) as store:
        store.append(Message("orders", b"x" * 500), 0)
        disk.fail_next("allocate", errno.ENOSPC, times=None)
        assert said(59) == 1
        assert said(60) == 1
        assert said(120) == 1
        assert said(600) <= 2
        assert "attempts" in caplog.text
        disk.clear_faults()
        assert said(5) == 0
