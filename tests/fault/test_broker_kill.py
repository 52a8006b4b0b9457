"""The broker process is killed under load, again and again on the same directory, and once put to sleep.

Kills hit sends, group commits, pulls, savings of the tables, start-up and recovery. `make crash ROUNDS=n` runs more
rounds; a failure prints its seed, and PENSTOCK_CRASH_SEED repeats it as far as timing allows. Figures are printed:
`pytest -s`, or `-rP` after the run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import penstock
from penstock.runtime import SeededEntropy
from tests.fault.client_load import WORKERS, Load
from tests.fault.history_checks import check_history, percentiles
from tests.fault.operation_history import History, Outcome
from tests.fault.server_processes import ServerProcess, cluster

TOPIC, QUEUES = "orders", 4
LIFE_S = (0.3, 1.3)
STARTING_S = 0.6
DOWN_S = 0.3


def chosen_seed() -> int:
    return int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 1_000_000_007)


def make_topic(name_servers: str) -> None:
    with penstock.Admin(name_servers) as admin:
        admin.create_topic(TOPIC, QUEUES)


def queue_ends(name_servers: str) -> dict[int, int]:
    """How many messages each queue has."""
    with penstock.Admin(name_servers) as admin:
        return {item.queue.queue_id: item.max_offset for item in admin.describe_topic(TOPIC).queues}


def committed_offsets(name_servers: str, group: str) -> dict[int, int]:
    with penstock.Admin(name_servers) as admin:
        return {queue.queue_id: offset for queue, offset in admin.offsets(group, TOPIC).items()}


def kill_once(node: ServerProcess, entropy: SeededEntropy, *, while_starting: bool) -> float:
    """Kill the broker, leave it dead for a moment, start it again; the moment of the kill."""
    node.kill()
    killed = time.monotonic()
    time.sleep(entropy.fraction() * DOWN_S)
    if while_starting:
        node.launch()
        time.sleep(entropy.fraction() * STARTING_S)
        node.kill()
    node.start()
    return killed


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.invariant("I14")
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_broker_crash_under_load_loses_nothing_acknowledged(tmp_path: Path, crash_rounds: int) -> None:
    rounds, seed = max(crash_rounds // 12, 3), chosen_seed()
    entropy, history = SeededEntropy(seed), History(TOPIC, QUEUES)
    kills: list[float] = []
    ready: list[float] = []
    try:
        with cluster(tmp_path) as (names, node):
            make_topic(names.address)
            with Load(names.address, history) as load:
                for _ in range(rounds):
                    time.sleep(LIFE_S[0] + entropy.fraction() * (LIFE_S[1] - LIFE_S[0]))
                    load.check()
                    kills.append(kill_once(node, entropy, while_starting=entropy.below(3) == 0))
                    ready.append(time.monotonic() - kills[-1])
                time.sleep(1.5)
                load.stop_sending()
                drained = load.drain(lambda: queue_ends(names.address))
            ends = queue_ends(names.address)
            for group in history.groups:
                assert committed_offsets(names.address, group) == ends
            node.kill()
        figures = check_history(history, node.data)
    except BaseException as error:
        error.add_note(f"broker crash test failed with PENSTOCK_CRASH_SEED={seed}, {rounds} rounds")
        raise
    sending = [at - killed for killed in kills if (at := history.first_ok_after(killed)) is not None]
    consuming = [
        at - killed for killed in kills if (at := history.first_delivery_after(killed, WORKERS)) is not None
    ]
    print(f"\n[kill -9 of the broker, {rounds} rounds, sync flush, seed {seed}] {figures}")
    print(f"  from the kill to: ready {percentiles(ready)}; first send acknowledged {percentiles(sending)};")
    print(f"  first message of after the kill delivered {percentiles(consuming)}; drained in {drained:.2f} s")
    assert figures.ok > rounds * 20, "the producers hardly sent anything: this proved nothing"
    assert len(sending) == len(kills)
    assert max(sending) < 15
    assert {send.kind for send in history.of(Outcome.OK)} == {"sync", "keyed", "async", "batch"}
