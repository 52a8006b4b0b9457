"""Findings out of tables, limits, and the files of a result: no Spark."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.runtime import Runtime
from penstock.spark.pipelines.audit_findings import duration_text, findings
from penstock.spark.pipelines.audit_result import AuditResult, Limits, ResultFiles
from penstock.spark.pipelines.audit_sources import QueueKey
from penstock.spark.pipelines.audit_windows import choose_width

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

T0 = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def table(*rows: dict[str, Any]) -> Any:
    return pa.Table.from_pylist(list(rows))


def queue(**changed: Any) -> dict[str, Any]:
    row = {"topic": "T", "broker": "b", "queue_id": 0, "rows": 10, "missing": 0, "gaps": 0, "repeated": 0}
    return row | {"backwards": 0} | changed


def kinds(tables: dict[str, Any], limits: Limits | None = None) -> dict[str, str]:
    return {item.kind: item.severity for item in findings(tables, limits or Limits())}


def test_a_sound_source_has_no_findings() -> None:
    assert findings({"queues": table(queue())}, Limits()) == ()


def test_gaps_of_a_topic_are_one_finding_with_all_its_queues() -> None:
    tables = {
        "queues": table(queue(missing=3, gaps=2), queue(queue_id=1, missing=1, gaps=1), queue(topic="U"))
    }
    (found,) = findings(tables, Limits())
    assert (found.kind, found.count, found.topic, found.is_problem) == ("gaps", 4, "T", True)
    assert found.text == "4 offsets of T are missing, in 3 gaps of 2 queues"


def test_what_is_allowed_is_a_note() -> None:
    tables = {"queues": table(queue(missing=1, gaps=1, repeated=1, backwards=1))}
    assert kinds(tables) == {"gaps": "problem", "repeated": "problem", "backwards": "problem"}
    assert kinds(tables, Limits(frozenset({"gaps"})))["gaps"] == "note"
    with pytest.raises(OptionError, match="no finding 'gap'"):
        Limits(frozenset({"gap"}))


def test_duplicates_and_order() -> None:
    tables = {
        "duplicate_totals": table(
            {"kind": "id", "topic": "T", "values": 1, "extra": 2},
            {"kind": "key", "topic": "T", "values": 5, "extra": 5},
        ),
        "disorder_totals": table(
            {"kind": "sequence", "topic": "T", "rows": 1, "keys": 1, "worst": 4},
            {"kind": "born_time", "topic": "T", "rows": 2, "keys": 2, "worst": 61_000},
            {"kind": "store_time", "topic": "T", "rows": 2, "keys": 0, "worst": 5},
        ),
    }
    texts = {item.kind: item.text for item in findings(tables, Limits())}
    assert texts["duplicate-ids"] == "1 message id of T was stored more than once: 2 messages too many"
    assert (
        texts["duplicate-keys"]
        == "5 keys of T were sent with the same body more than once: 5 messages too many"
    )
    assert texts["late"].endswith("by at most 61 s")
    assert kinds(tables)["order"] == "problem"
    assert kinds(tables)["late"] == "note"


@pytest.mark.seed("S3-82")
def test_lag_is_a_note_until_a_limit_makes_it_a_problem() -> None:
    group = {"topic": "T", "group": "g", "waiting": 7, "expired": 0}
    assert kinds({"groups": table(group)}) == {"lag": "note"}
    assert kinds({"groups": table(group)}, Limits(lag=7)) == {"lag": "note"}
    assert kinds({"groups": table(group)}, Limits(lag=6)) == {"lag": "problem"}
    assert kinds({"groups": table(group | {"expired": 1})})["expired"] == "problem"


def test_latency_skew_and_hot_keys_have_limits() -> None:
    tables = {
        "latency": table({"topic": "T", "stage": "stored", "rows": 9, "p99_ms": 1500, "negative": 1}),
        "topics": table({"topic": "T", "queues": 4, "rows": 100, "most_rows": 70, "skew": 2.8}),
        "hot_keys": table({"topic": "T", "key": "k", "rows": 500, "share": 0.5}),
        "keys": table({"topic": "T", "in_several_queues": 2}),
    }
    assert kinds(tables) == {"clock": "note", "skew": "note", "hot-keys": "note", "spread-keys": "note"}
    strict = kinds(tables, Limits(latency_ms=1000, skew=2.0, hot_key=0.3))
    assert {kind for kind, severity in strict.items() if severity == "problem"} == {
        "latency",
        "skew",
        "hot-keys",
    }


def test_differences_and_dead_letters() -> None:
    tables = {
        "difference_totals": table(
            {"topic": "T", "difference": "missing right", "rows": 2},
            {"topic": "T", "difference": "altered", "rows": 1},
            {"topic": "T", "difference": "repeated left", "rows": 1},
        ),
        "dead_letters": table(
            {"group": "g", "origin_topic": "T", "reason": "tries used up", "tries": 17, "rows": 3}
        ),
    }
    texts = {item.kind: item.text for item in findings(tables, Limits())}
    assert texts["missing"] == "2 rows of T are missing in the second source"
    assert texts["altered"] == "1 row of T is not the same"
    assert texts["repeated"] == "1 row of T is repeated in the first source"
    assert texts["dead-letters"] == "group g gave up 3 messages of T after 17 tries: tries used up"


def test_rare_reasons_are_one_finding() -> None:
    row = {"group": "g", "origin_topic": "T", "reason": "x", "tries": 1, "rows": 3}
    tables = {
        "dead_letters": table(row, row | {"reason": "y"}),
        "dead_letter_totals": table(
            {"group": "g", "rows": 10, "kinds": 5}, {"group": "h", "rows": 1, "kinds": 1}
        ),
    }
    found = findings(tables, Limits())
    assert [item.count for item in found] == [5, 3, 3]
    assert found[0].text == "5 messages more were given up, for 4 rarer reasons"
    allowed = Limits(frozenset({"dead-letters"}))
    assert {item.severity for item in findings(tables, allowed)} == {"note"}


def place(topic: str, there: str, queue_id: int = 0) -> dict[str, Any]:
    return {"topic": topic, "broker": "b", "queue_id": queue_id, "there": there}


def test_two_sources_that_have_nothing_in_common_are_a_problem() -> None:
    rest = table(place("T", "left"), place("T", "left", 1), place("U", "right"), place("V", "both"))
    nothing = {"compared": table(), "not_compared": rest}
    assert kinds(nothing) == {"not-compared": "problem", "one-sided": "note"}
    assert kinds(nothing, Limits(frozenset({"not-compared"})))["not-compared"] == "note"
    some = {"compared": table(queue()), "not_compared": rest}
    assert [(item.severity, item.text) for item in findings(some, Limits())] == [
        ("note", "2 queues of T have messages in the first source only: not compared"),
        ("note", "1 queue of U has messages in the second source only: not compared"),
        ("note", "1 queue of V has no offset that is in both sources: not compared"),
    ]
    assert kinds({"compared": table(), "not_compared": table()}) == {}


def test_queues_without_a_common_offset_are_named() -> None:
    pytest.importorskip("pyspark")
    from penstock.spark.pipelines.audit_compare import not_compared

    def key(number: int, broker: str = "b") -> QueueKey:
        return QueueKey("T", broker, number)

    left = {key(0): (0, 9), key(1): (0, 9), key(2): (5, 9), key(3): (4, 4), key(4): (9, 9)}
    right = {key(0): (3, 7), key(2): (0, 5), key(4): (0, 9), key(5): (1, 2)}
    found = [(row["queue_id"], row["there"]) for row in not_compared(left, right)]
    assert found == [(1, "left"), (2, "both"), (4, "right"), (5, "right")]
    # Another name of the broker, and a store directory, which knows none.
    renamed = not_compared({key(0): (0, 9)}, {key(0, "c"): (0, 9)})
    assert [(row["broker"], row["there"]) for row in renamed] == [("b", "left"), ("c", "right")]
    assert not_compared({key(0): (0, 9)}, {key(0, ""): (0, 9)}) == []


def result(**tables: Any) -> AuditResult:
    made = AuditResult("log", "", 1_000, 3_500, 60, 10, tables, {"gaps": 20})
    made.findings = findings(tables, Limits())
    return made


def test_files_of_a_result(tmp_path: Path) -> None:
    gap = {"topic": "T", "first_offset": 3, "before_time": T0}
    made = result(gaps=table(gap), queues=table(queue(missing=1, gaps=1)))
    files = ResultFiles(Runtime.system().disk, tmp_path / "report")
    files.prepare()
    files.save(made, "<html>", [{"time_ms": 1}])
    assert sorted(path.name for path in files.directory.iterdir()) == [
        "audit.json",
        "gaps.parquet",
        "progress.jsonl",
        "queues.parquet",
        "report.html",
    ]
    written = json.loads((files.directory / "audit.json").read_text())
    assert (written["problems"], written["findings"][0]["kind"]) == (1, "gaps")
    assert written["tables"]["gaps"] == {
        "total": 20,
        "rows": [gap | {"before_time": "2026-05-01T12:00:00.000Z"}],
    }
    assert written["started"] == "1970-01-01T00:00:01.000Z"
    assert parquet.read_table(files.directory / "gaps.parquet").to_pylist() == [gap]
    assert made.exit_code == 1
    # The same directory again is an audit's own.
    files.prepare()
    assert files.samples() == [{"time_ms": 1}]


def test_what_a_killed_audit_left_is_taken_over(tmp_path: Path) -> None:
    files = ResultFiles(Runtime.system().disk, tmp_path / "report")
    files.prepare()
    # Killed while it read, and again while it wrote.
    (files.directory / ".reasons").mkdir()
    files.prepare()
    (files.directory / "queues.parquet").write_bytes(b"")
    (files.directory / ".gaps.parquet.tmp").write_bytes(b"half")
    files.prepare()
    files.save(result(gaps=table(queue())), "<html>", [])
    assert not (files.directory / ".penstock-audit").exists()
    files.prepare()


@pytest.mark.parametrize("name", ["queues.parquet", "report.html", ".reasons"])
def test_what_only_looks_like_an_audit_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(OptionError, match="no audit"):
        ResultFiles(Runtime.system().disk, tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match="no audit"):
        ResultFiles(Runtime.system().disk, tmp_path).prepare()
    with pytest.raises(OptionError, match="is a file"):
        ResultFiles(Runtime.system().disk, tmp_path / "notes.txt").prepare()


@pytest.mark.parametrize(
    ("span_s", "width"),
    [(None, 1), (0, 1), (59, 1), (61, 5), (3_600, 300), (86_400, 1_800), (400 * 86_400, 604_800)],
)
def test_windows_are_of_widths_that_people_count_in(span_s: int | None, width: int) -> None:
    assert choose_width(None if span_s is None else 0, None if span_s is None else span_s * 1000) == width


def test_windows_of_ten_years_are_whole_weeks() -> None:
    width = choose_width(0, 3_650 * 86_400_000)
    assert width % 604_800 == 0
    assert 3_650 * 86_400 / width <= 60


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (61_000, "61 s"), (600_000, "10 min"), (1e7, "2.78 h"), (1e9, "11.6 d")],
)
def test_durations(ms: float, text: str) -> None:
    assert duration_text(ms) == text
