"""Consumer offsets of a broker set in ZooKeeper, besides the file, so that they outlive the disks of all its members.

    start     connect; MetadataUnavailableError, with the address, if nobody answers
    prepare   about to be master: take from ZooKeeper what is further than what is known here
    lead      every 5 s what has changed is written (`coordinator/offsets`); resets and deletions at once
    rest      not master any more, or about to stop: a last writing, if this broker surely still is master
    stop      a last writing of a broker that nobody could replace, then disconnect

Rules. ZooKeeper never takes an offset back: where both have one, the higher counts; of a group that has committed
here since, ours. But none leads behind the end of the log: a broker whose disk was lost begins a new log, and a group
that stood further would not be given what is sent before it returns. The broker's number there comes from cluster and
broker name, so that all members of a set write to the same entries, and only the one that surely is master writes.
Without ZooKeeper the broker goes on with its file; nothing waits for it but a start, a stop and, shortly, a role
change. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.errors import CodecError, MetadataError, RequestError
from penstock.metadata.offset_table import TopicGroup
from penstock.runtime import Runtime
from penstock.store import MessageStore

if TYPE_CHECKING:
    from penstock.coordinator.offsets import OffsetKey, OffsetStorage, StoredOffset

_LOG = logging.getLogger("penstock.broker")
# How long a start waits for a server.
CONNECT_TIMEOUT_MS = 10_000
# How long becoming master waits for offsets: replicas have them too, as a rule. They are read later else.
PREPARE_WAIT_MS = 2_000
# How long a stop waits for the last writing; the file has everything.
STOP_WAIT_MS = 3_000
# Resets and deletions of one moment are written together.
GATHER_MS = 50
# A queue id is Java's int.
_QUEUE_MAX = 2**31 - 1


def zookeeper_offsets(
    options: BrokerOptions,
    store: MessageStore,
    offsets: ConsumerOffsets,
    leases: PartitionLeases,
    runtime: Runtime,
) -> ZooKeeperOffsets | None:
    """None where they are only in the file: no ZooKeeper is named, or the broker is a slave and stays one.
    OptionError for a wrong address, or without kazoo."""
    if not options.zookeeper_offsets or (options.is_slave and not options.coordinators):
        return None
    # Only who uses it pays for its import.
    from penstock.coordinator.offsets import (
        OffsetStorageOptions,
        broker_id_of_set,
        zookeeper_offset_storage,
    )

    where = OffsetStorageOptions(
        options.zookeeper_offsets,
        options.zookeeper_offsets_root,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        stop_tries=1,
    )
    number = broker_id_of_set(options.cluster_name, options.broker_name)
    storage = zookeeper_offset_storage(where, number, runtime)
    return ZooKeeperOffsets(storage, store.end_offset, offsets, leases, is_alone=not options.coordinators)


class ZooKeeperOffsets:
    """See the module's text. `is_alone`: it is master from its start to its end, whatever happens."""

    def __init__(
        self,
        storage: OffsetStorage,
        end_offset: Callable[[str, int], int],
        offsets: ConsumerOffsets,
        leases: PartitionLeases,
        *,
        is_alone: bool,
    ) -> None:
        self.storage = storage
        self._end_offset = end_offset
        self._offsets = offsets
        self._is_alone = is_alone
        self._is_leading = self._is_loaded = False
        # They know whether somebody else may be master.
        self._leases = leases
        # What has changed since it was last compared with `_known`.
        self._dirty: set[TopicGroup] = set()
        # What ZooKeeper has, or is about to be given.
        self._known: dict[TopicGroup, dict[int, int]] = {}
        # What has to be deleted there.
        self._gone: dict[TopicGroup, set[int]] = {}
        self._turn = asyncio.Lock()
        self._soon: asyncio.Task[None] | None = None
        # Whether there is something that must not wait, which the writing under way may have missed.
        self._is_urgent = False
        storage.may_write = self._may_write
        storage.collect = self._collect
        offsets.on_change.append(self._changed)
        offsets.on_reset.append(lambda topic, queue_id: self._write_soon())

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Who is master from the start knows all offsets when this returns. MetadataError."""
        await self.storage.start()
        if self._is_alone:
            async with self._turn:
                await self._load()

    async def prepare(self) -> None:
        """See the module's text. Fails never: what cannot be read now is read before the first writing."""
        self._is_loaded = False
        self._dirty.clear()
        self._known.clear()
        self._gone.clear()
        self.storage.forget_all()
        try:
            async with asyncio.timeout(PREPARE_WAIT_MS / 1000), self._turn:
                await self._load()
        except (MetadataError, TimeoutError) as error:
            _LOG.warning("becoming master without the offsets in ZooKeeper, which are read later: %s", error)

    def lead(self) -> None:
        self._is_leading = True

    async def rest(self) -> None:
        if not self._is_alone:  # else commits may still come until `stop`
            await self._write_at_last()
            self._is_leading = False

    async def stop(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            await asyncio.gather(self._soon, return_exceptions=True)
        # Of a set, another may be master by now: `rest` was the end.
        await self._write_at_last()
        self._is_leading = False
        await self.storage.stop()

    async def _write_at_last(self) -> None:
        try:
            async with asyncio.timeout(STOP_WAIT_MS / 1000):
                await self.storage.flush()
        except (MetadataError, TimeoutError) as error:
            _LOG.warning("the last changes of offsets are not in ZooKeeper, but in the file: %s", error)

    # -- reading ---------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Take what is further than here; all that is here is compared at the next writing."""
        stored = await self.storage.load_all()
        moved, since = 0, frozenset(self._dirty)
        for key, found in stored.items():
            pair = TopicGroup(key.topic, key.group)
            if "@" in key.topic or key.partition > _QUEUE_MAX:
                _LOG.warning("ZooKeeper has an offset that is no RocketMQ queue's: %s", key)
                continue
            self._known.setdefault(pair, {})[key.partition] = found.offset
            moved += self._restore(key, found, pair in since)
        if moved:
            _LOG.info("%d offsets come from ZooKeeper", moved)
        self._dirty.update(pair for pair, _ in self._offsets.all())
        self._is_loaded = True

    def _restore(self, key: OffsetKey, found: StoredOffset, is_changed: bool) -> bool:
        """`is_changed`: this broker has led for a while without ZooKeeper, and what it has of the group counts."""
        queues = self._offsets.queues(key.group, key.topic)
        here = queues.get(key.partition, -1)
        offset = min(found.offset, self._end_offset(key.topic, key.partition))
        if offset <= here or (is_changed and (here >= 0 or not queues)):
            return False
        try:
            self._offsets.restore(key.group, key.topic, key.partition, offset)
        except RequestError as error:
            # Not known here, so not deleted there either.
            self._known[TopicGroup(key.topic, key.group)].pop(key.partition, None)
            _LOG.warning("offset %s stays in ZooKeeper only: %s", key, error)
            return False
        return True

    # -- writing ---------------------------------------------------------------------------------------------

    def _may_write(self) -> bool:
        return self._is_leading and self._leases.is_sure()

    def _changed(self, pair: TopicGroup) -> None:
        self._dirty.add(pair)
        if not self._offsets.queues(pair.group, pair.topic):
            self._write_soon()

    def _write_soon(self) -> None:
        """What goes back or away must not be undone by a restart that finds the old offset in ZooKeeper."""
        if not self._is_leading:
            return
        self._is_urgent = True
        if self._soon is None or self._soon.done():
            self._soon = asyncio.get_running_loop().create_task(self._write(), name="offsets to ZooKeeper")

    async def _write(self) -> None:
        while self._is_urgent:
            await asyncio.sleep(GATHER_MS / 1000)
            self._is_urgent = False
            try:
                await self.storage.flush()
            except MetadataError as error:
                _LOG.debug("left for the next writing: %s", error)
                return

    async def _collect(self) -> None:
        """Hand over what has changed; what is gone is deleted. MetadataError: the rest is done next time."""
        async with self._turn:
            if not self._is_loaded:
                await self._load()
            dirty, self._dirty = self._dirty, set()
            for pair in dirty:
                self._compare(pair)
            for pair, queues in list(self._gone.items()):
                await self.storage.delete(pair.group, {pair.topic: queues})
                self._gone.pop(pair, None)

    def _compare(self, pair: TopicGroup) -> None:
        from penstock.coordinator.offsets import OffsetKey

        here, known = self._offsets.queues(pair.group, pair.topic), self._known.setdefault(pair, {})
        for queue_id, offset in here.items():
            # RocketMQ's -1, nothing consumed yet, has no counterpart: it is no entry.
            if offset < 0 or known.get(queue_id) == offset:
                continue
            known[queue_id] = offset
            self._gone.get(pair, set()).discard(queue_id)
            try:
                self.storage.commit(OffsetKey(pair.group, pair.topic, queue_id), offset)
            except CodecError as error:
                _LOG.warning("the offset of %s is in the file only: %s", pair, error)
        gone = [queue_id for queue_id in known if queue_id not in here]
        for queue_id in gone:
            del known[queue_id]
        if gone:
            self._gone.setdefault(pair, set()).update(gone)
        if not known:
            del self._known[pair]
