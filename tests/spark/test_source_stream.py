"""Streams through a real Spark from a real broker."""

import json
import shutil
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import PenstockError
from penstock.spark.gaps import read_gaps
from penstock.spark.options import ReadOptions
from penstock.spark.positions import split_beginning
from penstock.spark.reasons import reason_of
from penstock.spark.schema import Selection
from penstock.spark.session import OF_A_STREAM, messages_reader, session
from penstock.spark.stream import PenstockStreamReader
from tests.spark.retention import expiring_node


class Stream:
    """A stream into Parquet that is run for what is there and started again from its checkpoint."""

    def __init__(self, spark, node, topic, folder: Path, **options: str) -> None:
        self._spark, self._node, self._topic = spark, node, topic
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.options = options
        self.progress: list = []

    def frame(self):
        reader = self._spark.readStream.format("penstock").option("nameserver", self._node.address)
        if self._topic:
            reader = reader.option("topic", self._topic)
        for name, value in self.options.items():
            reader = reader.option(name, value)
        return reader.load()

    def start(self, **trigger):
        return (
            self.frame()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start(str(self.folder / "out"))
        )

    def run(self) -> list[tuple[int, int, bytes]]:
        """Everything that is there now; all rows so far."""
        query = self.start()
        query.awaitTermination()
        self.progress = [item for item in query.recentProgress if item.numInputRows]
        return self.rows()

    def rows(self) -> list[tuple[int, int, bytes]]:
        files = [str(path) for path in (self.folder / "out").glob("*.parquet")]
        found = (
            pyarrow.dataset.dataset(files).to_table(["queue_id", "queue_offset", "body"]).to_pylist()
            if files
            else []
        )
        return sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in found)

    def offsets(self) -> dict[str, int]:
        """The end of the last batch in the checkpoint."""
        newest = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return split_beginning(json.loads(newest.read_text().splitlines()[-1]))[0]

    def forget_that_it_is_done(self, batch: int) -> None:
        """As if the driver had died before Spark noted the end of this micro-batch."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark, node, tmp_path):
    def make(topic, **options) -> Stream:
        return Stream(spark, node, topic, tmp_path, **options)

    return make


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    return reason_of(caught.value)


def expected(queues: int, per_queue: int) -> list[tuple[int, int, bytes]]:
    return [(q, n, b"%d-%d" % (q, n)) for q in range(queues) for n in range(per_queue)]


def fill(node, topic, queues, per_queue, start=0) -> None:
    for queue in range(queues):
        node.send(topic, [b"%d-%d" % (queue, n) for n in range(start, start + per_queue)], queue_id=queue)


# -- offsets -----------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I15")
def test_every_message_once_over_restarts(node, stream):
    topic = node.topic("s", 3)
    fill(node, topic, 3, 20)
    found = stream(topic)
    assert found.run() == expected(3, 20)
    assert found.offsets() == {f"{topic}/test-broker/{n}": 20 for n in range(3)}
    assert list(found.offsets()) == sorted(found.offsets())
    assert found.run() == expected(3, 20), "nothing new"
    fill(node, topic, 3, 5, start=20)
    assert found.run() == expected(3, 25)


@pytest.mark.invariant("I15")
def test_a_batch_that_was_not_committed_is_run_again_with_the_same_rows(node, stream):
    topic = node.topic("again", 2)
    fill(node, topic, 2, 10)
    found = stream(topic)
    found.run()
    before = found.offsets()
    for path in (found.checkpoint / "commits").glob("*0*"):
        path.unlink()
    for path in (found.checkpoint / "commits").glob(".*0*"):
        path.unlink()
    shutil.rmtree(found.folder / "out")
    fill(node, topic, 2, 3, start=10)
    assert found.run() == expected(2, 13)
    first = json.loads((found.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    assert split_beginning(first)[0] == before, "the offsets of the batch did not move"


@pytest.mark.invariant("I15")
def test_what_retention_takes_from_a_first_batch_that_was_cut_off_is_a_gap(spark, tmp_path):
    """Spark keeps where it ends and asks again where it begins: by then `earliest` is another place."""
    with expiring_node(tmp_path / "broker") as node:
        topic = node.topic("first", 1)
        node.send(topic, [b"%d" % n for n in range(5)], queue_id=0)
        found = Stream(spark, node, topic, tmp_path / "s", onGap="report", gapTable=str(tmp_path / "gaps"))
        assert len(found.run()) == 5
        found.forget_that_it_is_done(0)
        shutil.rmtree(found.folder / "out")
        first = node.send_and_expire(topic, 400)
        assert [row[1] for row in found.run()] == list(range(first, 405))
        lost = {
            n
            for gap in read_gaps(str(tmp_path / "gaps"))
            for n in range(gap.first_offset, gap.last_offset + 1)
        }
        assert lost == set(range(first))


@pytest.mark.invariant("I15")
@pytest.mark.parametrize("position", ["latest", "earliest"])
def test_a_first_batch_that_is_run_again_begins_where_it_began(node, position):
    """Each reader is a process of Spark's: it asks for the start, then plans what its checkpoint has as the end."""
    topic = node.topic("began", 2)
    fill(node, topic, 2, 3)
    options = ReadOptions.parse({"nameserver": node.address, "topic": topic, "startingPosition": position})
    ends, plans = [], []
    for _ in range(2):
        reader = PenstockStreamReader(options, Selection(("body",), frozenset()))
        try:
            start = reader.initialOffset()
            fill(node, topic, 2, 4)
            ends.append(reader.latestOffset(start, ReadAllAvailable()))
            parts = reader.partitions(start, ends[0])
            plans.append([item[1:] for part in parts for item in part.task])
            fill(node, topic, 2, 1)
            assert reader.latestOffset(ends[0], ReadMaxRows(2)).keys() == start.keys(), (
                "the next says no start"
            )
        finally:
            reader.stop()
    assert plans[0] == plans[1] == [(0 if position == "earliest" else 3, 7)] * 2


