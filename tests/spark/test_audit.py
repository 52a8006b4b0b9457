"""Audits through a real Spark: planted faults are found and named, nothing else is; live, offline, compared."""

import json
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click.testing
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import pipeline_session
from penstock.cli.main import root
from penstock.errors import OptionError
from penstock.message import Message
from penstock.spark.pipelines import audit_latency
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit import AuditSettings, audit
from penstock.spark.pipelines.audit_dead_letters import GIVEN_UP
from penstock.spark.pipelines.audit_findings import findings
from penstock.spark.pipelines.audit_result import Limits
from penstock.spark.pipelines.audit_run import log_firsts
from penstock.spark.pipelines.audit_sources import Progress, QueueKey, Source, open_frame, open_source
from penstock.spark.schema import COLUMNS, message_schema
from penstock.store import MessageStore
from penstock.testing.embedded import STORE
from tests.spark.retention import expiring_node
from tests.waiting import wait_until

T0 = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
Q0, Q1 = QueueKey("orders", "b", 0), QueueKey("orders", "b", 1)


def message(offset: int, **changed):
    """A message of queue 0 as a row; each has its own id and key, is stored a second after the one before it and
    was born 20 ms earlier."""
    stored = changed.pop("store_time", T0 + timedelta(seconds=offset))
    row = {
        "topic": "orders",
        "broker": "b",
        "queue_id": 0,
        "queue_offset": offset,
        "message_id": f"id-{changed.get('queue_id', 0)}-{offset}",
        "keys": f"k{offset}",
        "tags": "A",
        "body": b"body %d" % offset,
        "properties": {"seq": str(offset)},
        "born_time": stored - timedelta(milliseconds=20),
        "store_time": stored,
        "born_host": "127.0.0.1:1",
        "reconsume_times": 0,
        "physical_offset": offset * 100,
        "size": 100,
    }
    return row | changed


def frame_of(spark, rows):
    return spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in rows], message_schema())


def rows_of(result, table):
    return result.tables[table].to_pylist()


def kinds(result):
    return {item.kind for item in result.problems}


# -- planted faults ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted():
    """Queue 0 over the edge of a cell, queue 1 small, one fault of each kind."""
    edge = 65_536
    offsets = [*range(65_500, 65_510), *range(65_515, 65_530), *range(65_541, 65_560)]
    rows = {offset: message(offset) for offset in offsets}
    assert edge not in rows
    rows[65_545]["message_id"] = rows[65_501]["message_id"]
    rows[65_546] |= {"keys": "k65502", "body": rows[65_502]["body"]}
    rows[65_550]["store_time"] = T0
    rows[65_555] |= {"keys": "same other", "properties": {"seq": "9"}}
    rows[65_556] |= {"keys": "same", "properties": {"seq": "8"}}
    second = [message(offset, queue_id=1, keys=None) for offset in range(3)]
    return [*rows.values(), rows[65_520], *second]


@pytest.fixture(scope="module")
def found(spark, planted):
    opened = open_frame(frame_of(spark, planted), "planted", {Q0: (65_498, 65_562), Q1: (0, 3)})
    return audit(opened, settings=AuditSettings(sequence="seq"), spark=spark)


@pytest.mark.seed("S4-5")
@pytest.mark.invariant("I4")
def test_gaps_are_found_with_their_ranges(found):
    gaps = [
        (row["queue_id"], row["first_offset"], row["last_offset"], row["missing"])
        for row in rows_of(found, "gaps")
    ]
    assert gaps == [
        (0, 65_498, 65_499, 2),  # before the first
        (0, 65_510, 65_514, 5),  # inside a cell
        (0, 65_530, 65_540, 11),  # over the edge of two cells
        (0, 65_560, 65_561, 2),  # after the last
    ]
    queues = {row["queue_id"]: row for row in rows_of(found, "queues")}
    assert (queues[0]["rows"], queues[0]["missing"], queues[0]["repeated"], queues[0]["backwards"]) == (
        45,
        20,
        1,
        1,
    )
    assert (queues[1]["rows"], queues[1]["missing"], queues[1]["repeated"]) == (3, 0, 0)


