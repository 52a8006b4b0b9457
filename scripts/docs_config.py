"""Writes the configuration page from the options classes: `docs_config.py PAGE`, or `--check PAGE`.

Every room keeps its options in `penstock/<room>/options.py`, as frozen dataclasses. A field's paragraph is
the string below it, or else the comment above it; a camelCase name in parentheses in it is RocketMQ's name
for the same setting. The files are parsed, not imported, so the page can be made without building anything.
A field without a paragraph is an error: an option that nobody explained is not done.

`--check` writes nothing and fails if the page is not what would be written.
"""

import ast
import operator
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTRODUCTION = """\
# Configuration

Made by `make docs-config` from `penstock/*/options.py`. Edit there, not here.

A value is checked when the options are made; one outside its range raises `OptionError` with the name of the
option and what to use instead. The unit is the last word of a name: `_bytes`, `_ms`, `_hours`, `_percent`.
"""
ROCKETMQ_NAME = re.compile(r"\(([a-z]+[A-Z][A-Za-z]*(?: / \d+)?)\)")
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
}
BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Option:
    """One field of an options class, as the page shows it."""

    name: str
    type_name: str
    default: str
    paragraph: str
    rocketmq_name: str


@dataclass(frozen=True, slots=True)
class OptionsClass:
    """One options class of a room."""

    room: str
    name: str
    paragraph: str
    options: list[Option]


@dataclass(frozen=True, slots=True)
class Module:
    """What the fields of an options file may refer to: its constants, and the members of its enums."""

    constants: dict[str, ast.expr]
    choices: dict[str, list[str]]

    @staticmethod
    def of(tree: ast.Module) -> "Module":
        constants: dict[str, ast.expr] = {}
        choices: dict[str, list[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                choices[node.name] = [
                    ast.unparse(member.targets[0]) for member in node.body if isinstance(member, ast.Assign)
                ]
        return Module(constants, choices)

    def value(self, node: ast.expr) -> object:
        """What an expression of numbers, strings and constants comes to; other expressions as their text."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.value(self.constants[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int) and isinstance(right, int):
                return OPERATORS[type(node.op)](left, right)
        return ast.unparse(node)


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def comment_above(lines: list[str], line_number: int) -> str:
    """The block of comment lines that ends right above a line, as one paragraph."""
    block: list[str] = []
    for line in reversed(lines[: line_number - 1]):
        text = line.strip()
        if not text.startswith("#"):
            break
        block.append(text.lstrip("#: "))
    return " ".join(reversed(block))


def show_default(name: str, value: object) -> str:
    """A default as one would write it, and in a larger unit where bytes are counted."""
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in name:
        for unit, unit_name in BINARY_UNITS:
            if value and value % unit == 0:
                return f"`{value}` ({value // unit} {unit_name})"
    return f"`{value}`"


def read_options(node: ast.ClassDef, lines: list[str], module: Module) -> Iterator[Option]:
    for index, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        if name.startswith("_"):
            continue
        below = node.body[index + 1] if index + 1 < len(node.body) else None
        paragraph = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            paragraph = " ".join(str(below.value.value).split())
        paragraph = paragraph or comment_above(lines, statement.lineno)
        type_name = ast.unparse(statement.annotation)
        if type_name in module.choices:
            type_name += f" ({', '.join(module.choices[type_name])})"
        names = ROCKETMQ_NAME.findall(paragraph)
        yield Option(
            name=name,
            type_name=type_name,
            default=show_default(name, module.value(statement.value)) if statement.value else "required",
            paragraph=paragraph,
            rocketmq_name=names[0] if names else "",
        )


def read_room(path: Path) -> Iterator[OptionsClass]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    module = Module.of(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and is_dataclass(node):
            options = list(read_options(node, source.splitlines(), module))
            paragraph = " ".join((ast.get_docstring(node) or "").split())
            yield OptionsClass(path.parent.name, node.name, paragraph, options)


def read_all() -> list[OptionsClass]:
    return [group for path in sorted(ROOT.glob("penstock/*/options.py")) for group in read_room(path)]


def unexplained(classes: list[OptionsClass]) -> list[str]:
    return [
        f"{group.room}: {group.name}.{option.name}"
        for group in classes
        for option in group.options
        if not option.paragraph
    ]


def render(classes: list[OptionsClass]) -> str:
    parts = [INTRODUCTION]
    for group in classes:
        parts.append(f"\n## {group.room}: {group.name}\n\n{group.paragraph}\n")
        parts.append("\n| option | default | in RocketMQ |\n|---|---|---|\n")
        for option in group.options:
            theirs = f"`{option.rocketmq_name}`" if option.rocketmq_name else ""
            parts.append(f"| [`{option.name}`](#{option.name}) | {option.default} | {theirs} |\n")
        for option in group.options:
            parts.append(f"\n### `{option.name}`\n\n`{option.type_name}`, default {option.default}\n")
            parts.append(f"\n{option.paragraph}\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    pages = [argument for argument in arguments if argument != "--check"]
    if len(pages) != 1:
        print("usage: docs_config.py [--check] PAGE", file=sys.stderr)
        return 2
    classes = read_all()
    missing = unexplained(classes)
    if missing:
        print("These options have no paragraph; write one above each:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    page, text = Path(pages[0]), render(classes)
    if check:
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            return 0
        print(f"{page} is not what the options say; run: make docs-config", file=sys.stderr)
        return 1
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    print(f"{page}: {sum(len(group.options) for group in classes)} options")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
