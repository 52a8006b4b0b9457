"""kill -9 of the master of a coordinated set at every step of a publication: the next one finishes it, it is there
once, and at no broker of the set does anybody ever see a part of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import penstock
from penstock.client.staging import Staging
from penstock.errors import ConnectError, PenstockError
from penstock.protocol.bodies.statistics import TopicStatsTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.fault.test_staged_publication import QUEUES, ROWS, TOPIC, items
from tests.support.broker_set import NAME, BrokerSet, broker_set, raw
from tests.support.server_processes import ServerProcess, broker, wait_known
from tests.waiting import until_done, wait_until

STEPS = ["begun 1", "copied 1", "copied 5", "all copied 1", "done 1", "released 1", "safe 1"]


class Eye(threading.Thread):
    """Asks one broker for the ends of all queues, all the time: each answer is one moment of it."""

    def __init__(self, broker: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._is_over = False
        self.seen: list[int] = []

    def run(self) -> None:
        while not self._is_over:
            try:
                answer = raw(
                    self._broker.address, Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}), 1_000
                )
            except (PenstockError, OSError):
                time.sleep(0.02)
                continue
            if answer.code == 0:
                table = TopicStatsTable.decode(answer.body)
                self.seen.append(sum(one.max_offset for one in table.offsets.values()))

    def finish(self) -> None:
        self._is_over = True
        self.join()


def stage(staging: Staging, batch: int) -> list[penstock.client.staging.Handle]:
    return [
        staging.stage(NAME, [(TOPIC, QUEUES)], items(batch, first, 15), 15) for first in range(0, ROWS, 15)
    ]


def create_topic(found: BrokerSet, *others: str) -> None:
    """Create the topic at the set and at other brokers, once the name server knows their masters."""
    wait_known(found.names.address, NAME, *others)
    with penstock.Admin(found.names.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)


def check_rows(address: str, batches: int) -> None:
    """Each row of each batch once, in its queue, in its order; routes may lead to the dead one for a moment."""

    def read() -> list[list[bytes]]:
        with penstock.Admin(address) as admin:
            places = [penstock.MessageQueue(TOPIC, NAME, queue) for queue in range(QUEUES)]
            return [[m.body for m in admin.read_messages(place, 0, limit=10_000)] for place in places]

    for queue, bodies in enumerate(until_done(read)):
        rows = range(queue, ROWS, QUEUES)
        assert bodies == [b"%d/%d" % (batch, row) for batch in range(batches) for row in rows]


def publish(staging: Staging, batch: int) -> bool:
    """What Spark does: publish, and when that fails run the batch again; whether it was there already."""
    return until_done(lambda: staging.publish(NAME, "query", batch, stage(staging, batch)).already)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I5")
@pytest.mark.timeout(400)
def test_a_publication_outlives_its_master_whole_and_once(tmp_path: Path) -> None:
    """One set for all steps, each with a batch of its own: the dead one comes back before the next."""
    mark = tmp_path / "mark"
    with broker_set(tmp_path / "set", dies_at=mark) as found:
        create_topic(found)
        eyes = [Eye(broker) for broker in found.brokers]
        for eye in eyes:
            eye.start()
        with Staging(found.names.address) as staging:
            for batch, step in enumerate(STEPS):
                master = found.master()
                mark.write_text(step)
                publish(staging, batch)
                assert not mark.exists(), f"nobody died at {step}"
                assert publish(staging, batch), "the same batch again is answered as done"
                check_rows(found.names.address, batch + 1)
                master.let_die()
                master.start()
                found.wait(3)
        for eye in eyes:
            wait_until(lambda eye=eye: eye.seen[-1:] == [ROWS * len(STEPS)], "the last batch at every broker")  # type: ignore[misc]
            eye.finish()
            assert set(eye.seen) <= {ROWS * batches for batches in range(len(STEPS) + 1)}
            assert eye.seen[-1] == ROWS * len(STEPS)
        found.assert_equal_logs()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_what_a_set_was_told_of_a_querys_home_outlives_its_master(tmp_path: Path) -> None:
    """The home is a lone broker. The set that was told of it loses its master, then the home goes: who asks the new
    master hears of the home, and publishes nowhere else. Back again, the home answers that the batch is there."""
    with (
        broker_set(tmp_path / "set") as found,
        broker(tmp_path / "lone", found.names.address, "--name", "lone") as lone,
    ):
        create_topic(found, "lone")
        with Staging(found.names.address) as staging:
            query = next(name for name in map(str, range(100)) if staging.home(name, TOPIC).broker == "lone")
            untold = staging.home(query, TOPIC).untold
            assert untold == (NAME,)
            handle = staging.stage("lone", [(TOPIC, QUEUES)], items(0, 0, 15), 15)
            staging.publish("lone", query, 0, [handle], topic=TOPIC, tell=untold)
        master, epoch = found.leader()
        master.kill()
        assert found.master(epoch=epoch + 1) is not master
        wait_known(found.names.address, NAME)
        lone.kill()
        with (
            Staging(found.names.address, retry_ms=3_000) as staging,
            pytest.raises(ConnectError, match=r"'lone', which has no master.*nothing is written elsewhere"),
        ):
            staging.home(query, TOPIC)
        lone.start()
        with Staging(found.names.address) as staging:
            home = staging.home(query, TOPIC)
            assert (home.broker, home.untold) == ("lone", ())
            again = staging.stage("lone", [(TOPIC, QUEUES)], items(0, 0, 15), 15)
            assert staging.publish("lone", query, 0, [again], topic=TOPIC).already
