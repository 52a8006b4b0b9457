"""Pipelines out of files that remember rows: joins, sessions, deduplication. What comes out is compared row by row.

Every run is `once`: what is there is done, the watermark moves, what it closes comes out, and the next run goes on
with the state of the one before.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.spark import run_pipeline

START = datetime(2025, 1, 31, 9, 0, tzinfo=UTC)
Row = tuple[list[str], dict]


def at(minute: float) -> str:
    """A time as it goes into a body and as Spark writes it into one."""
    return (START + timedelta(minutes=minute)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(folder: Path, node, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(f'nameserver = "{node.address}"\ncheckpoint = "state"\n{text}')
    return path


def rows_in(node, topic: str) -> list[Row]:
    """Keys and bodies of a topic, sorted."""
    found = []
    for status in node.admin.describe_topic(topic).queues:
        offset = status.min_offset
        while offset < status.max_offset:
            messages = node.admin.read_messages(status.queue, offset)
            found += [(message.keys, json.loads(message.body)) for message in messages]
            offset = messages[-1].queue_offset + 1
    return sorted(found, key=str)


def row(*keys: str, **fields: object) -> Row:
    return list(keys), fields


class Steps:
    """Runs a file again and again; each time the rows that came since the last, sorted."""

    def __init__(self, spark, node, path: Path, target: str) -> None:
        self._spark, self._node, self._path, self._target = spark, node, path, target
        self._before: list[Row] = []

    def run(self) -> list[Row]:
        run_pipeline(self._path, spark=self._spark, once=True)
        found = rows_in(self._node, self._target)
        new = list(found)
        for item in self._before:
            new.remove(item)  # what was there stays there
        self._before = found
        return new


# -- two streams -------------------------------------------------------------------------------------------------


def order(number: int, minute: float) -> str:
    return json.dumps({"id": f"o{number}", "at": at(minute)})


def payment(number: int, minute: float, cents: int) -> str:
    return json.dumps({"order_id": f"o{number}", "cents": cents, "paid": at(minute)})


def joined_file(folder: Path, node, orders: str, payments: str, target: str, kind: str) -> Path:
    return write(
        folder,
        node,
        f"""\
[sources.orders]
topic = "{orders}"
fields = "id string, at timestamp"
columns = ["queue_id"]
watermark = {{ column = "at", delay = "5 minutes" }}

[sources.payments]
topic = "{payments}"
fields = "order_id string, cents bigint, paid timestamp"
columns = ["queue_id"]
watermark = {{ column = "paid", delay = "5 minutes" }}

[steps.joined]
sql = '''
select o.id, o.at, p.cents, p.paid from orders o {kind} join payments p
on o.id = p.order_id and p.paid between o.at and o.at + interval 10 minutes
'''

