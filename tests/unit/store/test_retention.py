"""Retention: when segments go, which of them, what follows them, and when writes are refused.

Every number of the seeds has its own test; limits are tried at their exact value, which is not yet over them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DiskFullError, OptionError
from penstock.message import Message
from penstock.runtime import DiskUsage
from penstock.store import FlushMode, GetStatus, MessageStore, StoreOptions
from penstock.store.retention import MANUAL_ROUNDS, SegmentAge, plan_round
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import audit, batch_of, faulty, open_store, small_options

HOUR_MS = 3_600_000
SEGMENT = 8192
NOON, FOUR = 12, 4


def options(**changes: Any) -> StoreOptions:
    """Small files, and the limits that a store has if nobody says otherwise."""
    defaults = StoreOptions()
    names = (
        "disk_max_used_percent",
        "disk_clean_forcibly_percent",
        "disk_refuse_writes_percent",
        "disk_warning_percent",
        "file_reserved_hours",
    )
    return small_options(**{**{name: getattr(defaults, name) for name in names}, **changes})


def usage(percent: int) -> DiskUsage:
    return DiskUsage(100, percent, 100 - percent)


class Tank:
    """A store on a clock and a disk that the test holds in its hands."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.options = options(**changes)
        self.clock = ManualClock(hour=NOON)
        self.disk = faulty(folder)
        self.disk.usage_override = usage(10)
        self.store = self.open()

    def open(self) -> MessageStore:
        return open_store(self.folder, self.options, disk=self.disk, clock=self.clock)

    def reopen(self, *, clean: bool = True) -> None:
        (self.store.close if clean else self.store.abandon)()
        self.disk = faulty(self.folder)
        self.disk.usage_override = usage(10)
        self.store = self.open()

    def fill(self, segments: int, topic: str = "orders") -> None:
        """Append until the log has so many full segments (and one that is being written)."""
        while self.store.log.active is None or len(self.segments) <= segments:
            serial = self.store.max_offset(topic, 0)
            self.store.append(Message.of(topic, bytes(1900), keys=f"k{serial}", tag="a"))

    def age(self, hours: float, extra_ms: int = 0, *, first: int = 0, count: int = 1000) -> None:
        """Make segments look as if their last write was so long ago."""
        at_ms = self.clock.now_ms() - int(hours * HOUR_MS) - extra_ms
        for name in self.segments[first : first + count]:
            os.utime(self.folder / "commitlog" / name, ns=(at_ms * 1_000_000, at_ms * 1_000_000))

    @property
    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "commitlog").iterdir())

    def names(self, *folders: str) -> list[str]:
        return sorted(path.name for path in self.folder.joinpath(*folders).iterdir())


@pytest.fixture
def tank(tmp_path: Path) -> Iterator[Tank]:
    made = Tank(tmp_path / "store")
    yield made
    made.store.close()


# -- the decision alone --------------------------------------------------------------------------------------

NOW = 1_700_000_000_000
EXPIRED = NOW - 72 * HOUR_MS
FRESH = EXPIRED + 1
OLD, YOUNG = SegmentAge(0, EXPIRED), SegmentAge(0, FRESH)


def ages(*modified: int) -> list[SegmentAge]:
    return [SegmentAge(i * SEGMENT, at) for i, at in enumerate(modified)]


def plan(used: int, hour: int, manual: bool, segments: list[SegmentAge], **changes: Any) -> tuple[Any, ...]:
    made = plan_round(options(**changes), usage(used), NOW, hour, manual, segments)
    return len(made.delete), made.refuse_writes, made.forced, made.critical


