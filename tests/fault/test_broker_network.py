"""The network between clients and broker breaks: resets inside frames, half-open and one-way connections.

All clients reach the broker through a proxy of this process, whose address the broker advertises. Nothing that was
acknowledged may be missing, nothing may be stored in part, and everybody must find their way back without help.
Figures are printed: `pytest -s`, or `-rP` after the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime import SeededEntropy
from tests.effort import by_length
from tests.fault.client_load import Load
from tests.fault.history_checks import Figures
from tests.fault.load_scenarios import drain, finish, new_history, recovery_text, wait_recovered
from tests.fault.operation_history import History, Outcome
from tests.fault.seeded import seeded
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_processes import ServerProcess, broker, name_server, wait_known

ROUNDS = by_length(3, 80)
# Short, so that a connection on which nothing comes back is noticed within the test.
IMPATIENT: dict[str, Any] = {"call_timeout_ms": 500, "heartbeat_interval_ms": 500}
PRODUCERS: dict[str, Any] = {"send_timeout_ms": 500, "retries": 1}
CONSUMERS: dict[str, Any] = {"suspend_ms": 500, "pull_timeout_ms": 1_500}


@contextmanager
def proxied_cluster(folder: Path) -> Iterator[tuple[ServerProcess, ServerProcess, CuttingProxy]]:
    """A name server, and a broker that tells clients the proxy's address."""
    with (
        CuttingProxy() as proxy,
        name_server(folder / "nameserver") as names,
        broker(folder / "broker", names.address, "--advertise", proxy.address) as node,
    ):
        proxy.forward_to(node.address)
        wait_known(names.address)
        yield names, node, proxy


def run(
    folder: Path, faults: Callable[[CuttingProxy, Load], list[float]]
) -> tuple[History, Figures, list[float], float]:
    with proxied_cluster(folder) as (names, node, proxy):
        history = new_history(names.address)
        with Load(
            names.address,
            history,
            settings=IMPATIENT,
            producer_settings=PRODUCERS,
            consumer_settings=CONSUMERS,
        ) as load:
            wait_recovered(load, history, time.monotonic())
            moments = faults(proxy, load)
            wait_recovered(load, history, time.monotonic())
            drained = drain(load, names.address)
        return history, finish(history, names.address, node), moments, drained


@pytest.mark.fault("F3")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.slow
@pytest.mark.long
def test_connections_that_are_reset_inside_frames(tmp_path: Path) -> None:
    cut = 0

    def faults(proxy: CuttingProxy, load: Load) -> list[float]:
        nonlocal cut
        moments = []
        for _ in range(ROUNDS):
            moments.append(time.monotonic())
            proxy.reset(1 + entropy.below(3_000))
            time.sleep(0.1 + entropy.fraction() * 0.4)
            load.check()
        cut = proxy.cut
        return moments

    with seeded() as seed:
        entropy = SeededEntropy(seed)
        history, figures, moments, drained = run(tmp_path, faults)
    print(f"\n[connections reset inside frames, {cut} of them in {ROUNDS} rounds, seed {seed}] {figures}")
    print(f"  {recovery_text(history, moments)}; drained {drained:.2f} s")
    assert cut >= ROUNDS


@pytest.mark.fault("F3")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.slow
def test_connections_on_which_nothing_comes_back(tmp_path: Path) -> None:
    """Half-open, then one-way: neither side is told that the connection is dead. Whoever asks and is not answered
    has to find out, and dial again, instead of asking a dead connection for ever."""

    def faults(proxy: CuttingProxy, load: Load) -> list[float]:
        moments = []
        for fault in (proxy.swallow, proxy.deafen):
            moments.append(time.monotonic())
            fault()
            wait_recovered(load, load.history, moments[-1])
        return moments

    history, figures, moments, drained = run(tmp_path, faults)
    again = sum(send.attempts > 1 for send in history.of(Outcome.OK))
    print(f"\n[all connections half-open, then one-way] {figures}; {again} needed a second attempt")
    print(f"  {recovery_text(history, moments)}; drained {drained:.2f} s")
    assert again or history.of(Outcome.UNKNOWN), "no send noticed"
    assert figures.copies, "requests arrived and answers did not, so retries stored something twice"


@pytest.mark.fault("F3")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I13")
@pytest.mark.slow
def test_a_broker_that_cannot_be_reached_for_a_while(tmp_path: Path) -> None:
    """The name server still knows it, so every attempt is made and fails."""

    def faults(proxy: CuttingProxy, load: Load) -> list[float]:
        proxy.refuse(True)
        proxy.reset()
        time.sleep(1.5)
        proxy.refuse(False)
        return [time.monotonic()]

    history, figures, moments, drained = run(tmp_path, faults)
    print(f"\n[broker out of reach for 1.5 s] {figures}")
    print(f"  {recovery_text(history, moments)}; drained {drained:.2f} s")
    assert figures.failed + figures.unknown > 0
