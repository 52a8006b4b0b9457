"""What others rely on, as text: what a restructuring must not change by accident.

api         names, signatures and public members of what packages export
entries     commands, entry points and console scripts
settings    keys of the configuration with type and default, their RocketMQ names and environment variables
loggers     names under which the package logs
files       what a node writes into its data directory
answers     code and remark of a server's answer to each request of the corpus
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from scripts import docs_config

ROOT = Path(__file__).resolve().parents[2]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def api(module: ModuleType) -> Iterator[str]:
    """A line for each exported name and for each public member of an exported class."""
    for name in module.__all__:
        found = getattr(module, name)
        where = f"{module.__name__}.{name}"
        if inspect.isclass(found):
            yield f"{where}{_bases(found)}{_signature(found)}"
            yield from (f"{where}.{line}" for line in _members(found))
        elif callable(found):
            yield f"{where}{_signature(found)}"
        else:
            yield f"{where}: {type(found).__name__}"


def _bases(found: type) -> str:
    names = [base.__name__ for base in found.__mro__[1:] if base.__name__.endswith("Error")]
    return f" < {' < '.join(names)}" if names else ""


def _signature(found: Any) -> str:
    try:
        return _ADDRESS.sub("", str(inspect.signature(found)))
    except (TypeError, ValueError):
        return "(...)"


def _members(found: type) -> Iterator[str]:
    if issubclass(found, Enum):
        yield from (f"{member.name} = {member.value!r}" for member in found)
        return
    for name in sorted(dir(found)):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(found, name)
        if isinstance(member, (staticmethod, classmethod)):
            yield f"{name}{_signature(member.__func__)}"
        elif isinstance(member, property):
            yield name
        elif callable(member):
            yield f"{name}{_signature(member)}"
        elif not inspect.ismemberdescriptor(member):
            yield f"{name}: {type(member).__name__}"
        else:
            yield name


def entries(root: click.Group) -> Iterator[str]:
    """Every command with its parameters, then what the installation registers."""
    yield from _commands("penstock", root, click.Context(root))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group, targets in {"scripts": project["scripts"], **project["entry-points"]}.items():
        yield from (f"[{group}] {name} = {target}" for name, target in sorted(targets.items()))
    yield from (f"[extra] {name}" for name in sorted(project["optional-dependencies"]))


def _commands(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    words = []
    for parameter in command.params:
        spelled = parameter.name or ""
        if isinstance(parameter, click.Option):
            spelled = "/".join([*parameter.opts, *parameter.secondary_opts])
        words.append(spelled)
    yield " ".join([name, *sorted(words)])
    if isinstance(command, click.Group):
        for child in sorted(command.list_commands(context)):
            found = command.get_command(context, child)
            if found is not None:
                yield from _commands(f"{name} {child}", found, click.Context(found, parent=context))


def settings() -> Iterator[str]:
    """Options as the configuration page has them."""
    for options in docs_config.read_all():
        for option in options.options:
            key = f"{options.section}.{option.name}" if options.section else option.name
            yield " | ".join([key, option.type_name, option.default, option.rocketmq_name or "-"])


def loggers() -> list[str]:
    """Names that are written out in calls of `getLogger`."""
    found = set()
    for path in (ROOT / "penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith("getLogger")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(node.args[0].value)
    return sorted(found)


def files(directory: Path) -> list[str]:
    """Files below a directory; digits that differ from run to run are left out of their names."""
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted({re.sub(r"\d{14,}", "<number>", name) for name in found})


def as_text(sections: dict[str, Iterable[str]]) -> str:
    """Sections with their lines, each under its name."""
    return "\n".join(
        f"## {name}\n\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items()
    )
