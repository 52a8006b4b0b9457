"""The JSON of a table, member by member: at once for a small answer, or in pieces for a file.

A table may have 100,000 rows and change while its file is written. So the rows are taken in small lots, by whoever
owns the table, and made into text elsewhere. Rows of different lots may be from different moments: where that
matters the journal has what changed meanwhile (`table_log.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.metadata.fastjson import JsonObject, JsonValue, dump_compact

# Rows of one piece: about a millisecond of work.
LOT = 128


@dataclass(frozen=True, slots=True)
class Rows:
    """One member with a row for each of many keys."""

    # The keys there are now.
    keys: Callable[[], Sequence[Any]]
    # A row's name and its value; None if it is gone. The value must be one that never changes.
    take: Callable[[Any], tuple[str, Any] | None]
    # A value as JSON; called anywhere.
    encode: Callable[[Any], JsonValue]


Members = dict[str, JsonValue | Rows]
Piece = Callable[[], bytes]


def table_json(members: Members) -> JsonObject:
    """The whole, at once."""
    return {name: _whole(member) if isinstance(member, Rows) else member for name, member in members.items()}


def _whole(rows: Rows) -> JsonObject:
    keys = rows.keys()
    taken = map(rows.take, keys)
    return {row[0]: rows.encode(row[1]) for row in taken if row is not None}


def table_pieces(members: Members) -> Iterator[Piece]:
    """The text of a file, one row in a line, as functions that make a piece each: call them in order, in any thread.

    The iterator itself is for the owner of the table: what a function needs is taken when it comes out.
    """
    before = "{\n"
    for name, member in members.items():
        head = f"{before}\t{_text(name)}:"
        before = ",\n"
        if isinstance(member, Rows):
            yield from _row_pieces(head, member)
        else:
            yield _Piece(head, member)
    yield (lambda: b"{}\n") if before == "{\n" else (lambda: b"\n}\n")


def _row_pieces(head: str, rows: Rows) -> Iterator[Piece]:
    keys, before = rows.keys(), head + "{"
    for first in range(0, len(keys), LOT):
        lot = [row for row in map(rows.take, keys[first : first + LOT]) if row is not None]
        if lot:
            yield _Lot(before, lot, rows.encode)
            before = ","
    yield _Piece(before, None, "}") if before != "," else _Piece("", None, "\n\t}")


@dataclass(frozen=True, slots=True)
class _Piece:
    before: str
    value: JsonValue
    after: str = ""

    def __call__(self) -> bytes:
        text = b"" if self.after else dump_compact(self.value)
        return self.before.encode() + text + self.after.encode()


@dataclass(frozen=True, slots=True)
class _Lot:
    before: str
    rows: list[tuple[str, Any]]
    encode: Callable[[Any], JsonValue]

    def __call__(self) -> bytes:
        lines = (f"\n\t\t{_text(name)}:".encode() + dump_compact(self.encode(row)) for name, row in self.rows)
        return self.before.encode() + b",".join(lines)


def _text(name: str) -> str:
    return dump_compact(name).decode()
