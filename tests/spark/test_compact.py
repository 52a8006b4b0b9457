"""The latest message of each key, kept as a table: up to date after every run, each key once at every moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from penstock.errors import OptionError
from penstock.spark import compact
from penstock.spark.pipelines.latest_by_key import LatestTable, read_latest
from penstock.spark.pipelines.parquet_tree import ParquetTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node


def message(key: str, body: bytes) -> dict[str, Any]:
    return {"body": body, "keys": key}


def plain_table(root: Path) -> dict[str, bytes]:
    """What pyarrow finds; a key that is there twice is a failure."""
    if not list(root.rglob("*.parquet")):
        return {}
    table = ds.dataset(root, format="parquet", partitioning="hive").to_table(columns=["key", "body"])
    keys = table.column("key").to_pylist()
    assert len(keys) == len(set(keys))
    return dict(zip(keys, table.column("body").to_pylist(), strict=True))


def run(spark: SparkSession, node: Node, topic: str, root: Path, **settings: Any) -> Any:
    return compact(topic, str(root), spark=spark, nameserver=node.address, once=True, **settings)


def test_the_latest_message_of_each_key_and_tombstones(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("prices", 3), tmp_path / "latest"
    for round_ in range(3):
        some = [message(f"k{number}", b"%d of %d" % (round_, number)) for number in range(20)]
        node.send(topic, some, queue_id=round_)
    node.send(topic, [b"without a key"])
    done = run(spark, node, topic, root, buckets=4)
    expected = {f"k{number}": b"2 of %d" % number for number in range(20)}
    assert (done.rows, done.keys) == (61, 20)
    assert plain_table(root) == expected

    node.send(topic, [message("k3", b"new"), message("k4", b""), message("k20", b"first")], queue_id=0)
    assert run(spark, node, topic, root).keys == 20
    expected = expected | {"k3": b"new", "k20": b"first"}
    del expected["k4"]
    assert plain_table(root) == expected
    assert {row.key: bytes(row.body) for row in read_latest(spark, root).collect()} == expected

    assert run(spark, node, topic, root).rows == 0
    node.send(topic, [message("k4", b"back again")], queue_id=2)
    run(spark, node, topic, root)
    assert plain_table(root) == expected | {"k4": b"back again"}
    assert not list(ParquetTree(root).resolve("@beside/compacting").iterdir())


def test_a_batch_that_is_done_twice_changes_nothing(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    topic, root = node.topic("prices", 1), tmp_path / "latest"
    node.send(topic, [message("a", b"1"), message("b", b"1"), message("a", b"2"), message("b", b"")])
    run(spark, node, topic, root)
    assert plain_table(root) == {"a": b"2"}
    # The checkpoint is gone: everything is read once more.
    assert run(spark, node, topic, root, checkpoint=str(tmp_path / "other")).rows == 4
    assert plain_table(root) == {"a": b"2"}


def test_an_older_message_that_comes_late_brings_nothing_back(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("prices", 2), tmp_path / "latest"
    node.send(topic, [message("a", b"old"), message("b", b"old")], queue_id=0)
    node.send(topic, [message("a", b""), message("b", b"new")], queue_id=1)
    read = spark.read.format("penstock").option("nameserver", node.address).option("topic", topic).load()
    table = LatestTable(root, "keys")
    table.prepare()
    table.take(read.where("queue_id = 1"), 0)
    assert plain_table(root) == {"b": b"new"}
    table.take(read.where("queue_id = 0"), 1)
    assert plain_table(root) == {"b": b"new"}


def test_the_key_is_an_expression(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    topic = node.topic("prices", 1)
    node.send(topic, [b'{"id": "x", "v": 1}', b'{"id": "x", "v": 2}', b'{"id": "y", "v": 3}', b"no JSON"])
    done = run(spark, node, topic, tmp_path / "latest", key="get_json_object(body_text, '$.id')")
    assert done.keys == 2
    assert plain_table(tmp_path / "latest")["x"] == b'{"id": "x", "v": 2}'


def test_wrong_settings_are_told(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    topic = node.topic("prices", 1)
    node.send(topic, [message("a", b"1")])
    with pytest.raises(OptionError, match="one topic"):
        run(spark, node, "a,b", tmp_path / "x")
    with pytest.raises(OptionError, match="1 to 4096"):
        run(spark, node, topic, tmp_path / "x", buckets=5000)
    run(spark, node, topic, tmp_path / "x", buckets=2)
    with pytest.raises(OptionError, match="has 2 buckets, not 3"):
        run(spark, node, topic, tmp_path / "x", buckets=3)
    with pytest.raises(OptionError, match="no table of latest"):
        read_latest(spark, tmp_path / "nothing")
