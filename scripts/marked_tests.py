"""Which tests say that they prove what, read from their sources: the markers `seed` and `feature`.

Rule: a marker counts where it is written out: on a test, on its class, in `pytestmark`, in the marks of a parameter,
or as a name that the module gives to a marker. pytest sees the same ones, which tests/proofs.py checks at collection.

Ownership: a pure function of the files below tests/.

Never: imports a test, so that counting needs neither Java nor Spark.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Pair = tuple[str, str]
"""A feature and the system that has it."""


@dataclass(frozen=True, slots=True)
class MarkedTest:
    """One test function, however many cases it has."""

    path: str
    """From the root of the project, with slashes."""

    name: str
    """As in a node id: `test_a` or `TestB::test_a`."""

    seeds: frozenset[str]
    features: frozenset[Pair]

    @property
    def node(self) -> str:
        return f"{self.path}::{self.name}"


def pairs(arguments: Iterable[str]) -> list[Pair]:
    """`feature("order", "tubemq", "fifth-seed")` is two pairs."""
    name, *systems = [*arguments] or [""]
    return [(name, system) for system in systems]


def read(root: Path = ROOT) -> list[MarkedTest]:
    """All tests below `root/tests` that carry at least one of the two markers, by path and place."""
    found: list[MarkedTest] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if ".mark.seed(" in source or ".mark.feature(" in source:
            found.extend(of_source(path.relative_to(root).as_posix(), source))
    return found


def of_source(path: str, source: str) -> Iterator[MarkedTest]:
    tree = ast.parse(source, path)
    named = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    of_module = [named["pytestmark"]] if "pytestmark" in named else []
    yield from _of_body(path, "", tree.body, of_module, named)


def _of_body(
    path: str, prefix: str, body: list[ast.stmt], inherited: list[ast.expr], named: dict[str, ast.expr]
) -> Iterator[MarkedTest]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = [*inherited, *node.decorator_list]
            yield from _of_body(path, f"{prefix}{node.name}::", node.body, marks, named)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            seeds: set[str] = set()
            features: set[Pair] = set()
            for kind, arguments in _markers([*inherited, *node.decorator_list], named):
                if kind == "seed":
                    seeds.update(arguments)
                else:
                    features.update(pairs(arguments))
            if seeds or features:
                yield MarkedTest(path, prefix + node.name, frozenset(seeds), frozenset(features))


def _markers(marks: list[ast.expr], named: dict[str, ast.expr]) -> Iterator[tuple[str, list[str]]]:
    """The markers in these expressions; a name stands for what the module assigned to it."""
    for mark in marks:
        meant = named.get(mark.id, mark) if isinstance(mark, ast.Name) else mark
        for node in ast.walk(meant):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("seed", "feature")
                and ast.unparse(node.func.value) == "pytest.mark"
            ):
                constants = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                yield node.func.attr, [value for value in constants if isinstance(value, str)]
