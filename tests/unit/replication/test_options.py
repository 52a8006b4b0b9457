"""Options that contradict each other are refused when they are made."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.replication import ReplicationOptions


@pytest.mark.seed("S1-49", "S1-53", "S1-55")
def test_the_defaults_are_rocketmqs() -> None:
    options = ReplicationOptions()
    assert (options.heartbeat_interval_ms, options.housekeeping_interval_ms) == (5_000, 20_000)
    assert (options.wait_interval_ms, options.reconnect_interval_ms) == (1_000, 5_000)
    assert (options.transfer_batch_bytes, options.in_sync_gap_bytes_max) == (32_768, 268_435_456)
    assert (options.replica_timeout_ms, options.in_sync_replicas, options.min_in_sync_replicas) == (
        3_000,
        1,
        1,
    )


@pytest.mark.parametrize(
    "values",
    [
        {"heartbeat_interval_ms": 0},
        {"heartbeat_interval_ms": 20_000},
        {"housekeeping_interval_ms": 5_000},
        {"transfer_batch_bytes": 4 << 20},
        {"transfer_batch_bytes": 5 << 20, "frame_bytes_max": 8 << 20},
        {"epoch_batch_bytes": 5 << 20},
        {"connections_max": -1},
        {"transfer_bytes_per_second_max": -1},
        {"in_sync_replicas": 1, "min_in_sync_replicas": 2, "auto_in_sync_replicas": True},
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        ReplicationOptions(**values)  # type: ignore[arg-type]


def test_zero_is_no_limit_where_that_makes_sense() -> None:
    options = ReplicationOptions(transfer_bytes_per_second_max=0, confirm_interval_ms=0, rejoin_interval_ms=0)
    assert options.transfer_bytes_per_second_max == 0
