"""Pipelines from the command line, with the session of the tests: what they print, and what they did."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click.testing
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.message import Message
from penstock.spark import archive, archived_ranges
from penstock.spark.gaps import read_gaps
from penstock.spark.pipelines.archive import STORE_BATCH_ROWS, ArchiveJob, rows_of_a_batch
from penstock.store import MessageStore
from penstock.testing.embedded import STORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node

Run = Callable[..., click.testing.Result]


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`penstock ...`; what it prints with --json comes after it has ended well."""

    @contextmanager
    def session(app: str, master: str | None, conf: Any, log: Path | None = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline_session, "spark_session", session)

    def run(*arguments: object) -> click.testing.Result:
        return click.testing.CliRunner().invoke(root, [str(part) for part in arguments], prog_name="penstock")

    return run


def told(done: click.testing.Result) -> list[dict[str, Any]]:
    """The objects that a command with --json printed."""
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def table_of(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """What pyarrow finds, in the order of the first columns."""
    hive = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    table = ds.dataset(path, format="parquet", partitioning=hive).to_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def files_in(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


# -- compact -----------------------------------------------------------------------------------------------------


def test_compact_keeps_the_latest_of_each_key_and_goes_on(node: Node, command: Run, tmp_path: Path) -> None:
    topic, to, kept = node.topic("prices", 2), tmp_path / "latest", tmp_path / "check"
    bodies = ['{"id": "a", "v": 1}', '{"id": "b", "v": 1}', '{"id": "a", "v": 2}', "no JSON"]
    node.send(topic, bodies, queue_id=0)
    line = ["pipeline", "compact", "--topic", topic, "--to", to, "--once", "--checkpoint", kept]
    line += ["--key", "get_json_object(body_text, '$.id')", "--nameserver", node.address, "--group", "prices"]
    *batches, done = told(command(*line, "--buckets", 3, "--json"))
    assert (done["event"], done["rows"], done["keys"], done["stopped"]) == ("done", 4, 2, False)
    assert sum(batch["rows"] for batch in batches) == 4
    assert table_of(to, "key", "body") == [("a", bodies[2].encode()), ("b", bodies[1].encode())]
    assert {path.name for path in to.glob("bucket=*")} <= {f"bucket={number}" for number in range(3)}
    assert (kept / "offsets").is_dir()
    assert not (to / "_checkpoint").exists()
    node.send(topic, ['{"id": "b", "v": 2}', '{"id": "c", "v": 1}'], queue_id=1)
    again = command(*line)
    assert again.stdout == f"2 messages in 1 batch; 3 keys in {to}\n"
    assert "+2 rows" in again.stderr
    assert [body[-2:] for _, body in table_of(to, "key", "body")] == [b"2}", b"2}", b"1}"]
    assert node.admin.describe_group("prices").lag == 0


def test_compact_begins_where_it_is_told(node: Node, command: Run, tmp_path: Path) -> None:
    topic, to = node.topic("prices", 1), tmp_path / "latest"
    node.send(topic, [{"body": f"{n}", "keys": f"k{n}"} for n in range(5)], queue_id=0)
    line = ["pipeline", "compact", "--topic", topic, "--to", to, "--once", "--nameserver", node.address]
    start = json.dumps({f"{topic}/test-broker/0": 3})
    assert told(command(*line, "--start", start, "--max-bytes", "1M", "--json"))[-1]["keys"] == 2
    assert table_of(to, "key", "body") == [("k3", b"3"), ("k4", b"4")]
    refused = command(*line, "--buckets", 5)
    assert (refused.exit_code, "has 16 buckets, not 5" in refused.output) == (2, True)


# -- archive -----------------------------------------------------------------------------------------------------


def test_archive_with_its_own_start_checkpoint_and_size_of_files(
    node: Node, command: Run, tmp_path: Path
) -> None:
    topic, to, kept = node.topic("large", 1), tmp_path / "archive", tmp_path / "check"
    node.send(topic, [os.urandom(1_000) for _ in range(300)], queue_id=0)
    line = ["pipeline", "archive", "--topic", topic, "--to", to, "--once", "--checkpoint", kept]
    line += [
        "--start",
        json.dumps({f"{topic}/test-broker/0": 50}),
        "--file-size",
        "64K",
        "--compression",
        "none",
    ]
    line += ["--no-merge", "--nameserver", node.address]
    done = told(command(*line, "--json"))[-1]
    assert (done["event"], done["rows"], done["gaps"], done["files"]) == ("done", 250, 0, len(files_in(to)))
    # 250 messages of 1,000 bytes, in files that are closed at 64 KiB.
    sizes = [path.stat().st_size for path in files_in(to)]
    assert 3 <= len(sizes) <= 5
    assert all(60_000 < size < 150_000 for size in sizes[:-1])
    assert archived_ranges(to) == {f"{topic}/test-broker/0": [(50, 299)]}
    assert (kept / "offsets").is_dir()
    assert not (to / "_checkpoint").exists()
    again = command(*line)
    assert again.stdout.startswith("0 messages in ")
    assert again.exit_code == 0


def test_merge_only_merges_what_is_there_and_reads_no_topic(
    spark: SparkSession, node: Node, command: Run, tmp_path: Path
) -> None:
    topic, to = node.topic("small", 1), tmp_path / "archive"
    node.send(topic, [b"%d" % number for number in range(30)], queue_id=0)
    archive(topic, str(to), spark=spark, nameserver=node.address, once=True, max_rows=10, merge=False)
    node.send(topic, [b"not archived"], queue_id=0)
    before = table_of(to, "queue_offset", "body")
    assert (len(before), len(files_in(to))) == (30, 3)
    line = ["pipeline", "archive", "--to", to, "--merge-only"]
    (done,) = told(command(*line, "--json"))
    assert (done["event"], done["files_before"], done["files_after"], done["rows"]) == ("merged", 3, 1, 30)
    assert done["bytes_after"] == files_in(to)[0].stat().st_size
    assert (table_of(to, "queue_offset", "body"), len(files_in(to))) == (before, 1)
    assert command(*line).stdout == "there is nothing to merge\n"
    nowhere = command("pipeline", "archive", "--to", tmp_path / "nowhere", "--merge-only")
    assert (nowhere.exit_code, "is no archive" in nowhere.output) == (2, True)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store directory: 41 messages of about a kilobyte, the last of them damaged, and one of another topic."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    with MessageStore.open(path, STORE, background=False) as store:
        for number in range(40):
            store.append(Message.of("orders", b"%03d" % number * 300), 0)
        store.append(Message.of("orders", b"DAMAGE-ME" * 100), 0)
        store.append(Message.of("payments", b"paid"), 3)
    segment = next((path / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"DAMAGE-ME", b"DAMAGE-xE"))
    return path


def test_a_store_directory_comes_in_batches_of_so_many_bytes_and_only_what_was_written_counts(
    command: Run, damaged: Path, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    line = ["pipeline", "archive", "--store", damaged, "--to", to, "--max-bytes", "10K", "--no-merge"]
    *batches, done = told(command(*line, "--json"))
    assert (done["rows"], done["gaps"], done["batches"]) == (41, 1, len(batches))
    # A record is about a kilobyte: 10 in a batch, and one of the small topic.
    assert 4 <= len(batches) <= 5
    assert max(batch["rows"] for batch in batches) <= 11
    assert sum(batch["rows"] for batch in batches) == 41
    assert (batches[0]["lag"] > 0, batches[-1]["lag"]) == (True, 0)
    assert archived_ranges(to) == {"orders//0": [(0, 39)], "payments//3": [(0, 0)]}
    bodies = [b"%03d" % number * 300 for number in range(40)]
    assert [body for _, _, body in table_of(to, "topic", "queue_offset", "body")] == [*bodies, b"paid"]
    (gap,) = read_gaps(str(to / "_gaps"))
    assert (gap.topic, gap.first_offset, gap.last_offset) == ("orders", 40, 40)
    # The damaged one is looked for again, and is no message.
    again = command(*line)
    assert again.stdout.startswith("0 messages in ")
    assert f"1 gaps are in {to}/_gaps" in again.stdout


def test_what_becomes_of_a_gap_is_said_with_on_gap(command: Run, damaged: Path, tmp_path: Path) -> None:
    line = ["pipeline", "archive", "--store", damaged, "--topic", "orders", "--json"]
    (batch, done) = told(command(*line, "--to", tmp_path / "skipped", "--on-gap", "skip"))
    assert (batch["rows"], done["rows"], done["gaps"]) == (40, 40, 0)
    assert not (tmp_path / "skipped" / "_gaps").exists()
    assert archived_ranges(tmp_path / "skipped") == {"orders//0": [(0, 39)]}
    failed = command(*line, "--to", tmp_path / "failed", "--on-gap", "fail")
    assert failed.exit_code != 0
    assert files_in(tmp_path / "failed") == []


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ({"max_bytes": 10_000}, 100),
        ({"max_bytes": 10_000, "max_rows": 7}, 7),
        ({"max_bytes": 10_000, "max_rows": 700}, 100),
        ({"max_bytes": 1}, 1),
        ({"max_bytes": 0, "max_rows": 7}, 7),
        ({"max_bytes": 0}, STORE_BATCH_ROWS),
    ],
)
def test_the_smaller_limit_of_a_batch_holds(limits: dict[str, int], rows: int) -> None:
    assert rows_of_a_batch(ArchiveJob("a", store="s", **limits), 100) == rows


# -- sql ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(spark: SparkSession, node: Node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A topic of six messages, four of them archived."""
    topic, to = node.topic("half", 1), tmp_path_factory.mktemp("sql") / "archive"
    node.send(topic, [{"body": f"{n}, {n}", "tag": "AB"[n % 2]} for n in range(4)], queue_id=0)
    archive(topic, str(to), spark=spark, nameserver=node.address, once=True)
    node.send(topic, [{"body": "4, 4", "tag": "A"}, {"body": b"\xff\x00"}], queue_id=0)
    return {"topic": topic, "archive": str(to), "nameserver": node.address}


@pytest.fixture
def query(command: Run, half: dict[str, str]) -> Run:
    """`penstock sql` over archive and log; T is the topic."""

    def run(text: str, *more: object) -> click.testing.Result:
        given = ["--archive", half["archive"], "--nameserver", half["nameserver"]]
        return command("sql", text.replace("T", f"`{half['topic']}`"), *given, *more)

    return run


def test_sql_prints_json_with_one_object_in_a_line(query: Run) -> None:
    rows = told(query("select queue_offset, tags, body from T where queue_offset > 2 order by 1", "--json"))
    assert rows == [
        {"queue_offset": 3, "tags": "B", "body": "3, 3"},
        {"queue_offset": 4, "tags": "A", "body": "4, 4"},
        {"queue_offset": 5, "tags": None, "body": {"base64": "/wA="}},
    ]


def test_sql_prints_csv_with_names_and_quotes(query: Run) -> None:
    done = query("select queue_offset n, tags, body from T order by n", "--csv")
    assert done.exit_code == 0, done.output
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["n", "tags", "body"],
        *([str(n), "AB"[n % 2], f"{n}, {n}"] for n in range(5)),
        ["5", "", "/wA="],
    ]


