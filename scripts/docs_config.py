"""Writes the configuration page from the options classes: `docs_config.py PAGE`, or `--check PAGE`.

Every room keeps its options in `penstock/<room>/options.py` (or `*_options.py`, `tls.py`), as frozen
dataclasses named `...Options`. A field's paragraph is the string below it, or else the comment above it; a
camelCase or dotted name in parentheses in it is RocketMQ's name for the same setting. The files are parsed,
not imported, so the page can be made without building anything. A field without a paragraph is an error: an
option that nobody explained is not done. A class that `SECTIONS` does not know comes last, under its own name.

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

Made by `make docs-config` from the options classes of each room. Edit there, not here.

A value is checked when the options are made; one outside its range raises `OptionError` with the name of the
option, where it was written, and what to use instead. The unit is the last word of a name: `_bytes`, `_ms`,
`_hours`, `_percent`.

Servers (`penstock up`, `nameserver`, `broker`, `coordinator`) take any option below from four places; the
later one wins. Here `broker.port`:

| place | written as |
|---|---|
| a TOML file, `--config penstock.toml` | `port = 10911` under `[broker]`; the process's own before any table |
| a file of RocketMQ, `--config broker.conf` | `listenPort=10911`; the last column of each table has these names |
| the environment | `PENSTOCK_BROKER_PORT=10911`; of the process `PENSTOCK_DATA` |
| flags | `--port 10911`, or for every option `--set broker.port=10911` |

In text, sizes may end in `K`, `M`, `G` and times in `ms`, `s`, `m`, `h`, `d`: `--set store.segment_size_bytes=64M`.
An unknown name is refused in a TOML file and in a flag, and named in a warning elsewhere. No file is read unless
`--config` names it. More: [operating servers](operating/servers.md#configuration).

Clients take their options as keyword arguments: `Producer(address, linger_ms=5)`.
"""
ROCKETMQ_NAME = re.compile(
    r"\((?P<name>[a-z]+[A-Z][A-Za-z0-9]*|[a-z]+(?:\.[A-Za-z]+)+)(?P<scale> / \d+)?(?:(?:;| of) [^)]*)?\)"
)
# What a class's options are called on the page and in `--set`, in the order of the page, with a title.
SECTIONS = {
    "ProcessOptions": ("", "The process"),
    "NameServerOptions": ("nameserver", "Name server"),
    "BrokerOptions": ("broker", "Broker"),
    "StoreOptions": ("store", "Store"),
    "ReplicationOptions": ("replication", "Replication"),
    "CoordinatorOptions": ("coordinator", "Coordinator"),
    "RemotingOptions": ("remoting", "Connections"),
    "TlsOptions": ("tls", "TLS"),
    "AccessOptions": ("access", "Access control"),
    "ClientOptions": ("client", "Every client"),
    "ProducerOptions": ("producer", "Producers"),
    "ConsumerOptions": ("consumer", "Consumers"),
}
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
}
PATTERNS = ("penstock/*/options.py", "penstock/*/*_options.py", "penstock/remoting/tls.py")
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

    @property
    def section(self) -> str:
        return SECTIONS.get(self.name, (self.name, ""))[0]

    @property
    def title(self) -> str:
        return SECTIONS.get(self.name, ("", self.name))[1]


@dataclass(frozen=True, slots=True)
class Module:
    """What the fields of an options file may refer to: its constants, and the members of its enums."""

    constants: dict[str, ast.expr]
    # Enumeration: member: value, as one writes it.
    choices: dict[str, dict[str, str]]

    @staticmethod
    def of(tree: ast.Module) -> "Module":
        constants: dict[str, ast.expr] = {}
        choices: dict[str, dict[str, str]] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                choices[node.name] = {
                    ast.unparse(member.targets[0]): str(ast.literal_eval(member.value))
                    for member in node.body
                    if isinstance(member, ast.Assign)
                }
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
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "dataclasses.field"):
            return next(self.value(keyword.value) for keyword in node.keywords if keyword.arg == "default")
        if isinstance(node, ast.Tuple):
            return tuple(self.value(item) for item in node.elts)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in self.choices:
            return self.choices[ast.unparse(node.value)][node.attr]
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
    if isinstance(value, tuple):
        return f"`{';'.join(map(str, value))}`" if value else "none"
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and "bytes" in name:
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
            type_name += f" ({', '.join(module.choices[type_name].values())})"
        names = ROCKETMQ_NAME.findall(paragraph)
        yield Option(
            name=name,
            type_name=type_name,
            default=show_default(name, module.value(statement.value)) if statement.value else "required",
            paragraph=paragraph,
            rocketmq_name="".join(names[0]) if names else "",
        )


def read_room(path: Path) -> Iterator[OptionsClass]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    module = Module.of(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and is_dataclass(node) and node.name.endswith("Options"):
            options = list(read_options(node, source.splitlines(), module))
            paragraph = " ".join((ast.get_docstring(node) or "").split())
            yield OptionsClass(path.parent.name, node.name, paragraph, options)


def read_all() -> list[OptionsClass]:
    found = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    # Options of Spark's reads and writes are given to Spark, by other names: docs/spark has their tables.
    paths = {path for path in found if path.parent.name != "spark"}
    order = [*SECTIONS]
    groups = [group for path in sorted(paths) for group in read_room(path)]
    return sorted(groups, key=lambda group: order.index(group.name) if group.name in order else len(order))


def unexplained(classes: list[OptionsClass]) -> list[str]:
    return [
        f"{group.room}: {group.name}.{option.name}"
        for group in classes
        for option in group.options
        if not option.paragraph
    ]


def heading_of(group: OptionsClass, option: Option) -> str:
    """The name of an option with its section, which is unique on the page."""
    return f"{group.section}.{option.name}" if group.section else option.name


def anchor_of(heading: str) -> str:
    """What a link to a heading says, as GitHub makes it."""
    return heading.replace(".", "").lower()


def render(classes: list[OptionsClass]) -> str:
    parts = [INTRODUCTION]
    for group in classes:
        parts.append(f"\n## {group.title}\n\n`{group.name}`. {group.paragraph}\n")
        parts.append("\n| option | default | in RocketMQ |\n|---|---|---|\n")
        for option in group.options:
            theirs = f"`{option.rocketmq_name}`" if option.rocketmq_name else ""
            anchor = anchor_of(heading_of(group, option))
            parts.append(f"| [`{option.name}`](#{anchor}) | {option.default} | {theirs} |\n")
        for option in group.options:
            parts.append(f"\n### `{heading_of(group, option)}`\n")
            parts.append(f"\n`{option.type_name}`, default {option.default}\n\n{option.paragraph}\n")
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
