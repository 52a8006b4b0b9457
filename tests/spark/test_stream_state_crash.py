"""A pipeline that remembers rows is killed again and again: windows and deduplication lose and repeat nothing.

What has to come out is computed in Python from what was sent. Nothing is later than the watermark allows, however the
batches fall, so there is one right answer.
"""

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from penstock.spark import run_pipeline
from penstock.spark.pipelines.stream_status import pipeline_status
from tests.effort import by_length, chosen_seed
from tests.spark.test_stream_crash import Driver
from tests.support.server_processes import cluster
from tests.waiting import PATIENT_SENDS

QUEUES, ORDERS, REPEATS = 4, by_length(900, 3_000), by_length(180, 600)
WINDOW_S = 300
START = datetime(2025, 1, 31, 9, 0, tzinfo=UTC)
CHANNELS = ("web", "app", "shop", "phone")
KILLS = by_length(1, 3)
# Small batches for drivers that are killed: they are in the middle of it, however slowly this process looks on.
KILLED_ROWS, LAST_ROWS = by_length(60, 150), 400
FILE = """\
nameserver = "{nameserver}"
checkpoint = "state"

[spark]
"spark.sql.shuffle.partitions" = "1"

[sources.orders]
topic = "orders"
fields = "id string, channel string, cents bigint, at timestamp"
columns = ["queue_id"]
watermark = {{ column = "at", delay = "30 minutes" }}
deduplicate = ["id"]
max_rows = {max_rows}

[steps.totals]
sql = '''
select window.start as from_time, channel, count(*) as orders, sum(cents) as cents
from (select window(at, '5 minutes') as window, channel, cents from orders)
group by window, channel
'''

[sinks.totals]
from = "totals"
topic = "totals"
body = "json"
keys = "channel"

[steps.narrow]
sql = "select id, channel, cents, at from orders"

[sinks.unique]
from = "narrow"
topic = "unique"
body = "json"
keys = "id"
"""
Row = tuple[str, str]


def time_text(at_s: int) -> str:
    return (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def made_orders(chance: random.Random) -> list[dict]:
    """Each two seconds after the one before, give or take a minute; some come again a little later."""
    orders = [
        {
            "id": f"o{number}",
            "channel": chance.choice(CHANNELS),
            "cents": chance.randint(1, 10_000),
            "at": 2 * number + chance.randint(0, 60),
        }
        for number in range(ORDERS)
    ]
    repeats = [(chance.randint(n, n + 120), orders[n]) for n in chance.sample(range(ORDERS), REPEATS)]
    places = [*((number, order) for number, order in enumerate(orders)), *repeats]
    return [order for _, order in sorted(places, key=lambda place: place[0])]


def body(order: dict) -> str:
    return json.dumps({**order, "at": time_text(order["at"])}, separators=(",", ":"))


def send(address: str, orders: list[dict]) -> None:
    """Round the queues, in order, so that no queue runs ahead of the others."""
    with penstock.Admin(address) as admin:
        queues = sorted(admin.queues("orders"), key=lambda queue: queue.queue_id)
    with penstock.Producer(address, batch_size=256, **PATIENT_SENDS) as producer:
        futures = [
            producer.send_async("orders", body(order).encode(), queue=queues[number % QUEUES])
            for number, order in enumerate(orders)
        ]
        for future in futures:
            future.result(60)


def expected_totals(orders: list[dict]) -> Counter[Row]:
    windows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for order in {order["id"]: order for order in orders}.values():
        windows[order["at"] // WINDOW_S * WINDOW_S, order["channel"]].append(order["cents"])
    return Counter(
        (
            channel,
            json.dumps(
                {
                    "from_time": time_text(from_s),
                    "channel": channel,
                    "orders": len(cents),
                    "cents": sum(cents),
                },
                separators=(",", ":"),
            ),
        )
        for (from_s, channel), cents in windows.items()
    )


def rows_in(address: str, topic: str) -> Counter[Row]:
    """Keys and bodies, each with how often it is there."""
    found: Counter[Row] = Counter()
    with penstock.Admin(address) as admin:
        for status in admin.describe_topic(topic).queues:
            offset = status.min_offset
            while offset < status.max_offset:
                messages = admin.read_messages(status.queue, offset)
                found.update((" ".join(message.keys), message.body.decode()) for message in messages)
                offset = messages[-1].queue_offset + 1
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault("F1")
@pytest.mark.invariant("I15")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_windows_and_unique_orders_are_exact_though_the_driver_is_killed(spark, tmp_path: Path) -> None:
    """Every kill but the second takes the JVM along; the last run is one of the shared session."""
    seed = chosen_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    file = tmp_path / "p.toml"
    orders = made_orders(chance)
    # A day later, in every queue: it closes all windows but its own.
    last = [{"id": f"end{n}", "channel": "web", "cents": 0, "at": 86_400} for n in range(QUEUES)]
    with cluster(tmp_path / "cluster") as (names, _):
        file.write_text(FILE.format(nameserver=names.address, max_rows=KILLED_ROWS))
        with penstock.Admin(names.address) as admin:
            for topic in ("orders", "totals", "unique"):
                admin.create_topic(topic, QUEUES)
        send(names.address, orders)
        for number in range(KILLS):
            driver = Driver(file)
            driver.run_batches(chance.randint(3, by_length(4, 6)))
            driver.kill(with_jvm=number != 1)
        assert all(sink.lag for sink in pipeline_status(file).sinks), "they were in the middle of it"
        send(names.address, last)

        file.write_text(FILE.format(nameserver=names.address, max_rows=LAST_ROWS))
        done = run_pipeline(file, spark=spark, once=True)
        assert {name: run.restarts for name, run in done.sinks.items()} == {"totals": 0, "unique": 0}
        assert rows_in(names.address, "unique") == Counter(
            (order["id"], body(order))
            for order in {order["id"]: order for order in [*orders, *last]}.values()
        )
        assert rows_in(names.address, "totals") == expected_totals(orders)
        assert [(sink.lag, sink.is_batch_open) for sink in pipeline_status(file).sinks] == [(0, False)] * 2
