"""Queue files against the log: entry by entry where both have one, and what only one of them has.

The log is right. An entry that differs is still sound if it leads to a record of its own topic, queue and
offset: the topic was deleted and made again, and the older records wait in the log for retention.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock._hot.checks import check
from penstock._hot.layout import ENTRY_SIZE
from penstock._hot.queues import SCHEDULE_TOPIC
from penstock.message import decode_record
from penstock.store.consume_queue import EMPTY_ENTRY, Entry
from penstock.store.inspection.log_pass import LogPass, QueueTrack
from penstock.store.inspection.queue_files import QueueFiles
from penstock.store.inspection.report import QueueTotals
from penstock.store.inspection.view import StoreView

# Tag codes below every 32-bit hash are places in RocketMQ's extension file, which is not looked into.
EXTENSION_MAX = -(1 << 31) - 1
LIGHT_QUEUE_PREFIX = "%LMQ%"


@dataclass(slots=True)
class WrongRun:
    """Neighbouring wrong entries of one file, told as one issue."""

    queue: QueueFiles
    first: int
    last: int
    position: int
    reason: str


class QueueCheck:
    """Give `compare` to a pass, then call `finish` with it. Used by one thread."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._issues = view.issues
        self._run: WrongRun | None = None
        self._first_missing: dict[tuple[str, int], int] = {}
        self._told: set[tuple[str, int]] = set()
        self._entries = self._wrong = self._missing = 0

    def compare(self, track: QueueTrack, first: int, data: bytes) -> None:
        """Entries as the log wants them, from offset `first` on."""
        queue = self._view.queues.get((track.topic, track.queue_id))
        if queue is None:
            return
        count = len(data) // ENTRY_SIZE
        known = max(min(count, queue.end - first), 0)
        if known < count:
            at = known * ENTRY_SIZE
            self._first_missing.setdefault(
                (track.topic, track.queue_id), int.from_bytes(data[at : at + 8], "big")
            )
        actual = queue.read(first, first + known)
        self._entries += known
        if actual == data[: known * ENTRY_SIZE]:
            return
        for i in range(known):
            wanted = data[i * ENTRY_SIZE : (i + 1) * ENTRY_SIZE]
            found = actual[i * ENTRY_SIZE : (i + 1) * ENTRY_SIZE]
            if wanted != found:
                reason = self._judge(track, first + i, wanted, found)
                if reason:
                    self._wrong += 1
                    self._extend(queue, first + i, int.from_bytes(wanted[:8], "big"), reason)

    def _judge(self, track: QueueTrack, offset: int, wanted: bytes, found: bytes) -> str:
        """What is wrong with an entry; nothing, if it only looks so."""
        if found == EMPTY_ENTRY:
            return "is empty"
        want, have = Entry.decode(wanted), Entry.decode(found)
        if have.is_filler:
            return "says that there is no record"
        if (have.position, have.size) == (want.position, want.size):
            extended = have.tags_code <= EXTENSION_MAX and self._view.has_extension(track.topic)
            if extended or track.state.topic == SCHEDULE_TOPIC:
                return ""
            return f"has tag code {have.tags_code}, the record's is {want.tags_code}"
        if self._leads_to(track, offset, have):
            return ""
        return f"leads to {have.position} ({have.size} bytes), the record is at {want.position} ({want.size})"

    def _leads_to(self, track: QueueTrack, offset: int, entry: Entry) -> bool:
        record = self._view.log.slice(entry.position, entry.size) if entry.position >= 0 else None
        if record is None or check(record, 0, len(record), entry.position) != entry.size:
            return False
        message = decode_record(record, entry.position, verify=False)
        return (message.topic, message.queue_id, message.queue_offset) == (
            track.topic,
            track.queue_id,
            offset,
        )

    def _extend(self, queue: QueueFiles, offset: int, position: int, reason: str) -> None:
        run = self._run
        if run is not None and run.queue is queue and run.last + 1 == offset and queue.place_of(offset):
            run.last = offset
            return
        self._tell()
        self._run = WrongRun(queue, offset, offset, position, reason)

    def _tell(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        name, count = f"{run.queue.topic}/{run.queue.queue_id}", run.last - run.first + 1
        detail = f"{name} offset {run.first} {run.reason}"
        if count > 1:
            detail = f"{count} entries of {name} from offset {run.first} on are wrong; the first {run.reason}"
        self._issues.damage(
            "damaged queue",
            detail,
            position=run.position,
            length=0,
            path=str(run.queue.path_of(run.first)),
            at=run.queue.place_of(run.first),
        )

    # -- what only one side has ------------------------------------------------------------------------------

    def finish(self, log_pass: LogPass) -> QueueTotals:
        """Holes, queues that end too early or too late, and queues without folder or without records."""
        self._tell()
        behind = ahead = 0
        topics = self._view.known_topics()
        for track in log_pass.tracks.values():
            self._tell_holes(track, log_pass)
            if track.begun_anew:
                self._issues.note("topic begun anew", f"{track.name} was deleted and made again")
            queue = self._view.queues.get((track.topic, track.queue_id))
            if queue is None:
                behind += self._without_folder(track, topics)
            elif track.next_offset > queue.end:
                behind += self._behind(track, queue)
            else:
                ahead += self._ahead(queue, track.next_offset, log_pass)
        tracked = {(track.topic, track.queue_id) for track in log_pass.tracks.values()}
        for key, queue in self._view.queues.items():
            if key not in tracked and not queue.topic.startswith(LIGHT_QUEUE_PREFIX):
                ahead += self._ahead(queue, queue.first_at_or_after(self._view.log.min_offset), log_pass)
        if behind:
            self._issues.note(
                "queues behind", f"{behind} entries are not in their files yet; an open adds them"
            )
        if ahead:
            self._issues.note(
                "queues ahead", f"{ahead} entries lead behind the log's end; an open drops them"
            )
        self._compare_manifest(topics)
        return QueueTotals(
            topics=len({topic for topic, _ in self._view.queues}),
            queues=len(self._view.queues),
            entries=self._entries,
            wrong_entries=self._wrong,
            missing_entries=self._missing,
        )

    def _tell_holes(self, track: QueueTrack, log_pass: LogPass) -> None:
        for hole in track.holes:
            offsets = (
                f"offset {hole.first}"
                if hole.last - hole.first == 1
                else f"offsets {hole.first} to {hole.last - 1}"
            )
            if log_pass.is_lost(max(hole.after, self._view.log.min_offset), hole.before):
                self._issues.note(
                    "messages lost", f"{track.name} {offsets}, in the damage before", position=hole.before
                )
            else:
                self._issues.damage(
                    "damaged queue",
                    f"{track.name} {offsets}: the log has no such message",
                    position=hole.before,
                )

    def _without_folder(self, track: QueueTrack, topics: frozenset[str] | None) -> int:
        """A queue that the log has and the directory has not; how many entries an open is expected to make."""
        if not track.messages:
            return 0
        if self._view.has_batch_queue(track.topic):
            self._issues.note("queue not checked", f"{track.topic} has queues of RocketMQ's batch format")
            return 0
        manifest = self._view.manifest
        self._told.add((track.topic, track.queue_id))
        folder = str(self._view.paths.queue(track.topic, track.queue_id))
        detail = f"{track.name} has {track.messages} messages in the log"
        if (topics is not None and track.topic not in topics) or (
            manifest is not None and (track.topic, track.queue_id) not in manifest.ends and self._view.clean
        ):
            self._issues.note("topic deleted", f"{detail}, which wait for retention", path=folder)
        elif self._view.clean or (manifest is not None and manifest.ends.get((track.topic, track.queue_id))):
            # A queue gets its folder with its first entries on disk, which the manifest then counts.
            self._missing += track.messages
            self._issues.damage("damaged queue", f"folder is missing: {detail}", path=folder)
        else:
            self._missing += track.messages
            return track.messages
        return 0

    def _behind(self, track: QueueTrack, queue: QueueFiles) -> int:
        """Entries that the log has and the queue has not: damage after a clean stop, else work for an open."""
        missing = track.next_offset - max(queue.end, track.first)
        self._missing += missing
        self._told.add((track.topic, track.queue_id))
        if not self._view.clean:
            return missing
        self._issues.damage(
            "damaged queue",
            f"{track.name} ends at offset {queue.end}, the log goes on to {track.next_offset}",
            position=self._first_missing.get((track.topic, track.queue_id), -1),
            path=str(queue.path_of(queue.end)),
            at=queue.place_of(queue.end),
        )
        return 0

    def _ahead(self, queue: QueueFiles, log_next: int, log_pass: LogPass) -> int:
        """Entries that the queue has and the log has not; how many of them a crash explains."""
        extra = queue.end - log_next
        if extra <= 0:
            return 0
        entry = queue.entry(log_next)
        where = f"{queue.topic}/{queue.queue_id} offset {log_next}"
        path, at = str(queue.path_of(log_next)), queue.place_of(log_next)
        if entry.is_filler or log_pass.is_lost(entry.position, entry.position + max(entry.size, 1)):
            self._issues.note(
                "messages lost",
                f"{extra} from {where} on have no record",
                position=entry.position,
                path=path,
                at=at,
            )
        elif entry.position >= self._view.end.position and not self._view.clean:
            return extra
        else:
            self._wrong += extra
            self._issues.damage(
                "damaged queue",
                f"{extra} entries from {where} on lead to no record of this queue",
                position=entry.position,
                path=path,
                at=at,
            )
        return 0

    def _compare_manifest(self, topics: frozenset[str] | None) -> None:
        """Our own note of how far each queue was synced catches a lost file whose records are gone too."""
        manifest = self._view.manifest
        for (topic, queue_id), end in manifest.ends.items() if manifest is not None else ():
            queue = self._view.queues.get((topic, queue_id))
            have = queue.end if queue is not None else 0
            deleted = topics is not None and topic not in topics
            if have < end and not deleted and (topic, queue_id) not in self._told:
                self._issues.damage(
                    "damaged queue",
                    f"{topic}/{queue_id} ends at offset {have}, it had {end}",
                    path=str(self._view.paths.queue(topic, queue_id)),
                )
