"""Tables, complaints and waits on terminals of any width, and the model of a terminal that the tests look at."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from rich.console import Console
from rich.text import Text

from penstock.cli.console import count_text, name_text, plain_table, span_text
from tests.support.terminal_model import rendered
from tests.unit.cli.terminals import terminal

ID = "7F0000010733EC27E8396111826F0000"
TIME = "2026-01-31T12:00:00.000Z"


def shown(table: object, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def table(columns: int = 2) -> object:
    made = plain_table("Id", "Stored", *(f"More {number}" for number in range(columns)), right=("More 0",))
    made.add_row(ID, TIME, *["12"] * columns)
    return made


def test_names_give_way_before_ids_and_times() -> None:
    made = plain_table("Topic", "Id", "Stored")
    made.add_row(name_text("a-topic-with-a-long-name"), ID, TIME)
    _, rule, row = shown(made, 74)
    assert row == f"a-topic-with-…  {ID}  {TIME}"
    assert len(rule) == 74


@pytest.mark.parametrize("width", range(30, 140, 7))
def test_no_width_breaks_an_id(width: int) -> None:
    if width < len(ID) + len("More 0") + 2:
        return
    lines = shown(table(), width)
    assert sum(ID in line for line in lines) == 1
    assert sum(TIME in line for line in lines) == 1
    assert max(map(len, lines)) <= width


def test_a_row_that_does_not_fit_becomes_lines() -> None:
    made = plain_table(*(f"column {number}" for number in range(16)))
    for row in ("a", "b"):
        made.add_row(*(Text(f"{row}{number} " + "word " * 20) for number in range(15)), "end")
    lines = shown(made, 80)
    assert lines[0].startswith("column 0   a0 word")
    assert lines[1].startswith("           word")
    assert lines.count("") == 1, "a blank line between two rows"
    assert max(map(len, lines)) <= 80


def test_numbers_of_things_have_their_plural() -> None:
    assert [count_text(number, "retry") for number in (0, 1, 16)] == ["0 retries", "1 retry", "16 retries"]
    assert [span_text(seconds) for seconds in (0, 1, 61, 3_600, 90_061)] == [
        *("0 seconds", "1 second", "1 minute, 1 second", "1 hour", "1 day, 1 hour")
    ]


SAY = """
from penstock.cli.complaints import awaiting, complain
import time
complain("topic 'orders' has no route; create it first: `penstock topic create orders`, or ask for it")
"""


def test_a_complaint_is_one_line_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True)
    assert done.stderr.count("\n") == 1


def test_a_terminal_shows_what_is_awaited_and_forgets_it_again() -> None:
    """`--timeout` is long enough for the wait to be shown, however slow the machine: the port never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with terminal("status", "--timeout", 4_000, environment={"PENSTOCK_NAMESERVER": address}) as running:
            running.wait_shown(f"waiting for {address}")
            screen = running.finish()
    assert screen.exit_code == 2
    assert "waiting" not in screen.shown
    assert screen.shown.startswith("penstock: no name server answers")


def test_the_model_of_a_terminal_wraps_erases_and_moves() -> None:
    assert rendered("abcdef", 4) == "abcd\nef"
    assert rendered("abcd\r\nef", 4) == "abcd\nef"
    assert rendered("working\r\x1b[2Kdone\r\n", 80) == "done"
    assert rendered("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree", 80) == "one\nthree"
    assert unicodedata.east_asian_width("語") == "W"
    assert rendered("abc語", 4) == "abc\n語"
    with pytest.raises(AssertionError, match="unknown control sequence"):
        rendered("\x1b[5n", 80)
