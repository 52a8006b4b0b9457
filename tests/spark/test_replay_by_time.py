"""Replays of a part of the time: exactly what was stored in it arrives, of a topic, a store or an archive."""

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass

import click.testing
import pytest

from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit_sources import Source
from penstock.spark.pipelines.replay import replay

QUEUES, EACH = 2, 5


@dataclass
class Timed:
    """A topic whose messages came in three rounds, no two of which share a millisecond."""

    topic: str
    # As Spark reads them, by queue and offset.
    rows: list
    # The first store time of the second and of the third round.
    start: int
    end: int

    @property
    def wanted(self) -> list:
        """What was stored from `start` on, before `end`."""
        return [row for row in self.rows if self.start <= millis(row.store_time) < self.end]


def millis(moment) -> int:
    return round(moment.timestamp() * 1000)


def rows_in(spark, node, topic):
    frame = spark.read.format("penstock").option("nameserver", node.address).option("topic", topic).load()
    return frame.orderBy("queue_id", "queue_offset").collect()


@pytest.fixture(scope="module")
def timed(spark, node) -> Timed:
    topic = node.topic("timed", QUEUES)
    for number in range(3):
        for queue in range(QUEUES):
            node.send(topic, [f"{number}-{queue}-{n}" for n in range(EACH)], queue_id=queue)
        over = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == over:
            pass  # the next round begins in another millisecond
    rows = rows_in(spark, node, topic)
    firsts = [
        min(millis(row.store_time) for row in rows if bytes(row.body).startswith(b"%d-" % number))
        for number in range(3)
    ]
    assert firsts == sorted(set(firsts))
    return Timed(topic, rows, firsts[1], firsts[2])


@pytest.fixture(scope="module")
def archived(spark, node, timed, tmp_path_factory):
    """The topic as an archive, in two batches."""
    to = tmp_path_factory.mktemp("timed") / "archive"
    assert (
        archive(timed.topic, str(to), spark=spark, nameserver=node.address, once=True, max_rows=20).rows == 30
    )
    return to


def assert_is_the_middle_round(spark, node, timed, target, *, broker="test-broker"):
    """The middle round, in its order, each with the times it had before."""
    before, after = timed.wanted, rows_in(spark, node, target)
    assert [bytes(row.body).decode() for row in before] == [
        f"1-{queue}-{n}" for queue in range(QUEUES) for n in range(EACH)
    ]
    assert [(row.queue_id, row.body) for row in after] == [(row.queue_id, row.body) for row in before]
    for old, new in zip(before, after, strict=True):
        kept = dict(new.properties)
        assert kept["REPLAY_TOPIC"] == timed.topic
        assert kept.get("REPLAY_BROKER", "") == broker
        assert (kept["REPLAY_QUEUE"], kept["REPLAY_OFFSET"]) == (str(old.queue_id), str(old.queue_offset))
        assert int(kept["REPLAY_STORE_MS"]) == millis(old.store_time) < millis(new.store_time)
        assert int(kept["REPLAY_BORN_MS"]) == millis(old.born_time) < millis(new.born_time)


def test_of_a_live_topic_only_what_was_stored_in_that_time_arrives(spark, node, timed):
    target = node.topic("of-a-log", QUEUES)
    source = Source("log", nameserver=node.address, topics=(timed.topic,), start=timed.start, end=timed.end)
    result = replay(source, target, nameserver=node.address, spark=spark)
    assert (result.rows, result.added, result.verified.rows, result.problems) == (10, 10, 10, ())
    assert_is_the_middle_round(spark, node, timed, target)


def test_of_a_store_directory_only_what_was_stored_in_that_time_arrives(spark, node, timed):
    target = node.topic("of-a-store", QUEUES)
    source = Source("store", str(node.directory), topics=(timed.topic,), start=timed.start, end=timed.end)
    result = replay(source, target, nameserver=node.address, spark=spark)
    assert (result.rows, result.added, result.verified.rows, result.problems) == (10, 10, 10, ())
    assert_is_the_middle_round(spark, node, timed, target, broker="")


def test_of_an_archive_only_what_was_stored_in_that_time_arrives(spark, node, timed, archived):
    target = node.topic("of-an-archive", QUEUES)
    source = Source("archive", str(archived), start=timed.start, end=timed.end)
    result = replay(source, target, nameserver=node.address, spark=spark)
    assert (result.rows, result.added, result.verified.rows, result.problems) == (10, 10, 10, ())
    assert_is_the_middle_round(spark, node, timed, target)


@pytest.mark.parametrize("kind", ["log", "store", "archive"])
def test_one_side_of_the_time_can_be_left_open(spark, node, timed, archived, kind):
    place = {"store": str(node.directory), "archive": str(archived)}.get(kind, "")
    found = [
        replay(
            Source(kind, place, node.address, (timed.topic,), **times),
            node.topic("open", 1),
            nameserver=node.address,
            spark=spark,
            dry_run=True,
        )
        for times in ({"start": timed.start}, {"end": timed.start})
    ]
    assert [result.rows for result in found] == [20, 10]


def test_the_command_takes_the_times_as_from_and_until(spark, node, timed, archived, monkeypatch):
    @contextmanager
    def session(app, master, conf, log=None):
        yield spark

    monkeypatch.setattr(pipeline_session, "spark_session", session)
    target = node.topic("commanded", QUEUES)
    line = ["pipeline", "replay", f"archive:{archived}", "--to", target, "--topic", timed.topic, "--json"]
    line += ["--from", str(timed.start), "--until", str(timed.end), "--nameserver", node.address]
    done = click.testing.CliRunner().invoke(root, line, prog_name="penstock")
    assert done.exit_code == 0, done.output
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["rows"], last["added"], last["problems"]) == ("result", 10, 10, [])
    assert_is_the_middle_round(spark, node, timed, target)
