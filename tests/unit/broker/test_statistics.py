"""Counts over windows of time, on a clock that a test moves."""

from __future__ import annotations

import pytest

from penstock.broker import statistics as module
from penstock.broker.statistics import Item, Latencies, Statistics, Total
from penstock.testing import ManualClock

MINUTE, HOUR, DAY = range(3)


def test_a_window_holds_what_happened_in_it() -> None:
    item = Item(0)
    for second in range(7_200):
        item.add(2, 1, second * 1_000)
    now = 7_200_000
    minute = item.window(MINUTE, now)
    assert 2 * 50 <= minute.total <= 2 * 60
    assert minute.per_second == pytest.approx(2, rel=0.2)
    assert minute.average == 2
    hour = item.window(HOUR, now)
    assert 2 * 3_000 <= hour.total <= 2 * 3_600
    assert item.window(DAY, now).total == 2 * 7_200
    assert item.window(DAY, now).per_second == pytest.approx(2)


def test_what_is_over_is_forgotten_and_a_young_item_is_not_diluted() -> None:
    item = Item(1_000_000)
    item.add(100, 1, 1_000_000)
    young = item.window(MINUTE, 1_002_000)
    assert (young.total, young.per_second) == (100, 50)
    assert item.window(MINUTE, 1_061_000).total == 0
    assert item.window(HOUR, 1_061_000).total == 100
    assert item.window(HOUR, 1_000_000 + 3_700_000).total == 0
    assert item.window(DAY, 1_000_000 + 3_700_000).total == 100
    assert item.window(DAY, 1_000_000 + 90_000_000).total == 0


def test_marks_are_bounded() -> None:
    item = Item(0)
    for step in range(100_000):
        item.add(1, 1, step * 10_000)
    assert [len(marks) for marks in item._marks] == [7, 7, 25]


def test_rates_over_ten_sixty_and_six_hundred_seconds() -> None:
    total = Total(0)
    for second in range(1, 1_001):
        total.value += 10 if second > 990 else 1
        total.sample(second * 1_000)
    assert total.rate(10) == 10
    assert total.rate(60) == pytest.approx((10 * 10 + 50) / 60)
    assert total.rate(600) == pytest.approx((10 * 10 + 590) / 600)
    assert [float(part) for part in total.rates().split()] == pytest.approx([10, 2.5, 1.15], abs=1e-3)
    assert Total(5).rate(10) == 0


def test_latencies_are_shown_in_rocketmqs_classes() -> None:
    latencies = Latencies()
    for took in (0, 0, 0, 5, 70, 20_000):
        latencies.record(took)
    assert latencies.text().startswith("[<=0ms]:3 [0~10ms]:1 [10~50ms]:0 [50~100ms]:1")
    assert latencies.text().endswith("[10s~]:1")
    assert latencies.maximum_ms == 20_000
    assert latencies.percentile_ms(50) <= 1
    assert latencies.percentile_ms(99.9) == 20_000
    assert Latencies().percentile_ms(99) == 0


def test_names_are_looked_up_and_rates_are_per_topic_and_group() -> None:
    clock = ManualClock()
    statistics = Statistics(clock, "cluster")
    for _ in range(60):
        statistics.put("T", 5, 500)
        statistics.got("g", "T", 0, 3, 300)
        statistics.missed()
        clock.advance(1_000)
        statistics.tick()
    assert statistics.topic_put_tps("T") == pytest.approx(5, rel=0.2)
    assert statistics.group_get_tps("g", "T") == pytest.approx(3, rel=0.2)
    assert statistics.topic_put_tps("none") == statistics.group_get_tps("g", "none") == 0.0
    assert statistics.find("NOTHING", "T") is None
    assert (statistics.puts.value, statistics.gets_transferred.value, statistics.gets_missed.value) == (
        300,
        180,
        60,
    )
    statistics.forget_topic("T")
    assert statistics.topic_put_tps("T") == 0.0


def test_totals_of_the_day_begin_at_midnight() -> None:
    clock = ManualClock(hour=22)
    statistics = Statistics(clock, "cluster")
    statistics.put("T", 10, 100)
    clock.hour = 23
    statistics.tick()
    assert statistics.this_morning == (0, 0)
    clock.hour = 0
    statistics.tick()
    statistics.tick()
    assert statistics.this_morning == (10, 0)
    statistics.put("T", 5, 50)
    clock.hour = 23
    statistics.tick()
    clock.hour = 0
    statistics.tick()
    assert (statistics.yesterday_morning, statistics.this_morning) == ((10, 0), (15, 0))


@pytest.mark.abuse("A14")
def test_the_number_of_items_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ITEMS_MAX", 100)
    clock = ManualClock()
    statistics = Statistics(clock, "cluster")
    for number in range(500):
        clock.advance(1_000)
        statistics.tick()
        statistics.put(f"T{number}", 1, 1)
    assert sum(len(items) for items in statistics._items.values()) == statistics._count <= 101
    assert statistics.topic_put_tps("T499") > 0
