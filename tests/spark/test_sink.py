"""DataFrames into topics through a real Spark and a real broker: batch jobs and streams, exactly once."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

import penstock
import penstock.client.staging
from penstock.client.loop_thread import LoopThread
from penstock.errors import PenstockError
from penstock.message.hashing import java_string_hash
from penstock.spark.reasons import reason_of
from tests.effort import LONG, by_length
from tests.spark.processes import QUICK_SETTINGS
from tests.waiting import wait_until


def stored(node, topic: str) -> list[penstock.ReceivedMessage]:
    """Every message of a topic, queue by queue."""
    found = []
    for queue in node.admin.queues(topic):
        offset = 0
        while page := node.admin.read_messages(queue, offset, limit=1_000):
            found += page
            offset = page[-1].queue_offset + 1
    return found


def bodies(node, topic: str) -> list[str]:
    return sorted(message.body.decode() for message in stored(node, topic))


def write(node, frame, topic: str = "", mode: str = "append", **options: str) -> None:
    writer = frame.write.format("penstock").mode(mode).option("nameserver", node.address)
    if topic:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    return reason_of(caught.value)


class Copy:
    """A stream from one topic into another, run for what is there, again and again from its checkpoint."""

    def __init__(
        self, spark, node, source: str, target: str, folder: Path, *, max_rows: str = "40", **options: str
    ) -> None:
        self._spark, self._node, self.source, self._target = spark, node, source, target
        self.max_rows = max_rows
        self.checkpoint = folder / "checkpoint"
        self.options = options

    def start(self):
        frame = (
            self._spark.readStream.format("penstock")
            .option("nameserver", self._node.address)
            .option("topic", self.source)
            .option("maxRowsPerTrigger", self.max_rows)
            .load()
        )
        writer = frame.select("body", "keys", "tags", "properties").writeStream.format("penstock")
        for name, value in {"nameserver": self._node.address, "topic": self._target, **self.options}.items():
            writer = writer.option(name, value)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self) -> None:
        self.start().awaitTermination()

    @property
    def query_id(self) -> str:
        return json.loads((self.checkpoint / "metadata").read_text())["id"]

    def forget_last_commit(self) -> int:
        """As if Spark had died between the sink's commit and its own: the last batch runs again under its number."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last


# -- batch jobs --------------------------------------------------------------------------------------------------


def test_rows_become_messages(spark, node):
    topic = node.topic("rows", 4)
    frame = spark.range(200, numPartitions=3).select(
        F.concat(F.lit("row "), "id").alias("body"),
        F.concat(F.lit("key-"), F.col("id") % 10).alias("key"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.create_map(F.lit("n"), F.col("id").cast("string"), F.lit("none"), F.lit(None).cast("string")).alias(
            "properties"
        ),
    )
    write(node, frame, topic)
    found = stored(node, topic)
    assert sorted(m.body.decode() for m in found) == sorted(f"row {n}" for n in range(200))
    assert len({m.msg_id for m in found}) == 200
    for message in found:
        number = int(message.body.split()[1])
        assert message.properties["KEYS"] == f"key-{number % 10}"
        assert message.queue.queue_id == abs(java_string_hash(f"key-{number % 10}")) % 4
        assert message.tag == ("" if number % 2 else "even")
        assert message.properties["n"] == str(number)
        assert "none" not in message.properties
    # In order within a key, as rows were in order within their partitions.
    for key in range(10):
        numbers = [int(m.body.split()[1]) for m in found if m.properties["KEYS"] == f"key-{key}"]
        assert numbers == sorted(numbers)


def test_queues_delays_and_topics_of_the_rows_themselves(spark, node):
    first, second = node.topic("first", 2), node.topic("second", 3)
    rows = [(first, b"a", 1, None), (second, b"b", 2, None), (second, b"c", None, 1), (first, b"d", 0, None)]
    frame = spark.createDataFrame(rows, "topic string, body binary, queue int, delay int")
    write(node, frame)
    assert {(m.body, m.queue.queue_id) for m in stored(node, first)} == {(b"a", 1), (b"d", 0)}
    # The delayed one comes by itself, a second later.
    wait_until(lambda: len(stored(node, second)) >= 2)
    found = {m.body: m for m in stored(node, second)}
    assert found[b"b"].queue.queue_id == 2
    assert found[b"c"].properties["DELAY"] == "1"


def test_a_topic_that_is_not_there_is_made_as_a_producer_would(spark, node):
    write(node, spark.createDataFrame([("x",)], "body string"), "made-by-spark")
    assert bodies(node, "made-by-spark") == ["x"]


def test_the_same_write_id_again_adds_nothing(spark, node):
    topic = node.topic("once")
    frame = spark.range(50).selectExpr("cast(id as string) as body")
    for _ in range(2):
        write(node, frame, topic, writeId="job-2026-01-01")
    assert len(bodies(node, topic)) == 50
    write(node, frame, topic, writeId="job-2026-01-02")
    write(node, frame, topic)
    write(node, frame, topic)
    assert len(bodies(node, topic)) == 200


def test_nothing_to_write_is_no_mistake(spark, node):
    topic = node.topic("empty")
    write(node, spark.createDataFrame([], "body string"), topic, writeId="empty")
    write(node, spark.createDataFrame([], "body string"), topic, writeId="empty")
    assert bodies(node, topic) == []


def test_a_task_that_fails_and_is_tried_again_leaves_nothing_twice(spark, node):
    topic = node.topic("retried")

    def fail_once(batches):
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and context.partitionId() == 1 and context.attemptNumber() == 0:
                raise RuntimeError("lost after some rows")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = spark.range(20_000, numPartitions=2).selectExpr("cast(id as string) as body")
        write(node, frame.mapInArrow(fail_once, "body string"), topic, batchBytes="4096")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(map(int, bodies(node, topic))) == list(range(20_000))


def test_a_job_that_fails_writes_nothing(spark, node):
    topic = node.topic("failed")

    def fail(batches):
        yield from batches
        if TaskContext.get().partitionId() == 1:
            raise RuntimeError("never")

    frame = spark.range(10_000, numPartitions=2).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException):
        write(node, frame.mapInArrow(fail, "body string"), topic)
    assert bodies(node, topic) == []