@pytest.mark.seed("S3-42", "S3-46", "S3-47", "S3-49", "S3-50")
@pytest.mark.parametrize(
    ("used", "hour", "manual", "modified", "expected"),
    [
        pytest.param(10, NOON, False, [EXPIRED], (0, False, False, False), id="not the hour"),
        pytest.param(10, FOUR, False, [], (0, False, False, False), id="nothing there"),
        pytest.param(10, FOUR, False, [EXPIRED], (1, False, False, False), id="expired to the millisecond"),
        pytest.param(10, FOUR, False, [FRESH], (0, False, False, False), id="one millisecond too young"),
        pytest.param(10, NOON, True, [EXPIRED], (1, False, False, False), id="on demand"),
        pytest.param(10, NOON, True, [FRESH], (0, False, False, False), id="on demand only what expired"),
        pytest.param(75, NOON, False, [EXPIRED], (0, False, False, False), id="75 is not over 75"),
        pytest.param(76, NOON, False, [EXPIRED], (1, False, False, False), id="76 deletes what expired"),
        pytest.param(76, NOON, False, [FRESH], (0, False, False, False), id="76 keeps what did not"),
        pytest.param(85, NOON, False, [FRESH], (0, False, False, False), id="85 is not over 85"),
        pytest.param(86, NOON, False, [FRESH], (1, True, True, False), id="86 deletes by force and refuses"),
        pytest.param(90, NOON, False, [FRESH], (1, True, True, False), id="90 is not over 90"),
        pytest.param(91, NOON, False, [FRESH], (1, True, True, True), id="91 is critical"),
        pytest.param(100, NOON, False, [], (0, True, True, True), id="full"),
        pytest.param(10, FOUR, False, [EXPIRED, FRESH, EXPIRED], (1, False, False, False), id="no holes"),
        pytest.param(10, FOUR, False, [FRESH, EXPIRED], (0, False, False, False), id="oldest first"),
        pytest.param(10, FOUR, False, [EXPIRED] * 10, (10, False, False, False), id="a whole batch"),
        pytest.param(10, FOUR, False, [EXPIRED] * 11, (10, False, False, False), id="no more than a batch"),
        pytest.param(99, NOON, False, [FRESH] * 30, (10, True, True, True), id="a batch, also by force"),
    ],
)
def test_plan(used: int, hour: int, manual: bool, modified: list[int], expected: tuple[Any, ...]) -> None:
    assert plan(used, hour, manual, ages(*modified)) == expected


def test_a_plan_names_the_oldest_segments_in_order() -> None:
    made = plan_round(options(), usage(10), NOW, FOUR, False, ages(EXPIRED, EXPIRED, FRESH))
    assert made.delete == (0, SEGMENT)
    assert made.used_percent == 10


def test_deleting_by_force_can_be_turned_off() -> None:
    made = plan(99, NOON, False, ages(EXPIRED, FRESH), clean_forcibly_enabled=False)
    assert made == (1, True, False, True)


@pytest.mark.parametrize(("batch", "deleted"), [(1, 1), (3, 3), (25, 12)])
def test_the_size_of_a_batch_is_an_option(batch: int, deleted: int) -> None:
    assert plan(10, FOUR, False, ages(*[EXPIRED] * 12), delete_batch_max=batch)[0] == deleted


@pytest.mark.parametrize(
    ("used", "available", "percent"), [(85, 15, 85), (850_001, 149_999, 86), (0, 0, 0), (1, 10**9, 1)]
)
def test_usage_is_rounded_up_so_a_little_over_is_over(used: int, available: int, percent: int) -> None:
    assert DiskUsage(used + available, used, available).used_percent == percent
    made = plan_round(options(), DiskUsage(used + available, used, available), NOW, NOON, False, [])
    assert made.refuse_writes == (percent > 85)


# -- when ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-40")
def test_retention_looks_every_10_seconds(tank: Tank) -> None:
    tank.fill(1)
    tank.age(100)
    tank.clock.hour = FOUR
    tank.clock.advance(9_999)
    tank.store.keeper.tick()
    assert len(tank.segments) == 2
    tank.clock.advance(1)
    tank.store.keeper.tick()
    assert len(tank.segments) == 1
    tank.fill(1)
    tank.age(100)
    tank.clock.advance(9_999)
    tank.store.keeper.tick()
    assert len(tank.segments) == 2
    tank.clock.advance(1)
    tank.store.keeper.tick()
    assert len(tank.segments) == 1


@pytest.mark.seed("S3-41")
def test_the_interval_is_an_option(tmp_path: Path) -> None:
    assert StoreOptions().clean_interval_ms == 10_000
    tank = Tank(tmp_path / "store", clean_interval_ms=250)
    tank.fill(1)
    tank.age(100)
    tank.clock.hour = FOUR
    for advance, left in ((249, 2), (1, 1)):
        tank.clock.advance(advance)
        tank.store.keeper.tick()
        assert len(tank.segments) == left
    tank.store.close()


