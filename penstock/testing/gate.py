"""The gate that every call of a `FaultyDisk` passes: power, errors on order, and a note of what was done.

Rules: a call is counted when it comes and noted in the log when it has changed something or failed to, so
that the order of the log is the order in which the disk changed. `guard` is held while a call passes and
works; it is re-entrant. The log keeps the newest 100,000 operations.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from pathlib import Path
from threading import RLock
from typing import NamedTuple, NoReturn

from penstock.testing.faults import Fault, FaultOrders

_LOG_LIMIT = 100_000


class PowerLostError(OSError):
    """The simulated machine has no power any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EIO, "the simulated disk lost its power", str(path))


class Operation(NamedTuple):
    """One change of the disk, or an attempt at one if `error` is not 0. `path` is relative to the root; a
    rename's new name is in `target`; an `open` is noted if it created the file."""

    op: str
    path: str
    offset: int = 0
    size: int = 0
    error: int = 0
    target: str = ""


class Gate:
    """One disk's power switch, error orders, counters and log."""

    def __init__(self, root: Path) -> None:
        self.guard = RLock()
        self.has_power = True
        self.orders = FaultOrders()
        self.calls: Counter[str] = Counter()
        self.log: deque[Operation] = deque(maxlen=_LOG_LIMIT)
        self.changes_left: int | None = None
        self._root = root

    def check_power(self, path: Path) -> None:
        if not self.has_power:
            raise PowerLostError(path)

    def admit(self, op: str, path: Path, *, changes: bool = True) -> Fault | None:
        """Count a call; the caller carries out the fault that comes back, if one does."""
        self.check_power(path)
        if changes and self.changes_left is not None:
            if self.changes_left == 0:
                self.has_power = False
                raise PowerLostError(path)
            self.changes_left -= 1
        self.calls[op] += 1
        return self.orders.due(op, path)

    def enter(self, op: str, path: Path, *, changes: bool = True, size: int = 0) -> None:
        """Count a call and fail it if that is on order."""
        fault = self.admit(op, path, changes=changes)
        if fault is not None:
            self.fail(op, path, fault.errno, size=size)

    def fail(self, op: str, path: Path, error: int, *, offset: int = 0, size: int = 0) -> NoReturn:
        """Note the attempt and raise."""
        self.note(op, path, offset=offset, size=size, error=error)
        raise OSError(error, os.strerror(error), str(path))

    def note(
        self,
        op: str,
        path: Path,
        *,
        offset: int = 0,
        size: int = 0,
        error: int = 0,
        target: Path | None = None,
    ) -> None:
        new_name = self._relative(target) if target is not None else ""
        self.log.append(Operation(op, self._relative(path), offset, size, error, new_name))

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)
