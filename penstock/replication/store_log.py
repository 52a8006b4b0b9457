"""A message store as the log that the cores of replication see."""

from __future__ import annotations

from penstock.store import FlushMode, MessageStore


class StoreLog:
    """Both sides of it: a log that is sent, and one that is copied into."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log = store.log
        self._flusher = store.flusher
        # Under synchronous flush nothing counts as stored that a power cut could take.
        self.is_sync = store.options.flush_mode is FlushMode.SYNC

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        return self._log.max_offset

    @property
    def stored_offset(self) -> int:
        return self._flusher.flushed_offset if self.is_sync else self._log.max_offset

    @property
    def confirmed_offset(self) -> int:
        return self._store.dispatch.offset

    @property
    def segment_size(self) -> int:
        return self._log.segment_size

    def slice_for_transfer(self, position: int, max_bytes: int) -> memoryview | None:
        return self._store.slice_for_transfer(position, max_bytes)

    def append_replica(self, data: memoryview, position: int) -> None:
        self._store.append_replica(data, position)

    def truncate(self, position: int) -> None:
        self._store.truncate(position)

    def bound(self, position: int) -> None:
        self._store.bound(position)
