"""An archive that starts while its broker is away, and one whose first batch under a new checkpoint was cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark import archive
from penstock.spark.pipelines import archive as archiving
from tests.spark.retention import ExpiringNode, expiring_node
from tests.spark.test_archive import bodies, plain_rows, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def leaving(spark: SparkSession, tmp_path: Path) -> Iterator[ExpiringNode]:
    """A broker that goes and comes back."""
    with expiring_node(tmp_path / "node") as node:
        yield node


def leave(node: ExpiringNode) -> None:
    node.thread.run(node.embedded.broker.stop())


def run(spark: SparkSession, node: ExpiringNode, topic: str, to: Path, **settings: Any) -> Any:
    return archive(topic, str(to), spark=spark, nameserver=node.address, once=True, merge=False, **settings)


def test_with_its_checkpoint_it_asks_nobody_where_to_begin(
    spark: SparkSession, leaving: ExpiringNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, root = leaving.topic("orders", 1), tmp_path / "archive"
    rows = send(leaving, topic, bodies(10))
    run(spark, leaving, topic, root)
    rows += send(leaving, topic, bodies(5, 10))
    read = archiving.messages_reader

    def back(*args: Any, **options: Any) -> Any:
        """By now it knows where it begins; the query itself waits for brokers."""
        leaving.restart()
        return read(*args, **options)

    monkeypatch.setattr(archiving, "messages_reader", back)
    leave(leaving)
    done = run(spark, leaving, topic, root)
    assert (done.rows, done.restarts) == (5, 0)
    assert plain_rows(root) == rows


def test_without_it_the_start_is_tried_again(
    spark: SparkSession, leaving: ExpiringNode, tmp_path: Path
) -> None:
    topic, root = leaving.topic("orders", 1), tmp_path / "archive"
    rows = send(leaving, topic, bodies(10))
    run(spark, leaving, topic, root)
    rows += send(leaving, topic, bodies(5, 10))
    shutil.rmtree(root / "_checkpoint")
    told: list[str] = []

    def back(_: str, reason: str, wait_s: float) -> None:
        told.append(reason)
        leaving.restart()

    leave(leaving)
    done = run(spark, leaving, topic, root, on_failure=back)
    assert (done.rows, done.restarts, len(told)) == (5, 1, 1)
    assert topic in told[0]
    assert plain_rows(root) == rows


def test_a_first_batch_that_was_cut_off_begins_after_what_is_archived(
    spark: SparkSession, leaving: ExpiringNode, tmp_path: Path
) -> None:
    """Its checkpoint has offsets, the end of the batch, and Spark asks once more where it begins."""
    topic, root = leaving.topic("orders", 1), tmp_path / "archive"
    rows = send(leaving, topic, bodies(10))
    run(spark, leaving, topic, root)
    shutil.rmtree(root / "_checkpoint")
    before = shutil.copytree(root, tmp_path / "before")
    rows += send(leaving, topic, bodies(5, 10))
    run(spark, leaving, topic, root)
    shutil.copytree(root / "_checkpoint", before / "_checkpoint", ignore=shutil.ignore_patterns("commits"))
    assert run(spark, leaving, topic, before, failures_max=0).rows == 5
    assert plain_rows(before) == rows
