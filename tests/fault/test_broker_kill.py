"""The broker process is killed under load, again and again on the same directory, and once put to sleep.

Kills hit sends, group commits, pulls, savings of the tables, start-up and recovery. Figures are printed: `pytest -s`,
or `-rP` after the run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import penstock
from penstock.runtime import SeededEntropy
from tests.effort import by_length
from tests.fault.client_load import Load
from tests.fault.history_checks import percentiles
from tests.fault.load_scenarios import (
    drain,
    finish,
    new_history,
    recovery,
    recovery_text,
    wait_recovered,
)
from tests.fault.operation_history import History, Outcome
from tests.fault.seeded import seeded
from tests.support.server_processes import ServerProcess, cluster, wait_known
from tests.waiting import wait_until

ROUNDS = {"sync": by_length(2, 62), "async": by_length(2, 30)}
LIFE_S = (0.3, 1.0)
STARTING_S = 0.3
DOWN_S = 0.3
# Longer than a send waits, also when it is tried twice.
PAUSE_S = 2.0
SEND_TIMEOUT_MS = 500
KINDS = {"sync", "keyed", "async", "batch"}


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


def kill_and_start(names: ServerProcess, node: ServerProcess) -> None:
    node.kill()
    node.start()
    wait_known(names.address)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.invariant("I14")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_broker_crash_under_load_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    """Also under asynchronous flush: what a process wrote is in the page cache; only the machine can lose it."""
    rounds = ROUNDS[flush]
    kills: list[float] = []
    ready: list[float] = []
    with seeded() as seed:
        entropy = SeededEntropy(seed)
        with cluster(tmp_path, flush=flush) as (names, node):
            history = new_history(names.address)
            with Load(names.address, history) as load:
                for number in range(rounds):
                    time.sleep(LIFE_S[0] + entropy.fraction() * (LIFE_S[1] - LIFE_S[0]))
                    load.check()
                    kills.append(kill_once(node, entropy, while_starting=number % 3 == 1))
                    ready.append(time.monotonic() - kills[-1])
                wait_recovered(load, history, time.monotonic())
                wait_until(
                    lambda: (
                        len(history.of(Outcome.OK)) > rounds * 20
                        and {send.kind for send in history.of(Outcome.OK)} == KINDS
                    ),
                    "messages of each kind, so that this proves something",
                )
                drained = drain(load, names.address)
            figures = finish(history, names.address, node, kill=True)
    print(f"\n[kill -9 of the broker under load, {rounds} rounds, {flush} flush, seed {seed}] {figures}")
    print(
        f"  ready again after {percentiles(ready)}; {recovery_text(history, kills)}; drained {drained:.2f} s"
    )


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_topics_and_groups_are_there_after_a_crash_as_soon_as_they_are_answered(tmp_path: Path) -> None:
    """Also those that no message has ever been in: nothing could tell of them but the tables."""
    with cluster(tmp_path) as (names, node):
        with penstock.Admin(names.address) as admin:
            admin.create_topic("empty", 7)
            admin.create_group("idle", retry_max_times=3)
        kill_and_start(names, node)
        with penstock.Admin(names.address) as admin:
            assert len(admin.describe_topic("empty").queues) == 7
            assert admin.describe_group("idle").retry_max_times == 3
            admin.create_topic("empty", 9)
        kill_and_start(names, node)
        with penstock.Admin(names.address) as admin, penstock.Producer(names.address) as producer:
            assert len(admin.describe_topic("empty").queues) == 9
            # On demand, with the first message; killed right after its answer.
            first = producer.send("on-demand", b"first")
            queues = len(producer.queues("on-demand"))
        kill_and_start(names, node)
        with penstock.Admin(names.address) as admin:
            assert len(admin.describe_topic("on-demand").queues) == queues
            assert [m.body for m in admin.read_messages(first.queue, 0)] == [b"first"]
            admin.delete_topic("empty")
        kill_and_start(names, node)
        with penstock.Admin(names.address) as admin:
            assert "empty" not in admin.list_topics()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_crash_takes_back_committed_offsets_by_a_few_seconds_at_most(tmp_path: Path) -> None:
    """Redelivery of a group whose consumers are gone when the broker dies is what they did since the last save."""
    with cluster(tmp_path, "--set", "broker.offset_save_interval_ms=200") as (names, node):
        history = new_history(names.address)
        queue = penstock.MessageQueue(history.topic, "broker-a", 0)
        with penstock.Producer(names.address) as producer:
            for number in range(40):
                producer.send(history.topic, b"%d" % number, queue=queue)
        with penstock.Consumer(names.address, group="g", start_from="first") as consumer:
            consumer.assign([queue])
            first = _poll(consumer, 20)
            consumer.commit()
            saved = node.data / "config" / "consumerOffset.json"
            wait_until(lambda: is_saved(saved, f"{history.topic}@g", 20), "the first commit is saved")
            second = _poll(consumer, 10)
            consumer.commit()
            kill_and_start(names, node)
        with penstock.Consumer(names.address, group="g", start_from="first") as consumer:
            consumer.assign([queue])
            rest = _poll(consumer, 10)
    assert [*first, *second] == [b"%d" % number for number in range(30)]
    # The second commit may have been saved or not; the first was, and nothing is skipped either way.
    assert rest[0] in {b"%d" % number for number in range(20, 31)}
    print(f"\n[committed offsets after kill -9] {30 - int(rest[0])} of the last 10 came again")


def is_saved(path: Path, key: str, offset: int) -> bool:
    """Whether the file of offsets says this of queue 0."""
    if not path.exists():
        return False
    return bool(json.loads(path.read_bytes())["offsetTable"].get(key, {}).get("0") == offset)


def _poll(consumer: penstock.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [message.body for message in consumer.poll(count - len(found))]
    return found


@pytest.mark.fault("F2")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I13")
@pytest.mark.slow
def test_a_broker_that_sleeps_until_sends_time_out_loses_nothing(tmp_path: Path) -> None:
    """Sends time out, with an unknown outcome: what lay in the socket is stored when the broker wakes up."""
    with cluster(tmp_path) as (names, node):
        history = new_history(names.address)
        settings = {"send_timeout_ms": SEND_TIMEOUT_MS, "retries": 1}
        with Load(names.address, history, producer_settings=settings) as load:
            wait_recovered(load, history, time.monotonic())
            slept = time.monotonic()
            node.pause()
            time.sleep(PAUSE_S)
            woke = time.monotonic()
            node.resume()
            wait_recovered(load, history, woke)
            drained = drain(load, names.address)
        figures = finish(history, names.address, node)
    late = [send for send in history.of(Outcome.UNKNOWN) if slept <= send.ended <= woke + 2]
    _check_sleep(history, slept, woke)
    sending, consuming = recovery(history, [woke])
    print(f"\n[broker paused for {PAUSE_S:.0f} s (SIGSTOP), sync flush] {figures}")
    print(f"  {len(late)} sends timed out; after waking up, first send acknowledged")
    print(f"  in {sending[0]:.2f} s, delivered in {consuming[0]:.2f} s; drained {drained:.2f} s")
    assert late, "no send noticed that the broker was asleep"


def _check_sleep(history: History, slept: float, woke: float) -> None:
    """Nothing was acknowledged by a broker that slept; an answer that was on its way may come a moment later."""
    early = [send for send in history.of(Outcome.OK) if slept + 0.5 < send.ended < woke]
    assert not early, early[:5]
