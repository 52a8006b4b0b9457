"""For tests: a real broker in this process, and stand-ins for the machine's clock and disk.

    with penstock.testing.broker() as address:      # a name server's address; also the pytest fixture
        ...                                         # `penstock_broker`, see `plugin`

Rule: a stand-in has the door of `penstock.runtime` and nothing of the product knows that it exists; no other
room imports this one. Everything a run does follows from what the test asked for and from a seed. Names are
loaded when they are used: every run of pytest imports this package for the fixture's sake.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.clock import ManualClock
    from penstock.testing.disk import FaultyDisk
    from penstock.testing.embedded import EmbeddedBroker, async_broker, broker
    from penstock.testing.gate import Operation, PowerLostError
    from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
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
    from penstock.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, zookeeper_servers

__all__ = [
    "BLOCK_BYTES",
    "EmbeddedBroker",
    "FaultyDisk",
    "Keep",
    "ManualClock",
    "MemoryEnsemble",
    "MemoryMetadata",
    "Operation",
    "PowerLostError",
    "SIZE",
    "UnsyncedBlock",
    "UnsyncedWrite",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "async_broker",
    "broker",
    "keep_random_blocks",
    "keep_unsynced",
    "lose_unsynced",
    "zookeeper_servers",
]
_MODULES = {
    "clock": ("ManualClock",),
    "disk": ("FaultyDisk",),
    "embedded": ("EmbeddedBroker", "async_broker", "broker"),
    "gate": ("Operation", "PowerLostError"),
    "metadata": ("MemoryEnsemble", "MemoryMetadata"),
    "unsynced": (
        "BLOCK_BYTES",
        "Keep",
        "SIZE",
        "UnsyncedBlock",
        "UnsyncedWrite",
        "keep_random_blocks",
        "keep_unsynced",
        "lose_unsynced",
    ),
    "zookeeper": ("ZooKeeperEnsemble", "ZooKeeperServer", "zookeeper_servers"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