def test_messages_that_come_while_a_run_from_latest_starts_are_no_gap(node):
    """With AvailableNow Spark asks where to stop first, and for the start then: between the two a producer sends."""
    topic = node.topic("between", 1)
    fill(node, topic, 1, 10)
    options = ReadOptions.parse({"nameserver": node.address, "topic": topic, "startingPosition": "latest"})
    reader = PenstockStreamReader(options, Selection(("body",), frozenset()))
    try:
        reader.prepareForTriggerAvailableNow()
        fill(node, topic, 1, 2, start=10)
        start = reader.initialOffset()
        assert start == {f"{topic}/test-broker/0": 12}
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    finally:
        reader.stop()


def test_a_first_batch_without_messages_leaves_the_offsets_as_they_are(node):
    topic = node.topic("idle", 1)
    options = ReadOptions.parse({"nameserver": node.address, "topic": topic})
    reader = PenstockStreamReader(options, Selection(("body",), frozenset()))
    try:
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start == {f"{topic}/test-broker/0": 0}
        fill(node, topic, 1, 1)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end == {f"^{topic}/test-broker/0": 0, f"{topic}/test-broker/0": 1}
        assert list(end) == sorted(end)
        assert reader.latestOffset(end, ReadAllAvailable()) == end, "the same text: nothing new for Spark"
        assert len(reader.partitions(start, end)) == 1
        assert reader.partitions(end, end) == [], "the first batch is not read once more"
    finally:
        reader.stop()


def test_starting_positions(node, stream):
    topic = node.topic("start", 2)
    fill(node, topic, 2, 10)
    late = stream(topic, startingPosition="latest")
    assert late.run() == []
    fill(node, topic, 2, 1, start=10)
    assert [row[:2] for row in late.run()] == [(0, 10), (1, 10)]


def test_a_position_per_queue(node, stream):
    topic = node.topic("start", 2)
    fill(node, topic, 2, 10)
    found = stream(
        topic, startingPosition=json.dumps({f"{topic}/test-broker/0": 8, f"{topic}/test-broker/1": "latest"})
    )
    assert [row[:2] for row in found.run()] == [(0, 8), (0, 9)]


def test_new_queues_and_topics_are_picked_up(node, stream):
    first = node.topic("grow-a", 1)
    fill(node, first, 1, 5)
    found = stream("", topicPattern="grow-.*")
    assert len(found.run()) == 5
    node.admin.create_topic(first, 3)
    fill(node, first, 3, 5)
    second = node.topic("grow-b", 1)
    fill(node, second, 1, 2)
    assert len(found.run()) == 5 + 15 + 2
    assert set(found.offsets()) == {f"{first}/test-broker/{n}" for n in range(3)} | {
        f"{second}/test-broker/0"
    }


def test_a_running_stream_finds_new_topics_and_messages(spark, node, tmp_path):
    topic = node.topic("running-a", 1)
    fill(node, topic, 1, 3)
    found = Stream(spark, node, "", tmp_path, topicPattern="running-.*", discoverMs="0", group="running")
    query = found.start(processingTime="0 seconds")
    try:
        query.processAllAvailable()
        assert len(found.rows()) == 3
        other = node.topic("running-b", 1)
        fill(node, other, 1, 4)
        fill(node, topic, 1, 2, start=3)
        query.processAllAvailable()
        assert len(found.rows()) == 9
    finally:
        query.stop()
    lags = {item.queue.topic: item.lag for item in node.admin.describe_group("running").progress}
    assert lags == {topic: 0, other: 0}


# -- limits ------------------------------------------------------------------------------------------------------