@pytest.mark.seed("S3-47")
@pytest.mark.parametrize("hour", range(24))
def test_expired_segments_go_at_4_in_the_morning(tank: Tank, hour: int) -> None:
    tank.fill(1)
    tank.age(100)
    tank.clock.hour = hour
    assert tank.store.keeper.clean() == (1 if hour == 4 else 0)


@pytest.mark.seed("S3-47")
def test_the_hour_is_that_of_the_clock(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store")
    tank.fill(1)
    tank.age(100)
    tank.clock.hour = None  # 22:13:20 by the wall clock
    to_four_ms = (5 * 3600 + 46 * 60 + 40) * 1000
    tank.clock.advance(to_four_ms - 1)
    assert tank.store.keeper.clean() == 0
    tank.clock.advance(1)
    assert tank.store.keeper.clean() == 1
    tank.store.close()


@pytest.mark.seed("S3-48")
@pytest.mark.parametrize(
    ("when", "hours"),
    [("04", {4}), ("04;16", {4, 16}), ("00;23", {0, 23}), (" 4 ; 5;", {4, 5}), ("11", {11})],
)
def test_the_hours_are_an_option(tmp_path: Path, when: str, hours: set[int]) -> None:
    tank = Tank(tmp_path / "store", delete_when=when)
    deleted_at = set()
    for hour in range(24):
        tank.fill(1)
        tank.age(100)
        tank.clock.hour = hour
        if tank.store.keeper.clean():
            deleted_at.add(hour)
    assert deleted_at == hours
    tank.store.close()


@pytest.mark.seed("S3-50")
def test_segments_are_kept_72_hours(tank: Tank) -> None:
    tank.fill(1)
    tank.clock.hour = FOUR
    tank.age(72, extra_ms=-1)
    assert tank.store.keeper.clean() == 0
    tank.age(72)
    assert tank.store.keeper.clean() == 1


@pytest.mark.seed("S3-51")
@pytest.mark.parametrize("hours", [0, 1, 48, 720])
def test_how_long_segments_are_kept_is_an_option(tmp_path: Path, hours: int) -> None:
    tank = Tank(tmp_path / "store", file_reserved_hours=hours)
    tank.fill(1)
    tank.clock.hour = FOUR
    tank.age(hours, extra_ms=-1)
    assert tank.store.keeper.clean() == 0
    tank.age(hours)
    assert tank.store.keeper.clean() == 1
    tank.store.close()


@pytest.mark.seed("S3-40", "S3-46", "S3-47", "S3-50")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clean_interval_ms", 10_000),
        ("delete_when", "04"),
        ("file_reserved_hours", 72),
        ("delete_batch_max", 10),
        ("disk_max_used_percent", 75),
        ("disk_clean_forcibly_percent", 85),
        ("disk_refuse_writes_percent", 85),
        ("disk_warning_percent", 90),
        ("clean_forcibly_enabled", True),
    ],
)
def test_defaults(name: str, value: object) -> None:
    assert getattr(StoreOptions(), name) == value


@pytest.mark.parametrize("when", ["", "24", "-1", "four", "4,5", "04;99", ";", "٤"])
def test_hours_that_no_day_has_are_refused(when: str) -> None:
    with pytest.raises(OptionError, match="delete_when"):
        StoreOptions(delete_when=when)


def test_on_demand_at_any_hour_and_for_a_number_of_rounds(tank: Tank) -> None:
    keeper = tank.store.keeper
    assert MANUAL_ROUNDS == 20
    keeper.request_clean()
    for _ in range(MANUAL_ROUNDS):
        tank.fill(1)
        tank.age(100)
        assert keeper.clean() == 1
    tank.fill(1)
    tank.age(100)
    assert keeper.clean() == 0


def test_on_demand_keeps_what_has_not_expired(tank: Tank) -> None:
    tank.fill(3)
    tank.age(71.9)
    tank.age(73, count=1)
    tank.store.keeper.request_clean()
    assert tank.store.keeper.clean() == 1


# -- a disk that fills up ------------------------------------------------------------------------------------


@pytest.mark.seed("S3-49")
@pytest.mark.parametrize(("percent", "deleted"), [(75, 0), (76, 2)])
def test_over_the_first_limit_expired_segments_go_at_any_hour(tank: Tank, percent: int, deleted: int) -> None:
    tank.fill(4)
    tank.age(1)
    tank.age(80, count=2)
    tank.disk.usage_override = usage(percent)
    assert tank.store.keeper.clean() == deleted
    assert tank.store.is_writable


