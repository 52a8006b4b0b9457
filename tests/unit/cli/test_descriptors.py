"""What a server promises follows from how many files its process may open."""

import resource
import subprocess
import sys

import pytest

from penstock.cli.descriptors import ENOUGH, PER_QUEUE_FILE, RESERVED, fit, raise_limit
from penstock.remoting import RemotingOptions
from penstock.store import StoreOptions


@pytest.mark.parametrize("limit", [10, 300, 1_024, 4_096, 20_000, 65_536])
def test_connections_and_queue_files_fit_into_what_there_is(limit: int) -> None:
    remoting, store, _ = fit(limit, RemotingOptions(), StoreOptions())
    assert store is not None
    assert remoting.connections_max >= 1
    assert store.queue_files_open_max >= 1
    if limit > 4 * RESERVED // 3:
        assert remoting.connections_max + PER_QUEUE_FILE * store.queue_files_open_max + RESERVED <= limit


def test_where_there_is_enough_nothing_changes() -> None:
    given = RemotingOptions(), StoreOptions()
    assert fit(ENOUGH, *given) == (*given, [])
    alone = RemotingOptions(), None
    assert fit(ENOUGH, *alone) == (*alone, [])


def test_only_a_tight_limit_is_worth_a_line() -> None:
    remoting, store, (said,) = fit(1_024, RemotingOptions(), StoreOptions())
    assert said.startswith("this process may open only 1024 files, so it takes at most 384 connections;")
    assert "ulimit -n" in said
    assert store is not None
    assert (remoting.connections_max, store.queue_files_open_max) == (384, 192)
    assert fit(20_000, RemotingOptions(), StoreOptions())[2] == []
    assert fit(1_024, RemotingOptions(connections_max=50), StoreOptions())[2] == []
    remoting, store, (said,) = fit(1_024, RemotingOptions(), None)
    assert (remoting.connections_max, store) == (768, None)


def test_the_limit_is_raised_as_far_as_may_be() -> None:
    """In a process of its own, since it cannot be undone."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    script = (
        "import resource; from penstock.cli.descriptors import raise_limit;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}));"
        "print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(most), str(most)]
    assert raise_limit() >= 64