def test_sql_prints_so_many_rows_and_says_that_there_are_more(query: Run) -> None:
    cut = query("select queue_offset from T order by queue_offset", "--limit", 2)
    assert [line.strip() for line in cut.stdout.splitlines() if line.strip().isdigit()] == ["0", "1"]
    assert "the first 2 rows" in cut.stderr
    whole = query("select queue_offset from T order by queue_offset", "--limit", 6)
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert len(told(query("select queue_offset from T", "--limit", 3, "--json"))) == 3


def test_sql_of_the_archive_alone_knows_nothing_later(query: Run) -> None:
    text = "select count(*) c, max(queue_offset) m from T"
    assert told(query(text, "--archive-only", "--json")) == [{"c": 4, "m": 3}]
    assert told(query(text, "--json")) == [{"c": 6, "m": 5}]


def test_sql_as_of_a_time_shows_what_was_stored_until_then(query: Run) -> None:
    times = [row["t"] for row in told(query("select unix_millis(store_time) t from T order by t", "--json"))]
    for moment in (times[0] - 1, times[3], times[5]):
        (row,) = told(query("select count(*) c from T", "--as-of", moment, "--json"))
        assert row["c"] == sum(time <= moment for time in times)
    assert told(query("select count(*) c from T", "--as-of", "2020-01-31T15:00", "--json")) == [{"c": 0}]


def test_sql_without_a_query_lists_the_tables(command: Run, half: dict[str, str]) -> None:
    listed = told(command("sql", "--archive", half["archive"], "--nameserver", half["nameserver"], "--json"))
    (row,) = [row for row in listed if row["topic"] == half["topic"]]
    assert row == {"topic": half["topic"], "queues": 1, "archived": 4, "live": 2}
    alone = command("sql", "--archive", half["archive"], "--archive-only", "--csv")
    assert alone.stdout == f"topic,queues,archived,live\n{half['topic']},1,4,0\n"


def test_sql_refuses_options_that_do_not_go_together(command: Run) -> None:
    both = command("sql", "select 1", "--csv", "--json")
    assert (both.exit_code, "Use either --csv or --json" in both.output) == (2, True)
    alone = command("sql", "select 1", "--archive-only")
    assert (alone.exit_code, "needs --archive" in alone.output) == (2, True)
    wrong = command("sql", "select 1", "--as-of", "yesterday")
    assert (wrong.exit_code, "is no time" in wrong.output) == (2, True)
