"""Opening a directory: find the true end of the log and make queues and index agree with it.

After a clean stop only the end of the log is read. After a crash everything newer than the checkpoint is:
queue entries of that part are dropped and built again from the log. Reading checks every record.

Where a record is not valid there are three cases:
  1. nothing valid follows: the end of the log, maybe a torn last write. The log is cut here.
  2. something valid follows, and the place was never known to be on disk: writes of a crash that reached the
     disk out of order. Nobody was told they were flushed. The log is cut here too, and says what it dropped.
  3. the place was on disk already: damage. It is reported with position and length, what lies before and after
     it is kept, and its queue offsets are never given out again.

Offsets that a queue file proves to have been given out are never given out again, also where they are newer than
checkpoint and manifest: if the log has lost their records, they stay unused. They are noted in the manifest before
the first queue file is cut, so that a crash inside recovery does not lose the proof. A replica does not skip them
while it follows, as its master sends the records again; it does if it becomes master without them.

Order of the final steps, so that a crash inside recovery changes nothing: cut and zero the tail, rewrite and
sync what was never known to be on disk (a failed fsync may have left pages that are only in memory), then
write queues and index, sync them, and only then move the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from penstock._hot.checks import check
from penstock._hot.layout import BAD_CHECKSUM, BLANK, BLANK_SIZE, MAGIC_BLANK, NOTHING, REASONS
from penstock._hot.reads import find_record, is_zero, store_timestamp, walk
from penstock.store.checkpoint import Checkpoint
from penstock.store.dispatching import NOT_HELD, RescanNeeded, raise_end
from penstock.store.findings import Finding
from penstock.store.queue_table import NUMBER_MAX, Manifest
from penstock.store.segment import Segment

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore

# Small enough that the second look, which dispatches, still finds the records in the cache.
CHUNK = 512 << 10
COPY = 1 << 20
KEYS_PENDING_MAX = 1 << 17
# What says that more segments than these are lost at the end of a log is damaged itself.
LOST_SEGMENTS_MAX = 4096
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class RecoveryReport:
    """What opening the store did."""

    clean: bool = True
    start: int = 0
    end: int = 0
    records: int = 0
    bytes_read: int = 0
    bytes_dropped: int = 0
    bytes_rewritten: int = 0
    full_scan: bool = False
    damage: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def discard_impossible(store: MessageStore, checkpoint: Checkpoint, *, clean: bool) -> None:
    """Before anything uses them: files that lead to where no log can be are not believed.

    Queues, manifest and checkpoint remember a log whose last segments are lost. But a damaged number in one of them
    must neither move the end of the log to where it points nor hide records. After a clean stop the checkpoint says
    exactly where the log ended; otherwise it may have lost some segments, not thousands.
    """
    log, queues = store.log, store.queues
    if not log.segments:
        return
    limit = log.first_base + (len(log.segments) + LOST_SEGMENTS_MAX) * log.segment_size
    manifest, path = queues.manifest, str(store.paths.manifest)
    if max(manifest.flushed_to, manifest.dispatched_to, manifest.cut_to) > limit:
        store.findings.add(
            Finding("manifest unreadable", f"ignored: it knows of a log behind {limit}", path=path)
        )
        manifest = queues.manifest = Manifest(ends=manifest.ends)
        queues.has_manifest = False
    if max(checkpoint.durable_offset, checkpoint.confirm_offset) > limit:
        store.findings.add(
            Finding(
                "checkpoint not trusted",
                f"ignored: it knows of a log behind {limit}",
                path=str(store.paths.checkpoint),
            )
        )
        checkpoint.trusted = checkpoint.sealed = False
        checkpoint.confirm_offset = checkpoint.flushed_offset = 0
    # A Java broker's directory has no manifest, and a checkpoint without our seal.
    of_java = checkpoint.trusted and not checkpoint.sealed
    exact = clean and checkpoint.durable_offset > 0 and queues.has_manifest
    queues.must_rebuild = not queues.has_manifest and not of_java
    queues.discard_damaged(
        max(checkpoint.durable_offset, manifest.flushed_to) if exact else limit, exact=exact
    )


class Recovery:
    """One use: `run` once, on parts that were loaded and not yet shared with anybody."""

    def __init__(
        self, store: MessageStore, checkpoint: Checkpoint, *, clean: bool, progress: Progress | None = None
    ) -> None:
        self._log = store.log
        self._queues = store.queues
        self._index = store.index
        self._dispatch = store.dispatch
        self._dispatcher = store.dispatcher
        self._findings = store.findings
        self._read_only = store.is_read_only
        self._is_replica = store.gate.is_replica
        self._checkpoint = checkpoint
        self._clean = clean
        self._progress = progress or (lambda done, total: None)
        self._report = RecoveryReport(clean=clean)
        # What two files vouch for; a clean stop also synced everything that the queues know of.
        known = max(checkpoint.durable_offset, store.queues.manifest.flushed_to)
        self._durable = max(known, store.queues.max_phy if clean else 0)
        self._last_record = -1
        self._near_end = False

    def run(self) -> RecoveryReport:
        """Find the end and bring everything in line with it."""
        findings_before = self._findings.total
        if not self._log.segments:
            self._start_empty()
        else:
            if not self._clean and not self._read_only:
                self._queues.note_used(self._used_ends())
            end, lost_from = self._scan_all()
            self._report.end = end
            self._adopt(end, lost_from)
        self._keep_offsets()
        for segment in self._log.segments:
            if segment is not None:
                segment.leave_pages()
        new = self._findings.total - findings_before
        self._report.damage = [f for f in self._findings.all()[-new:] if new and f.is_damage]
        return self._report

    def _used_ends(self) -> dict[tuple[str, int], int]:
        """Queues whose files go beyond the manifest, with their ends."""
        found = {}
        for queue in self._queues:
            end = queue.max_offset
            newest, before = queue.entry(end - 1), queue.entry(end - 2)
            if newest is None or newest.is_filler or newest.end > NUMBER_MAX:
                continue
            if before is not None and not before.is_filler and before.position >= newest.position:
                continue  # no queue looks like this: damage, and no proof
            if end > self._queues.manifest.ends.get((queue.topic, queue.queue_id), 0):
                found[queue.topic, queue.queue_id] = end
        return found

    # -- where to begin --------------------------------------------------------------------------------------

    def _start_empty(self) -> None:
        """No log. If queues remember one, positions go on after it instead of meaning two things."""
        known = max(self._queues.max_phy, self._durable, 0)
        size = self._log.segment_size
        self._log.first_base = -(-known // size) * size
        if known:
            self._findings.add(
                Finding(
                    "damaged log", "queues point to a log that is gone; a new one begins after it", 0, known
                )
            )
        self._dispatch.offset = self._report.start = self._report.end = self._log.first_base

    def _start(self) -> int:
        """Log position to read from; a segment's first byte, or a record's where nothing will be written."""
        bases = [segment.base for segment in self._log.segments if segment is not None]
        # A Java broker that ran here meanwhile has deleted and made files that the manifest knows nothing of; it
        # leaves our seal on the checkpoint broken.
        ours = self._checkpoint.sealed
        if ours and bases[0] > self._queues.manifest.log_start:
            lost = bases[0] - self._queues.manifest.log_start
            self._findings.add(Finding("damaged log", "the first segments are gone", bases[0] - lost, lost))
        manifest = self._queues.manifest
        lost_index = self._index.lost_files(manifest.index_files) if ours else []
        if lost_index:
            names = ", ".join(lost_index)
            self._findings.add(
                Finding("index file dropped", f"{names} missing; all are rebuilt from the log")
            )
            self._index.clear(f"{names} missing")
        # A seal that is broken may be damage: then queues that begin too late are built again, too.
        is_short = self._queues_are_short(ours or not self._checkpoint.trusted)
        if is_short or self._queues.must_rebuild or lost_index or self._index.end_phy < manifest.index_end:
            self._report.full_scan = True
            return bases[0]
        if self._clean:
            if self._read_only and (newest := self._newest_record()) >= 0:
                self._near_end = True
                return newest
            newest = max(self._queues.max_phy - 1, 0)
            return max((base for base in bases if base <= newest), default=bases[0])
        limit = self._checkpoint.min_timestamp if self._checkpoint.trusted else 0
        for segment in reversed(self._log.segments):
            if segment is None or segment.available < 91:
                continue
            if check(segment.view.source, 0, min(segment.available, CHUNK), segment.base) > 0:
                first_time = store_timestamp(segment.view, 0)
                if 0 < first_time <= limit:
                    return segment.base
        return bases[0]

    def _newest_record(self) -> int:
        """Log position of the newest record that a queue leads to, -1 if it is not sound. A reader of a store that
        stopped in order needs nothing before it: nobody writes after this look at the end."""
        found = -1
        for queue in self._queues:
            entry = queue.entry(queue.max_offset - 1)
            if entry is not None and entry.is_valid and not entry.is_filler:
                found = max(found, entry.position)
        segment = self._log.segment_of(found) if found >= 0 else None
        if segment is None:
            return -1
        local = found - segment.base
        return found if check(segment.view.source, local, segment.available, found) > 0 else -1

    def _queues_are_short(self, ours: bool) -> bool:
        """Whether a queue ends before the place that the manifest remembers, or begins after it (`ours`: no Java
        broker has deleted its first files): files were lost."""
        short = False
        for (topic, queue_id), end in self._queues.manifest.ends.items():
            queue = self._queues.get(topic, queue_id)
            have = queue.max_offset if queue else 0
            if have < end:
                short = True
                self._findings.add(
                    Finding("queue file lost", f"{topic}/{queue_id} ends at {have}, it had {end}; rebuilding")
                )
            start = self._queues.manifest.starts.get((topic, queue_id), 0)
            if ours and queue is not None and queue.has_files and queue.first_offset > start:
                short = True
                self._findings.add(
                    Finding(
                        "queue file lost",
                        f"{topic}/{queue_id} begins at {queue.first_offset}, it had {start}; rebuilding",
                    )
                )
                queue.clear()
        return short

    # -- reading ---------------------------------------------------------------------------------------------

    def _scan_all(self) -> tuple[int, int]:
        start = self._start()
        self._dispatch.rescan_on_gap = start > self._log.min_offset
        try:
            found = self._scan(start)
            # A queue that lost offsets although it had them has damaged entries: all of them are made again.
            if self._dispatch.rescan_on_gap and self._has_lost_offsets():
                raise RescanNeeded
            return found
        except RescanNeeded:
            self._report = RecoveryReport(clean=self._clean, full_scan=True)
            self._dispatch.rescan_on_gap = False
            return self._scan(self._log.min_offset)
        finally:
            self._dispatch.rescan_on_gap = False

    def _has_lost_offsets(self) -> bool:
        ends = self._queues.manifest.ends.items()
        queues = ((self._queues.get(*key), end) for key, end in ends)
        return any(queue is None or queue.max_offset < end for queue, end in queues)

    def _scan(self, start: int) -> tuple[int, int]:
        """Read from `start`; (end of the log, position from which a destroyed end is missing, or -1)."""
        self._report.start = start
        self._dispatcher.indexed_to = self._index.end_phy
        if not self._clean or self._report.full_scan:
            for queue in self._queues:
                queue.cut(start)
        self._dispatch.offset = position = start
        total = len(self._log.segments) * self._log.segment_size - (start - self._log.first_base)
        while True:
            segment = self._log.segment_of(position)
            if segment is None:
                if position >= self._log.first_base + len(self._log.segments) * self._log.segment_size:
                    return self._beyond_last(position)
                position += self._log.segment_size
                continue
            local = position - segment.base
            end, verify = local + CHUNK, 1
            if not self._clean:
                # What was on disk can be damaged, but not torn: the two parts are looked at apart.
                is_known = position < self._durable
                end, verify = (min(end, self._durable - segment.base), 1) if is_known else (end, 2)
            stop, why, count, last = walk(
                segment.view, local, min(end, segment.available), segment.base, verify
            )
            self._report.records += count
            self._report.bytes_read += stop - local
            self._last_record = segment.base + last if last >= 0 else self._last_record
            position = segment.base + stop
            self._dispatch_to(position)
            self._progress(position - start, total)
            if why == 0:
                if stop >= segment.size:
                    position = segment.base + segment.size
                if stop < segment.available or segment.available == segment.size:
                    continue
                why = NOTHING  # a short file, read as far as it goes
            if why == BLANK:
                position = segment.base + segment.size
                continue
            # Behind the newest record of a store that stopped in order there is nothing to look for.
            at_end = self._near_end and why == NOTHING
            following = None if at_end else self._after(segment, position, why)
            if following is None or not self._was_durable(position, following):
                return self._end_here(position, following)
            self._report_damage(position, following, why)
            if why == BAD_CHECKSUM:
                # Its lengths are sound, so its queue entry is kept and reads of it say what is wrong.
                self._dispatch_to(following)
            position = following

    def _dispatch_to(self, position: int) -> None:
        self._dispatch.catch_up(position)
        self._dispatcher.next_round()
        if self._read_only:
            return
        for state in self._dispatcher.take_heavy():
            state.owner.drain()
        if self._dispatcher.key_count > KEYS_PENDING_MAX:
            self._absorb_keys()

    def _absorb_keys(self) -> None:
        keys, count = self._dispatcher.take_keys()
        if not self._read_only:
            self._index.put(keys, count)
        self._dispatcher.give_back(keys)

    def _after(self, segment: Segment, position: int, why: int) -> int | None:
        """Position of the next valid record, in this segment or a later one."""
        local = position - segment.base
        if why == BAD_CHECKSUM:
            size = int.from_bytes(segment.view.slice(local, local + 4), "big")
            if position + size < self._durable or self._valid_at(segment, local + size):
                return position + size
        found = self._search(segment, local + 1)
        if found is not None:
            return found
        number = (segment.base - self._log.first_base) // self._log.segment_size
        for later in self._log.segments[number + 1 :]:
            if later is not None:
                found = later.base if self._valid_at(later, 0) else self._search(later, 0)
                if found is not None:
                    return found
        return None

    @staticmethod
    def _search(segment: Segment, start: int) -> int | None:
        """First valid record of a segment from `start` on.

        Only what was ever written is searched: the rest may be a gigabyte of nothing. The ranges are asked for
        before the map is touched, because reading ahead into nothing makes it look written.
        """
        for low, high in list(segment.file.data_ranges(start, segment.available)):
            found = find_record(segment.view, max(start, low - 8), high, segment.base)
            if found >= 0:
                return segment.base + found
        return None

    def _valid_at(self, segment: Segment, local: int) -> bool:
        if local + 8 > segment.available:
            return False
        end = min(segment.available, local + CHUNK)
        found = check(segment.view.source, local, end, segment.base + local)
        return found > 0 or found == BLANK

    def _was_durable(self, position: int, following: int) -> bool:
        """Whether the place was on disk before the stop, so that what is wrong with it is damage."""
        if self._clean or position < self._durable:
            return True
        segment = self._log.segment_of(following)
        if segment is None or not self._valid_at(segment, following - segment.base):
            return False
        local = following - segment.base
        if not self._checkpoint.trusted or not self._checkpoint.physic_timestamp:
            return False
        # Strictly: a record of the same millisecond may have come after the sync.
        return 0 < store_timestamp(segment.view, local) < self._checkpoint.physic_timestamp

    def _report_damage(self, position: int, following: int, why: int) -> None:
        self._findings.add(
            Finding("damaged record", f"{REASONS[why]}; what follows is kept", position, following - position)
        )

    # -- the end ---------------------------------------------------------------------------------------------

    def _end_here(self, position: int, following: int | None) -> tuple[int, int]:
        if following is not None:
            self._findings.add(
                Finding(
                    "unflushed records dropped",
                    f"a hole at {position} was never flushed; records from {following} on were not either",
                    position,
                )
            )
        if following is None and position < self._durable:
            self._findings.add(
                Finding("damaged log", "the end of the log is gone", position, self._durable - position)
            )
            size = self._log.segment_size
            return -(-self._durable // size) * size, position
        return position, -1

    def _beyond_last(self, position: int) -> tuple[int, int]:
        """Every segment is full; the log goes on in a new one, after any that a lost file held."""
        if self._durable <= position:
            return position, -1
        self._findings.add(
            Finding("damaged log", "the last segments are gone", position, self._durable - position)
        )
        size = self._log.segment_size
        return -(-self._durable // size) * size, -1

    def _adopt(self, end: int, lost_from: int) -> None:
        """Make `end` the end of everything."""
        log = self._log
        if self._read_only:
            log.set_end(end)
        else:
            self._cut_tail(end, lost_from)
            log.set_end(end)
            if not self._clean:
                self._make_certain(end)
        self._settle_dispatch(end)
        if self._last_record >= 0:
            segment = log.segment_of(self._last_record)
            if segment is not None:
                log.last_timestamp = store_timestamp(segment.view, self._last_record - segment.base)
        if self._queues.max_phy > end:
            for queue in self._queues:
                if queue.state.max_phy > end:
                    queue.cut(end)
        self._absorb_keys()
        if self._index.end_phy >= end:
            self._index.cut(end)
            self._index_again(end)

    def _settle_dispatch(self, end: int) -> None:
        """All is visible up to the log's end, or up to the bound, which cannot lie behind it."""
        dispatch = self._dispatch
        dispatch.restart(end if dispatch.limit >= end else dispatch.offset)
        if dispatch.bounded_at != NOT_HELD:
            dispatch.bound(min(dispatch.bounded_at, end))

    def _index_again(self, end: int) -> None:
        """The newest index file reached beyond the end and was dropped: enter its sound part again."""
        end = min(end, self._dispatch.offset)
        self._dispatcher.indexed_to = self._index.end_phy
        first = max(self._index.end_phy, self._log.min_offset)
        self._dispatch.offset = first - first % self._log.segment_size
        while self._dispatch.offset < end:
            self._dispatch_to(min(end, self._dispatch.offset + self._log.segment_size))
        self._absorb_keys()

    def _cut_tail(self, end: int, lost_from: int) -> None:
        """Nothing stale may follow the end: it would pass for a record after the next crash (I11)."""
        log = self._log
        cut_at = lost_from if lost_from >= 0 else end
        for segment in [
            s for s in log.segments if s is not None and s.base >= max(cut_at, 1) and s.base > end
        ]:
            # A dense copy of a preallocated segment holds nothing but zeros: nothing is lost with it.
            ranges = list(segment.file.data_ranges(0, segment.available))
            self._report.bytes_dropped += sum(b - a for a, b in ranges if not is_zero(segment.view, a, b))
            log.remove_segment(segment)
        last = log.segment_of(cut_at)
        if last is None:
            return
        self._report.bytes_dropped += log.zero(cut_at, last.base + last.size)
        room = last.base + last.size - lost_from
        if lost_from >= 0 and room >= BLANK_SIZE:
            blank = room.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
            last.file.pwrite(blank, lost_from - last.base)
            last.file.sync()

    def _make_certain(self, end: int) -> None:
        """Rewrite and sync what no sync is known to have covered, so that recovered means on disk."""
        log = self._log
        uncertain = max(self._report.start, min(self._checkpoint.durable_offset, end))
        if not self._checkpoint.sealed:
            uncertain = max(self._report.start, end - end % log.segment_size)
        for segment in log.segments:
            if segment is None or segment.base + segment.size <= self._report.start or segment.base >= end:
                continue
            low = max(uncertain - segment.base, 0)
            high = min(end - segment.base, segment.size)
            for at in range(low, high, COPY):
                part = segment.file.pread(min(COPY, high - at), at)
                segment.file.pwrite(part, at)
                self._report.bytes_rewritten += len(part)
            segment.file.sync()

    def _keep_offsets(self) -> None:
        """No queue starts below the offset it had, and every queue knows its oldest readable offset."""
        manifest = self._queues.manifest
        ends = dict(manifest.ends)
        if not self._is_replica:
            for key, end in manifest.used.items():
                ends[key] = max(end, ends.get(key, 0))
        for (topic, queue_id), end in ends.items():
            queue = self._queues.get_or_create(topic, queue_id)
            missing = end - queue.max_offset
            if missing > 0 and queue.max_offset:
                self._findings.add(
                    Finding(
                        "damaged queue" if self._clean else "unflushed messages lost",
                        f"{missing} messages of {topic}/{queue_id} from offset {queue.max_offset} on are not in "
                        "the log; their offsets stay unused",
                    )
                )
            raise_end(queue, end)
        for queue in self._queues:
            queue.correct_min(self._log.min_offset)
            queue.state.next_offset = queue.max_offset
