"""A read-only map of a file, kept so that compiled code can look at it without asking again each time.

While one of these exists the map cannot be unmapped (closing it raises BufferError), so a pointer into it
never dangles; `release` gives it up.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

_NOTHING = b"\0"


@cython.cclass
class MappedBytes:
    """Bytes of a map (or of any read-only buffer that is not empty)."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self._point_at(source, len(source))

    def _point_at(self, source: Any, size: int) -> None:
        if cython.compiled:
            self.view = source
            self.base = cython.address(self.view[0])
        else:
            self.view = self.base = memoryview(source)
        self.size = size

    def slice(self, start: int, end: int) -> memoryview:
        """A view of part of the map, without a copy."""
        if start < 0 or end > self.size or start > end:
            raise IndexError("slice outside the map")
        return memoryview(self.source)[start:end]

    def release(self) -> None:
        """Stop using the map and unmap it, unless slices of it are still in use."""
        source, self.source = self.source, b"\0"
        self._point_at(_NOTHING, 0)
        close = getattr(source, "close", None)
        if close is not None:
            try:
                close()
            except BufferError:
                return  # a reader still holds a slice: the map goes when the last slice goes
