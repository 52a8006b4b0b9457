"""Values on their way into the options classes: text or TOML in, checked and typed values out.

Works on any frozen dataclass of options, by its fields and their types; no option is named here. A value knows
where it was written (`broker.toml:3`, `PENSTOCK_BROKER_PORT`, `--port`), and every complaint says so. Of several
values for one option the last one wins, so whoever collects them does it in rising order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.errors import OptionError

Options = TypeVar("Options")

TRUE_WORDS = frozenset(("true", "yes", "on", "1"))
FALSE_WORDS = frozenset(("false", "no", "off", "0"))
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIME_UNITS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
QUOTED_MAX = 80
_NUMBER = re.compile(r"([+-]?[0-9][0-9_]{0,20}) ?([A-Za-z]{0,3})")


@dataclass(frozen=True, slots=True)
class Setting:
    """One option with the value that a source gave it. `section` is the options class's short name."""

    section: str
    name: str
    value: object
    origin: str


class ValueProblem(ValueError):
    """Why a value cannot be what an option needs; becomes an `OptionError` where the origin is known."""


def option_names(options_class: type) -> list[str]:
    return [field.name for field in fields(options_class)]


@cache
def _types(options_class: type) -> dict[str, Any]:
    return get_type_hints(options_class)


def convert(options_class: type, name: str, raw: object) -> object:
    """A raw value as the type that the field has; raises ValueProblem."""
    return _as_type(_types(options_class)[name], name, raw)


def _as_type(wanted: Any, name: str, raw: object) -> object:
    if get_origin(wanted) in (Union, UnionType):
        options = [part for part in get_args(wanted) if part is not NoneType]
        if len(options) < len(get_args(wanted)) and isinstance(raw, str) and raw.lower() in ("", "none"):
            return None
        return _as_type(options[0], name, raw)
    if get_origin(wanted) is tuple:
        return _as_tuple(get_args(wanted)[0], name, raw)
    if wanted is bool:
        return _as_bool(raw)
    if wanted is int:
        return _as_int(name, raw)
    if wanted is float:
        return _as_float(raw)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _as_member(wanted, raw)
    if not isinstance(raw, str):
        shown = "a secret" if "secret" in name else _quoted(raw)
        raise ValueProblem(f"is {shown}, not text: write it in quotes")
    return Path(raw) if wanted is Path else raw


def _as_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in TRUE_WORDS | FALSE_WORDS:
        return raw.lower() in TRUE_WORDS
    raise ValueProblem(f"is {_quoted(raw)}: use true or false")


def _as_int(name: str, raw: object) -> int:
    """Whole numbers; a size in bytes may end in K, M or G, a time in ms, s, m, h or d."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    units = SIZE_UNITS if "bytes" in name else TIME_UNITS if name.endswith("_ms") else {"": 1}
    match = _NUMBER.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None:
        raise ValueProblem(f"is {_quoted(raw)}, not a whole number")
    unit = match[2].lower()
    if units is SIZE_UNITS:
        unit = unit.removesuffix("b").removesuffix("i")
    if unit not in units:
        known = ", ".join(filter(None, (unit.upper() if units is SIZE_UNITS else unit for unit in units)))
        raise ValueProblem(f"is {_quoted(raw)}: {'units are ' + known if known else 'it has no unit'}")
    return int(match[1].replace("_", "")) * units[unit]


def _as_float(raw: object) -> float:
    try:
        if isinstance(raw, (int, float, str)) and not isinstance(raw, bool):
            return float(raw)
    except ValueError:
        pass
    raise ValueProblem(f"is {_quoted(raw)}, not a number")


def _as_member(wanted: type[Enum], raw: object) -> Enum:
    for member in wanted:
        if isinstance(raw, str) and raw.lower() in (member.name.lower(), str(member.value).lower()):
            return member
    raise ValueProblem(f"is {_quoted(raw)}: use {' or '.join(str(member.value) for member in wanted)}")


def _as_tuple(wanted: Any, name: str, raw: object) -> tuple[object, ...]:
    parts = re.split(r"[;,\s]+", raw) if isinstance(raw, str) else raw
    if not isinstance(parts, list):
        raise ValueProblem(f"is {_quoted(raw)}, not a list")
    return tuple(_as_type(wanted, name, part) for part in parts if part != "")


def _quoted(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 1] + "…"


def build(options_class: type[Options], settings: Iterable[Setting]) -> Options:
    """The options with these values; a value that the class refuses is reported with its origin."""
    given = {setting.name: setting for setting in settings}
    values: dict[str, Any] = {}
    for name, setting in given.items():
        try:
            values[name] = convert(options_class, name, setting.value)
        except ValueProblem as problem:
            raise OptionError(f"{setting.origin}: {name} {problem}") from None
    try:
        return options_class(**values)
    except OptionError as error:
        origins = _blamed(options_class, given, values, error)
        raise OptionError(
            f"{', '.join(origins)}: {error.message}" if origins else error.message, error.hint
        ) from None


def _blamed(
    options_class: type, given: dict[str, Setting], values: dict[str, Any], error: OptionError
) -> list[str]:
    """Where the refused value was written: the option that the message names, else what fails alone, else all."""
    named = [setting.origin for name, setting in given.items() if error.message.split(" ", 1)[0] == name]
    if named:
        return named
    alone = []
    for name, value in values.items():
        try:
            options_class(**{name: value})
        except OptionError as refused:
            if refused.message == error.message:
                alone.append(given[name].origin)
    return alone or [setting.origin for setting in given.values()]
