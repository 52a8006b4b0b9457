"""The base of typed headers: a dataclass whose annotations say how each field travels.

    topic: str                           mandatory text, wire name `topic`
    queue_id: I32                        mandatory number of 32 bits, wire name `queueId`
    committed: bool = True               absent means the default
    cluster_name: str | None = None      absent is None, and None is left out

Rules: the wire name is the field's name in camel case unless `WIRE_NAMES` gives another. Reading raises
`FieldError` that names the wire field, never anything else; fields that a class does not know are ignored, as
every RocketMQ version adds some. An empty number or truth value counts as absent, because a binary header
cannot tell the two apart. Plain values, any thread.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from penstock.errors import FieldError
from penstock.protocol.command import parse_integer


class Bounds(NamedTuple):
    """Smallest and largest value of a number."""

    low: int
    high: int


I32 = Annotated[int, Bounds(-(2**31), 2**31 - 1)]
I64 = Annotated[int, Bounds(-(2**63), 2**63 - 1)]


class Header:
    """What all headers can do. Subclasses are dataclasses, frozen, with slots and keyword-only fields."""

    __slots__ = ()

    # Wire names that are not the camel case of the field's name.
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """From the ext fields of a command."""
        return read(cls, wire_fields(cls), ext)

    def encode(self) -> dict[str, str]:
        """As ext fields of a command."""
        return write(self, wire_fields(type(self)))


class WireField(NamedTuple):
    """How one field travels."""

    attribute: str
    name: str
    parse: Callable[[str, str], Any]
    keeps_empty: bool
    is_required: bool
    default: Any


H = TypeVar("H", bound=Header)

# Filled at first use of a class: annotations can be resolved only when its module is complete.
_known: dict[type[Header], tuple[WireField, ...]] = {}


def wire_fields(header: type[Header]) -> tuple[WireField, ...]:
    """The fields of a header class in their order."""
    found = _known.get(header)
    if found is None:
        found = _known[header] = _find_fields(header)
    return found


def _find_fields(header: type[Header]) -> tuple[WireField, ...]:
    hints = get_type_hints(header, include_extras=True)
    found = []
    for item in fields(header):  # type: ignore[arg-type]  # every subclass is a dataclass
        parse = _parser(hints[item.name])
        found.append(
            WireField(
                item.name,
                header.WIRE_NAMES.get(item.name) or camel_case(item.name),
                parse,
                parse is _text,
                item.default is MISSING,
                None if item.default is MISSING else item.default,
            )
        )
    return tuple(found)


def read(header: type[H], specs: tuple[WireField, ...], ext: Mapping[str, str]) -> H:
    """A header of `header`'s class from ext fields."""
    values: dict[str, Any] = {}
    for attribute, name, parse, keeps_empty, is_required, default in specs:
        text = ext.get(name)
        if text is not None and (text or keeps_empty):
            values[attribute] = parse(name, text)
        elif is_required:
            raise FieldError(f"the header has no field {name!r}", "it is mandatory")
        else:
            values[attribute] = default
    return header(**values)


def write(header: Header, specs: tuple[WireField, ...]) -> dict[str, str]:
    """Ext fields of a header; what is None is left out."""
    ext: dict[str, str] = {}
    for spec in specs:
        value = getattr(header, spec.attribute)
        if value is None:
            continue
        if value is True or value is False:
            ext[spec.name] = "true" if value else "false"
        else:
            ext[spec.name] = str(value)
    return ext


def camel_case(name: str) -> str:
    """`queue_id` -> `queueId`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _parser(hint: Any) -> Callable[[str, str], Any]:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint is str:
        return _text
    if hint is bool:
        return _boolean
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        if base is int and isinstance(bounds, Bounds):
            return _integer(bounds)
    raise TypeError(f"a header field cannot be {hint}: use str, bool, I32 or I64")


def _text(name: str, text: str) -> str:
    return text


def _boolean(name: str, text: str) -> bool:
    # Java's rule: everything but "true", in any case, is false.
    return text.lower() == "true"


def _integer(bounds: Bounds) -> Callable[[str, str], int]:
    low, high = bounds

    def parse(name: str, text: str) -> int:
        return parse_integer(name, text, low, high)

    return parse