def test_duplicates_are_named_by_id_and_by_key(found):
    by = {(row["kind"], row["value"]): row for row in rows_of(found, "duplicates")}
    assert set(by) == {("id", "id-0-65501"), ("key", "k65502")}
    twice = by["id", "id-0-65501"]
    assert (twice["copies"], twice["first_place"], twice["last_place"]) == (2, "b/0@65501", "b/0@65545")


@pytest.mark.invariant("I3")
def test_order_is_judged_by_store_time_and_by_sequence(found):
    by = {row["kind"]: row for row in rows_of(found, "disorder")}
    assert set(by) == {"store_time", "sequence"}
    assert (by["store_time"]["queue_offset"], by["store_time"]["previous_offset"]) == (65_550, 65_549)
    late = by["sequence"]
    assert (late["key"], late["queue_offset"], late["value"], late["previous_value"]) == (
        "same",
        65_556,
        8,
        9,
    )


def test_every_planted_fault_is_a_problem_and_nothing_else_is(found):
    assert kinds(found) == {"gaps", "repeated", "backwards", "duplicate-ids", "duplicate-keys", "order"}
    assert found.exit_code == 1


def test_latency_and_windows(found):
    (row,) = rows_of(found, "latency")
    # The message whose store time went back was born by another clock.
    assert (row["stage"], row["rows"], row["p50_ms"], row["max_ms"], row["negative"]) == (
        "stored",
        48,
        20,
        20,
        1,
    )
    assert sum(row["rows"] for row in rows_of(found, "produced")) == 48
    assert sum(row["rows"] for row in rows_of(found, "latency_histogram")) == 48


def test_a_sound_frame_has_no_problems_and_without_ranges_no_ends(spark):
    rows = [message(offset) for offset in range(10, 20)]
    result = audit(frame_of(spark, rows), settings=AuditSettings(bodies=False), spark=spark)
    assert (result.problems, result.exit_code, result.rows) == ((), 0, 10)


def test_a_source_that_lost_everything_is_one_gap(spark):
    lost = audit(open_frame(frame_of(spark, []), "lost", {Q0: (5, 9), Q1: (3, 3)}), spark=spark)
    (gap,) = rows_of(lost, "gaps")
    assert (gap["first_offset"], gap["last_offset"]) == (5, 8)
    assert (kinds(lost), lost.rows) == ({"gaps"}, 0)


# -- produced and consumed ---------------------------------------------------------------------------------------


@pytest.mark.seed("S3-82")
def test_what_was_produced_is_compared_with_what_a_group_took(spark):
    rows = [message(offset, store_time=T0 + timedelta(seconds=10 * offset)) for offset in range(30)]
    rows += [
        message(offset, queue_id=1, keys=None, store_time=T0 + timedelta(seconds=10 * offset))
        for offset in range(5, 30)
    ]
    opened = open_frame(frame_of(spark, rows), "x", {Q0: (0, 30), Q1: (5, 30)})
    progress = (
        Progress("fast", Q0, 30),
        Progress("fast", Q1, 30),
        Progress("slow", Q0, 15),
        Progress("slow", Q1, 2),
    )
    opened = type(opened)(opened.label, opened.ranges, opened.read, progress=progress)
    result = audit(opened, settings=AuditSettings(window_s=100, limits=Limits(lag=10)), spark=spark)
    by = {row["group"]: row for row in rows_of(result, "groups")}
    assert (by["fast"]["consumed"], by["fast"]["waiting"], by["fast"]["ratio"]) == (55, 0, 1.0)
    slow = by["slow"]
    assert (slow["produced"], slow["consumed"], slow["waiting"], slow["expired"]) == (55, 15, 40, 3)
    assert slow["ratio"] == pytest.approx(55 / 15)
    # The oldest that waits is the first of queue 1: its earlier ones expired.
    assert slow["oldest_waiting"].astimezone(UTC) == T0 + timedelta(seconds=50)
    windows = [
        (row["produced"], row["consumed"], row["waiting"])
        for row in rows_of(result, "consumed")
        if row["group"] == "slow"
    ]
    assert windows == [(15, 10, 5), (20, 5, 15), (20, 0, 20)]
    assert kinds(result) == {"expired", "lag"}


