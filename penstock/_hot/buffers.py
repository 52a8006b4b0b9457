"""Buffers of Arrow columns: numbers, and content of any length.

Numbers are in the machine's byte order. Content (bytes, text) is one buffer with all values in a row and a 32-bit
end for each. A column may lack values: a bit for each says which are there. Text that is no UTF-8 gets U+FFFD in
the place of what cannot be read, as Python's "replace" does it, so that every reader of a column can trust it.

`take` hands the buffers over, and the column goes on with new ones; or it shows them and goes on with the same, where
they are read before more is filled in. Who fills a column keeps to the room it made.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import copy_bytes, new_buffer, put_own_i32

# Ends are 32 bits wide: no more content and no more rows than they can count.
CONTENT_MAX = 0x7FFFFFFF
ROWS_MAX = CONTENT_MAX // 8 - 1


@cython.cclass
class Numbers:
    """A column of numbers of 4 or 8 bytes, and which of them are there."""

    def __init__(self, width: int, rows: int) -> None:
        if rows < 0 or rows > ROWS_MAX or width not in (4, 8):
            raise ValueError("a column cannot have so many rows, or numbers of that width")
        self.width = width
        self.rows_max = rows
        self.begin()

    def begin(self) -> None:
        """New buffers."""
        self.data = new_buffer(self.rows_max * self.width)
        self.rewind()

    def rewind(self) -> None:
        """The same buffers, from their beginning."""
        self.valid = bytearray((self.rows_max + 7) // 8)
        self.nulls = 0

    def take(self, rows: int, keep: bool = False) -> tuple[bytearray | None, tuple[bytearray, int]]:
        """(bits of the values that are there or None if all are, (values, bytes used))."""
        found = (self.valid if self.nulls else None, (self.data, rows * self.width))
        if keep:
            self.rewind()
        else:
            self.begin()
        return found


@cython.cclass
class Content:
    """A column of bytes or text: where each value ends, and all of them in a row."""

    def __init__(self, rows: int) -> None:
        if rows < 0 or rows > ROWS_MAX:
            raise ValueError("a column cannot have so many rows")
        self.rows_max = rows
        self.size = 4096
        self.reserve = 0
        self.begin()

    def begin(self) -> None:
        """New buffers, of the size that the batch before needed."""
        self.ends = new_buffer((self.rows_max + 1) * 4)
        self.data = new_buffer(self.size)
        ends: cython.p_uchar = self.ends
        put_own_i32(ends, 0, 0)
        self.rewind()

    def rewind(self) -> None:
        """The same buffers, from their beginning."""
        self.valid = bytearray((self.rows_max + 7) // 8)
        self.nulls = 0
        self.used = 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _make_room(self, more: cython.Py_ssize_t) -> cython.int:
        """Have place for so many more bytes, and remember that they are still to come."""
        grown: bytearray
        if more > CONTENT_MAX - self.used:
            raise OverflowError("a column of a batch has more than 2 GiB: read smaller batches")
        self.reserve = more
        if self.used + more > len(self.data):
            grown = new_buffer(max(self.used + more, 2 * len(self.data)))
            target: cython.p_uchar = grown
            source: cython.p_uchar = self.data
            copy_bytes(target, 0, source, 0, self.used)
            self.data = grown
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _make_more_room(self, extra: cython.Py_ssize_t) -> cython.int:
        """Place for so many bytes beside those that are still to come."""
        still: cython.Py_ssize_t = self.reserve
        self._make_room(still + extra)
        self.reserve = still
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _make_rows(self, rows: cython.Py_ssize_t) -> cython.int:
        """Have place for so many rows: pairs of properties are not counted beforehand."""
        grown: bytearray
        if rows > self.rows_max:
            grown = new_buffer((max(rows, 2 * self.rows_max) + 1) * 4)
            target: cython.p_uchar = grown
            source: cython.p_uchar = self.ends
            copy_bytes(target, 0, source, 0, (self.rows_max + 1) * 4)
            self.rows_max = len(grown) // 4 - 1
            self.ends = grown
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _put_bytes(self, row: cython.Py_ssize_t, content: bytes) -> cython.int:
        """Bytes as value `row`, beside what there is room for."""
        size: cython.Py_ssize_t = len(content)
        self._make_more_room(size)
        target: cython.p_uchar = self.data
        ends: cython.p_uchar = self.ends
        source: cython.p_const_uchar = content
        copy_bytes(target, self.used, source, 0, size)
        self.used += size
        put_own_i32(ends, (row + 1) * 4, self.used)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _put_replaced(
        self, row: cython.Py_ssize_t, p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Text that is no UTF-8 as value `row`; it may take three times the room."""
        return self._put_bytes(row, bytes(p[at : at + size]).decode("utf-8", "replace").encode())

    def take(
        self, rows: int, keep: bool = False
    ) -> tuple[bytearray | None, tuple[bytearray, int], tuple[bytearray, int]]:
        """(bits of the values that are there or None if all are, (ends, bytes used), (content, bytes used))."""
        found = (self.valid if self.nulls else None, (self.ends, (rows + 1) * 4), (self.data, self.used))
        if keep:
            self.rewind()
            return found
        self.size = max(4096, self.used + self.used // 8 + self.reserve)
        self.begin()
        return found
