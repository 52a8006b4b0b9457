"""Kinds of option values that several commands take; a wrong value is told in one line."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    IntParam = click.ParamType[int]
    PlaceParam = click.ParamType[str | int]
    PairParam = click.ParamType[tuple[str, str]]
else:
    IntParam = PlaceParam = PairParam = click.ParamType

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_QUOTED_MAX = 80
_AGO = re.compile(r"(\d{1,9}) ?([smhd])( ago)?")
_AGO_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH_MS_DIGITS = range(11, 16)


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


class PlaceType(PlaceParam):
    """Where to begin in a topic: `first`, `last`, or a time in milliseconds since the epoch."""

    name = "first|last|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value).strip()
        if text in ("first", "last"):
            return text
        moment = parse_time_ms(text)
        if moment is None:
            self.fail(
                f"{text[:_QUOTED_MAX]!r} is neither first nor last nor a time; write a time as in "
                "2025-01-31T15:00, 2025-01-31T15:00:00Z, 10m (ago) or 1738335600000",
                param,
                ctx,
            )
        return moment


class SpanType(IntParam):
    """A span of time as in `90s`, `10m`, `2h` or `3d`, in seconds."""

    name = "SPAN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        span = None if isinstance(value, int) else _AGO.fullmatch(str(value).strip())
        if span is None or span[3]:
            self.fail(
                f"{str(value)[:_QUOTED_MAX]!r} is not a span of time; write it as in 90s, 10m, 2h or 3d",
                param,
                ctx,
            )
        return int(span[1]) * _AGO_UNITS[span[2]]


class MomentType(IntParam):
    """A moment, in milliseconds since the epoch."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        moment = None if _AGO.fullmatch(text) else parse_time_ms(text)
        if moment is None:
            self.fail(
                f"{text[:_QUOTED_MAX]!r} is not a time; write it as in 2025-01-31T15:00, 2025-01-31T15:00:00Z or "
                "1738335600000",
                param,
                ctx,
            )
        return moment


def parse_time_ms(text: str, *, utc: bool = False) -> int | None:
    """ISO 8601 (local time unless it names a zone, UTC with `utc`), so long ago (`10m`), or milliseconds since the
    epoch."""
    if text.isascii() and text.isdigit() and len(text) in _EPOCH_MS_DIGITS:
        return int(text)
    if ago := _AGO.fullmatch(text):
        return time.time_ns() // 1_000_000 - int(ago[1]) * _AGO_UNITS[ago[2]] * 1000
    from datetime import UTC, datetime

    try:
        found = datetime.fromisoformat(text)
        if utc and found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        moment = int(found.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment >= 0 else None


class PairType(PairParam):
    """`NAME=VALUE`."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{str(value)[:_QUOTED_MAX]!r} is not of the form NAME=VALUE", param, ctx)
        return name.strip(), text
