"""Ranges of offsets: what is archived, what the log has, and what is read from which of the two."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipelines.seam import covers, merged, missing, next_offsets, overlaps, plan

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=8
)


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def test_neighbours_become_one_range() -> None:
    assert merged([(5, 9), (0, 4), (20, 29), (22, 23)]) == [(0, 9), (20, 29)]


@given(RANGES)
def test_merging_keeps_every_offset_and_leaves_gaps_between(ranges: list[tuple[int, int]]) -> None:
    result = merged(ranges)
    assert offsets(result) == offsets(ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(result))


@given(RANGES, st.integers(0, 70), st.integers(0, 70))
def test_what_is_missing_is_exactly_what_is_not_there(
    ranges: list[tuple[int, int]], start: int, end: int
) -> None:
    parts = missing(merged(ranges), (start, end))
    found = {offset for low, high in parts for offset in range(low, high)}
    assert found == set(range(start, end)) - offsets(ranges)
    assert all(low < high for low, high in parts)


@given(RANGES, st.integers(0, 70), st.integers(0, 10))
def test_covered_means_every_offset_is_there(ranges: list[tuple[int, int]], first: int, more: int) -> None:
    wanted = set(range(first, first + more + 1))
    assert covers(merged(ranges), (first, first + more)) == (wanted <= offsets(ranges))


def test_overlaps_are_pairs_that_share_an_offset() -> None:
    assert overlaps([(0, 4), (5, 9)]) == []
    assert overlaps([(5, 9), (0, 5)]) == [((0, 5), (5, 9))]


def test_a_writer_without_a_checkpoint_goes_on_behind_the_last_offset() -> None:
    assert next_offsets({"t/a/0": [(0, 9), (20, 29)], "t/a/1": []}) == {"t/a/0": 30}


def test_without_an_archive_everything_comes_from_the_log() -> None:
    seam = plan({}, {"t/a/0": (3, 9), "t/a/1": (0, 0)})
    assert [(layer.starts, layer.ends) for layer in seam.layers] == [({"t/a/0": 3}, {"t/a/0": 9})]
    assert seam.lost == {}


def test_the_log_is_read_from_the_end_of_the_archive() -> None:
    seam = plan({"t/a/0": [(0, 99)], "t/a/1": [(0, 9)]}, {"t/a/0": (50, 120), "t/a/1": (0, 10)})
    assert [(layer.starts, layer.ends) for layer in seam.layers] == [({"t/a/0": 100}, {"t/a/0": 120})]
    assert seam.lost == {}


def test_a_hole_in_the_archive_is_filled_from_the_log_as_far_as_it_can() -> None:
    seam = plan({"t/a/0": [(10, 19), (30, 39)]}, {"t/a/0": (25, 45)})
    assert [(layer.starts, layer.ends) for layer in seam.layers] == [
        ({"t/a/0": 25}, {"t/a/0": 30}),
        ({"t/a/0": 40}, {"t/a/0": 45}),
    ]
    assert seam.lost == {"t/a/0": [(20, 24)]}
    assert sum(layer.rows for layer in seam.layers) == 10


def test_what_retention_took_before_it_was_archived_is_lost() -> None:
    seam = plan({"t/a/0": [(0, 9)]}, {"t/a/0": (15, 20)})
    assert seam.lost == {"t/a/0": [(10, 14)]}
    assert [layer.starts for layer in seam.layers] == [{"t/a/0": 15}]


def test_an_archive_that_began_late_has_lost_nothing() -> None:
    assert plan({"t/a/0": [(50, 99)]}, {"t/a/0": (70, 100)}).lost == {}


def test_a_log_that_ends_before_the_archive_gives_nothing() -> None:
    assert plan({"t/a/0": [(0, 99)]}, {"t/a/0": (0, 50)}).layers == ()


@given(RANGES, st.integers(0, 40), st.integers(0, 40))
def test_archive_and_layers_together_have_every_offset_once(
    ranges: list[tuple[int, int]], low: int, more: int
) -> None:
    archived = merged(ranges)
    seam = plan({"q": archived}, {"q": (low, low + more)})
    read = [offset for layer in seam.layers for offset in range(layer.starts["q"], layer.ends["q"])]
    assert len(read) == len(set(read))
    assert not set(read) & offsets(archived)
    assert set(read) | offsets(archived) == set(range(low, low + more)) | offsets(archived)


@pytest.mark.parametrize("bad", [[], [(3, 4)]])
def test_covers_nothing_where_nothing_is(bad: list[tuple[int, int]]) -> None:
    assert not covers(bad, (0, 0))
