"""The header of a send, read in place: where each field's value is in the received bytes.

Both header forms, short names (SEND_MESSAGE_V2) and long ones (SEND_MESSAGE). Only the usual kind is read: no
spaces, string values, no escapes except in the properties, no field that a send does not have. Anything else
is declined, and the general decoder takes it. Nothing outside [at, end) is looked at.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import find_byte, get_i16, get_i32, get_u8, same_bytes


@cython.cclass
class SendHeader:
    """`value_at` and `value_end` by the field's letter in the short form, a = 0; -1 where it is absent."""

    def __init__(self) -> None:
        if not cython.compiled:
            self.value_at = [0] * 16
            self.value_end = [0] * 16
        self.number = 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _begin_header(self) -> cython.int:
        i: cython.int
        for i in range(16):
            self.value_at[i] = -1
        self.code = -1
        self.flag = 0
        self.opaque = 0
        self.short_names = False
        self.long_names = False
        self.escaped = False
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _json(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """A JSON header into `value_at`; False if it is not of the usual kind."""
        name_at: cython.Py_ssize_t
        name_size: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        self._begin_header()
        if at >= end or get_u8(p, at) != 0x7B:
            return False
        at += 1
        while True:
            if at >= end or get_u8(p, at) != 0x22:
                return False
            name_at = at + 1
            stop = find_byte(p, name_at, end, 0x22)
            if stop < 0 or stop + 2 >= end or get_u8(p, stop + 1) != 0x3A:
                return False
            name_size = stop - name_at
            at = stop + 2
            if name_size == 9 and get_i32(p, name_at) == 0x65787446:  # extF
                if not same_bytes(p, name_at, b"extFields", 0, 9) or self.short_names or self.long_names:
                    return False  # of two lists the general decoder takes the last
                at = self._ext(p, at, end)
            elif name_size == 4 and get_i32(p, name_at) == 0x636F6465:  # code
                at = self._number(p, at, end)
                self.code = self.number
            elif name_size == 4 and get_i32(p, name_at) == 0x666C6167:  # flag
                at = self._number(p, at, end)
                self.flag = self.number
            elif name_size == 6 and same_bytes(p, name_at, b"opaque", 0, 6):
                at = self._number(p, at, end)
                self.opaque = self.number
            elif name_size == 7 and same_bytes(p, name_at, b"version", 0, 7):
                at = self._number(p, at, end)
            elif (name_size == 8 and same_bytes(p, name_at, b"language", 0, 8)) or (
                name_size == 23 and same_bytes(p, name_at, b"serializeTypeCurrentRPC", 0, 23)
            ):
                at = self._plain_string(p, at, end)
            elif name_size == 6 and same_bytes(p, name_at, b"remark", 0, 6):
                at = self._plain_string(p, at, end)
            else:
                return False
            if at < 0 or at >= end:
                return False
            if get_u8(p, at) == 0x7D:
                return at + 1 == end
            if get_u8(p, at) != 0x2C:
                return False
            at += 1

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _ext(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The members of extFields, strings only; where it ends, or -1."""
        name_at: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        slot: cython.int
        if get_u8(p, at) != 0x7B:
            return -1
        at += 1
        while True:
            if at >= end or get_u8(p, at) != 0x22:
                return -1
            name_at = at + 1
            stop = find_byte(p, name_at, end, 0x22)
            if stop < 0 or stop + 3 >= end or get_u8(p, stop + 1) != 0x3A or get_u8(p, stop + 2) != 0x22:
                return -1
            slot = self._slot(p, name_at, stop - name_at)
            if slot < 0 or self.value_at[slot] >= 0:  # unknown, or named twice
                return -1
            at = stop + 3
            self.value_at[slot] = at
            at = self._string_end(p, at, end, slot == 8)
            if at < 0:
                return -1
            self.value_end[slot] = at
            at += 1
            if at >= end:
                return -1
            if get_u8(p, at) == 0x7D:
                return at + 1
            if get_u8(p, at) != 0x2C:
                return -1
            at += 1

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _string_end(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, escapes: cython.bint
    ) -> cython.Py_ssize_t:
        """Where the closing quote of a string is, or -1. Only properties may have escapes."""
        stop: cython.Py_ssize_t = find_byte(p, at, end, 0x22)
        back: cython.Py_ssize_t
        if stop < 0:
            return -1
        if find_byte(p, at, stop, 0x5C) < 0:
            return stop
        if not escapes:
            return -1
        self.escaped = True
        while True:
            back = stop - 1
            while back >= at and get_u8(p, back) == 0x5C:
                back -= 1
            if (stop - 1 - back) % 2 == 0:
                return stop
            stop = find_byte(p, stop + 1, end, 0x22)
            if stop < 0:
                return -1

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _plain_string(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        stop: cython.Py_ssize_t
        if get_u8(p, at) != 0x22:
            return -1
        stop = self._string_end(p, at + 1, end, False)
        return -1 if stop < 0 or not self._is_ascii(p, at + 1, stop, 0x20) else stop + 1

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _number(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """A JSON integer of at most 32 bits into `number`; where it ends, or -1."""
        first: cython.Py_ssize_t = at
        if at < end and get_u8(p, at) == 0x2D:
            first = at + 1
        stop: cython.Py_ssize_t = first
        while stop < end and 0x30 <= get_u8(p, stop) <= 0x39:
            stop += 1
        # Leading zeros are no JSON; the ordinary path says so.
        if stop == first or (get_u8(p, first) == 0x30 and stop > first + 1):
            return -1
        if not self._digits(p, at, stop) or self.number < -2147483648 or self.number > 2147483647:
            return -1
        return stop

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _digits(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Decimal text of at most 18 digits into `number`."""
        negative: cython.bint = False
        value: cython.longlong = 0
        digit: cython.int
        if at < end and get_u8(p, at) == 0x2D:
            negative = True
            at += 1
        if at >= end or end - at > 18:
            return False
        while at < end:
            digit = get_u8(p, at) - 48
            if digit < 0 or digit > 9:
                return False
            value = value * 10 + digit
            at += 1
        self.number = -value if negative else value
        return True

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _slot(self, p: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Which of the header's fields a name is, by its letter in the short form; -1 for any other."""
        letter: cython.int
        if size == 1:
            letter = get_u8(p, at) - 97
            self.short_names = True
            return letter if 0 <= letter < 14 else -1
        self.long_names = True
        if size == 13:
            if same_bytes(p, at, b"producerGroup", 0, 13):
                return 0
            return 6 if same_bytes(p, at, b"bornTimestamp", 0, 13) else -1
        if size == 5:
            if same_bytes(p, at, b"topic", 0, 5):
                return 1
            if same_bytes(p, at, b"batch", 0, 5):
                return 12
            return 13 if same_bytes(p, at, b"bname", 0, 5) else -1
        if size == 12:
            return 2 if same_bytes(p, at, b"defaultTopic", 0, 12) else -1
        if size == 21:
            return 3 if same_bytes(p, at, b"defaultTopicQueueNums", 0, 21) else -1
        if size == 7:
            if same_bytes(p, at, b"queueId", 0, 7):
                return 4
            return 5 if same_bytes(p, at, b"sysFlag", 0, 7) else -1
        if size == 4:
            return 7 if same_bytes(p, at, b"flag", 0, 4) else -1
        if size == 10:
            return 8 if same_bytes(p, at, b"properties", 0, 10) else -1
        if size == 14:
            return 9 if same_bytes(p, at, b"reconsumeTimes", 0, 14) else -1
        if size == 8:
            return 10 if same_bytes(p, at, b"unitMode", 0, 8) else -1
        if size == 17:
            return 11 if same_bytes(p, at, b"maxReconsumeTimes", 0, 17) else -1
        return -1

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _binary(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """A binary header into `value_at`; False if it is not of the usual kind."""
        size: cython.longlong
        slot: cython.int
        self._begin_header()
        if end - at < 21:
            return False
        self.code = get_i16(p, at)
        self.opaque = get_i32(p, at + 5)
        self.flag = get_i32(p, at + 9)
        if get_i32(p, at + 13) != 0 or get_i32(p, at + 17) != end - at - 21:
            return False
        at += 21
        while at < end:
            if end - at < 2:
                return False
            size = get_i16(p, at)
            if size <= 0 or size > end - at - 2:
                return False
            slot = self._slot(p, at + 2, size)
            if slot < 0 or self.value_at[slot] >= 0:
                return False
            at += 2 + size
            if end - at < 4:
                return False
            size = get_i32(p, at)
            if size <= 0 or size > end - at - 4:
                return False
            self.value_at[slot] = at + 4
            at += 4 + size
            self.value_end[slot] = at
        return True

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_ascii(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, low: cython.int
    ) -> cython.bint:
        """Whether every byte is a character from `low` on; whether others are text is for the general decoder."""
        c: cython.int
        while at < end:
            c = get_u8(p, at)
            if c < low or c >= 0x80:
                return False
            at += 1
        return True

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _field(
        self, p: cython.p_uchar, slot: cython.int, low: cython.longlong, high: cython.longlong
    ) -> cython.bint:
        """A number that the header must have, into `number`, within its range."""
        if self.value_at[slot] < 0 or not self._digits(p, self.value_at[slot], self.value_end[slot]):
            return False
        return low <= self.number <= high

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_text(
        self, p: cython.p_uchar, slot: cython.int, text: cython.p_uchar, size: cython.Py_ssize_t
    ) -> cython.bint:
        return self.value_end[slot] - self.value_at[slot] == size and same_bytes(
            p, self.value_at[slot], text, 0, size
        )
