"""Retention waits for groups: what they have not taken stays, until the disk is too full for that."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.message import Message
from penstock.store import StoreOptions
from penstock.store.retention import Needed, SegmentAge, plan_round
from tests.unit.store.test_retention import EXPIRED, FOUR, FRESH, NOON, NOW, SEGMENT, Tank, options, usage


def plan(
    needed_from: int | None, *, used: int = 10, hour: int = FOUR, modified: int = EXPIRED, **changes: Any
) -> Any:
    segments = [SegmentAge(number * SEGMENT, modified, SEGMENT) for number in range(3)]
    return plan_round(options(**changes), usage(used), NOW, hour, False, segments, needed_from)


@pytest.mark.parametrize(
    ("needed_from", "deleted"),
    [(None, 3), (0, 0), (SEGMENT - 1, 0), (SEGMENT, 1), (2 * SEGMENT + 5, 2), (3 * SEGMENT, 3)],
)
def test_a_segment_goes_when_all_of_it_was_taken(needed_from: int | None, deleted: int) -> None:
    made = plan(needed_from)
    assert len(made.delete) == deleted
    assert made.needed == ()


def test_over_the_first_limit_it_still_waits_and_over_the_second_no_longer() -> None:
    assert plan(0, used=76, hour=NOON).delete == ()
    made = plan(SEGMENT, used=86, hour=NOON, modified=FRESH)
    assert made.delete == (0, SEGMENT, 2 * SEGMENT)
    assert made.needed == (SEGMENT, 2 * SEGMENT)


def test_with_deleting_by_force_turned_off_it_waits_for_ever() -> None:
    assert plan(0, used=99, clean_forcibly_enabled=False).delete == ()


def test_groups_have_names() -> None:
    with pytest.raises(OptionError, match="retention_groups"):
        StoreOptions(retention_groups=("",))


def clean(tank: Tank) -> int:
    tank.age(100)
    tank.clock.hour = FOUR
    return tank.store.keeper.clean()


def test_nothing_goes_before_anybody_has_said_how_far_the_groups_are(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive",))
    tank.fill(3)
    assert clean(tank) == 0
    tank.store.keeper.keep(Needed())
    assert clean(tank) == 3
    tank.store.close()


def test_what_was_not_taken_stays_and_goes_when_it_is(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive",))
    tank.fill(3)
    queue = tank.store.queues.get("orders", 0)
    assert queue is not None
    second = next(n for n in range(queue.max_offset) if (queue.position_from(n) or 0) >= SEGMENT)
    tank.store.keeper.keep(Needed((("orders", {0: second - 1}),)))
    assert clean(tank) == 0
    tank.store.keeper.keep(Needed((("orders", {0: second}),)))
    assert clean(tank) == 1
    assert tank.store.min_offset("orders", 0) == second
    tank.store.keeper.keep(Needed((("orders", {0: queue.max_offset}),)))
    assert clean(tank) == 2
    tank.store.close()


def test_messages_that_came_after_the_last_word_are_needed_too(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive",))
    tank.fill(1)
    tank.store.keeper.keep(Needed((("orders", {0: tank.store.max_offset("orders", 0)}),)))
    tank.fill(4)
    assert clean(tank) == 1
    tank.store.close()


def test_a_queue_without_an_offset_is_needed_from_its_beginning(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive",))
    tank.store.append(Message.of("orders", b"first of queue 1"), 1)
    tank.fill(2)
    tank.store.keeper.keep(Needed((("orders", {0: 10**9}),)))
    assert clean(tank) == 0
    tank.store.keeper.keep(Needed((("orders", {0: 10**9, 1: 1}),)))
    assert clean(tank) == 2
    tank.store.close()


def test_the_slowest_group_decides_and_other_topics_do_not_count(tmp_path: Path) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive", "audit"))
    tank.fill(2)
    end = tank.store.max_offset("orders", 0)
    tank.store.keeper.keep(Needed((("orders", {0: end}), ("orders", {0: 0}))))
    assert clean(tank) == 0
    tank.store.keeper.keep(Needed((("orders", {0: end}), ("payments", {0: 0}))))
    assert clean(tank) == 2
    tank.store.close()


def test_a_full_disk_deletes_what_is_needed_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tank = Tank(tmp_path / "store", retention_groups=("archive",))
    tank.fill(2)
    tank.disk.usage_override = usage(86)
    with caplog.at_level(logging.ERROR, "penstock.store"):
        assert tank.store.keeper.clean() == 2
    assert "2 segments are deleted that archive has not taken yet" in caplog.text
    tank.store.close()
