"""The sink's writers without a JVM: what they refuse, what a task returns, and what the driver publishes."""

from __future__ import annotations

import pickle  # noqa: TID251 - what Spark does with writers
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

import penstock
from penstock.client.staging import Handle
from penstock.errors import ClientError, MessageError, OptionError
from penstock.spark import sink
from penstock.spark.sink_options import WriteOptions
from penstock.spark.sink_rows import SinkColumns
from penstock.testing import broker
from tests.unit.spark.test_sink_rows import schema_of


def options(address: str = "h", **more: str) -> dict[str, str]:
    return {"nameserver": address, "topic": "T", **more}


def test_what_can_be_wrong_is_found_before_anything_runs() -> None:
    good = schema_of("body string")
    for wrong, make in (
        ("cannot be overwritten", lambda: sink.batch_writer(options(), good, True)),
        ("cannot be overwritten", lambda: sink.stream_writer(options(), good, True)),
        ("writeId is for batch jobs", lambda: sink.stream_writer(options(writeId="x"), good, False)),
        (
            "means nothing for a message",
            lambda: sink.batch_writer(options(), schema_of("text string"), False),
        ),
        ("no option 'group'", lambda: sink.batch_writer(options(group="g"), good, False)),
    ):
        with pytest.raises(OptionError, match=wrong):
            make()


def test_a_writer_travels_and_a_job_without_an_id_gets_one() -> None:
    good = schema_of("body string")
    named = sink.batch_writer(options(writeId="nightly"), good, False)
    assert pickle.loads(pickle.dumps(named))._query == "write:nightly"
    queries = {sink.batch_writer(options(), good, False)._query for _ in range(3)}  # type: ignore[attr-defined]
    assert len(queries) == 3
    stream = pickle.loads(pickle.dumps(sink.stream_writer(options(), good, False)))
    with pytest.raises(ClientError, match="which query"):
        stream.write(iter(()))
    named.abort([])
    stream.abort([], 0)


def test_parts_of_one_write_have_numbers() -> None:
    with broker() as address, penstock.Admin(address) as admin:
        for number, rows in ((0, 2), (1, 3), (1, 3), (2, 1)):
            given = options(address, writeId="parts", batchId=str(number))
            writer = sink.batch_writer(given, schema_of("body string"), False)
            writer.commit([writer.write(iter([table(*"x" * rows)]))])
        assert admin.describe_topic("T").messages == 6
    with pytest.raises(OptionError, match="needs a writeId"):
        sink.batch_writer(options(batchId="1"), schema_of("body string"), False)


