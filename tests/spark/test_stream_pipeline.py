"""Pipelines out of files, on a real Spark and a real broker: checked, run, stopped, resumed, watched."""

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.errors import PenstockError
from penstock.spark import run_pipeline
from penstock.spark.pipelines.stream_build import _packed
from penstock.spark.pipelines.stream_file import parse_pipeline
from penstock.spark.pipelines.stream_run import PipelineFileError, check_pipeline
from penstock.spark.pipelines.stream_status import pipeline_status
from penstock.spark.progress import Batch
from penstock.spark.running import Stop

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2025, 1, 31, 9, 0, tzinfo=UTC)
FIELDS = "id string, channel string, cents bigint, at timestamp"


def order(number: int, *, minute: float | None = None, channel: str = "web", cents: int = 100) -> str:
    at = START + timedelta(minutes=number if minute is None else minute)
    return json.dumps({"id": f"o{number}", "channel": channel, "cents": cents, "at": at.isoformat()})


def write(folder: Path, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(text)
    return path


def problems(spark, folder: Path, text: str) -> list[str]:
    return [str(item) for item in check_pipeline(write(folder, text), spark=spark, nameserver="127.0.0.1:1")]


# -- checking ----------------------------------------------------------------------------------------------------


def test_spark_judges_sql_columns_and_what_a_stream_allows_all_at_once(spark, tmp_path: Path) -> None:
    """Nothing listens at the name server's address: nothing is connected to."""
    text = f"""\
[sources.orders]
topic = "orders"
fields = "{FIELDS}"

[sources.other]
topic = "other"
watermark = {{ column = "stored", delay = "1 minute" }}

[steps.typo]
sql = "selct * from orders"

[steps.nowhere]
sql = "select * from ordrs"

[steps.later]
sql = "select * from last"

[steps.column]
sql = "select channl from orders"

[steps.after_typo]
sql = "select * from typo"

[steps.last]
sql = "select channel, count(*) as n from orders group by channel"

[sinks.a]
from = "last"
path = "a"

[sinks.b]
from = "orders"
topic = "copies"

[sinks.c]
from = "orders"
topic = "copies"
body = "json"
keys = "chanel"

[sinks.d]
from = "orders_bad"
topic = "bad"
"""
    found = problems(spark, tmp_path, text)
    places = [item.partition(":")[0] for item in found]
    assert places == [
        "line 5, sources.other",
        "line 10, steps.typo.sql",
        "line 13, steps.nowhere.sql",
        "line 16, steps.later.sql",
        "line 19, steps.column.sql",
        "line 27, sinks.a",
        "line 31, sinks.b",
        "line 35, sinks.c",
    ]
    told = dict(zip(places, found, strict=True))
    assert "stored" in told["line 5, sources.other"]
    assert "Syntax error" in told["line 10, steps.typo.sql"]
    assert told["line 13, steps.nowhere.sql"].endswith(
        "there is no source or step ordrs; did you mean orders?"
    )
    assert "last is further down in the file" in told["line 16, steps.later.sql"]
    assert "channel" in told["line 19, steps.column.sql"]
    assert "watermark" in told["line 27, sinks.a"]
    assert "has no column body" in told["line 31, sinks.b"]
    assert "did you mean channel?" in told["line 35, sinks.c"]


def test_windows_joins_and_deduplication_are_fine(spark, tmp_path: Path) -> None:
    (tmp_path / "channels.csv").write_text("web,north\n")
    text = f"""\
[sources.orders]
topic = "orders"
fields = "{FIELDS}"
watermark = {{ column = "at", delay = "10 minutes" }}
deduplicate = ["id"]

[sources.payments]
topic = "payments"
fields = "order_id string, paid timestamp"
columns = []
watermark = {{ column = "paid", delay = "10 minutes" }}

[sources.ticks]
format = "rate"

[tables.channels]
format = "csv"
path = "channels.csv"
schema = "channel string, region string"

[tables.history]
topic = "orders"

[steps.joined]
sql = '''
select o.*, p.paid from orders o join payments p
on o.id = p.order_id and p.paid between o.at and o.at + interval 10 minutes
'''

[steps.totals]
sql = '''
select window.start as from_time, region, sum(cents) as cents
from (select window(at, '5 minutes') as window, region, cents from orders join channels using (channel))
group by window, region
'''

[sinks.joined]
from = "joined"
topic = "joined"
body = "json"
keys = ["id", "channel"]
tags = "channel"

[sinks.totals]
from = "totals"
path = "totals"
partition_by = "region"

[sinks.ticks]
from = "ticks"
format = "console"
mode = "update"
"""
    assert problems(spark, tmp_path, text) == []
    # Views of other sessions and the session's own are not touched.
    assert spark.sql("show tables").collect() == []


def test_a_field_that_is_a_column_of_the_message_and_a_sink_of_a_table_are_refused(
    spark, tmp_path: Path
) -> None:
    text = """\
[sources.orders]
topic = "orders"
fields = "keys string, at timestamp"
[tables.history]
topic = "orders"
[sinks.out]
from = "history"
path = "out"
"""
    first, second = problems(spark, tmp_path, text)
    assert "keys: in fields and a column of the message" in first
    assert "history is a table and no stream" in second


def packed(spark, query: str, **given: str) -> list[dict[str, object]]:
    """What a topic gets of the rows of a query."""
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
    file = parse_pipeline(
        f'[sources.a]\ntopic = "a"\n[sinks.out]\nfrom = "a"\ntopic = "b"\n{lines}', nameserver="127.0.0.1:1"
    )
    assert file.problems == []
    return [row.asDict() for row in _packed(spark.sql(query), file.sinks[0]).collect()]


def test_a_column_key_becomes_the_keys_of_a_message(spark) -> None:
    assert packed(spark, "select 'x' as body, 'k1' as key, 7 as other") == [{"body": "x", "key": "k1"}]
    assert packed(spark, "select 'x' as Body, 'k1' as KEY, 'a' as Tags") == [
        {"body": "x", "key": "k1", "tags": "a"}
    ]
    # What the sink names counts instead.
    assert packed(spark, "select 'x' as body, 'k1' as key, 'k2' as id", keys="id") == [
        {"body": "x", "keys": "k2"}
    ]


def test_a_json_body_has_keys_and_tags_of_columns_of_these_names(spark) -> None:
    query = "select 1 as n, 'k1' as keys, 'a' as tags"
    body = '{"n":1,"keys":"k1","tags":"a"}'
    assert packed(spark, query, body="json") == [{"body": body, "keys": "k1", "tags": "a"}]
    assert packed(spark, query, body="json", keys="n", tags="keys") == [
        {"body": body, "keys": "1", "tags": "k1"}
    ]
    assert packed(spark, "select 42 as key, 'x' as topic", body="json") == [
        {"body": '{"key":42,"topic":"x"}', "key": "42"}
    ]
    assert packed(spark, "select 42 as key, 'k1' as keys", body="json") == [
        {"body": '{"key":42,"keys":"k1"}', "keys": "k1"}
    ]
    # A list is no tag: it is in the body.
    assert packed(spark, "select array('a', 'b') as tags", body="json") == [{"body": '{"tags":["a","b"]}'}]


def test_a_wrong_file_is_not_run(spark, tmp_path: Path) -> None:
    path = write(tmp_path, '[sources.a]\ntopic = "a"\n[sinks.b]\nfrom = "c"\npath = "b"\n')
    with pytest.raises(PipelineFileError, match="there is no source or step 'c'") as caught:
        run_pipeline(path, spark=spark, nameserver="127.0.0.1:1")
    assert [problem.where for problem in caught.value.problems] == ["sinks.b.from"]
    assert not (tmp_path / "p-checkpoint").exists()


# -- running -----------------------------------------------------------------------------------------------------


def totals_file(folder: Path, node, topic: str, **changed: str) -> Path:
    return write(
        folder,
        f"""\
nameserver = "{node.address}"
checkpoint = "state"

[sources.orders]
topic = "{topic}"
group = "{topic}-pipeline"
fields = "{FIELDS}"
columns = ["queue_id", "queue_offset"]
watermark = {{ column = "at", delay = "10 minutes" }}
deduplicate = ["id"]

[steps.totals]
sql = '''
select window.start as from_time, channel, count(*) as orders, sum(cents) as cents
from (select window(at, '5 minutes') as window, channel, cents from orders)
group by window, channel
'''

[sinks.totals]
from = "totals"
path = "totals"
format = "json"

[sinks.bad]
from = "orders_bad"
path = "bad"
{changed.get("more", "")}
""",
    )


def windows(spark, folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    rows = spark.read.schema("from_time string, channel string, orders bigint, cents bigint").json(
        str(folder / "totals")
    )
    return {(row.from_time[11:16], row.channel): (row.orders, row.cents) for row in rows.collect()}


def test_windows_count_each_order_once_and_late_ones_too(spark, node, tmp_path: Path) -> None:
    topic = node.topic("orders")
    seen: list[Batch] = []
    path = totals_file(tmp_path, node, topic)
    node.send(
        topic, [order(0), order(1), order(1), order(2, channel="app"), "{ no json", '{"cents": "many"}']
    )
    first = run_pipeline(path, spark=spark, once=True, report=seen.append)
    assert {name: run.rows for name, run in first.sinks.items()} == {"totals": 6, "bad": 6}
    assert {batch.query for batch in seen} == {"totals", "bad"}
    assert seen[-1].lag == 0

    # The second run goes on where the first one was: order 1 comes again and is known, orders 3 and 4 are late, and
    # the one of an hour later closes the windows; the one of yesterday is too late.
    node.send(topic, [order(1), order(20), order(3, minute=12), order(4, minute=11)])
    run_pipeline(path, spark=spark, once=True)
    node.send(topic, [order(90), order(5, minute=-1_440)])
    run_pipeline(path, spark=spark, once=True)
    assert windows(spark, tmp_path) == {
        ("09:00", "web"): (2, 200),
        ("09:00", "app"): (1, 100),
        ("09:10", "web"): (2, 200),
        ("09:20", "web"): (1, 100),
    }
    bad = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert sorted(bytes(row.body) for row in bad) == [b"{ no json", b'{"cents": "many"}']
    assert set(bad[0].asDict()) == {"queue_id", "queue_offset", "body"}

    status = pipeline_status(path)
    assert status.pid is None
    assert [(sink.name, sink.lag, sink.is_batch_open) for sink in status.sinks] == [
        ("totals", 0, False),
        ("bad", 0, False),
    ]
    assert sum(status.sinks[1].offsets.values()) == 12
    node.send(topic, [order(200)])
    assert [sink.lag for sink in pipeline_status(path).sinks] == [1, 1]


def test_the_commands_from_topic_to_topic(spark, node, tmp_path: Path) -> None:
    """They use the session that runs, and leave it running."""
    source, target = node.topic("orders"), node.topic("copies")
    path = write(
        tmp_path,
        f"""\
name = "copies"
[sources.orders]
topic = "{source}"
fields = "{FIELDS}"
columns = ["keys"]
[steps.dear]
sql = "select id, channel, cents, keys from orders where cents > 150"
[sinks.copies]
from = "dear"
topic = "{target}"
body = "json"
keys = ["keys", "id"]
tags = "channel"
""",
    )
    messages = [{"body": order(n, cents=100 + n, channel="app"), "keys": f"k{n}"} for n in range(100)]
    node.send(source, messages)
    checked = CliRunner().invoke(root, ["pipeline", "stream", "validate", str(path)])
    assert (checked.exit_code, checked.stdout) == (0, f"{path} is fine\n"), checked.output
    line = ["pipeline", "stream", "run", str(path), "--once", "--nameserver", node.address]
    done = CliRunner().invoke(root, [*line, "--json", "--checkpoint", str(tmp_path / "elsewhere")])
    assert done.exit_code == 0, done.output
    events = [json.loads(text) for text in done.stdout.splitlines()]
    assert [(event["event"], event["query"], event["rows"]) for event in events] == [
        ("batch", "copies", 100),
        ("done", "copies", 49),
    ]
    assert (events[0]["rows_written"], events[1]["rows_read"]) == (49, 100)
    again = CliRunner().invoke(root, [*line, "--checkpoint", str(tmp_path / "elsewhere")])
    assert again.stdout.startswith("copies: done, 0 rows in 0 batches"), again.output
    assert not (tmp_path / "copies-checkpoint").exists()

    found = {}
    for status in node.admin.describe_topic(target).queues:
        offset = status.min_offset
        while offset < status.max_offset:
            received = node.admin.read_messages(status.queue, offset)
            found |= {json.loads(message.body)["id"]: message for message in received}
            offset = received[-1].queue_offset + 1
    assert set(found) == {f"o{n}" for n in range(51, 100)}
    assert found["o99"].keys == ["k99", "o99"]
    assert found["o99"].tag == "app"
    assert json.loads(found["o99"].body) == {"id": "o99", "channel": "app", "cents": 199, "keys": "k99"}
    assert spark.range(3).count() == 3


def test_it_runs_until_it_is_stopped_and_goes_on_after(spark, node, tmp_path: Path) -> None:
    topic = node.topic("orders")
    path = totals_file(tmp_path, node, topic)
    stop, rows, done = Stop(), [], []
    arrived = threading.Event()

    def report(batch: Batch) -> None:
        rows.append(batch.rows)
        if sum(rows) >= 20:
            arrived.set()

    node.send(topic, ["x"] * 5)
    running = threading.Thread(
        target=lambda: done.append(run_pipeline(path, spark=spark, stop=stop, report=report)), name="runs"
    )
    running.start()
    try:
        node.send(topic, ["y"] * 5)
        assert arrived.wait(120)
        assert pipeline_status(path).pid == os.getpid()
        with pytest.raises(PenstockError, match="running already, as process"):
            run_pipeline(path, spark=spark, once=True)
    finally:
        stop.ask()
        running.join()
    assert all(run.stopped for run in done[0].sinks.values())
    node.send(topic, ["z"] * 3)
    run_pipeline(path, spark=spark, once=True)
    bodies = [bytes(row.body).decode() for row in spark.read.parquet(str(tmp_path / "bad")).collect()]
    assert sorted(bodies) == ["x"] * 5 + ["y"] * 5 + ["z"] * 3


def test_a_broker_that_is_not_there_is_told_in_a_line(spark, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'nameserver = "127.0.0.1:1"\n[sources.a]\ntopic = "a"\noptions = { retryMs = "100" }\n'
        '[sinks.b]\nfrom = "a"\npath = "b"\n',
    )
    told: list[str] = []
    with pytest.raises(PenstockError, match=r"127\.0\.0\.1:1") as caught:
        run_pipeline(
            path, spark=spark, failures_max=1, on_failure=lambda name, reason, wait: told.append(reason)
        )
    assert "\n" not in str(caught.value)
