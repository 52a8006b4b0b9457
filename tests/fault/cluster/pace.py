"""How long leases, sessions and misfortunes of the cluster last: in the long variant as in production."""

from __future__ import annotations

from tests.effort import LONG, by_length

MASTER_LEASE_MS = by_length(1_000, 2_000)
BEAT_MS = by_length(250, 500)
TICK_MS = by_length(200, 500)
SESSION_MS = by_length(2_000, 6_000)

# Seconds that a misfortune lasts, and that pass until the next.
BRIEF = (0.2, MASTER_LEASE_MS / 1_000)
LONGER_THAN_LEASE = (3.0, 6.0) if LONG else (1.2, 2.0)
LONGER_THAN_SESSION = (7.0, 9.0) if LONG else (2.2, 3.0)
REST = (0.5, 4.0) if LONG else (0.2, 1.0)
