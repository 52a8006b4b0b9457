"""What an audit says, number by number: facts are planted in a store, and found in it and in an archive of it."""

from datetime import UTC, datetime

import pytest

from penstock.message import Message
from penstock.message.failures import REASON
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit import AuditSettings, audit
from penstock.spark.pipelines.audit_dead_letters import GIVEN_UP, SHOWN, USED_UP
from penstock.spark.pipelines.audit_keys import hot_keys, keys_of
from penstock.spark.pipelines.audit_sources import Source
from penstock.store import MessageStore
from penstock.testing import ManualClock
from penstock.testing.embedded import STORE

T0_MS = 1_777_636_800_000  # 2026-05-01T12:00:00Z
# Latency in milliseconds, and how many of 2,000 messages have it.
LATENCIES = {3: 1_040, 40: 780, 200: 165, 30_000: 14, 60_000: 1}
BAD_CUSTOMER = "ValueError: no such customer"


class Planting:
    """Messages into a store, each stored 10 ms after the one before it."""

    def __init__(self, store, clock):
        self._store, self._clock = store, clock
        self._ids = 0

    def put(self, topic, body, *, queue=0, keys="", took_ms=5, born_ms=None, tries=0, **properties):
        """`took_ms` is what it was on its way for; `born_ms` says when it was born instead, counted from T0."""
        self._clock.advance(10)
        self._ids += 1
        given = {"UNIQ_KEY": f"id-{self._ids}", **({"KEYS": keys} if keys else {}), **properties}
        born = self._clock.now_ms() - took_ms if born_ms is None else T0_MS + born_ms
        request = self._store.request(
            Message(topic, body, given), queue, born_timestamp=born, reconsume_times=tries
        )
        self._store.append_group([request])


def plant_orders(planting):
    """Queue 0 has 12 messages, queues 1 and 2 have 3 each."""
    for number in range(6):
        planting.put("orders", b"hot %d" % number, keys="hot")
    planting.put("orders", b"paid", keys="again", UNIQ_KEY="first-try")
    planting.put("orders", b"paid", keys="again", UNIQ_KEY="second-try")
    planting.put("orders", b"one", keys="late", born_ms=79)
    planting.put("orders", b"two", keys="late", born_ms=54)
    planting.put("orders", b"here", keys="wanders")
    planting.put("orders", b"of two keys", keys="hot other")
    planting.put("orders", b"there", queue=1, keys="wanders")
    planting.put("orders", b"stored", queue=1, keys="copied", UNIQ_KEY="same")
    planting.put("orders", b"no key", queue=1)
    planting.put("orders", b"stored", queue=2, keys="copied", UNIQ_KEY="same")
    # The same body under another key, the same key with another body: neither is sent twice. Older than the one of
    # its key in another queue, which is no disorder.
    planting.put("orders", b"paid", queue=2, keys="once")
    planting.put("orders", b"three", queue=2, keys="late", born_ms=10)


