"""Memory of a server's connections: what they keep, and which of them goes when it is too much.

    requests    bytes of frames that are not complete, of requests that were not handled yet, and of those under way
    answers     bytes that were written and not read: what the system did not take from us

Backpressure comes first. A connection whose answers are unread is not served while they are more than its allowance,
a quarter of what is left of half the budget: many slow readers get less each. An answer that may be large is made no
larger than `room`. Where a budget is exceeded all the same, the worst offenders are closed: bytes kept, times how
long nothing of them went away. So a peer that reads, however slowly, or whose frame has just begun, is the last.

A reader without progress is closed by a deadline, too; by a shorter one while answers take a quarter of the budget.

Owned by the event loop; servers of one process may share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.remoting.options import RemotingOptions

# After closing, a budget is left with this much room, so that the next byte does not close the next one.
SPARE = 8
# An answer that may be large takes this part of what is left of half the budget, but always so many bytes.
ROOM_PART = 4
ROOM_MIN = 64 * 1024


class Keeper(Protocol):
    """A connection as the budget sees it."""

    is_open: bool
    # Bytes that count as requests, and since when there were any.
    kept_bytes: int
    kept_since_ms: int
    # Unread bytes when last looked at, and when some of them went away last.
    noted_bytes: int
    progress_ms: int

    @property
    def unread_bytes(self) -> int: ...


# Closes a connection because of the budget; the reason goes into the log.
Close = Callable[[Keeper, str], None]


class Memory:
    """See the module's text."""

    def __init__(self, options: RemotingOptions, close: Close | None) -> None:
        """Without `close` nothing is limited: a client keeps what its program asks for."""
        self._options = options
        self._close = close
        self.requests = 0
        self.answers = 0
        self._keeping: dict[Keeper, None] = {}
        # Peers that have something unread.
        self.slow: dict[Keeper, None] = {}

    # -- requests --------------------------------------------------------------------------------------------

    def kept(self, connection: Keeper, size: int, now_ms: int) -> None:
        """A connection keeps so many bytes more, or fewer."""
        self.requests += size
        if not connection.kept_bytes:
            connection.kept_since_ms = now_ms
            self._keeping[connection] = None
        connection.kept_bytes += size
        if not connection.kept_bytes:
            self._keeping.pop(connection, None)
        elif size > 0 and self._close is not None and self.requests > self._options.incomplete_bytes_max:
            self._shed_requests(self._close, now_ms)

    def _shed_requests(self, close: Close, now_ms: int) -> None:
        most = self._options.incomplete_bytes_max
        worst = sorted(
            self._keeping, key=lambda one: one.kept_bytes * (now_ms - one.kept_since_ms + 1), reverse=True
        )
        for connection in worst:
            if self.requests <= most - most // SPARE:
                return
            size = connection.kept_bytes
            close(connection, f"requests of all peers keep {self.requests} bytes, its own {size}")

    # -- answers ---------------------------------------------------------------------------------------------

    @property
    def allowance(self) -> int:
        """How many unread bytes a peer may have while more of its requests are handled."""
        options = self._options
        left = options.unread_bytes_max // 2 - self.answers
        return min(options.write_buffer_pause_bytes, max(left, 0) // 4)

    @property
    def room(self) -> int:
        """How large an answer should be at most that could be larger."""
        return max((self._options.unread_bytes_max // 2 - self.answers) // ROOM_PART, ROOM_MIN)

    @property
    def timeout_ms(self) -> int:
        """How long a peer may read nothing."""
        options = self._options
        if self._close is None or self.answers <= options.unread_bytes_max // 4:
            return options.write_timeout_ms
        return min(options.write_timeout_pressed_ms, options.write_timeout_ms)

    def note(self, connection: Keeper, now_ms: int, written: int = 0) -> None:
        """Look at what a peer has not read; `written` of it is new."""
        unread = connection.unread_bytes
        if unread < connection.noted_bytes + written or not connection.noted_bytes:
            connection.progress_ms = now_ms
        self.answers += unread - connection.noted_bytes
        connection.noted_bytes = unread
        if unread:
            self.slow[connection] = None
        else:
            self.slow.pop(connection, None)
        if written and self._close is not None and self.answers > self._options.unread_bytes_max:
            self._shed_answers(self._close, now_ms)

    def _shed_answers(self, close: Close, now_ms: int) -> None:
        for connection in list(self.slow):
            self.note(connection, now_ms)
        most = self._options.unread_bytes_max
        if self.answers <= most:
            return
        worst = sorted(
            self.slow, key=lambda one: one.noted_bytes * (now_ms - one.progress_ms + 1), reverse=True
        )
        for connection in worst:
            if self.answers <= most - most // SPARE:
                return
            why = f"answers that peers have not read keep {self.answers} bytes, its own {connection.noted_bytes}"
            close(connection, why)

    def forget(self, connection: Keeper) -> None:
        """A connection is gone, and with it what it kept."""
        self.requests -= connection.kept_bytes
        self.answers -= connection.noted_bytes
        connection.kept_bytes = connection.noted_bytes = 0
        self._keeping.pop(connection, None)
        self.slow.pop(connection, None)