def test_a_bad_row_and_a_bad_column_say_what_is_wrong(spark, node):
    """The rest of what can be wrong is tested without a JVM."""
    topic = node.topic("bad")
    rows = spark.createDataFrame([("x",), (None,)], "body string").coalesce(1)
    assert "row 1 of partition 0, column 'body': is null" in refused(lambda: write(node, rows, topic))
    renamed = rows.withColumnRenamed("body", "text")
    assert "column 'text' means nothing for a message" in refused(lambda: write(node, renamed, topic))
    assert bodies(node, topic) == []


def test_at_least_once_sends_as_a_producer_does(spark, node):
    topic = node.topic("plain", 4)
    frame = spark.range(100, numPartitions=2).selectExpr(
        "cast(id as string) as body",
        "concat('k', id % 5) as keys",
        "map('n', cast(id as string)) as properties",
    )
    write(node, frame, topic, delivery="at-least-once")
    found = stored(node, topic)
    assert sorted(int(m.body) for m in found) == list(range(100))
    assert all(m.properties["n"] == m.body.decode() for m in found)
    assert len({m.queue.queue_id for m in found if m.properties["KEYS"] == "k1"}) == 1


# -- streams -----------------------------------------------------------------------------------------------------


def test_a_stream_that_runs_a_batch_again_adds_nothing(spark, node, tmp_path):
    source, target = node.topic("in", 2), node.topic("out", 3)
    copy = Copy(spark, node, source, target, tmp_path)
    node.send(source, [{"body": f"{n}", "keys": f"k{n}", "tag": "t"} for n in range(100)])
    copy.run()
    assert bodies(node, target) == sorted(str(n) for n in range(100))
    last = copy.forget_last_commit()
    copy.run()
    assert len(bodies(node, target)) == 100
    node.send(source, [f"{n}" for n in range(100, 130)])
    copy.run()
    assert sorted(map(int, bodies(node, target))) == list(range(130))
    message = next(m for m in stored(node, target) if m.body == b"7")
    assert (message.properties["KEYS"], message.tag) == ("k7", "t")
    with penstock.client.staging.Staging(node.address) as staging:
        status = staging.status("test-broker", copy.query_id)
        assert status.batch_id is not None
        assert status.batch_id > last


def test_an_old_copy_of_a_checkpoint_is_an_error_and_not_a_loss(spark, node, tmp_path):
    import shutil

    source, target = node.topic("in", 1), node.topic("out", 1)
    copy = Copy(spark, node, source, target, tmp_path)
    node.send(source, ["a"])
    copy.run()
    shutil.copytree(copy.checkpoint, tmp_path / "old")
    for body in ("b", "c"):
        node.send(source, [body])
        copy.run()
    shutil.rmtree(copy.checkpoint)
    (tmp_path / "old").rename(copy.checkpoint)
    # Batch 1 again is taken for what it was, though it is larger now; batch numbers below the last are refused.
    copy.forget_last_commit()
    reason = refused(copy.run)
    assert "comes too late" in reason
    assert bodies(node, target) == ["a", "b", "c"]


