"""The demonstration tells the truth: it passes on a store that keeps its promises and fails on one that does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock.cli import demo_store
from penstock.cli.demo_orders import CHANNELS, Plan, is_flaky, make_plan, read_order
from penstock.cli.demo_store import Acknowledged, StoreChapters, Survival
from penstock.cli.main import root
from penstock.store import MessageStore
from tests.support.sample_stores import write_store

if TYPE_CHECKING:
    from penstock.cli.demo_spark import Books


def run_demo(directory: Path, *arguments: object, columns: int = 120):
    """The chapters without Spark; those with it are run by tests/spark."""
    runner = CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"})
    line = ["demo", "--dir", directory, "--without-spark", "--messages", "300", *arguments]
    return runner.invoke(root, list(map(str, line)))


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_every_acknowledged_message_survives_the_kill_and_the_torn_end(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo")
    assert result.exit_code == 0, result.output
    acknowledged, found, by_key, missing = (
        int(number.replace(",", ""))
        for number in re.findall(
            r"([\d,]+) acknowledged, ([\d,]+) found by offset, ([\d,]+) by key, ([\d,]+) missing",
            " ".join(result.stdout.split()),
        )[0]
    )
    assert acknowledged >= 300
    assert (found, by_key, missing) == (acknowledged, acknowledged, 0)
    assert "through the broker 300 sent, 300 received\n" in result.stdout
    for shown in (
        "name server 127.0.0.1:",
        "ready in ",
        "received in ",
        "lag of the group 0",
        "ended by signal SIGKILL",
        "bytes written at log position",
        "records/s",
        "sound",
        "Try next: penstock store stats",
    ):
        assert shown in result.stdout
    assert [line[0] for line in result.stdout.splitlines() if re.match(r"\d+\. ", line)] == list("12345678")
    # The directory stays, and says the same to the commands.
    report = CliRunner().invoke(root, ["store", "verify", str(tmp_path / "demo" / "store"), "--json"])
    assert json.loads(report.stdout)["log"]["records"] >= acknowledged


def test_it_can_be_repeated_and_the_lines_fit_a_narrow_terminal(tmp_path: Path) -> None:
    assert run_demo(tmp_path / "demo").exit_code == 0
    result = run_demo(tmp_path / "demo", columns=80)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_lost_message_fails_the_demonstration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The proof must be able to fail: here the writer had promised one message more than it wrote."""
    collect = StoreChapters.collect

    def promise_more(self, writer, acknowledged) -> None:
        collect(self, writer, acknowledged)
        acknowledged.offsets[10_000_000] = 1_000_000

    monkeypatch.setattr(StoreChapters, "collect", promise_more)
    result = run_demo(tmp_path / "demo")
    assert result.exit_code == 1
    assert "1 missing" in result.stdout


def test_a_message_that_the_broker_lost_fails_the_demonstration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from penstock.cli import demo_node

    receive = demo_node.receive

    def lose_one(*arguments):
        ids, again = receive(*arguments)
        return set(sorted(ids)[1:]), again

    monkeypatch.setattr(demo_node, "receive", lose_one)
    result = run_demo(tmp_path / "demo")
    assert result.exit_code == 1
    assert "300 sent, 299 received" in result.stdout


@pytest.mark.parametrize(
    ("exchanged", "whole"),
    [((5, 5, 0, 0), True), ((5, 4, 0, 0), False), ((5, 5, 1, 0), False), ((5, 5, 0, 1), False)],
)
def test_only_once_each_and_nothing_left_is_whole(exchanged: tuple[int, int, int, int], whole: bool) -> None:
    from penstock.cli.demo_node import Exchange

    assert Exchange(*exchanged).is_whole is whole


def test_a_changed_body_is_not_taken_for_the_message(tmp_path: Path) -> None:
    acknowledged = Acknowledged({0: 0, 12: 1})
    with MessageStore.open(tmp_path / "store", background=False) as store:
        from penstock.cli.demo_workload import message_of
        from penstock.message import Message

        store.append(message_of(0), 0)
        wrong = message_of(12)
        store.append(Message(wrong.topic, wrong.body[:-1] + b"?", wrong.properties), 0)
        assert StoreChapters.by_offset(store, acknowledged) == (1, 0)


def test_a_writer_that_dies_at_once_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_store.sys, "executable", "/bin/false")
    result = run_demo(tmp_path / "demo")
    assert result.exit_code == 1
    assert "before its first acknowledgement" in result.stdout


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "store", 1)
    result = run_demo(tmp_path / "store")
    assert result.exit_code == 2
    assert "is not empty and not of a demonstration" in result.stderr
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_a_line_cut_by_the_kill_acknowledges_nothing() -> None:
    acknowledged = Acknowledged()
    StoreChapters.take(b"64 7,8,9\n", acknowledged)
    StoreChapters.take(b"67 10,1", acknowledged)
    assert acknowledged.offsets == {64: 7, 65: 8, 66: 9}
    assert acknowledged.groups == 1


