"""A thread that syncs a file on demand and never needs the interpreter lock while it works.

One job at a time: the owner sets `fd` and writes to the wake descriptor; the thread calls fdatasync, leaves
the outcome in `error` and writes to the done descriptor, which an event loop watches. The system calls order
the memory between the two sides. What was written while a sync ran belongs to the next one, so one sync
serves everybody who came before it: that is group commit.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    import os

    def read(fd: int, _: object, __: int) -> int:
        return len(os.read(fd, 8))

    def write(fd: int, data: bytes, _: int) -> int:
        return os.write(fd, data)

    def fdatasync(fd: int) -> int:
        try:
            os.fdatasync(fd)
        except OSError as failure:
            return failure.errno or 5
        return 0


@cython.cclass
class SyncThread:
    """State shared by the owner and the thread; see the module's text for who may touch what when."""

    def __init__(self, wake_fd: int, done_fd: int) -> None:
        self.wake_fd = wake_fd
        self.done_fd = done_fd
        self.fd = -1
        self.error = 0
        self.stopping = False

    def run(self) -> None:
        """The thread's life: ends when `stopping` is set and the wake descriptor written."""
        one: bytes = (1).to_bytes(8, "little")
        word: cython.p_uchar = one
        room: bytearray = bytearray(8)
        into: cython.p_uchar = room
        with cython.nogil:
            while True:
                if read(self.wake_fd, into, 8) != 8 or self.stopping:
                    break
                self.error = fdatasync(self.fd)
                if write(self.done_fd, word, 8) != 8:
                    break
