"""The one door to clock, disk, network and randomness.

Rule: no other room calls `time.time()`, `open()`, `socket()` or `random()`. Components receive a `Runtime`
and ask it; a test hands them one whose clock stands still or whose disk fails on demand, and a simulation
one in which a seed decides everything. `Runtime.system()` is the real machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.disk import Disk, DiskUsage, File, FileLock, SystemDisk
from penstock.runtime.entropy import Entropy, SeededEntropy, SystemEntropy
from penstock.runtime.network import Network, SystemNetwork
from penstock.runtime.periodic import PeriodicThread

__all__ = [
    "Clock",
    "Disk",
    "DiskUsage",
    "Entropy",
    "File",
    "FileLock",
    "Network",
    "PeriodicThread",
    "Runtime",
    "SeededEntropy",
    "SystemClock",
    "SystemDisk",
    "SystemEntropy",
    "SystemNetwork",
]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a component may know of the world outside itself."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=SystemDisk)
    network: Network = field(default_factory=SystemNetwork)
    entropy: Entropy = field(default_factory=SystemEntropy)

    @staticmethod
    def system() -> Runtime:
        """The real machine."""
        return Runtime()
