"""The broker is killed under an archive that lives on: it waits, goes on, and has every message once."""

import threading
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.spark.pipelines.archive_reading import archived_ranges
from tests.effort import by_length
from tests.spark.test_pipeline_signals import archived, command, terminate
from tests.support.archive_rows import stored_rows
from tests.support.server_processes import cluster, wait_known
from tests.waiting import PATIENT_SENDS, wait_until

TOPIC, QUEUES = "orders", 3
FIRST, MAX_ROWS, KILLS = by_length(400, 1_500), 100, by_length(1, 2)
# Between two messages of a sender: the archive has to catch up with it.
PACE_S = by_length(0.05, 0.005)


class Sender:
    """Sends until it is stopped; what was acknowledged is known, and when a send went well after a failure."""

    def __init__(self, address: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.failures = 0
        self.is_back = threading.Event()
        self._stop = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run, name="penstock-test-sender")

    def _run(self) -> None:
        number = 0
        with penstock.Producer(self._address, group="archive-test", **PATIENT_SENDS) as producer:
            while not self._stop.wait(PACE_S):
                body = b"meanwhile %d" % number
                number += 1
                try:
                    producer.send(TOPIC, body)
                except PenstockError:
                    self.failures += 1  # the broker is away: it may be stored or not
                    self.is_back.clear()
                else:
                    self.acknowledged.add(body)
                    self.is_back.set()

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I15")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_archive_outlives_kills_of_its_broker_and_has_each_message_once(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    with cluster(tmp_path / "nodes") as (names, node):
        with penstock.Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        with penstock.Producer(names.address, batch_size=256, **PATIENT_SENDS) as producer:
            first = {b"message %d" % number for number in range(FIRST)}
            for future in [producer.send_async(TOPIC, body) for body in sorted(first)]:
                future.result(60)
        line = ["archive", "--topic", TOPIC, "--to", str(root), "--nameserver", names.address]
        with command(tmp_path, *line, "--every", "0s", "--max-rows", str(MAX_ROWS)) as running:
            begun = running.run_batches(by_length(1, 2))
            with Sender(names.address) as sender:
                for _ in range(KILLS):
                    assert sender.is_back.wait(120)
                    failures = sender.failures
                    node.kill()
                    wait_until(lambda before=failures: sender.failures > before, "a send that fails")
                    node.start()
                    wait_known(names.address)
                    begun += running.run_batches(by_length(1, 2))
                assert sender.is_back.wait(120)
            # Nobody sends any more: it catches up, then it is stopped.
            stored = stored_rows(names.address)
            while begun < len(stored):
                begun += running.run_batches(1)
            terminate(running)
            last = running.end(0)[-1]
        assert (last["event"], last["stopped"], last["rows"], last["gaps"]) == ("done", True, len(stored), 0)
        assert sender.failures, "the broker was away while somebody sent"
        assert stored == stored_rows(names.address)
    assert archived(root) == stored
    assert first | sender.acknowledged <= {body for _, _, body in stored}
    ends = {queue: offset for queue, offset, _ in stored}
    assert archived_ranges(root) == {
        f"{TOPIC}/broker-a/{queue}": [(0, last_offset)] for queue, last_offset in ends.items()
    }
