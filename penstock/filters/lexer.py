"""Words of an SQL92 filter, one at a time.

The longest word wins, as in RocketMQ, with consequences that look odd and are kept: `007` is three numbers, `0L` a
number and a name, and two dashes are a comment only if their line ends. Words are made when asked for: what stands
behind a complete expression is never looked at, except for the first word. Letters and digits are ASCII.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from penstock.errors import FilterError

# Of the text itself; a broker may allow less.
EXPRESSION_SIZE_MAX = 65_536
_SHOWN = 30


class Kind(Enum):
    """What a word is."""

    END = "the end"
    NAME = "a property"
    INTEGER = "an integer"
    FLOAT = "a number"
    STRING = "a string"
    KEYWORD = "a keyword"
    SIGN = "a sign"


class Token(NamedTuple):
    """A word: keywords in capitals, strings without their quotes; `at` is its place in the text."""

    kind: Kind
    text: str
    at: int


KEYWORDS = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
_SKIPPED = re.compile(
    r"(?:[ \t\n\r\f]"
    r"|--[^\n\r]*[\n\r]"
    r"|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*",
    re.ASCII,
)
_WORD = re.compile(
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:[^']|'')*')"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])",
    re.ASCII,
)
_KINDS = {
    "name": Kind.NAME,
    "float": Kind.FLOAT,
    "integer": Kind.INTEGER,
    "string": Kind.STRING,
    "sign": Kind.SIGN,
}


class Lexer:
    """The words of one text, in order."""

    def __init__(self, text: str) -> None:
        if len(text) > EXPRESSION_SIZE_MAX:
            raise FilterError(
                f"the expression has {len(text)} characters, at most {EXPRESSION_SIZE_MAX} may be"
            )
        self._text = text
        self._at = 0

    def next(self) -> Token:
        """The next word; END when there are none, again and again. Raises FilterError for what is none."""
        text = self._text
        skipped = _SKIPPED.match(text, self._at)
        at = self._at if skipped is None else skipped.end()
        if at == len(text):
            self._at = at
            return Token(Kind.END, "", at)
        found = _WORD.match(text, at)
        if found is None or found.lastgroup is None:
            raise self._unreadable(at)
        self._at = found.end()
        kind, word = _KINDS[found.lastgroup], found[0]
        if kind is Kind.NAME and word.upper() in KEYWORDS:
            return Token(Kind.KEYWORD, word.upper(), at)
        if kind is Kind.STRING:
            word = word[1:-1].replace("''", "'")
        return Token(kind, word, at)

    def _unreadable(self, at: int) -> FilterError:
        rest = self._text[at : at + _SHOWN]
        if rest[0] == "'":
            return FilterError(f"the string {rest!r} does not end", "double the quotes inside it", at)
        if rest.startswith("/*"):
            return FilterError(f"the comment {rest!r} does not end", "close it with */", at)
        return FilterError(f"{rest[0]!r} is no part of an expression", "quote text with '", at)
