"""A store directory opened for looking at: log, queue folders, markers. Takes no lock, changes nothing.

Order of opening: what is derived from the log first, the log last. In a store that a broker is writing the log
can then only be ahead of what was derived from it, never behind.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from penstock._hot.dispatch import Dispatcher
from penstock.errors import CodecError, StoreFormatError
from penstock.message import HostAddress
from penstock.metadata.fastjson import loads
from penstock.runtime import Runtime
from penstock.store.checkpoint import CheckpointFile
from penstock.store.commit_log import CommitLog
from penstock.store.findings import Findings
from penstock.store.inspection.log_scan import find_end
from penstock.store.inspection.queue_files import FileCache, QueueFiles, queue_folders
from penstock.store.inspection.report import IssueList
from penstock.store.layout import StorePaths
from penstock.store.queue_table import Manifest
from penstock.store.sizes import GivenSizes, detect_sizes

NO_HOST = HostAddress("127.0.0.1", 0)


class StoreView:
    """Used by one thread, closed by its owner."""

    def __init__(self, path: Path, given: GivenSizes, runtime: Runtime, *, in_use: bool = False) -> None:
        disk = runtime.disk
        self.runtime = runtime
        self.path = path
        self.paths = StorePaths(path)
        if not disk.is_dir(self.paths.commit_log):
            raise StoreFormatError(f"{path} is not a store", "name a directory that has a commitlog folder")
        self.issues = IssueList(str(path))
        self.in_use = in_use
        self.clean = not in_use and not disk.exists(self.paths.abort)
        self.checkpoint_exists = disk.exists(self.paths.checkpoint)
        self.checkpoint = CheckpointFile(disk, self.paths.checkpoint).load()
        self.sizes = detect_sizes(disk, self.paths, given)
        self.options = self.sizes.options()
        self.manifest = self._read_manifest()
        self._files = FileCache(disk)
        findings = Findings()
        findings.listen(self.issues.take)
        nothing = Dispatcher((), False)  # nothing is ever appended here
        self.log = CommitLog(
            runtime, self.paths, self.options, findings, NO_HOST.encode(), nothing, read_only=True
        )
        try:
            self.queues = {
                (topic, queue_id): QueueFiles(
                    disk, self._files, self.paths, topic, queue_id, self.sizes.queue_file_entries, self.issues
                )
                for topic, queue_id in queue_folders(disk, self.paths, self.issues)
            }
            self.log.load()
            self.end = find_end(self.log)
            self.log.set_end(self.end.position)
        except BaseException:
            self.close()
            raise

    def _read_manifest(self) -> Manifest | None:
        """Our own record of how far the queues were; a Java broker's store has none."""
        if not self.runtime.disk.exists(self.paths.manifest):
            return None
        try:
            return Manifest.decode(self.runtime.disk.read(self.paths.manifest))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.issues.damage("damaged manifest", str(error), path=str(self.paths.manifest))
            return None

    def known_topics(self) -> frozenset[str] | None:
        """Topics that the broker's configuration lists; None where there is none to ask."""
        for name in ("topics.json", "topics.json.bak"):
            path = self.paths.config / name
            if self.runtime.disk.exists(path):
                try:
                    value = loads(self.runtime.disk.read(path))
                except CodecError:
                    continue
                table = value.get("topicConfigTable") if isinstance(value, dict) else None
                if isinstance(table, dict):
                    return frozenset(str(topic) for topic in table)
        return None

    def has_batch_queue(self, topic: str) -> bool:
        """Whether RocketMQ keeps this topic's queues in its other format, which is not looked into."""
        return self.runtime.disk.is_dir(self.path / "batchconsumequeue" / topic)

    def has_extension(self, topic: str) -> bool:
        """Whether RocketMQ's queue entries of this topic hold places in extension files instead of tag codes."""
        return self.runtime.disk.is_dir(self.path / "consumequeue_ext" / topic)

    def segment_path(self, position: int) -> tuple[str, int]:
        """File of a log position and the byte in it; an empty name where there is no such file."""
        segment = self.log.segment_of(position)
        return (str(segment.path), position - segment.base) if segment is not None else ("", -1)

    def close(self) -> None:
        self._files.close()
        self.log.close()

    def __enter__(self) -> StoreView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
