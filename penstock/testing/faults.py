"""Errors on order: which call of which operation fails, with which errno.

Rule: an order says exactly which calls it hits (operation, part of the path, how many to let pass, how many
to fail), so that a test that failed once fails again. Orders are looked at oldest first and the first that
is due wins. `FaultyDisk` holds its lock around every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OPERATIONS = frozenset(
    {
        "allocate",
        "lock",
        "make_dirs",
        "map",
        "open",
        "pread",
        "pwrite",
        "read",
        "remove",
        "remove_tree",
        "rename",
        "sync",
        "sync_dir",
        "truncate",
    }
)


@dataclass(slots=True)
class Fault:
    """One order; `times` of None means until it is cleared. A pwrite first transfers `partial_bytes`."""

    operation: str
    errno: int
    path_contains: str
    after: int
    times: int | None
    partial_bytes: int


class FaultOrders:
    """The orders not yet carried out."""

    def __init__(self) -> None:
        self._orders: list[Fault] = []

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, order: Fault) -> None:
        if order.operation not in OPERATIONS:
            raise ValueError(f"no such operation: {order.operation}; known are {sorted(OPERATIONS)}")
        self._orders.append(order)

    def clear(self) -> None:
        self._orders.clear()

    def due(self, operation: str, path: Path) -> Fault | None:
        """The order that this call carries out, if any; every matching order before it counts the call."""
        for order in self._orders:
            if order.operation != operation or order.path_contains not in str(path):
                continue
            if order.after > 0:
                order.after -= 1
                continue
            if order.times is not None:
                order.times -= 1
                if order.times <= 0:
                    self._orders.remove(order)
            return order
        return None
