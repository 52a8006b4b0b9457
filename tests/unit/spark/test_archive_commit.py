"""A batch is archived once: repeated, cut off at any step, refused where it would put offsets there twice."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from penstock.errors import OptionError, StoreFormatError
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive_commit import commit_batch, sweep
from penstock.spark.pipelines.archive_files import FileSettings, StagedFiles
from penstock.spark.pipelines.archive_names import StagedFile, require_names
from penstock.spark.pipelines.archive_reading import ArchiveSnapshot, Hole, archived_ranges
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.testing import FaultyDisk, PowerLostError
from tests.support.archive_rows import NOON, SCHEMA, Place, batch_of, places, read_plain

QUERY = "11111111-2222-3333-4444-555555555555"


def stage(root: Path, rows: list[Place], folder: str = "task") -> list[StagedFile]:
    files = StagedFiles(root, folder, FileSettings(), SCHEMA)
    files.write(batch_of(rows))
    return files.finish()


def archive(root: Path, rows: list[Place], batch: int, query: str = QUERY, folder: str = "task") -> object:
    return commit_batch(root, stage(root, rows, folder), query, batch)


def offsets(root: Path) -> list[tuple[int, int]]:
    return [(queue, offset) for _, _, queue, offset, _ in read_plain(root)]


def test_batches_add_up_for_plain_readers_and_in_the_manifest(tmp_path: Path) -> None:
    archive(tmp_path, places(0, range(5)) + places(1, range(3)), 0)
    done = archive(tmp_path, places(0, range(5, 9)), 1)
    assert (done.rows, done.files, done.repeated) == (4, 1, False)
    assert offsets(tmp_path) == [(0, at) for at in range(9)] + [(1, at) for at in range(3)]
    assert archived_ranges(tmp_path) == {"orders/broker-a/0": [(0, 8)], "orders/broker-a/1": [(0, 2)]}
    assert not list((tmp_path / "_staging").iterdir())


def test_an_empty_batch_leaves_no_trace(tmp_path: Path) -> None:
    assert commit_batch(tmp_path, [], QUERY, 0).files == 0
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_batch_adds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    archive(tmp_path, places(0, range(5)), 0)
    before = read_plain(tmp_path)
    assert archive(tmp_path, places(0, range(5)), 0, folder="again").repeated
    assert read_plain(tmp_path) == before
    assert not list((tmp_path / "_staging").iterdir())


def test_a_repeated_batch_may_be_cut_into_other_files(tmp_path: Path) -> None:
    """Another number of tasks; and what retention took since is not asked for again."""
    archive(tmp_path, places(0, range(10)), 0)
    before = read_plain(tmp_path)
    staged = stage(tmp_path, places(0, range(2, 6)), "one") + stage(tmp_path, places(0, range(6, 10)), "two")
    assert commit_batch(tmp_path, staged, QUERY, 0).repeated
    assert read_plain(tmp_path) == before


def test_a_checkpoint_older_than_the_archive_is_not_believed(tmp_path: Path) -> None:
    """Its batch 1 is another one: dropping it as a repetition would lose messages."""
    archive(tmp_path, places(0, range(5)), 0)
    archive(tmp_path, places(0, range(5, 9)), 1)
    with pytest.raises(StoreFormatError, match=r"older than the archive.*delete the checkpoint"):
        archive(tmp_path, places(0, range(5, 12)), 1, folder="again")
    assert offsets(tmp_path) == [(0, at) for at in range(9)]


def test_another_query_may_go_on_but_not_begin_again(tmp_path: Path) -> None:
    archive(tmp_path, places(0, range(5)), 0)
    with pytest.raises(StoreFormatError, match="offsets 3 to 4 of orders/broker-a/0 are in"):
        archive(tmp_path, places(0, range(3, 8)), 0, query="other", folder="again")
    archive(tmp_path, places(0, range(5, 8)), 0, query="other")
    assert offsets(tmp_path) == [(0, at) for at in range(8)]


def test_overlaps_within_a_batch_are_refused(tmp_path: Path) -> None:
    staged = stage(tmp_path, places(0, range(5)), "one") + stage(tmp_path, places(0, range(4, 6)), "two")
    with pytest.raises(StoreFormatError, match="offsets 4 to 4"):
        commit_batch(tmp_path, staged, QUERY, 0)


def test_leftovers_are_swept_at_the_start(tmp_path: Path) -> None:
    archive(tmp_path, places(0, range(5)), 0)
    stage(tmp_path, places(0, range(5, 7)), "dead")
    assert sweep(tmp_path) == 1
    assert not list((tmp_path / "_staging").iterdir())
    assert offsets(tmp_path) == [(0, at) for at in range(5)]


def test_topics_with_signs_and_numbers_for_names_are_read_back(tmp_path: Path) -> None:
    for number, topic in enumerate(("%RETRY%billing", "2024", "a|b_c-d")):
        archive(tmp_path, places(0, range(2), topic=topic), number)
    assert {topic for topic, *_ in read_plain(tmp_path)} == {"%RETRY%billing", "2024", "a|b_c-d"}
    assert ArchiveSnapshot.open(tmp_path).topics == ["%RETRY%billing", "2024", "a|b_c-d"]


def test_a_name_that_no_file_system_takes_is_refused_before_anything_is_announced(tmp_path: Path) -> None:
    """Behind the intent it would stop every start after it."""
    archive(tmp_path, places(0, range(5)), 0)
    topic = "|" * 90
    with pytest.raises(OptionError, match=r"topic \|{90} cannot be archived.*--topic"):
        stage(tmp_path, places(0, range(2), topic=topic), "long")
    (good,) = stage(tmp_path, places(0, range(5, 7)))
    long = replace(good, file=replace(good.file, topic=topic))
    with pytest.raises(OptionError, match="255 bytes at most"):
        commit_batch(tmp_path, [long], QUERY, 1)
    assert ParquetTree(tmp_path).manifest.pending() is None
    assert sweep(tmp_path) == 1
    archive(tmp_path, places(0, range(5, 9)), 1)
    assert offsets(tmp_path) == [(0, at) for at in range(9)]


def test_the_longest_names_that_are_possible_are_archived(tmp_path: Path) -> None:
    topics = ["%RETRY%" + "g" * 238, "|" * 83]
    for number, topic in enumerate(topics):
        archive(tmp_path, places(0, range(2), topic=topic), number)
        with pytest.raises(OptionError):
            require_names(topic + "g")
    assert {topic for topic, *_ in read_plain(tmp_path)} == set(topics)


def test_a_directory_without_a_manifest_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="penstock pipeline archive"):
        archived_ranges(tmp_path)


def test_snapshots_can_be_narrowed(tmp_path: Path) -> None:
    archive(tmp_path, places(0, range(5)) + places(0, range(2), topic="payments"), 0)
    snapshot = ArchiveSnapshot.open(tmp_path)
    assert list(snapshot.ranges(["payments"])) == ["payments/broker-a/0"]
    assert snapshot.only(until_ms=snapshot.files[0].min_time - 1).files == ()
    assert len(snapshot.only(["orders"]).files) == 1


def test_holes_are_what_lies_between_two_files_of_a_queue(tmp_path: Path) -> None:
    archive(tmp_path, places(0, [3, 4, 9, 10]) + places(1, range(4)), 0)
    archive(tmp_path, places(0, [12], topic="payments") + places(0, [14], topic="payments"), 1)
    snapshot = ArchiveSnapshot.open(tmp_path)
    assert [str(hole) for hole in snapshot.holes()] == [
        "orders/broker-a/0 5 to 8",
        "payments/broker-a/0 13 to 13",
    ]
    assert snapshot.holes(["orders"]) == [Hole("orders/broker-a/0", 5, 8, 4)]
    # Its messages were stored after the fourth offset's and before the ninth's.
    noon = int(NOON.timestamp() * 1000)
    times = [(None, noon + 4), (None, noon + 5), (noon + 9, None), (noon + 10, None)]
    assert [len(snapshot.holes(["orders"], *time)) for time in times] == [0, 1, 1, 0]


@pytest.mark.fault("F1")
@pytest.mark.fault("F5")
@pytest.mark.invariant("I15")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_real_files_cut_off_at_any_step_are_archived_once(tmp_path: Path, power: bool) -> None:
    """Staged files are written by Arrow and synced for real; the commit runs on the failing disk."""
    first, second = places(0, range(5)), places(0, range(5, 9)) + places(1, range(3))
    outcomes = set()
    # A power loss is tried everywhere; a kill leaves what one of its neighbours leaves.
    for step in range(0, 60, 1 if power else 3):
        root = tmp_path / str(step) / "archive"
        root.mkdir(parents=True)
        archive(root, first, 0)
        staged = stage(root, second, "cut")
        disk = FaultyDisk(root.parent, lose_directory_entries=power)
        disk.stop_after(step)
        try:
            commit_batch(root, staged, QUERY, 1, Runtime(disk=disk))
            done = True
        except PowerLostError:
            done = False
        disk.crash() if power else disk.kill()
        assert len(set(offsets(root))) == len(offsets(root))
        sweep(root)
        outcomes.add(len(offsets(root)))
        assert len(offsets(root)) in (5, 12), step
        archive(root, second, 1, folder="again")
        assert offsets(root) == [(0, at) for at in range(9)] + [(1, at) for at in range(3)], step
        assert archived_ranges(root) == {"orders/broker-a/0": [(0, 8)], "orders/broker-a/1": [(0, 2)]}
        assert ParquetTree(root).load().batches == {QUERY: 1}
        if done:
            break
    assert done
    assert outcomes == {5, 12}
