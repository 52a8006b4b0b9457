"""What a filter is made of: plain frozen values, made by the parser and read by the compiler.

RocketMQ tells integers of 32 and 64 bits apart, because a property that is compared with one has to fit it; so does
`Number`. `And` and `Or` hold all their parts, so that a long chain is not deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class NumberType(Enum):
    """As what a property is read that is compared with a number."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"


@dataclass(frozen=True, slots=True)
class Node:
    """Any part of an expression; `depth` counts the levels below and itself."""

    depth: int


@dataclass(frozen=True, slots=True)
class Number(Node):
    value: int | float
    type: NumberType


@dataclass(frozen=True, slots=True)
class Text(Node):
    value: str


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Property(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Negation(Node):
    """A minus sign before something: of all that is no number it makes null."""

    of: Node


@dataclass(frozen=True, slots=True)
class AsBoolean(Node):
    """A property that stands where a condition should: FALSE if it is there, null if not."""

    of: Property


@dataclass(frozen=True, slots=True)
class Not(Node):
    of: Node


@dataclass(frozen=True, slots=True)
class And(Node):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal(Node):
    """Also IS NULL, whose right side is the constant NULL."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Order(Node):
    """`sign` is one of < <= > >=."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In(Node):
    of: Property
    values: frozenset[str]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Part(Node):
    """CONTAINS, STARTSWITH, ENDSWITH and their NOT forms."""

    word: str
    of: Node
    pattern: str
    is_negated: bool


CONDITIONS = (AsBoolean, Not, And, Or, Equal, Order, In, Part, Constant)
LITERALS = (Number, Text, Constant)