def test_deliveries_are_read_out_of_traces(spark):
    first = "\x01".join(["SubBefore", "1746100800500", "R", "g", "req", "id-1", "0", "k"])
    second = "\x01".join(["SubBefore", "1746100800900", "R", "g", "req", "id-1", "1", ""])
    other = "\x01".join(["SubAfter", "req", "id-1", "3", "true", "k", "0", "1746100800503", "g"])
    body = "\x02".join([first, second, other, ""]).encode()
    traces = spark.createDataFrame([(body,), (b"\xff junk",)], "body binary")
    born = datetime(2025, 5, 1, 12, 0, tzinfo=UTC)
    facts = spark.createDataFrame(
        [("T", "id-1", born, born), ("T", "id-2", born, born)],
        "topic string, message_id string, store_time timestamp, born_time timestamp",
    )
    (row,) = audit_latency.consumed_times(facts, traces).collect()
    assert (row.topic, row.stage, row.ms) == ("T", "consumed by g", 500)


# -- two sources -------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_a_copy_with_three_faults_is_compared_row_by_row(spark):
    rows = [message(offset) for offset in range(100)]
    copy = [dict(row) for row in rows if row["queue_offset"] != 7]
    copy[20]["body"] = b"other"
    copy[20]["properties"] = {"seq": "20", "more": "x"}
    copy[30]["keys"] = None
    copy += [dict(copy[50]), dict(copy[50])]
    left = open_frame(frame_of(spark, rows), "log", {Q0: (0, 100)})
    # The copy begins later and ends earlier, which is no difference.
    right = open_frame(frame_of(spark, copy), "copy", {Q0: (2, 98), QueueKey("orders", "b", 9): (0, 5)})
    result = audit(left, against=right, spark=spark)
    named = {
        row["queue_offset"]: (row["difference"], row["altered"]) for row in rows_of(result, "differences")
    }
    assert named == {
        7: ("missing right", ""),
        21: ("altered", "body, properties"),
        31: ("altered", "keys"),
        51: ("repeated right", ""),
    }
    (compared,) = rows_of(result, "compared")
    assert (compared["from_offset"], compared["to_offset"]) == (2, 98)
    assert (compared["left_rows"], compared["right_rows"], compared["different_buckets"]) == (96, 97, 1)
    assert {"missing", "altered", "repeated"} <= kinds(result)


def test_a_comparison_of_nothing_is_a_problem(spark):
    rows = [message(offset) for offset in range(3)]
    left = open_frame(frame_of(spark, rows), "log", {Q0: (0, 3)})
    renamed = [row | {"broker": "c"} for row in rows]
    right = open_frame(frame_of(spark, renamed), "copy", {QueueKey("orders", "c", 0): (0, 3)})
    result = audit(left, against=right, spark=spark)
    assert (kinds(result), result.exit_code) == ({"not-compared"}, 1)
    assert [(row["broker"], row["there"]) for row in rows_of(result, "not_compared")] == [
        ("b", "left"),
        ("c", "right"),
    ]


# -- live --------------------------------------------------------------------------------------------------------


def commit(node, group, topic, offsets):
    node.admin.create_group(group)
    for queue in node.admin.queues(topic):
        if queue.queue_id in offsets:
            node.admin.commit_offset(group, queue, offsets[queue.queue_id])


