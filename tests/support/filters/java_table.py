"""What RocketMQ's own classes answer: expressions, sets of properties, and a letter for each pair of them.

`java_answers.jsonl` has first the property sets, one object a line, then `[expression, answers of 5.3, of 4.9]`: `!`
if it does not parse, else for each set T, F, N (null) or E (evaluating fails). It was written by those classes, and
`make interop` compares it with them; after a new line `python -m tests.interop.filter_table` writes the answers in.
`java_tags.jsonl` has the same for lists of tags: `[list, null if it is refused, else [text, tags, codes]]`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).with_name("java_answers.jsonl")
TAGS_PATH = Path(__file__).with_name("java_tags.jsonl")


class Row(NamedTuple):
    sql: str
    answers: str
    answers_4_9: str


def read_table() -> tuple[list[dict[str, str]], list[Row]]:
    """Property sets, and rows."""
    lines = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
    sets = [line for line in lines if isinstance(line, dict)]
    return sets, [Row(*line) for line in lines if isinstance(line, list)]


def write_table(sets: list[dict[str, str]], rows: list[Row]) -> None:
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in (*sets, *rows)]
    PATH.write_text("".join(lines), encoding="utf-8")


def read_tags() -> list[tuple[str, list[object] | None]]:
    """Lists of tags, and what a subscription to them says."""
    return [
        (text, answer) for text, answer in map(json.loads, TAGS_PATH.read_text(encoding="utf-8").splitlines())
    ]
