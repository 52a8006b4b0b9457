"""A disk of a coordinated set is full for a while: a master's refuses with a reason, a replica's is left behind, and
with space everything goes on by itself, without a restart and with nothing lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from tests.fault.test_failover import TOPIC, Listening, Sends, consume_all, ready
from tests.support.server_processes import options
from tests.waiting import wait_until

# Longer than a busy machine keeps a master from its beats.
LEASE_MS = 4_000


@pytest.mark.fault("F4")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_master_without_space_refuses_serves_reads_and_goes_on_when_there_is_some(
    tmp_path: Path, flush: str
) -> None:
    lease = options("coordinator", master_lease_ms=LEASE_MS, broker_silent_ms=LEASE_MS)
    with ready(tmp_path, flush=flush, fillable=True, coordinator_arguments=lease) as found:
        with Sends(found.names.address, retries=0) as sends:
            sends.wait_more()
            master = found.master()
            failures = len(sends.failures)
            master.full_mark.touch()
            wait_until(lambda: len(sends.failures) > failures, "a send that is refused")
            before = sends.bodies
            with (
                penstock.Producer(found.names.address, retries=0) as producer,
                pytest.raises(PenstockError, match="no space left"),
            ):
                producer.send(TOPIC, b"too much")
            with Listening(found.names.address) as consumer:
                consumer.wait_for(before)
            time.sleep(LEASE_MS / 1000 + 0.8)  # longer than the lease
            assert found.master() is master, "its lease does not depend on its disk"
            master.full_mark.unlink()
            returned = time.monotonic()
            took = sends.after(returned)
            print(f"acknowledged again {took:.2f} s after there was space")
        found.wait(3)
        got = consume_all(found.names.address, sends.bodies)
        assert b"too much" not in got
        found.assert_equal_logs()


@pytest.mark.fault("F4")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_a_replica_without_space_is_left_behind_and_catches_up(tmp_path: Path) -> None:
    with ready(tmp_path, fillable=True) as found:
        with Sends(found.names.address) as sends:
            sends.wait_more()
            replica = found.replicas()[0]
            replica.full_mark.touch()
            filled = time.monotonic()
            found.wait(2)
            print(f"out of the set after {time.monotonic() - filled:.1f} s")
            sends.after(time.monotonic())
            replica.full_mark.unlink()
            found.wait(3)
            sends.wait_more()
        assert not sends.failures
        consume_all(found.names.address, sends.bodies)
        found.assert_equal_logs()
