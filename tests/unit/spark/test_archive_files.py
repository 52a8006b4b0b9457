"""Staged files: where a run of offsets is cut, how large a file gets, and what is in it."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from penstock.errors import OptionError
from penstock.spark.batches import arrow_schema
from penstock.spark.pipelines.archive_files import FileSettings, StagedFiles, cut, file_schema
from penstock.spark.pipelines.archive_names import StagedFile
from penstock.spark.schema import MAY_BE_NULL, PROPERTY_VALUES
from tests.support.archive_rows import NOON, SCHEMA, batch_of, places


def stage(root: Path, *batches: object, **settings: int | str) -> list[StagedFile]:
    files = StagedFiles(root, "task", FileSettings(**settings), SCHEMA)
    for batch in batches:
        files.write(batch)
    return files.finish()


def spans(staged: list[StagedFile]) -> list[tuple[str, str, int, int, int]]:
    return [(s.file.topic, s.file.day, s.file.queue_id, s.file.first, s.file.last) for s in staged]


def test_runs_end_where_queue_topic_day_or_offsets_break() -> None:
    rows = [
        *places(0, range(3)),
        *places(0, range(5, 7)),
        *places(1, range(7, 9)),
        *places(1, range(9, 10), topic="payments"),
        *places(1, range(10, 12), topic="payments", at=NOON + timedelta(days=1)),
    ]
    runs = [(run.topic, run.queue_id, run.first, run.rows.num_rows) for run in cut(batch_of(rows))]
    assert runs == [
        ("orders", 0, 0, 3),
        ("orders", 0, 5, 2),
        ("orders", 1, 7, 2),
        ("payments", 1, 9, 1),
        ("payments", 1, 10, 2),
    ]
    assert list(cut(batch_of([]))) == []


def test_days_are_of_utc_and_change_at_midnight(tmp_path: Path) -> None:
    late = datetime(2025, 1, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    staged = stage(tmp_path, batch_of(places(0, range(3), at=late)))
    assert spans(staged) == [("orders", "2025-01-31", 0, 0, 0), ("orders", "2025-02-01", 0, 1, 2)]
    assert staged[1].file.min_time == int(late.timestamp() * 1000) + 1
    assert staged[1].file.max_time == int(late.timestamp() * 1000) + 2


def test_a_time_before_1970_has_a_day_too(tmp_path: Path) -> None:
    staged = stage(tmp_path, batch_of(places(0, [0], at=datetime(1969, 12, 31, 23, tzinfo=UTC))))
    assert staged[0].file.day == "1969-12-31"


def test_what_a_frame_promises_of_its_columns_changes_no_file(tmp_path: Path) -> None:
    """Files of an archive are alike: neither a reader nor a merge meets two schemas."""
    rows = batch_of(places(0, range(3)))
    columns = rows.schema.names
    made = []
    for name, nullable in (("loose", {*columns, PROPERTY_VALUES}), ("strict", MAY_BE_NULL)):
        schema = arrow_schema(columns, nullable)
        files = StagedFiles(tmp_path / name, "task", FileSettings(), schema)
        files.write(rows.cast(schema))
        (staged,) = files.finish()
        made.append(pq.read_table(tmp_path / name / staged.staged))
    assert made[0].schema == made[1].schema
    assert all(field.nullable for field in made[1].schema)
    assert made[0].to_pylist() == made[1].to_pylist()


def test_batches_of_one_queue_go_to_one_file(tmp_path: Path) -> None:
    staged = stage(tmp_path, batch_of(places(0, range(5))), batch_of(places(0, range(5, 9))))
    assert spans(staged) == [("orders", "2025-01-31", 0, 0, 8)]
    file = staged[0].file
    path = tmp_path / staged[0].staged
    assert (file.rows, file.size) == (9, path.stat().st_size)
    assert path.suffix == ".tmp"
    table = pq.read_table(path)
    assert table.schema.remove_metadata() == file_schema(SCHEMA)
    assert table.column("queue_offset").to_pylist() == list(range(9))
    assert table.column("body").to_pylist() == [b"body %d" % number for number in range(9)]
    assert table.column("properties").to_pylist()[3] == [("number", "3")]


def test_queues_that_take_turns_have_their_own_files(tmp_path: Path) -> None:
    staged = stage(tmp_path, *(batch_of(places(queue, [at])) for at in range(4) for queue in range(3)))
    assert sorted(spans(staged)) == [("orders", "2025-01-31", queue, 0, 3) for queue in range(3)]


def test_more_queues_than_open_files_is_only_more_files(tmp_path: Path) -> None:
    staged = stage(tmp_path, *(batch_of(places(queue, [at])) for at in range(2) for queue in range(20)))
    assert sorted(
        {(queue, at) for _, _, queue, first, last in spans(staged) for at in range(first, last + 1)}
    ) == [(queue, at) for queue in range(20) for at in range(2)]


def test_a_large_file_is_followed_by_another(tmp_path: Path) -> None:
    batches = [batch_of(places(0, range(start, start + 100))) for start in range(0, 1000, 100)]
    staged = stage(tmp_path, *batches, target_bytes=2_000, row_group_bytes=5_000)
    assert len(staged) > 1
    ends = [(file.first, file.last) for file in (part.file for part in staged)]
    assert (ends[0][0], ends[-1][1]) == (0, 999)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ends))


def test_row_groups_hold_many_batches(tmp_path: Path) -> None:
    batches = [batch_of(places(0, range(start, start + 10))) for start in range(0, 100, 10)]
    assert pq.ParquetFile(tmp_path / stage(tmp_path, *batches)[0].staged).num_row_groups == 1


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_every_compression_is_written_and_read(tmp_path: Path, compression: str) -> None:
    staged = stage(tmp_path, batch_of(places(0, range(10))), compression=compression)
    assert pq.read_table(tmp_path / staged[0].staged).num_rows == 10


def test_abandoned_files_leave_nothing(tmp_path: Path) -> None:
    files = StagedFiles(tmp_path, "task", FileSettings(), SCHEMA)
    files.write(batch_of(places(0, range(5))))
    files.abandon()
    assert not list(tmp_path.rglob("*.tmp"))


def test_wrong_settings_and_columns_say_what_to_do() -> None:
    with pytest.raises(OptionError, match="zstd, snappy"):
        FileSettings(compression="brotli9")
    with pytest.raises(OptionError, match="at least 1"):
        FileSettings(target_bytes=0)
    with pytest.raises(OptionError, match="missing: body"):
        file_schema(SCHEMA.remove(SCHEMA.get_field_index("body")))
