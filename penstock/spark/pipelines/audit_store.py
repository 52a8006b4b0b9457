"""What the files of a store directory say about topics and groups.

Rule: read-only and without a lock, so a directory in use may be looked at. Groups come from the two config files
that brokers of either kind keep beside the log; where they are missing or damaged there are no groups, and the
messages are audited all the same. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.group_table import SubscriptionGroupTable
from penstock.metadata.offset_table import ConsumerOffsetTable
from penstock.metadata.table_log import load_table, read_log
from penstock.runtime import Runtime
from penstock.spark.pipelines.audit_sources import Progress, QueueKey, Ranges, Source, choose_topics


def store_ranges(source: Source) -> Ranges:
    """First and next offset of every queue of the chosen topics, cut to the source's times."""
    from penstock.spark.offline import OfflineStore

    ranges: dict[QueueKey, tuple[int, int]] = {}
    with OfflineStore(source.path) as store:
        topics = choose_topics(store.topics(), source.topics)
        for queue, whole in store.queues(topics).items():
            first, end = whole
            if source.start is not None:
                first = max(first, store.offset_by_time(queue, source.start))
            if source.end is not None:
                end = min(end, store.offset_by_time(queue, source.end))
            ranges[QueueKey(*queue)] = (first, max(first, end))
    return ranges


def store_groups(directory: Path, topics: set[str]) -> tuple[tuple[Progress, ...], Mapping[str, int]]:
    """Offsets of all groups in these topics, and how often each group tries a message."""
    config = directory / "config"
    disk = Runtime.system().disk
    found: list[Progress] = []
    tries: dict[str, int] = {}
    try:
        journal = read_log(disk, config)
        offset_file = ConfigFile(disk, config / ConsumerOffsetTable.FILE_NAME)
        offsets = load_table(offset_file, ConsumerOffsetTable, journal).value
        group_file = ConfigFile(disk, config / SubscriptionGroupTable.FILE_NAME)
        groups = load_table(group_file, SubscriptionGroupTable, journal).value
    except PenstockError:
        return (), {}
    if offsets is not None:
        for (topic, group), queues in offsets.offsets.items():
            found += [
                Progress(group, QueueKey(topic, "", queue_id), committed)
                for queue_id, committed in queues.items()
                if topic in topics and committed >= 0
            ]
    if groups is not None:
        tries = {name: group.retry_max_times for name, group in groups.groups.items()}
    return tuple(sorted(found)), tries
