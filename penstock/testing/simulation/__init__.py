"""A broker set, its coordinators and their metadata in one process, on a clock and a network that a seed decides.

    python -m penstock.testing.simulation --seed 4711 --trace

What runs is the production code without its sockets, files and clocks: `Membership`, `SetReplicas`, `AckTracker`,
`EpochSender`, `EpochReceiver` of the brokers, `ReplicaSet` of the coordinators. The world around them is made here:
messages that are late, lost or held until a partition heals, processes that are killed, paused and started again,
machines that lose their power, a metadata service with sessions, versions and outages. Nothing here asks a real
clock or an unseeded random number, so the same seed gives the same history, down to the last byte.

The division of queues among consumers has a world of its own, in `balancing.py` (`--balance`). What must hold is in
`judge.py` and there. Owned by tests; nothing in production imports it.
"""

from penstock.testing.simulation.balancing import BalanceReport, simulate_balance
from penstock.testing.simulation.judge import Broken
from penstock.testing.simulation.schedule import Plan, Report, simulate

__all__ = ["BalanceReport", "Broken", "Plan", "Report", "simulate", "simulate_balance"]
