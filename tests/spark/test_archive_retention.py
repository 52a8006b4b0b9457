"""Retention waits for the archive: what is not archived stays, what is archived goes, and nothing is missing then.

Segments are small and too old as soon as they are full, and are deleted when a test says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.loop_thread import LoopThread
from penstock.spark import archive, archived_ranges
from penstock.testing import EmbeddedBroker
from penstock.testing.embedded import STORE
from tests.spark.conftest import BROKERS
from tests.spark.retention import ExpiringNode
from tests.spark.test_archive import Row, plain_rows
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "penstock-archive"
QUEUES = 2
# Messages of each queue in a round of sending: some segments of 128 messages.
COUNT = 250
BODY_SIZE = 8_000
NEVER_MS = 24 * 3_600_000


class WaitingNode(ExpiringNode):
    """Its retention waits for the archive's group, and knows how far that is whenever it deletes."""

    def expire(self) -> None:
        async def tell() -> None:
            self.embedded.broker.retention.tell()

        self.thread.run(tell())
        super().expire()

    def fill(self, topic: str, start: int = 0) -> list[Row]:
        """The next messages of both queues, in turns, so that each segment has some of each."""
        rows: list[Row] = []
        for first in range(start, start + COUNT, 50):
            for queue_id in range(QUEUES):
                bodies = [b"%d/%d " % (queue_id, n) + os.urandom(BODY_SIZE) for n in range(first, first + 50)]
                results = self.send(topic, bodies, queue_id=queue_id)
                rows += [
                    (topic, queue_id, result.queue_offset, body)
                    for result, body in zip(results, bodies, strict=True)
                ]
        return sorted(rows)

    def firsts(self, topic: str) -> list[int]:
        """The first offset that is left in each queue."""
        return [int(self.store.min_offset(topic, queue_id)) for queue_id in range(QUEUES)]

    def taken(self, topic: str) -> list[int]:
        """How far the archive says it is in each queue."""
        offsets = self.admin.offsets(GROUP, topic)
        return [offsets[queue] for queue in sorted(offsets)]

    @property
    def segments(self) -> int:
        return len(self.store.log.segments)


@contextmanager
def waiting_node(directory: Path) -> Iterator[WaitingNode]:
    BROKERS.append(str(directory))
    # Nothing is deleted but by the tests: not at this hour, and by no round of the broker's own.
    never = f"{(datetime.now().hour + 12) % 24:02d}"  # noqa: DTZ005
    store = replace(
        STORE,
        segment_size_bytes=1 << 20,
        max_message_size_bytes=512 << 10,
        file_reserved_hours=0,
        delete_when=never,
        clean_interval_ms=NEVER_MS,
        retention_groups=(GROUP,),
    )
    embedded, thread = EmbeddedBroker(directory, store=store), LoopThread("penstock-test-broker")
    try:
        thread.run(embedded.start())
        try:
            node = WaitingNode(embedded.address, directory)
            node.embedded, node.thread = embedded, thread
            try:
                yield node
            finally:
                node.close()
        finally:
            thread.run(embedded.stop())
    finally:
        thread.stop()


@pytest.fixture
def waiting(spark: SparkSession, tmp_path: Path) -> Iterator[WaitingNode]:
    with waiting_node(tmp_path / "node") as node:
        yield node


def run(spark: SparkSession, node: WaitingNode, topic: str, to: Path, **settings: Any) -> Any:
    return archive(topic, str(to), spark=spark, nameserver=node.address, once=True, merge=False, **settings)


@pytest.mark.invariant("I15")
def test_what_is_not_archived_stays_and_what_is_goes(
    spark: SparkSession, waiting: WaitingNode, tmp_path: Path
) -> None:
    topic, root = waiting.topic("orders", QUEUES), tmp_path / "archive"
    # It has seen the topic and found nothing in it: from now on it is waited for.
    assert run(spark, waiting, topic, root).rows == 0
    assert waiting.taken(topic) == [0, 0]
    rows = waiting.fill(topic)
    before = waiting.segments
    assert before > 3
    waiting.expire()
    assert (waiting.firsts(topic), waiting.segments) == ([0, 0], before), "nothing is archived yet"

    # It has a half when the other half has come; where one begins is inside a segment.
    assert run(spark, waiting, topic, root).rows == len(rows)
    rows += waiting.fill(topic, COUNT)
    before, half = waiting.segments, waiting.taken(topic)
    assert half == [COUNT] * QUEUES
    waiting.expire()
    firsts = waiting.firsts(topic)
    assert waiting.segments < before
    assert all(0 < first <= taken for first, taken in zip(firsts, half, strict=True)), (firsts, half)
    for queue, taken in zip(sorted(waiting.admin.queues(topic)), half, strict=True):
        (message,) = waiting.admin.read_messages(queue, taken, limit=1)
        assert message.queue_offset == taken
        assert message.body == next(row[3] for row in rows if row[1:3] == (queue.queue_id, taken))

    assert run(spark, waiting, topic, root).gaps == 0
    assert waiting.taken(topic) == [2 * COUNT] * QUEUES
    waiting.expire()
    assert waiting.segments <= 2, "the one in use, and the next, which is prepared"
    assert min(waiting.firsts(topic)) > COUNT
    assert plain_rows(root) == sorted(rows), "every message, each once"
    assert archived_ranges(root) == {
        f"{topic}/test-broker/{queue_id}": [(0, 2 * COUNT - 1)] for queue_id in range(QUEUES)
    }


@pytest.mark.invariant("I15")
def test_before_its_first_commit_a_group_is_not_waited_for_and_then_it_is(
    spark: SparkSession, waiting: WaitingNode, tmp_path: Path
) -> None:
    """A group counts in the topics in which it has offsets: a name alone does not say what it is going to read."""
    topic, root = waiting.topic("young", QUEUES), tmp_path / "archive"
    rows = waiting.fill(topic)
    waiting.expire()
    firsts = waiting.firsts(topic)
    assert min(firsts) > 0
    done = run(spark, waiting, topic, root)
    left = [row for row in rows if row[2] >= firsts[row[1]]]
    assert (done.rows, done.gaps) == (len(left), 0), "what was gone before it came is no gap"
    assert plain_rows(root) == left, "everything that was there when it came, each once"

    rows = waiting.fill(topic, COUNT)
    waiting.expire()
    assert max(waiting.firsts(topic)) <= COUNT, "from now on it is waited for"
    assert run(spark, waiting, topic, root).gaps == 0
    assert plain_rows(root) == sorted(left + rows)
    assert archived_ranges(root) == {
        f"{topic}/test-broker/{queue_id}": [(first, 2 * COUNT - 1)] for queue_id, first in enumerate(firsts)
    }


def test_what_the_first_batch_reads_is_waited_for(
    spark: SparkSession, waiting: WaitingNode, tmp_path: Path
) -> None:
    """A stream, and so an archive, commits where it begins before it reads."""
    topic = waiting.topic("reading", QUEUES)
    waiting.fill(topic)
    seen: list[int] = []

    def take(frame: DataFrame, number: int) -> None:
        wait_until(lambda: waiting.taken(topic) == [0, 0])
        waiting.expire()
        assert waiting.firsts(topic) == [0, 0]
        seen.append(frame.count())

    options = {"nameserver": waiting.address, "topic": topic, "group": GROUP}
    frame = spark.readStream.format("penstock").options(**options).load().select("queue_offset")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert seen == [QUEUES * COUNT]
    waiting.expire()
    assert min(waiting.firsts(topic)) > 0, "when it is done, it is not waited for any more"
