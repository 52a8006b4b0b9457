"""The language of filters: the answers that RocketMQ's classes gave, and errors that say where and why."""

from __future__ import annotations

import pytest

from penstock.errors import FilterError, RequestError
from penstock.filters import compile_expression
from penstock.filters.values import compare_numbers, parse_double, parse_integer
from penstock.protocol.bodies import SubscriptionData
from tests.support.filters.answers import our_answers
from tests.support.filters.java_table import read_table, read_tags

SETS, ROWS = read_table()
NEW_WORDS = ("contains", "startswith", "endswith")


def test_every_answer_is_javas() -> None:
    assert len(ROWS) >= 500
    assert len({row.sql for row in ROWS}) == len(ROWS)
    differing = [(row.sql, our_answers(row.sql, SETS), row.answers) for row in ROWS]
    assert [row for row in differing if row[1] != row[2]] == []


@pytest.mark.parametrize(("text", "answer"), read_tags())
def test_lists_of_tags_are_javas(text: str, answer: list[object] | None) -> None:
    """But for lists that name none: Java takes them, and they match nothing."""
    if answer is None or (answer[0] != "*" and not answer[1]):
        with pytest.raises(RequestError, match="names no tag"):
            SubscriptionData.parse("T", text)
        return
    ours = SubscriptionData.parse("T", text)
    assert [ours.sub_string, sorted(ours.tags_set), sorted(ours.code_set)] == answer
    assert ours.is_all is (answer[0] == "*")


def test_4_9_differs_in_words_that_came_later_only() -> None:
    differing = [row.sql for row in ROWS if row.answers != row.answers_4_9]
    assert differing
    assert all(any(word in sql.lower() for word in NEW_WORDS) for sql in differing)


def test_the_table_says_all_that_can_be_said() -> None:
    """A table of refusals, or of one letter, would prove little."""
    told = "".join(row.answers for row in ROWS)
    assert all(told.count(letter) > 100 for letter in "TFNE!")


def test_only_the_properties_of_the_expression_are_named() -> None:
    assert compile_expression("a > 1 and (b is null or not a = 3) and c in ('d')").names == ("a", "b", "c")
    assert compile_expression("true").names == ()


@pytest.mark.parametrize(
    ("sql", "position", "reason"),
    [
        ("", 0, "empty"),
        ("a >", 3, "the end stands where a property"),
        ("a > 'x'", 2, "cannot be ordered"),
        ("a in (1)", 6, "a string in single quotes"),
        ("a between 5 and 1", 2, "never true"),
        ("a = 'open", 4, "does not end"),
        ("a /* b", 2, "does not end"),
        ("a = 5 and #", 10, "no part of an expression"),
        ("a = null", 2, "IS NULL"),
        ("a and 5", 6, "a value stands where a condition should"),
        ("a not b", 6, "BETWEEN, IN"),
        ("a = 99999999999999999999", 4, "too large"),
        ("a = 0.0", 4, "out of range"),
        ("'x' in ('x')", 4, "only a property"),
        ("true = 5", 5, "TRUE and FALSE"),
        ("(a = 5", 6, "where ) should"),
    ],
)
def test_an_error_says_where_and_why(sql: str, position: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_expression(sql)
    assert (caught.value.position, caught.value.code) == (position, 23)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"at character {position + 1}: ")
    # What is remembered of it says the same the second time.
    with pytest.raises(FilterError) as again:
        compile_expression(sql)
    assert (str(again.value), again.value is caught.value) == (str(caught.value), False)


@pytest.mark.parametrize(
    "sql", ["a > 1 xor b > 2", "a = 5 b", "a = 5 -- end", "a = 007", "true false", "a = 5)"]
)
def test_what_follows_is_ignored_as_rocketmq_does_or_refused_for_our_client(sql: str) -> None:
    compile_expression(sql)
    with pytest.raises(FilterError, match="should"):
        compile_expression(sql, whole=True)


def test_integers_are_read_as_java_does() -> None:
    most = 2**31 - 1
    right = {"5": 5, "-5": -5, "+5": 5, "٣": 3, "0005": 5, str(most): most, "-2147483648": -most - 1}
    assert {text: parse_integer(text, most) for text in right} == right
    wrong = [
        "",
        "+",
        "-",
        "--5",
        "5.0",
        " 5",
        "5 ",
        "5_0",
        "0x5",
        "2147483648",
        "-2147483649",
        "\U0001d7d3",
        "²",
    ]
    assert [text for text in (*wrong, "1" * 5_000) if parse_integer(text, most) is not None] == []


def test_doubles_are_read_as_java_does() -> None:
    infinity = float("inf")
    right = {"5": 5.0, " 5.5\t": 5.5, "5.": 5.0, ".5": 0.5, "5d": 5.0, "5F": 5.0, "1e3": 1000.0, "0x1p3": 8.0}
    right |= {"0x.8P1d": 1.0, "-Infinity": -infinity, "1e999": infinity, "-0x1p99999": -infinity}
    assert {text: parse_double(text) for text in right} == right
    wrong = ["", " ", ".", "e5", "5e", "0x1", "nan", "inf", "infinity", "1_0", "٣", "5 5", "1" * 5_000]
    assert [text for text in wrong if parse_double(text) is not None] == []


def test_doubles_have_javas_order() -> None:
    nan, inf = float("nan"), float("inf")
    ordered = [-inf, -1.5, -0.0, 0.0, 1, 1.5, inf, nan]
    for i, left in enumerate(ordered):
        for j, right in enumerate(ordered):
            assert compare_numbers(left, right) == (i > j) - (i < j), (left, right)
    assert compare_numbers(2**53, 2**53 + 1) == -1
    assert compare_numbers(float(2**53), 2**53 + 1) == 0
