"""Text as numbers and truth, read and compared as Java does it.

A property is text. Compared with a number it is read as one of that number's type, and what does not fit is an error
of the evaluation. Doubles have a total order: -0.0 is below 0.0, NaN is above everything and equal to itself.
"""

from __future__ import annotations

import math
import re

from penstock.filters.tree import NumberType

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
# Longer text is no number here, whatever it says: reading it would take time that other consumers wait for.
NUMBER_SIZE_MAX = 1_000
# What Java's trim takes away.
_BLANKS = "".join(map(chr, range(33)))
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?", re.ASCII
)
_NAMED = re.compile(r"([+-]?)(NaN|Infinity)", re.ASCII)


class NotComparable(Exception):
    """Two values of a message and an expression that cannot be compared: the message does not match."""


def parse_integer(text: str, highest: int) -> int | None:
    """A signed integer up to `highest`, and one below on the negative side; None if the text is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java counts digits of every script, one 16-bit unit at a time.
    if not digits.isdecimal() or len(digits) > NUMBER_SIZE_MAX or max(digits) > "\uffff":
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -highest - 1 <= value <= highest else None


def parse_double(text: str) -> float | None:
    """A double in any of Java's spellings; None if the text is none."""
    if len(text) > NUMBER_SIZE_MAX:
        return None
    text = text.strip(_BLANKS)
    found = _DECIMAL.fullmatch(text)
    if found is not None:
        return float(found[1])
    found = _NAMED.fullmatch(text)
    if found is not None:
        return math.nan if found[2] == "NaN" else float(f"{found[1]}inf")
    found = _HEXADECIMAL.fullmatch(text)
    if found is None:
        return None
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def parse_as(text: str, kind: NumberType) -> int | float:
    """Text as a number of a type. Raises NotComparable."""
    found: int | float | None
    if kind is NumberType.DOUBLE:
        found = parse_double(text)
    else:
        found = parse_integer(text, INT_MAX if kind is NumberType.INT else LONG_MAX)
    if found is None:
        raise NotComparable
    return found


def parse_boolean(text: str) -> bool:
    return text.lower() == "true"


def compare_numbers(left: int | float, right: int | float) -> int:
    """Below, equal or above: -1, 0, 1. Integers are exact; with a double on one side both are doubles."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return _compare_doubles(float(left), float(right))


def _compare_doubles(left: float, right: float) -> int:
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0.0:
        return 0
    # Zeros by their sign, NaN after all.
    a = 2 if math.isnan(left) else math.copysign(1, left)
    b = 2 if math.isnan(right) else math.copysign(1, right)
    if math.isnan(left) != math.isnan(right) or left == right:
        return (a > b) - (a < b)
    return 0
