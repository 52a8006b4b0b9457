"""The plan of a replay: slices, order, and what a checkpoint keeps. No Spark."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from penstock.errors import CodecError, OptionError
from penstock.runtime import Runtime
from penstock.spark.pipelines.audit_sources import QueueKey, Ranges, Source
from penstock.spark.pipelines.replay_plan import (
    CELLS_MAX,
    Cell,
    Checkpoint,
    Done,
    Plan,
    Slice,
    Wanted,
    cell_bits,
    cut_slices,
    slice_rows,
)

A, B = QueueKey("T", "b", 0), QueueKey("T", "b", 1)
WANTED = Wanted(Source("archive", "/x", topics=("T",)), "U", "h:1", where="queue_id = 1", tags=("A",))


def cut(
    cells: Iterable[Cell], ranges: Ranges, bits: int = 2, rows: int = 10, size: int = 1_000
) -> tuple[Slice, ...]:
    return cut_slices(cells, ranges, bits, rows_max=rows, bytes_max=size)


def test_slices_follow_time_over_all_queues() -> None:
    ranges = {A: (1, 10), B: (0, 8)}
    cells = [Cell(A, 0, 3, 3, 100), Cell(A, 1, 4, 4, 300), Cell(A, 2, 2, 2, 500)]
    cells += [Cell(B, 0, 4, 4, 200), Cell(B, 1, 4, 4, 250)]
    assert cut(cells, ranges, rows=7) == (
        Slice({A: (1, 4), B: (0, 4)}, 7, 7),
        Slice({B: (4, 8)}, 4, 4),
        Slice({A: (4, 10)}, 6, 6),
    )


def test_a_slice_ends_at_its_bytes_and_holds_at_least_a_cell() -> None:
    cells = [Cell(A, 0, 1, 600, 1), Cell(A, 1, 1, 600, 2), Cell(A, 2, 1, 5_000, 3)]
    assert [part.bytes for part in cut(cells, {A: (0, 12)})] == [600, 600, 5_000]
    assert cut([], {A: (0, 12)}) == ()


def test_a_clock_that_went_back_does_not_turn_a_queue_round() -> None:
    cells = [Cell(A, 0, 1, 1, 900), Cell(A, 1, 1, 1, 100), Cell(B, 0, 1, 1, 500)]
    parts = cut(cells, {A: (0, 8), B: (0, 4)}, rows=1)
    assert [part.ranges for part in parts] == [{B: (0, 4)}, {A: (0, 4)}, {A: (4, 8)}]


@st.composite
def sources(draw: st.DrawFn) -> tuple[list[Cell], Ranges, int]:
    bits = draw(st.integers(0, 4))
    ranges: dict[QueueKey, tuple[int, int]] = {}
    cells = []
    for number in range(draw(st.integers(1, 4))):
        key = QueueKey("T", "b", number)
        first = draw(st.integers(0, 50))
        end = first + draw(st.integers(1, 80))
        ranges[key] = (first, end)
        for cell in range(first >> bits, ((end - 1) >> bits) + 1):
            rows = draw(st.integers(0, 5))
            if rows:
                cells.append(Cell(key, cell, rows, rows * draw(st.integers(1, 99)), draw(st.integers(0, 99))))
    return draw(st.permutations(cells)), ranges, bits


@hypothesis.given(sources(), st.integers(1, 12), st.integers(1, 400))
def test_slices_cover_every_matching_row_once_and_in_order(
    source: tuple[list[Cell], Ranges, int], rows: int, size: int
) -> None:
    cells, ranges, bits = source
    parts = cut_slices(cells, ranges, bits, rows_max=rows, bytes_max=size)
    assert sum(part.rows for part in parts) == sum(cell.rows for cell in cells)
    reached: dict[QueueKey, int] = {}
    covered: set[tuple[QueueKey, int]] = set()
    for part in parts:
        inside: list[Cell] = []
        for key, (first, end) in part.ranges.items():
            assert ranges[key][0] <= first < end <= ranges[key][1]
            assert first >= reached.get(key, 0)
            reached[key] = end
            held = [
                c for c in cells if c.queue == key and first <= max(c.number << bits, ranges[key][0]) < end
            ]
            inside += held
            covered |= {(key, offset) for offset in range(first, end)}
        assert sum(c.rows for c in inside) == part.rows
        assert len(inside) == 1 or (part.rows <= rows and part.bytes <= size)
    for cell in cells:
        low = max(cell.number << bits, ranges[cell.queue][0])
        assert (cell.queue, low) in covered


def test_cells_are_fine_for_little_and_few_for_much() -> None:
    assert cell_bits({A: (0, 1_000)}, 50_000) == 6
    assert [cell_bits({A: (0, 1_000)}, rows) for rows in (1, 8, 32, 100)] == [0, 1, 3, 4]
    for offsets in (10**7, 10**9, 10**12):
        bits = cell_bits({A: (0, offsets)}, 1)
        assert offsets >> bits <= CELLS_MAX


def test_a_rate_makes_slices_small() -> None:
    assert slice_rows(50_000, None) == 50_000
    assert slice_rows(50_000, 100.0) == 200
    assert slice_rows(50_000, 0.01) == 1
    assert slice_rows(50_000, 1e9) == 50_000


# -- checkpoint --------------------------------------------------------------------------------------------------


def plan() -> Plan:
    slices = (Slice({A: (0, 5), B: (2, 3)}, 6, 60), Slice({A: (5, 9)}, 4, 40))
    return Plan(
        "replay-1", WANTED.to_json(), "b", 4, {A: (0, 9), B: (0, 3)}, slices, {QueueKey("U", "b", 0): (0, 7)}
    )


def checkpoint(path: Path) -> Checkpoint:
    return Checkpoint(Runtime.system().disk, path / "check")


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)
    assert kept.load(WANTED) is None
    kept.begin(plan())
    assert checkpoint(tmp_path).load(WANTED) == (plan(), Done())
    done = Done().plus(6, 1 << 90).plus(4, -5)
    kept.note(done)
    assert checkpoint(tmp_path).load(WANTED) == (plan(), done)
    assert (plan().rows, plan().bytes) == (10, 100)


def test_a_checkpoint_of_another_replay_is_refused(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)
    kept.begin(plan())
    with pytest.raises(OptionError, match=r"another replay: target, where changed"):
        kept.load(replace(WANTED, target="V", where=""))
    with pytest.raises(OptionError, match=r"source\.start changed"):
        kept.load(replace(WANTED, source=replace(WANTED.source, start=5)))


def test_a_time_in_the_same_words_is_the_same_and_stays_what_it_was(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)

    def ago(start: int, text: str, end: int | None = None) -> Wanted:
        return replace(WANTED, source=replace(WANTED.source, start=start, start_text=text, end=end))

    kept.begin(replace(plan(), wanted=ago(1_000, "2h").to_json()))
    loaded = kept.load(ago(5_000, "2h"))
    assert loaded is not None
    assert loaded[0].in_force(ago(5_000, "2h")).source.start == 1_000
    assert kept.load(ago(1_000, "1000")) is not None
    with pytest.raises(OptionError, match=r"another replay: source\.start changed"):
        kept.load(ago(5_000, "1h"))
    with pytest.raises(OptionError, match=r"another replay: source\.end changed"):
        kept.load(ago(5_000, "2h", end=9_000))


def test_a_plan_of_before_has_no_words_for_its_times(tmp_path: Path) -> None:
    old = replace(WANTED, source=replace(WANTED.source, start=1_000)).to_json()
    source = old["source"]
    assert isinstance(source, dict)
    del source["start_text"], source["end_text"]
    kept = checkpoint(tmp_path)
    kept.begin(replace(plan(), wanted=old))
    now = replace(WANTED, source=replace(WANTED.source, start=1_000, start_text="1000"))
    assert kept.load(now) is not None
    with pytest.raises(OptionError, match=r"source\.start changed"):
        kept.load(replace(now, source=replace(now.source, start=1_001)))


@pytest.mark.parametrize(
    "text",
    [
        '{"version":2}',
        "[]",
        '{"version":1,"ranges":{"T/b/0":[1]}}',
        '{"version":1,"ranges":{"T/b/0":["a",2]}}',
    ],
)
def test_a_damaged_plan_is_an_error_and_not_a_new_start(tmp_path: Path, text: str) -> None:
    kept = checkpoint(tmp_path)
    kept.directory.mkdir()
    (kept.directory / "plan.json").write_text(text)
    with pytest.raises(CodecError, match=r"plan\.json"):
        kept.load(WANTED)


def test_what_is_wanted_is_checked() -> None:
    with pytest.raises(OptionError, match="target"):
        replace(WANTED, target="")
    with pytest.raises(OptionError, match="name server"):
        replace(WANTED, nameserver="")
