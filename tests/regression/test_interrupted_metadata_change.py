"""A coordinator that was stopped right after its start printed a traceback: a change whose caller had been cancelled
found the metadata closed."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

from penstock.coordinator.metadata.embedded import EmbeddedMetadata


def test_a_change_without_its_caller_ends_quietly(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        metadata = EmbeddedMetadata(tmp_path / "metadata.db")
        await metadata.start()
        async with metadata._turn:
            caller = asyncio.ensure_future(metadata.create("/a", b""))
            await asyncio.sleep(0)
            (change,) = metadata._changes
            caller.cancel()
            await asyncio.wait([caller])
            stopping = asyncio.ensure_future(metadata.stop())
            await asyncio.sleep(0)
        await asyncio.wait([change])
        assert change.done()
        del change
        await stopping
        gc.collect()

    asyncio.run(scenario())
    assert reported == []
