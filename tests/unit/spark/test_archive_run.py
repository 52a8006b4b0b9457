"""A run of the archiver, without Spark: what it refuses at the start, and what it does about merges that are due."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from penstock.errors import OptionError
from penstock.message import Message
from penstock.spark.pipelines.archive import MERGE_LEAST, ArchiveJob, _Archiving
from penstock.spark.pipelines.compaction import MERGE_LOCK
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.spark.progress import Batch, ignore
from penstock.spark.running import Stop
from penstock.store import MessageStore, StoreOptions
from tests.support.archive_rows import read_plain
from tests.unit.spark.test_archive_merge import Inline, archive_of

LONG = "|" * 90


class Session(Inline):
    """Takes the sink, and runs the tasks of merges."""

    @property
    def dataSource(self) -> "Session":
        return self

    def register(self, source: object) -> None:
        pass


def test_an_archiver_goes_on_while_somebody_else_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "archive"
    archive_of(root, MERGE_LEAST)
    before, files = read_plain(root), 2 * MERGE_LEAST
    job = ArchiveJob(str(root), store="store", merge_every_s=0.001)
    archiving = _Archiving(job, Session(), Stop(), ignore, None)
    batch = Batch("", 0, 1, 1.0, 1.0, 0)

    def a_batch() -> tuple[int, int, float, int]:
        archiving._merge_due_ms = 0
        archiving._batch_done(batch)
        return 1, 1, 1.0, 0

    monkeypatch.setattr(archiving, "_store", a_batch)
    lock = ParquetTree(root).own(MERGE_LOCK, "merging files in")
    with caplog.at_level(logging.WARNING):
        done = archiving.run()
    assert (done.batches, done.files, done.merged.files_before) == (1, files, 0)
    assert caplog.text.count("another process is merging files in") == 2, "after the batch and at the end"
    lock.release()
    done = archiving.run()
    assert (done.files, done.merged.files_before) == (2, files)
    assert read_plain(root) == before


def test_topics_whose_names_are_too_long_are_refused_at_the_start(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreOptions(index_enabled=False), background=False) as store:
        for topic in ("orders", LONG):
            store.append(Message(topic, b"x"))
    for job in (
        ArchiveJob(str(tmp_path / "archive"), topics=("orders", LONG)),
        ArchiveJob(str(tmp_path / "archive"), store=str(tmp_path / "store")),
    ):
        with pytest.raises(OptionError, match=r"topic \|{90} cannot be archived"):
            _Archiving(job, Session(), Stop(), ignore, None).run()
    assert not list(tmp_path.rglob("*.intent"))
