"""An import-linter contract for exact arrows between rooms.

import-linter's own contracts either fail on a package that does not exist yet (`forbidden`, `protected`) or
say only which of two rooms is lower (`layers`). Penstock wants more: for each room the full list of rooms
that it may import. This contract reads such a table and judges direct imports only; what follows
from several arrows together is the matter of the layers contract beside it in .importlinter.

Rule: a room without a line in the table breaks the contract, so the table stays complete.
Never: looks at imports from outside the package, or at imports inside one room.
"""

from typing import Any, cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def parse_arrows(lines: list[str]) -> dict[str, set[str]]:
    """`store -> message, _hot` for each line, as {"store": {"message", "_hot"}}."""
    arrows: dict[str, set[str]] = {}
    for line in lines:
        room, arrow, targets = (part.strip() for part in line.partition("->"))
        if not arrow or not room:
            raise ValueError(f"an arrow is written 'room -> room, room', not {line!r}")
        if room in arrows:
            raise ValueError(f"room {room!r} has two lines in the arrows")
        arrows[room] = {name.strip() for name in targets.split(",") if name.strip()}
    unknown = {name for targets in arrows.values() for name in targets} - arrows.keys()
    if unknown:
        raise ValueError(f"arrows lead to rooms that have no line of their own: {', '.join(sorted(unknown))}")
    return arrows


def room_of(module: str, package: str) -> str | None:
    """The room a module lives in; None for the package's own __init__, its public door."""
    return module[len(package) + 1 :].partition(".")[0] or None


class ArrowsContract(Contract):
    """Direct imports between rooms follow a table.

    Options: `package` (the root), `open` (rooms that every room may import, comma separated) and
    `arrows` (one line per room).
    """

    type_name = "arrows"

    package = fields.StringField()
    open = fields.StringField(required=False, default="")
    arrows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        # import-linter puts the values of the fields onto the instance, which their types do not say.
        arrows = parse_arrows(cast(Any, self.arrows))
        everyone = {name.strip() for name in str(self.open).split(",") if name.strip()}
        unplaced: set[str] = set()
        illegal: list[tuple[str, str, tuple[int, ...]]] = []
        for module in sorted(graph.find_descendants(package)):
            room = room_of(module, package)
            if room is None:
                continue
            if room not in arrows:
                unplaced.add(room)
                continue
            allowed = arrows[room] | everyone | {room}
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                target = room_of(imported, package) if imported.startswith(f"{package}.") else None
                if target is not None and target not in allowed:
                    details = graph.get_import_details(importer=module, imported=imported)
                    illegal.append((module, imported, tuple(detail["line_number"] for detail in details)))
        return ContractCheck(
            kept=not (illegal or unplaced), metadata={"illegal": illegal, "unplaced": sorted(unplaced)}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for room in check.metadata["unplaced"]:
            output.print_error(f"{room} has no line in the arrows of .importlinter", bold=False)
        for importer, imported, lines in check.metadata["illegal"]:
            where = ", ".join(f"l.{line}" for line in lines)
            output.print_error(f"{importer} -> {imported} ({where}) follows no arrow", bold=False)
        output.new_line()
