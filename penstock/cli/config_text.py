"""Configuration files as lists of settings with their lines: Penstock's TOML and Java's properties.

Rule: reading a file never runs anything and never looks at an option's meaning. What a key means is decided by
`config` (TOML) and `rocketmq_config` (properties).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OptionError

FILE_MAX_BYTES = 1 << 20
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_\"'.-]+)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_\"'.-]+)\s*=")
_TOML_LINE = re.compile(r"^(.*) \(at line (\d+), column \d+\)$", re.S)
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


@dataclass(frozen=True, slots=True)
class Line:
    """One value of a file. `section` is empty for what stands before any table, and for properties."""

    section: str
    key: str
    value: object
    number: int


def read_text(path: Path) -> str:
    """The file's text; a file that is none is refused with its name."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror or error}", "name a file that can be read") from None
    if len(data) > FILE_MAX_BYTES:
        raise OptionError(f"{path} has {len(data):,} bytes", "a configuration file has at most 1 MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{path}:{line}: not UTF-8", "save the file as UTF-8") from None


# -- TOML --------------------------------------------------------------------------------------------------------


def read_toml(path: Path) -> list[Line]:
    """Values of the tables `[section]`, and those before any table."""
    text = read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _TOML_LINE.match(str(error))
        place, what = (f"{path}:{match[2]}", match[1]) if match else (str(path), str(error))
        raise OptionError(f"{place}: {what}", "see docs/quickstart.md for an example") from None
    places = _toml_places(text)
    found = []
    for key, value in document.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                found.append(Line(key, name, inner, places.get((key, name), places.get((key, ""), 0))))
        else:
            found.append(Line("", key, value, places.get(("", key), 0)))
    return found


def _toml_places(text: str) -> dict[tuple[str, str], int]:
    """Line of each (section, key). Lines within a string of several lines may be taken for keys: no harm, the
    first one found counts."""
    places: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = _bare(header[1])
            places.setdefault((section, ""), number)
        elif key := _KEY.match(line):
            name = _bare(key[1])
            if not section and "." in name:
                outer, _, name = name.partition(".")
                places.setdefault((outer, name), number)
            else:
                places.setdefault((section, name), number)
    return places


def _bare(name: str) -> str:
    return name.replace('"', "").replace("'", "")


# -- Java properties ---------------------------------------------------------------------------------------------


def read_properties(path: Path) -> list[Line]:
    """Keys and values as `java.util.Properties` reads them; of equal keys the last one counts."""
    found: dict[str, Line] = {}
    for number, line in _logical_lines(read_text(path)):
        key, value = _split(line)
        try:
            name, text = _unescape(key), _unescape(value)
        except ValueError:
            raise OptionError(
                f"{path}:{number}: \\u without four hex digits", "write it as \\u0041"
            ) from None
        found[name] = Line("", name, text.strip(), number)
    return list(found.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, joined where one ends in an odd number of backslashes; with their first number."""
    waiting, first = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANKS)
        if not waiting and (not line or line[0] in "#!"):
            continue
        first = first if waiting else number
        waiting += line
        if (len(waiting) - len(waiting.rstrip("\\"))) % 2:
            waiting = waiting[:-1] or " "
            continue
        yield first, waiting
        waiting = ""
    if waiting:
        yield first, waiting


def _split(line: str) -> tuple[str, str]:
    """The key ends at the first `=`, `:` or blank that no backslash precedes."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(_BLANKS)
    return line[:at], rest[1:].lstrip(_BLANKS) if rest[:1] in ("=", ":") else rest


def _unescape(text: str) -> str:
    parts, at = [], 0
    while (slash := text.find("\\", at)) >= 0:
        parts.append(text[at:slash])
        following = text[slash + 1 : slash + 2]
        at = slash + 2
        if following == "u":
            digits = text[at : at + 4]
            if not _UNICODE.fullmatch(digits):
                raise ValueError(digits)
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(following, following))
    parts.append(text[at:])
    return "".join(parts)
