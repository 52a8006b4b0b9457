"""Commands that show progress, in a real terminal of 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.loop_thread import LoopThread
from penstock.testing import broker
from penstock.testing.embedded import EmbeddedBroker
from tests.support.cluster_commands import Commands, lines
from tests.support.consuming import QUICK
from tests.support.dead_letters import kill_all
from tests.support.sample_stores import write_store
from tests.unit.cli.terminals import run_in_terminal, terminal

END_OF_INPUT = "\x04"


@pytest.fixture
def address() -> Iterator[str]:
    """A broker whose group `g` has 9 dead letters."""
    with broker(store=QUICK) as nameserver:
        kill_all(nameserver, 9)
        yield nameserver


def test_produce_shows_its_progress_on_a_terminal(address: str) -> None:
    screen = run_in_terminal(address, "produce", "piped", piped=lines(range(500)))
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert "500 sent to piped" in screen.text
    assert len(Commands(address).ok("consume", "piped").splitlines()) == 500


def test_produce_sends_typed_lines(address: str) -> None:
    screen = run_in_terminal(address, "produce", "typed", typed=f"one\ntwo\n{END_OF_INPUT}")
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert "2 sent to typed" in screen.text
    assert sorted(Commands(address).ok("consume", "typed").splitlines()) == ["one", "two"]


def test_consuming_nothing_says_so_on_a_terminal(address: str) -> None:
    run = Commands(address)
    run.ok("topic", "create", "quiet")
    screen = run_in_terminal(address, "consume", "quiet")
    assert (screen.exit_code, screen.shown) == (0, "no messages"), screen.text
    run.ok("produce", "quiet", text="one\n")
    assert "one" in run_in_terminal(address, "consume", "quiet", "--group", "readers").shown
    again = run_in_terminal(address, "consume", "quiet", "--group", "readers")
    assert (again.exit_code, again.shown) == (0, "no messages for group readers"), again.text
    assert run("consume", "quiet", "--group", "readers").output == "", (
        "off a terminal there is nothing but messages"
    )


@pytest.mark.parametrize("flags", [(), ("--group", "readers")], ids=["alone", "group"])
def test_following_a_broker_that_dies_is_complained_of(flags: tuple[str, ...]) -> None:
    """The command goes on when the broker is back; until then it would only seem to wait."""
    thread, server = LoopThread("dying broker"), EmbeddedBroker()
    thread.run(server.start())
    try:
        Commands(server.address).ok("produce", "orders", text="one\n")
        environment = {"PENSTOCK_NAMESERVER": server.address}
        with terminal("consume", "orders", "--follow", *flags, environment=environment) as running:
            running.wait_shown("one")
            assert server.broker is not None
            thread.run(server.broker.stop())
            running.wait_shown("has read nothing from broker test-broker for")
    finally:
        thread.run(server.stop())
        thread.stop()


def test_dead_letters_are_listed_on_a_terminal(address: str) -> None:
    screen = run_in_terminal(address, "dlq", "list")
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert "g: 9 dead letters" in screen.text


def test_dead_letters_are_exported_on_a_terminal(address: str, tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    screen = run_in_terminal(address, "dlq", "export", "g", path)
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 9


def test_dead_letters_are_redriven_on_a_terminal(address: str) -> None:
    screen = run_in_terminal(address, "dlq", "redrive", "g", "--key", "k4")
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert "1 sent" in screen.text


def test_redriven_letters_are_whole_lines_on_a_terminal(address: str) -> None:
    """The count and its rate would get between the lines."""
    screen = run_in_terminal(address, "dlq", "redrive", "g", "--all")
    assert screen.exit_code == 0, screen.text
    *told, total = screen.text.splitlines()
    assert [line.split()[0] for line in told] == ["sent"] * 9
    assert total == "9 sent"


@pytest.mark.parametrize(
    ("arguments", "piped", "count", "title"),
    [
        (("dlq", "export", "g", "-"), None, 9, "exporting"),
        (("dlq", "redrive", "g", "--all", "--json"), None, 9, "redriving"),
        (("produce", "T", "--json"), lines(range(20)), 20, "Sending"),
    ],
    ids=["export", "redrive", "produce"],
)
def test_progress_leaves_a_redirected_output_alone(
    address: str, tmp_path: Path, arguments: tuple[str, ...], piped: str | None, count: int, title: str
) -> None:
    path = tmp_path / "lines.jsonl"
    with path.open("wb") as output:
        screen = run_in_terminal(address, *arguments, piped=piped, output=output)
    assert screen.exit_code == 0, screen.text
    assert title in screen.text, "the terminal shows the progress"
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == count


def test_output_on_a_terminal_is_not_cut_into_its_width(address: str) -> None:
    screen = run_in_terminal(address, "dlq", "export", "g", "-")
    assert screen.exit_code == 0, screen.text
    assert len([json.loads(line) for line in screen.text.splitlines()]) == 9


def test_a_store_is_verified_on_a_terminal(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store")
    screen = run_in_terminal("", "store", "verify", path)
    assert (screen.exit_code, "Traceback" in screen.text) == (0, False), screen.text
    assert "Verifying" in screen.text
