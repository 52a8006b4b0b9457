"""What a job does, line by line: on a terminal of 80 columns, in a log, and as JSON."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable

import pytest

from penstock.cli.pipeline_progress import LINE_S, Progress
from penstock.spark.progress import WRITTEN, Batch
from penstock.testing import ManualClock
from tests.waiting import wait_until

BATCH = Batch("totals", 12, 150_000, 142_000.0, 1.056, 1_200_000, {"orders/a/0": 1_200_000})
LINE = "batch 12  +150,000 rows  142k rows/s  lag 1.2M (orders/a/0 1.2M)  ETA 8 s"
# As wide as it gets.
LARGE = Batch("totals", 123_456, 150_000_000, 142_000.0, 1_056.0, 1_200_000_000, {"o/a/0": 1_200_000_000})


def batch(number: int, query: str = "totals") -> Batch:
    return Batch(query, number, 5, 5.0, 1.0, None)


class Output:
    """Standard error that can be read meanwhile; a terminal if it says so."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.stream = io.StringIO()
        self.stream.isatty = lambda: is_terminal  # type: ignore[method-assign]

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    def shows(self, *lines: str) -> Callable[[], bool]:
        return lambda: self.lines[-len(lines) :] == list(lines)


def to_log(monkeypatch: pytest.MonkeyPatch) -> Output:
    """Called by the test itself: pytest puts its own streams in between fixtures and tests."""
    made = Output(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", made.stream)
    return made


def to_terminal(monkeypatch: pytest.MonkeyPatch) -> Output:
    made = Output(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", made.stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# -- off a terminal ------------------------------------------------------------------------------------------------


def test_in_a_log_a_phase_and_the_first_batch_are_lines_at_once(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    log = to_log(monkeypatch)
    progress = Progress(clock=clock)
    progress.say("starting Spark")
    progress.batch(BATCH)
    assert log.lines == ["starting Spark", LINE]
    progress.close()
    assert log.lines == ["starting Spark", LINE]


def test_in_a_log_batches_are_a_line_every_few_seconds_and_the_last_one_is_there(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    log = to_log(monkeypatch)
    progress = Progress(clock=clock)
    for number in range(3):
        progress.batch(batch(number))
    assert log.lines == [batch(0).line()]
    clock.advance(int(LINE_S * 1000))
    wait_until(log.shows(batch(0).line(), batch(2).line()), "the newest batch is a line")
    for number in range(3, 6):
        progress.batch(batch(number))
    progress.say("stopping Spark")
    progress.close()
    assert log.lines == [*(batch(number).line() for number in (0, 2, 5)), "stopping Spark"]


def test_in_a_log_a_line_comes_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    log = to_log(monkeypatch)
    progress = Progress(clock=clock)
    progress.say("starting Spark")
    clock.advance(int(LINE_S * 1000))
    wait_until(log.shows("starting Spark", "starting Spark  (5 s)"), "it is said again after 5 s")
    clock.advance(int(LINE_S * 1000))
    wait_until(log.shows("starting Spark  (5 s)", "starting Spark  (10 s)"), "after 10 s")
    clock.advance(1_000_000)
    wait_until(log.shows("starting Spark  (10 s)", "starting Spark  (1010 s)"), "late is better than never")
    clock.advance(101_000)
    wait_until(log.shows("starting Spark  (1111 s)"), "the next one after a tenth of the time")
    assert len(log.lines) == 5
    progress.batch(batch(0))
    clock.advance(int(LINE_S * 1000))
    wait_until(log.shows(batch(0).line(), f"{batch(0).line()}  (5 s ago)"), "the phase is over")
    progress.close()


def test_several_queries_are_named(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    log = to_log(monkeypatch)
    progress = Progress(clock=clock)
    progress.batch(batch(1, "totals"))
    progress.batch(batch(7, "bad\x1b[2J"))
    progress.close()
    assert log.lines[0] == batch(1).line()
    assert log.lines[1].startswith("bad")
    assert "\x1b" not in log.stream.getvalue()


def test_a_stop_is_said_by_the_view_and_not_in_the_signal_handler(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    log = to_log(monkeypatch)
    progress = Progress(clock=clock)
    progress.stopping = "stopping after this batch"
    progress.stop_asked()
    wait_until(log.shows("stopping after this batch"), "it is said")
    progress.close()


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_for_programs_steps_and_batches_are_objects_and_phases_are_for_people(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    log = to_log(monkeypatch)
    progress = Progress(as_json=True, clock=clock)
    progress.say("starting Spark")
    progress.step("counting keys")
    progress.batch(BATCH)
    clock.advance(int(100 * LINE_S * 1000))
    progress.close()
    step, done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert step == {"event": "step", "text": "counting keys"}
    assert (done["event"], done["rows"], "rows_written" in done) == ("batch", 150_000, False)
    assert log.lines == ["starting Spark"]


def test_rows_that_were_written_are_those_that_the_query_observed() -> None:
    progress = {"numInputRows": 10, "observedMetrics": {WRITTEN: {"rows": 3}}}
    made = Batch.of(progress)
    assert (made.rows, made.written, made.json()["rows_written"]) == (10, 3, 3)


# -- on a terminal -------------------------------------------------------------------------------------------------


def drawn(output: Output) -> list[str]:
    """Everything that was ever a line, without colours and cursor moves."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.stream.getvalue()))


def test_on_a_terminal_a_line_fits_and_changes_in_place(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    terminal = to_terminal(monkeypatch)
    progress = Progress(clock=clock)
    progress.say("starting Spark")
    wait_until(lambda: "starting Spark" in terminal.stream.getvalue(), "it is shown")
    progress.batch(LARGE)
    progress.say(
        "stopping after this batch; Ctrl-C again stops at once, and does not wait for the batch at all"
    )
    progress.batch(LARGE)
    clock.advance(3_599_000)
    wait_until(lambda: "59:59" in terminal.stream.getvalue(), "time passes")
    progress.close()
    lines = drawn(terminal)
    assert max(map(len, lines)) <= 80
    assert "ETA 2.3 h" in next(line for line in lines if "59:59" in line), "nothing is cut off"
    # It ends as a line of its own, with the cursor shown, below which the result is printed.
    assert terminal.stream.getvalue().endswith(f"{LARGE.line()}\n")
    assert "\x1b[?25h" in terminal.stream.getvalue()


def test_on_a_terminal_several_queries_have_a_line_each(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    terminal = to_terminal(monkeypatch)
    progress = Progress(clock=clock)
    progress.batch(batch(1, "totals"))
    progress.batch(batch(7, "bad"))
    progress.close()
    assert terminal.stream.getvalue().endswith(f"totals  {batch(1).line()}\nbad  {batch(7).line()}\n")


def test_on_a_terminal_a_phase_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    terminal = to_terminal(monkeypatch)
    progress = Progress(clock=clock)
    progress.say("starting Spark")
    progress.close()
    assert terminal.stream.getvalue().endswith("\x1b[2K")
