"""Naming sources, choosing topics, and reasons for gaps: no Spark."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.client.admin_results import TopicDescription
from penstock.errors import ClientError, OptionError
from penstock.spark.gaps import Gap
from penstock.spark.pipelines import audit_cluster
from penstock.spark.pipelines.audit_reasons import reasons_of
from penstock.spark.pipelines.audit_sources import (
    QueueKey,
    Source,
    choose_topics,
    parse_source,
    positions_json,
)

NAMES = [
    "orders",
    "orders-eu",
    "pay",
    "%RETRY%g",
    "%DLQ%g",
    "RMQ_SYS_TRACE_TOPIC",
    "TBW102",
    "PENSTOCK_STAGED",
]


def test_sources_by_name(tmp_path: Path) -> None:
    assert parse_source("log", "h:1") == Source("log", nameserver="h:1")
    assert parse_source("log:a, b", "h:1", ["c"]).topics == ("c", "a", "b")
    assert parse_source("archive:/x", "", ["t"]) == Source("archive", "/x", "", ("t",))
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    (tmp_path / "a" / "topic=T").mkdir(parents=True)
    assert parse_source(str(tmp_path / "s")).kind == "store"
    assert parse_source(str(tmp_path / "a")).kind == "archive"


@pytest.mark.parametrize(
    ("text", "why"),
    [("log", "name server"), ("store:", "needs a directory"), ("/nowhere/at/all", "is not there")],
)
def test_a_source_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        parse_source(text)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="neither a store nor an archive"):
        parse_source(str(tmp_path))


def test_an_empty_time_range_is_refused() -> None:
    with pytest.raises(OptionError, match="empty"):
        Source("store", "/x", start=5, end=5)


def test_topics_without_a_wish_are_those_of_people() -> None:
    assert choose_topics(NAMES, ()) == ["%DLQ%g", "orders", "orders-eu", "pay"]
    assert choose_topics(NAMES, (), dead_letters=False) == ["orders", "orders-eu", "pay"]


def test_topics_by_pattern() -> None:
    assert choose_topics(NAMES, ("orders*",)) == ["orders", "orders-eu"]
    assert choose_topics(NAMES, ("pay", "%RETRY%*")) == ["%RETRY%g", "pay"]
    with pytest.raises(OptionError, match=r"no topic is called 'order'.*orders") as refused:
        choose_topics(NAMES, ("order",))
    assert "TBW102" not in str(refused.value)


def test_queue_keys_and_positions() -> None:
    key = QueueKey("a", "", 3)
    assert QueueKey.parse(str(key)) == key == QueueKey.parse("a//3")
    assert positions_json({QueueKey("b", "x", 0): 7, key: 1}) == '{"*": "latest", "a//3": 1, "b/x/0": 7}'
    with pytest.raises(OptionError, match="names no queue"):
        QueueKey.parse("a/b")


def test_a_set_of_brokers_without_a_master_is_not_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    route = TopicDescription("T", (), {"a": "h:1"}, {"a": 6, "b": 6}, {}, 0.0)
    admin = SimpleNamespace(list_topics=lambda internal: ["T"], describe_topic=lambda topic: route)
    monkeypatch.setattr(audit_cluster, "_asking", lambda nameserver, access: nullcontext(admin))
    with pytest.raises(ClientError, match="topic T are at b: no master"):
        audit_cluster.cluster_ranges(Source("log", nameserver="h:1", topics=("T",)))


def test_reasons_meet_the_gaps_they_overlap() -> None:
    def note(first: int, last: int, reason: str, queue_id: int = 0) -> Gap:
        return Gap("T", "b", queue_id, first, last, reason, "", "reading")

    def gap(first: int, last: int) -> dict[str, object]:
        return {"topic": "T", "broker": "b", "queue_id": 0, "first_offset": first, "last_offset": last}

    notes = [note(5, 9, "damaged"), note(0, 6, "deleted"), note(20, 20, "missing"), note(5, 9, "x", 1)]
    gaps = [gap(0, 9), gap(10, 19), gap(20, 30), gap(9, 9)]
    assert reasons_of(gaps, notes) == ["deleted; damaged", "", "missing", "damaged"]