def test_rows_per_trigger_are_shared_by_lag(node, stream):
    topic = node.topic("limit", 2)
    node.send(topic, [b"0-%d" % n for n in range(90)], queue_id=0)
    node.send(topic, [b"1-%d" % n for n in range(10)], queue_id=1)
    found = stream(topic, maxRowsPerTrigger="20")
    assert len(found.run()) == 100
    rows = [item.numInputRows for item in found.progress]
    assert rows == [20, 20, 20, 20, 20]
    ends = [
        json.loads(str(item.sources[0].endOffset))
        if isinstance(item.sources[0].endOffset, str)
        else item.sources[0].endOffset
        for item in found.progress
    ]
    assert ends[0][f"{topic}/test-broker/1"] == 2


def test_bytes_per_trigger(node, stream):
    topic = node.topic("bytes", 2)
    for queue in range(2):
        node.send(topic, [bytes(1_000)] * 100, queue_id=queue)
    found = stream(topic, maxBytesPerTrigger="50000")
    assert len(found.run()) == 200
    rows = [item.numInputRows for item in found.progress]
    assert 4 <= len(rows) <= 8
    assert max(rows) <= 50


def test_tasks_of_a_micro_batch(spark, node, tmp_path):
    topic = node.topic("tasks", 4)
    fill(node, topic, 4, 10)
    sizes: list[int] = []
    for least in ("", "3"):
        options = {"minPartitions": least} if least else {}
        query = (
            Stream(spark, node, topic, tmp_path / f"x{least}", **options)
            .frame()
            .writeStream.foreachBatch(lambda frame, _: sizes.append(frame.rdd.getNumPartitions()))
            .option("checkpointLocation", str(tmp_path / f"c{least}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sizes == [1, 3]


def test_tags_and_keys(node, stream):
    topic = node.topic("tags", 1)
    node.send(topic, [{"body": b"%d" % n, "tag": "AB"[n % 2], "keys": [f"k{n % 3}"]} for n in range(12)])
    found = stream(topic, tags="B", key="k1")
    assert [row[1] for row in found.run()] == [1, 7]
    assert found.offsets() == {f"{topic}/test-broker/0": 12}, "what was filtered is done, too"


@pytest.mark.fault("F1")
@pytest.mark.invariant("I15")
def test_a_broker_that_restarts_between_batches(spark, tmp_path):
    """On another port: the driver and the tasks have to find it again."""
    with expiring_node(tmp_path / "broker") as node:
        topic = node.topic("restart", 2)
        fill(node, topic, 2, 20)
        seen: list[tuple[int, int]] = []

        def take(frame, number) -> None:
            seen.extend(
                (row.queue_id, row.queue_offset) for row in frame.select("queue_id", "queue_offset").collect()
            )
            if number == 1:
                node.restart()

        stream = Stream(spark, node, topic, tmp_path, maxRowsPerTrigger="10", group="restarts")
        query = (
            stream.frame()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sorted(seen) == [(q, n) for q in range(2) for n in range(20)]
        assert sum(item.lag for item in node.admin.describe_group("restarts").progress) == 0


# -- groups ------------------------------------------------------------------------------------------------------


def test_the_group_shows_no_lag_after_the_last_batch(node, stream):
    topic = node.topic("lag", 2)
    fill(node, topic, 2, 10)
    found = stream(topic, group="spark-lag", maxRowsPerTrigger="7")
    found.run()
    described = node.admin.describe_group("spark-lag")
    assert {item.queue.queue_id: (item.committed, item.lag) for item in described.progress} == {
        0: (10, 0),
        1: (10, 0),
    }
    fill(node, topic, 2, 3, start=10)
    assert sum(item.lag for item in node.admin.describe_group("spark-lag").progress) == 6
    found.run()
    assert sum(item.lag for item in node.admin.describe_group("spark-lag").progress) == 0


def test_progress_tells_how_far_the_queues_reach(node, stream):
    topic = node.topic("report", 1)
    fill(node, topic, 1, 10)
    found = stream(topic, maxRowsPerTrigger="4")
    found.run()
    source = found.progress[0].sources[0]
    text = source.latestOffset if isinstance(source.latestOffset, dict) else json.loads(source.latestOffset)
    assert text == {f"{topic}/test-broker/0": 10}


# -- gaps --------------------------------------------------------------------------------------------------------


def test_gaps_after_retention(spark, tmp_path):
    with expiring_node(tmp_path / "broker") as node:
        topic = node.topic("g", 1)
        node.send(topic, [b"%d" % n for n in range(5)], queue_id=0)
        strict = Stream(spark, node, topic, tmp_path / "strict")
        assert len(strict.run()) == 5
        shutil.copytree(tmp_path / "strict", tmp_path / "report")
        shutil.copytree(tmp_path / "strict", tmp_path / "skip")
        first = node.send_and_expire(topic, 400)
        said = refused(strict.run)
        for part in (
            f"{first - 5} messages",
            topic,
            "test-broker",
            "queue 0",
            f"offsets 5 to {first - 1}",
            "deleted",
        ):
            assert part in said
        skip = Stream(spark, node, topic, tmp_path / "skip", onGap="skip")
        assert [row[1] for row in skip.run()] == [*range(5), *range(first, 405)]
        table = str(tmp_path / "gaps")
        report = Stream(spark, node, topic, tmp_path / "report", onGap="report", gapTable=table)
        assert [row[1] for row in report.run()] == [*range(5), *range(first, 405)]
        (gap,) = read_gaps(table)
        assert (gap.first_offset, gap.last_offset, gap.where) == (5, first - 1, "planning")
        for path in [
            *(report.checkpoint / "commits").glob("1"),
            *(report.checkpoint / "commits").glob(".1.crc"),
        ]:
            path.unlink()
        report.run()
        assert read_gaps(table) == [gap], "the same batch again reports the same"


@pytest.mark.parametrize("expired", [False, True])
def test_what_is_gone_when_the_first_batch_of_a_new_queue_is_run_again_is_a_gap(spark, tmp_path, expired):
    """And what was gone before the stream found the queue is none."""
    with expiring_node(tmp_path / "broker") as node:
        old, new = node.topic("new-a", 1), node.topic("new-z", 1)
        node.admin.delete_topic(new)
        node.send(old, [b"0"], queue_id=0)
        found = Stream(
            spark, node, "", tmp_path / "s", topicPattern=f"{old}|{new}", startingPosition="latest"
        )
        assert found.run() == []
        node.admin.create_topic(new, 1)
        begin = node.send_and_expire(new, 400) if expired else 0
        node.send(new, [b"%d" % n for n in range(5)], queue_id=0)
        assert len(found.run()) == (405 if expired else 5) - begin
        last = max(int(path.name) for path in (found.checkpoint / "commits").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (found.checkpoint / "commits" / name).unlink()
        shutil.rmtree(found.folder / "out")  # it knows by itself which batches it has
        first = node.send_and_expire(new, 400)
        said = refused(found.run)
        ends = 405 if expired else 5
        assert f"offsets {begin} to {min(first, ends) - 1}: deleted" in said


def test_a_queue_that_got_shorter_is_a_gap(spark, node, tmp_path):
    topic = node.topic("anew", 1)
    fill(node, topic, 1, 10)
    found = Stream(spark, node, topic, tmp_path / "s")
    found.run()
    node.admin.delete_topic(topic)
    node.admin.create_topic(topic, 1)
    fill(node, topic, 1, 4)
    said = refused(found.run)
    for part in ("lost", "ends at 4", "read to 10", "created anew"):
        assert part in said
    table = str(tmp_path / "gaps")
    report = Stream(spark, node, topic, tmp_path / "s", onGap="report", gapTable=table)
    report.run()
    assert [(gap.first_offset, gap.last_offset) for gap in read_gaps(table)] == [(4, 9)]
    fill(node, topic, 1, 2, start=4)
    assert [row[1] for row in report.run()] == [*range(6), *range(6, 10)] or len(report.rows()) == 12


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingPosition": "latest"}, "a stream has no endingPosition"),
        ({"startingPosition": '{"X/y/0": 1}'}, "names queues that are not read"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is '0'"),
        ({"nameserver": "127.0.0.1:1", "retryMs": "0"}, "no name server answers"),
        ({"path": "/tmp", "nameserver": ""}, "nameserver"),
    ],
)
def test_mistakes_have_clear_errors(node, stream, options, said):
    topic = node.topic("wrong", 1)
    assert said in refused(stream(topic, **options).run)


def test_a_stream_that_starts_adds_nothing_to_what_all_streams_share(spark, stream, node) -> None:
    """Spark's map of a source's environment has no lock: two streams that add to it at once break the whole JVM."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("penstock").dataSourceCls().envVars()
    topic = node.topic("shared", 1)
    fill(node, topic, 1, 1)
    ways = {
        "a session": session,
        "a pipeline's reader": lambda: messages_reader(spark, stream=True),
    }
    for way, prepare in ways.items():
        for name in OF_A_STREAM:
            shared.remove(name)
        prepare()
        before = set(shared)
        assert before >= set(OF_A_STREAM), way
        assert stream(topic).run() == expected(1, 1)
        assert set(shared) == before, way
    # Where nobody prepares it, Spark adds just these: else the names have changed, and the race is back.
    for name in OF_A_STREAM:
        shared.remove(name)
    before = set(shared)
    assert stream(topic).run() == expected(1, 1)
    assert set(shared) - before == set(OF_A_STREAM)
