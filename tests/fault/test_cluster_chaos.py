"""A whole cluster of real processes under load, and one misfortune after the other: nothing that was promised breaks.

    I1, I2, I3, I4, I13    the history of all clients against the master's store (`history_checks.py`)
    I4, I11                the logs of all brokers are equal, byte for byte, when all is calm again
    I1                     committed offsets never go back, whoever is asked
    I6, I10                no queue of a balanced group has two owners

The short variant has shorter leases, sessions and misfortunes (`cluster/pace.py`).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.testing.zookeeper import why_unavailable
from tests.effort import by_length
from tests.fault.cluster.faults import Storm
from tests.fault.cluster.load import ClusterLoad, ReplicatedHistory, Watch
from tests.fault.cluster.nodes import Cluster, cluster, make_topic
from tests.fault.history_checks import check_history, percentiles
from tests.fault.load_scenarios import QUEUES, TOPIC, queue_ends
from tests.fault.operation_history import Outcome
from tests.fault.seeded import seeded
from tests.waiting import wait_until

LASTS_S = by_length(12.0, 300.0)
DRAIN_S = 180.0


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.fault("F1", "F2", "F3", "F4", "F11", "F12")
@pytest.mark.invariant("I1", "I2", "I3", "I4", "I6", "I10", "I11", "I13")
@pytest.mark.timeout(LASTS_S * 1.5 + 600)
def test_a_cluster_keeps_its_promises_through_a_storm(tmp_path: Path) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    history = ReplicatedHistory(TOPIC, QUEUES)
    story: list[str] = []
    with seeded(lambda: _told(history, story, tmp_path)) as seed, cluster(tmp_path) as found:
        _storm(found, history, seed, story)


def _storm(found: Cluster, history: ReplicatedHistory, seed: int, story: list[str]) -> None:
    make_topic(found, TOPIC, QUEUES)
    load = ClusterLoad(found.name_servers, found.coordinator_addresses, history)
    with load:
        with Watch([one.address for one in found.brokers], load) as watch:
            storm = Storm(seed, found, load)
            storm.story = story
            deadline = time.monotonic() + LASTS_S
            while time.monotonic() < deadline and not watch.wrong:
                storm.strike()
                load.check()
            story.append("calm")
            over = time.monotonic()
            found.wait_calm()
            together_s = time.monotonic() - over
            while history.first_ok_after(over) is None:
                assert time.monotonic() < over + DRAIN_S, "nothing is acknowledged although all is well again"
                time.sleep(0.1)
            load.stop_sending()
            drained_s = load.drain(lambda: queue_ends(found.name_servers), DRAIN_S)
        assert not watch.wrong, watch.wrong[:5]
    master = found.wait_calm()
    wait_until(lambda: len(set(found.log_ends())) == 1, "logs of one length")
    for one in found.brokers:
        one.kill()
    logs = found.logs()
    ends = {one.log.parent.name: len(log) for one, log in logs.items()}
    unequal = [one.log.parent.name for one, log in logs.items() if log != logs[master]]
    assert not unequal, f"logs of {unequal} are not as the master's, {master.log.parent.name}: {ends}"
    figures = check_history(history, master.data)
    recovered = [
        at - moment for moment in storm.moments if (at := history.first_ok_after(moment)) is not None
    ]
    print(f"\nseed {seed}: {dict(storm.kinds)}; {figures}")
    print(f"acknowledged again after {percentiles(recovered)}, longest gap {history.longest_gap():.2f} s")
    print(
        f"in sync {together_s:.1f} s after the storm, drained in {drained_s:.1f} s; log of {len(logs[master])} bytes"
    )
    print(f"{len(watch.told)} committed offsets told; owners looked at {watch.looks} times, held by "
          f"{sorted(len(those) for those in watch.held.values())} members")  # fmt: skip
    # A storm in which nothing happened would prove nothing.
    assert figures.ok > 100
    assert len(watch.told) > 10
    assert watch.held


def _told(history: ReplicatedHistory, story: list[str], folder: Path) -> str:
    """The story and what became of the sends; the whole history lies beside the servers' data."""
    whole = folder / "history.txt"
    with open(whole, "w", encoding="utf-8") as file:
        for send in list(history.sends.values()):
            print(send, file=file)
        for name, group in list(history.groups.items()):
            for delivery in list(group.deliveries):
                print(name, delivery, file=file)
    counts = {outcome.value: len(history.of(outcome)) for outcome in Outcome}
    troubles = [
        f"{send.serial} {send.kind}: {send.error[:200]}"
        for send in list(history.sends.values())
        if send.error
    ]
    return "\n".join(
        [
            f"whole history: {whole}",
            *story,
            f"sends: {counts}; the last that failed:",
            *troubles[-15:],
        ]
    )
