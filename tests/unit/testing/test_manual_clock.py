"""The clock that a test moves."""

import pytest

from penstock.runtime import Runtime
from penstock.testing import ManualClock


def test_it_stands_still() -> None:
    clock = ManualClock(start_ms=1_700_000_000_123)
    assert (clock.now_ms(), clock.now_ms()) == (1_700_000_000_123,) * 2
    assert clock.monotonic_ms() == clock.monotonic_ms()


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(start_ms=1_000)
    monotonic_ns = clock.monotonic_ns()
    clock.advance(250)
    clock.advance(0.5)
    assert clock.now_ms() == 1_250
    assert clock.monotonic_ns() - monotonic_ns == 250_500_000
    assert clock.monotonic_ms() == clock.monotonic_ns() // 1_000_000
    with pytest.raises(ValueError):
        clock.advance(-1)


@pytest.mark.fault("F10")
@pytest.mark.parametrize("hour_ms", [3_600_000, -3_600_000])
def test_a_jump_moves_the_wall_clock_only(hour_ms: int) -> None:
    clock = ManualClock(start_ms=1_700_000_000_000)
    monotonic_ns = clock.monotonic_ns()
    clock.jump(hour_ms)
    assert clock.now_ms() == 1_700_000_000_000 + hour_ms
    assert clock.monotonic_ns() == monotonic_ns


def test_sleep_lets_the_time_pass_at_once() -> None:
    clock = ManualClock(start_ms=0)
    clock.sleep(72 * 3600.0)
    clock.sleep(-1)
    assert clock.now_ms() == 72 * 3_600_000


def test_hour_is_read_off_the_wall_clock_unless_it_is_set() -> None:
    clock = ManualClock(start_ms=1_700_000_000_000)
    assert clock.local_hour() == 22
    clock.advance(2 * 3_600_000)
    assert clock.local_hour() == 0
    clock.hour = 4
    clock.advance(3_600_000)
    assert (clock.local_hour(), clock.hour) == (4, 4)
    assert ManualClock(hour=23).local_hour() == 23
    with pytest.raises(ValueError):
        clock.hour = 24


def test_file_name_time_is_the_wall_clock_to_the_millisecond() -> None:
    clock = ManualClock(start_ms=1_700_000_000_007)
    assert clock.file_name_time() == "20231114221320007"
    clock.jump(-8)
    assert clock.file_name_time() == "20231114221319999"


def test_it_fits_the_door() -> None:
    clock = ManualClock()
    assert Runtime(clock=clock).clock.now_ms() == clock.now_ms()
