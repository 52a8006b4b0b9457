"""JSON as RocketMQ's files and messages hold it: what fastjson 1.2 writes is read, strict JSON is written.

Accepted beyond strict JSON, because fastjson writes it or lets people write it:

    bare keys        {0:12,1:15} and {name:1}; a key is always a `str` here, so 0 and "0" are the same key
    object keys      {{"queueId":0}:12}; the key is the object's text, which `loads` reads in turn
    single quotes    {'name':'value'}
    stray commas     [1,,2,] and {,"a":1,}
    loose strings    control characters as they are, and the escapes \\' \\v \\0 to \\7 \\x41

Rules: size and depth are limited, and what is not strict JSON can be limited further: reading it takes twenty
times as long. Of two equal keys the last one counts, as in fastjson; NaN and infinity are
refused. What cannot be read raises `CodecError` with line and column, never anything else. Strict JSON takes
the standard library's fast way; only other text meets the reader below. The one thing written that is not
JSON is a `BareKey` or an integer key without quotes, where a peer needs it. Pure functions, any thread.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from penstock.errors import CodecError

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 32

_SPACE = re.compile(r"[ \t\r\n\f\v\b]*")
_COMMAS = re.compile(r"[ \t\r\n\f\v\b,]*")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_BARE_KEY = re.compile(r"-?[0-9]+|[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_HEX = {"u": re.compile(r"[0-9A-Fa-f]{4}"), "x": re.compile(r"[0-9A-Fa-f]{2}")}
_ESCAPES = {
    **dict(zip("\"'\\/", "\"'\\/", strict=True)),
    **dict(zip("bfFnrtv", "\b\f\f\n\r\t\v", strict=True)),
    **{str(code): chr(code) for code in range(8)},
}
_HIGH_SURROGATE = re.compile("[\ud800-\udbff]")
_WORDS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}
# The longest number that a double or a 64-bit integer needs; Python would happily build far larger ones.
_MAX_NUMBER_CHARS = 64


class BareKey(str):
    """The JSON text of an object or an integer that is a key; `dump_compact` can write it without quotes."""

    __slots__ = ()


def loads(
    data: bytes | str,
    *,
    source: str = "JSON",
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_loose: int = MAX_BYTES,
) -> JsonValue:
    """Read one JSON value; `source` names the data in errors. What is longer than `max_loose` must be strict JSON."""
    if len(data) > max_bytes:
        raise CodecError(f"{source}: {len(data)} bytes are more than the limit of {max_bytes}")
    text = data if isinstance(data, str) else _decode(data, source)
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse, parse_float=_finite, strict=False)
        if is_within(value, max_depth):
            return value
        problem = f"nested deeper than {max_depth} levels"
    except (ValueError, RecursionError) as error:
        # Not strict JSON, or not acceptable: the reader below accepts it or says where it is wrong.
        problem = str(error)
    if len(data) > max_loose:
        raise CodecError(f"{source}: not strict JSON, as {len(data)} bytes of it have to be: {problem[:200]}")
    return _Reader(text, source, max_depth).document()


def dump_pretty(value: object) -> bytes:
    """Strict JSON in ASCII, one entry per line, tabs, sorted keys; integer keys are written quoted.

    fastjson 1.2 reads a quoted integer key as the integer, and its successor refuses bare ones. ASCII,
    because an older JVM reads the file in the platform's charset.
    """
    try:
        text = json.dumps(_ordered(value), indent="\t", separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"not a JSON value: {error}") from error
    return text.encode("ascii")


def dump_compact(value: object, *, bare_keys: bool = False) -> bytes:
    """JSON in ASCII without spaces, keys sorted, as peers send it to each other.

    With `bare_keys` integers and `BareKey`s that are keys stand without quotes, as fastjson 1.2 writes them;
    otherwise they are strings, and the whole is strict JSON.
    """
    try:
        if bare_keys:
            return _bare(value).encode("ascii")
        return json.dumps(_ordered(value), separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"not a JSON value: {error}") from error


def _bare(value: object) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (isinstance(key, str), key))
        return "{" + ",".join(f"{_bare_key(key)}:{_bare(value[key])}" for key in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_bare, value)) + "]"
    return json.dumps(value, allow_nan=False)


def _bare_key(key: object) -> str:
    if isinstance(key, BareKey) or (isinstance(key, int) and not isinstance(key, bool)):
        return str(key)
    if not isinstance(key, str):
        raise TypeError("a key must be a string, an integer or an object")
    return json.dumps(key)


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CodecError(f"{source}: byte {error.start} is not UTF-8") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is out of range")
    return number


def is_within(value: JsonValue, max_depth: int) -> bool:
    """Whether objects and lists are nested no deeper."""
    level = [value]
    for _ in range(max_depth):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return True
        level = inner
    return not any(isinstance(item, dict | list) for item in level)


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        keys = list(value)
        if any(isinstance(key, bool) or not isinstance(key, int | str) for key in keys):
            raise TypeError("a key must be a string or an integer")
        if len({str(key) for key in keys}) != len(keys):
            raise ValueError("the same key appears as an integer and as a string")
        keys.sort(key=lambda key: (isinstance(key, str), key))
        return {str(key): _ordered(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value


class _Reader:
    """Recursive descent over the lenient grammar; depth is limited, so recursion is too."""

    def __init__(self, text: str, source: str, max_depth: int) -> None:
        self._text = text
        self._source = source
        self._max_depth = max_depth
        self._at = 0

    def document(self) -> JsonValue:
        value = self._value(0)
        self._skip(_SPACE)
        if self._at < len(self._text):
            self._fail("nothing may follow the value")
        return value

    def _value(self, depth: int) -> JsonValue:
        self._skip(_SPACE)
        start = self._text[self._at : self._at + 1]
        if start in ("{", "["):
            if depth >= self._max_depth:
                self._fail(f"nested deeper than {self._max_depth} levels")
            self._at += 1
            return self._object(depth + 1) if start == "{" else self._array(depth + 1)
        if start in ('"', "'"):
            return self._string(start)
        if start in tuple("+-0123456789"):
            return self._number()
        return self._word()

    def _object(self, depth: int) -> JsonObject:
        members: JsonObject = {}
        while not self._closes("}"):
            key = self._key(depth)
            self._skip(_SPACE)
            if self._text[self._at : self._at + 1] != ":":
                self._fail(f"a ':' must follow the key {key[:40]!r}")
            self._at += 1
            members[key] = self._value(depth)
            self._expect_separator("}")
        return members

    def _array(self, depth: int) -> list[JsonValue]:
        items: list[JsonValue] = []
        while not self._closes("]"):
            items.append(self._value(depth))
            self._expect_separator("]")
        return items

    def _closes(self, bracket: str) -> bool:
        """Skip commas, which fastjson allows anywhere between entries, and the bracket if it is next."""
        self._skip(_COMMAS)
        if self._text.startswith(bracket, self._at):
            self._at += 1
            return True
        return False

    def _expect_separator(self, bracket: str) -> None:
        self._skip(_SPACE)
        if self._text[self._at : self._at + 1] not in (",", bracket):
            self._fail(f"',' or '{bracket}' must follow the value")

    def _key(self, depth: int) -> str:
        start = self._text[self._at : self._at + 1]
        if start in ('"', "'"):
            return self._string(start)
        if start == "{":
            # The text as it is: writing the object again would double its escapes at every level.
            begin = self._at
            self._value(depth)
            return self._text[begin : self._at]
        match = _BARE_KEY.match(self._text, self._at)
        if match is None:
            self._fail("a key must be quoted, an integer, a plain name or an object")
        self._at = match.end()
        return match.group()

    def _string(self, quote: str) -> str:
        self._at += 1
        parts: list[str] = []
        while True:
            match = _PLAIN[quote].match(self._text, self._at)
            if match is not None:
                parts.append(match.group())
                self._at = match.end()
            start = self._text[self._at : self._at + 1]
            if start == quote:
                self._at += 1
                return _join_surrogates("".join(parts))
            if start != "\\":
                self._fail("a string does not end")
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _HEX:
            match = _HEX[letter].match(self._text, self._at + 2)
            if match is None:
                self._fail(f"\\{letter} must be followed by hexadecimal digits")
            self._at = match.end()
            return chr(int(match.group(), 16))
        if letter not in _ESCAPES:
            self._fail(f"no such escape: \\{letter}")
        self._at += 2
        return _ESCAPES[letter]

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None or len(match.group()) > _MAX_NUMBER_CHARS:
            self._fail("not a number, or one with too many digits")
        number: int | float
        if match.group(1) is None and match.group(2) is None:
            number = int(match.group())
        else:
            number = float(match.group())
            if not math.isfinite(number):
                self._fail("a number out of range")
        self._at = match.end()
        return number

    def _word(self) -> JsonValue:
        match = _NAME.match(self._text, self._at)
        if match is None or match.group() not in _WORDS:
            self._fail("a value must be here" if self._at < len(self._text) else "the text ends too early")
        self._at = match.end()
        return _WORDS[match.group()]

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        raise CodecError(f"{self._source}: {reason}, at line {line}, column {column} (character {self._at})")


def _join_surrogates(text: str) -> str:
    """Two \\u escapes may be one character; a half alone stays as it is, as in the standard library."""
    if _HIGH_SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