[sinks.joined]
from = "joined"
topic = "{target}"
body = "json"
keys = "id"
""",
    )


@pytest.mark.invariant("I15")
def test_a_join_of_two_topics_finds_each_pair_within_its_time_once(spark, node, tmp_path: Path) -> None:
    orders, payments, target = node.topic("orders", 2), node.topic("payments", 3), node.topic("paid", 2)
    steps = Steps(spark, node, joined_file(tmp_path, node, orders, payments, target, "inner"), target)
    node.send(orders, [order(number, number) for number in range(5)])
    # 0 at once, 1 twice, 2 before its order, 3 after the bound, 9 has no order yet.
    paid = [payment(0, 0, 10), payment(1, 2, 11), payment(1, 11, 12), payment(2, 1, 13), payment(3, 13.1, 14)]
    node.send(payments, [*paid, payment(9, 8, 19)])
    assert steps.run() == [
        row("o0", id="o0", at=at(0), cents=10, paid=at(0)),
        row("o1", id="o1", at=at(1), cents=11, paid=at(2)),
        row("o1", id="o1", at=at(1), cents=12, paid=at(11)),
    ]
    # Orders and payments of the first run wait in the state: 4 is paid now, 9 was paid before.
    node.send(orders, [order(9, 6)])
    node.send(payments, [payment(4, 14, 15)])
    assert steps.run() == [
        row("o4", id="o4", at=at(4), cents=15, paid=at(14)),
        row("o9", id="o9", at=at(6), cents=19, paid=at(8)),
    ]
    assert steps.run() == [], "nothing new, nothing twice"


@pytest.mark.invariant("I15")
def test_an_order_that_nobody_pays_comes_out_when_its_time_is_over(spark, node, tmp_path: Path) -> None:
    orders, payments, target = node.topic("orders", 2), node.topic("payments", 2), node.topic("paid", 2)
    steps = Steps(spark, node, joined_file(tmp_path, node, orders, payments, target, "left"), target)
    node.send(orders, [order(number, number) for number in range(4)])
    node.send(payments, [payment(1, 5, 11)])
    assert steps.run() == [row("o1", id="o1", at=at(1), cents=11, paid=at(5))]
    # The slower of the two watermarks counts: one topic that runs ahead gives nobody up.
    node.send(orders, [order(10, 60)])
    assert steps.run() == []
    # A checkpoint has the slower one alone: after a start, each topic has to move before the watermark does.
    node.send(orders, [order(11, 60)])
    node.send(payments, [payment(2, 6, 12), payment(10, 60, 20)])
    assert steps.run() == [
        row("o0", id="o0", at=at(0)),
        row("o10", id="o10", at=at(60), cents=20, paid=at(60)),
        row("o2", id="o2", at=at(2), cents=12, paid=at(6)),
        row("o3", id="o3", at=at(3)),
    ]
    assert steps.run() == []


# -- a stream and files ------------------------------------------------------------------------------------------


def test_a_join_with_parquet_files_sees_those_that_are_there_when_it_starts(
    spark, node, tmp_path: Path
) -> None:
    source, target = node.topic("orders", 3), node.topic("enriched", 2)
    (tmp_path / "channels").mkdir()

    def add_channels(name: str, **regions: str) -> None:
        table = pa.table({"channel": list(regions), "region": list(regions.values())})
        pyarrow.parquet.write_table(table, tmp_path / "channels" / name)

    add_channels("a.parquet", web="north", app="south")
    path = write(
        tmp_path,
        node,
        f"""\
[sources.orders]
topic = "{source}"
fields = "id int, channel string"
columns = ["tags"]

[tables.channels]
format = "parquet"
path = "channels"

[steps.enriched]
sql = '''
select o.id, c.region, o.tags, concat(o.channel, '-', o.id) as name
from orders o left join channels c on o.channel = c.channel where o.id % 10 < 3
'''

[sinks.enriched]
from = "enriched"
topic = "{target}"
body = "json"
keys = "name"
tags = "tags"
""",
    )
    steps = Steps(spark, node, path, target)

    def send(numbers: range) -> None:
        channels = ("web", "app", "shop")
        bodies = [json.dumps({"id": n, "channel": channels[n % 3]}) for n in numbers]
        node.send(source, [{"body": body, "tag": "new"} for body in bodies])

    send(range(20))
    assert steps.run() == [
        row("app-1", id=1, region="south", tags="new", name="app-1"),
        row("app-10", id=10, region="south", tags="new", name="app-10"),
        row("shop-11", id=11, tags="new", name="shop-11"),
        row("shop-2", id=2, tags="new", name="shop-2"),
        row("web-0", id=0, region="north", tags="new", name="web-0"),
        row("web-12", id=12, region="north", tags="new", name="web-12"),
    ]
    add_channels("b.parquet", shop="east")
    send(range(20, 23))
    assert steps.run() == [
        row("app-22", id=22, region="south", tags="new", name="app-22"),
        row("shop-20", id=20, region="east", tags="new", name="shop-20"),
        row("web-21", id=21, region="north", tags="new", name="web-21"),
    ]


# -- sessions and repeats ----------------------------------------------------------------------------------------


def click(user: str, minute: float, cents: int = 1) -> str:
    return json.dumps({"user": user, "at": at(minute), "cents": cents})


@pytest.mark.invariant("I15")
def test_sessions_grow_over_runs_and_come_out_when_they_are_closed(spark, node, tmp_path: Path) -> None:
    source, target = node.topic("clicks", 3), node.topic("sessions", 2)
    path = write(
        tmp_path,
        node,
        f"""\
