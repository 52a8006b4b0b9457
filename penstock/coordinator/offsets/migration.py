"""Offsets from RocketMQ's `consumerOffset.json` to ZooKeeper, and back.

Rules. Nothing goes back: where both places have an offset, the higher one stays, unless the caller wants the source
to win. Copying twice changes nothing more, so a copy that was interrupted is simply made again. What cannot be copied
is counted and named, never dropped in silence. The table is data in memory; its owner reads and writes the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.offsets.layout import OffsetKey
from penstock.coordinator.offsets.storage import OffsetStorage
from penstock.errors import CodecError
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """How many offsets were copied, how many the target kept because it is as far or further, and which ones cannot
    be copied, each with its reason."""

    copied: int
    kept: int
    skipped: tuple[str, ...] = ()


async def copy_to_storage(
    table: ConsumerOffsetTable, storage: OffsetStorage, *, overwrite: bool = False
) -> MigrationReport:
    """Everything of the table into ZooKeeper; written when this returns. RocketMQ's -1, "nothing consumed yet", has
    no counterpart there: an offset that is missing says the same."""
    await storage.flush()  # What waits for being written counts as stored.
    stored = await storage.load_all()
    copied = kept = 0
    skipped: list[str] = []
    for (topic, group), queues in table.offsets.items():
        for queue, offset in queues.items():
            key = OffsetKey(group, topic, queue)
            before = stored.get(key)
            if before is not None and (offset == before.offset or (offset < before.offset and not overwrite)):
                kept += 1
                continue
            try:
                storage.commit(key, offset)
            except CodecError as error:
                skipped.append(f"{topic}@{group} queue {queue}: {error.message}")
                continue
            copied += 1
    await storage.flush()
    return MigrationReport(copied, kept, tuple(skipped))


async def copy_from_storage(
    storage: OffsetStorage, table: ConsumerOffsetTable, *, overwrite: bool = False
) -> MigrationReport:
    """Everything of this broker in ZooKeeper into the table. Message ids have no place there and are left behind."""
    await storage.flush()  # What waits for being written counts as stored.
    copied = kept = 0
    skipped: list[str] = []
    for key, stored in (await storage.load_all()).items():
        if "@" in key.topic:
            # `topic@group` is the key in the file; it is cut at the first @.
            skipped.append(f"{key.topic} of {key.group}: the file cannot have an @ in the name of a topic")
            continue
        queues = table.offsets.setdefault(TopicGroup(key.topic, key.group), {})
        before = queues.get(key.partition)
        if before is not None and (before == stored.offset or (before > stored.offset and not overwrite)):
            kept += 1
            continue
        queues[key.partition] = stored.offset
        copied += 1
    return MigrationReport(copied, kept, tuple(skipped))