def give_up_one(node, group, topic):
    """A consumer that sends the one message of the topic to the dead letters."""
    node.send(topic, [b"bad"], queue_id=0)
    dead = penstock.Consumer(node.address, f"{group}-dead", start_from="first")
    listener = penstock.Consumer(
        node.address, group, start_from="first", listener=lambda m: penstock.DEAD_LETTER
    )
    with listener, dead:
        listener.subscribe(topic)
        wait_until(lambda: f"%DLQ%{group}" in node.admin.list_topics(internal=True))
        dead.subscribe(f"%DLQ%{group}")
        assert dead.poll(timeout_s=90)


@pytest.mark.feature("retained-messages", "fifth-seed")
@pytest.mark.seed("S4-4")
@pytest.mark.seed("S4-5")
@pytest.mark.seed("S3-82")
def test_a_live_topic_and_its_store_directory(spark, node, tmp_path):
    topic = node.topic("audited", 2)
    for queue in range(2):
        node.send(topic, [{"body": f"{queue}-{n}", "keys": f"k{n % 5}"} for n in range(40)], queue_id=queue)
    commit(node, "readers", topic, {0: 40, 1: 10})
    log = Source("log", nameserver=node.address, topics=(topic,))
    store = Source("store", path=str(node.directory), topics=(topic,))
    result = audit(log, tmp_path / "report", against=store, spark=spark)
    assert (result.rows, result.problems) == (80, ())
    (group,) = rows_of(result, "groups")
    assert (group["group"], group["produced"], group["consumed"], group["waiting"]) == ("readers", 80, 50, 30)
    (rate,) = rows_of(result, "rates")
    assert (rate["produced"], rate["consumed"], rate["ratio"]) == (0, 0, None)
    assert [(row["left_rows"], row["different_buckets"]) for row in rows_of(result, "compared")] == [
        (40, 0)
    ] * 2
    # Consumed messages are there all the same, and more come: the next audit sees both sides of the ratio.
    node.send(topic, [b"more"] * 6, queue_id=0)
    commit(node, "readers", topic, {1: 14})
    again = audit(log, tmp_path / "report", spark=spark)
    assert [(row["produced"], row["consumed"], row["ratio"]) for row in rows_of(again, "rates")] == [
        (0, 0, None),
        (6, 4, 1.5),
        (0, 0, None),
    ]
    written = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert (written["rows"], written["problems"]) == (86, 0)
    assert pq.read_table(tmp_path / "report" / "queues.parquet").num_rows == 2
    page = (tmp_path / "report" / "report.html").read_text()
    assert topic in page
    assert "no problems" in page


def test_dead_letters_are_counted_by_reason(spark, node):
    topic = node.topic("poison", 1)
    give_up_one(node, "givers", topic)
    result = audit(Source("log", nameserver=node.address, topics=(topic,)), spark=spark)
    (row,) = rows_of(result, "dead_letters")
    assert (row["group"], row["origin_topic"], row["reason"], row["rows"]) == ("givers", topic, GIVEN_UP, 1)
    assert kinds(result) == {"dead-letters"}
    assert findings(result.tables, Limits(frozenset({"dead-letters"})))[0].severity == "note"


def test_what_expired_before_it_was_taken_is_a_problem(spark, tmp_path):
    with expiring_node(tmp_path / "node") as node:
        topic = node.topic("old", 1)
        commit(node, "late", topic, {0: 0})
        first = node.send_and_expire(topic, 200)
        result = audit(Source("log", nameserver=node.address, topics=(topic,)), spark=spark)
    (group,) = rows_of(result, "groups")
    assert (group["expired"], group["waiting"]) == (first, 200 - first)
    # What retention deleted is no gap: it was meant to go.
    assert kinds(result) == {"expired"}


