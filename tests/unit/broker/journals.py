"""Journals for tables that a test makes without a broker; `conftest.py` closes them when the test ends."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.table_journal import TableJournal
from penstock.runtime import Disk, SystemDisk

_OPEN: list[TableJournal] = []


def journal(config: Path, disk: Disk | None = None, **options: int) -> TableJournal:
    opened = TableJournal(disk or SystemDisk(), config, **options)
    _OPEN.append(opened)
    return opened


async def close_journals() -> None:
    while _OPEN:
        await _OPEN.pop().close(is_saved=False)
