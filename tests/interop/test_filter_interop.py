"""SQL92 filters answer as RocketMQ's own classes do: the whole table of the unit tests, and expressions at random."""

from __future__ import annotations

from random import Random

import pytest

from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_filter import RELEASES, java_answers
from tests.interop.java_release import missing_tools
from tests.unit.filters.answers import our_answers
from tests.unit.filters.java_table import read_table
from tests.unit.filters.random_expressions import Expressions

pytestmark = [pytest.mark.interop, pytest.mark.java]
COUNT = 5_000


def ask(release: str, expressions: list[str], sets: list[dict[str, str]]) -> list[str]:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        return java_answers(release, expressions, sets)
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_is_what_java_says(release: str) -> None:
    sets, rows = read_table()
    recorded = [row.answers if release == RELEASES[0] else row.answers_4_9 for row in rows]
    assert ask(release, [row.sql for row in rows], sets) == recorded


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
