"""The pages that are made of what tests say: they agree with the tests, and every line of the seeds is settled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import compatibility, marked_tests, outcomes, seed_lines
from scripts.compatibility import cell, counted, ends, table
from scripts.features import FEATURES, NOT_COVERED, SYSTEMS
from scripts.marked_tests import MarkedTest
from scripts.outcomes import Outcome
from scripts.seed_lines import SeedLine

LINES = {"S0": 58, "S1": 89, "S2": 58, "S3": 86, "S4": 100}
"""How many statements each of the five texts has."""
PENDING_MAX = 0
"""Lines that work under way will prove: subscriptions and push of the fifth seed. This number only ever goes down."""

PAIR = ("order", "rocketmq-5.3")


@pytest.fixture(scope="module")
def marked() -> list[MarkedTest]:
    return marked_tests.read()


def of(name: str, *features: tuple[str, str], seeds: tuple[str, ...] = ()) -> MarkedTest:
    return MarkedTest("tests/unit/test_x.py", name, frozenset(seeds), frozenset(features))


# -- the pages of this project ------------------------------------------------------------------------------------


def test_the_pages_say_what_the_markers_say() -> None:
    """A test that came, went or changed its markers shows here until the pages are made again."""
    assert compatibility.differences() == [], "run: make compatibility"


def test_every_line_of_the_seeds_has_a_row() -> None:
    wanted = [f"{text}-{number}" for text, count in LINES.items() for number in range(1, count + 1)]
    assert list(seed_lines.read()) == wanted
    assert all(line.says for line in seed_lines.read().values())


def test_every_line_is_proven_or_decided(marked: list[MarkedTest]) -> None:
    tests, lines = seed_lines.tests_of(marked), seed_lines.read()
    assert sorted(tests.keys() - lines.keys()) == [], "no such line"
    open_lines = [line for line in lines.values() if line.id not in tests and not line.is_decided]
    assert [line.id for line in open_lines if not line.is_pending] == [], "name a test, or write the decision"
    assert len(open_lines) <= PENDING_MAX


def test_no_line_is_proven_by_interop_alone(marked: list[MarkedTest]) -> None:
    """`make test` counts without Java's help."""
    tests = seed_lines.tests_of(test for test in marked if outcomes.belongs(test, "compiled"))
    lines = seed_lines.read()
    assert [
        seed for seed in seed_lines.tests_of(marked) if seed not in tests and not lines[seed].is_decided
    ] == []


def test_every_cell_has_tests_or_a_reason(marked: list[MarkedTest]) -> None:
    assert compatibility.mistakes(counted(marked)) == []
    assert {system for feature in FEATURES.values() for system in feature.systems} == set(SYSTEMS)


def test_the_table_names_no_day_and_no_machine() -> None:
    page = (compatibility.ROOT / compatibility.PAGE).read_text(encoding="utf-8")
    made = compatibility.between(page)
    assert len(made.splitlines()) > len(FEATURES)
    assert not re.search(r"\b20\d\d\b|\d+:\d\d|/(?:home|work|tmp)/", made)


# -- how they are made --------------------------------------------------------------------------------------------


def test_a_cell_says_what_became_of_its_tests() -> None:
    tests = [of("test_a", PAIR), of("test_b", PAIR)]
    a, b = "tests/unit/test_x.py::test_a", "tests/unit/test_x.py::test_b"

    def said(*results: dict[str, Outcome]) -> str:
        return cell(PAIR, tests, ends(results))

    passed, failed = Outcome("passed", (), (PAIR,)), Outcome("failed", (), (PAIR,))
    skipped, elsewhere = Outcome("skipped", (), (PAIR,)), Outcome("passed", (), (("order", "rocketmq-4.9"),))
    assert said() == "not run (2 tests)"
    assert said({a: passed, b: passed}) == "works (2 tests)"
    assert said({f"{a}[1]": passed, f"{a}[2]": skipped, b: skipped}) == "works (1 of 2 tests)"
    assert said({a: skipped}) == "not run (2 tests)"
    assert said({f"{a}[1]": passed, f"{a}[2]": failed, b: passed}) == "**failed (1 of 2 tests)**"
    assert said({a: passed, b: passed}, {b: failed}) == "**failed (1 of 2 tests)**", "in another kind of run"
    assert said({a: elsewhere, b: elsewhere}) == "not run (2 tests)", "a case counts for its own release"


