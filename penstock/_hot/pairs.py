"""A column of maps: the properties of messages, read out of their text `name 0x01 value 0x02`, repeated.

As forgiving as the reader in plain Python: parts without a name or a value are dropped, the last 0x02 may be
missing, of equal names the last counts and takes the place of the first. No row has a name twice: Spark would
refuse its map. Text that is no UTF-8 gets U+FFFD in the place of what cannot be read.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import copy_bytes, find_byte, get_i64, get_own_i32, put_own_i32, same_bytes
    from penstock._hot.buffers import Content
    from penstock._hot.layout import PAIRS_MAX, R_PLAIN, R_TEXT, R_TEXT_SIZE, ROW_SIZE


@cython.cclass
class Pairs:
    """Where the pairs of each row end, and the names and the values of all rows."""

    def __init__(self, rows_max: int) -> None:
        self.rows = Content(rows_max)
        self.names = Content(rows_max)
        self.values = Content(rows_max)
        self.count = 0

    def take(self, rows: int, keep: bool = False) -> tuple[tuple, tuple, tuple]:
        """What `Content.take` says of the rows (ends only), of the names and of the values."""
        found = (
            self.rows.take(rows, keep),
            self.names.take(self.count, keep),
            self.values.take(self.count, keep),
        )
        self.count = 0
        return found

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill(
        self,
        p: cython.p_const_uchar,
        s: cython.p_uchar,
        row: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        text_bytes: cython.Py_ssize_t,
    ) -> cython.int:
        """The pairs of a block: of `count` rows with slots `s`, the first of which is row `row` of the batch."""
        # A pair has a name, a value and two marks between and behind them; the last one may lack its mark.
        pairs: cython.Py_ssize_t = self.count + text_bytes // 4 + count
        self.names._make_room(text_bytes)
        self.names._make_rows(pairs)
        self.values._make_room(text_bytes)
        self.values._make_rows(pairs)
        ends: cython.p_uchar = self.rows.ends
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        i: cython.Py_ssize_t
        for i in range(count):
            at = get_i64(s, i * ROW_SIZE + R_TEXT)
            size = get_i64(s, i * ROW_SIZE + R_TEXT_SIZE)
            if not get_i64(s, i * ROW_SIZE + R_PLAIN) or not self._put_pairs(p, at, at + size):
                self._put_dictionary(bytes(p[at : at + size]))
            put_own_i32(ends, (row + i + 1) * 4, self.count)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _put_pairs(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """The pairs of one row whose text is UTF-8; false, and nothing done, if names are equal or very many."""
        first: cython.Py_ssize_t = self.count
        pairs: cython.Py_ssize_t = first
        names: cython.p_uchar = self.names.data
        names_ends: cython.p_uchar = self.names.ends
        values: cython.p_uchar = self.values.data
        values_ends: cython.p_uchar = self.values.ends
        names_used: cython.Py_ssize_t = self.names.used
        values_used: cython.Py_ssize_t = self.values.used
        stop: cython.Py_ssize_t
        name_end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        while at < end:
            stop = find_byte(p, at, end, 2)
            if stop < 0:
                stop = end
            name_end = find_byte(p, at, stop, 1)
            if name_end > at and stop > name_end + 1:
                size = name_end - at
                if pairs - first >= PAIRS_MAX or _has_name(names, names_ends, first, pairs, p, at, size):
                    return False
                copy_bytes(names, names_used, p, at, size)
                names_used += size
                size = stop - name_end - 1
                copy_bytes(values, values_used, p, name_end + 1, size)
                values_used += size
                pairs += 1
                put_own_i32(names_ends, pairs * 4, names_used)
                put_own_i32(values_ends, pairs * 4, values_used)
            at = stop + 1
        self.count = pairs
        self.names.used = names_used
        self.values.used = values_used
        return True

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _put_dictionary(self, data: bytes) -> cython.int:
        """The same for a row with equal names, with very many, or with bytes that are no text."""
        found: dict = {}
        part: str
        pair: tuple
        for part in data.decode("utf-8", "replace").split("\x02"):
            pair = part.partition("\x01")
            if pair[0] and pair[2]:
                found[pair[0]] = pair[2]
        for pair in found.items():
            self.names._put_bytes(self.count, pair[0].encode())
            self.values._put_bytes(self.count, pair[1].encode())
            self.count += 1
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def _has_name(
    names: cython.p_uchar,
    ends: cython.p_uchar,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Whether a name is one of those numbered [first, last) already."""
    start: cython.Py_ssize_t = get_own_i32(ends, first * 4)
    stop: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(first, last):
        stop = get_own_i32(ends, (i + 1) * 4)
        if stop - start == size and same_bytes(names, start, p, at, size):
            return True
        start = stop
    return False
