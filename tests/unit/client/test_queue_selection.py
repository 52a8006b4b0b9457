import pytest

from penstock.client.fault_latency import FaultLatency
from penstock.client.queue_selection import RoundRobin, select_by_key
from penstock.protocol.bodies.queues import MessageQueue


def queues(*brokers, each=2):
    return [MessageQueue("T", name, number) for name in brokers for number in range(each)]


def test_queues_take_turns_from_anywhere():
    turns = RoundRobin(3)
    found = [turns.next(queues("a", "b")) for _ in range(4)]
    assert [(q.broker_name, q.queue_id) for q in found] == [("b", 1), ("a", 0), ("a", 1), ("b", 0)]


@pytest.mark.seed("S1-87")
def test_the_broker_that_just_failed_is_passed_over_if_there_is_another():
    turns = RoundRobin(0)
    assert turns.next(queues("a", "b"), "a").broker_name == "b"
    assert turns.next(queues("a"), "a").broker_name == "a"


def test_a_key_always_has_the_same_queue_and_keys_spread():
    all_queues = queues("a", "b", each=4)
    for number in range(50):
        assert select_by_key(all_queues, f"k{number}") == select_by_key(list(all_queues), f"k{number}")
    assert {select_by_key(all_queues, f"k{number}") for number in range(200)} == set(all_queues)


@pytest.mark.parametrize(
    ("latency", "avoided"),
    [
        (0, 0),
        (49, 0),
        (100, 0),
        (549, 0),
        (550, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10000),
        (99999, 30000),
    ],
)
def test_how_long_a_slow_broker_is_left_alone(latency, avoided):
    faults = FaultLatency()
    faults.answered("a", latency, 1_000)
    assert faults.is_available("a", 1_000 + avoided)
    assert faults.is_available("a", 999 + avoided) is (avoided == 0)


def test_a_failure_counts_as_ten_seconds_and_a_quick_answer_forgives():
    faults = FaultLatency()
    faults.failed("a", 0)
    assert not faults.is_available("a", 9_999)
    assert faults.is_available("a", 10_000)
    faults.failed("a", 0)
    faults.answered("a", 5, 1)
    assert faults.is_available("a", 1)


def test_slow_brokers_are_avoided_while_there_is_another():
    faults = FaultLatency()
    turns = RoundRobin(0, faults)
    faults.failed("a", 0)
    assert {turns.next(queues("a", "b"), now_ms=1).broker_name for _ in range(8)} == {"b"}
    faults.answered("b", 600, 1)  # worse for two seconds only
    assert {turns.next(queues("a", "b"), now_ms=2).broker_name for _ in range(8)} == {"b"}
    assert {turns.next(queues("a", "b"), now_ms=20_000).broker_name for _ in range(8)} == {"a", "b"}
