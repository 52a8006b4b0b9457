"""Kinds of option values that several commands take; a wrong value is told in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    IntParam = click.ParamType[int]
else:
    IntParam = click.ParamType

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_QUOTED_MAX = 80


class NumberType(IntParam):
    """A whole number between two bounds; the help shows it as N."""

    name = "N"

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
            self.fail(f"{text[:_QUOTED_MAX]!r} is not a number", param, ctx)
        if not self._low <= int(text) <= self._high:
            self.fail(f"{text} is not between {self._low} and {self._high}", param, ctx)
        return int(text)


class SizeType(IntParam):
    """A number of bytes, plain or with K, M or G."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits = str(value).upper().removesuffix("B").removesuffix("I")
        unit = digits[-1:] if digits[-1:] in ("K", "M", "G") else ""
        digits = digits.removesuffix(unit)
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            self.fail(
                f"{str(value)[:_QUOTED_MAX]!r} is not a size; write it as in 65536, 64K or 1G", param, ctx
            )
        return int(digits) * _UNITS[unit]
