"""What others may look up in the metadata store: coordinators, live brokers, topic-partitions.

    /live/coordinators/<host:port>              {"term":7}                              each its own
    /live/brokers/<cluster>/<name>/<id>         {"address":..,"haAddress":..,"isMaster":true}     by the leader
    /live/topics/<topic>/<name>-<queue>         {"broker":"broker-a","cluster":"c","perm":6}      by the leader

Rules. All of them are ephemeral: they go with the session of whoever made them, and a new leader makes them anew.
Nothing in Penstock decides by them; they are there for people, tools and clients that ask ZooKeeper where a partition
is (name first, then the broker that is master of that name). So they may lag behind for a moment, and a change that
fails is simply made again. Topics beyond the limit are left out.

Owned by the coordinator's event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping

from penstock.coordinator.heartbeats import HeartbeatTable, broker_node
from penstock.coordinator.leadership import Leadership
from penstock.coordinator.metadata import Create, Delete, MetadataStore, Operation, SessionState, Set
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.topic_reports import SetName, TopicReports
from penstock.errors import EntryExistsError, MetadataError, NoEntryError, NotEmptyError

_LOG = logging.getLogger("penstock.coordinator")
COORDINATORS, BROKERS, TOPICS = "/live/coordinators", "/live/brokers", "/live/topics"
BATCH = 100
RETRY_S = 1.0


async def live_ids(store: MetadataStore, name: SetName) -> frozenset[int]:
    """The members of a broker set that the leader has entered."""
    found = await store.children(f"{BROKERS}/{name.cluster}/{name.name}")
    return frozenset(int(child) for child in found if child.isascii() and child.isdigit())


class Registry:
    """Keeps entries as they are wanted. `want` replaces what is wanted; a task brings the store there."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._wanted: dict[str, bytes] = {}
        # What this session has made, as far as it knows.
        self._made: dict[str, bytes] = {}
        self._wake = asyncio.Event()
        store.on_state(self._session_changed)

    def want(self, entries: Mapping[str, bytes]) -> None:
        if entries != self._wanted:
            self._wanted = dict(entries)
            self._wake.set()

    @property
    def is_settled(self) -> bool:
        return self._made == self._wanted

    @property
    def is_empty(self) -> bool:
        return not self._made

    def paths(self, below: str = "/") -> list[str]:
        """The entries that this session has made."""
        return sorted(path for path in self._made if path.startswith(below))

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._made.clear()
        self._wake.set()

    async def run(self) -> None:
        """Bring the store to what is wanted, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.settle()
            except MetadataError as error:
                _LOG.info("the registry cannot be written: %s; trying again", error)
                await asyncio.sleep(RETRY_S)
                self._wake.set()
            await self._wake.wait()

    async def settle(self) -> None:
        """Make, change and delete what differs, in batches."""
        wanted = dict(self._wanted)
        operations: list[Operation] = [Delete(path) for path in self._made if path not in wanted]
        for path, value in wanted.items():
            known = self._made.get(path)
            if known is None:
                operations.append(Create(path, value, ephemeral=True))
            elif known != value:
                operations.append(Set(path, value))
        for start in range(0, len(operations), BATCH):
            await self._apply(operations[start : start + BATCH])
        emptied = {item.path.rpartition("/")[0] for item in operations if isinstance(item, Delete)}
        for folder in sorted(emptied - {COORDINATORS, BROKERS, TOPICS}):
            await self._tidy(folder)

    async def _apply(self, batch: list[Operation]) -> None:
        try:
            await self._store.transact(batch)
        except (EntryExistsError, NoEntryError):
            # Left over from a session that is about to end, or gone with it: one by one, whatever is there.
            for operation in batch:
                await self._force(operation)
        for operation in batch:
            self._note(operation)

    async def _force(self, operation: Operation) -> None:
        try:
            await self._store.delete(operation.path)
        except NoEntryError:
            pass
        if isinstance(operation, Create | Set):
            await self._store.create(operation.path, operation.value, ephemeral=True)

    def _note(self, operation: Operation) -> None:
        if isinstance(operation, Create | Set):
            self._made[operation.path] = operation.value
        else:
            self._made.pop(operation.path, None)

    async def _tidy(self, folder: str) -> None:
        """Topics and sets come and go; an empty folder of one that is gone is taken away."""
        try:
            await self._store.delete(folder)
        except (NotEmptyError, NoEntryError):
            pass


class CoordinatorEntry:
    """This coordinator's own entry, written again every second: that proves how new the reads after it are
    (copies.py), and shows others that it is there."""

    def __init__(self, store: MetadataStore, leadership: Leadership) -> None:
        self._store = store
        self._leadership = leadership
        # The addresses of all coordinators, as last seen.
        self.peers: tuple[str, ...] = ()

    async def touch(self) -> None:
        """A change that was answered when this returns."""
        path = f"{COORDINATORS}/{self._leadership.identity}"
        value = _json({"term": self._leadership.term})
        try:
            await self._store.set(path, value)
        except NoEntryError:
            await self._store.create(path, value, ephemeral=True)
        self.peers = await self._store.children(COORDINATORS)


def broker_entries(records: Mapping[SetName, SetRecord], there: HeartbeatTable) -> dict[str, bytes]:
    """One entry per broker that reports."""
    return {
        f"{BROKERS}/{name.cluster}/{name.name}/{broker_id}": _json(
            {
                "address": replica.address,
                "haAddress": replica.ha_address,
                "isMaster": broker_id == record.master_id,
            }
        )
        for name, record in records.items()
        for broker_id, replica in record.replicas.items()
        if broker_node(name, broker_id) in there
    }


def partition_entries(reports: TopicReports, limit: int) -> dict[str, bytes]:
    """One entry per topic and queue of every set."""
    found: dict[str, bytes] = {}
    left_out = 0
    for name in reports.sets:
        for topic, queues in sorted(reports.topics(name).items()):
            count = max(queues.read, queues.write)
            if len(found) + count > limit:
                left_out += 1
                continue
            value = _json({"broker": name.name, "cluster": name.cluster, "perm": queues.perm})
            found.update({f"{TOPICS}/{topic}/{name.name}-{queue}": value for queue in range(count)})
    if left_out:
        _LOG.debug("%d topics have no entries in the registry: coordinator.registry_partitions_max", left_out)
    return found


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
