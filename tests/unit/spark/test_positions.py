"""Positions as users write them and as checkpoints keep them."""

import json

import pytest

from penstock.client.scan_results import OffsetRange, QueueId
from penstock.errors import OptionError
from penstock.spark.positions import (
    EARLIEST,
    LATEST,
    Position,
    PositionKind,
    check_ends,
    check_order,
    parse_time,
    resolve,
    sorted_offsets,
    split_beginning,
    with_beginning,
)

A, B = QueueId("T", "b", 0), QueueId("T", "b", 10)
RANGES = {A: OffsetRange(5, 50), B: OffsetRange(0, 7)}


def position(text: str) -> Position:
    return Position.parse("startingPosition", text)


def at(text: str, name: str = "startingPosition") -> dict[QueueId, int]:
    return resolve(
        position(text), name, RANGES, lambda times: {queue: ms // 1000 for queue, ms in times.items()}
    )


def test_words_times_and_offsets():
    assert at("earliest") == {A: 5, B: 0}
    assert at(" Latest ") == {A: 50, B: 7}
    assert at("timestamp:6000") == {A: 6, B: 6}
    assert at('{"T/b/0": 9, "T/b/10": "latest"}') == {A: 9, B: 7}
    assert at('{"T/b/10": "earliest"}') == {A: 5, B: 0}


def test_queues_that_are_not_named_are_whole():
    assert at('{"T/b/0": 9}') == {A: 9, B: 0}
    assert at('{"T/b/0": 9}', "endingPosition") == {A: 9, B: 7}


def test_a_star_is_for_the_queues_that_are_not_named():
    assert at('{"T/b/0": 9, "*": "latest"}') == {A: 9, B: 7}
    assert at('{"T/b/0": 9, "*": "Earliest"}', "endingPosition") == {A: 9, B: 0}
    with pytest.raises(OptionError, match=r"for \*"):
        position('{"*": 4}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1700000000000),
        ("2023-11-14T22:13:20Z", 1700000000000),
        ("2023-11-14T23:13:20+01:00", 1700000000000),
        ("2023-11-14 22:13:20", 1700000000000),
        ("2023-11-14", 1699920000000),
        ("2023-11-14T22:13:20.500Z", 1700000000500),
    ],
)
def test_times(text, expected):
    assert parse_time("startingPosition", text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "startingPosition is 'soon'"),
        ("", "startingPosition is ''"),
        ("timestamp:", "has the time ''"),
        ("timestamp:tomorrow", "has the time 'tomorrow'.*2026-"),
        ("timestamp:-5", "has the time"),
        ('{"T/b/0": }', "is no JSON"),
        ('{"T": 1}', "'T' names no queue.*topic/broker/queue"),
        ('{"T/b/x": 1}', "names no queue"),
        ('{"a/b/c/0": 1}', "names no queue"),
        ('{"T/b/0": -1}', "has -1 for T/b/0"),
        ('{"T/b/0": 1.5}', "has 1.5"),
        ('{"T/b/0": true}', "has True"),
        ('{"T/b/0": "soon"}', "has 'soon'"),
        ('{"T/b/0": null}', "has None"),
        ('{"T/b/0": 99999999999999999999}', "has 9999"),
    ],
)
def test_mistakes(text, said):
    with pytest.raises(OptionError, match=said):
        position(text)


def test_unknown_queues_are_refused():
    with pytest.raises(OptionError, match=r"queues that are not read: T/b/3.*queues are: T/b/0, T/b/10"):
        at('{"T/b/3": 1}')


def test_offsets_for_spark_are_sorted_as_text():
    offsets = sorted_offsets({B.key: 1, A.key: 2, "A/b/2": 0})
    assert json.dumps(offsets) == '{"A/b/2": 0, "T/b/0": 2, "T/b/10": 1}'


def test_positions_have_a_text():
    assert str(EARLIEST) == "earliest"
    assert str(position("timestamp:1700000000000")) == "timestamp:2023-11-14T22:13:20+00:00"
    assert str(position('{"T/b/0": 1}')) == '{"T/b/0": 1}'
    assert position("latest") == LATEST
    assert position("timestamp:1").kind is PositionKind.TIME


@pytest.mark.parametrize(
    ("starting", "ending"),
    [
        ("latest", "earliest"),
        ("timestamp:2000", "timestamp:1000"),
        ('{"T/b/0": 9}', '{"T/b/0": 8}'),
        ('{"T/b/0": 51}', "latest"),
        ("latest", '{"T/b/0": 8}'),
    ],
)
def test_a_start_after_the_end_is_refused(starting, ending):
    with pytest.raises(OptionError, match="startingPosition is after endingPosition"):
        check_order(position(starting), position(ending), at(starting), at(ending, "endingPosition"))


@pytest.mark.parametrize(
    ("starting", "ending"),
    [
        ("earliest", "latest"),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("timestamp:1000", "timestamp:1000"),
        ("timestamp:9000", "latest"),
        ('{"T/b/0": 9}', '{"T/b/0": 9}'),
    ],
)
def test_other_orders_are_fine(starting, ending):
    check_order(position(starting), position(ending), at(starting), at(ending, "endingPosition"))


def test_an_end_that_is_not_there_is_refused():
    ending = position('{"T/b/10": 8}')
    ends = at('{"T/b/10": 8}', "endingPosition")
    with pytest.raises(OptionError, match="endingPosition of T/b/10 is 8, and the queue ends at 7"):
        check_ends(ending, ends, RANGES)
    check_ends(LATEST, ends, RANGES)


def test_queue_keys_go_both_ways():
    assert QueueId.of_key("orders/broker-a/3") == QueueId("orders", "broker-a", 3)
    assert QueueId.of_key("orders//3").key == "orders//3", "a store directory has no broker"
    assert QueueId("T", "b", 1, "here:1") == QueueId("T", "b", 1, "there:2")


def test_offsets_of_a_first_batch_say_where_it_began():
    made = with_beginning({"T/b/1": 9, "T/b/0": 7}, {"T/b/0": 5})
    assert list(made.items()) == [("T/b/0", 7), ("T/b/1", 9), ("^T/b/0", 5)]
    assert split_beginning(made) == ({"T/b/0": 7, "T/b/1": 9}, {"T/b/0": 5})
    assert split_beginning({"T/b/0": 7}) == ({"T/b/0": 7}, {})
