"""Lease tables of consumers, producers and brokers, as in TubeMQ's master."""

import logging

import pytest

from penstock.coordinator.heartbeats import SCAN_INTERVAL_MS, Gone, Heartbeats, HeartbeatTable, TimeoutInfo


@pytest.mark.feature("heartbeats", "tubemq")
@pytest.mark.seed("S0-40")
@pytest.mark.seed("S0-41")
@pytest.mark.seed("S0-50")
@pytest.mark.seed("S0-51")
@pytest.mark.seed("S0-52")
@pytest.mark.seed("S0-56")
def test_three_tables_with_their_own_timeouts_in_their_order() -> None:
    tables = Heartbeats().tables
    assert [(table.kind, table.timeout_ms) for table in tables] == [
        ("Consumer", 45_000),
        ("Producer", 30_000),
        ("Broker", 25_000),
    ]
    assert SCAN_INTERVAL_MS == 1_000


@pytest.mark.feature("heartbeats", "tubemq")
@pytest.mark.seed("S0-42")
@pytest.mark.seed("S0-43")
@pytest.mark.seed("S0-44")
@pytest.mark.seed("S0-45")
@pytest.mark.seed("S0-46")
@pytest.mark.seed("S0-47")
@pytest.mark.seed("S0-48")
@pytest.mark.seed("S0-57")
@pytest.mark.seed("S0-58")
def test_a_node_that_times_out_is_removed_logged_and_released(caplog: pytest.LogCaptureFixture) -> None:
    heartbeats = Heartbeats(consumer_timeout_ms=300, producer_timeout_ms=200, broker_timeout_ms=100)
    released: list[tuple[str, Gone | None]] = []
    for table, node in zip(heartbeats.tables, ("c1@g", "p1", "c/b/1"), strict=True):
        table.listen(lambda node_id, info: released.append((node_id, info.gone)))
        table.register(node, 0)
    with caplog.at_level(logging.WARNING):
        assert heartbeats.scan(99) == []
        assert [info.node_id for info in heartbeats.scan(100)] == ["c/b/1"]
        heartbeats.scan(300)
    assert released == [("c/b/1", Gone.TIMEOUT), ("c1@g", Gone.TIMEOUT), ("p1", Gone.TIMEOUT)]
    assert [record.getMessage() for record in caplog.records] == [
        "[Broker Timeout] c/b/1",
        "[Consumer Timeout] c1@g",
        "[Producer Timeout] p1",
    ]
    assert [len(table) for table in heartbeats.tables] == [0, 0, 0]


@pytest.mark.feature("heartbeats", "tubemq")
@pytest.mark.seed("S0-53")
@pytest.mark.seed("S0-54")
def test_a_beat_extends_the_nodes_own_expiry() -> None:
    table = HeartbeatTable("Consumer", 1_000)
    table.register("a", 0)
    table.register("b", 0)
    assert table.beat("a", 900)
    assert [info.node_id for info in table.scan(1_000)] == ["b"]
    assert "a" in table
    assert not table.beat("b", 1_000), "it has to register again"
    assert [info.node_id for info in table.scan(1_900)] == ["a"]


def test_another_instance_is_neither_extended_nor_removed_by_an_earlier_one() -> None:
    table = HeartbeatTable("Broker", 1_000)
    assert table.register("b", 0, instance="1") is None
    before = table.register("b", 500, instance="2")
    assert before is not None
    assert before.instance == "1"
    assert not table.beat("b", 600, instance="1")
    assert not table.close("b", instance="1")
    assert table.beat("b", 600, instance="2")
    assert table.close("b", instance="2")
    assert not table.close("b", instance="2")


@pytest.mark.feature("heartbeats", "tubemq")
def test_a_dropped_connection_acts_at_once_for_those_who_reported_over_it_last() -> None:
    heartbeats = Heartbeats()
    gone: list[str] = []
    for table in heartbeats.tables:
        table.listen(lambda node_id, info: gone.append(f"{node_id} {info.gone}"))
    heartbeats.consumers.register("c@g", 0, connection=1)
    heartbeats.producers.register("p", 0, connection=1)
    heartbeats.brokers.register("b", 0, connection=2)
    heartbeats.producers.register("q", 0, connection=1)
    heartbeats.producers.beat("q", 10, connection=3)
    heartbeats.producers.register("r", 0)
    assert len(heartbeats.connection_dropped(1)) == 2
    assert gone == ["c@g Gone.DROPPED", "p Gone.DROPPED"]
    assert heartbeats.connection_dropped(0) == []
    assert sorted(info.node_id for info in heartbeats.producers) == ["q", "r"]


@pytest.mark.seed("S0-47")
def test_a_listener_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    table = HeartbeatTable("Broker", 100)
    seen: list[str] = []

    def fail(node_id: str, info: TimeoutInfo) -> None:
        raise ValueError(node_id)

    table.listen(fail)
    table.listen(lambda node_id, info: seen.append(node_id))
    table.register("a", 0)
    table.register("b", 0)
    table.scan(100)
    assert seen == ["a", "b"]
    assert caplog.text.count("releasing the broker") == 2


def test_a_listener_may_let_a_node_register_again() -> None:
    table = HeartbeatTable("Producer", 100)
    table.listen(lambda node_id, info: table.register("b", 100) and None)
    table.register("a", 0)
    table.register("b", 0)
    assert [info.node_id for info in table.scan(100)] == ["a"]
    assert table.get("b") is not None


def test_clearing_calls_nobody() -> None:
    heartbeats = Heartbeats()
    called: list[str] = []
    heartbeats.consumers.listen(lambda node_id, info: called.append(node_id))
    heartbeats.consumers.register("a", 0)
    heartbeats.clear()
    assert (len(heartbeats.consumers), called) == (0, [])
