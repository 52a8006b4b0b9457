"""Batch reads through a real Spark from a real broker, and from its directory."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from penstock.client.scan import Scan
from penstock.errors import PenstockError
from penstock.spark import messages
from penstock.spark.gaps import read_gaps
from penstock.spark.reasons import reason_of
from penstock.spark.schema import COLUMNS, MAY_BE_NULL
from penstock.store.reading import StoreReader
from tests.spark.retention import expiring_node


def read(spark, node, topic, **options):
    reader = spark.read.format("penstock").option("nameserver", node.address).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def bodies(frame) -> list[bytes]:
    return [bytes(row.body) for row in frame.orderBy("queue_id", "queue_offset").collect()]


def refused(action) -> str:
    with pytest.raises((PySparkException, PenstockError)) as caught:
        action()
    return reason_of(caught.value)


@pytest.fixture(scope="module")
def orders(node) -> str:
    """A topic that no test changes: 4 queues, 200 messages."""
    topic = node.topic("orders")
    for queue in range(4):
        node.send(
            topic,
            [
                {
                    "body": f"{queue}-{n}",
                    "tag": "AB"[n % 2],
                    "keys": [f"k{n % 10}", f"all-{queue}"],
                    "properties": {"n": str(n)},
                }
                for n in range(50)
            ],
            queue_id=queue,
        )
    return topic


# -- columns -----------------------------------------------------------------------------------------------------


def test_every_column_is_there(spark, node, orders):
    frame = read(spark, node, orders).load()
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == COLUMNS
    row = frame.where("queue_id = 2 and queue_offset = 7").collect()[0]
    assert (row.topic, row.broker, row.queue_id, row.queue_offset) == (orders, "test-broker", 2, 7)
    assert (bytes(row.body), row.tags, row.keys) == (b"2-7", "B", "k7 all-2")
    assert row.properties["n"] == "7"
    assert row.properties["UNIQ_KEY"] == row.message_id
    assert row.reconsume_times == 0
    assert row.size > 100
    assert row.born_host.startswith("127.0.0.1:")
    now = datetime.now()  # noqa: DTZ005
    assert abs(row.store_time - now) < timedelta(minutes=10) or abs(
        row.store_time - datetime.now(UTC).replace(tzinfo=None)
    ) < timedelta(minutes=10)
    assert row.physical_offset >= 0


def test_columns_that_are_never_null_say_so_and_a_schema_may_differ(spark, node, orders):
    frame = read(spark, node, orders).load()
    assert {field.name for field in frame.schema if field.nullable} == MAY_BE_NULL
    mixed = "body binary NOT NULL, queue_id int, properties map<string,string> NOT NULL, keys string"
    found = read(spark, node, orders).schema(mixed).load()
    assert [field.nullable for field in found.schema] == [False, True, False, True]
    assert found.count() == 200
    assert found.where("body is null or queue_id is null").count() == 0
    assert "may be null" in refused(
        lambda: read(spark, node, orders).schema("keys string NOT NULL").load().count()
    )


def test_a_view_in_sql_reads_and_a_table_of_the_catalog_is_refused(spark, node, orders):
    where = f"using penstock options (nameserver '{node.address}', topic '{orders}')"
    spark.sql(f"create temporary view seen {where}")
    try:
        assert spark.sql("select count(*) from seen").first()[0] == 200
    finally:
        spark.sql("drop view seen")
    assert "CREATE TEMPORARY VIEW" in refused(lambda: spark.sql(f"create table kept {where}"))
    spark.sql(f"create table named (body binary) {where}")
    try:
        assert "CREATE TEMPORARY VIEW" in refused(lambda: spark.table("named").count())
    finally:
        spark.sql("drop table named")


def test_all_messages_once_and_in_order(spark, node, orders):
    frame = read(spark, node, orders).load()
    assert bodies(frame) == [f"{q}-{n}".encode() for q in range(4) for n in range(50)]


def test_columns_are_pruned_by_schema_and_by_option(spark, node, orders):
    narrow = read(spark, node, orders).schema("body binary, queue_id int").load()
    assert narrow.columns == ["body", "queue_id"]
    assert narrow.count() == 200
    assert {tuple(row) for row in narrow.select("queue_id").distinct().collect()} == {(0,), (1,), (2,), (3,)}
    option = read(spark, node, orders, columns="queue_offset, tags").load()
    assert option.columns == ["queue_offset", "tags"]
    assert option.agg(F.sum("queue_offset")).first()[0] == 4 * sum(range(50))
    assert "there is no column 'bodi'" in refused(
        lambda: read(spark, node, orders).schema("bodi binary").load().count()
    )
    said = refused(lambda: read(spark, node, orders).schema("queue_id bigint").load().count())
    assert "column 'queue_id' is int, not bigint" in said


# -- positions and splits ----------------------------------------------------------------------------------------


def test_positions(spark, node, orders):
    def count(**options):
        return read(spark, node, orders, **options).load().count()

    key = f"{orders}/test-broker"
    assert count(startingPosition="latest") == 0
    assert count(endingPosition="earliest") == 0
    start = json.dumps({f"{key}/0": 45, f"{key}/1": "latest"})
    end = json.dumps({f"{key}/2": 10, f"{key}/3": "earliest"})
    assert count(startingPosition=start, endingPosition=end) == 5 + 0 + 10 + 0
    assert count(startingPosition="timestamp:2020-01-01") == 200
    assert count(startingPosition="timestamp:2100-01-01T00:00:00Z") == 0
    assert count(endingPosition="timestamp:1000") == 0


def test_a_time_between_two_messages(spark, node):
    topic = node.topic("times", 1)
    node.send(topic, ["before"] * 3, queue_id=0)
    with Scan(node.address) as scan:
        queue = scan.queues(topic)[0]
        before = int(
            read(spark, node, topic).load().agg(F.max("store_time").cast("double")).first()[0] * 1000
        )
        while scan.offset_by_time(queue, before + 1) < 3:
            before += 1
    between = before + 1
    while datetime.now(UTC).timestamp() * 1000 <= between:
        pass
    node.send(topic, ["after"] * 2, queue_id=0)
    since = read(spark, node, topic, startingPosition=f"timestamp:{between}").load()
    until = read(spark, node, topic, endingPosition=f"timestamp:{between}").load()
    assert (since.count(), until.count()) == (2, 3)


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_big_ranges_are_split(spark, node, orders, parts):
    frame = read(spark, node, orders, minPartitions=str(parts)).load()
    assert frame.rdd.getNumPartitions() == parts
    sizes = [len(part) for part in frame.select("queue_id").rdd.glom().collect()]
    assert max(sizes) - min(sizes) <= 1
    assert bodies(frame) == [f"{q}-{n}".encode() for q in range(4) for n in range(50)]


def test_small_batches_and_small_pulls_give_the_same(spark, node, orders):
    frame = read(
        spark, node, orders, batchRows="7", pullBytes="4096", batchBytes="1024", verify="false"
    ).load()
    assert bodies(frame) == [f"{q}-{n}".encode() for q in range(4) for n in range(50)]


def test_several_topics_and_patterns(spark, node, orders):
    other, more = node.topic("other-x", 1), node.topic("other-y", 1)
    node.send(other, ["a"])
    node.send(more, ["b", "c"])
    assert read(spark, node, f"{orders},{other}").load().count() == 201
    frame = spark.read.format("penstock").option("nameserver", node.address)
    by_pattern = frame.option("topicPattern", "other-[xy]-.*").load()
    assert {row.topic: row["count"] for row in by_pattern.groupBy("topic").count().collect()} == {
        other: 1,
        more: 2,
    }


def test_what_is_read_is_fixed_by_load(spark, node):
    """Spark plans a DataFrame and those derived from it at different times; all see the same messages."""
    topic = node.topic("fixed", 2)
    node.send(topic, ["x"] * 3)
    frame = read(spark, node, topic).load()
    narrow = read(spark, node, topic).schema("queue_id int, body binary").load()
    # With a schema of the user's Spark makes the source at the first action; it is fixed from there on.
    assert (frame.count(), narrow.count()) == (3, 3)
    node.send(topic, ["x"] * 4)
    assert (frame.count(), frame.where("body is not null").count()) == (3, 3)
    assert (narrow.count(), narrow.where("body is not null").count()) == (3, 3)
    assert frame.join(frame.select("message_id"), "message_id").count() == 3
    assert read(spark, node, topic).load().count() == 7


# -- filters -----------------------------------------------------------------------------------------------------


def test_tags_and_keys_of_options(spark, node, orders):
    assert read(spark, node, orders, tags="A").load().count() == 100
    assert read(spark, node, orders, tags="A || B").load().count() == 200
    assert read(spark, node, orders, tags="X").load().count() == 0
    assert read(spark, node, orders, key="k3").load().count() == 20
    assert read(spark, node, orders, key="all-1", tags="B").load().count() == 25
    assert read(spark, node, orders, key="all").load().count() == 0, "whole words"


CONDITIONS = {
    "queue_id in (1, 2) and queue_offset between 10 and 19": 20,
    "queue_offset > 47": 8,
    "tags = 'A' and queue_id = 0": 25,
    "tags = 'A' and tags = 'B'": 0,
    "topic = 'nothing'": 0,
    "keys = 'k3 all-1'": 5,
    "store_time >= timestamp'2020-01-01 00:00:00' and broker = 'test-broker'": 200,
    "store_time < timestamp'2020-01-01 00:00:00'": 0,
    "queue_id = 0 or queue_id = 3": 100,
}


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_of_one_frame_do_not_disturb_each_other(spark, node, orders, enabled):
    """Spark 4.3 keeps the plan of one filter for the next scan of the same DataFrame: nothing may depend on it."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, enabled)
    try:
        frame = read(spark, node, orders).load()
        some = list(CONDITIONS)[-4:]
        assert {text: frame.where(text).count() for text in some} == {text: CONDITIONS[text] for text in some}
        assert frame.where("queue_id = 0").union(frame.where("queue_id = 1")).count() == 100
    finally:
        spark.conf.set(setting, before)


