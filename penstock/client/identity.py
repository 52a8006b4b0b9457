"""Who a client is, and the ids of its messages.

client id     <ip>@<instance>[@<unit>]          instance: <process number>#<random number>, or as configured

unique id     upper-case hex of: ip (4 or 16 bytes), process number i16, client number i32,
              milliseconds since the start of the month (UTC) i32, counter i16      (32 or 56 characters)

Rules: a unique id is never given twice by a client, whatever the wall clock does: the counter belongs to a
moment that never goes back, and a moment whose counter is used up is followed by the next one. `next` and
`take` may be called from any thread.
"""

from __future__ import annotations

import calendar
import ipaddress
import os
import threading
import time

from penstock.runtime import Runtime

_COUNTER_END = 0x10000
_HEX = [f"{number:02X}" for number in range(256)]


def client_id(ip: str, instance_name: str, unit_name: str, runtime: Runtime) -> str:
    """The name by which brokers know one client; equal names would be taken for one client."""
    instance = instance_name or f"{os.getpid()}#{runtime.entropy.below(2**62)}"
    return f"{ip}@{instance}@{unit_name}" if unit_name else f"{ip}@{instance}"


def month_start_ms(now_ms: int) -> int:
    """Midnight UTC of the first day of the month of `now_ms`."""
    day = time.gmtime(now_ms // 1000)
    return calendar.timegm((day.tm_year, day.tm_mon, 1, 0, 0, 0)) * 1000


class UniqueIds:
    """Ids for the messages of one client."""

    def __init__(self, ip: str, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._entropy = runtime.entropy
        self._host = (
            (ipaddress.ip_address(ip).packed + (os.getpid() & 0xFFFF).to_bytes(2, "big")).hex().upper()
        )
        self._lock = threading.Lock()
        self._month = -1
        self._fixed = ""
        self._moment = -1
        self._counter = _COUNTER_END
        self._prefix = ""
        self._page = ""
        self._advance()

    def next(self) -> str:
        """One id."""
        with self._lock:
            low = self._counter & 0xFF
            # The clock is asked once per page only: the time in an id serves to narrow a search, no more.
            if not low or not self._page:
                self._advance()
                low = self._counter & 0xFF
                self._page = f"{self._prefix}{self._counter >> 8:02X}"
            self._counter += 1
            return self._page + _HEX[low]

    def take(self, count: int) -> list[str]:
        """Several ids at the price of few."""
        ids: list[str] = []
        with self._lock:
            self._advance()
            while count > 0:
                if self._counter >= _COUNTER_END:
                    self._advance()
                start, prefix = self._counter, self._prefix
                end = min(_COUNTER_END, start + count)
                ids += [f"{prefix}{number:04X}" for number in range(start, end)]
                count -= end - start
                self._counter = end
                self._page = ""
        return ids

    def moment(self) -> str:
        """What 65536 ids begin with that are all the caller's: each is this and a number of four hex digits."""
        with self._lock:
            self._counter = _COUNTER_END  # what is left of the present moment is given up
            self._advance()
            self._counter, self._page = _COUNTER_END, ""
            return self._prefix

    def _advance(self) -> None:
        """Move to the present moment, or to the one after the last if that is used up or the clock went back."""
        moment = self._clock.now_ms()
        if moment <= self._moment:
            if self._counter < _COUNTER_END:
                return
            moment = self._moment + 1
        month = month_start_ms(moment)
        if month != self._month:
            # The time part begins again with every month, so the client number has to be another one.
            self._month, self._fixed = month, self._host + self._entropy.bytes(4).hex().upper()
        self._moment, self._counter = moment, 0
        self._prefix = f"{self._fixed}{moment - month:08X}"