def test_the_writer_acknowledges_only_what_it_wrote(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "penstock.cli.demo_writer", str(tmp_path / "store")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(3)]
        writer.kill()
    assert [line.split()[0] for line in lines] == [b"0", b"64", b"128"]
    assert lines[0].split()[1].count(b",") == 63


@pytest.mark.parametrize(
    ("survival", "whole"),
    [
        (Survival(5, 5, 5, True), True),
        (Survival(5, 4, 5, True), False),
        (Survival(5, 5, 4, True), False),
        (Survival(5, 5, 5, False), False),
        (Survival(), False),
    ],
)
def test_everything_found_both_ways_in_a_sound_store_is_whole(survival: Survival, whole: bool) -> None:
    assert survival.is_whole is whole


# -- orders ----------------------------------------------------------------------------------------------------------


def test_the_plan_knows_what_must_come_out() -> None:
    plan = make_plan(24)
    bodies = [message.body for channel in CHANNELS for message in plan.messages[channel]]
    assert len(bodies) == plan.sent == plan.orders + plan.twice + plan.poisoned
    orders, unreadable = {}, 0
    for body in bodies:
        try:
            order = read_order(body)
        except ValueError:
            unreadable += 1
        else:
            orders[order["order_id"]] = order
    assert (len(orders), unreadable) == (plan.orders, plan.poisoned)
    assert min(str(order["at"]) for order in orders.values()) > "2025-01-31T08:50"
    for channel in CHANNELS:
        cents = [order["amount_cents"] for order in orders.values() if order["channel"] == channel]
        assert plan.totals[channel] == (len(cents), sum(cents))
    assert min(plan.twice, plan.late, plan.poisoned) > 5
    too_late = [read_order(message.body) for message in plan.after_hours]
    assert {str(order["at"])[:10] for order in too_late} == {"2025-01-30"}
    assert not {order["order_id"] for order in too_late} & set(orders)
    assert (plan.in_all, plan.readable) == (plan.sent + len(too_late) + 1, plan.orders + len(too_late) + 1)
    assert any(is_flaky(order_id) for order_id in orders)


def test_a_plan_is_the_same_each_time_and_in_the_order_of_sending() -> None:
    plan = make_plan(4)
    assert plan == make_plan(4)
    for planned in plan.messages.values():
        assert [item.due_s for item in planned] == sorted(item.due_s for item in planned)


def test_what_the_books_do_not_show_alike_fails_the_demonstration() -> None:
    from penstock.cli.demo_spark import Books

    books = Books()
    books.compare("a", 1, 1)
    assert books.is_balanced
    books.compare("b", 1, 2)
    assert not books.is_balanced


def audited(plan: Plan, *more: tuple[str, str, int]) -> Books:
    """The books after an audit that found what was planned, and more."""
    from penstock.cli.demo_spark import Books, compare_findings
    from penstock.spark.pipelines.audit_result import Finding

    books = Books()
    # Dead letters with two reasons are two findings about one topic.
    found = (
        ("duplicate-keys", "orders", plan.twice),
        ("dead-letters", "orders", plan.poisoned - 1),
        ("dead-letters", "orders", 1),
        ("late", "orders", 17),
    )
    compare_findings(
        books, plan, [Finding(kind, "", topic, count, "", "") for kind, topic, count in (*found, *more)]
    )
    return books


def test_an_audit_that_found_what_was_planned_balances_the_books() -> None:
    books = audited(make_plan(4))
    assert books.is_balanced
    assert ("audit: dead letters", make_plan(4).poisoned, make_plan(4).poisoned) in books.rows


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        ("gaps", "orders"),
        ("duplicate-ids", "order-totals"),
        ("duplicate-keys", "orders"),
        ("duplicate-keys", "order-totals"),
        ("dead-letters", "orders-poison"),
    ],
)
def test_an_audit_that_found_one_more_fails_the_demonstration(kind: str, topic: str) -> None:
    assert not audited(make_plan(4), (kind, topic, 1)).is_balanced


@pytest.mark.parametrize(
    ("messages", "places", "said"),
    [
        (1_000, 1_000, "none twice, none left out"),
        (1_003, 1_000, "3 twice, none left out"),
        (999, 998, "1 twice, 2 left out"),
    ],
)
def test_what_sql_counted_is_told_as_it_was_found(messages: int, places: int, said: str) -> None:
    from penstock.cli.demo_spark import sql_text

    text = sql_text(messages, places, 400, 1_000)
    assert text == f"{messages:,} messages, 400 of them from the archive; {said}"


def test_without_java_the_demonstration_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = CliRunner().invoke(root, ["demo", "--dir", str(tmp_path / "demo")])
    assert result.exit_code == 2
    assert "`penstock demo --without-spark` shows the rest" in result.stderr
    assert not (tmp_path / "demo").exists()
