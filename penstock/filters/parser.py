"""From text to tree: RocketMQ's grammar, lowest first, and what it refuses before any message is seen.

    or          and { OR and }
    and         equality { AND equality }
    equality    comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison  unary { < <= > >= unary | [NOT] BETWEEN unary AND unary | [NOT] IN (string, ...)
                | [NOT] CONTAINS string | [NOT] STARTSWITH string | [NOT] ENDSWITH string }
    unary       { + | - | NOT } primary
    primary     literal | property | ( or )

RocketMQ does not look at what follows a complete expression: `a > 1 xor b > 2` is `a > 1` to it. The broker has to
understand its clients, so that is kept; with `whole` the rest is refused, which is how our own client asks.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import FilterError
from penstock.filters.lexer import Kind, Lexer, Token
from penstock.filters.tree import (
    CONDITIONS,
    LITERALS,
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
from penstock.filters.values import INT_MAX, LONG_MAX, compare_numbers, parse_double

# Levels of brackets, NOTs and signs within each other; each takes some calls of the interpreter's stack.
DEPTH_MAX = 50
# Parts of one expression, and strings of one IN list.
NODES_MAX = 2_000
LIST_MAX = 1_000
# Characters of all strings that a property is searched for: in the worst case each is compared at each place of it.
CONTAINED_MAX = 512
_ORDER_SIGNS = ("<", "<=", ">", ">=")
_PART_WORDS = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse_expression(text: str, *, whole: bool = False) -> tuple[Node, tuple[str, ...]]:
    """The tree of an expression, which is a condition, and the properties that it names. Raises FilterError."""
    parser = _Parser(text)
    return parser.parse(whole), tuple(parser.names)


class _Parser:
    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._token = self._lexer.next()
        self._nodes = 0
        self._level = 0
        self._contained = 0
        # A dict for its order.
        self.names: dict[str, None] = {}

    def parse(self, whole: bool) -> Node:
        first = self._token
        if first.kind is Kind.END:
            raise FilterError("the expression is empty", "write a condition", first.at)
        found = self._condition(self._or(), first)
        if whole and self._token.kind is not Kind.END:
            raise self._unexpected("an operator, AND, OR or the end")
        return found

    # -- words -----------------------------------------------------------------------------------------------

    def _take(self) -> Token:
        token, self._token = self._token, self._lexer.next()
        return token

    def _is(self, text: str) -> bool:
        return self._token.text == text and self._token.kind in (Kind.KEYWORD, Kind.SIGN)

    def _skip(self, text: str) -> bool:
        """Take this word if it is the next."""
        found = self._is(text)
        if found:
            self._take()
        return found

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._unexpected(text)

    def _unexpected(self, wanted: str) -> FilterError:
        token = self._token
        shown = "the end" if token.kind is Kind.END else repr(token.text[:30])
        return FilterError(f"{shown} stands where {wanted} should", "", token.at)

    def _string(self) -> str:
        if self._token.kind is not Kind.STRING:
            raise self._unexpected("a string in single quotes")
        return self._take().text

    # -- nodes -----------------------------------------------------------------------------------------------

    def _depth(self, at: int, *parts: Node) -> int:
        """Of a new node over these."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise FilterError(f"the expression has more than {NODES_MAX} parts", "use a shorter one", at)
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > DEPTH_MAX:
            raise self._too_deep(at)
        return depth

    @staticmethod
    def _too_deep(at: int) -> FilterError:
        return FilterError(f"the expression is more than {DEPTH_MAX} levels deep", "use fewer brackets", at)

    def _condition(self, node: Node, token: Token) -> Node:
        """The node as something that is true, false or null."""
        if isinstance(node, CONDITIONS):
            return node
        if isinstance(node, Property):
            return AsBoolean(self._depth(token.at, node), node)
        raise FilterError("a value stands where a condition should", "compare it with something", token.at)

    def _not(self, node: Node, at: int) -> Not:
        return Not(self._depth(at, node), node)

    # -- rules -----------------------------------------------------------------------------------------------

    def _or(self) -> Node:
        return self._chain("OR", self._and, Or)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, And)

    def _chain(self, word: str, part: Callable[[], Node], kind: type[And] | type[Or]) -> Node:
        token = self._token
        first = part()
        if not self._is(word):
            return first
        parts = [self._condition(first, token)]
        while self._is(word):
            self._take()
            token = self._token
            parts.append(self._condition(part(), token))
        return kind(self._depth(token.at, *parts), tuple(parts))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            at = self._token.at
            if self._skip("="):
                left = self._equal(left, self._comparison(), at)
            elif self._skip("<>"):
                left = self._not(self._equal(left, self._comparison(), at), at)
            elif self._skip("IS"):
                is_negated = self._skip("NOT")
                self._expect("NULL")
                null = Constant(self._depth(at), None)
                left = Equal(self._depth(at, left, null), left, null)
                if is_negated:
                    left = self._not(left, at)
            else:
                return left

    def _equal(self, left: Node, right: Node, at: int) -> Node:
        for side in (left, right):
            if isinstance(side, Constant) and side.value is None:
                raise FilterError("nothing is = or <> to NULL", "write IS NULL or IS NOT NULL", at)
        if isinstance(left, Constant) and isinstance(right, LITERALS) and not isinstance(right, Constant):
            raise FilterError("TRUE and FALSE cannot be compared with numbers and strings", "", at)
        return Equal(self._depth(at, left, right), left, right)

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            token = self._token
            if token.kind is Kind.SIGN and token.text in _ORDER_SIGNS:
                self._take()
                left = self._order(token.text, left, self._unary(), token.at)
                continue
            is_negated = self._skip("NOT")
            word = self._token.text if self._token.kind is Kind.KEYWORD else ""
            if word == "BETWEEN":
                left = self._between(left, is_negated)
            elif word == "IN":
                left = self._in(left, is_negated)
            elif word in _PART_WORDS:
                at = self._take().at
                pattern = self._string()
                if word == "CONTAINS":
                    self._count_contained(pattern, at)
                left = Part(self._depth(at, left), word, left, pattern, is_negated)
            elif is_negated:
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def _count_contained(self, pattern: str, at: int) -> None:
        self._contained += len(pattern)
        if self._contained > CONTAINED_MAX:
            raise FilterError(
                f"the strings of CONTAINS have more than {CONTAINED_MAX} characters together",
                "use STARTSWITH, ENDSWITH, = or IN, or shorter strings",
                at,
            )

    def _order(self, sign: str, left: Node, right: Node, at: int) -> Node:
        for side in (left, right):
            if isinstance(side, Text):
                raise FilterError(
                    f"the string {side.value[:30]!r} cannot be ordered", "only numbers have an order", at
                )
            if isinstance(side, CONDITIONS):
                hint = "write NOT (a < b)" if isinstance(side, Not) else "only numbers have an order"
                raise FilterError("a condition cannot be ordered", hint, at)
        return Order(self._depth(at, left, right), sign, left, right)

    def _between(self, left: Node, is_negated: bool) -> Node:
        at = self._take().at
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if is_negated:
            parts = self._order("<", left, low, at), self._order(">", left, high, at)
            return Or(self._depth(at, *parts), parts)
        parts = self._order(">=", left, low, at), self._order("<=", left, high, at)
        if (
            isinstance(low, Number)
            and isinstance(high, Number)
            and compare_numbers(high.value, low.value) < 0
        ):
            raise FilterError(f"BETWEEN {low.value} AND {high.value} is never true", "swap the two", at)
        return And(self._depth(at, *parts), parts)

    def _in(self, left: Node, is_negated: bool) -> Node:
        at = self._take().at
        self._expect("(")
        values = [self._string()]
        while self._skip(","):
            values.append(self._string())
            if len(values) > LIST_MAX:
                raise FilterError(f"the list has more than {LIST_MAX} strings", "use a shorter one", at)
        self._expect(")")
        if not isinstance(left, Property):
            raise FilterError("only a property can be IN a list", "", at)
        return In(self._depth(at, left), left, frozenset(values), is_negated)

    def _unary(self) -> Node:
        token = self._token
        self._level += 1
        if self._level > DEPTH_MAX:
            raise self._too_deep(token.at)
        if self._skip("+"):
            found = self._unary()
        elif self._skip("-"):
            inner = self._unary()
            found = Negation(self._depth(token.at, inner), inner)
        elif self._skip("NOT"):
            following = self._token
            found = self._not(self._condition(self._unary(), following), token.at)
        else:
            found = self._primary()
        self._level -= 1
        return found

    def _primary(self) -> Node:
        token = self._token
        if self._skip("("):
            found = self._or()
            self._expect(")")
            return found
        if token.kind is Kind.KEYWORD and token.text in ("TRUE", "FALSE", "NULL"):
            self._take()
            value = None if token.text == "NULL" else token.text == "TRUE"
            return Constant(self._depth(token.at), value)
        if token.kind not in (Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.NAME):
            raise self._unexpected("a property, a value or a bracket")
        self._take()
        depth = self._depth(token.at)
        if token.kind is Kind.STRING:
            return Text(depth, token.text)
        if token.kind is Kind.NAME:
            self.names[token.text] = None
            return Property(depth, token.text)
        return _integer(token, depth) if token.kind is Kind.INTEGER else _float(token, depth)


def _integer(token: Token, depth: int) -> Number:
    digits = token.text.rstrip("lL")
    if len(digits) > 19 or int(digits) > LONG_MAX:
        raise FilterError(f"{digits[:30]} is too large for an integer", "write it with a point", token.at)
    value = int(digits)
    return Number(depth, value, NumberType.INT if value <= INT_MAX else NumberType.LONG)


def _float(token: Token, depth: int) -> Number:
    value = parse_double(token.text)
    if value is None or not 0.0 < value < float("inf"):
        # 0.0 too, as in RocketMQ: to it, the smallest number is the smallest above zero.
        raise FilterError(f"{token.text[:30]} is out of range", "zero is written without a point", token.at)
    return Number(depth, value, NumberType.DOUBLE)
