"""Options: what each may be, what it is by default, and that a wrong one is refused when it is made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.store import FlushMode, StoreOptions

NUMBERS = [
    field.name
    for field in fields(StoreOptions)
    if isinstance(field.default, int) and not isinstance(field.default, bool)
]
# Smallest and largest value of every number that has limits of its own.
LOWEST = {
    "segment_size_bytes": 4096,
    "queue_file_entries": 1,
    "queue_files_open_max": 1,
    "index_slots": 1,
    "index_entries": 2,
    "max_message_size_bytes": 1,
    "flush_interval_ms": 1,
    "queue_flush_interval_ms": 1,
    "clean_interval_ms": 1,
    "delete_batch_max": 1,
    "disk_max_used_percent": 1,
    "disk_clean_forcibly_percent": 1,
    "disk_refuse_writes_percent": 1,
    "disk_warning_percent": 1,
    "prepare_next_at_percent": 1,
}
HIGHEST = {
    "segment_size_bytes": 1 << 31,
    "max_message_size_bytes": 1 << 30,
    "disk_max_used_percent": 100,
    "disk_clean_forcibly_percent": 100,
    "disk_refuse_writes_percent": 100,
    "disk_warning_percent": 100,
    "prepare_next_at_percent": 100,
}
SMALL_MESSAGE = {"max_message_size_bytes": 1}


def made(name: str, value: Any) -> StoreOptions:
    return StoreOptions(**{**(SMALL_MESSAGE if name == "segment_size_bytes" else {}), name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_negative(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is -1"):
        made(name, -1)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_lowest_value(name: str) -> None:
    lowest = LOWEST.get(name, 0)
    assert getattr(made(name, lowest), name) == lowest
    if lowest:
        with pytest.raises(OptionError, match=f"^{name} is {lowest - 1}; .+"):
            made(name, lowest - 1)


@pytest.mark.parametrize("name", HIGHEST)
def test_the_highest_value(name: str) -> None:
    assert getattr(made(name, HIGHEST[name]), name) == HIGHEST[name]
    with pytest.raises(OptionError, match=f"^{name} is {HIGHEST[name] + 1}; .+"):
        made(name, HIGHEST[name] + 1)


def test_a_message_has_to_fit_into_a_segment() -> None:
    StoreOptions(segment_size_bytes=8192, max_message_size_bytes=8192)
    with pytest.raises(OptionError, match="fit into one segment"):
        StoreOptions(segment_size_bytes=8192, max_message_size_bytes=8193)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size_bytes", 1 << 30),
        ("queue_file_entries", 300_000),
        ("index_enabled", True),
        ("index_slots", 5_000_000),
        ("index_entries", 20_000_000),
        ("max_message_size_bytes", 4 << 20),
        ("flush_mode", FlushMode.ASYNC),
        ("queue_flush_interval_ms", 1000),
        ("queue_flush_least_pages", 2),
        ("verify_reads", True),
        ("seal_records", False),
        ("delay_levels", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
    ],
)
def test_defaults_are_rocketmqs(name: str, value: object) -> None:
    assert getattr(StoreOptions(), name) == value


def test_sizes_of_files() -> None:
    options = StoreOptions()
    assert options.queue_file_size_bytes == 6_000_000
    assert options.index_file_size_bytes == 420_000_040


@pytest.mark.parametrize(
    ("levels", "delays"),
    [("1s", (1000,)), ("1s 2m 3h 4d", (1000, 120_000, 10_800_000, 345_600_000)), (" 1s  5s ", (1000, 5000))],
)
def test_delay_levels(levels: str, delays: tuple[int, ...]) -> None:
    assert StoreOptions(delay_levels=levels).delays_ms == delays


def test_the_eighteen_default_levels() -> None:
    minutes = [60_000 * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert list(StoreOptions().delays_ms) == [1000, 5000, 10_000, 30_000, *minutes, 3_600_000, 7_200_000]


@pytest.mark.parametrize("levels", ["", "  ", "s", "1", "1x", "1s,5s", "-1s", "1.5s", "1s 2", "٣s"])
def test_delay_levels_that_cannot_be_read(levels: str) -> None:
    with pytest.raises(OptionError, match="delay_levels"):
        StoreOptions(delay_levels=levels)


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        StoreOptions().segment_size_bytes = 1  # type: ignore[misc]


def test_every_number_has_its_limits_here_or_may_be_zero() -> None:
    """A new number has to be thought about: give it limits above, or say here that zero is fine."""
    assert set(NUMBERS) - set(LOWEST) == {
        "file_reserved_hours",
        "flush_least_pages",
        "flush_thorough_interval_ms",
        "queue_flush_least_pages",
        "queue_thorough_interval_ms",
        "scrub_bytes_per_second",
        "sync_flush_timeout_ms",
    }
    assert set(HIGHEST) <= set(NUMBERS)