def test_what_the_log_still_has_is_not_expired(spark, node, tmp_path):
    """A group took nothing yet. An audit from a later time on, and one of an archive that begins later, know that
    all of it is still there."""
    topic = node.topic("waiting", 1)
    node.send(topic, [b"a", b"b", b"c"], queue_id=0)
    commit(node, "sleepers", topic, {0: 0})
    later = Source("log", nameserver=node.address, topics=(topic,), start=4_000_000_000_000)
    (group,) = rows_of(audit(later, spark=spark), "groups")
    assert (group["group"], group["produced"], group["expired"]) == ("sleepers", 0, 0)
    store = replace(later, kind="store", path=str(node.directory))
    key = QueueKey(topic, "", 0)
    opened = replace(open_source(spark, store), progress=(Progress("sleepers", key, 0),))
    assert (opened.ranges, log_firsts(opened)) == ({key: (3, 3)}, {key: 0})
    place = tmp_path / "archive"
    archive(topic, str(place), nameserver=node.address, once=True, spark=spark)
    archived = open_source(spark, Source("archive", str(place), node.address, (topic,)))
    (key,) = archived.ranges
    result = audit(replace(archived, ranges={key: (2, 3)}), spark=spark)
    # The archive has a group of its own.
    group = {row["group"]: row for row in rows_of(result, "groups")}["sleepers"]
    assert (group["waiting"], group["expired"], "expired" in kinds(result)) == (1, 0, False)


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_a_damaged_record_is_a_gap_with_its_reason(spark, tmp_path):
    with MessageStore.open(tmp_path / "store", STORE, background=False) as store:
        for body in (b"whole", b"DAMAGE-ME", b"whole"):
            store.append(Message.of("damaged", body), 0)
    segment = next((tmp_path / "store" / "commitlog").iterdir())
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"DAMAGE-ME", b"DAMAGE-xE"))
    result = audit(f"store:{tmp_path / 'store'}", tmp_path / "report", spark=spark)
    (gap,) = rows_of(result, "gaps")
    assert (gap["topic"], gap["first_offset"], gap["last_offset"]) == ("damaged", 1, 1)
    assert gap["reason"].startswith("damaged")
    assert kinds(result) == {"gaps"}
    assert not (tmp_path / "report" / ".reasons").exists()


def test_times_cut_a_live_topic(spark, node):
    topic = node.topic("timed", 1)
    node.send(topic, [b"a", b"b"], queue_id=0)
    source = Source("log", nameserver=node.address, topics=(topic,))
    (whole,) = open_source(spark, source).ranges.values()
    (late,) = open_source(spark, replace(source, start=4_000_000_000_000)).ranges.values()
    (early,) = open_source(spark, replace(source, end=1_000)).ranges.values()
    assert (whole, late[0] - late[1], early) == ((0, 2), 0, (0, 0))


# -- command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(spark, monkeypatch):
    """`penstock ...` in this process, with the session of the tests."""

    @contextmanager
    def session(app, master, conf, log=None):
        yield spark

    monkeypatch.setattr(pipeline_session, "spark_session", session)

    def run(*arguments):
        return click.testing.CliRunner().invoke(root, arguments, prog_name="penstock")

    return run


def test_the_command_says_what_it_found(node, command, tmp_path):
    topic = node.topic("told", 1)
    node.send(topic, [b"1", b"2"], queue_id=0)
    out = tmp_path / "report"
    done = command(
        "pipeline", "audit", f"log:{topic}", "--nameserver", node.address, "--out", str(out), "--json"
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["event"] for line in lines[:-1]} == {"step"}
    assert (lines[-1]["event"], lines[-1]["rows"], lines[-1]["problems"], done.exit_code) == (
        "result",
        2,
        0,
        0,
    )
    assert lines[-1]["files"]["report"] == str(out / "report.html")


def test_the_command_refuses_in_one_line(node, command, tmp_path):
    done = command(
        "pipeline", "audit", "log:nothing-here", "--nameserver", node.address, "--out", str(tmp_path / "r")
    )
    assert done.exit_code == 2
    assert "no topic is called 'nothing-here'" in done.output
    (tmp_path / "mine.txt").write_text("x")
    done = command("pipeline", "audit", "log", "--nameserver", node.address, "--out", str(tmp_path))
    assert (done.exit_code, Path(tmp_path / "mine.txt").read_text()) == (2, "x")
    with pytest.raises(OptionError, match="at least a second"):
        AuditSettings(window_s=0)
