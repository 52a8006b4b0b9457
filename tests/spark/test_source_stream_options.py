"""Options of `spark.readStream`, one by one: where it begins, which topics, how many tasks; and what is refused."""

from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import spark_partition_id

from penstock.errors import PenstockError
from penstock.spark.planning import STREAM_CUT_MIN
from penstock.spark.reasons import reason_of


def frame(spark, node, **options: str):
    return spark.readStream.format("penstock").options(**{"nameserver": node.address, **options}).load()


class Run:
    """Everything that is there, in one go: rows as (topic, queue, offset, body), and the tasks of each batch."""

    def __init__(self, spark, node, folder, **options: str) -> None:
        self.rows: list[tuple[str, int, int, bytes]] = []
        self.tasks: list[list[tuple[int, int]]] = []
        query = (
            frame(spark, node, **options)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(folder))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.rows.sort()

    def _take(self, batch, number: int) -> None:
        """Spark's task is a column, so that each range can be seen by itself."""
        columns = ("topic", "queue_id", "queue_offset", "body")
        found = batch.select(*columns, spark_partition_id().alias("task")).collect()
        self.rows += [(row.topic, row.queue_id, row.queue_offset, bytes(row.body)) for row in found]
        offsets: dict[int, list[int]] = {}
        for row in found:
            offsets.setdefault(row.task, []).append(row.queue_offset)
        self.tasks.append(sorted((min(some), max(some)) for some in offsets.values()))


def sent(node, topic: str, bodies: list[bytes], queue_id: int = 0) -> list[tuple[str, int, int, bytes]]:
    """Send to one queue; the rows that have to come of it."""
    results = node.send(topic, bodies, queue_id=queue_id)
    return [
        (topic, queue_id, result.queue_offset, body) for result, body in zip(results, bodies, strict=True)
    ]


# -- where it begins ---------------------------------------------------------------------------------------------


def test_a_time_is_where_a_stream_begins(spark, node, tmp_path):
    """In milliseconds and as a date, with a zone and without."""
    topic = node.topic("time", 2)
    for queue in range(2):
        sent(node, topic, [b"early"] * 20, queue)
    queues = sorted(node.admin.queues(topic), key=lambda queue: queue.queue_id)

    def stored_ms(queue_id: int) -> list[int]:
        found: list[int] = []
        while messages := node.admin.read_messages(queues[queue_id], len(found)):
            found += [message.store_timestamp for message in messages]
        return found

    start_ms = max(stored_ms(0) + stored_ms(1)) + 5
    while stored_ms(0)[-1] < start_ms:  # until the broker's clock has got there
        node.send(topic, [b"between"], queue_id=0)
    sent(node, topic, [b"late"] * 3, 0)
    sent(node, topic, [b"late"] * 2, 1)
    expected = [
        (topic, queue, offset)
        for queue in range(2)
        for offset, stored in enumerate(stored_ms(queue))
        if stored >= start_ms
    ]
    assert len(expected) >= 5
    moment = datetime.fromtimestamp(start_ms / 1000, UTC)
    forms = [str(start_ms), moment.isoformat(), moment.replace(tzinfo=None).isoformat()]
    for number, form in enumerate(forms):
        run = Run(spark, node, tmp_path / str(number), topic=topic, startingPosition=f"timestamp:{form}")
        assert [row[:3] for row in run.rows] == expected, form


def test_a_time_that_is_yet_to_come_is_behind_the_newest_message(spark, node, tmp_path):
    topic = node.topic("future", 1)
    sent(node, topic, [b"old"] * 5)
    options = {"topic": topic, "startingPosition": "timestamp:2222-01-01T00:00:00Z"}
    assert Run(spark, node, tmp_path, **options).rows == []
    new = sent(node, topic, [b"new"] * 2)
    assert Run(spark, node, tmp_path, **options).rows == new, (
        "the checkpoint says where to go on, not the time"
    )


# -- which topics ------------------------------------------------------------------------------------------------


def test_a_list_of_topics_is_one_stream(spark, node, tmp_path):
    first, second, other = node.topic("list-a", 1), node.topic("list-b", 2), node.topic("list-c", 1)
    rows = sent(node, first, [b"a%d" % n for n in range(5)])
    rows += sent(node, second, [b"b%d" % n for n in range(7)], queue_id=1)
    sent(node, other, [b"c"] * 3)
    run = Run(spark, node, tmp_path, topic=f" {second}, {first} ,")
    assert run.rows == sorted(rows)
    more = sent(node, second, [b"more"], queue_id=0)
    assert Run(spark, node, tmp_path, topic=f"{first},{second}").rows == more, "the order is of no matter"


