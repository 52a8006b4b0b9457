"""Every option that limits what a peer may do has a test at a running server."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from penstock.broker.options import BrokerOptions
from penstock.nameserver import NameServerOptions
from penstock.remoting import RemotingOptions
from penstock.security import AccessOptions
from penstock.store import StoreOptions
from tests.abuse import (
    test_fairness,
    test_limits_broker,
    test_limits_idempotence,
    test_limits_nameserver,
    test_limits_pop,
    test_limits_push,
    test_limits_remoting,
    test_limits_staging,
    test_limits_timers,
    test_slow_readers,
    test_transactions,
)
from tests.abuse.limits import TESTED
from tests.abuse.observed import ROOT

MODULES = (
    test_fairness,
    test_limits_broker,
    test_limits_idempotence,
    test_limits_nameserver,
    test_limits_pop,
    test_limits_push,
    test_limits_remoting,
    test_limits_staging,
    test_limits_timers,
    test_slow_readers,
    test_transactions,
)
# Limits whose tests need more than a socket: a slow disk, a client that answers late. Each is named in that file.
ELSEWHERE = {
    "broker.sends_waiting_max": "tests/unit/broker/test_flow_control.py",
    "broker.sends_waiting_bytes_max": "tests/unit/broker/test_flow_control.py",
    "broker.relays_max": "tests/unit/broker/test_relay.py",
    "broker.relay_timeout_ms": "tests/unit/broker/test_relay.py",
    "broker.partition_leases_max": "tests/unit/broker/test_partition_leases.py",
    "access.sessions_max": "tests/unit/security/test_freshness.py",
    "broker.transaction_check_max": "tests/unit/broker/test_transaction_checks.py",
    "broker.transaction_timeout_ms": "tests/unit/broker/test_transaction_checks.py",
}
# Not what a peer does to a server.
OTHERS = {"remoting.connect_timeout_ms", "broker.register_timeout_ms", "broker.slave_timeout_ms"}


def limits() -> set[str]:
    found = {f"remoting.{item.name}" for item in fields(RemotingOptions)} | {"store.max_message_size_bytes"}
    for section, options in (
        ("broker", BrokerOptions),
        ("nameserver", NameServerOptions),
        ("access", AccessOptions),
    ):
        for item in fields(options):
            if item.name.endswith(("_max", "_max_ms", "_timeout_ms")) or item.name in (
                "create_per_second",
                "create_burst",
            ):
                found.add(f"{section}.{item.name}")
    assert "max_message_size_bytes" in {item.name for item in fields(StoreOptions)}
    return found - OTHERS


def test_each_limit_has_a_test() -> None:
    assert all(MODULES)
    missing = sorted(limits() - TESTED.keys() - ELSEWHERE.keys())
    assert not missing, f"limits without a test in tests/abuse: {missing}"
    gone = sorted((TESTED.keys() | ELSEWHERE.keys()) - limits())
    assert not gone, f"tests of limits that are none any more: {gone}"
    for name, path in ELSEWHERE.items():
        assert name.partition(".")[2] in Path(ROOT, path).read_text(), name


def test_each_limit_is_explained() -> None:
    page = (ROOT / "docs/operating/limits.md").read_text()
    unnamed = sorted(name for name in limits() if f"`{name.partition('.')[2]}`" not in page)
    assert not unnamed, f"limits that docs/operating/limits.md does not name: {unnamed}"
