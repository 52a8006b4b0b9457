"""Typed reading of one JSON object, field by field, with errors that name the file and the key.

Rules: `null` and absence mean the default, as in fastjson; a boolean is not a number; a number outside its
range is refused, never cut. What was not asked for is `rest()`: fields of another version, which the caller
keeps and writes back. One object reads one JSON object and belongs to the call that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NoReturn, Self

from penstock.errors import CodecError
from penstock.metadata.fastjson import JsonObject, JsonValue

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class JsonFields:
    """The fields of the object at `where` (`table.T1`) in the file `source`."""

    # What to do about an error, and what the outermost object is called in it.
    HINT: ClassVar[str] = "correct the file or restore a copy of it"
    WHOLE: ClassVar[str] = "the file"

    def __init__(self, value: JsonValue, source: str, where: str = "") -> None:
        self.source = source
        self.where = where
        if not isinstance(value, dict):
            self.fail("", f"must be an object, not {_kind(value)}")
        self._value: JsonObject = value
        self._asked: set[str] = set()

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self._take(key)
        return default if value is None else self._in_range(key, value, low, high)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {_kind(value)}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(key, f"must be a string, not {_kind(value)}")
        return value

    def choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key, default)
        if value not in allowed:
            self.fail(key, f"must be one of {', '.join(allowed)}, not {value[:40]!r}")
        return value

    def inner(self, key: str) -> Self | None:
        """The object in a field, or None if there is none."""
        value = self._take(key)
        return None if value is None else type(self)(value, self.source, self._name(key))

    def table(self, key: str) -> Iterator[tuple[str, Self]]:
        """A map from names to objects, one after the other: there may be 100,000; empty if absent."""
        objects = self.inner(key)
        return iter(()) if objects is None else objects._objects()

    def _objects(self) -> Iterator[tuple[str, Self]]:
        for name, value in self._value.items():
            yield name, type(self)(value, self.source, self._name(name))

    def integers(self, key: str, lowest_key: int, low: int, high: int) -> dict[int, int]:
        """A map from integers, which JSON holds as strings, to integers; empty if absent."""
        numbers = self.inner(key)
        return {} if numbers is None else numbers.all_integers(lowest_key, low, high)

    def all_integers(self, lowest_key: int, low: int, high: int) -> dict[int, int]:
        """This whole object as a map from integers to integers."""
        return {
            self._integer_key(key, lowest_key): self._in_range(key, value, low, high)
            for key, value in self._value.items()
        }

    def named_integers(self, low: int, high: int) -> dict[str, int]:
        """This whole object as a map from names to integers."""
        return {key: self._in_range(key, value, low, high) for key, value in self._value.items()}

    def texts(self, key: str) -> dict[str, str]:
        """A map from strings to strings; empty if absent."""
        texts = self.inner(key)
        return {} if texts is None else {name: texts.text(name, "") for name in texts._value}

    def integer_list(self, key: str, low: int, high: int) -> tuple[int, ...]:
        items = self._list(key)
        return tuple(self._in_range(f"{key}[{n}]", item, low, high) for n, item in enumerate(items))

    def text_list(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        items = self._list(key)
        for number, item in enumerate(items):
            if not isinstance(item, str):
                self.fail(f"{key}[{number}]", f"must be a string, not {_kind(item)}")
        return tuple(item for item in items if isinstance(item, str))

    def value(self, key: str) -> JsonValue:
        """What a field holds; an empty object if it is absent."""
        found = self._take(key)
        return {} if found is None else found

    def object_list(self, key: str) -> list[Self]:
        items = self._list(key)
        return [type(self)(item, self.source, self._name(f"{key}[{n}]")) for n, item in enumerate(items)]

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Fields that are derived from others: neither read nor kept."""
        self._asked.update(keys)

    def rest(self) -> JsonObject:
        """The fields that nobody asked for."""
        return {key: value for key, value in self._value.items() if key not in self._asked}

    def fail(self, key: str, reason: str) -> NoReturn:
        raise CodecError(f"{self.source}: {self._name(key) or self.WHOLE} {reason}", self.HINT)

    def _take(self, key: str) -> JsonValue:
        self._asked.add(key)
        return self._value.get(key)

    def _list(self, key: str) -> list[JsonValue]:
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fail(key, f"must be a list, not {_kind(value)}")
        return value

    def _in_range(self, key: str, value: JsonValue, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            self.fail(key, f"must be {low} to {high}")
        return value

    def _integer_key(self, key: str, lowest: int) -> int:
        # Digits only: int() would also take "1_0", " 1" and the digits of other scripts.
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            self.fail(key, "must have a whole number as key")
        number = int(key)
        if not lowest <= number <= INT32_MAX:
            self.fail(key, f"must have a key of {lowest} to {INT32_MAX}")
        return number

    def _name(self, key: str) -> str:
        return f"{self.where}.{key[:80]}" if self.where and key else self.where or key[:80]


def _kind(value: JsonValue) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a fraction", str: "a string", list: "a list"}
    return names.get(type(value), "an object")
