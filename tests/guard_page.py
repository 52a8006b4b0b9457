"""Memory that ends at a page which cannot be read: a read behind the end of the input kills the process.

    memory = GuardedMemory(1 << 16)
    memory.view(data)      a buffer whose last byte is the last one of a page
    memory.bytes(data)     the same as a bytes object

What a heap forgives (the bytes behind a buffer are mostly there) this does not, in any form of the hot modules.
So a test that feeds such input runs in a process of its own: `python -m tests.unit.store.guarded_parsers`.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_ACCESS = 0
# A bytes object is its reference count, type, size and hash, and then its content; no zero byte has to follow here.
_HEADER_SIZE = bytes.__basicsize__ - 1
_REFERENCES = 1 << 40
# AddressSanitizer guards every object of the heap, and would object to one that lies at an odd address.
_HAS_RED_ZONES = "libasan" in os.environ.get("LD_PRELOAD", "")


class GuardedMemory:
    """Pages of which the last one is out of reach. They stay for the life of the process."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        start = _LIBC.mmap(
            None,
            pages + mmap.PAGESIZE,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            -1,
            0,
        )
        assert start not in (None, ctypes.c_void_p(-1).value), ctypes.get_errno()
        assert not _LIBC.mprotect(start + pages, mmap.PAGESIZE, _NO_ACCESS), ctypes.get_errno()
        self._size = pages
        self._end: int = start + pages

    def view(self, data: bytes) -> memoryview:
        """These bytes, right before the page that cannot be read. The next call overwrites them."""
        assert len(data) <= self._size
        place = (ctypes.c_ubyte * len(data)).from_address(self._end - len(data))
        place[:] = data
        return memoryview(place).cast("B")

    def bytes(self, data: bytes) -> bytes:
        """The same as a bytes object, for what takes nothing else. The next call overwrites it, so keep no reference.

        Its reference count is so high that nobody frees what no allocator gave out.
        """
        if _HAS_RED_ZONES:
            return bytes(bytearray(data))
        made = bytes(data)
        assert _HEADER_SIZE + len(made) <= self._size
        place = self._end - len(made) - _HEADER_SIZE
        ctypes.memmove(place, id(made), _HEADER_SIZE + len(made))
        ctypes.c_ssize_t.from_address(place).value = _REFERENCES
        found: bytes = ctypes.cast(place, ctypes.py_object).value
        return found
