"""A network that cuts, or silently drops, what is pushed: both sides find out and go on over another connection."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import broker
from penstock.testing.reserved_port import ReservedPort
from tests.support.consuming import Seen, numbered, send
from tests.support.cutting_proxy import CuttingProxy
from tests.waiting import wait_until

IMPATIENT = {"heartbeat_interval_ms": 500, "call_timeout_ms": 1_000, "reconnect_interval_ms": 200}


@pytest.mark.fault("F3")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
def test_connections_that_break_under_deliveries() -> None:
    with CuttingProxy() as proxy, ReservedPort() as reserved:
        port = reserved.number
        proxy.forward_to(f"127.0.0.1:{port}")
        with broker(port=port, advertised_address=proxy.address, push_answer_timeout_ms=1_000) as address:
            with penstock.Admin(address) as admin:
                admin.create_topic("T", queues=1)
            seen = Seen()
            with penstock.Consumer(
                address,
                group="g",
                delivery="push",
                listener=seen,
                threads=1,
                start_from="first",
                pull_retry_ms=100,
                **IMPATIENT,  # type: ignore[arg-type]
            ) as consumer:
                consumer.subscribe("T")
                count = 0
                # Sound; reset inside a frame; half-open, where nobody is told; one-way, where only requests arrive.
                for fault in (None, lambda: proxy.reset(700), proxy.swallow, proxy.deafen):
                    if fault is not None:
                        fault()
                    send(address, "T", *numbered(20, count))
                    count += 20
                    wait_until(lambda count=count: len({*seen.bodies}) == count)  # type: ignore[misc]
                # Some may have come again; none is missing, and none was first seen before the one ahead of it.
                assert list(dict.fromkeys(seen.bodies)) == numbered(count)
