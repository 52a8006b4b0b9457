"""What a count of the target says about a replay: all of it once, or what is wrong and which way."""

import pytest

pytest.importorskip("pyspark")

from penstock.spark.pipelines.replay_verify import Verified

ROWS, CONTENT = 1_200, 77


def problems(found: Verified, *, ordered: bool = True) -> list[str]:
    return found.problems(ROWS, CONTENT, ordered=ordered)


def test_what_was_sent_and_nothing_else_is_no_problem() -> None:
    assert problems(Verified(ROWS, ROWS, CONTENT, 0)) == []


def test_rows_that_are_not_there_are_counted() -> None:
    assert problems(Verified(1_195, 1_195, 5, 0)) == ["5 of 1,200 rows are not in the target"]
    assert problems(Verified(0, 0, 0, 0)) == ["1,200 of 1,200 rows are not in the target"]


def test_rows_that_nobody_sent_are_counted_too() -> None:
    """Each of a place of its own: none is there twice, and yet they are too many."""
    assert problems(Verified(1_203, 1_203, 5, 0)) == ["3 rows more than the 1,200 sent are in the target"]


def test_a_row_that_is_there_twice_is_one_too_many() -> None:
    assert problems(Verified(1_201, ROWS, 5, 0)) == [
        "1 rows more than the 1,200 sent are in the target",
        "1 rows are there twice",
    ]


def test_one_lost_and_one_twice_does_not_come_out_even() -> None:
    assert problems(Verified(ROWS, 1_199, 5, 0)) == [
        "1 rows are there twice",
        "the bodies are not those that were sent",
    ]


def test_order_matters_only_where_it_was_promised() -> None:
    late = Verified(ROWS, ROWS, CONTENT, 4)
    assert problems(late) == ["4 rows are out of order"]
    assert problems(late, ordered=False) == []
