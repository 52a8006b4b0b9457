"""Our answers in the letters of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import FilterError
from penstock.filters import compile_expression
from penstock.filters.values import NotComparable

LETTERS = {True: "T", False: "F", None: "N"}


def our_answers(sql: str, sets: Sequence[Mapping[str, str]]) -> str:
    """`!`, or a letter for each set; a match is T and nothing else."""
    try:
        expression = compile_expression(sql)
    except FilterError:
        return "!"
    letters = ""
    for properties in sets:
        try:
            letters += LETTERS[expression.evaluate(properties)]
        except NotComparable:
            letters += "E"
        assert expression.matches(properties) is (letters[-1] == "T")
    return letters
