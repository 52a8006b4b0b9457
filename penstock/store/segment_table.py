"""The segments of a log: which files there are, which of them holds a position, and who takes one away.

A table with a slot for every segment position, so that a position is found by division. `CommitLog` appends to it;
reads go through maps and need no lock. Changed under the store's append lock.
"""

from __future__ import annotations

from penstock._hot.mapped import MappedBytes
from penstock.errors import StoreFormatError
from penstock.runtime import Runtime
from penstock.store.findings import Finding, Findings
from penstock.store.layout import StorePaths, parse_position
from penstock.store.options import StoreOptions
from penstock.store.segment import Segment


class SegmentTable:
    """Segments by position, oldest first."""

    def __init__(
        self,
        runtime: Runtime,
        paths: StorePaths,
        options: StoreOptions,
        findings: Findings,
        *,
        read_only: bool,
    ) -> None:
        self._runtime = runtime
        self._paths = paths
        self._options = options
        self._findings = findings
        self._read_only = read_only
        self.segment_size = options.segment_size_bytes
        self.first_base = 0
        # One slot per segment position from `first_base` on; None where a file is missing. `views` runs parallel,
        # because that is what the compiled gather takes.
        self.segments: list[Segment | None] = []
        self.views: list[MappedBytes | None] = []
        # Position after the newest byte written.
        self.max_offset = 0

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open every segment. Sizes are checked here; content is recovery's business."""
        disk, folder = self._runtime.disk, self._paths.commit_log
        found: list[tuple[int, str]] = []
        for name in disk.list(folder):
            position = parse_position(name)
            if position is None or disk.is_dir(folder / name):
                self._findings.add(
                    Finding("stray file", "not a segment, left alone", path=str(folder / name))
                )
            elif position % self.segment_size:
                raise self._wrong_size(name, disk.size(folder / name))
            else:
                found.append((position, name))
        while found and disk.size(folder / found[-1][1]) == 0:  # made but never allocated
            _, name = found.pop()
            if not self._read_only:
                disk.remove(folder / name)
        for position, name in found:
            size = disk.size(folder / name)
            if size > self.segment_size:
                raise self._wrong_size(name, size)
            if size < self.segment_size:
                self._findings.add(
                    Finding(
                        "damaged segment",
                        f"file has {size} of {self.segment_size} bytes",
                        position + size,
                        self.segment_size - size,
                        str(folder / name),
                    )
                )
            self._place(
                Segment.open(disk, folder / name, position, self.segment_size, read_only=self._read_only)
            )
        for i, segment in enumerate(self.segments):
            if segment is None:
                base = self.first_base + i * self.segment_size
                self._findings.add(
                    Finding("damaged segment", "file is missing", base, self.segment_size, str(folder))
                )

    def _wrong_size(self, name: str, size: int) -> StoreFormatError:
        return StoreFormatError(
            f"segment {name} has {size} bytes, the options say {self.segment_size}",
            f"open the store with segment_size_bytes={size}",
        )

    def _place(self, segment: Segment) -> None:
        if not self.segments:
            self.first_base = segment.base
        number = (segment.base - self.first_base) // self.segment_size
        while len(self.segments) <= number:
            self.segments.append(None)
            self.views.append(None)
        self.segments[number] = segment
        self.views[number] = segment.view

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Position of the oldest byte kept."""
        return self.first_base

    def segment_of(self, position: int) -> Segment | None:
        """The segment that holds a position, if it is there."""
        number = (position - self.first_base) // self.segment_size
        return self.segments[number] if 0 <= number < len(self.segments) else None

    def slice(self, position: int, size: int) -> memoryview | None:
        """Bytes of the log without a copy, or None if they are not all in one present segment."""
        segment = self.segment_of(position)
        if segment is None or size < 0 or position + size > self.max_offset:
            return None
        start = position - segment.base
        if start + size > segment.available:
            return None
        return segment.view.slice(start, start + size)

    # -- taking away -----------------------------------------------------------------------------------------

    def remove_segment(self, segment: Segment) -> None:
        """Forget and delete a segment at either end of the log. Slices of it stay readable until released."""
        self.forget_segment(segment)
        segment.remove(self._runtime.disk)

    def forget_segment(self, segment: Segment) -> None:
        """Take a segment out of the table and let go of its file, which is still to be removed."""
        number = (segment.base - self.first_base) // self.segment_size
        if number == 0:
            while self.segments and (self.segments[0] is segment or self.segments[0] is None):
                del self.segments[0], self.views[0]
                self.first_base += self.segment_size
        elif number == len(self.segments) - 1:
            del self.segments[number], self.views[number]
        else:
            self.segments[number] = self.views[number] = None
        segment.close()

    def show_until(self, position: int) -> None:
        """For a reader that changes nothing: forget what is behind a position."""
        for segment in [s for s in reversed(self.segments) if s is not None and s.base > position]:
            self.forget_segment(segment)
        last = self.segment_of(position)
        if last is not None:
            last.available = min(last.available, position - last.base)
