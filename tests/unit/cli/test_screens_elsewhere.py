"""Commands whose output is no terminal of 80 columns: without colours, in a file, in a closed pipe; and Ctrl-C."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.effort import by_length, chosen_seed
from tests.support.cluster_commands import Commands, lines
from tests.support.sample_stores import write_store
from tests.support.server_processes import cluster, is_readable
from tests.unit.cli.terminals import CTRL_C, Terminal, fresh_terminal, run_in_terminal
from tests.waiting import wait_until

# Each prints something on standard output. {store} is a store's directory.
PRINTING = """\
status
status --json
topic list
topic list --details
topic describe orders
consume orders
consume orders --json
message get --key k1 --topic orders
group list --details
group describe billing
message waiting
dlq list
store verify {store}
store stats {store}
store dump {store}
--help
topic --help
completion bash
--version""".splitlines()
INTERRUPTED = (130, -2)


@contextmanager
def node(folder: Path) -> Iterator[str]:
    """A cluster with a topic and a group."""
    with cluster(folder / "cluster", flush="async") as (names, _):
        run = Commands(names.address)
        run.ok("topic", "create", "orders")
        run.ok("produce", "orders", "--key", "k1", text=lines(range(300)))
        run.ok("consume", "orders", "--group", "billing")
        yield names.address


def command(line: str, folder: Path) -> list[str]:
    return shlex.split(line.format(store=folder / "store"))


@pytest.mark.long(only=True)
def test_no_colours_where_none_are_wanted(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    with node(tmp_path) as address:
        for line in PRINTING:
            for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                screen = run_in_terminal(address, *command(line, tmp_path), environment=variables)
                assert "\x1b[3" not in screen.raw, line
                assert "Traceback" not in screen.text, line


@pytest.mark.long(only=True)
def test_a_file_gets_what_a_terminal_shows_without_its_controls(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    with node(tmp_path) as address:
        for line in PRINTING:
            arguments = command(line, tmp_path)
            shown = run_in_terminal(address, *arguments)
            path = tmp_path / "out"
            with path.open("wb") as output:
                screen = run_in_terminal(address, *arguments, output=output)
            assert screen.exit_code == shown.exit_code, line
            text = path.read_text()
            assert text, line
            assert "\x1b" not in text, line


def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path) -> None:
    """As `| head -1` does once it has its line."""
    write_store(tmp_path / "store")
    printing = by_length(1, len(PRINTING))
    with node(tmp_path) as address:
        for line in ["consume orders", "--help", *PRINTING[:printing]]:
            reading, writing = os.pipe()
            os.close(reading)
            with os.fdopen(writing, "wb") as output:
                screen = run_in_terminal(address, *command(line, tmp_path), output=output)
            assert (screen.exit_code, screen.shown) == (141, ""), line


def interrupted(running: Terminal, line: str) -> None:
    running.type(CTRL_C)
    screen = running.finish()
    assert "Traceback" not in screen.text, (line, screen.text)
    assert screen.exit_code in INTERRUPTED, (line, screen.exit_code, screen.text)


def test_ctrl_c_while_a_command_is_imported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Nobody answers: the command is still there when this process sees late that it has begun, or that it has
        # imported everything and asks already.
        environment = {"PENSTOCK_NAMESERVER": f"127.0.0.1:{silent.getsockname()[1]}"}
        with fresh_terminal("status", "--timeout", "600000", environment=environment) as running:
            entry = EntryPoint(running)
            wait_until(lambda: entry.is_passed() or is_readable(silent.fileno(), 0), "the entry point")
            interrupted(running, "status")


class EntryPoint:
    """Looks whether our code runs: Python ignores SIGPIPE and catches SIGINT at its start, the entry point lets go
    of SIGINT. Seen twice, because Python does the one a moment before the other."""

    def __init__(self, running: Terminal) -> None:
        self._process = running.process
        self._seen = 0

    def is_passed(self) -> bool:
        if self._process.poll() is not None:
            return True
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        ignored, caught = (int(status.partition(name)[2].split()[0], 16) for name in ("SigIgn:", "SigCgt:"))
        is_ours = bool(ignored & 1 << signal.SIGPIPE - 1) and not caught & 1 << signal.SIGINT - 1
        self._seen = self._seen + 1 if is_ours else 0
        return self._seen > 1


def test_ctrl_c_in_the_middle(tmp_path: Path) -> None:
    with node(tmp_path) as address:
        for line, shown in (
            ("consume orders --follow", "299"),
            ("consume orders --follow --group other", "299"),
            ("produce orders", "Ctrl-D"),
            ("topic delete orders", "[y/N]"),
            ("up --data up --port 0 --nameserver-port 0", "is ready"),
        ):
            with fresh_terminal(
                *shlex.split(line), environment={"PENSTOCK_NAMESERVER": address}, folder=tmp_path
            ) as running:
                running.wait_shown(shown)
                running.type(CTRL_C)
                screen = running.finish()
            assert "Traceback" not in screen.text, screen.text
            # A server that is stopped has done what it was to do.
            assert screen.exit_code == (0 if line.startswith("up") else 130), (line, screen.text)


@pytest.mark.long(only=True)
def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """Also when a command is about to end, or has ended and its threads are being stopped."""
    seed = chosen_seed()
    chance = random.Random(seed)
    write_store(tmp_path / "store")
    with node(tmp_path) as address:
        for _ in range(60):
            line = chance.choice(PRINTING)
            environment = {"PENSTOCK_NAMESERVER": address}
            with fresh_terminal(*command(line, tmp_path), environment=environment) as running:
                wait_until(EntryPoint(running).is_passed, "the entry point")
                # How long a command takes is measured in none of these runs: any moment will do.
                time.sleep(chance.random())
                if running.process.poll() is None:
                    running.type(CTRL_C)
                screen = running.finish()
            assert "Traceback" not in screen.text, (seed, line, screen.text)
            assert screen.exit_code in (0, 1, *INTERRUPTED), (seed, line, screen.text)