def test_push_filters_is_refused_unless_it_is_off(spark, node, orders):
    said = refused(lambda: read(spark, node, orders, pushFilters="true").load().count())
    assert "the option pushFilters was removed" in said
    assert read(spark, node, orders, pushFilters="false").load().count() == 200


@pytest.mark.parametrize("form", ["rows", "packs"])
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_frame_that_is_used_twice_has_all_rows(spark, node, enabled, form):
    topic = node.topic("twice", 4)
    for queue in range(4):
        node.send(topic, ["x"] * 500, queue_id=queue)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, enabled)
    try:
        where = {"nameserver": node.address, "topic": topic}
        frame = read(spark, node, topic).load() if form == "rows" else messages(spark, **where)
        some = frame.where("queue_id = 1")
        assert (some.count(), frame.count(), some.count()) == (500, 2_000, 500)
        assert some.union(frame).count() == 2_500
        assert some.union(frame.where("queue_id = 2")).count() == 1_000
        assert frame.join(some.select("message_id"), "message_id").count() == 500
    finally:
        spark.conf.set(setting, before)


# -- gaps --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_what_is_deleted_is_refused_reported_or_skipped(spark, tmp_path):
    with expiring_node(tmp_path / "broker") as node:
        topic = node.topic("gap", 1)
        early = read(spark, node, topic, onGap="skip").load()
        node.send(topic, [b"%d" % n for n in range(10)], queue_id=0)
        whole = read(spark, node, topic).load()
        skipping = read(spark, node, topic, onGap="skip").load()
        first = node.send_and_expire(topic, 300)
        options = {"startingPosition": json.dumps({f"{topic}/test-broker/0": 1})}
        said = refused(lambda: read(spark, node, topic, **options).load().count())
        for part in (
            f"{first - 1} messages",
            topic,
            "test-broker",
            "queue 0",
            f"offsets 1 to {first - 1}",
            "onGap",
        ):
            assert part in said
        assert read(spark, node, topic, onGap="skip", **options).load().count() == 310 - first
        table = str(tmp_path / "gaps")
        reported = read(spark, node, topic, onGap="report", gapTable=table, **options).load()
        assert [row.queue_offset for row in reported.collect()] == list(range(first, 310))
        assert reported.count() == 310 - first
        (gap,) = read_gaps(table)
        assert (gap.first_offset, gap.last_offset, gap.where) == (1, first - 1, "planning")
        assert spark.read.json(table).first().asDict() == {
            "topic": topic, "broker": "test-broker", "queue_id": 0, "first_offset": 1, "last_offset": first - 1,
            "reason": gap.reason, "found_at": gap.found_at, "where": "planning",
        }  # fmt: skip
        assert read(spark, node, topic).load().count() == 310 - first, "earliest is what is there"
        # Deleted between load() and the action: met while reading.
        assert "deleted" in refused(whole.count)
        assert (skipping.count(), early.count()) == (0, 0)


