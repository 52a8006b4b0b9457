"""From tree to closures: what each comparison has to do is decided once, by what stands on its two sides.

A closure takes the properties of a message and returns True, False or None (null); `NotComparable` ends the
evaluation, unless an earlier part of an AND or OR has decided it. Numbers come from the expression alone, so their
types are known here; a property is text or not there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.errors import FilterError
from penstock.filters.parser import parse_expression
from penstock.filters.tree import (
    And,
    AsBoolean,
    Constant,
    Equal,
    In,
    Negation,
    Node,
    Not,
    Number,
    NumberType,
    Or,
    Order,
    Part,
    Property,
    Text,
)
from penstock.filters.values import NotComparable, compare_numbers, parse_as, parse_boolean

Properties = Mapping[str, str]
Condition = Callable[[Properties], bool | None]
Value = Callable[[Properties], "str | int | float | bool | None"]
_CACHED = 256
_SIGNS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PARTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter that was understood. `names` are the properties that it looks at."""

    text: str
    names: tuple[str, ...]
    _condition: Condition = field(repr=False, compare=False)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted."""
        try:
            return self._condition(properties) is True
        except NotComparable:
            return False

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False or null (None). Raises NotComparable where a property is not what it is compared with."""
        return self._condition(properties)


@lru_cache(_CACHED)
def _compiled(text: str, whole: bool) -> Expression | FilterError:
    """Also remembers what was refused: a client may ask again and again."""
    try:
        tree, names = parse_expression(text, whole=whole)
    except FilterError as error:
        return error.with_traceback(None)
    return Expression(text, names, _condition(tree))


def compile_expression(text: str, *, whole: bool = False) -> Expression:
    """A filter that can be asked. Raises FilterError; with `whole` also for what follows a complete expression."""
    found = _compiled(text, whole)
    if isinstance(found, FilterError):
        raise FilterError(found.reason, found.hint, found.position)
    return found


# -- conditions ----------------------------------------------------------------------------------------------


def _condition(node: Node) -> Condition:
    match node:
        case And(parts=parts):
            return _all_of([_condition(part) for part in parts])
        case Or(parts=parts):
            return _any_of([_condition(part) for part in parts])
        case Not(of=inner):
            return _opposite(_condition(inner))
        case Equal(left=left, right=right):
            return _equal(left, right)
        case Order(sign=sign, left=left, right=right):
            return _order(_SIGNS[sign], left, right)
        case In(of=of, values=values, is_negated=is_negated):
            return _in(of.name, values, is_negated)
        case Part(word=word, of=inner, pattern=pattern, is_negated=is_negated):
            return _part(_PARTS[word], inner, pattern, is_negated)
        case AsBoolean(of=of):
            return _is_false(of.name)
        case Constant(value=value):
            return lambda _: value
    raise AssertionError(f"{type(node).__name__} is no condition")


def _all_of(parts: list[Condition]) -> Condition:
    def holds(properties: Properties) -> bool | None:
        answer: bool | None = True
        for part in parts:
            found = part(properties)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return holds


def _any_of(parts: list[Condition]) -> Condition:
    def holds(properties: Properties) -> bool | None:
        answer: bool | None = False
        for part in parts:
            found = part(properties)
            if found:
                return True
            if found is None:
                answer = None
        return answer

    return holds


def _opposite(inner: Condition) -> Condition:
    def holds(properties: Properties) -> bool | None:
        found = inner(properties)
        return None if found is None else not found

    return holds


def _in(name: str, values: frozenset[str], is_negated: bool) -> Condition:
    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in values) is not is_negated

    return holds


def _part(is_there: Callable[[str, str], bool], inner: Node, pattern: str, is_negated: bool) -> Condition:
    if not pattern:
        return lambda _: False  # both forms, whatever the value
    read = _value(inner)

    def holds(properties: Properties) -> bool | None:
        value = read(properties)
        return isinstance(value, str) and is_there(value, pattern) is not is_negated

    return holds


