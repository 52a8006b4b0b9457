"""Log lines of the server commands: of one kind only so many in a while."""

import logging

import pytest

from penstock.cli.logs import KINDS_MAX, LINES_PER_KIND, WHILE_S, _LineFormatter, _NotTooOften


def line(
    text: str = "peer %s is refused", *args: object, at: float = 1_000.0, level: int = logging.WARNING
) -> logging.LogRecord:
    record = logging.LogRecord("penstock.x", level, "", 0, text, args or ("a",), None)
    record.created = at
    return record


@pytest.mark.abuse("A25")
def test_so_many_lines_of_a_kind_are_written_and_the_rest_is_counted() -> None:
    often = _NotTooOften()
    passed = [often.filter(line(at=1_000 + n / 1_000)) for n in range(5_000)]
    assert passed == [True] * LINES_PER_KIND + [False] * (5_000 - LINES_PER_KIND)
    assert often.filter(line("another kind %s"))
    assert often.filter(line(level=logging.ERROR))
    later = line("peer %s is refused", "b", at=1_000 + WHILE_S)
    assert often.filter(later)
    said = _LineFormatter().format(later)
    assert said.endswith(f"peer b is refused (and {5_000 - LINES_PER_KIND} more like it before, left out)")
    after = line("peer %s is refused", "c", at=1_001 + WHILE_S)
    assert often.filter(after)
    assert after.getMessage() == "peer c is refused"


@pytest.mark.abuse("A25")
def test_kinds_do_not_pile_up() -> None:
    often = _NotTooOften()
    for number in range(3 * KINDS_MAX):
        assert often.filter(line(f"kind {number} of %s"))
    assert len(often._kinds) <= KINDS_MAX


def test_a_clock_that_was_set_back_silences_nothing_for_long() -> None:
    often = _NotTooOften()
    for _ in range(2 * LINES_PER_KIND):
        often.filter(line(at=5_000))
    assert often.filter(line(at=1_000))