@pytest.mark.seed("S3-49")
@pytest.mark.parametrize(("percent", "deleted"), [(85, 0), (86, 4)])
def test_over_the_second_limit_segments_go_although_not_expired(
    tank: Tank, percent: int, deleted: int
) -> None:
    tank.fill(4)
    tank.age(1)
    tank.disk.usage_override = usage(percent)
    assert tank.store.keeper.clean() == deleted


@pytest.mark.seed("S3-43", "S3-45", "S3-46")
@pytest.mark.fault("F4")
def test_over_85_percent_writes_are_refused_and_below_accepted_again(tank: Tank) -> None:
    store = tank.store
    store.append(Message.of("orders", b"before", keys="k"))
    tank.disk.usage_override = usage(85)
    store.keeper.clean()
    assert store.append(Message.of("orders", b"at 85")).queue_offset == 1
    tank.disk.usage_override = usage(86)
    store.keeper.clean()
    end, request = store.log.max_offset, store.request(Message.of("orders", b"in a group"))
    with pytest.raises(DiskFullError, match=r"86 % full, over the limit of 85 %.*send again") as refused:
        store.append(Message.of("orders", b"at 86"))
    assert refused.value.retriable
    with pytest.raises(DiskFullError):
        store.append_group([request])
    with pytest.raises(DiskFullError):
        store.append_batch("orders", 0, batch_of([1, 2]))
    assert not store.is_writable
    assert store.log.max_offset == end
    assert request.size == 0
    assert [m.body for m in store.read("orders", 0, 0)] == [b"before", b"at 85"]  # reads go on
    assert [m.body for m in store.reader.query("orders", "k")] == [b"before"]
    tank.disk.usage_override = usage(85)
    store.keeper.clean()
    assert store.append(Message.of("orders", b"again")).queue_offset == 2
    assert store.is_writable


@pytest.mark.seed("S3-44")
def test_refusing_is_logged_once_and_accepting_too(tank: Tank, caplog: pytest.LogCaptureFixture) -> None:
    keeper = tank.store.keeper
    for percent in (86, 87, 85, 84):
        tank.disk.usage_override = usage(percent)
        keeper.clean()
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    errors = [text for level, text in said if level == logging.ERROR]
    assert len(errors) == 1
    assert "refused: disk is 86 % full, over the limit of 85 %" in errors[0]
    assert [text for level, text in said if level == logging.WARNING] == [
        f"writes to {tank.folder} are accepted again"
    ]


@pytest.mark.parametrize(("percent", "times"), [(90, 0), (91, 1)])
def test_over_90_percent_is_said_to_be_critical(
    tank: Tank, caplog: pytest.LogCaptureFixture, percent: int, times: int
) -> None:
    tank.disk.usage_override = usage(percent)
    tank.store.keeper.clean()
    assert [record.levelno for record in caplog.records].count(logging.CRITICAL) == times
    assert tank.store.keeper.used_percent == percent
    assert tank.store.stats()["disk_used_percent"] == percent


@pytest.mark.seed("S3-43")
def test_a_store_opened_on_a_full_disk_refuses_from_the_start(tank: Tank) -> None:
    tank.store.append(Message.of("orders", b"one"))
    tank.store.close()
    tank.disk.usage_override = usage(86)
    tank.store = tank.open()
    with pytest.raises(DiskFullError):
        tank.store.append(Message.of("orders", b"two"))
    assert [m.body for m in tank.store.read("orders", 0, 0)] == [b"one"]


