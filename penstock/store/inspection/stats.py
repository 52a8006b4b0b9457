"""`stats`: what a store holds and how large it is, without changing it.

Messages are counted by their queue entries, which is quick and misses what a crash kept out of the queues;
`exact` reads the log instead.
"""

from __future__ import annotations

from pathlib import Path

from penstock import _hot
from penstock._hot.reads import store_timestamp
from penstock.runtime import Disk, Runtime
from penstock.store.consume_queue import FILLER
from penstock.store.inspection.log_pass import LogPass
from penstock.store.inspection.log_scan import first_record
from penstock.store.inspection.queue_files import QueueFiles
from penstock.store.inspection.report import FileStats, LogTotals, QueueStats, StoreStats
from penstock.store.inspection.view import StoreView
from penstock.store.key_index import IndexHeader
from penstock.store.recovery import Progress
from penstock.store.sizes import GivenSizes, index_file_names

ENTRIES_AT_ONCE = 1 << 16


def stats(
    path: Path,
    given: GivenSizes | None = None,
    *,
    exact: bool = False,
    runtime: Runtime | None = None,
    in_use: bool = False,
    progress: Progress | None = None,
) -> StoreStats:
    """Numbers of a store directory."""
    runtime = runtime or Runtime.system()
    started = runtime.clock.monotonic_ms()
    with StoreView(path, given or GivenSizes(), runtime, in_use=in_use) as view:
        if exact:
            log_pass = LogPass(view, checksums=False, progress=progress)
            log_pass.run()
            log, queues = log_pass.totals(), _counted_in_log(log_pass)
        else:
            queues = tuple(_counted_by_entries(view, queue) for queue in view.queues.values())
            log = _log_ends(view)
        usage = runtime.disk.usage(path)
        return StoreStats(
            path=str(path),
            form=_hot.form(),
            sizes=view.sizes,
            clean=view.clean,
            in_use=in_use,
            exact=exact,
            messages=log.records if exact else sum(queue.messages for queue in queues),
            log=log,
            queues=tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))),
            index_entries=_index_entries(view),
            checkpoint=view.checkpoint,
            files=_files(runtime.disk, path),
            disk_total_bytes=usage.total,
            disk_used_percent=usage.used_percent,
            disk_available_bytes=usage.available,
            duration_ms=runtime.clock.monotonic_ms() - started,
        )


def _counted_in_log(log_pass: LogPass) -> tuple[QueueStats, ...]:
    return tuple(
        QueueStats(track.topic, track.queue_id, track.first, track.next_offset, track.messages, track.bytes)
        for track in log_pass.tracks.values()
    )


def _counted_by_entries(view: StoreView, queue: QueueFiles) -> QueueStats:
    first = queue.first_at_or_after(view.log.min_offset)
    without = 0
    for start in range(first, queue.end, ENTRIES_AT_ONCE):
        entries = queue.read(start, min(start + ENTRIES_AT_ONCE, queue.end))
        if FILLER[8:12] in entries:
            without += sum(entries[at + 8 : at + 12] == FILLER[8:12] for at in range(0, len(entries), 20))
    return QueueStats(queue.topic, queue.queue_id, first, queue.end, queue.end - first - without)


def _log_ends(view: StoreView) -> LogTotals:
    """Extent and times of the log from its two ends."""
    log = view.log
    present = [segment for segment in log.segments if segment is not None]
    times = []
    for segment in present:
        first = first_record(segment, 0, segment.available)
        if first >= 0:
            times.append(store_timestamp(segment.view, first))
            break
    newest = _newest_position(view)
    holder = log.segment_of(newest) if newest >= 0 else None
    if holder is not None and newest + 91 <= view.end.position:
        times.append(store_timestamp(holder.view, newest - holder.base))
    return LogTotals(
        segments=len(present),
        start=log.min_offset,
        end=view.end.position,
        bytes=view.end.position - log.min_offset,
        first_timestamp=times[0] if times else 0,
        last_timestamp=times[-1] if times else 0,
    )


def _newest_position(view: StoreView) -> int:
    """Position of the newest record that a queue knows of."""
    newest = -1
    for queue in view.queues.values():
        if queue.end > queue.first:
            entry = queue.entry(queue.end - 1)
            if not entry.is_filler and entry.end <= view.end.position:
                newest = max(newest, entry.position)
    return newest


def _index_entries(view: StoreView) -> int:
    disk, total = view.runtime.disk, 0
    for name in index_file_names(disk, view.paths):
        file = disk.open(view.paths.index / name, write=False)
        try:
            header = file.pread(40, 0)
        finally:
            file.close()
        if len(header) == 40:
            total += IndexHeader.decode(header).next_entry - 1
    return total


def _files(disk: Disk, root: Path) -> dict[str, FileStats]:
    """Lengths and written parts of the files, by the folder right below the store."""
    found: dict[str, FileStats] = {}
    waiting = [(root, "")]
    while waiting:
        folder, kind = waiting.pop()
        for name in disk.list(folder):
            path = folder / name
            if disk.is_dir(path):
                waiting.append((path, kind or name))
                continue
            try:
                file = disk.open(path, write=False)
            except FileNotFoundError:
                continue  # a broker at work deletes old files and renames new ones
            try:
                size = file.size()
                written = sum(high - low for low, high in file.data_ranges(0, size))
            finally:
                file.close()
            before = found.get(kind or "other", FileStats())
            found[kind or "other"] = FileStats(
                before.files + 1, before.size_bytes + size, before.written_bytes + written
            )
    return dict(sorted(found.items()))
