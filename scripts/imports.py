"""Which modules of penstock/ a test file imports, read from the sources.

Rule: a test imports what it names, what the helper modules below tests/ name that it imports, and what the
conftest.py of its folders name. The conftest.py of all tests is left out: it would make each a test of everything.
Never: imports a test or a module.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from scripts.history import ROOT

FOLDERS_LEFT_OUT = ("tests/interop/",)


def test_files() -> list[str]:
    """All but the interop tests, from the root of the project."""
    found = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(file for file in found if not file.startswith(FOLDERS_LEFT_OUT))


@functools.cache
def direct(file: str) -> frozenset[str]:
    """Names of the modules that a file imports, and of what it takes from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{name.name}" for name in node.names)
    return frozenset(found)


def with_helpers(file: str) -> set[str]:
    """The same of a test with its helper modules."""
    found: set[str] = set()
    left, seen = [file, *_conftests(file)], set[str]()
    while left:
        helper = left.pop()
        if helper in seen:
            continue
        seen.add(helper)
        for name in direct(helper):
            found.add(name)
            path = name.replace(".", "/") + ".py"
            if name.startswith("tests.") and (ROOT / path).exists():
                left.append(path)
    return found


def _conftests(file: str) -> list[str]:
    """Those of its folders, less the one of all tests."""
    folders = [path.as_posix() for path in Path(file).parents if path.as_posix() not in (".", "tests")]
    return [name for folder in folders if (ROOT / (name := f"{folder}/conftest.py")).exists()]
