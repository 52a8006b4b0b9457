"""The table of expected differences in docs/compatibility.md, read so that tests can hold it to what happens.

A row: step, field, RocketMQ's value, Penstock's value, why. `*` stands for any text. A row that no difference needs is
as wrong as a difference without a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"


@dataclass(frozen=True, slots=True)
class Row:
    step: str
    field: str
    rocketmq: str
    penstock: str
    why: str

    def covers(self, step: str, field: str, values: tuple[str, str]) -> bool:
        patterns = (self.step, self.field, self.rocketmq, self.penstock)
        return all(
            _matches(pattern, text) for pattern, text in zip(patterns, (step, field, *values), strict=True)
        )


def read_rows(heading: str) -> list[Row]:
    """The rows of the first table under a heading of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [_row(line) for line in lines[2:]]


def _row(line: str) -> Row:
    cells = [cell.strip().removeprefix("`").removesuffix("`") for cell in line.strip("|").split("|")]
    assert len(cells) == 5, f"a row of five cells, not {line!r}"
    return Row(*cells)


# How far a broker's own checks of transactions have come, and whether any was parked yet, depends on when it is asked,
# here as there.
OF_THE_MOMENT = ("CID_RMQ_SYS_TRANS", "TRANS_CHECK_MAX_TIME_TOPIC")


def _matches(pattern: str, text: str) -> bool:
    wanted = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(wanted, text.strip(), re.DOTALL) is not None


def judge(found: Mapping[tuple[str, str], tuple[str, str]], rows: list[Row]) -> list[str]:
    """What is wrong: differences that no row explains, rows that explain no difference."""
    problems = []
    needed: set[Row] = set()
    for (step, field), values in found.items():
        if any(name in field for name in OF_THE_MOMENT):
            continue
        covering = [row for row in rows if row.covers(step, field, values)]
        needed.update(covering)
        if not covering:
            problems.append(f"not in the table: | {step} | {field} | {values[0]} | {values[1]} | why? |")
    problems += [f"no longer true: {row}" for row in rows if row not in needed]
    return problems
