"""`dump`: messages one after the other, from the log or from a topic's queues. Damage takes its place in the
row instead of being left out.

The log is read as its files are. Queues are read through a store opened read-only, which builds in memory what
a crash kept out of their files. Who stops early closes the generator, which closes the files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

from penstock.errors import StoreError
from penstock.message import StoredMessage
from penstock.runtime import Runtime
from penstock.store.inspection.log_scan import DamagedRange, records_from
from penstock.store.inspection.view import StoreView
from penstock.store.layout import StorePaths
from penstock.store.message_store import MessageStore
from penstock.store.reading import GetStatus
from penstock.store.recovery import Progress
from penstock.store.sizes import GivenSizes, detect_sizes

AT_ONCE = 256
NAMED_MAX = 10


def dump_log(
    path: Path, given: GivenSizes | None = None, *, start: int = 0, runtime: Runtime | None = None
) -> Generator[StoredMessage | DamagedRange]:
    """Messages in the order of the log, from the first record at or after a log position."""
    with StoreView(path, given or GivenSizes(), runtime or Runtime.system()) as view:
        yield from records_from(view.log, start, view.end.position)


def dump_queues(
    path: Path,
    topic: str,
    queue_id: int | None = None,
    given: GivenSizes | None = None,
    *,
    start: int = 0,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
) -> Generator[StoredMessage | DamagedRange]:
    """Messages of one queue of a topic, or of all its queues one after the other, from a queue offset on."""
    runtime = runtime or Runtime.system()
    sizes = detect_sizes(runtime.disk, StorePaths(path), given or GivenSizes())
    options = replace(sizes.options(), index_enabled=False)
    with MessageStore.open(
        path, options, runtime=runtime, read_only=True, background=False, progress=progress
    ) as store:
        for number in _queue_ids(store, topic, queue_id):
            yield from _one_queue(store, topic, number, start)


def _queue_ids(store: MessageStore, topic: str, queue_id: int | None) -> list[int]:
    queues = sorted((queue.topic, queue.queue_id) for queue in store.queues)
    ids = [number for name, number in queues if name == topic]
    if not ids:
        topics = sorted({name for name, _ in queues})
        more = "" if len(topics) <= NAMED_MAX else f" and {len(topics) - NAMED_MAX} more"
        hint = f"it has {', '.join(topics[:NAMED_MAX])}{more}" if topics else "it has no topics"
        raise StoreError(f"the store has no topic {topic!r}", hint)
    if queue_id is None:
        return ids
    if queue_id not in ids:
        raise StoreError(f"topic {topic} has no queue {queue_id}", f"it has {', '.join(map(str, ids))}")
    return [queue_id]


def _one_queue(
    store: MessageStore, topic: str, queue_id: int, start: int
) -> Iterator[StoredMessage | DamagedRange]:
    offset = max(start, store.min_offset(topic, queue_id))
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, AT_ONCE, 16 << 20)
        messages = {message.queue_offset: message for message in result.messages()}
        for at in range(offset, result.next_offset):
            if at in messages:
                yield messages[at]
            else:
                yield _gap(store, topic, queue_id, at, at in result.damaged)
        if result.status is GetStatus.OFFSET_FOUND_NULL or result.next_offset <= offset:
            return
        offset = result.next_offset


def _gap(store: MessageStore, topic: str, queue_id: int, offset: int, damaged: bool) -> DamagedRange:
    queue = store.queues.get(topic, queue_id)
    entry = queue.entry(offset) if queue is not None else None
    name = f"{topic}/{queue_id} offset {offset}"
    if entry is None or entry.is_filler or not damaged:
        return DamagedRange(-1, 0, f"{name} has no record")
    return DamagedRange(entry.position, max(entry.size, 0), f"{name} is damaged")
