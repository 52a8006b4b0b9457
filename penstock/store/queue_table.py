"""All consume queues of a store, by topic and queue id, and the manifest of how far each had come.

The manifest is ours: a queue whose files are gone looks like a new queue, and a new queue would hand out
offsets a second time. A queue that ends before its manifest entry is rebuilt from the log, and never starts
below it.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._hot.dispatch import Dispatcher
from penstock._hot.queues import QueueState
from penstock.runtime import Disk
from penstock.runtime.disk import BulkSyncDisk, write_atomically
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.findings import Finding, Findings
from penstock.store.layout import StorePaths, check_topic, is_topic
from penstock.store.options import StoreOptions
from penstock.store.queue_files import OpenFiles

PAGE = 4096
# Entries a queue gathers in memory before it writes them on its own; the keeper writes fewer at its interval.
TAIL_MAX = 2048
# Queues that are written to their files before an append gets its turn.
GENTLY = 64
# Queues that are synced one by one at most.
SYNC_ALL_FROM = 64
QUEUE_ID_MAX = (1 << 31) - 1
NUMBER_MAX = 1 << 62
SIZE_MAX = 1 << 40


@dataclass(slots=True)
class Manifest:
    """What was there when everything was last synced, and what the files cannot say themselves.

    On disk: one line of JSON, one line with its CRC-32, so that a flipped bit is not taken for a promise.
    """

    # Queue offsets: of the first entry that has a place in a file, and the one after the last entry.
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    index_end: int = -1
    index_files: list[str] = field(default_factory=list)
    log_start: int = 1 << 62
    # The log was on disk up to here: the checkpoint's word, kept a second time in case the checkpoint is lost.
    flushed_to: int = 0
    # Records up to here had their queue entries, so they were confirmed: a bounded store may show them again.
    dispatched_to: int = 0
    # Sizes the directory was made with, 0 where that is not known.
    segment_size_bytes: int = 0
    queue_file_entries: int = 0
    # A cut of the log that was begun and is not finished: `ends` are those after it. -1 if there is none.
    cut_to: int = -1
    # Queue offsets that queue files proved to have been given out when a recovery began, beyond `ends`. A queue goes
    # on from there if its records turn out to be lost; forgotten when `ends` has reached them, or the log was cut.
    used: dict[tuple[str, int], int] = field(default_factory=dict)
    # Topics that were deleted, and the end of the log then: their records before it are not messages any more.
    deleted: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for key, end in list(self.ends.items()):
            topics.setdefault(key[0], []).append((key[1], self.starts.get(key, 0), end))
        # One topic at a time: the text of 100,000 queues at once would hold the interpreter for too long.
        queues = ", ".join(f"{json.dumps(topic)}: {_queues_text(topics[topic])}" for topic in sorted(topics))
        head = {
            "version": 1,
            "segmentSizeBytes": self.segment_size_bytes,
            "queueFileEntries": self.queue_file_entries,
            "logStart": self.log_start,
            "flushedTo": self.flushed_to,
            "dispatchedTo": self.dispatched_to,
            "indexEnd": self.index_end,
            "indexFiles": self.index_files,
        }
        tail: dict[str, object] = {"deletedTopics": self.deleted}
        if self.cut_to >= 0:
            tail["cutTo"] = self.cut_to
        if self.used:
            tail["usedOffsets"] = [[*key, end] for key, end in sorted(self.used.items())]
        line = f'{json.dumps(head)[:-1]}, "queues": {{{queues}}}, {json.dumps(tail)[1:]}'.encode()
        return b"%s\ncrc32 %08x\n" % (line, zlib.crc32(line))

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Raises ValueError for anything that is not a manifest as written."""
        line, _, rest = data.partition(b"\n")
        if rest != b"crc32 %08x\n" % zlib.crc32(line):
            raise ValueError("its checksum does not match")
        try:
            return Manifest._from_json(json.loads(line))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no manifest: {error!r}") from error

    @staticmethod
    def _from_json(value: dict[str, Any]) -> Manifest:
        """A checksum vouches for the bytes, not for sense: what becomes a path or an offset is checked."""
        manifest = Manifest(
            index_end=value["indexEnd"],
            index_files=value["indexFiles"],
            log_start=value["logStart"],
            flushed_to=value["flushedTo"],
            segment_size_bytes=value["segmentSizeBytes"],
            queue_file_entries=value["queueFileEntries"],
            dispatched_to=value.get("dispatchedTo", 0),
            cut_to=value.get("cutTo", -1),
            deleted=value["deletedTopics"],
        )
        for topic, queues in value["queues"].items():
            for queue_id, (start, end) in queues.items():
                key = (topic, int(queue_id))
                manifest.starts[key] = start
                manifest.ends[key] = end
        for topic, queue_id, end in value.get("usedOffsets", ()):
            manifest.used[(topic, queue_id)] = end
        numbers = [
            manifest.index_end + 1,
            manifest.log_start,
            manifest.flushed_to,
            manifest.dispatched_to,
            manifest.cut_to + 1,
            *manifest.deleted.values(),
        ]
        numbers += [*manifest.starts.values(), *manifest.ends.values(), *manifest.used.values()]
        if not all(type(number) is int and 0 <= number <= NUMBER_MAX for number in numbers):
            raise ValueError("it has impossible positions or offsets")
        sizes = (manifest.segment_size_bytes, manifest.queue_file_entries)
        if not all(type(size) is int and 0 <= size <= SIZE_MAX for size in sizes):
            raise ValueError("it has impossible sizes")
        names = value["indexFiles"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("it has impossible names of index files")
        queues = [*manifest.ends, *manifest.used]
        topics = [*manifest.deleted, *(topic for topic, _ in queues)]
        if not all(is_topic(topic) for topic in topics):
            raise ValueError("it has an impossible topic")
        if not all(type(queue_id) is int and 0 <= queue_id <= QUEUE_ID_MAX for _, queue_id in queues):
            raise ValueError("it has an impossible queue id")
        return manifest


def _queues_text(queues: list[tuple[int, int, int]]) -> str:
    return "{" + ", ".join(f'"{number}": [{start}, {end}]' for number, start, end in sorted(queues)) + "}"


def _state_of(queue: ConsumeQueue) -> QueueState:
    return queue.state


class QueueTable:
    """Creates, loads and walks queues. Changed under the store's append lock."""

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        options: StoreOptions,
        findings: Findings,
        dispatcher: Dispatcher,
        *,
        read_only: bool,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._options = options
        self._findings = findings
        self._dispatcher = dispatcher
        self._read_only = read_only
        self._open_files = OpenFiles(disk, options.queue_files_open_max, read_only=read_only)
        # Queues that got entries since the keeper looked last; None where nothing notes them.
        self._recent: set[QueueState] | None = None
        # Length and checksum of the manifest on disk.
        self._written = (0, 0)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.manifest = Manifest()
        self.has_manifest = False
        # Queue files or the manifest were found damaged: recovery reads the whole log.
        self.must_rebuild = False
        # The keeper saves the manifest while appends go on, and so may whoever deletes a topic.
        self._saving = threading.Lock()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def counts(self) -> dict[str, int]:
        """How many queues each topic has, counted up to the last one that is there."""
        found: dict[str, int] = {}
        for queue in self:
            found[queue.topic] = max(found.get(queue.topic, 0), queue.queue_id + 1)
        return found

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no files until its first entries are written."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic)
            queue = self._add(topic, queue_id)
        return queue

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(
            self._disk,
            self._paths,
            topic,
            queue_id,
            self._options.queue_file_entries,
            self._findings,
            read_only=self._read_only,
            born_at=self.manifest.deleted.get(topic, -1),
            open_files=self._open_files,
        )
        self._queues[(topic, queue_id)] = queue
        self._dispatcher.add_queue(queue.state)
        return queue

    def load_manifest(self) -> None:
        """Read the manifest; a directory that a Java broker made has none."""
        if self._disk.exists(self._paths.manifest):
            try:
                self.manifest = Manifest.decode(self._disk.read(self._paths.manifest))
                self.has_manifest = True
            except ValueError as error:
                self._findings.add(
                    Finding("manifest unreadable", f"ignored: {error}", path=str(self._paths.manifest))
                )

    def load(self) -> None:
        """Open every queue found in the directory."""
        root = self._paths.consume_queue
        for topic, topic_size in self._disk.entries(root):
            if topic_size >= 0 or not is_topic(topic):
                self._findings.add(Finding("stray file", "not a topic, left alone", path=repr(root / topic)))
                continue
            for name, size in self._disk.entries(root / topic):
                number = (
                    int(name) if name.isascii() and name.isdigit() and len(name) < 11 else QUEUE_ID_MAX + 1
                )
                if number > QUEUE_ID_MAX or size >= 0:
                    path = repr(root / topic / name)
                    self._findings.add(Finding("stray file", "not a queue, left alone", path=path))
                    continue
                self._add(topic, number).load(self.manifest.ends.get((topic, number)))

    def discard_damaged(self, limit: int, *, exact: bool) -> None:
        """Drop queues whose newest entry leads behind a log position where nothing can be: recovery builds them anew.

        Without a manifest (`must_rebuild`) also those that do not begin at offset 0: nothing says whether they had
        files before. `exact`: the store stopped in order, so no queue has more entries than the manifest says. No
        offset that the files of a queue have used is used again.
        """
        begins_unknown = self.must_rebuild
        for key, queue in self._queues.items():
            end = self.manifest.ends.get(key)
            is_long = exact and end is not None and queue.max_offset > end
            is_late = begins_unknown and queue.has_files and queue.first_offset > 0
            if queue.state.max_phy <= limit and not is_long and not is_late:
                continue
            self._findings.add(
                Finding(
                    "queue file dropped",
                    f"{queue.topic}/{queue.queue_id} is not as it was written; rebuilt from the log",
                    path=str(self._paths.queue(*key)),
                )
            )
            # Whatever made the entries, their offsets may have been used.
            self.manifest.ends[key] = max(end or 0, queue.max_offset)
            queue.clear()
            self.must_rebuild = True

    def was_deleted(self, topic: str, position: int) -> bool:
        """Whether a record at a log position belongs to a topic that was deleted after it was stored."""
        return position < self.manifest.deleted.get(topic, -1)

    @property
    def max_phy(self) -> int:
        """Log position after the newest record that has an entry, -1 if there is none."""
        return max((queue.state.max_phy for queue in self._queues.values()), default=-1)

    def note(self, states: Iterable[QueueState]) -> None:
        """These queues got entries. Once it was called, it has to be for every queue that gets any."""
        if self._recent is None:
            self._recent = set(map(_state_of, self))
        self._recent.update(states)

    def take_recent(self) -> list[ConsumeQueue]:
        """Queues that got entries since the last call. The caller holds the lock."""
        if self._recent is None:
            return list(self)
        recent, self._recent = self._recent, set()
        return [state.owner for state in recent if not state.owner.is_gone]

    def drain(self) -> None:
        """Write waiting entries of all queues to their files. The caller holds the lock."""
        for queue in self:
            if queue.state.tail_count:
                queue.drain()

    def drain_gently(
        self, queues: Sequence[ConsumeQueue], lock: AbstractContextManager[object]
    ) -> dict[tuple[str, int], int]:
        """The same of these, with the lock for a few at a time: appends get in between. Offsets up to which entries
        are in the files then: never fewer than were visible when this was called."""
        ends: dict[tuple[str, int], int] = {}
        for first in range(0, len(queues), GENTLY):
            with lock:
                for queue in queues[first : first + GENTLY]:
                    if queue.is_gone:
                        continue
                    if queue.state.tail_count:
                        queue.drain()
                    ends[queue.topic, queue.queue_id] = queue.state.tail_first
        return ends

    def sync(self, queues: Iterable[ConsumeQueue], least_pages: int) -> None:
        """Sync the files of those that have enough to sync; 0 syncs all.

        Each takes a few writes of the file system's journal. Many are synced at once, with all else that is waiting.
        """
        waiting = [
            queue
            for queue in queues
            if queue.unsynced_entries * 20 >= least_pages * PAGE
            and (queue.unsynced_entries or not least_pages)
        ]
        unsynced = sum(queue.unsynced_entries > 0 for queue in waiting)
        disk = self._disk
        if unsynced >= SYNC_ALL_FROM and isinstance(disk, BulkSyncDisk) and disk.can_sync_all:
            for queue in waiting:
                queue.begin_sync()
            disk.sync_all(self._paths.root)
            return
        for queue in waiting:
            queue.sync()

    def save_manifest(
        self,
        ends: dict[tuple[str, int], int],
        index_end: int,
        index_files: list[str],
        log_start: int,
        flushed_to: int,
        dispatched_to: int,
    ) -> None:
        """The values were taken before everything was synced, so it never promises more than there is."""
        with self._saving:
            known = {key: end for key, end in ends.items() if key in self._queues}
            self.manifest.ends = {**self.manifest.ends, **known}
            self.manifest.used = {
                key: end for key, end in self.manifest.used.items() if end > self.manifest.ends.get(key, 0)
            }
            self.manifest.index_end = index_end
            self.manifest.index_files = index_files
            self.manifest.log_start = log_start
            self.manifest.flushed_to = flushed_to
            self.manifest.dispatched_to = dispatched_to
            self._write_manifest()

    def note_used(self, used: Mapping[tuple[str, int], int]) -> None:
        """Remember offsets that queue files prove to have been given out, before recovery changes these files."""
        with self._saving:
            known = self.manifest.used
            more = {key: end for key, end in used.items() if end > known.get(key, 0)}
            if more:
                self.manifest.used = {**known, **more}
                # Recovery has yet to compare the starts in the manifest with those of the files that are left.
                self._write_manifest(without=self._queues)

    def expect_start(self, log_start: int) -> None:
        """Retention is about to delete: from now on the log begins here."""
        with self._saving:
            self.manifest.log_start = log_start
            self._write_manifest()

    def _write_manifest(self, without: Container[tuple[str, int]] = ()) -> None:
        self.manifest.segment_size_bytes = self._options.segment_size_bytes
        self.manifest.queue_file_entries = self._options.queue_file_entries
        for key, queue in list(self._queues.items()):
            if key not in without:
                self.manifest.starts[key] = queue.first_offset
        data = self.manifest.encode()
        written = (len(data), zlib.crc32(data))
        if written != self._written:
            write_atomically(self._disk, self._paths.manifest, data)
            self._written = written

    def begin_cut(
        self,
        position: int,
        ends: dict[tuple[str, int], int],
        index_files: list[str],
        dispatched_to: int,
        used: dict[tuple[str, int], int],
    ) -> None:
        """The log is about to be cut. From now on nothing behind the position is promised, and the next open finishes
        the cut first. `used`: the offsets that stay used all the same."""
        with self._saving:
            before = self.manifest
            deleted = {topic: min(at, position) for topic, at in before.deleted.items()}
            self.manifest = replace(
                before,
                ends=ends,
                deleted=deleted,
                index_end=-1,
                index_files=index_files,
                flushed_to=min(before.flushed_to, position),
                dispatched_to=min(dispatched_to, position),
                cut_to=position,
                used=used,
            )
            try:
                self._write_manifest()
            except OSError:
                self.manifest = before
                raise

    def end_cut(self, index_end: int) -> None:
        """The cut is done, and on disk."""
        with self._saving:
            self.manifest.cut_to = -1
            self.manifest.index_end = index_end
            self._write_manifest()

    def remove(self, topics: frozenset[str], log_end: int) -> list[str]:
        """Delete the queues of topics; the topics that had any.

        The manifest says so first: whatever happens next, their records are never dispatched again.
        """
        doomed = {key: queue for key, queue in self._queues.items() if key[0] in topics}
        if not doomed:
            return []
        with self._saving:
            for topic, queue_id in doomed:
                self.manifest.deleted[topic] = log_end
                self.manifest.ends.pop((topic, queue_id), None)
                self.manifest.starts.pop((topic, queue_id), None)
                self.manifest.used.pop((topic, queue_id), None)
            self._write_manifest(without=doomed)
            for key, queue in doomed.items():
                self._dispatcher.remove_queue(queue.state)
                del self._queues[key]
        for queue in doomed.values():
            queue.destroy()
        return sorted({topic for topic, _ in doomed})

    def follow_deletions(self, deleted: Mapping[str, int]) -> None:
        """Topics that a master has deleted, and where its log ended then.

        Told before records behind that position arrive, which belong to a topic that was made anew.
        """
        known = self.manifest.deleted
        later = {topic: at for topic, at in deleted.items() if at > known.get(topic, -1)}
        for topic, position in later.items():
            if not self.remove(frozenset((topic,)), position):
                # Nothing of it is dispatched yet; what is on its way must not be.
                with self._saving:
                    self.manifest.deleted[topic] = position
                    self._write_manifest()

    def forget_deleted(self, log_min: int) -> None:
        """The log no longer has records of topics deleted before `log_min`."""
        with self._saving:
            self.manifest.deleted = {t: at for t, at in self.manifest.deleted.items() if at > log_min}

    def close(self) -> None:
        for queue in self:
            queue.close()
        self._queues = {}