def _is_false(name: str) -> Condition:
    return lambda properties: False if name in properties else None


# -- equality ------------------------------------------------------------------------------------------------


def _equal(left: Node, right: Node) -> Condition:
    if isinstance(left, Property):
        if isinstance(right, Constant) and right.value is None:
            return _is_absent(left.name)
        if isinstance(right, Text):
            return _is_text(left.name, right.value)
        if (number := _number(right)) is not None:
            return _is_number(left.name, *number)
    read_left, read_right = _value(left), _value(right)
    left_type, right_type = _type(left), _type(right)

    def holds(properties: Properties) -> bool | None:
        a, b = read_left(properties), read_right(properties)
        if a is None:
            return True if b is None else None
        if b is None:
            return False
        return _is_equal(a, left_type, b, right_type)

    return holds


def _is_equal(
    a: str | int | float | bool, a_type: NumberType, b: str | int | float | bool, b_type: NumberType
) -> bool:
    """Neither is null. Types count only for numbers."""
    if isinstance(a, bool):
        if isinstance(b, str):
            raise NotComparable
        return a is b
    if isinstance(b, bool):
        return isinstance(a, str) and parse_boolean(a) is b
    if isinstance(a, str):
        return a == b if isinstance(b, str) else compare_numbers(parse_as(a, b_type), b) == 0
    return compare_numbers(a, parse_as(b, a_type) if isinstance(b, str) else b) == 0


def _is_absent(name: str) -> Condition:
    return lambda properties: name not in properties


def _is_text(name: str, text: str) -> Condition:
    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else value == text

    return holds


def _is_number(name: str, number: int | float, kind: NumberType) -> Condition:
    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare_numbers(parse_as(value, kind), number) == 0

    return holds


# -- order ---------------------------------------------------------------------------------------------------


def _order(holds_for: Callable[[int, int], bool], left: Node, right: Node) -> Condition:
    if isinstance(left, Property) and (number := _number(right)) is not None:
        return _is_beside(holds_for, left.name, *number)
    read_left, read_right = _value(left), _value(right)
    left_type, right_type = _type(left), _type(right)

    def holds(properties: Properties) -> bool | None:
        a = read_left(properties)
        b = None if a is None else read_right(properties)
        if a is None or b is None:
            return None
        if isinstance(a, str):
            # Two properties are read as doubles, for want of a better type.
            a = parse_as(a, NumberType.DOUBLE if isinstance(b, str) else right_type)
        if isinstance(b, str):
            b = parse_as(b, left_type)
        return holds_for(compare_numbers(a, b), 0)

    return holds


def _is_beside(
    holds_for: Callable[[int, int], bool], name: str, number: int | float, kind: NumberType
) -> Condition:
    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else holds_for(compare_numbers(parse_as(value, kind), number), 0)

    return holds


# -- values --------------------------------------------------------------------------------------------------


def _number(node: Node) -> tuple[int | float, NumberType] | None:
    """Value and type of a number, with all signs before it; None for everything else."""
    if isinstance(node, Number):
        return node.value, node.type
    if isinstance(node, Negation) and (inner := _number(node.of)) is not None:
        return -inner[0], inner[1]
    return None


def _type(node: Node) -> NumberType:
    """As what text on the other side is read."""
    number = _number(node)
    return NumberType.DOUBLE if number is None else number[1]


def _value(node: Node) -> Value:
    number = _number(node)
    if number is not None:
        return _always(number[0])
    match node:
        case Text(value=text):
            return _always(text)
        case Property(name=name):
            return lambda properties: properties.get(name)
        case Negation(of=inner):
            return _nothing_of(_value(inner))
    return _condition(node)


def _always(value: str | int | float) -> Value:
    return lambda _: value


def _nothing_of(inner: Value) -> Value:
    """Null, but what cannot be evaluated still cannot."""

    def value(properties: Properties) -> None:
        inner(properties)

    return value
