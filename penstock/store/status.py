"""A store in numbers, for status pages and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import _hot

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore


def describe(store: MessageStore) -> dict[str, object]:
    """Called under the store's lock, so that the numbers belong together."""
    log = store.log
    return {
        "path": str(store.path),
        "form": _hot.form(),
        "log": {
            "min_offset": log.min_offset,
            "max_offset": log.max_offset,
            "flushed_offset": store.flusher.flushed_offset,
            "visible_offset": store.dispatch.offset,
            "segments": sum(segment is not None for segment in log.segments),
            "segment_size_bytes": log.segment_size,
        },
        "queues": len(store.queues),
        "index": {"files": store.index.file_count, "entries": store.index.entries},
        "findings": store.findings.total,
        "writable": store.is_writable,
        "disk_used_percent": store.keeper.used_percent,
        "meters": store.meters.snapshot(),
    }