def test_a_pattern_is_for_the_whole_name(spark, node, tmp_path):
    first, second, longer = node.topic("whole-a", 1), node.topic("whole-b", 1), node.topic("a-whole-a", 1)
    rows = sent(node, first, [b"1", b"2"]) + sent(node, second, [b"3"])
    sent(node, longer, [b"4"])
    assert Run(spark, node, tmp_path, topicPattern=r"whole-[ab]-\d+").rows == sorted(rows)


# -- how many tasks ----------------------------------------------------------------------------------------------


@pytest.mark.invariant("I15")
def test_one_queue_is_read_by_several_tasks_if_they_are_asked_for(spark, node, tmp_path):
    topic = node.topic("split", 1)
    count = 3 * STREAM_CUT_MIN + 100
    rows = sent(node, topic, [b"%d" % n for n in range(count)])
    run = Run(spark, node, tmp_path, topic=topic, minPartitions="4")
    step = STREAM_CUT_MIN
    assert run.tasks == [[(n * step, min((n + 1) * step, count) - 1) for n in range(4)]]
    assert run.rows == rows, "each row once"
    # The next batch begins in the middle of a piece, and is cut at the same round offsets.
    more = sent(node, topic, [b"%d" % n for n in range(count, count + step)])
    run = Run(spark, node, tmp_path, topic=topic, minPartitions="2")
    assert run.tasks == [[(count, 4 * step - 1), (4 * step, count + step - 1)]]
    assert run.rows == more


# -- mistakes ----------------------------------------------------------------------------------------------------


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    return reason_of(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nameserver": "a:b:c"}, "nameserver: "),
        ({"topic": ", "}, "topic is empty"),
        ({"topic": "", "topicPattern": "a"}, "topic is empty"),
        ({"topicPattern": "a"}, "both topic and topicPattern"),
        ({"startingPosition": "first"}, "startingPosition is 'first'"),
        ({"startingPosition": "timestamp:noon"}, "startingPosition has the time 'noon'"),
        ({"startingPosition": '{"t/b/0": -1}'}, "startingPosition has -1 for t/b/0"),
        ({"startingPosition": '{"t/b": 1}'}, "'t/b' names no queue"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger is 'many'"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger is '0'"),
        ({"minPartitions": "0"}, "minPartitions is '0'"),
        ({"minPartitions": "100001"}, "minPartitions is '100001'"),
        ({"group": " "}, "group is empty"),
        ({"tags": "A | B"}, "tags is 'A | B'"),
        ({"key": ""}, "key is empty"),
        ({"onGap": "maybe"}, "onGap is 'maybe'"),
        ({"onGap": "report"}, "onGap is report and there is no gapTable"),
        ({"gapTable": "gaps"}, "there is a gapTable"),
        ({"columns": "bodi"}, "there is no column 'bodi'"),
        ({"batchRows": "0"}, "batchRows is '0'"),
        ({"batchBytes": "1023"}, "batchBytes is '1023'"),
        ({"batchBytes": "8M"}, "batchBytes is '8M'"),
        ({"verify": "yes"}, "verify is 'yes'"),
        ({"pushFilters": "maybe"}, "pushFilters is 'maybe'"),
        ({"pushFilters": "true"}, "the option pushFilters was removed"),
        ({"pullBytes": "4095"}, "pullBytes is '4095'"),
        ({"pullBytes": str((64 << 20) + 1)}, "pullBytes is '67108865'"),
        ({"retryMs": "-1"}, "retryMs is '-1'"),
        ({"retryMs": "1.5"}, "retryMs is '1.5'"),
        ({"discoverMs": "3600001"}, "discoverMs is '3600001'"),
        ({"discoverMs": "often"}, "discoverMs is 'often'"),
        ({"pulBytes": "4096"}, "did you mean pullBytes"),
    ],
)
def test_a_bad_value_is_refused_by_load_and_the_option_is_named(spark, node, options, said):
    assert said in refused(lambda: frame(spark, node, **{"topic": "orders", **options}))


@pytest.mark.parametrize("options", [{"batchRows": "1"}, {"batchBytes": "1024"}, {"pullBytes": "4096"}])
def test_the_smallest_pieces_change_no_row(spark, node, tmp_path, options):
    topic = node.topic("small", 1)
    rows = sent(node, topic, [b"%d" % n * 100 for n in range(60)])
    limits = {"retryMs": "0", "discoverMs": "0", "verify": "false"}
    assert Run(spark, node, tmp_path, topic=topic, **options, **limits).rows == rows
