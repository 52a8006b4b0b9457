"""Times, durations and numbers with a fraction as options of the Spark commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.option_types import parse_time_ms

if TYPE_CHECKING:
    IntParam = click.ParamType[int]
    FloatParam = click.ParamType[float]
else:
    IntParam = FloatParam = click.ParamType

_DURATION = re.compile(r"(\d{1,9}) ?([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class TimeType(IntParam):
    """A moment in milliseconds: `2025-01-31T15:00` (local, or with `utc` UTC), `10m` (ago), or a number."""

    name = "TIME"

    def __init__(self, *, utc: bool = False) -> None:
        self._utc = utc

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        moment = parse_time_ms(str(value).strip(), utc=self._utc)
        if moment is None:
            self.fail(
                f"{str(value)[:80]!r} is no time; write it as in 2025-01-31T15:00, 2025-01-31T15:00:00Z, 10m (ago) "
                "or 1738335600000",
                param,
                ctx,
            )
        return moment


class DurationType(IntParam):
    """A number of seconds: `90`, `30s`, `5m`, `1h`."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(str(value).strip().lower())
        if found is None:
            self.fail(f"{str(value)[:80]!r} is no duration; write it as in 30s, 5m, 1h or 1d", param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


class ShareType(FloatParam):
    """A number with a fraction, between two bounds."""

    name = "X"

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{str(value)[:80]!r} is not a number", param, ctx)
        if not self._low <= number <= self._high:
            self.fail(f"{value} is not between {self._low:g} and {self._high:g}", param, ctx)
        return number
