"""Filters against a model: a tree of tuples, written as text and asked both ways; no text raises but FilterError"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FilterError
from penstock.filters import compile_expression
from penstock.filters.values import NotComparable

NAMES = ("a", "b", "c")
Tree = tuple[Any, ...]
PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(("0", "1", "2", "-1", "x", "true", "xy"))
)
NUMBERS = st.integers(-2, 3)
NAME = st.sampled_from(NAMES)
SIGN = st.sampled_from(("=", "<>", "<", "<=", ">", ">="))
WORD = st.sampled_from(("contains", "startswith", "endswith"))
TEXT = st.sampled_from(("x", "y", "1", "true", "it's", ""))
LEAVES: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("sign"), SIGN, NAME, NUMBERS),
    st.tuples(st.just("text"), NAME, TEXT),
    st.tuples(st.just("null"), NAME, st.booleans()),
    st.tuples(st.just("between"), NAME, st.booleans(), NUMBERS, NUMBERS).filter(
        lambda tree: tree[3] <= tree[4]
    ),
    st.tuples(st.just("in"), NAME, st.booleans(), st.lists(TEXT, min_size=1, max_size=7)),
    st.tuples(st.just("part"), NAME, st.booleans(), WORD, TEXT),
    st.tuples(st.just("bare"), NAME),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=12,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    match tree:
        case ("sign", sign, name, number):
            return f"{name} {sign} {number}"
        case ("text", name, text):
            return f"{name} = {quoted(text)}"
        case ("null", name, negated):
            return f"{name} is {'not ' * negated}null"
        case ("between", name, negated, low, high):
            return f"{name} {'not ' * negated}between {low} and {high}"
        case ("in", name, negated, values):
            return f"{name} {'not ' * negated}in ({', '.join(map(quoted, values))})"
        case ("part", name, negated, word, text):
            return f"{name} {'not ' * negated}{word} {quoted(text)}"
        case ("bare", name):
            return str(name)
        case ("not", inner):
            return f"not ({written(inner)})"
        case (word, left, right):
            return f"({written(left)}) {word} ({written(right)})"
    raise AssertionError(tree)


def asked(tree: Tree, properties: dict[str, str]) -> str:
    """T, F, N or E, by what SQL says and by nothing that the compiler does."""
    match tree:
        case ("not", inner):
            return {"T": "F", "F": "T"}.get(asked(inner, properties), asked(inner, properties))
        case ("and", left, right):
            first = asked(left, properties)
            if first in "FE":
                return first
            second = asked(right, properties)
            return second if second in "FE" else min(first, second)  # N is before T
        case ("or", left, right):
            first = asked(left, properties)
            if first in "TE":
                return first
            second = asked(right, properties)
            return second if second in "TE" else max(first, second)  # N is after F
        case ("null", name, negated):
            return "T" if (name in properties) is negated else "F"
        case ("part", name, negated, word, text):
            value = properties.get(name)
            if value is None or not text:
                return "F"
            found = {"contains": text in value, "startswith": value[: len(text)] == text}.get(
                word, value[-len(text) :] == text
            )
            return "T" if found is not negated else "F"
    value = properties.get(tree[2] if tree[0] == "sign" else tree[1])
    if value is None:
        return "N"
    if tree[0] == "bare":
        return "F"
    if tree[0] == "text":
        return "T" if value == tree[2] else "F"
    if tree[0] == "in":
        return "T" if (value in tree[3]) is not tree[2] else "F"
    try:
        number = int(value)
    except ValueError:
        return "E"
    if tree[0] == "between":
        return "T" if (tree[3] <= number <= tree[4]) is not tree[2] else "F"
    wanted = tree[3]
    answers = {
        "=": number == wanted,
        "<>": number != wanted,
        "<": number < wanted,
        "<=": number <= wanted,
        ">": number > wanted,
        ">=": number >= wanted,
    }
    return "T" if answers[tree[1]] else "F"


@given(TREES, PROPERTIES)
def test_the_answer_is_the_models(tree: Tree, properties: dict[str, str]) -> None:
    expression = compile_expression(written(tree), whole=True)
    try:
        answer = {True: "T", False: "F", None: "N"}[expression.evaluate(properties)]
    except NotComparable:
        answer = "E"
    assert answer == asked(tree, properties)
    assert expression.matches(properties) is (answer == "T")
    used = {name: value for name, value in properties.items() if name in expression.names}
    assert expression.matches(used) is (answer == "T")


SIGNS = (
    "(",
    ")",
    ",",
    "+",
    "-",
    "--",
    "/*",
    "*/",
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "'",
    "''",
    "#",
    "\n",
    "\x00",
)
WORDS = (
    "not",
    "and",
    "or",
    "in",
    "between",
    "is",
    "null",
    "true",
    "false",
    "contains",
    "startswith",
    "a",
    "b",
    "é",
)
NUMERALS = ("5", "5.", ".5", "5e", "1e999", "0L", "007", "9999999999999999999", "'x'")
PIECES = st.sampled_from((*SIGNS, *WORDS, *NUMERALS))
TEXTS = st.lists(PIECES, max_size=25)


@given(st.one_of(st.text(max_size=40), TEXTS.map(" ".join), TEXTS.map("".join)))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        expression = compile_expression(text)
    except FilterError as error:
        place = error.position
    else:
        expression.matches({"a": "5", "b": "x"})
        place = 0
    assert 0 <= place <= len(text)
