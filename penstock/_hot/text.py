"""Text for answers, written into a buffer that the caller has made large enough: each returns where it ends."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import copy_bytes, put_u8


@cython.cfunc
@cython.exceptval(check=False)
def put_text(
    o: cython.p_uchar, to: cython.Py_ssize_t, text: cython.p_const_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    copy_bytes(o, to, text, 0, size)
    return to + size


@cython.cfunc
@cython.exceptval(check=False)
def put_decimal(o: cython.p_uchar, to: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    digits: cython.Py_ssize_t = 1
    left: cython.ulonglong
    rest: cython.ulonglong
    i: cython.Py_ssize_t
    if value < 0:
        put_u8(o, to, 0x2D)
        to += 1
        left = -(value + 1)  # the smallest number has no positive twin
        left += 1
    else:
        left = value
    rest = left // 10
    while rest:
        digits += 1
        rest = rest // 10
    for i in range(digits):
        put_u8(o, to + digits - 1 - i, 48 + left % 10)
        left = left // 10
    return to + digits


@cython.cfunc
@cython.exceptval(check=False)
def put_hexadecimal(o: cython.p_uchar, to: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Sixteen upper-case digits."""
    i: cython.Py_ssize_t
    digit: cython.int
    for i in range(16):
        digit = value & 0xF
        put_u8(o, to + 15 - i, 48 + digit if digit < 10 else 55 + digit)
        value = value >> 4
    return to + 16
