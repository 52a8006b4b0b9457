"""Topics to Parquet with a real Spark and a real broker: compared message by message with what was sent."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.errors import OptionError, PenstockError, StoreLockedError
from penstock.spark import archive, archived_ranges, read_archive
from penstock.spark.pipelines.archive_files import FileSettings
from penstock.spark.pipelines.compaction import merge_files
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.spark.progress import Batch
from penstock.spark.session import active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node

Row = tuple[str, int, int, bytes]


def plain_rows(root: Path) -> list[Row]:
    """What pyarrow finds, which knows nothing of manifests."""
    hive = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    names = ["topic", "queue_id", "queue_offset", "body"]
    table = ds.dataset(root, format="parquet", partitioning=hive).to_table(columns=names)
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(start, start + count)]


def send(node: Node, topic: str, messages: list[bytes], queues: int = 1) -> list[Row]:
    """The same number to each queue; what an archive then has to hold."""
    rows: list[Row] = []
    for queue_id in range(queues):
        part = messages[queue_id::queues]
        results = node.send(topic, part, queue_id=queue_id)
        rows += [(topic, queue_id, r.queue_offset, body) for r, body in zip(results, part, strict=True)]
    return sorted(rows)


def run(spark: SparkSession, node: Node, topics: str, to: Path, **settings: Any) -> Any:
    return archive(topics, str(to), spark=spark, nameserver=node.address, once=True, **settings)


@dataclass
class Made:
    """A topic of two queues that was archived in several batches, before its files were merged."""

    topic: str
    root: Path
    rows: list[Row]
    reports: list[Batch]

    def copy(self, to: Path, *, checkpoint: bool = True) -> Path:
        """The archive once more, for a test of its own."""
        skip = shutil.ignore_patterns() if checkpoint else shutil.ignore_patterns("_checkpoint")
        return shutil.copytree(self.root, to / "archive", ignore=skip)


@pytest.fixture(scope="module")
def made(spark: SparkSession, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Made:
    topic, root = node.topic("orders", 2), tmp_path_factory.mktemp("made") / "archive"
    reports: list[Batch] = []
    rows = send(node, topic, bodies(300), 2)
    done = run(spark, node, topic, root, max_rows=100, merge=False, report=reports.append)
    assert (done.rows, done.batches, done.restarts, done.stopped, done.gaps) == (300, 3, 0, False, 0)
    return Made(topic, root, rows, reports)


@pytest.mark.invariant("I15")
def test_every_message_is_there_once_for_every_reader(spark: SparkSession, node: Node, made: Made) -> None:
    assert plain_rows(made.root) == made.rows
    found = read_archive(spark, made.root).select("topic", "queue_id", "queue_offset", "body").collect()
    assert sorted((row[0], row[1], row[2], bytes(row[3])) for row in found) == made.rows
    assert spark.read.parquet(str(made.root)).count() == 300
    assert archived_ranges(made.root) == {f"{made.topic}/test-broker/{queue}": [(0, 149)] for queue in (0, 1)}
    assert len(list(made.root.rglob("*.parquet"))) == 6
    assert not list((made.root / "_staging").iterdir())


def test_each_batch_is_reported_with_what_is_left(node: Node, made: Made) -> None:
    assert [batch.rows for batch in made.reports] == [100, 100, 100]
    assert [batch.lag for batch in made.reports] == [200, 100, 0]
    assert node.admin.describe_group("penstock-archive").lag == 0


def test_a_batch_that_spark_repeats_adds_nothing(
    spark: SparkSession, node: Node, made: Made, tmp_path: Path
) -> None:
    """Its commit was made and Spark's own note of it was lost: the batch comes again under its number."""
    root = made.copy(tmp_path)
    (root / "_checkpoint" / "commits" / "2").unlink()
    (root / "_checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    before = sorted(root.rglob("*.parquet"))
    # Whatever other session was used last in this thread, the archive's own finds its sink.
    with active(spark.newSession()):
        assert run(spark, node, made.topic, root, merge=False).rows == 100
    assert sorted(root.rglob("*.parquet")) == before
    assert plain_rows(root) == made.rows


def test_a_lost_checkpoint_is_rebuilt_from_the_manifest(
    spark: SparkSession, node: Node, made: Made, tmp_path: Path
) -> None:
    """And one that belongs to an earlier time puts nothing there twice."""
    root = made.copy(tmp_path, checkpoint=False)
    expected = sorted(made.rows + send(node, made.topic, bodies(20, 300), 2))
    made.rows.extend(row for row in expected if row not in made.rows)
    made.rows.sort()
    assert run(spark, node, made.topic, root).rows == 20
    assert plain_rows(root) == expected
    old = made.root / "_checkpoint"
    with pytest.raises(PenstockError, match=r"are in .* already"):
        run(spark, node, made.topic, root, checkpoint=str(old), failures_max=0)
    assert plain_rows(root) == expected


def test_small_files_become_large_ones_and_say_the_same(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    root = made.copy(tmp_path)
    before = plain_rows(root)
    done = merge_files(spark, root)
    assert (done.files_before, done.files_after) == (6, 2)
    assert len(list(root.rglob("*.parquet"))) == 2
    assert plain_rows(root) == before
    assert read_archive(spark, root).count() == 300


def test_a_large_batch_becomes_files_of_the_wanted_size(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("orders", 1), tmp_path / "archive"
    large = [os.urandom(2_000) for _ in range(300)]
    expected = send(node, topic, large)
    settings = FileSettings(target_bytes=100_000, row_group_bytes=50_000)
    run(spark, node, topic, root, files=settings, merge=False)
    sizes = [path.stat().st_size for path in root.rglob("*.parquet")]
    assert len(sizes) >= 4
    assert max(sizes) < 250_000
    assert plain_rows(root) == expected


def test_topics_by_pattern_and_what_comes_later(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    root, one = tmp_path / "archive", node.topic("many-a", 1)
    expected = send(node, one, bodies(10))
    run(spark, node, "", root, pattern="many-.*")
    assert plain_rows(root) == expected
    two = node.topic("many-b", 2)
    expected = sorted(expected + send(node, two, bodies(20), 2) + send(node, one, bodies(5, 10)))
    assert run(spark, node, "", root, pattern="many-.*").rows == 25
    assert plain_rows(root) == expected
    only = read_archive(spark, root, topics=[two], columns=["queue_offset", "topic"])
    assert only.columns == ["queue_offset", "topic"]
    assert only.count() == 20


def test_all_columns_come_back_as_they_were_read(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    topic, root = node.topic("columns", 1), tmp_path / "archive"
    node.send(topic, [{"body": b"\xff\x00", "keys": "k1 k2", "tag": "red", "properties": {"a": "ü"}}, b""])
    run(spark, node, topic, root)
    live = spark.read.format("penstock").option("nameserver", node.address).option("topic", topic).load()
    archived = read_archive(spark, root)
    # Spark lets every column of a file be null, whatever the file says.
    assert archived.schema.simpleString() == live.schema.simpleString()
    assert sorted(map(str, archived.collect())) == sorted(map(str, live.collect()))


def test_a_store_directory_is_archived_and_goes_on(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    topic, root = node.topic("offline", 2), tmp_path / "archive"
    expected = send(node, topic, bodies(50), 2)
    settings = {"spark": spark, "store": str(node.directory), "max_rows": 20}
    assert archive(topic, str(root), **settings).rows == 50
    assert plain_rows(root) == expected
    assert set(archived_ranges(root)) == {f"{topic}//0", f"{topic}//1"}
    expected = sorted(expected + send(node, topic, bodies(10, 50), 2))
    assert archive(topic, str(root), **settings).rows == 10
    assert plain_rows(root) == expected
    assert archive(topic, str(root), **settings).rows == 0


def test_a_store_directory_is_archived_while_another_session_is_active(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    """Spark looks for Python sinks in the active session of the thread, not in that of the rows."""
    topic = node.topic("offline", 1)
    send(node, topic, bodies(5), 1)
    with active(spark.newSession()):
        done = archive(topic, str(tmp_path / "archive"), spark=spark, store=str(node.directory))
    assert done.rows == 5


def test_one_archiver_in_a_directory(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    lock = ParquetTree(tmp_path / "archive").own("archive.lock", "archiving to")
    with pytest.raises(StoreLockedError, match="archiving to"):
        run(spark, node, "orders", tmp_path / "archive")
    lock.release()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"topics": ""}, "either topics or a pattern"),
        ({"to": ""}, "no directory"),
        ({"on_gap": "ignore"}, "fail, report or skip"),
        ({"every_s": -1}, "interval"),
        ({"store": "x", "pattern": "y"}, "no pattern"),
    ],
)
def test_wrong_settings_are_told(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    given = {"topics": "t", "to": str(tmp_path / "a"), "nameserver": "127.0.0.1:1", "once": True} | changes
    with pytest.raises(OptionError, match=said):
        archive(given.pop("topics"), given.pop("to"), spark=spark, **given)
