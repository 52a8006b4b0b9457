"""Gaps: refused, reported or skipped."""

import json
import logging

import pytest

from penstock.client.scan_results import QueueId
from penstock.errors import GapError, OptionError
from penstock.spark.gaps import Gaps, Reason, missing_offsets, read_gaps
from penstock.spark.options import OnGap

pytest.importorskip("pyarrow")
QUEUE = QueueId("orders", "broker-a", 3)


def test_fail_names_everything():
    with pytest.raises(GapError) as caught:
        Gaps(OnGap.FAIL).found(QUEUE, 5, 9, Reason.DELETED, "the queue begins at 10", where="planning")
    text = str(caught.value)
    for part in (
        "5 messages",
        "orders",
        "broker-a",
        "queue 3",
        "5 to 9",
        "begins at 10",
        "keep messages longer",
        "onGap",
    ):
        assert part in text


def test_skip_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        Gaps(OnGap.SKIP).found(QUEUE, 5, 5, Reason.DAMAGED, "bad", where="reading")
    assert "1 message of topic orders" in caplog.text


def test_a_report_is_a_row_and_repeating_it_changes_nothing(tmp_path):
    gaps = Gaps(OnGap.REPORT, str(tmp_path / "gaps"))
    assert read_gaps(gaps.table) == []
    gaps.found(QUEUE, 5, 9, Reason.DELETED, "the queue begins at 10", where="planning")
    (first,) = read_gaps(gaps.table)
    assert (first.topic, first.broker, first.queue_id) == ("orders", "broker-a", 3)
    assert (first.first_offset, first.last_offset, first.rows) == (5, 9, 5)
    assert (first.reason, first.where) == ("deleted: the queue begins at 10", "planning")
    gaps.found(QUEUE, 5, 9, Reason.DELETED, "the queue begins at 10", where="reading")
    assert read_gaps(gaps.table) == [first]
    gaps.found(QUEUE, 5, 7, Reason.DELETED, where="reading")
    assert read_gaps(gaps.table) == [first], "less of a gap that is known"
    gaps.found(QUEUE, 5, 12, Reason.DELETED, "the queue begins at 13", where="planning")
    (longer,) = read_gaps(gaps.table)
    assert longer.last_offset == 12, "retention went on before the batch was run again"
    gaps.found(QUEUE, 20, 20, Reason.DAMAGED, where="reading")
    assert len(read_gaps(gaps.table)) == 2


def test_queues_with_long_names_have_rows_of_their_own(tmp_path):
    gaps = Gaps(OnGap.REPORT, str(tmp_path))
    topics = ["%RETRY%" + "g" * 248, "%RETRY%" + "g" * 247 + "h", "|" * 127]
    for _ in range(2):
        for topic in topics:
            gaps.found(QueueId(topic, "b" * 100, 7), 2**62, 2**62, Reason.DELETED, where="reading")
    assert sorted(gap.topic for gap in read_gaps(gaps.table)) == sorted(topics)


def test_rows_are_files_that_spark_reads(tmp_path):
    Gaps(OnGap.REPORT, str(tmp_path)).found(QueueId("%DLQ%g", "", 0), 1, 2, Reason.MISSING, where="reading")
    (file,) = tmp_path.iterdir()
    assert file.name == "gap-%25DLQ%25g--0-00000000000000000001-missing.json"
    assert set(json.loads(file.read_text())) == {
        "topic", "broker", "queue_id", "first_offset", "last_offset", "reason", "found_at", "where",
    }  # fmt: skip


def test_a_uri_is_a_directory_too(tmp_path):
    Gaps(OnGap.REPORT, tmp_path.as_uri()).found(QUEUE, 1, 2, Reason.LOST, where="reading")
    assert [gap.rows for gap in read_gaps(tmp_path.as_uri())] == [2]
    assert len(read_gaps(str(tmp_path))) == 1


def test_a_table_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GapError, match="cannot be written"):
        Gaps(OnGap.REPORT, str(tmp_path / "file")).found(QUEUE, 1, 2, Reason.LOST, where="reading")
    with pytest.raises(OptionError, match="cannot be opened"):
        Gaps(OnGap.REPORT, "nowhere://x").found(QUEUE, 1, 2, Reason.LOST, where="reading")
    (tmp_path / "gap-x.json").write_text("[]")
    with pytest.raises(GapError, match="no row of a gap table"):
        read_gaps(str(tmp_path))


def test_overlapping_rows_count_once(tmp_path):
    gaps = Gaps(OnGap.REPORT, str(tmp_path))
    for first, last in ((0, 4), (5, 9), (3, 12), (20, 20)):
        gaps.found(QUEUE, first, last, Reason.DELETED, where="reading")
    assert missing_offsets(read_gaps(gaps.table)) == {QUEUE: [(0, 13), (20, 21)]}
