"""How far each group has come in each queue: `consumerOffset.json`, and in its journal before a commit is answered.

Rules: an offset is that of the next message to take; any value may be committed, also a smaller one. A pull
offset is what was handed out last; it is not saved. A reset target is taken by the next pull of its queue;
until then commits for that queue are dropped, so that a consumer cannot undo the reset it has not seen yet.
The number of offsets is limited (A14). Owned by the event loop. Whether group, topic and queue exist is the
caller's to check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from penstock.broker.options import BrokerOptions
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.errors import RequestError
from penstock.metadata.fastjson import JsonValue
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup, offset_change, offsets_change
from penstock.metadata.table_json import Members
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Runtime

_NONE: dict[int, int] = {}
# Its progress is the broker's: which half messages it may forget.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
# Of which the broker alone says how far they are: whoever moved them would have half messages, or popped ones that
# nobody has acknowledged, forgotten (A19, A20).
BROKERS_OWN = frozenset((TRANSACTION_GROUP, REVIVE_GROUP))
_Table = dict[TopicGroup, dict[int, int]]


class ConsumerOffsets:
    """See the module's text. `load` first; `start` and `stop` run the saving."""

    def __init__(self, options: BrokerOptions, runtime: Runtime, journal: TableJournal) -> None:
        self._clock = runtime.clock
        self._count_max = options.offsets_max
        self._count = self._pulled_count = 0
        self._table = ConsumerOffsetTable()
        self._pulled: _Table = {}
        self._resets: _Table = {}
        # Told of a topic and a queue whose next pull has a reset to take.
        self.on_reset: list[Callable[[str, int], None]] = []
        # Told of a topic and a group whose offsets have changed, or are gone.
        self.on_change: list[Callable[[TopicGroup], None]] = []
        # Returns when whoever could be master next knows of every change; None where nobody else could.
        self.replicated: Callable[[], Awaitable[None]] | None = None
        self.stored = StoredTable(
            journal,
            ConsumerOffsetTable.FILE_NAME,
            self._to_save,
            runtime.clock,
            interval_ms=options.offset_save_interval_ms,
        )

    def load(self) -> None:
        """Read the file. Raises CodecError if there is a file but none readable."""
        loaded = self.stored.load(ConsumerOffsetTable)
        if loaded is not None:
            self._table = loaded
            self._count = sum(map(len, self._table.offsets.values()))

    def start(self) -> None:
        self.stored.start()

    async def stop(self) -> None:
        await self.stored.stop()

    async def save(self) -> bool:
        """Wait until every offset committed so far is on disk, and wherever else it has to be; False if that
        failed."""
        is_saved = await self.stored.save()
        if self.replicated is not None:
            await self.replicated()
        return is_saved

    def _to_save(self) -> Members:
        """Commits are too many to count each as a version; each saving is one."""
        self._table.data_version = self._table.data_version.next(self._clock.now_ms())
        return self._table.members()

    def snapshot(self) -> ConsumerOffsetTable:
        """Everything as it is now; later commits do not reach it."""
        table = self._table
        copied = {key: dict(queues) for key, queues in table.offsets.items()}
        return ConsumerOffsetTable(table.data_version, copied, table.extra)

    @property
    def pairs(self) -> int:
        """How many pairs of topic and group have offsets."""
        return len(self._table.offsets)

    def snapshot_of(self, keys: Iterable[TopicGroup]) -> ConsumerOffsetTable:
        """The same of these only, as far as there are offsets of them."""
        table = self._table
        found = {key: dict(table.offsets[key]) for key in keys if key in table.offsets}
        return ConsumerOffsetTable(table.data_version, found)

    # -- offsets ---------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Remember an offset; False if a reset of this queue is pending, which drops it, or if the group is the
        broker's own. Raises RequestError if it is the first one there and no more are kept."""
        if group in BROKERS_OWN:
            return False
        if self._resets and queue_id in self._resets.get(TopicGroup(topic, group), _NONE):
            return False
        self._set(group, topic, queue_id, offset)
        return True

    def restore(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Take an offset from where it was kept besides, or of the broker's own group. Raises RequestError if it is
        the first one there and no more are kept."""
        self._set(group, topic, queue_id, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = TopicGroup(topic, group)
        queues = self._table.offsets.get(key, _NONE)
        if queue_id not in queues:
            if group not in BROKERS_OWN and not self._has_room(self._table.offsets, key, self._count):
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the broker keeps {self._count} offsets and no more",
                    "delete groups with their offsets that are not used, or raise offsets_max",
                )
            self._count += 1
            queues = self._table.offsets.setdefault(key, {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._changed(key, offset_change(key, queue_id, offset))

    def _changed(self, key: TopicGroup, change: JsonValue) -> None:
        self.stored.changed(change)
        for listener in self.on_change:
            listener(key)

    def _has_room(self, table: _Table, key: TopicGroup, count: int) -> bool:
        return count < self._count_max and (key in table or len(table) < max(self._count_max // 10, 1))

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to take, -1 if none was ever committed. A pending reset counts already."""
        key = TopicGroup(topic, group)
        if self._resets:
            target = self._resets.get(key, _NONE).get(queue_id)
            if target is not None:
                return target
        return self._table.offsets.get(key, _NONE).get(queue_id, -1)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Offsets of all queues of a topic."""
        return self._table.offsets.get(TopicGroup(topic, group), _NONE)

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember what was handed out, if there is room."""
        key = TopicGroup(topic, group)
        queues = self._pulled.get(key, _NONE)
        if queue_id not in queues:
            if not self._has_room(self._pulled, key, self._pulled_count):
                return
            self._pulled_count += 1
            queues = self._pulled.setdefault(key, {})
        queues[queue_id] = offset

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to hand out, -1 if none was."""
        return self._pulled.get(TopicGroup(topic, group), _NONE).get(queue_id, -1)

    # -- resets ----------------------------------------------------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group: the next pull of the queue is told, and the offset counts from now on."""
        if group in BROKERS_OWN:
            return
        self._set(group, topic, queue_id, offset)
        self._resets.setdefault(TopicGroup(topic, group), {})[queue_id] = offset
        for listener in self.on_reset:
            listener(topic, queue_id)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the queue waits for its next pull."""
        return bool(self._resets) and queue_id in self._resets.get(TopicGroup(topic, group), _NONE)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The target of a pending reset, which is over with this call; None if there is none."""
        if not self._resets:
            return None
        key = TopicGroup(topic, group)
        queues = self._resets.get(key)
        if queues is None:
            return None
        target = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return target

    # -- tables ----------------------------------------------------------------------------------------------

    def all(self) -> Iterator[tuple[TopicGroup, Mapping[int, int]]]:
        """Every topic and group with the offsets of its queues."""
        yield from self._table.offsets.items()

    def copy(self, table: ConsumerOffsetTable, gone: Iterable[TopicGroup] | None = None) -> None:
        """What a replica does: take a master's offsets over, without those `gone`; None: all but these are."""
        mine = self._table.offsets
        if gone is None:
            gone = [key for key in mine if key not in table.offsets]
        changes: list[JsonValue] = []
        for key in [key for key in gone if key in mine]:
            self._count -= len(mine.pop(key))
            changes.append(offsets_change(key, None))
        for key, queues in table.offsets.items():
            known = mine.get(key, _NONE)
            if known != queues:
                self._count += len(queues) - len(known)
                mine[key] = dict(queues)
                changes.append(offsets_change(key, queues))
        if changes:
            self.stored.changed(*changes)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that have offsets in a topic."""
        return [key.group for key in self._table.offsets if key.topic == topic]

    def topics_of_group(self, group: str) -> list[str]:
        """Topics in which a group has offsets."""
        return [key.topic for key in self._table.offsets if key.group == group]

    def remove_topic(self, topic: str) -> None:
        """The topic is gone: forget everybody's progress in it."""
        self._remove([key for key in self._keys() if key.topic == topic])

    def remove_group(self, group: str) -> None:
        """The group is gone: forget its progress, unless it is the broker's own."""
        if group in BROKERS_OWN:
            return
        self._remove([key for key in self._keys() if key.group == group])

    def _keys(self) -> set[TopicGroup]:
        return {*self._table.offsets, *self._pulled, *self._resets}

    def _remove(self, keys: list[TopicGroup]) -> None:
        for key in keys:
            gone = self._table.offsets.pop(key, None)
            if gone is not None:
                self._count -= len(gone)
                self._changed(key, offsets_change(key, None))
            self._pulled_count -= len(self._pulled.pop(key, _NONE))
            self._resets.pop(key, None)
