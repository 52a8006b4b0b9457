"""Dead letters over the command line, against a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import broker
from tests.support.cluster_commands import Commands
from tests.support.consuming import QUICK
from tests.support.dead_letters import kill_all


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as nameserver:
        kill_all(nameserver, 9)
        yield nameserver


@pytest.fixture
def run(address: str) -> Commands:
    return Commands(address)


def test_list_tells_groups_by_reason(run: Commands) -> None:
    [found] = run.json("dlq", "list")
    assert (found["group"], found["count"], found["error"]) == ("g", 9, None)
    assert [(kind["reason"], kind["count"]) for kind in found["reasons"]] == [
        ("bad luck #", 6),
        ("refused", 3),
    ]
    assert found["reasons"][1]["topics"] == {"T": 3}
    shown = run.ok("dlq", "list")
    assert "g: 9 dead letters" in shown
    assert "bad luck #" in shown
    assert run("dlq", "list", "nobody").exit_code == 1
    assert "no dead letters" in run("dlq", "list", "nobody").stdout


def test_show_tells_single_ones(run: Commands) -> None:
    [one] = run.json_lines("dlq", "show", "g", "--key", "k4")
    assert (one["reason"], one["origin_topic"], one["body"]) == ("bad luck 4", "T", "order 4")
    assert (one["tries"], one["redriven"]) == (1, None)
    assert run.json_lines("dlq", "show", "g", "--id", one["letter_id"]) == [one]
    assert run.json_lines("dlq", "show", "g", "--id", one["message_id"]) == [one]
    assert len(run.json_lines("dlq", "show", "g", "--max", 2)) == 2
    assert len(run.json_lines("dlq", "show", "g", "--since", "1h", "--topic", "T")) == 9
    assert len(run.json_lines("dlq", "show", "g", "--sample", 4)) == 4
    shown = run.ok("dlq", "show", "g", "--reason", "refused")
    assert "order 3" in shown
    assert "order 4" not in shown
    assert run("dlq", "show", "g", "--until", "1h").exit_code == 1
    assert "not a time" in run.refused("dlq", "show", "g", "--since", "yesterday")


def test_redrive_names_what_is_meant_and_tells_each(run: Commands) -> None:
    assert "say which" in run.refused("dlq", "redrive", "g")
    assert "system" in run.refused("dlq", "redrive", "g", "--all", "--to", "%DLQ%g").lower()
    rehearsal = run.ok("dlq", "redrive", "g", "--reason", "refused", "--dry-run")
    assert rehearsal.count("would send") == 3 + 1
    results = run.json_lines("dlq", "redrive", "g", "--reason", "refused", "--rate", 1_000)
    assert [(each["outcome"], each["topic"], each["reason"]) for each in results] == [("sent", "T", None)] * 3
    again = run.ok("dlq", "redrive", "g", "--reason", "refused")
    assert again.splitlines()[-1] == "3 skipped"
    assert "it was sent again to T before" in again
    failed = run("dlq", "redrive", "g", "--key", "k1", "--to", "nowhere")
    assert failed.exit_code == 1
    assert failed.stdout.splitlines()[-1] == "1 failed"
    assert "redriven" in run.ok("dlq", "show", "g", "--key", "k0")
    [found] = run.json("dlq", "list", "g")
    assert (found["count"], found["redriven"]) == (9, 3)
    nothing = run("dlq", "redrive", "nobody", "--all")
    assert (nothing.exit_code, nothing.stdout) == (1, "no dead letters\n")


def test_export_writes_whole_files(run: Commands, tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    assert run.json("dlq", "export", "g", path)["messages"] == 9
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["body"] for row in rows} == {f"order {number}" for number in range(9)}
    assert run.ok("dlq", "export", "g", "-", "--key", "k4").count("\n") == 1
    assert not list(tmp_path.glob("*.part"))
    assert "standard output" in run.refused("dlq", "export", "g", "-", "--format", "parquet")


def test_export_to_parquet(run: Commands, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "dead.parquet"
    assert "9 dead letters of g" in run.ok("dlq", "export", "g", path)
    rows = parquet.read_table(path).to_pylist()
    assert sorted(row["body"] for row in rows) == [b"order %d" % number for number in range(9)]
    [one] = [row for row in rows if row["keys"] == ["k4"]]
    assert (one["reason"], one["origin_topic"], dict(one["properties"])["mine"]) == ("bad luck 4", "T", "x")
    assert one["died"] >= one["first_failed"]
