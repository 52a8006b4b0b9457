"""Rows into staged items, without Spark: which columns are taken, what a row becomes, and how a bad one is named."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from penstock._hot.encode import Column, RowEncoder
from penstock._hot.mapped import MappedBytes
from penstock._hot.staged import StagedItems
from penstock.errors import MessageError, OptionError, RouteNotFoundError
from penstock.message.hashing import java_string_hash
from penstock.message.properties import decode_properties
from penstock.spark.sink_options import WriteOptions
from penstock.spark.sink_rows import RowRequests, SinkColumns

ITEM = struct.Struct(">iiiii")
PREFIX = "7F00000100010000000000000000"


TYPES: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "tinyint": types.ByteType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
}


def schema_of(text: str) -> types.StructType:
    """As `StructType.fromDDL`, which needs a JVM."""
    fields = [part.strip().split(" ") for part in text.split(", ") if part]
    return types.StructType([types.StructField(name, TYPES[kind]) for name, kind in fields])


class Rows:
    """Requests made from tables, decoded again."""

    def __init__(self, schema: str, topic: str = "T", **limits: int) -> None:
        self.moments = 0
        self.requests = RowRequests(
            SinkColumns(schema_of(schema), topic),
            topic,
            self._queues,
            self._moment,
            partition=3,
            turn=0,
            batch_bytes=limits.get("batch_bytes", 1 << 20),
            stage_bytes_max=limits.get("stage_bytes_max", 4 << 20),
        )

    def _queues(self, topic: str) -> int:
        if topic == "unknown":
            raise RouteNotFoundError(f"topic {topic!r} does not exist", "create it")
        return {"T": 4, "one": 1, "none": 0}.get(topic, 8)

    def _moment(self) -> str:
        self.moments += 1
        return f"{PREFIX[:-4]}{self.moments:04X}"

    def add(self, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
        return [row for request in self.all(*batches) for row in decoded(request[0], request[1])]

    def all(self, *batches: pa.RecordBatch) -> list[tuple[list[tuple[str, int]], bytes, int, int]]:
        found = [request for batch in batches for request in self.requests.add(batch)]
        return [*found, *self.requests.finish()]


def decoded(topics: list[tuple[str, int]], data: bytes) -> Iterator[dict[str, Any]]:
    """What a broker reads; every request is one that it would take."""
    places = [(topic, queue) for topic, count in topics for queue in range(count)]
    items = StagedItems(MappedBytes(data), 0, len(data))
    assert items.check(len(places), 32_767) == 0
    at = 0
    while at < len(data):
        size, target, level, flag, body_size = ITEM.unpack_from(data, at)
        body = data[at + 20 : at + 20 + body_size]
        properties = decode_properties(data[at + 22 + body_size : at + size])
        assert flag == 0
        yield {"place": places[target], "level": level, "body": body, "properties": properties}
        at += size


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


MAP = pa.map_(pa.string(), pa.string())


def test_a_row_with_everything() -> None:
    rows = Rows("body binary, keys string, tags string, properties map<string,string>, delay int, queue int")
    [found] = rows.add(
        batch(
            body=[b"\0\x01\x02 any bytes"],
            keys=["k1 k2"],
            tags=["red"],
            properties=pa.array([[("a", "1"), ("ü", "é")]], MAP),
            delay=pa.array([3], pa.int32()),
            queue=pa.array([2], pa.int32()),
        )
    )
    assert found["place"] == ("T", 2)
    assert (found["body"], found["level"]) == (b"\0\x01\x02 any bytes", 3)
    unique = found["properties"].pop("UNIQ_KEY")
    assert unique == f"{PREFIX[:-4]}00010000"
    assert found["properties"] == {"KEYS": "k1 k2", "TAGS": "red", "a": "1", "ü": "é"}


def test_the_least_a_row_can_be() -> None:
    found = Rows("body string").add(batch(body=["text", ""]))
    assert [row["body"] for row in found] == [b"text", b""]
    assert [row["level"] for row in found] == [0, 0]
    assert all(set(row["properties"]) == {"UNIQ_KEY"} for row in found)


def test_types_that_spark_may_send() -> None:
    """Large and plain, text and bytes, numbers of any width, and slices of a larger batch."""
    whole = batch(
        body=pa.array([b"0", b"1", b"2", b"3"], pa.large_binary()),
        key=pa.array([None, b"k1", b"k2", None]),
        tags=pa.array(["t0", "t1", None, ""], pa.large_string()),
        properties=pa.array([None, [("a", "1"), ("b", "2")], [], [("c", "3")]], MAP),
        delay=pa.array([None, 1, 2, 3], pa.int64()),
        queue=pa.array([3, 2, 1, 0], pa.int8()),
    )
    schema = (
        "body binary, key binary, tags string, properties map<string,string>, delay bigint, queue tinyint"
    )
    for part, first in ((whole, 0), (whole.slice(1), 1), (whole.slice(2, 1), 2)):
        found = Rows(schema).add(part)
        assert [row["body"] for row in found] == [b"%d" % n for n in range(first, first + part.num_rows)]
        for row in found:
            number = int(row["body"])
            row["properties"].pop("UNIQ_KEY")
            assert row["place"] == ("T", 3 - number)
            assert row["level"] == number
            assert (
                row["properties"]
                == (
                    {"TAGS": "t0"},
                    {"KEYS": "k1", "TAGS": "t1", "a": "1", "b": "2"},
                    {"KEYS": "k2"},
                    {"c": "3"},
                )[number]
            )


def test_rows_that_were_read_from_a_topic_can_be_written_as_they_are() -> None:
    stored = {
        "UNIQ_KEY": "old",
        "KEYS": "old keys",
        "TAGS": "old",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
        "CLUSTER": "c",
        "WAIT": "true",
        "REAL_TOPIC": "x",
        "REAL_QID": "1",
        "DELAY": "3",
        "__CRC32#": "0123456789",
        "TRAN_MSG": "true",
        "mine": "1",
    }
    rows = Rows("body binary, keys string, tags string, properties map<string,string>")
    found = rows.add(
        batch(
            body=[b"a", b"b"],
            keys=["new", None],
            tags=["new", None],
            properties=pa.array([list(stored.items())] * 2, MAP),
        )
    )
    for row in found:
        assert row["properties"].pop("UNIQ_KEY") != "old"
    assert found[0]["properties"] == {"KEYS": "new", "TAGS": "new", "mine": "1"}
    assert found[1]["properties"] == {"KEYS": "old keys", "TAGS": "old", "mine": "1"}


def test_queues_follow_the_row_then_the_key_then_turns() -> None:
    keys = ["a", "zebra", "ключ", "𝄞 clef", "polygenelubricants", None, None, "", None]
    rows = Rows("body string, keys string, queue int")
    queue = pa.array([None] * 8 + [1], pa.int32())
    found = rows.add(batch(body=["x"] * 9, keys=keys, queue=queue))
    places = [row["place"][1] for row in found]
    # As RocketMQ's hash selector: `polygenelubricants` hashes to the lowest number, whose absolute value is none.
    assert places[:5] == [abs(java_string_hash(key)) % 4 for key in keys[:5] if key]
    assert places[5:8] == [0, 1, 2]
    assert places[8] == 1


def test_topics_of_a_column_are_looked_up_once_and_keep_their_places() -> None:
    rows = Rows("topic string, body string", topic="")
    found = rows.add(
        batch(topic=["T", "one", "T"], body=["1", "2", "3"]), batch(topic=["one", "other"], body=["4", "5"])
    )
    assert [row["place"] for row in found] == [("T", 0), ("one", 0), ("T", 1), ("one", 0), ("other", 0)]
    assert rows.requests.topics == [("T", 4), ("one", 1), ("other", 8)]


def test_requests_end_at_their_limits() -> None:
    rows = Rows("body binary", batch_bytes=5_000)
    requests = rows.all(*(batch(body=[b"x" * 900] * 10) for _ in range(3)))
    assert [count for _, _, count, _ in requests] == [6, 6, 6, 6, 6]
    assert [first for _, _, _, first in requests] == [0, 6, 12, 18, 24]
    assert rows.requests.rows == 30
    # What one request cannot hold together is split, and what it cannot hold at all is refused.
    rows = Rows("body binary", stage_bytes_max=5_000)
    requests = rows.all(batch(body=[b"x" * 10, b"y" * 4_880, b"z" * 10]))
    assert [count for _, _, count, _ in requests] == [1, 1, 1]
    assert max(len(data) for _, data, _, _ in requests) < 5_000 - 10
    with pytest.raises(MessageError, match=r"row 4 of partition 3, column 'body': is too large"):
        Rows("body binary", stage_bytes_max=5_000).all(batch(body=[b""] * 4 + [b"x" * 5_000]))


def test_ids_are_never_given_twice() -> None:
    rows = Rows("body string")
    found = rows.add(*(batch(body=[""] * 40_000) for _ in range(4)))
    assert rows.moments == 3
    assert len({row["properties"]["UNIQ_KEY"] for row in found}) == 160_000


BAD_ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("body binary", {"body": [b"", None]}, r"row 101 .*'body': is null"),
    ("Body string", {"body": ["", None]}, r"'Body': is null"),
    (
        "body string, keys string",
        {"body": ["", ""], "keys": ["", "a\x01b"]},
        r"row 101 .*'keys': contains byte",
    ),
    ("body string, key string", {"body": ["", ""], "key": ["", "a\x02"]}, r"'key': contains byte"),
    ("body string, tags string", {"body": ["", ""], "tags": ["", "\x02"]}, r"'tags': contains byte"),
    ("body string, queue int", {"body": ["", ""], "queue": [3, 4]}, r"row 101 .*'queue': is no queue"),
    ("body string, queue int", {"body": ["", ""], "queue": [3, -1]}, r"'queue': is no queue"),
    (
        "body string, queue bigint",
        {"body": ["", ""], "queue": [3, 1 << 40]},
        r"row 101 .*'queue': is far too",
    ),
    ("body string, delay int", {"body": ["", ""], "delay": [0, -1]}, r"'delay': is negative"),
]


@pytest.mark.parametrize(("schema", "columns", "message"), BAD_ROWS)
def test_a_bad_row_is_named(schema: str, columns: dict[str, Any], message: str) -> None:
    rows = Rows(schema)
    good = {name: values[:1] * 100 for name, values in columns.items()}
    with pytest.raises(MessageError, match=message) as caught:
        rows.all(batch(**good), batch(**columns))
    assert "partition 3" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("", "x")], "name that is empty"),
        ([("a\x01", "x")], "name that is empty or contains"),
        ([("a", "")], "value that is empty"),
        ([("a", "b\x02")], "value that is empty or contains"),
        ([("a", "x" * 32_760)], "more than 32767 bytes"),
        ([(f"name {n}", "x" * 300) for n in range(110)], "more than 32767 bytes"),
    ],
)
def test_a_bad_property_is_named(pairs: list[tuple[str, str]], message: str) -> None:
    rows = Rows("body string, properties map<string,string>")
    with pytest.raises(MessageError, match=f"row 1 .*'properties'.*{message}"):
        rows.all(batch(body=["", ""], properties=pa.array([[("a", None)], pairs], MAP)))


def test_topics_that_are_null_or_unknown_name_their_row() -> None:
    rows = Rows("topic string, body string", topic="")
    with pytest.raises(MessageError, match=r"row 1 .*'topic': is null"):
        rows.all(batch(topic=["T", None], body=["", ""]))
    rows = Rows("topic string, body string", topic="")
    with pytest.raises(MessageError, match=r"row 2 .*'topic': topic 'unknown' does not exist"):
        rows.all(batch(topic=["T", "T", "unknown"], body=[""] * 3))
    with pytest.raises(MessageError, match="is no queue"):
        Rows("body string", topic="none").all(batch(body=[""]))


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        ("", "T", "no column 'body'"),
        ("keys string", "T", "no column 'body'"),
        ("body int", "T", r"column 'body' is int; cast it to string or binary"),
        ("body binary, keys int", "T", "column 'keys' is int"),
        ("body binary, properties map<string,int>", "T", "cast it to map<string,string>"),
        ("body binary, delay string", "T", "cast it to tinyint or"),
        ("body binary, tag string", "T", r"column 'tag' means nothing for a message; did you mean .*tags"),
        ("body binary, queue_offset bigint", "T", "column 'queue_offset' means nothing"),
        ("body binary, key string, keys string", "T", "'key' and 'keys' are the same"),
        ("body binary, topic string", "T", "both a column 'topic' and the option"),
        ("body binary", "", "nothing says to which topic"),
    ],
)
def test_columns_are_checked_before_anything_is_written(schema: str, topic: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SinkColumns(schema_of(schema), topic)


def test_buffers_that_lie_are_noticed() -> None:
    numbers = struct.pack("=4i", 0, 1, 2, 3)
    with pytest.raises(IndexError, match="fewer rows"):
        Column(numbers, None, None, 0, 5)
    with pytest.raises(IndexError, match="fewer rows"):
        Column(numbers, b"abc", None, 1, 3)
    with pytest.raises(IndexError, match="validity"):
        Column(numbers * 10, None, b"\xff", 0, 9)
    encoder = RowEncoder(100)
    encoder.set_topics([(0, 1)], 0, 1000)
    encoder.set_ids(b"p")
    with pytest.raises(IndexError, match="than the batch"):
        encoder.load(5, {"body": Column(numbers, b"abc", None, 0, 3)})
    with pytest.raises(ValueError, match="names and values"):
        encoder.load(
            1, {"body": Column(numbers, b"abc", None, 0, 3), "pairs": Column(numbers, b"", None, 0, 3)}
        )
    encoder.load(1, {"body": Column(struct.pack("=2i", 0, 99), b"abc", None, 0, 1)})
    with pytest.raises(IndexError, match="outside its column"):
        encoder.run(100, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no nameserver"),
        ({"nameserver": "a b"}, "not an address"),
        ({"nameserver": "h", "topics": "x"}, "no option 'topics' for writing; did you mean topic"),
        ({"nameserver": "h", "startingPosition": "x"}, "no option 'startingPosition' for writing"),
        ({"nameserver": "h", "topic": "no such!"}, "invalid topic name"),
        ({"nameserver": "h", "delivery": "maybe"}, "use exactly-once or at-least-once"),
        ({"nameserver": "h", "writeId": "a b"}, "without blanks"),
        ({"nameserver": "h", "batchBytes": "1"}, "from 4096"),
        ({"nameserver": "h", "retryMs": "-1"}, "whole number"),
        ({"nameserver": "h", "broker": " "}, "is empty"),
        ({"nameserver": "h", "delivery": "AT-LEAST-ONCE", "writeId": "x"}, "mean nothing"),
    ],
)
def test_options_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WriteOptions.parse(options)


def test_options_in_any_case_and_those_of_spark() -> None:
    parsed = WriteOptions.parse(
        {
            "NAMESERVER": "h;g:1",
            "Topic": "T",
            "writeid": "job-1",
            "checkpointLocation": "/somewhere",
            "queryName": "q",
            "spark.x": "y",
        }
    )
    assert parsed == WriteOptions(nameserver=("h:9876", "g:1"), topic="T", write_id="job-1")
