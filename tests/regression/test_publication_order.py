"""Queries that published within one millisecond, or after the clock was set back, lost their order with a restart:
then another query than the least recent one was evicted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.published import PublishedBatches
from penstock.broker.table_journal import TableJournal
from penstock.runtime import Runtime
from penstock.testing import ManualClock


@pytest.mark.parametrize("step_ms", [0, -5_000], ids=["same-millisecond", "clock-set-back"])
def test_the_order_of_publications_survives_a_restart(tmp_path: Path, step_ms: int) -> None:
    clock = ManualClock()
    options, runtime = BrokerOptions(publication_queries_max=3), Runtime(clock=clock)
    batches = PublishedBatches(options, runtime, TableJournal(runtime.disk, tmp_path))
    for query in ("c", "a", "b"):
        batches.remember(query, 0, 1, 0)
        clock.jump(step_ms)
    assert asyncio.run(batches.stored.save())
    again = PublishedBatches(options, runtime, TableJournal(runtime.disk, tmp_path))
    again.load()
    again.remember("d", 0, 1, 0)
    assert [query for query in "abcd" if again.last(query) is not None] == ["a", "b", "d"]