def test_a_cell_keeps_what_it_said_while_its_tests_have_not_run_here() -> None:
    tests = [of("test_a", PAIR), of("test_b", PAIR)]
    nodes = {"a": "tests/unit/test_x.py::test_a", "b": "tests/unit/test_x.py::test_b"}

    def said(before: str, **ended: str) -> str:
        return cell(PAIR, tests, {(nodes[name], PAIR): end for name, end in ended.items()}, before)

    assert said("works (2 tests)") == "works (2 tests)"
    assert said("works (2 tests)", a="passed") == "works (2 tests)"
    assert said("**failed (1 of 2 tests)**", a="passed") == "**failed (1 of 2 tests)**"
    assert said("works (2 tests)", a="failed") == "**failed (1 of 2 tests)**"
    assert said("works (2 tests)", a="passed", b="skipped") == "works (1 of 2 tests)", "it was tried in vain"
    assert said("**failed (1 of 2 tests)**", a="passed", b="passed") == "works (2 tests)"
    assert said("works (1 test)") == "not run (2 tests)", "there are more now"
    made = table({PAIR: tests}, {(node, PAIR): "passed" for node in nodes.values()})
    assert compatibility.cells_of(made)[PAIR] == "works (2 tests)"
    assert table({PAIR: tests}, {}, compatibility.cells_of(made)) == made


def test_the_outcomes_may_change_and_the_numbers_may_not() -> None:
    tests = {PAIR: [of("test_a", PAIR)]}
    ran = table(tests, {("tests/unit/test_x.py::test_a", PAIR): "passed"})
    broke = table(tests, {("tests/unit/test_x.py::test_a", PAIR): "failed"})
    assert ran != broke
    one_more = table({PAIR: [*tests[PAIR], of("test_b", PAIR)]}, {})
    bare = [compatibility.without_ends(made) for made in (ran, broke, table(tests, {}), one_more)]
    assert bare[0] == bare[1] == bare[2] != bare[3]


def test_mistakes_are_told() -> None:
    (reason,) = [pair for pair in NOT_COVERED if pair == ("mqadmin", "rocketmq-4.9")]
    found = compatibility.mistakes({reason: [of("test_a", reason)], ("order", "kafka"): []})
    assert "('order', 'kafka') is named by a test and is no cell of scripts/features.py" in found
    assert f"{reason} has tests now: remove its reason from NOT_COVERED of scripts/features.py" in found
    assert f"{PAIR} has neither tests nor a reason in NOT_COVERED of scripts/features.py" in found


def test_a_page_without_the_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        compatibility.render("# Compatibility\n", "| a |")
    page = f"before\n{compatibility.BEGIN}\nold\n{compatibility.END}\nafter\n"
    made = compatibility.render(page, "| new |")
    assert compatibility.between(made) == "| new |"
    assert made == compatibility.render(made, "| new |")
    assert (made.startswith("before\n"), made.endswith("\nafter\n"), "old" in made) == (True, True, False)


def test_a_pending_line_that_gets_a_test_is_proven() -> None:
    page = "| S0-1 | one | | pending: push |\n| S0-2 | two | `gone.py` | because |\n| S0-3 | three | | pending |\n"
    made = seed_lines.render(page, [of("test_a", seeds=("S0-1",))])
    assert made == (
        "| S0-1 | one | `tests/unit/test_x.py` | |\n| S0-2 | two | | because |\n| S0-3 | three | | pending |\n"
    )


def test_a_report_counts_no_skipped_test_and_no_failed_line() -> None:
    lines = {seed: SeedLine(seed, "says", "", "") for seed in ("S0-1", "S0-2", "S0-3", "S0-10")}
    lines["S0-3"] = SeedLine("S0-3", "says", "", "decided")
    passed, failed = Outcome("passed", ("S0-1", "S0-2")), Outcome("failed", ("S0-2",))
    skipped = Outcome("skipped", ("S0-10",))
    assert seed_lines.report(lines, [passed, failed, skipped], whole=True) == [
        "seed lines: 4. 1 are proven by tests that passed in this run, 1 are decided in writing (docs/seeds.md), "
        "2 are left",
        "  their tests failed: S0-2",
        "  left: S0-10",
    ]


def test_two_rows_for_a_line_are_refused(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "seeds.md").write_text("| S0-1 | one | | |\n| S0-1 | two | | |\n")
    with pytest.raises(ValueError, match="two rows for S0-1"):
        seed_lines.read(tmp_path)