# -- a store directory -------------------------------------------------------------------------------------------


def test_a_store_directory_is_read_like_its_broker(spark, node, orders):
    live = read(spark, node, orders).load()
    store = spark.read.format("penstock").option("topic", orders).load(str(node.directory))
    assert store.schema == live.schema
    assert [row.broker for row in store.select("broker").distinct().collect()] == [""]
    same = [
        F.to_json("properties").alias("properties"),
        *(name for name in COLUMNS if name not in ("broker", "properties")),
    ]
    assert store.select(*same).exceptAll(live.select(*same)).count() == 0
    assert store.count() == 200
    assert store.where("queue_id = 2 and queue_offset < 5").count() == 5
    narrow = spark.read.format("penstock").option("tags", "A").schema("tags string").load(str(node.directory))
    assert {row.tags for row in narrow.collect()} == {"A"}
    end = json.dumps({f"{orders}//0": 3, **{f"{orders}//{n}": "earliest" for n in (1, 2, 3)}})
    some = spark.read.format("penstock").options(topic=orders, endingPosition=end, minPartitions="2")
    assert bodies(some.load(str(node.directory))) == [b"0-0", b"0-1", b"0-2"]


def test_mistakes_with_a_directory(spark, node, orders, tmp_path):
    reader = spark.read.format("penstock")
    assert "is not a store" in refused(lambda: reader.load(str(tmp_path)).count())
    assert "has no topic 'nope'" in refused(
        lambda: reader.option("topic", "nope").load(str(node.directory)).count()
    )
    stream = spark.readStream.format("penstock").load(str(node.directory))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    assert "cannot be read as a stream" in refused(lambda: query.start().awaitTermination())


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"TOPIC": "Nothing-here"}, "there is no topic 'Nothing-here'"),
        ({"nameserver": "127.0.0.1:1"}, "no name server answers"),
        ({"toppic": "x"}, "there is no option 'toppic'"),
        ({"startingPosition": "{bad"}, "startingPosition is no JSON"),
        (
            {"startingPosition": "latest", "endingPosition": "earliest"},
            "startingPosition is after endingPosition",
        ),
        ({"startingPosition": '{"X/y/0": 1}'}, "names queues that are not read"),
        ({"onGap": "maybe"}, "use fail, report or skip"),
        ({"minPartitions": "none"}, "minPartitions is 'none'"),
    ],
)
def test_mistakes_have_clear_errors(spark, node, orders, options, said):
    assert said in refused(lambda: read(spark, node, orders, **options).load().count())


