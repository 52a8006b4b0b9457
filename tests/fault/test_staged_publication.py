"""kill -9 of a real broker at every step of a publication, while a client publishes and a reader looks.

Whatever the step: the client, which only asks again, ends with the batch published; the reader sees none of it or
all of it, never a part; and every row is there exactly once. `tests/fault/staging_broker.py` is the broker, with runs
of seven messages, so that there is a middle to be killed in.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.client.staging import Handle, Staging
from penstock.errors import PenstockError
from penstock.protocol.bodies.staged import encode_item
from penstock.store import FlushMode
from penstock.store.inspection import verify
from penstock.testing.reserved_port import ReservedPort
from tests.support.forked_process import ForkedProcess
from tests.support.server_processes import READY_TIMEOUT_S, is_readable
from tests.waiting import DEADLINE_S, wait_until

TOPIC, QUEUES, ROWS = "orders", 4, 60
BROKER = "broker-a"
# What is done when the process dies; the answer is lost in every case.
STEPS = [
    ("begun", 1),
    ("copied", 1),
    ("copied", 5),
    ("all copied", 1),
    ("done", 1),
    ("flushed", 1),
    ("released", 1),
    ("safe", 1),
]
# Only under synchronous flush are rows on disk before they are shown.
CASES = [
    (flush, *step)
    for flush in ("sync", "async")
    for step in STEPS
    if (flush, step[0]) != ("async", "flushed")
]


class Node:
    """The broker and its lives."""

    def __init__(self, folder: Path, name_server: str, flush: str) -> None:
        self.data = folder / "data"
        self.log = folder / "stderr.log"
        self._reserved = ReservedPort()
        self._name_server = name_server
        self._flush = flush
        self._process: ForkedProcess | None = None

    def start(self, step: str = "none", count: int = 1, *, dies: bool = False) -> None:
        words = (str(self.data), str(self._reserved.number), self._name_server, self._flush, step, str(count))
        self._process = ForkedProcess("tests.fault.staging_broker", *words, log=self.log)
        ready = is_readable(self._process.out, READY_TIMEOUT_S)
        told = os.read(self._process.out, 100) if ready else b""
        assert told.strip() == (b"" if dies else b"ready"), self.log.read_text(errors="replace")[-3000:]
        if dies:
            self.wait_dead()

    def wait_dead(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.wait(DEADLINE_S) == -9, "it ended in another way than by its own hand"
        process.close()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def end(self) -> None:
        """Kill it for the last time."""
        self.kill()
        self._reserved.release()


@contextmanager
def cluster(folder: Path, flush: str, step: str, count: int) -> Iterator[tuple[str, Node]]:
    """A name server in this process, and a broker that will kill itself."""
    import asyncio

    from penstock.client.loop_thread import LoopThread
    from penstock.nameserver.options import NameServerOptions
    from penstock.nameserver.server import NameServer
    from penstock.runtime import Runtime

    thread = LoopThread("test-nameserver")
    names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
    thread.run(names.start())
    node = Node(folder, names.address, flush)
    try:
        node.start(step, count)
        with penstock.Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        yield names.address, node
    finally:
        node.end()
        thread.run(names.stop())
        thread.stop()
        assert not asyncio.all_tasks(thread.loop) if not thread.loop.is_closed() else True


def items(batch: int, first: int, count: int) -> bytes:
    return b"".join(
        encode_item(row % QUEUES, b"%d/%d" % (batch, row), b"UNIQ_KEY\x01B%dR%d\x02" % (batch, row))
        for row in range(first, first + count)
    )


def stage_rows(staging: Staging, batch: int) -> list[Handle]:
    return [
        staging.stage(BROKER, [(TOPIC, QUEUES)], items(batch, first, 15), 15) for first in range(0, ROWS, 15)
    ]


class Watcher(threading.Thread):
    """Asks for the ends of all queues, all the time; what it saw, in order."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._is_over = False
        self.seen: list[tuple[int, ...]] = []

    def run(self) -> None:
        with penstock.Admin(self._address) as admin:
            while not self._is_over:
                try:
                    self.seen.append(tuple(q.max_offset for q in admin.describe_topic(TOPIC).queues))
                except PenstockError:
                    time.sleep(0.005)

    def wait_for(self, count: int) -> None:
        """Until so many more answers have come."""
        wanted = len(self.seen) + count
        wait_until(lambda: len(self.seen) >= wanted, "answers to the watcher")

    def finish(self) -> None:
        self.wait_for(3)
        self._is_over = True
        self.join()

    def check(self) -> None:
        """One answer is one moment of the broker: nothing, or everything; and never nothing again."""
        share = ROWS // QUEUES
        assert set(self.seen) == {(0,) * QUEUES, (share,) * QUEUES}
        assert self.seen == sorted(self.seen)


