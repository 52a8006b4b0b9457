"""The broker is stopped in good order and started again, under load: nobody notices but by waiting.

Figures are printed: `pytest -s`, or `-rP` after the run.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import penstock
from tests.effort import by_length
from tests.fault.client_load import AUDIT, WORKERS, Load
from tests.fault.history_checks import percentiles
from tests.fault.load_scenarios import (
    committed_offsets,
    drain,
    finish,
    new_history,
    recovery_text,
    wait_recovered,
)
from tests.support.server_processes import cluster, wait_known

RESTARTS = by_length(1, 20)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.invariant("I14")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_restart_under_load_loses_nothing(tmp_path: Path, flush: str) -> None:
    stops: list[float] = []
    stopping: list[float] = []
    starting: list[float] = []
    with cluster(tmp_path, flush=flush) as (names, node):
        history = new_history(names.address)
        with Load(names.address, history) as load:
            for _ in range(RESTARTS):
                wait_recovered(load, history, time.monotonic())
                stopping.append(node.stop())
                stops.append(time.monotonic())
                starting.append(node.start())
            wait_recovered(load, history, time.monotonic())
            drained = drain(load, names.address)
        figures = finish(history, names.address, node)
    gap = history.longest_gap()
    print(f"\n[restart of the broker under load, {RESTARTS} times, {flush} flush] {figures}")
    print(
        f"  stopped in {percentiles(stopping)}; ready in {percentiles(starting)}; {recovery_text(history, stops)};"
    )
    print(f"  longest time without an acknowledged send {gap:.2f} s; drained {drained:.2f} s")
    # What was in hand at each stop comes again, more the slower the machine; all of it again would be a mistake.
    assert figures.redelivered[AUDIT] + figures.redelivered[WORKERS] < figures.ok // 2


@pytest.mark.invariant("I1")
@pytest.mark.seed("S4-6")
def test_a_group_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Nothing comes again and nothing is left out when both the group and the broker stopped in good order."""
    with cluster(tmp_path, flush="async") as (names, node):
        history = new_history(names.address)
        with penstock.Producer(names.address, linger_ms=2) as producer:
            futures = [producer.send_async(history.topic, b"%d" % number) for number in range(200)]
            assert all(future.result().is_ok for future in futures)
        seen: list[bytes] = []
        for _ in range(2):
            before = len(seen)
            with penstock.Consumer(names.address, group="g", start_from="first") as consumer:
                consumer.subscribe(history.topic)
                for message in consumer:
                    seen.append(message.body)
                    if len(seen) == before + 60:
                        break
            stored = committed_offsets(names.address, "g")
            node.stop()
            node.start()
            wait_known(names.address)
            assert committed_offsets(names.address, "g") == stored
            assert sum(stored.values()) == len(seen)
        with penstock.Consumer(names.address, group="g", start_from="first") as consumer:
            consumer.subscribe(history.topic)
            for message in consumer:
                seen.append(message.body)
                if len(seen) == 200:
                    break
    assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
