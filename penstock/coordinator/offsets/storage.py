"""Offsets of one broker in ZooKeeper: taken at once, written together every few seconds.

Rules. `commit` only remembers; of several commits for one partition between two writings, the last one is written,
and what has not changed is not written. A changed offset stays marked until its write was *answered* (TubeMQ clears
the mark before, and forgets it when the write fails). Each write names the version that it replaces: one whose answer
was lost, and which arrives late, cannot undo a later one. An entry that somebody else has changed is ours to
overwrite: its broker id says so.

Owned by the event loop; one writing at a time. It never decides where a consumer starts, and it reads ZooKeeper only
when asked to: the broker keeps the offsets in memory. Where several processes may be that broker, `may_write` says
whether this one is it: what it may not write stays marked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from penstock.coordinator.metadata.port import MetadataStore
from penstock.coordinator.offsets import layout
from penstock.coordinator.offsets.layout import OffsetKey, StoredOffset
from penstock.coordinator.offsets.options import OffsetStorageOptions
from penstock.errors import (
    CodecError,
    EntryExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoEntryError,
    NotEmptyError,
    OptionError,
    VersionConflictError,
    install_hint,
)
from penstock.runtime import Runtime

_log = logging.getLogger(__name__)
# How often a write is tried whose version, or whose very entry, changes under it.
_CONFLICT_TRIES = 5


class OffsetStorage:
    """See the module's text. Made with `zookeeper_offset_storage`; a test may hand in any metadata store."""

    def __init__(
        self, store: MetadataStore, broker_id: int, options: OffsetStorageOptions | None = None
    ) -> None:
        if not 0 <= broker_id <= layout.BROKER_ID_MAX:
            raise OptionError(f"broker id {broker_id}", f"it must be 0 to {layout.BROKER_ID_MAX}")
        self.options = OffsetStorageOptions() if options is None else options
        self.broker_id = broker_id
        self._store = store
        # Whether this process is the one that writes for the broker; asked again before each write.
        self.may_write: Callable[[], bool] = lambda: True
        # Called before each writing, to commit what has come together until then.
        self.collect: Callable[[], Awaitable[None]] | None = None
        self._is_away = False
        self._changed: dict[OffsetKey, StoredOffset] = {}
        # What we last wrote or read: the version that the next write replaces.
        self._versions: dict[OffsetKey, int] = {}
        self._turn = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and write from now on. MetadataUnavailableError, also logged, names the address."""
        try:
            await self._store.start()
        except MetadataError as error:
            _log.error("offset storage at %s cannot be initiated: %s", self._store.address, error)
            raise
        _log.info("offset storage at %s is initiated", self._store.address)
        self._writer = asyncio.get_running_loop().create_task(self._write_forever(), name="offset storage")

    async def stop(self) -> None:
        """Write what has changed, with some patience, and disconnect. What could not be written is logged."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await self._flush_at_last()
        await self._store.stop()

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.commit_interval_ms / 1000)
            try:
                await self.flush()
            except MetadataError as error:
                if not self._is_away:
                    _log.warning("%d changed offsets wait for being written: %s", len(self._changed), error)
                self._is_away = True
                continue
            if self._is_away:
                _log.warning("offsets are written to %s again", self._store.address)
            self._is_away = False

    async def _flush_at_last(self) -> None:
        for attempt in range(1, self.options.stop_tries + 1):
            try:
                await self.flush()
                return
            except MetadataError as error:
                _log.warning("writing offsets before the stop, try %d: %s", attempt, error)
            if attempt < self.options.stop_tries:
                await asyncio.sleep(self.options.retry_wait_ms / 1000)
        _log.error("%d changed offsets were not written: %s is away", len(self._changed), self._store.address)

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def changed_count(self) -> int:
        """How many offsets wait for being written."""
        return len(self._changed)

    def commit(self, key: OffsetKey, offset: int, message_id: int = 0) -> None:
        """Remember; written with the next writing. CodecError for a name that ZooKeeper cannot have."""
        if offset < 0 or message_id < 0:
            raise CodecError(
                f"offset {offset} of message {message_id}", "TubeMQ's value has no negative numbers"
            )
        layout.offset_path(key, self.broker_id)
        self._changed[key] = StoredOffset(offset, message_id)

    async def flush(self) -> int:
        """Write what has changed, now. The number written; the first error, after which what is left stays marked."""
        if not self.may_write():
            return 0
        if self.collect is not None:
            await self.collect()
        async with self._turn:
            waiting = iter(tuple(self._changed.items()))
            errors: list[MetadataError] = []
            written = await asyncio.gather(
                *(self._write_some(waiting, errors) for _ in range(self.options.parallel_writes))
            )
            if errors:
                raise errors[0]
            return sum(written)

    async def _write_some(
        self, waiting: Iterable[tuple[OffsetKey, StoredOffset]], errors: list[MetadataError]
    ) -> int:
        """One of several that share `waiting`. Where one finds the servers away, none goes on."""
        written = 0
        for key, stored in waiting:
            if any(isinstance(error, MetadataUnavailableError) for error in errors):
                break
            try:
                await self._write(key, stored)
            except MetadataError as error:
                errors.append(error)
                continue
            written += 1
            # Committed again meanwhile: then it is still to be written.
            if self._changed.get(key) is stored:
                del self._changed[key]
        return written

    async def _write(self, key: OffsetKey, stored: StoredOffset) -> None:
        path, value = layout.offset_path(key, self.broker_id), layout.encoded(stored)
        for _ in range(_CONFLICT_TRIES):
            if not self.may_write():
                raise MetadataUnavailableError(
                    f"{path} is another process's to write now", "leave it to that one"
                )
            if key not in self._versions:
                entry = await self._store.get(path)
                if entry is not None:
                    self._versions[key] = entry.version
            version = self._versions.get(key)
            try:
                if version is None:
                    entry = await self._store.create(path, value)
                else:
                    entry = await self._store.set(path, value, version)
                self._versions[key] = entry.version
                return
            except (EntryExistsError, NoEntryError, VersionConflictError):
                self._versions.pop(key, None)
        raise VersionConflictError(
            f"{path} is changed by somebody else all the time", "find out who else has our broker id"
        )

    # -- reading ---------------------------------------------------------------------------------------------

    async def load(self, key: OffsetKey) -> StoredOffset | None:
        """What is stored; CodecError if it cannot be read. What waits for being written is not looked at."""
        path = layout.offset_path(key, self.broker_id)
        entry = await self._store.get(path)
        return None if entry is None else layout.decoded(entry.value, path)

    async def query(self, keys: Iterable[OffsetKey]) -> dict[OffsetKey, StoredOffset | None]:
        """Many at once; None for what is missing or cannot be read."""

        async def one(key: OffsetKey) -> tuple[OffsetKey, StoredOffset | None]:
            try:
                return key, await self.load(key)
            except CodecError as error:
                _log.warning("%s", error)
                return key, None

        found: dict[OffsetKey, StoredOffset | None] = {}
        wanted = list(keys)
        step = self.options.parallel_writes
        for start in range(0, len(wanted), step):
            found.update(await asyncio.gather(*map(one, wanted[start : start + step])))
        return found

    async def topics(self, groups: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Topics with an offset of this broker, by group; of all groups, unless some are named."""
        found: dict[str, tuple[str, ...]] = {}
        for group in await self._store.children(layout.groups_path()) if groups is None else groups:
            topics = [
                topic
                for topic in await self._store.children(layout.topics_path(group))
                if await self._partitions(group, topic)
            ]
            if topics:
                found[group] = tuple(topics)
        return found

    async def load_all(self, groups: Iterable[str] | None = None) -> dict[OffsetKey, StoredOffset]:
        """Everything of this broker that can be read: what a broker starts with."""
        names = list(await self._store.children(layout.groups_path()) if groups is None else groups)
        keys: list[OffsetKey] = []
        step = self.options.parallel_writes
        for start in range(0, len(names), step):
            for some in await asyncio.gather(*map(self._keys_of, names[start : start + step])):
                keys += some
        return {key: stored for key, stored in (await self.query(keys)).items() if stored is not None}

    async def _keys_of(self, group: str) -> list[OffsetKey]:
        """All of this broker in one group."""
        return [
            OffsetKey(group, topic, number)
            for topic in await self._store.children(layout.topics_path(group))
            for number in await self._partitions(group, topic)
        ]

    async def _partitions(self, group: str, topic: str) -> list[int]:
        names = await self._store.children(layout.topic_path(group, topic))
        numbers = (layout.partition_of(name, self.broker_id) for name in names)
        return sorted(number for number in numbers if number is not None)

    # -- deleting --------------------------------------------------------------------------------------------

    async def delete(self, group: str, topics: Mapping[str, Iterable[int] | None] | None = None) -> int:
        """Delete offsets of this broker, from the bottom up: the partitions named (None: all of a topic; no topics:
        all of the group), then whatever is empty above them. The number of offsets deleted."""
        async with self._turn:
            if topics is None:
                waiting = {key.topic for key in self._changed if key.group == group}
                topics = dict.fromkeys({*(await self.topics([group])).get(group, ()), *waiting})
            deleted = 0
            for topic, partitions in topics.items():
                stored = await self._partitions(group, topic)
                for partition in stored if partitions is None else partitions:
                    key = OffsetKey(group, topic, partition)
                    deleted += await self._delete(layout.offset_path(key, self.broker_id))
                    self._forget(key)
                if partitions is None:
                    self._forget_topic(group, topic)
                await self._delete(layout.topic_path(group, topic))
            if await self._delete(layout.topics_path(group)):
                await self._delete(layout.group_path(group))
            return deleted

    async def _delete(self, path: str) -> bool:
        """False if it is not there, or others are below it."""
        try:
            await self._store.delete(path)
            return True
        except (NoEntryError, NotEmptyError):
            return False

    def forget_all(self) -> None:
        """Somebody else was this broker meanwhile: what waits is old, and so are the versions that are known."""
        self._changed.clear()
        self._versions.clear()

    def _forget(self, key: OffsetKey) -> None:
        """What was deleted is not written again by an older commit."""
        self._changed.pop(key, None)
        self._versions.pop(key, None)

    def _forget_topic(self, group: str, topic: str) -> None:
        for key in [key for key in self._changed if key.group == group and key.topic == topic]:
            self._forget(key)


def zookeeper_offset_storage(
    options: OffsetStorageOptions, broker_id: int, runtime: Runtime | None = None
) -> OffsetStorage:
    """The storage in ZooKeeper, not started yet. OptionError where kazoo is not installed."""
    try:
        from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
    except ModuleNotFoundError as error:
        raise OptionError(
            f"offsets in ZooKeeper need the package {error.name}", install_hint("zookeeper")
        ) from error
    return OffsetStorage(ZooKeeperMetadata(options.zookeeper(), runtime), broker_id, options)
