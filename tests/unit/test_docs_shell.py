"""Every shell block of the documents, in bash: its commands are parsed, and it runs against real servers.

    ```sh            runs, after the blocks of the page before it, in the same shell
    ```sh not-run    is parsed only: it needs other machines, clients that run, or an end by Ctrl-C
    ```text          output, or a synopsis

Ports are replaced by reserved ones. Servers stay until a later block starts others. Blocks that start Spark, or more
than three servers, run in the long variant.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from penstock.cli.main import root
from penstock.testing.reserved_port import ReservedPort
from tests.unit.test_docs import PAGES, ROOT, text_of

SCRIPTS = Path(sys.executable).parent
PORTS = ("9876", "9877", "10911", "10921", "10931")
PORT = re.compile(rf"\b(?:{'|'.join(PORTS)})\b")
SERVERS_MAX = 3
SERVER = re.compile(r"^penstock (?:up|nameserver|broker|coordinator)\b", re.M)
SPARK = re.compile(r"\bpenstock (?:sql|pipeline|demo)\b")

# What a page takes for granted: run before its first block, where its blocks run.
ORDERS = (
    "penstock up --data data/store; seq 1 9 | penstock produce orders; seq 1 9 | penstock produce payments\n"
)
ARCHIVE = ORDERS + "penstock pipeline archive --topic orders --to archive --once\n"
BEFORE = {
    "docs/filters.md": ORDERS,
    "docs/operating/servers.md": "penstock acl add root --role admin --users access.toml",
    "docs/operating/upgrade.md": "penstock up --data data/broker",
    "docs/spark/archive.md": ORDERS,
    "docs/spark/audit.md": ARCHIVE,
    "docs/spark/compact.md": "penstock up; echo 17 | penstock produce prices --key apple",
    "docs/spark/replay.md": ARCHIVE
    + "for topic in orders-again orders-test %DLQ%billing; do penstock topic create $topic; done",
    "docs/spark/sql.md": ARCHIVE + "echo 1 | penstock produce order-events --key 42",
    "docs/subscriptions.md": ORDERS,
}

# In place of everything that a block may call: what it was called with.
RECORDING = """
penstock() { printf '%s\\0' "$BLOCK" "$@" >>calls; printf '\\n' >>calls; cat >/dev/null; }
make() { command make -C "$ROOT" --dry-run "$@" >/dev/null; }
pip() { :; }
pytest() { :; }
python() { :; }
mqadmin() { :; }
spark-class() { :; }
"""
# A server command returns when the server is ready.
RUNNING = """
servers=() started=
stop_servers() {
    [ ${#servers[@]} -eq 0 ] || { kill -TERM "${servers[@]}" 2>/dev/null || true; wait "${servers[@]}" || true; }
    servers=()
}
penstock() {
    local line ready
    case $1 in
        up | nameserver | broker | coordinator) ;;
        *) command penstock "$@"; return ;;
    esac
    [ "$started" = "$BLOCK" ] || stop_servers
    started=$BLOCK
    exec {ready}< <(exec penstock "$@" </dev/null)
    servers+=($!)
    IFS= read -r line <&"$ready"
    echo "$line"
}
make() { command make -C "$ROOT" --dry-run "$@" >/dev/null; }
trap stop_servers EXIT
"""


@dataclass(frozen=True)
class Block:
    line: int
    text: str
    runs: bool

    @property
    def runs_short(self) -> bool:
        return self.runs and not SPARK.search(self.text) and len(SERVER.findall(self.text)) <= SERVERS_MAX


def blocks_of(page: Path) -> list[Block]:
    text = text_of(page)
    return [
        Block(text[: found.start()].count("\n") + 1, found[2], runs=found[1] != "not-run")
        for found in re.finditer(r"^```(?:sh|shell|bash)(?: ([\w-]+))?\n(.*?)^```$", text, re.M | re.S)
    ]


BLOCKS = {str(page.relative_to(ROOT)): blocks for page in PAGES if (blocks := blocks_of(page))}


def bash(
    prelude: str, blocks: list[Block], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Blocks one after the other in one shell. A command that fails ends it and is named with the block's line."""
    parts = [
        "set -Eeuo pipefail",
        "BLOCK=0",
        "trap 'echo \"block at line $BLOCK: $BASH_COMMAND\" >&2' ERR",
        prelude,
    ]
    parts += [f"BLOCK={block.line}\n{block.text}" for block in blocks]
    return subprocess.run(
        ["bash", "-c", "\n".join(parts)],
        cwd=folder,
        env={**os.environ, "ROOT": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )


def parse(words: list[str]) -> None:
    """As the command line does, without running the command."""
    command: click.Command = root
    context = command.make_context("penstock", words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        assert name is not None
        command, context = found, found.make_context(name, rest, parent=context)


# -- parsed --------------------------------------------------------------------------------------------------


def wrong_calls(blocks: list[Block], folder: Path) -> list[str]:
    """Commands that the shell or the command line would not understand."""
    done = bash(RECORDING, blocks, folder)
    calls = folder / "calls"
    wrong = [done.stderr] if done.returncode or done.stderr else []
    for call in calls.read_text("utf-8").split("\0\n")[:-1] if calls.is_file() else ():
        line, *words = call.split("\0")
        try:
            with contextlib.chdir(folder):
                parse(words)
        except click.UsageError as error:
            wrong.append(f"line {line}: penstock {' '.join(words)}: {error.format_message()}")
    return wrong


@pytest.mark.parametrize("name", BLOCKS)
def test_commands_are_understood(name: str, tmp_path: Path) -> None:
    """Also of blocks that do not run."""
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "data" / "broker").mkdir(parents=True)
    assert wrong_calls(BLOCKS[name], tmp_path) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("penstock consume orders --mx 1\n", "No such option"),
        ("penstock statsu\n", "statsu"),
        ("penstock consume\n", "Missing argument"),
        ('penstock sql "select * from `order-events`"\n', "command not found"),
        ("seq 1 10 | penstok produce orders\n", "command not found"),
        ("penstock produce 'orders\n", "unexpected EOF"),
    ],
)
def test_wrong_commands_would_be_noticed(text: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in "\n".join(wrong_calls([Block(1, text, runs=True)], tmp_path))


def test_commands_of_a_shell_are_not_in_other_blocks() -> None:
    """A `text` block whose first word is `penstock` is a synopsis (it has words in capitals), or output."""
    for page in PAGES:
        for block in re.findall(r"^```text\n(.*?)^```$", text_of(page), re.M | re.S):
            first = block.splitlines()[0]
            if first.startswith("penstock "):
                assert re.search(r"\b[A-Z]{2,}\b|^penstock up  |is ready[:;]|^penstock set list$", block), (
                    page,
                    first,
                )


# -- run -----------------------------------------------------------------------------------------------------


def run_page(name: str, chosen: list[Block], folder: Path) -> None:
    (folder / ".venv").symlink_to(ROOT / ".venv")
    before = Block(0, BEFORE.get(name, ""), runs=True)
    reserved = {port: ReservedPort() for port in PORTS}
    try:
        numbers = {port: str(one.number) for port, one in reserved.items()}
        texts = [PORT.sub(lambda port: numbers[port[0]], one.text) for one in (before, *chosen)]
        # README says how to get `penstock` on PATH; the other pages take it for granted.
        path = [one for one in os.environ["PATH"].split(os.pathsep) if one != str(SCRIPTS)]
        done = bash(
            RUNNING,
            [Block(one.line, text, runs=True) for one, text in zip((before, *chosen), texts, strict=True)],
            folder,
            PATH=os.pathsep.join(path if name == "README.md" else [str(SCRIPTS), *path]),
            PENSTOCK_NAMESERVER=f"127.0.0.1:{numbers['9876']}",
            PENSTOCK_COORDINATOR=f"127.0.0.1:{numbers['9877']}",
            PENSTOCK_NAMESERVER_PORT=numbers["9876"],
            PENSTOCK_COORDINATOR_PORT=numbers["9877"],
            PENSTOCK_BROKER_PORT=numbers["10911"],
        )
    finally:
        for one in reserved.values():
            one.release()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [name for name in BLOCKS if any(one.runs_short for one in BLOCKS[name])])
def test_blocks_run(name: str, tmp_path: Path) -> None:
    run_page(name, [one for one in BLOCKS[name] if one.runs_short], tmp_path)


@pytest.mark.long(only=True)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [name for name in BLOCKS if any(one.runs and not one.runs_short for one in BLOCKS[name])]
)
def test_blocks_with_spark_or_many_servers_run(name: str, tmp_path: Path) -> None:
    run_page(name, [one for one in BLOCKS[name] if one.runs], tmp_path)
