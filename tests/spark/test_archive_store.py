"""Archives of a store directory, with a real Spark and real files: what is refused, and what is told of gaps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import GapError, OptionError, StoreFormatError
from penstock.message import Message
from penstock.spark import archive, archived_ranges
from penstock.spark.gaps import read_gaps
from penstock.store import MessageStore, StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = StoreOptions(
    segment_size_bytes=16 << 10,
    queue_file_entries=50,
    index_enabled=False,
    max_message_size_bytes=8 << 10,
    file_reserved_hours=0,
    disk_max_used_percent=100,
    disk_clean_forcibly_percent=100,
    disk_refuse_writes_percent=100,
)


class Directory:
    """A store of some topics, each with one queue; closed whenever it is not written to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, count: int, *topics: str) -> None:
        with MessageStore.open(self.path, OPTIONS, background=False) as store:
            for number in range(count):
                for topic in topics:
                    store.append(Message.of(topic, b"message %d " % number + b"x" * 200))

    def expire(self, topic: str) -> int:
        """Delete every segment but the one in use; the first offset that is left."""
        with MessageStore.open(self.path, OPTIONS, background=False) as store:
            store.flush()
            store.keeper.request_clean()
            while store.keeper.clean():
                pass
            return store.min_offset(topic, 0)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(tmp_path / "store")
    made.add(20, "orders", "payments")
    return made


def run(spark: SparkSession, directory: Directory, topics: str = "", **settings: Any) -> Any:
    root = directory.path.parent / "archive"
    return archive(topics, str(root), spark=spark, store=str(directory.path), merge=False, **settings)


def ranges(directory: Directory) -> dict[str, list[tuple[int, int]]]:
    return archived_ranges(directory.path.parent / "archive")


def test_what_retention_took_before_it_was_archived_is_a_gap(
    spark: SparkSession, directory: Directory, tmp_path: Path
) -> None:
    assert run(spark, directory, "orders").rows == 20
    directory.add(150, "orders")
    first = directory.expire("orders")
    assert 20 < first < 170

    with pytest.raises(GapError, match=f"orders, .* offsets 20 to {first - 1}: deleted"):
        run(spark, directory, "orders", on_gap="fail")
    assert ranges(directory) == {"orders//0": [(0, 19)]}
    # Batches of a few rows: the gap is a row all the same, not one for each of them.
    done = run(spark, directory, "orders", max_rows=100)
    assert (done.rows, done.gaps) == (170 - first, 1)
    assert ranges(directory) == {"orders//0": [(0, 19), (first, 169)]}
    (gap,) = read_gaps(str(tmp_path / "archive" / "_gaps"))
    assert (gap.topic, gap.queue_id, gap.first_offset, gap.last_offset) == ("orders", 0, 20, first - 1)
    assert gap.reason.startswith("deleted")
    # What was gone before a queue was archived for the first time is none.
    assert run(spark, directory, "payments").gaps == 1


def test_a_gap_may_be_skipped(spark: SparkSession, directory: Directory) -> None:
    run(spark, directory, "orders")
    directory.add(150, "orders")
    first = directory.expire("orders")
    done = run(spark, directory, "orders", on_gap="skip")
    assert (done.rows, done.gaps) == (170 - first, 0)


def test_queues_that_are_not_archived_begin_where_they_are_told_to(
    spark: SparkSession, directory: Directory
) -> None:
    start = '{"orders//0": 15}'
    assert run(spark, directory, "orders", start=start).rows == 5
    directory.add(1, "orders")
    assert run(spark, directory, start=start).rows == 21
    assert ranges(directory) == {"orders//0": [(15, 20)], "payments//0": [(0, 19)]}


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("nonsense", "start is 'nonsense'"),
        ("latest", "cannot be archived from latest"),
        ('{"orders//0": "latest"}', "cannot be archived from latest"),
        ('{"orders//0": 21}', "start of orders//0 is 21, and the queue ends at 20"),
        ('{"orders//7": 1}', "names queues that are not read: orders//7"),
    ],
)
def test_a_start_that_means_nothing_is_refused(
    spark: SparkSession, directory: Directory, start: str, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        run(spark, directory, start=start)


def test_a_topic_that_is_not_there_is_told_with_names_like_it(
    spark: SparkSession, directory: Directory
) -> None:
    with pytest.raises(OptionError, match="has no topic 'ordres'; did you mean orders"):
        run(spark, directory, "payments,ordres")
    assert ranges(directory) == {}


def test_a_directory_that_is_behind_the_archive_is_refused_by_the_name_of_the_queue(
    spark: SparkSession, directory: Directory, tmp_path: Path
) -> None:
    older = shutil.copytree(directory.path, tmp_path / "older")
    directory.add(5, "orders")
    run(spark, directory, "orders")
    with pytest.raises(StoreFormatError, match=r"orders//0 ends at 20 in .*, and at 25 in the archive"):
        run(spark, Directory(older))
    assert ranges(directory) == {"orders//0": [(0, 24)]}
    assert run(spark, Directory(older), "payments").rows == 20, "the others can go on"


def test_names_of_the_directory_are_taken_as_they_are(spark: SparkSession, directory: Directory) -> None:
    """A retry topic has the name of its group, and RocketMQ's groups may have a plus in it."""
    directory.add(3, "%RETRY%a+b", "%RETRY%aab")
    assert run(spark, directory, "%RETRY%a+b").rows == 3
    assert ranges(directory) == {"%RETRY%a+b//0": [(0, 2)]}
    assert run(spark, directory).rows == 43, "and all topics"
