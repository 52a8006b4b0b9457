"""The habits that hold the project together: public door, pins, import directions, sizes, licence."""

import ast
import configparser
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "penstock"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PIN = re.compile(r"[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.+!]*( *;.*)?")

# The door to the outside world is runtime/; cli/ is the edge of the process and testing/ simulates the world.
ROOMS_AT_THE_EDGE = {"runtime", "cli", "testing"}
OUTSIDE_WORLD = {
    "open": "disk",
    "io.open": "disk",
    "os.open": "disk",
    "os.fdopen": "disk",
    "time.time": "clock",
    "time.time_ns": "clock",
    "time.monotonic": "clock",
    "time.monotonic_ns": "clock",
    "time.perf_counter": "clock",
    "time.perf_counter_ns": "clock",
    "time.sleep": "clock",
    "datetime.datetime.now": "clock",
    "datetime.datetime.utcnow": "clock",
    "datetime.date.today": "clock",
    "random": "randomness",
    "secrets": "randomness",
    "os.urandom": "randomness",
    "uuid.uuid1": "randomness",
    "uuid.uuid4": "randomness",
    "socket.socket": "network",
    "socket.create_connection": "network",
}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def import_contracts() -> configparser.ConfigParser:
    contracts = configparser.ConfigParser()
    assert contracts.read(ROOT / ".importlinter")
    return contracts


def rooms() -> set[str]:
    """Folders and modules right below penstock/."""
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in SOURCES if path.parent != PACKAGE}
    return folders | {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def outside_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines that name something of OUTSIDE_WORLD, by whatever alias it was imported.

    A reference counts, not only a call: `clock=time.monotonic` is the same hole.
    """
    aliases: dict[str, str] = {"open": "open"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name] = name.name
                if name.name in OUTSIDE_WORLD:
                    yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
            if node.module in OUTSIDE_WORLD:
                yield node.lineno, str(node.module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, dot, rest = ast.unparse(node).partition(".")
            full = f"{aliases.get(first, '')}{dot}{rest}"
            if full in OUTSIDE_WORLD:
                yield node.lineno, full


def test_public_door_is_sorted_and_importable() -> None:
    penstock = importlib.import_module("penstock")
    assert penstock.__all__ == sorted(set(penstock.__all__))
    for name in penstock.__all__:
        assert hasattr(penstock, name), f"penstock.__all__ names {name}, which is not there"


def test_version_is_said_once() -> None:
    penstock = importlib.import_module("penstock")
    assert penstock.__version__ == project()["project"]["version"]


def test_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_constraints_are_pins_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 20
    assert [line for line in pins if not PIN.fullmatch(line)] == []
    assert [line for line in lines if "://" in line or "@" in line or "index" in line.lower()] == []


def test_constraints_cover_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line and not line.startswith("#")}
    config = project()
    groups = [config["build-system"]["requires"], config["project"]["dependencies"]]
    groups.extend(config["project"]["optional-dependencies"].values())
    wanted = [requirement for group in groups for requirement in group]
    names = {re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower() for requirement in wanted}
    assert names - pinned == set()


def test_every_room_has_a_place_in_both_contracts() -> None:
    contracts = import_contracts()
    layers = set(re.findall(r"\((\w+)\)", contracts["importlinter:contract:layers"]["layers"]))
    arrows = set(re.findall(r"(?m)^(\w+)\s*->", contracts["importlinter:contract:arrows"]["arrows"]))
    assert rooms() - layers == set()
    assert layers == arrows


def test_no_arrow_leads_to_cli_or_testing() -> None:
    arrows = import_contracts()["importlinter:contract:arrows"]["arrows"]
    for line in filter(None, arrows.splitlines()):
        room, _, targets = (part.strip() for part in line.partition("->"))
        if room != "__main__":
            assert not {"cli", "testing"} & set(re.split(r"[,\s]+", targets)), line


@pytest.mark.seed("S3-83")
def test_what_the_broker_stands_on() -> None:
    """Store, remoting and what all have in common; not the client: to register, the remoting client will do."""
    arrows = import_contracts()["importlinter:contract:arrows"]["arrows"]
    (targets,) = re.findall(r"(?m)^broker\s*->(.*)$", arrows)
    found = set(re.split(r"[,\s]+", targets.strip()))
    assert {"store", "remoting", "protocol", "message"} <= found
    assert not {"client", "nameserver"} & found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_outside_world_only_through_runtime(path: Path) -> None:
    if room_of(path) in ROOMS_AT_THE_EDGE:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [f"line {line}: {name} is {OUTSIDE_WORLD[name]}" for line, name in outside_names(tree)]
    assert found == [], "take it from penstock.runtime"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time\ntime.time()", "time.time"),
        ("from time import monotonic as now\nnow()", "time.monotonic"),
        ("import time as t\nclock = t.perf_counter", "time.perf_counter"),
        ("with open('x') as f: pass", "open"),
        ("import os\nos.open('x', 0)", "os.open"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import random", "random"),
        ("from random import choice", "random"),
    ],
)
def test_outside_names_are_seen_through_aliases(source: str, name: str) -> None:
    assert name in {found for _, found in outside_names(ast.parse(source))}


def test_doors_of_our_own_are_not_taken_for_the_outside_world() -> None:
    source = "import time\ndisk.open('x'); self.time(); clock.time.time(); time.gmtime(0)"
    assert list(outside_names(ast.parse(source))) == []


def test_every_hot_module_is_listed_or_has_a_compiled_twin() -> None:
    """A module missing from MODULES would be left uncompiled, and form() would not notice."""
    hot = importlib.import_module("penstock._hot")
    twins = {"bits", "layout"}  # Their compiled form is the .pxd of the same name.
    files = {path.stem for path in (PACKAGE / "_hot").glob("*.py")} - {"__init__", "shadow"}
    assert files == set(hot.MODULES) | twins
    for name in twins:
        assert (PACKAGE / "_hot" / f"{name}.pxd").is_file()


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert project()["project"]["license"] == "Apache-2.0"


def test_make_help_describes_every_command() -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    described = set(re.findall(r"(?m)^  make (\S+) +\S", printed))
    declared = set(re.findall(r"(?m)^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert described == declared
    assert {"bench", "check", "demo", "help", "interop", "test"} <= described


def imported_helpers(path: Path) -> Iterator[Path]:
    """Modules below tests/ that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            folder = ROOT / str(node.module).replace(".", "/")
            for name in node.names:
                module = folder / f"{name.name}.py"
                yield module if module.exists() else folder.with_suffix(".py")


def test_helpers_of_several_folders_lie_in_support() -> None:
    """A test imports helpers of its own folder, of folders above or below it, and of tests/support."""
    support, wrong = ROOT / "tests" / "support", []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for helper in imported_helpers(path):
            near = helper.parent in path.parents or path.parent in helper.parents
            if not near and support not in helper.parents:
                wrong.append(f"{path.relative_to(ROOT)} imports {helper.relative_to(ROOT)}")
    assert not wrong, "\n".join(wrong)