def test_a_batch_waits_for_the_broker_that_may_have_published_it(spark, node, tmp_path):
    """Spark died between the sink's commit and its own; the broker that published is away when it starts again."""
    from tests.support.staging_pair import A, B, batch, pair

    source = node.topic("in", 1)
    node.send(source, ["1", "2", "3"])

    async def other_rows(brokers) -> None:
        async with brokers.staging(10_000) as staging:
            for name in (A, B):  # so the topic is at both
                await batch(staging, name, 0, name)

    thread, opened = LoopThread("two-brokers"), pair(tmp_path)
    brokers = thread.run(opened.__aenter__())
    try:
        thread.run(other_rows(brokers))
        options = {"nameserver": brokers.address, "retryMs": "2000"}
        copy = Copy(spark, node, source, "orders", tmp_path, **options)
        copy.run()
        rows = {name: brokers.rows(name) for name in (A, B)}
        assert sorted(rows.values()) == [2, 5]
        home, other = sorted(rows, key=rows.__getitem__, reverse=True)
        copy.forget_last_commit()
        thread.run(brokers.stop(home))
        assert f"publishes at broker '{home}', which has no master" in refused(copy.run)
        assert brokers.rows(other) == 2
        thread.run(brokers.start(home))
        copy.run()
        assert {name: brokers.rows(name) for name in (A, B)} == rows
    finally:
        thread.run(opened.__aexit__(None, None, None))
        thread.stop()


def test_a_stream_says_at_its_start_what_is_wrong(spark, node, tmp_path):
    copy = Copy(spark, node, node.topic("in"), node.topic("out"), tmp_path, writeId="x")
    node.send(copy.source, ["x"])
    assert "writeId is for batch jobs" in refused(copy.run)


PROGRAM = """
    import json, sys
    import penstock.spark

    address, source, target, folder, rows, settings = sys.argv[1:]
    spark = penstock.spark.session("sink", "local[2]", log=f"{folder}/spark.log", **json.loads(settings))
    frame = (
        spark.readStream.format("penstock").option("nameserver", address).option("topic", source)
        .option("maxRowsPerTrigger", rows).load()
    )
    query = (
        frame.selectExpr("body", "cast(queue_offset as string) as key").writeStream.format("penstock")
        .option("nameserver", address).option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    )
    print("started", flush=True)
    query.awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)  # a start of Spark for each kill: a minute each where the machine is busy
@pytest.mark.fault("F3")
def test_a_driver_that_is_killed_again_and_again_writes_every_row_once(spark, node, tmp_path):
    """SIGKILL of driver and JVM in the middle of the run; then a run to the end, in the shared session."""
    source, target = node.topic("in", 2), node.topic("out", 4)
    count, rows = by_length(1_000, 2_400), by_length(50, 75)
    node.send(source, [f"{n}" for n in range(count)])
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    line = [sys.executable, str(program), node.address, source, target, str(tmp_path), str(rows)]
    line += [json.dumps({**QUICK_SETTINGS, "spark.log.level": "ERROR"})]
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    seen = []
    for goal in (300, 900) if LONG else (100,):
        # Into a file: Spark's workers inherit a pipe and may outlive the driver by a moment.
        told = tmp_path / f"told-{goal}"
        with told.open("wb") as out:
            process = subprocess.Popen(
                line, stdout=out, stderr=out, cwd=tmp_path, env=environment, start_new_session=True
            )
        try:
            while not seen or seen[-1] < goal:
                assert process.poll() is None, told.read_text(errors="replace")[-3_000:]
                seen.append(node.admin.describe_topic(target).messages)
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    assert seen[-1] < count, "it was in the middle of it"
    last = Copy(spark, node, source, target, tmp_path, max_rows="150")
    query = last.start()
    try:
        while query.isActive:
            seen.append(node.admin.describe_topic(target).messages)
            time.sleep(0.02)
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted(map(int, bodies(node, target))) == list(range(count))
    # Batch sizes are the source's to choose; where each ended is in Spark's offset log.
    ends = {0}
    for path in (tmp_path / "checkpoint" / "offsets").iterdir():
        if path.name.isdigit():
            ends.add(sum(json.loads(path.read_text().splitlines()[-1]).values()))
    assert len(ends) > 5
    assert set(seen) <= ends, f"a reader saw a part of a batch: {sorted(set(seen) - ends)} of {sorted(ends)}"