def table(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch({"body": list(bodies)})


def test_tasks_stage_and_the_driver_publishes() -> None:
    with broker() as address, penstock.Admin(address) as admin:
        writer = sink.batch_writer(
            options(address, writeId="w", batchBytes="4096"), schema_of("body string"), False
        )
        empty = writer.write(iter([table(), table()]))
        assert (empty.rows, empty.handles) == (0, [])  # type: ignore[attr-defined]
        writer.commit([empty, None])  # type: ignore[list-item]
        first = writer.write(iter([table("a", "b"), table(), table(*"c" * 500)]))
        assert first.rows == 502  # type: ignore[attr-defined]
        assert sum(handle.messages for handle in first.handles) == 502  # type: ignore[attr-defined]
        assert len(first.handles) > 5  # type: ignore[attr-defined]
        assert admin.describe_topic("T").messages == 0
        for _ in range(2):
            writer.commit(pickle.loads(pickle.dumps([first])))
        assert admin.describe_topic("T").messages == 502


def test_a_row_that_the_broker_refuses_is_named() -> None:
    """The broker knows what the sink does not: which topics there may be."""
    with broker(auto_create_topics=False) as address, penstock.Admin(address) as admin:
        admin.create_topic("T", 1)
        given = {"nameserver": address}
        writer = sink.batch_writer(given, schema_of("topic string, body string"), False)
        batch = pa.record_batch({"topic": ["T", "T", "unknown"], "body": ["a", "b", "c"]})
        with pytest.raises(MessageError, match=r"row 2 of partition 0, column 'topic'.*unknown"):
            writer.write(iter([batch]))
    with broker() as address:
        writer = sink.batch_writer({"nameserver": address}, schema_of("topic string, body string"), False)
        batch = pa.record_batch({"topic": ["T", "not a name"], "body": ["a", "b"]})
        with pytest.raises(MessageError, match=r"row 1 of partition 0, column 'topic'.*invalid topic name"):
            writer.write(iter([batch]))


class NoStaging:
    """Stands in for a connection."""

    def __init__(self, address: Any, **settings: Any) -> None:
        self.published: list[tuple[str, str, int, list[str]]] = []
        self.told: list[str] = []
        NoStaging.last = self

    last: NoStaging

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def publish(
        self, broker: str, query: str, batch: int, handles: list[Handle], *, topic: str, tell: list[str]
    ) -> None:
        self.told = tell
        self.published.append((broker, query, batch, [handle.text for handle in handles]))


def written(partition: int, *texts: str, broker: str = "a") -> sink.WrittenRows:
    return sink.WrittenRows("q", partition, len(texts), [Handle(broker, text, 1) for text in texts])


def test_handles_are_published_in_the_order_of_the_partitions() -> None:
    parsed = WriteOptions.parse(options())
    messages: list[WriterCommitMessage | None] = [
        written(2, "5"),
        None,
        written(0, "1", "2"),
        written(1, "3", "4"),
    ]
    sink.publish(parsed, 7, messages, NoStaging)  # type: ignore[arg-type]
    assert NoStaging.last.published == [("a", "q", 7, ["1", "2", "3", "4", "5"])]
    with pytest.raises(ClientError, match="staged at a and b"):
        sink.publish(parsed, 7, [written(0, "1"), written(1, "2", broker="b")], NoStaging)  # type: ignore[arg-type]


def test_brokers_that_do_not_know_the_home_are_told_where_a_batch_may_run_again() -> None:
    parsed = WriteOptions.parse(options())
    messages = [sink.WrittenRows("q", n, 1, [Handle("a", str(n), 1)], ("c", f"b{n}")) for n in range(2)]
    sink.publish(parsed, 7, messages, NoStaging)  # type: ignore[arg-type]
    assert NoStaging.last.told == ["b0", "b1", "c"]
    sink.publish(parsed, 7, messages, NoStaging, tells=False)  # type: ignore[arg-type]
    assert NoStaging.last.told == []


def test_a_batch_with_other_rows_than_it_must_have_is_not_published() -> None:
    NoStaging.last = NoStaging("h")
    for bounds in ({"rowsMin": "3"}, {"rowsMax": "1"}, {"rowsMin": "1", "rowsMax": "1"}):
        parsed = WriteOptions.parse(options(topic="T", **bounds))
        with pytest.raises(sink.RowCountError, match=r"there are 2 rows.*none was published"):
            sink.publish(parsed, 0, [written(0, "x"), written(1, "y")], NoStaging)  # type: ignore[arg-type]
    with pytest.raises(sink.RowCountError, match="there are 0 rows"):
        sink.publish(WriteOptions.parse(options(topic="T", rowsMin="1")), 0, [], NoStaging)  # type: ignore[arg-type]
    assert NoStaging.last.published == []
    parsed = WriteOptions.parse(options(topic="T", rowsMin="2", rowsMax="2"))
    sink.publish(parsed, 0, [written(0, "x"), written(1, "y")], NoStaging)  # type: ignore[arg-type]
    assert NoStaging.last.published == [("a", "q", 0, ["x", "y"])]


def test_at_least_once_goes_through_a_producer() -> None:
    with broker() as address, penstock.Admin(address) as admin:
        given = options(address, delivery="at-least-once")
        schema = schema_of("body binary, key string, properties map<string,string>, delay int, queue int")
        writer = sink.batch_writer(given, schema, False)
        batch = pa.record_batch(
            {
                "body": [b"a", b"b", b"c"],
                "key": ["k", None, "k"],
                "properties": pa.array(
                    [[("x", "1"), ("UNIQ_KEY", "u")], None, [("y", None)]], pa.map_(pa.string(), pa.string())
                ),
                "delay": pa.array([None, 0, None], pa.int32()),
                "queue": pa.array([None, 2, None], pa.int32()),
            }
        )
        message = writer.write(iter([batch]))
        assert (message.rows, message.handles) == (3, [])  # type: ignore[attr-defined]
        writer.commit([message])
        found = {m.body: m for queue in admin.queues("T") for m in admin.read_messages(queue, 0)}
        assert set(found) == {b"a", b"b", b"c"}
        assert found[b"a"].properties["x"] == "1"
        assert found[b"a"].msg_id != "u"
        assert found[b"b"].queue.queue_id == 2
        assert found[b"a"].queue == found[b"c"].queue
        for bad, why in (
            ({"queue": 9}, "has 4 queues"),
            ({"body": None}, "'body': is null"),
            ({"delay": -1}, "delay"),
        ):
            columns = {"body": b"x", "key": None, "properties": None, "delay": None, "queue": None, **bad}
            arrays = [pa.array([columns[field.name]], field.type) for field in batch.schema]
            with pytest.raises(MessageError, match=f"row 0 of partition 0.*{why}"):
                writer.write(iter([pa.record_batch(arrays, schema=batch.schema)]))


def test_schemas_say_columns_by_place_so_that_case_does_not_matter() -> None:
    columns = SinkColumns(schema_of("TAGS string, Body string"), "T")
    assert columns.places == {"tags": 0, "body": 1}
    assert columns.names == {"tags": "TAGS", "body": "Body"}
