"""What the audit and replay commands share: times and durations as options, and steps as lines.

Rule: people read standard error, programs standard output. On a terminal the step at hand is one line that changes;
elsewhere each is a line; with JSON each is an object in a line of standard output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line
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


@contextmanager
def told_steps(as_json: bool) -> Iterator[Callable[[str], None]]:
    """What to call with each step."""
    if as_json:
        yield lambda text: echo_json({"event": "step", "text": text}, lines=True)
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        with console.status("") as status:
            yield lambda text: status.update(Text(one_line(text)))
    else:
        yield lambda text: click.echo(one_line(text), err=True)