def test_a_topic_that_is_nearly_right_is_suggested(spark, node, orders):
    said = refused(lambda: read(spark, node, orders.replace("orders", "order")).load().count())
    assert f"did you mean {orders}" in said
    pattern = spark.read.format("penstock").option("nameserver", node.address).option("topicPattern", "zzz.*")
    assert "no topic matches 'zzz.*'" in refused(lambda: pattern.load().count())


# -- answers in columns ------------------------------------------------------------------------------------------


def test_large_reads_of_numbers_and_bodies_come_in_columns(spark, node, monkeypatch):
    """The rows are those of the directory, message by message; who needs more of a message gets records."""
    columns = []
    get_columns = StoreReader.get_columns

    def noted(self, *arguments):
        columns.append(arguments[-1])
        return get_columns(self, *arguments)

    monkeypatch.setattr(StoreReader, "get_columns", noted)  # the broker runs in this process
    topic = node.topic("wide", 2)
    node.send(topic, [{"body": b"%d" % n * (n % 40), "tag": "AB"[n % 2]} for n in range(6_000)])
    names = ["topic", "queue_id", "queue_offset", "body", "born_time", "store_time", "reconsume_times"]
    names += ["physical_offset", "size"]
    offline = spark.read.format("penstock").option("topic", topic).option("columns", ",".join(names))
    wanted = offline.load(str(node.directory)).orderBy("queue_id", "queue_offset").collect()
    assert len(wanted) == 6_000
    live = read(spark, node, topic, columns=",".join(names), batchRows="500").load()
    assert live.orderBy("queue_id", "queue_offset").collect() == wanted
    assert set(columns) == {tuple(names[1:])}
    columns.clear()
    assert read(spark, node, topic, columns="queue_id,tags").load().where("tags = 'A'").count() == 3_000
    assert read(spark, node, topic, columns="body,keys").load().count() == 6_000
    assert columns == []
