"""SQL92 filters answer as RocketMQ's own classes do: the whole table of the unit tests, and expressions at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest

from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_filter import RELEASES, java_answers, java_tags
from tests.interop.java_release import missing_tools
from tests.support.filters.answers import our_answers
from tests.support.filters.java_table import read_table, read_tags
from tests.support.filters.random_expressions import Expressions

pytestmark = [pytest.mark.interop, pytest.mark.java]
COUNT = 5_000
T = TypeVar("T")


def or_skip(question: Callable[[], T]) -> T:
    """What Java says, or a skip that tells why it could not be asked."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        return question()
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))


def ask(release: str, expressions: list[str], sets: list[dict[str, str]]) -> list[str]:
    return or_skip(lambda: java_answers(release, expressions, sets))


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("release", RELEASES)
def test_the_table_is_what_java_says(release: str) -> None:
    sets, rows = read_table()
    recorded = [row.answers if release == RELEASES[0] else row.answers_4_9 for row in rows]
    assert ask(release, [row.sql for row in rows], sets) == recorded


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("release", RELEASES)
def test_random_expressions_have_the_same_answers(release: str) -> None:
    # CONTAINS and its kin came with 5: to 4.9 they are names.
    made = Expressions(Random(92), with_parts=release == RELEASES[0])
    sets = [made.properties() for _ in range(20)]
    expressions = [made.expression() for _ in range(COUNT)]
    theirs = ask(release, expressions, sets)
    ours = [our_answers(sql, sets) for sql in expressions]
    assert [row for row in zip(expressions, ours, theirs, strict=True) if row[1] != row[2]] == []
    # The generator must not make nonsense only, nor sense only.
    assert COUNT * 0.1 < theirs.count("!") < COUNT * 0.8


@pytest.mark.feature("tag-filters", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("release", RELEASES)
def test_lists_of_tags_are_read_as_java_does(release: str) -> None:
    rows = read_tags()
    found = or_skip(lambda: java_tags(release, [text for text, _ in rows]))
    assert [None if answer is None else [*answer] for answer in found] == [answer for _, answer in rows]
