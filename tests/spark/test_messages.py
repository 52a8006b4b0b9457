"""`penstock.spark.messages`: the rows of the source, handed over in packs."""

import json
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

import penstock.spark
from penstock.errors import PenstockError
from penstock.spark.reasons import reason_of
from penstock.spark.schema import COLUMNS, message_schema


@pytest.fixture(autouse=True)
def expressions_are_compiled(spark, session_as_it_was) -> None:
    """As in production: packs are taken apart by expressions that Spark compiles."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")


@pytest.fixture(scope="module")
def topic(node) -> str:
    """Bodies of 0 to 5 kB, packed ones among them, with and without tags, keys and properties."""
    name = node.topic("packs", 3)
    for queue in range(3):
        node.send(
            name,
            [
                {
                    "body": b"%d-%d " % (queue, n) * (n * n % 900 + 1),
                    **({"tag": "AB"[n % 2]} if n % 3 else {}),
                    **({"keys": [f"k{n}"]} if n % 4 else {}),
                    **({"properties": {"n": str(n), "naïve": "ü"}} if n % 5 else {}),
                }
                for n in range(60)
            ],
            queue_id=queue,
        )
    return name


def rows_of(frame):
    return [row.asDict() for row in frame.orderBy("queue_id", "queue_offset").collect()]


def where(node, topic, kind) -> tuple[dict[str, str], str]:
    if kind == "live":
        return {"nameserver": node.address, "topic": topic}, ""
    return {"topic": topic}, str(node.directory)


def plain(spark, options, path, columns=""):
    reader = spark.read.format("penstock").options(**options)
    reader = reader.option("columns", columns) if columns else reader
    return reader.load(path) if path else reader.load()


@pytest.mark.parametrize("kind", ["live", "store"])
def test_the_rows_are_those_of_the_source(spark, node, topic, kind):
    options, path = where(node, topic, kind)
    found = penstock.spark.messages(spark, path, **options)
    assert found.schema == message_schema()
    assert found.columns == list(COLUMNS)
    expected = rows_of(plain(spark, options, path))
    assert len(expected) == 180
    assert rows_of(found) == expected


@pytest.mark.parametrize("kind", ["live", "store"])
@pytest.mark.parametrize(
    "columns",
    [
        ["body"],
        ["queue_id"],
        ["tags", "body"],
        ["properties", "queue_offset"],
        ["topic", "broker", "born_time"],
    ],
)
def test_columns_are_read_alone_and_in_their_order(spark, node, topic, kind, columns):
    options, path = where(node, topic, kind)
    found = penstock.spark.messages(spark, path, columns=columns, **options)
    assert found.schema == message_schema(columns)
    text = [str(row) for row in plain(spark, options, path, ",".join(columns)).collect()]
    assert [str(row) for row in found.collect()] == text, "in the same order, too"


@pytest.mark.parametrize("kind", ["live", "store"])
def test_small_batches_limits_and_filters(spark, node, topic, kind):
    options, path = where(node, topic, kind)
    options |= {
        "tags": "A",
        "batchRows": "7",
        "minPartitions": "5",
        "columns": "queue_id,queue_offset,tags,keys",
    }
    found = penstock.spark.messages(spark, path, **options)
    assert rows_of(found) == rows_of(plain(spark, options, path))
    assert found.rdd.getNumPartitions() >= 5
    assert found.where("queue_id = 1").count() == found.count() // 3 > 0
    assert found.where("tags = 'B'").count() == 0
    assert len(found.limit(4).collect()) == 4


def test_queries_that_use_a_part_of_the_columns(spark, node, topic):
    options, path = where(node, topic, "store")
    frames = [penstock.spark.messages(spark, path, **options), plain(spark, options, path)]
    answers = []
    for frame in frames:
        total = F.sum(F.length("body"))
        by_tag = sorted(map(str, frame.groupBy("tags").agg(F.count("*"), total, F.max("keys")).collect()))
        twice = frame.alias("a").join(frame.alias("b"), ["queue_id", "queue_offset"]).count()
        answers.append((by_tag, twice, frame.select(F.bit_xor(F.xxhash64("body"))).first()[0]))
    assert answers[0] == answers[1]


def test_python_functions_get_messages_and_not_packs(spark, node, topic):
    """Spark keeps the input rows of a Python function, on disk if need be: with packs in them 200 kB a message."""
    options, path = where(node, topic, "store")
    length = F.udf(lambda text: len(text or ""), "int")
    found = penstock.spark.messages(spark, path, columns=["tags", "keys", "body"], **options)
    for query in (
        found.select(length("body")),
        found.select("tags", length("keys")),
        found.where(length("keys") > 1).select("body"),
        found.where("tags = 'A'").select(length("body"), "keys"),
    ):
        plan = query._jdf.queryExecution().executedPlan().toString()
        below = plan[plan.index("EvalPython") :].splitlines()[1]
        assert "Project [" in below or "Filter (" in below, plan
        assert not re.search(r"EvalPython[^\n]*(substring|_at)", plan), plan
        assert "Generate" not in below, plan
    assert found.select(F.sum(length("body"))).first()[0] == found.select(F.sum(F.length("body"))).first()[0]


def test_rows_without_ansi_rules_are_the_same(spark, node, topic):
    """Spark then takes an element of an array for one that may be missing, and no value differs."""
    options, path = where(node, topic, "store")
    expected = rows_of(plain(spark, options, path))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert rows_of(penstock.spark.messages(spark, path, **options)) == expected
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_nothing_there_gives_no_rows(spark, node):
    empty = node.topic("empty-packs")
    found = penstock.spark.messages(spark, nameserver=node.address, topic=[empty], columns=("tags", "body"))
    assert found.collect() == []


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    return reason_of(caught.value)


def test_what_packs_cannot_do_is_refused(spark, node, topic):
    options, _ = where(node, topic, "live")
    assert "there is no column 'bodi'" in refused(
        lambda: penstock.spark.messages(spark, columns="bodi", **options).count()
    )
    assert "did you mean" in refused(lambda: penstock.spark.messages(spark, topics=topic, **options).count())
    reader = spark.read.format("penstock").options(**options, packed="true")
    assert "leave out schema()" in refused(lambda: reader.schema("body binary").load().count())
    stream = spark.readStream.format("penstock").options(**options, packed="true").load()
    assert "a stream cannot be read in packs" in refused(
        lambda: stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    )


def test_positions_limit_what_is_packed(spark, node, topic):
    gone = json.dumps({f"{topic}/test-broker/0": 50, "*": "latest"})
    found = penstock.spark.messages(spark, nameserver=node.address, topic=topic, startingPosition=gone)
    assert [row.queue_offset for row in found.select("queue_offset").collect()] == list(range(50, 60))
