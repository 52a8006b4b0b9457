"""Writes the configuration page from the options classes: `docs_config.py PAGE`.

Every room keeps its options in `penstock/<room>/options.py`, as frozen dataclasses. A field's paragraph is
the string below it, or else the comment above it. The files are parsed, not imported, so the page can be
made without building anything. A field without a paragraph is an error: an option that nobody explained is
not done.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTRODUCTION = """\
# Configuration

Made by `make docs-config` from `penstock/*/options.py`. Edit there, not here.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One field of an options class, as the page shows it."""

    name: str
    type_name: str
    default: str
    paragraph: str


@dataclass(frozen=True, slots=True)
class OptionsClass:
    """One options class of a room."""

    room: str
    name: str
    paragraph: str
    options: list[Option]


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


def read_options(node: ast.ClassDef, lines: list[str]) -> Iterator[Option]:
    for index, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if statement.target.id.startswith("_"):
            continue
        below = node.body[index + 1] if index + 1 < len(node.body) else None
        paragraph = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            paragraph = " ".join(str(below.value.value).split())
        yield Option(
            name=statement.target.id,
            type_name=ast.unparse(statement.annotation),
            default=ast.unparse(statement.value) if statement.value else "required",
            paragraph=paragraph or comment_above(lines, statement.lineno),
        )


def read_room(path: Path) -> Iterator[OptionsClass]:
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and is_dataclass(node):
            options = list(read_options(node, source.splitlines()))
            paragraph = " ".join((ast.get_docstring(node) or "").split())
            yield OptionsClass(path.parent.name, node.name, paragraph, options)


def render(classes: list[OptionsClass]) -> str:
    parts = [INTRODUCTION]
    for group in classes:
        parts.append(f"\n## {group.room}: {group.name}\n\n{group.paragraph}\n")
        for option in group.options:
            parts.append(f"\n### `{option.name}`\n\n`{option.type_name}`, default `{option.default}`\n")
            parts.append(f"\n{option.paragraph}\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: docs_config.py PAGE", file=sys.stderr)
        return 2
    classes = [group for path in sorted(ROOT.glob("penstock/*/options.py")) for group in read_room(path)]
    unexplained = [
        f"{group.room}: {group.name}.{option.name}"
        for group in classes
        for option in group.options
        if not option.paragraph
    ]
    if unexplained:
        print(
            "These options have no paragraph; write one below each:",
            *unexplained,
            sep="\n  ",
            file=sys.stderr,
        )
        return 1
    page = Path(arguments[0])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(classes), encoding="utf-8")
    print(f"{page}: {sum(len(group.options) for group in classes)} options")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
