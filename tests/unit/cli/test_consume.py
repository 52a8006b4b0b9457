"""`penstock consume` and what it leaves behind in a group."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import broker
from tests.support.cluster_commands import Commands, lines
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run() -> Iterator[Commands]:
    with broker() as address:
        yield Commands(address)


def bodies(run: Commands, *arguments: object) -> list[str]:
    return sorted(run.ok("consume", *arguments).splitlines(), key=int)


def test_looking_reads_everything_and_leaves_nothing(run: Commands) -> None:
    run.ok("produce", "look", text=lines(range(300)))
    wanted = [str(number) for number in range(300)]
    assert bodies(run, "look") == wanted
    assert bodies(run, "look") == wanted
    assert run.json("group", "list") == []
    assert len(bodies(run, "look", "--max", 7)) == 7
    assert bodies(run, "look", "--from", "last") == []


def test_a_group_goes_on_where_it_was(run: Commands) -> None:
    run.ok("produce", "shared", text=lines(range(100)))
    first = bodies(run, "shared", "--group", "readers", "--max", 30)
    rest = bodies(run, "shared", "--group", "readers")
    assert (len(first), len(rest)) == (30, 70)
    assert sorted(first + rest, key=int) == [str(number) for number in range(100)]
    assert bodies(run, "shared", "--group", "readers") == []
    described = run.json("group", "describe", "readers")
    assert described["lag"] == 0
    assert sum(item["committed"] for item in described["queues"] if item["topic"] == "shared") == 100
    assert run.json("group", "list") == ["readers"]
    assert "readers" in run.ok("group", "list", "--details")
    assert "no member is online" in run.ok("group", "describe", "readers")


def test_from_moves_a_group(run: Commands) -> None:
    run.ok("produce", "moved", text=lines(range(20)))
    assert len(bodies(run, "moved", "--group", "g")) == 20
    assert len(bodies(run, "moved", "--group", "g", "--from", "first")) == 20
    assert bodies(run, "moved", "--group", "g", "--from", "last") == []
    assert len(bodies(run, "moved", "--group", "g", "--from", "5m")) == 20
    assert bodies(run, "moved", "--group", "late", "--from", "last") == []


def test_a_reset_group_reads_again(run: Commands) -> None:
    run.ok("produce", "again", text=lines(range(12)))
    assert len(bodies(run, "again", "--group", "g")) == 12
    assert "Add --yes" in run.refused("group", "reset", "g", "--topic", "again", "--to", "first")
    moved = run.json("group", "reset", "g", "--topic", "again", "--to", "first", "--yes")
    assert {item["offset"] for item in moved} == {0}
    assert run.json("group", "describe", "g")["lag"] == 12
    assert len(bodies(run, "again", "--group", "g")) == 12


@pytest.mark.parametrize("group", [[], ["--group", "tagged"]])
def test_tags_choose(run: Commands, group: list[str]) -> None:
    for tag, numbers in (("a", range(10)), ("b", range(10, 15)), ("c", range(15, 40))):
        run.ok("produce", "tags", "--tag", tag, text=lines(numbers))
    assert bodies(run, "tags", *group, "--tag", "a || b") == [str(number) for number in range(15)]


@pytest.mark.parametrize("group", [[], ["--group", "priced"]])
def test_a_condition_chooses(run: Commands, group: list[str]) -> None:
    for price in range(5):
        run.ok("produce", "priced", "--property", f"price={price}", text=f"{price}\n")
    assert bodies(run, "priced", *group, "--sql", "price between 2 and 3") == ["2", "3"]


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
def test_a_wrong_condition_is_refused_with_its_place(run: Commands, group: list[str]) -> None:
    run.ok("produce", "refused", text="1\n")
    assert "at character 3" in run.refused("consume", "refused", *group, "--sql", "a > 'x'")
    assert "use one of them" in run.refused("consume", "refused", *group, "--sql", "a > 1", "--tag", "b")


def test_json_lines_carry_everything(run: Commands) -> None:
    (told,) = run.json_lines("produce", "told", "--tag", "t", "--key", "k", text="body")
    (found,) = run.json_lines("consume", "told")
    assert (found["body"], found["tag"], found["keys"]) == ("body", "t", ["k"])
    assert (found["message_id"], found["offset"]) == (told["message_id"], told["offset"])


def test_a_large_body_that_was_packed_comes_back(run: Commands) -> None:
    body = "word " * 5_000
    run.ok("produce", "packed", text=body + "\n")
    assert run.ok("consume", "packed") == body + "\n"


def test_an_unknown_topic_is_told(run: Commands) -> None:
    assert "create it first" in run.refused("consume", "absent")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_prints_what_comes_and_leaves_in_order(run: Commands, number: int) -> None:
    run.ok("produce", "live", text="one\n")
    command = [sys.executable, "-m", "penstock.cli.main", "consume", "live", "--group", "g", "--follow"]
    process = subprocess.Popen(
        [*command, "--json"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_NAMESERVER": run.nameserver},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"] == "one"
        run.ok("produce", "live", text="two\n")
        assert json.loads(process.stdout.readline())["body"] == "two"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err.strip()) == (130, "", "")
    described = run.json("group", "describe", "g")
    assert (described["online"], described["lag"]) == (False, 0)


def test_a_reader_that_goes_away_ends_it(run: Commands) -> None:
    run.ok("produce", "long", text=lines(range(20_000)))
    command = f"{sys.executable} -m penstock.cli.main consume long | head -n 2"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_NAMESERVER": run.nameserver},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert len(done.stdout.splitlines()) == 2
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupted_producer_says_how_far_it_came(run: Commands) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "produce", "cut", "--json"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_NAMESERVER": run.nameserver},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until(lambda: len(run("consume", "cut").stdout.splitlines()) >= 2 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert len(out.splitlines()) == 2
    assert err.startswith(b"2 sent to cut in ")