def plant_dead_letters(planting):
    topic = "%DLQ%billing"
    for _ in range(2):
        planting.put(topic, b"x", tries=3, DLQ_ORIGIN_TOPIC="orders", **{REASON: BAD_CUSTOMER})
    planting.put(topic, b"x", tries=3, DLQ_ORIGIN_TOPIC="orders", **{REASON: "TimeoutError"})
    planting.put(topic, b"x", tries=17, RETRY_TOPIC="orders")
    planting.put(topic, b"x", tries=2, DLQ_ORIGIN_TOPIC="payments")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The store with all that is planted."""
    path, clock = tmp_path_factory.mktemp("planted") / "store", ManualClock(T0_MS)
    with MessageStore.open(path, STORE, runtime=Runtime(clock=clock), background=False) as store:
        planting = Planting(store, clock)
        plant_orders(planting)
        plant_dead_letters(planting)
        for body in (b"whole", b"DAMAGE-ME", b"whole too"):
            planting.put("holes", body)
        for took_ms, count in LATENCIES.items():
            for _ in range(count):
                planting.put("timed", b"t", took_ms=took_ms)
    segment = next((path / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"DAMAGE-ME", b"DAMAGE-xE"))
    return path


@pytest.fixture(scope="module", params=["store", "archive"])
def found(request, spark, directory, tmp_path_factory):
    """An audit of the store, and one whose source is an archive of it."""
    place = directory
    if request.param == "archive":
        place = tmp_path_factory.mktemp("archived") / "archive"
        assert archive("", str(place), store=str(directory), spark=spark).rows == 18 + 5 + 2 + 2_000
    settings = AuditSettings(window_s=10)
    return audit(f"{request.param}:{place}", settings=settings, spark=spark)


def rows_of(result, table, *names, topic="orders"):
    return [
        tuple(row[name] for name in names)
        for row in result.tables[table].to_pylist()
        if row["topic"] == topic
    ]


def notes(result):
    return {item.kind for item in result.findings if item.severity == "note"}


def test_messages_are_counted_and_the_largest_queue_is_twice_the_mean(found):
    assert found.rows == 18 + 5 + 2 + 2_000
    assert rows_of(found, "queues", "queue_id", "rows") == [(0, 12), (1, 3), (2, 3)]
    assert rows_of(found, "topics", "queues", "rows", "most_rows", "skew") == [(3, 18, 12, 2.0)]
    (first, last) = rows_of(found, "topics", "first_time", "last_time")[0]
    assert [moment.astimezone(UTC) for moment in (first, last)] == [
        datetime.fromtimestamp((T0_MS + ms) / 1000, UTC) for ms in (10, 180)
    ]


def test_hot_keys_are_ranked_with_their_share(found):
    hot = rows_of(found, "hot_keys", "rank", "key", "rows", "in_several_queues", "share")
    # 17 messages have a key, one of them two.
    assert hot == [
        (1, "hot", 7, False, 7 / 17),
        (2, "late", 3, True, 3 / 17),
        (3, "again", 2, False, 2 / 17),
        (4, "copied", 2, True, 2 / 17),
        (5, "wanders", 2, True, 2 / 17),
    ]


def test_a_key_that_every_message_has_beside_its_own_is_all_of_them(spark):
    rows = [("T", "b", 0, 10, f"all own-{number}") for number in range(4)]
    rows += [("T", "b", 0, 10, None), ("T", "b", 0, 10, " ")]
    facts = spark.createDataFrame(rows, "topic string, broker string, queue_id int, size int, keys string")
    (hot,) = hot_keys(keys_of(facts)).collect()
    assert (hot.key, hot.rows, hot.share) == ("all", 4, 1.0)


def test_keys_in_several_queues_are_counted(found):
    assert rows_of(found, "keys", "keys", "in_several_queues", "most_rows", "rows") == [(7, 3, 7, 17)]


def test_an_older_message_behind_a_younger_one_of_its_key_is_late(found):
    names = ("kind", "queue_id", "queue_offset", "previous_offset", "key", "value", "previous_value")
    assert rows_of(found, "disorder", *names) == [("born_time", 0, 9, 8, "late", T0_MS + 54, T0_MS + 79)]
    assert rows_of(found, "disorder_totals", "kind", "rows", "keys", "worst") == [("born_time", 1, 1, 25)]


def test_duplicates_are_told_by_id_and_by_key(found):
    names = ("kind", "value", "copies", "first_place", "last_place")
    assert rows_of(found, "duplicates", *names) == [
        ("id", "same", 2, "/1@1", "/2@0"),
        ("key", "again", 2, "/0@6", "/0@7"),
    ]
    assert rows_of(found, "duplicate_totals", "kind", "values", "extra") == [("id", 1, 1), ("key", 1, 1)]


def test_percentiles_are_latencies_that_messages_had(found):
    names = ("stage", "rows", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "negative")
    assert rows_of(found, "latency", *names, topic="timed") == [
        ("stored", 2_000, 3, 40, 200, 30_000, 60_000, 0)
    ]
    # Three were born when the test said: 11 and 46 ms before they were stored, and 170 ms.
    assert rows_of(found, "latency", *names) == [("stored", 18, 5, 46, 170, 170, 170, 0)]
    powers = rows_of(found, "latency_histogram", "power", "rows", topic="timed")
    assert powers == [(2, 1_040), (6, 780), (8, 165), (15, 14), (16, 1)]


def test_percentiles_of_a_window_are_of_its_messages_only(found):
    # 10 ms lie between two messages: a window of 10 s has 1,000 of them, the first began with the others' topics.
    names = ("rows", "p50_ms", "p99_ms", "max_ms")
    assert rows_of(found, "latency_windows", *names, topic="timed") == [
        (973, 3, 3, 3),
        (1_000, 40, 200, 200),
        (27, 30_000, 60_000, 60_000),
    ]
    assert rows_of(found, "produced", "rows", topic="timed") == [(973,), (1_000,), (27,)]


def test_dead_letters_are_counted_by_reason_and_tries(found):
    names = ("group", "origin_topic", "reason", "tries", "rows")
    assert [tuple(row[name] for name in names) for row in found.tables["dead_letters"].to_pylist()] == [
        ("billing", "orders", BAD_CUSTOMER, 3, 2),
        ("billing", "orders", "TimeoutError", 3, 1),
        ("billing", "orders", USED_UP, 17, 1),
        ("billing", "payments", GIVEN_UP, 2, 1),
    ]


def test_dead_letters_of_all_groups_are_counted(found):
    assert found.tables["dead_letter_totals"].to_pylist() == [{"group": "billing", "rows": 5, "kinds": 4}]


def dead_letters_of(spark, directory, *topics):
    result = audit(Source("store", str(directory), topics=topics), spark=spark)
    return result, [(row["group"], row["rows"]) for row in result.tables["dead_letters"].to_pylist()]


def test_only_dead_letters_of_the_chosen_topics_are_told(spark, tmp_path):
    """And of many reasons only the most frequent ones, with the number of the others."""
    clock = ManualClock(T0_MS)
    with MessageStore.open(tmp_path, STORE, runtime=Runtime(clock=clock), background=False) as store:
        planting = Planting(store, clock)
        planting.put("orders", b"x")
        planting.put("%DLQ%few", b"x", DLQ_ORIGIN_TOPIC="orders")
        planting.put("%DLQ%few", b"x", DLQ_ORIGIN_TOPIC="payments")
        for number in range(SHOWN + 5):
            planting.put("%DLQ%many", b"x", DLQ_ORIGIN_TOPIC="payments", **{REASON: f"no order {number}"})
        planting.put("%DLQ%many", b"x", DLQ_ORIGIN_TOPIC="payments", **{REASON: "no order 104"})
    few, rows = dead_letters_of(spark, tmp_path, "%DLQ%few")
    assert (rows, few.totals["dead_letters"]) == ([("few", 1), ("few", 1)], 2)
    assert dead_letters_of(spark, tmp_path, "orders")[1] == [("few", 1)]
    many, rows = dead_letters_of(spark, tmp_path, "%DLQ%many")
    assert rows == [("many", 2)] + [("many", 1)] * (SHOWN - 1)
    told = [item for item in many.problems if item.kind == "dead-letters"]
    assert (len(told), sum(item.count for item in told)) == (SHOWN + 1, SHOWN + 6)


def test_a_message_that_could_not_be_read_is_a_gap(found):
    names = ("queue_id", "first_offset", "last_offset", "missing")
    assert rows_of(found, "gaps", *names, topic="holes") == [(0, 1, 1, 1)]


def test_nothing_else_is_a_problem(found):
    assert {item.kind for item in found.problems} == {
        "duplicate-ids",
        "duplicate-keys",
        "dead-letters",
        "gaps",
    }
    assert found.exit_code == 1
    assert "skew" in notes(found)
