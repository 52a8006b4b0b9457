"""What filters of a query leave to read."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.client.scan_results import QueueId
from penstock.spark.filters import TIME_MARGIN_MS, restriction_of
from penstock.spark.planning import QueueSlice


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class EqualNullSafe(EqualTo): ...


class In(EqualTo): ...


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class StringStartsWith(EqualTo): ...


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: object


QUEUES = [
    QueueSlice(QueueId(topic, broker, number), 0, 100)
    for topic in ("T", "U")
    for broker in ("a", "b")
    for number in (0, 1)
]


def left(*filters: object) -> list[str]:
    return [
        f"{item.queue.key}:{item.start}-{item.end}"
        for item in restriction_of(filters).narrow(
            QUEUES, lambda times: {q: ms // 1000 for q, ms in times.items()}
        )
    ]


def test_queues_are_chosen():
    assert left(EqualTo(("topic",), "T"), EqualTo(("broker",), "a")) == ["T/a/0:0-100", "T/a/1:0-100"]
    assert left(In(("queue_id",), (1, 7, None)), EqualNullSafe(("topic",), "U")) == [
        "U/a/1:0-100",
        "U/b/1:0-100",
    ]
    assert left(EqualTo(("queue_id",), 0), EqualTo(("queue_id",), 1)) == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("queue_offset",), 7)], "7-8"),
        ([GreaterThan(("queue_offset",), 7)], "8-100"),
        ([GreaterThanOrEqual(("queue_offset",), 7), LessThan(("queue_offset",), 9)], "7-9"),
        ([LessThanOrEqual(("queue_offset",), 9)], "0-10"),
        ([In(("queue_offset",), (50, 3, 20))], "3-51"),
        ([GreaterThan(("queue_offset",), -5), LessThan(("queue_offset",), 10**30)], "0-100"),
    ],
)
def test_offsets_shorten_ranges(filters, expected):
    assert left(*filters, EqualTo(("topic",), "T"), EqualTo(("broker",), "a"), EqualTo(("queue_id",), 0)) == [
        f"T/a/0:{expected}"
    ]


def test_an_empty_range_is_not_read():
    assert left(GreaterThan(("queue_offset",), 100)) == []
    assert left(LessThan(("queue_offset",), 0)) == []


def test_times_shorten_ranges_with_a_margin():
    one = [EqualTo(("topic",), "T"), EqualTo(("broker",), "a"), EqualTo(("queue_id",), 0)]
    margin = TIME_MARGIN_MS // 1000
    since, until = datetime.fromtimestamp(40, UTC), datetime.fromtimestamp(60, UTC)
    assert left(*one, GreaterThanOrEqual(("store_time",), since)) == [f"T/a/0:{40 - margin}-100"]
    assert left(*one, LessThan(("store_time",), until)) == [f"T/a/0:0-{60 + margin}"]
    assert left(*one, EqualTo(("store_time",), since)) == [f"T/a/0:{40 - margin}-{40 + margin}"]
    naive = datetime(1970, 1, 1, 0, 0, 40)  # noqa: DTZ001
    assert left(*one, GreaterThan(("store_time",), naive)) == [f"T/a/0:{40 - margin}-100"]


def test_tags_and_keys():
    found = restriction_of([In(("tags",), ("A", "B", None)), EqualTo(("keys",), "k1")])
    assert found.tags_with(()) == ("A", "B")
    assert found.tags_with(("B", "C")) == ("B",)
    assert found.tags_with(("C",)) is None
    assert found.key == "k1"
    assert restriction_of([]).tags_with(("C",)) == ("C",)
    assert restriction_of([EqualTo(("tags",), "A"), EqualTo(("tags",), "B")]).tags_with(()) is None
    assert restriction_of([EqualTo(("keys",), "two words")]).key == "", "the scan looks for single words"


def test_what_does_not_help_is_left_to_spark():
    for item in (
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "T")),
        StringStartsWith(("topic",), "T"),
        EqualTo(("topic",), None),
        EqualTo(("properties", "a"), "x"),
        EqualTo(("body",), b"x"),
        GreaterThan(("queue_id",), 0),
        EqualTo(("queue_offset",), "7"),
        GreaterThan(("store_time",), "2020"),
    ):
        assert len(left(item)) == len(QUEUES)