@pytest.mark.seed("S3-43")
def test_the_limit_for_writes_is_an_option(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", disk_refuse_writes_percent=90, clean_forcibly_enabled=False)
    tank.disk.usage_override = usage(90)
    tank.store.keeper.clean()
    assert tank.store.is_writable
    tank.disk.usage_override = usage(91)
    tank.store.keeper.clean()
    assert not tank.store.is_writable
    tank.store.close()


@pytest.mark.seed("S3-49")
@pytest.mark.fault("F4")
def test_deleting_by_force_makes_room_and_writes_go_on_in_the_same_round(tank: Tank) -> None:
    tank.fill(6)
    tank.age(1)
    tank.disk.usage_override = None
    tank.disk.space_limit_bytes = tank.disk.used_bytes * 100 // 88  # 88 % used
    assert tank.disk.usage(tank.folder).used_percent > 85
    assert tank.store.keeper.clean() == 6
    assert tank.disk.usage(tank.folder).used_percent <= 85
    tank.store.append(Message.of("orders", b"there is room"))


# -- which ---------------------------------------------------------------------------------------------------


def test_ten_segments_a_round_at_most(tank: Tank) -> None:
    tank.fill(14)
    tank.age(100)
    tank.clock.hour = FOUR
    assert [tank.store.keeper.clean() for _ in range(3)] == [10, 4, 0]
    assert tank.store.log.min_offset == 14 * SEGMENT


@pytest.mark.parametrize("percent", [10, 99])
def test_the_segment_being_written_is_never_deleted(tank: Tank, percent: int) -> None:
    tank.fill(2)
    tank.age(1000)
    tank.clock.hour = FOUR
    tank.disk.usage_override = usage(percent)
    assert tank.store.keeper.clean() == 2
    flushed = tank.store.flusher.flushed_offset
    tank.store.flusher.flushed_offset = 3 * SEGMENT  # as if it were on disk to its last byte
    assert tank.store.keeper.clean() == 0
    tank.store.flusher.flushed_offset = flushed
    assert tank.segments == [f"{2 * SEGMENT:020d}"]
    tank.disk.usage_override = usage(10)
    tank.store.keeper.clean()
    tank.store.append(Message.of("orders", b"next"))


def test_nor_one_that_was_prepared_ahead(tank: Tank) -> None:
    tank.fill(1)
    while len(tank.segments) == 2:
        tank.store.append(Message.of("orders", bytes(1000)))
        tank.store.keeper.tick()
    assert tank.store.log.max_offset < 2 * SEGMENT
    tank.age(1000)
    tank.clock.hour = FOUR
    assert tank.store.keeper.clean() == 1
    assert tank.segments == [f"{SEGMENT:020d}", f"{2 * SEGMENT:020d}"]


@pytest.mark.parametrize("percent", [10, 99])
def test_nor_one_that_is_not_flushed(tmp_path: Path, percent: int) -> None:
    tank = Tank(tmp_path / "store", flush_mode=FlushMode.ASYNC)
    tank.fill(2)
    tank.store.flush(SEGMENT)
    tank.store.flusher.flushed_offset = SEGMENT  # as if only the first had been synced
    tank.age(1000)
    tank.clock.hour = FOUR
    tank.disk.usage_override = usage(percent)
    assert tank.store.keeper.clean() == 1
    assert tank.store.keeper.clean() == 0
    tank.store.flusher.flushed_offset = 2 * SEGMENT - 1  # all but its last byte
    assert tank.store.keeper.clean() == 0
    tank.store.flusher.flushed_offset = 2 * SEGMENT
    assert tank.store.keeper.clean() == 1
    tank.store.close()


def test_deletion_stops_at_the_first_segment_that_stays(tank: Tank) -> None:
    tank.fill(3)
    tank.age(100)
    tank.age(1, first=1, count=1)
    tank.clock.hour = FOUR
    assert tank.store.keeper.clean() == 1
    assert tank.store.log.min_offset == SEGMENT


# -- what follows --------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-42", "S3-6", "S4-4")
def test_queues_and_index_follow_the_log(tank: Tank) -> None:
    tank.fill(12)
    tank.store.keeper.tick()
    count = tank.store.max_offset("orders", 0)
    before = {m.queue_offset: m for m in tank.store.read("orders", 0, 0, 1000)}
    files_before = len(tank.names("consumequeue", "orders", "0")), len(tank.names("index"))
    assert len(before) == count
    tank.age(100, count=10)
    tank.clock.hour = FOUR
    assert tank.store.keeper.clean() == 10
    log_min = 10 * SEGMENT
    kept = [offset for offset, message in before.items() if message.physical_offset >= log_min]
    low = min(kept)
    assert tank.store.log.min_offset == log_min
    assert (tank.store.min_offset("orders", 0), tank.store.max_offset("orders", 0)) == (low, count)
    files = tank.names("consumequeue", "orders", "0"), tank.names("index")
    assert (len(files[0]), len(files[1])) < files_before
    assert int(files[0][0]) // 20 <= low < int(files[0][0]) // 20 + 8
    assert len(files[1]) < files_before[1]
    too_small = tank.store.get("orders", 0, low - 1)
    assert (too_small.status, too_small.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert tank.store.read("orders", 0, low, 1000) == [before[offset] for offset in kept]
    for offset in (0, low - 1):
        assert tank.store.reader.query("orders", f"k{offset}") == []
    for offset in kept:
        assert [m.queue_offset for m in tank.store.reader.query("orders", f"k{offset}")] == [offset]
    assert tank.store.message_at(0) is None
    assert audit(tank.store).all() == []


@pytest.mark.invariant("I4")
@pytest.mark.seed("S4-6")
@pytest.mark.parametrize("clean", [True, False])
def test_the_newest_offset_stays_although_nothing_of_the_queue_is_left(tank: Tank, clean: bool) -> None:
    for i in range(11):
        tank.store.append(Message.of("quiet", b"%d" % i))
    tank.fill(3)
    tank.store.keeper.tick()
    tank.age(100)
    tank.clock.hour = FOUR
    assert tank.store.keeper.clean() == 3
    for _ in range(2):
        assert (tank.store.min_offset("quiet", 0), tank.store.max_offset("quiet", 0)) == (11, 11)
        assert tank.store.get("quiet", 0, 11).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert tank.store.get("quiet", 0, 10).status is GetStatus.OFFSET_TOO_SMALL
        tank.reopen(clean=clean)
    assert tank.store.append(Message.of("quiet", b"next")).queue_offset == 11
    assert [m.body for m in tank.store.read("quiet", 0, 11)] == [b"next"]
    assert tank.store.min_offset("quiet", 0) == 11
    assert tank.store.findings.damage() == []


@pytest.mark.parametrize("clean", [True, False])
def test_what_retention_deleted_is_no_damage_after_a_restart(tank: Tank, clean: bool) -> None:
    tank.fill(4)
    tank.store.keeper.tick()
    tank.age(100, count=2)
    tank.clock.hour = FOUR
    tank.store.keeper.clean()
    low, high = tank.store.min_offset("orders", 0), tank.store.max_offset("orders", 0)
    tank.reopen(clean=clean)
    assert (tank.store.min_offset("orders", 0), tank.store.max_offset("orders", 0)) == (low, high)
    assert tank.store.findings.damage() == []


@pytest.mark.seed("S3-56")
def test_slices_of_a_deleted_segment_stay_readable_until_released(tank: Tank) -> None:
    tank.fill(2)
    view = tank.store.reader.slices("orders", 0, 0, 1)[0]
    copy = bytes(view)
    tank.age(100)
    tank.clock.hour = FOUR
    assert tank.store.keeper.clean() == 2
    assert not (tank.folder / "commitlog" / f"{0:020d}").exists()
    assert bytes(view) == copy
    tank.store.close()
    assert bytes(view) == copy
    view.release()
    tank.store = tank.open()


def test_a_read_under_way_is_told_that_its_messages_are_gone(tank: Tank) -> None:
    """The entries were chosen before retention came: they are missing, and nothing is called damaged."""
    tank.fill(2)
    queue = tank.store.queues.get("orders", 0)
    assert queue is not None
    low = queue.min_offset
    tank.age(100)
    tank.clock.hour = FOUR
    tank.store.keeper.clean()
    queue.min_offset = low  # what the reader saw
    result = tank.store.get("orders", 0, 0, max_count=2)
    queue.correct_min(tank.store.log.min_offset)
    assert (result.status, result.missing) == (GetStatus.MESSAGE_WAS_REMOVING, (0, 1))
    assert (result.damaged, result.next_offset, bytes(result.data)) == ((), 2, b"")
    assert tank.store.findings.damage() == []


def test_deleting_goes_through_a_disk_that_notes_the_order(tank: Tank) -> None:
    """The manifest says that the segments go before they do: a crash in between is not taken for a loss."""
    tank.fill(2)
    tank.age(100)
    tank.clock.hour = FOUR
    disk: FaultyDisk = tank.disk
    disk.log.clear()
    tank.store.keeper.clean()
    done = [(entry.op, entry.target or entry.path) for entry in disk.log]
    promise = done.index(("rename", "penstock.manifest.json"))
    removals = [i for i, (op, path) in enumerate(done) if op == "remove" and path.startswith("commitlog/")]
    assert [done[i][1] for i in removals] == [f"commitlog/{0:020d}", f"commitlog/{SEGMENT:020d}"]
    assert promise < removals[0]