[sources.clicks]
topic = "{source}"
fields = "user string, at timestamp, cents bigint"
columns = ["queue_id"]
watermark = {{ column = "at", delay = "10 minutes" }}

[steps.sessions]
sql = '''
select session_window.start as began, session_window.end as ended, user, count(*) as clicks, sum(cents) as cents
from clicks group by session_window(at, '5 minutes'), user
'''

[sinks.sessions]
from = "sessions"
topic = "{target}"
body = "json"
keys = "user"
""",
    )
    steps = Steps(spark, node, path, target)
    # Two sessions of ann with a gap of 8 minutes, two of bob; nothing is closed yet.
    node.send(source, [click("ann", 0), click("ann", 3, 2), click("ann", 11, 4), click("bob", 0, 8)])
    node.send(source, [click("bob", 9, 16)])
    assert steps.run() == []
    # A late click makes one session of ann's two; exactly five minutes later is the same session for bob.
    node.send(source, [click("ann", 7, 32), click("bob", 14, 64)])
    assert steps.run() == []
    node.send(source, [click("cyd", 60)])
    closed = [
        row("ann", began=at(0), ended=at(16), user="ann", clicks=4, cents=39),
        row("bob", began=at(0), ended=at(5), user="bob", clicks=1, cents=8),
        row("bob", began=at(9), ended=at(19), user="bob", clicks=2, cents=80),
    ]
    assert steps.run() == closed
    # Too late by the watermark, which is at 9:50.
    node.send(source, [click("ann", 40, 128), click("cyd", 58, 2), click("end", 200)])
    assert steps.run() == [row("cyd", began=at(58), ended=at(65), user="cyd", clicks=2, cents=3)]


@pytest.mark.invariant("I15")
def test_a_repeat_is_dropped_in_later_runs_too_until_the_watermark_forgets_it(
    spark, node, tmp_path: Path
) -> None:
    source, target = node.topic("orders", 3), node.topic("unique", 2)
    path = write(
        tmp_path,
        node,
        f"""\
[sources.orders]
topic = "{source}"
fields = "id string, shop string, at timestamp"
columns = ["keys"]
watermark = {{ column = "at", delay = "10 minutes" }}
deduplicate = ["id", "shop"]

[sinks.unique]
from = "orders"
topic = "{target}"
body = "json"
keys = ["id", "shop"]
""",
    )
    steps = Steps(spark, node, path, target)

    def send(*orders: tuple[str, str, float]) -> None:
        """All into one queue: the first of them is the first for everybody."""
        bodies = [
            json.dumps({"id": number, "shop": shop, "at": at(minute)}) for number, shop, minute in orders
        ]
        node.send(source, [{"body": body, "keys": "k"} for body in bodies], queue_id=1)

    def out(number: str, shop: str, minute: float) -> Row:
        return row(number, shop, id=number, shop=shop, at=at(minute), keys="k")

    send(("1", "a", 0), ("2", "a", 1), ("1", "a", 0), ("1", "b", 0), ("2", "a", 2))
    assert steps.run() == [out("1", "a", 0), out("1", "b", 0), out("2", "a", 1)]
    send(("2", "a", 3), ("1", "b", 5), ("3", "a", 6))
    assert steps.run() == [out("3", "a", 6)]
    # The watermark goes to 9:50: what is older is too late, and what was seen before 9:40 is forgotten.
    send(("4", "a", 60))
    assert steps.run() == [out("4", "a", 60)]
    send(("1", "a", 0), ("1", "a", 55), ("4", "a", 61), ("1", "a", 56))
    assert steps.run() == [out("1", "a", 55)]