def check_rows(address: str, batches: int) -> None:
    """Each row of each batch once, in its queue, in its order."""
    with penstock.Admin(address) as admin:
        for queue in range(QUEUES):
            place = penstock.MessageQueue(TOPIC, BROKER, queue)
            found = [m.body for m in admin.read_messages(place, 0, limit=10_000)]
            expected = [
                b"%d/%d" % (batch, row) for batch in range(batches) for row in range(queue, ROWS, QUEUES)
            ]
            assert found == expected


def check_store(node: Node, flush: str) -> None:
    """The directory itself, after a last kill."""
    node.kill()
    report = verify(node.data)
    assert report.sound, report.issues


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize(
    ("flush", "step", "count"), CASES, ids=[f"{flush}-{step}-{count}" for flush, step, count in CASES]
)
def test_a_broker_that_dies_at_any_step_publishes_once_and_whole(
    tmp_path: Path, flush: str, step: str, count: int
) -> None:
    with cluster(tmp_path, flush, step, count) as (address, node), Staging(address) as staging:
        handles = stage_rows(staging, 0)
        watcher = Watcher(address)
        watcher.start()
        watcher.wait_for(1)
        publishing = threading.Thread(target=staging.publish, args=(BROKER, "query", 0, handles))
        publishing.start()
        node.wait_dead()
        node.start()
        publishing.join(DEADLINE_S)
        assert not publishing.is_alive()
        # What Spark does when even that answer is lost: the same batch, run again.
        assert staging.publish(BROKER, "query", 0, stage_rows(staging, 0)).already
        watcher.finish()
        watcher.check()
        check_rows(address, 1)
        assert not staging.publish(BROKER, "query", 1, stage_rows(staging, 1)).already
        check_rows(address, 2)
        check_store(node, flush)


@pytest.mark.fault("F1")
@pytest.mark.parametrize("flush", [FlushMode.SYNC.value, FlushMode.ASYNC.value])
def test_a_broker_that_dies_while_it_finishes_is_finished_by_the_next(tmp_path: Path, flush: str) -> None:
    """Three deaths on the way: half-way, then twice while the rest is added."""
    with cluster(tmp_path, flush, "copied", 2) as (address, node), Staging(address) as staging:
        handles = stage_rows(staging, 0)
        publishing = threading.Thread(target=staging.publish, args=(BROKER, "query", 0, handles))
        publishing.start()
        node.wait_dead()
        node.start("copied again", 1, dies=True)
        node.start("copied again", 3, dies=True)
        node.start()
        publishing.join(DEADLINE_S)
        assert not publishing.is_alive()
        assert staging.publish(BROKER, "query", 0, handles).already
        check_rows(address, 1)
        check_store(node, flush)


@pytest.mark.fault("F1")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_broker_that_dies_with_rows_staged_only_shows_none_and_publishes_them_then(
    tmp_path: Path, flush: str
) -> None:
    with cluster(tmp_path, flush, "none", 1) as (address, node), Staging(address) as staging:
        handles = stage_rows(staging, 0)
        node.kill()
        node.start()
        with penstock.Admin(address) as admin:
            assert admin.describe_topic(TOPIC).messages == 0
        assert not staging.publish(BROKER, "query", 0, handles).already
        check_rows(address, 1)
