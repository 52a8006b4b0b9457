"""Stand-ins for the machine: a clock that a test moves and a disk that fails and forgets on order.

Rule: a stand-in has the door of `penstock.runtime` and nothing of the product knows that it exists; no other
room imports this one. Everything a run does follows from what the test asked for and from a seed.
"""

from __future__ import annotations

from penstock.testing.clock import ManualClock
from penstock.testing.disk import FaultyDisk
from penstock.testing.gate import Operation, PowerLostError
from penstock.testing.unsynced import (
    BLOCK_BYTES,
    SIZE,
    Keep,
    UnsyncedBlock,
    UnsyncedWrite,
    keep_random_blocks,
    keep_unsynced,
    lose_unsynced,
)

__all__ = [
    "BLOCK_BYTES",
    "FaultyDisk",
    "Keep",
    "ManualClock",
    "Operation",
    "PowerLostError",
    "SIZE",
    "UnsyncedBlock",
    "UnsyncedWrite",
    "keep_random_blocks",
    "keep_unsynced",
    "lose_unsynced",
]
