"""All consume queues of a store, by topic and queue id, and the manifest of how far each had come.

The manifest is ours: a queue whose files are gone looks like a new queue, and a new queue would hand out
offsets a second time. A queue that ends before its manifest entry is rebuilt from the log, and never starts
below it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock._hot.dispatch import Dispatcher
from penstock.runtime import Disk
from penstock.runtime.disk import write_atomically
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.findings import Finding, Findings
from penstock.store.layout import StorePaths, check_topic
from penstock.store.options import StoreOptions

PAGE = 4096
# Entries a queue gathers in memory before it writes them on its own; the keeper writes fewer at its interval.
TAIL_MAX = 2048


@dataclass(slots=True)
class Manifest:
    """Ends of the queues and of the index when they were last synced."""

    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    index_end: int = -1

    def encode(self) -> bytes:
        topics: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in sorted(self.ends.items()):
            topics.setdefault(topic, {})[str(queue_id)] = end
        return json.dumps({"version": 1, "indexEnd": self.index_end, "queueEnds": topics}).encode()

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Raises ValueError for anything that is not a manifest."""
        value = json.loads(data)
        manifest = Manifest(index_end=int(value["indexEnd"]))
        for topic, ends in value["queueEnds"].items():
            for queue_id, end in ends.items():
                manifest.ends[(str(topic), int(queue_id))] = int(end)
        return manifest


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
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.manifest = Manifest()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

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
        )
        self._queues[(topic, queue_id)] = queue
        self._dispatcher.add_queue(queue.state)
        return queue

    def load(self) -> None:
        """Open every queue found in the directory, and the manifest."""
        root = self._paths.consume_queue
        for topic in self._disk.list(root):
            if not self._disk.is_dir(root / topic):
                self._findings.add(Finding("stray file", "not a topic, left alone", path=str(root / topic)))
                continue
            for name in self._disk.list(root / topic):
                if not name.isascii() or not name.isdigit() or not self._disk.is_dir(root / topic / name):
                    self._findings.add(
                        Finding("stray file", "not a queue, left alone", path=str(root / topic / name))
                    )
                    continue
                self._add(topic, int(name)).load()
        if self._disk.exists(self._paths.manifest):
            try:
                self.manifest = Manifest.decode(self._disk.read(self._paths.manifest))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._findings.add(
                    Finding("manifest unreadable", f"ignored: {error}", path=str(self._paths.manifest))
                )

    @property
    def max_phy(self) -> int:
        """Log position after the newest record that has an entry, -1 if there is none."""
        return max((queue.state.max_phy for queue in self._queues.values()), default=-1)

    def drain(self) -> None:
        """Write waiting entries of all queues to their files."""
        for queue in self:
            if queue.state.tail_count:
                queue.drain()

    def sync(self, least_pages: int) -> None:
        """Sync the files of queues that have enough to sync; 0 syncs all."""
        for queue in self:
            if queue.unsynced_entries * 20 >= least_pages * PAGE and (
                queue.unsynced_entries or not least_pages
            ):
                queue.sync()

    def save_manifest(self, index_end: int) -> None:
        """Called right after everything was synced, so that it never promises more than there is."""
        ends = {key: queue.state.tail_first for key, queue in self._queues.items()}
        self.manifest = Manifest({**self.manifest.ends, **ends}, index_end)
        write_atomically(self._disk, self._paths.manifest, self.manifest.encode())

    def remove(self, keep: Callable[[str], bool]) -> list[str]:
        """Delete the queues of topics that are not kept; the topics deleted."""
        removed = set()
        for (topic, queue_id), queue in list(self._queues.items()):
            if not keep(topic):
                self._dispatcher.remove_queue(queue.state)
                del self._queues[(topic, queue_id)]
                self.manifest.ends.pop((topic, queue_id), None)
                queue.destroy()
                removed.add(topic)
        return sorted(removed)

    def close(self) -> None:
        for queue in self:
            queue.close()
        self._queues = {}
