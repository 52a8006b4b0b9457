"""An import-linter contract: which modules may read the log at a bare position.

A position that came over the network is a number that a client chose: bytes inside another message's body can look
like a record. `penstock/broker/record_gate.py` proves that a record begins there. So nobody else in the room may read
the log by position, except the modules that the contract names, with the reason beside them in .importlinter.

What counts as a raw read, by name: an attribute or an imported function out of `names`. Python cannot tell what an
attribute belongs to, so the names are those of the store's raw reads, and no other class of the room may use them.

Rule: a module that is allowed to and reads nothing raw breaks the contract too, so the list stays short.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def raw_reads(source: str, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each raw read in a module's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in names)
        elif isinstance(node, ast.Constant) and node.value in names:  # getattr(store, "message_at")
            yield node.lineno, str(node.value)


class RawReadsContract(Contract):
    """Options: `room` (a package), `names` (of raw reads) and `allowed` (modules of the room that may use them)."""

    type_name = "raw_reads"

    room = fields.StringField()
    names = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        # import-linter puts the values of the fields onto the instance, which their types do not say.
        room, names = str(self.room), frozenset(cast(Any, self.names))
        allowed = {f"{room}.{name}" for name in cast(Any, self.allowed)}
        found: dict[str, list[tuple[int, str]]] = {}
        for module in sorted({room, *graph.find_descendants(room)}):
            path = Path(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            reads = sorted(set(raw_reads(path.read_text(), names)))
            if reads:
                found[module] = reads
        illegal = [(module, reads) for module, reads in found.items() if module not in allowed]
        return ContractCheck(
            kept=not illegal and allowed <= found.keys(),
            metadata={"illegal": illegal, "idle": sorted(allowed - found.keys())},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, reads in check.metadata["illegal"]:
            where = ", ".join(f"{name} (l.{line})" for line, name in reads)
            output.print_error(f"{module} reads the log by position: {where}; use record_gate", bold=False)
        for module in check.metadata["idle"]:
            output.print_error(f"{module} is in the list and reads nothing raw", bold=False)
        output.new_line()
