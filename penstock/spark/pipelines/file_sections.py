"""A TOML file read section by section: every problem is noted with its line, none ends the reading.

Rules: whoever reads a section asks it for each key that may be there, with its kind; what nobody asked for is
unknown and told with the nearest name. A value of the wrong kind is noted and read as if it were absent, so that
one look finds everything. Lines come from a scan of the text of its own, since a parsed value has lost its place.
Plain data; no Spark, no disk.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import did_you_mean

SHOWN_MAX = 60
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What is wrong, and where: the line of the file (0: none in particular) and the field."""

    line: int
    where: str
    message: str

    def __str__(self) -> str:
        place = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.where)))
        return f"{place}: {self.message}" if place else self.message


@dataclass(slots=True)
class Document:
    """A parsed file, where its keys stand, and what was found wrong with it so far."""

    content: dict[str, Any]
    lines: dict[Path, int]
    problems: list[Problem] = field(default_factory=list)

    @staticmethod
    def parse(text: str) -> Document:
        """A file that is no TOML has one problem and no content."""
        try:
            return Document(tomllib.loads(text), key_lines(text))
        except tomllib.TOMLDecodeError as error:
            place = _TOML_PLACE.search(str(error))
            line = int(place[1]) if place and place[1] else len(text.splitlines())
            message = _TOML_PLACE.sub("", str(error))
            return Document({}, {}, [Problem(line, "", f"not TOML: {message}")])

    def line_of(self, path: Path) -> int:
        """The line of a key, of what is below it, or of the nearest section around it."""
        while path:
            below = [line for found, line in self.lines.items() if found[: len(path)] == path]
            if below:
                return min(below)
            path = path[:-1]
        return 0

    def note(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self.line_of(path), ".".join(path), message))

    def section(self) -> Section:
        return Section(self, (), self.content)


class Section:
    """One table of the file. Ask for each key, then `finish`."""

    def __init__(self, document: Document, path: Path, content: Mapping[str, Any]) -> None:
        self._document, self.path, self._content = document, path, content
        self._known: set[str] = set()

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    def note(self, key: str, message: str) -> None:
        self._document.note((*self.path, key) if key else self.path, message)

    def has(self, key: str) -> bool:
        return key in self._content

    def text(self, key: str, default: str = "", *, required: bool = False) -> str:
        value = self._value(key)
        if value is None:
            if required:
                self.note("", f"{key} is missing")
            return default
        if not isinstance(value, str):
            return self._wrong(key, "text", value, default)
        if required and not value.strip():
            self.note(key, "is empty")
        return value

    def option(self, key: str) -> str:
        """Text, a number or true/false, as the text that Spark's options are made of; empty if absent."""
        value = self._value(key)
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str | int | float):
            return str(value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return ",".join(value)
        return self._wrong(key, "text or a number", value, "")

    def number(self, key: str, low: int = 1) -> int | None:
        value = self._value(key)
        if value is None:
            return None
        if type(value) is not int or value < low:
            return self._wrong(key, f"a whole number from {low} on", value, None)
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of words, or one word."""
        value = self._value(key)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            return self._wrong(key, 'a list of words, as ["a", "b"]', value, ())
        return tuple(items)

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.note(
                key, f"{shown(value)} is not one of {', '.join(choices)}{_did_you_mean(value, choices)}"
            )
            return default
        return value

    def pairs(self, key: str) -> dict[str, str]:
        """A table of options whose names are not ours to know."""
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            return self._wrong(key, "a table", value, {})
        inner = Section(self._document, (*self.path, key), value)
        return {name: inner.option(name) for name in value}

    def table(self, key: str) -> Section | None:
        """A table below this one, or None if it is not there."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            return self._wrong(key, "a table", value, None)
        return Section(self._document, (*self.path, key), value)

    def tables(self, key: str) -> list[Section]:
        """The tables of a table: `[sources.a]`, `[sources.b]`, in the order of the file."""
        outer = self.table(key)
        if outer is None:
            return []
        found = [outer.table(name) for name in outer._content]
        return [section for section in found if section is not None]

    def finish(self) -> None:
        """Everything that may be here has been asked for: the rest is a mistake."""
        for key in self._content:
            if key not in self._known:
                self.note(key, f"unknown key{_did_you_mean(key, self._known)}")

    def _value(self, key: str) -> Any:
        self._known.add(key)
        return self._content.get(key)

    def _wrong(self, key: str, kind: str, value: object, instead: Any) -> Any:
        self.note(key, f"must be {kind}, not {shown(value)}")
        return instead


def shown(value: object) -> str:
    """A value of the file in a message: short, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 4]} ..."


def _did_you_mean(name: str, known: Collection[str]) -> str:
    near = did_you_mean(name, known)
    return f"; {near}" if near else f"; known here: {', '.join(sorted(known))}" if len(known) < 30 else ""


def key_lines(text: str) -> dict[Path, int]:
    """The line of every key and header that begins a line. Enough for messages; the parser judges the file."""
    found: dict[Path, int] = {}
    section: Path = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            if closing in line:
                closing = ""
            continue
        if header := _HEADER.match(line):
            section = _parts(header[1])
            found.setdefault(section, number)
        elif key := _KEY.match(line):
            found.setdefault((*section, *_parts(key[1])), number)
            closing = _open_string(key[2])
    return found


def _parts(text: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


def _open_string(value: str) -> str:
    """The end that a string of several lines waits for, if one begins here and does not end here."""
    for quotes in ('"""', "'''"):
        if value.strip().startswith(quotes):
            return "" if quotes in value.strip()[3:] else quotes
    return ""
