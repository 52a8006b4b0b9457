"""Topics as tables: archive and log together, no message twice, none left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException

from penstock.cli.main import root
from penstock.cli.sql import cell_text, in_utc, plain
from penstock.errors import OptionError, PenstockError
from penstock.spark import archive, sql
from penstock.spark.pipelines.sql import Places, TopicTables, aligned
from penstock.spark.pipelines.sql_columns import columns_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node


def numbers(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"body": b'{"number": %d}' % number, "keys": f"k{number % 7}", "tag": "odd" if number % 2 else "even"}
        for number in range(start, start + count)
    ]


def spread(node: Node, topic: str, messages: list[dict[str, Any]]) -> None:
    for queue_id in range(3):
        node.send(topic, messages[queue_id::3], queue_id=queue_id)


def rows(spark: SparkSession, text: str, **places: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sql(text, spark=spark, **places).collect()]


@pytest.fixture(scope="module")
def half(spark: SparkSession, node: Node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A topic of 100 messages, 60 of them archived."""
    topic, root = node.topic("half", 3), tmp_path_factory.mktemp("sql") / "archive"
    spread(node, topic, numbers(60))
    archive(topic, str(root), spark=spark, nameserver=node.address, once=True)
    spread(node, topic, numbers(40, 60))
    return {"topic": topic, "archive": str(root), "nameserver": node.address}


def test_archive_and_log_are_joined_without_repeats_and_without_a_hole(
    spark: SparkSession, half: dict[str, str]
) -> None:
    both = {"archive": half["archive"], "nameserver": half["nameserver"]}
    query = f"select cast(get_json_object(body_text, '$.number') as int) n from `{half['topic']}` order by n"
    expected = [(number,) for number in range(100)]
    assert rows(spark, query, **both) == expected
    assert rows(spark, query, nameserver=half["nameserver"]) == expected
    assert rows(spark, query, archive=half["archive"]) == expected[:60]
    infos = {info.topic: info for info in TopicTables(spark, Places(**both)).info()}
    assert (infos[half["topic"]].archived, infos[half["topic"]].live) == (60, 40)


def test_every_shape_of_query_is_understood(spark: SparkSession, half: dict[str, str], node: Node) -> None:
    topic, both = f"`{half['topic']}`", {"archive": half["archive"], "nameserver": half["nameserver"]}
    other = node.topic("other", 1)
    node.send(other, [{"body": b"x", "keys": "k3"}])
    assert rows(spark, f"select tags, count(*) c from {topic} group by tags order by tags", **both) == [
        ("even", 50),
        ("odd", 50),
    ]
    with_x = f"with x as (select * from {topic} where tags = 'odd') select count(*) from x"
    assert rows(spark, with_x, **both) == [(50,)]
    assert rows(
        spark, f"select count(*) from {topic} where keys in (select keys from `{other}`)", **both
    ) == [(14,)]
    assert rows(spark, f"select count(*) from {topic} a join `{other}` b on a.keys = b.keys", **both) == [
        (14,)
    ]
    assert rows(
        spark, f"select count(body), count(tags) from (select body, tags, size from {topic})", **both
    ) == [(100, 100)]
    assert rows(spark, f"select (select max(queue_offset) from {topic}) m", **both)[0][0] >= 33
    assert len(sql(f"select * from {topic}", spark=spark, **both).columns) == 16
    assert (
        rows(spark, f"select * except (body, body_text) from {topic} limit 1", **both)[0][0] == half["topic"]
    )
    assert spark.sql("show tables").collect() == []


def test_as_of_shows_what_was_there_then(spark: SparkSession, half: dict[str, str]) -> None:
    both = {"archive": half["archive"], "nameserver": half["nameserver"]}
    times = rows(spark, f"select unix_millis(store_time) t from `{half['topic']}` order by t", **both)
    for moment in (times[30][0], times[60][0]):
        expected = sum(time <= moment for (time,) in times)
        count = f"select count(*), max(unix_millis(store_time)) <= {moment} from `{half['topic']}`"
        assert rows(spark, count, as_of=str(moment), **both)[0][0] == expected
    assert rows(spark, f"select count(*) from `{half['topic']}`", as_of="2020-01-01T00:00:00Z", **both) == [
        (0,)
    ]


def test_a_store_directory_takes_the_place_of_the_brokers(
    spark: SparkSession, half: dict[str, str], node: Node
) -> None:
    query = f"select count(*), count(distinct body), count(distinct broker) from `{half['topic']}`"
    assert rows(spark, query, store=str(node.directory)) == [(100, 100, 1)]
    assert rows(spark, query, store=str(node.directory), archive=half["archive"]) == [(100, 100, 1)]


def test_only_columns_that_matter_are_read(spark: SparkSession, half: dict[str, str]) -> None:
    topic = half["topic"]
    tables = TopicTables(spark, Places(half["nameserver"], half["archive"]))

    def needed(text: str) -> list[str] | None:
        return columns_needed(spark, text.replace("T", f"`{topic}`"), tables._with_stand_ins).get(topic)

    assert needed("select count(*) from T") == []
    assert needed("select tags, count(*) from T group by tags") == ["tags"]
    assert needed("select body_text from T where queue_id = 1") == ["body", "queue_id"]
    assert needed("select count(*) from (select body, keys from T where size > 3)") == ["size"]
    assert needed("select (select max(size) from T) + 1") == ["size"]
    everything = needed("select * from T where size > 3")
    assert everything is None or len(everything) == 15
    assert needed("describe T") is None
    assert needed("not sql") is None


def test_messages_that_are_nowhere_are_told(spark: SparkSession, half: dict[str, str]) -> None:
    tables = TopicTables(spark, Places(half["nameserver"], half["archive"]))
    tables._live[half["topic"]] = {f"{half['topic']}/test-broker/0": (25, 30)}
    tables.table(half["topic"])
    assert tables.notes == [
        f"offsets 20 to 24 of {half['topic']}/test-broker/0 are neither archived nor in the log"
    ]


def test_internal_topics_have_a_log_behind_their_archive_too(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    """Topics that lists of topics leave out."""
    topic, root = node.topic("%RETRY%workers", 3), str(tmp_path / "archive")
    spread(node, topic, numbers(60))
    archive(topic, root, spark=spark, nameserver=node.address, once=True)
    spread(node, topic, numbers(40, 60))
    both = {"archive": root, "nameserver": node.address}
    assert rows(spark, f"select count(*) from `{topic}`", **both) == [(100,)]


def test_a_topic_that_no_broker_has_is_told(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """It may be deleted, or its brokers are away: then part of it is missing, and nobody can tell."""
    topic, root = node.topic("left", 3), str(tmp_path / "archive")
    spread(node, topic, numbers(30))
    archive(topic, root, spark=spark, nameserver=node.address, once=True)
    node.admin.delete_topic(topic)
    both = {"archive": root, "nameserver": node.address}
    query = f"select count(*) from `{topic}`"
    with pytest.raises(PenstockError, match="deleted or they are away"):
        rows(spark, query, **both)
    assert rows(spark, query, **both, on_gap="skip") == [(30,)]
    assert rows(spark, query, archive=root) == [(30,)]


def test_what_was_archived_of_a_directory_is_not_read_again_from_its_broker(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("copied", 3), str(tmp_path / "archive")
    spread(node, topic, numbers(60))
    archive(topic, root, spark=spark, store=str(node.directory), once=True)
    spread(node, topic, numbers(40, 60))
    both = {"archive": root, "nameserver": node.address}
    query = (
        f"select count(*), count(distinct queue_id, queue_offset), min(broker), max(broker) from `{topic}`"
    )
    assert rows(spark, query, **both) == [(100, 100, "test-broker", "test-broker")]
    infos = {info.topic: info for info in TopicTables(spark, Places(**both)).info()}
    assert (infos[topic].archived, infos[topic].live) == (60, 40)


@pytest.mark.parametrize(
    ("archived", "spans"),
    [
        ({"t/a/0": [(0, 1)], "t/b/0": [(0, 1)]}, {"t//0": (0, 5)}),
        ({"t//0": [(0, 1)]}, {"t/a/0": (0, 5), "t/b/0": (0, 5)}),
        ({"t//0": [(0, 1)], "t/b/0": [(0, 1)]}, {"t/a/0": (0, 5)}),
    ],
)
def test_a_directory_beside_several_brokers_is_refused(archived: Any, spans: Any) -> None:
    with pytest.raises(OptionError, match="brokers a, b"):
        aligned(archived, spans)


def test_on_gap_says_what_becomes_of_messages_that_are_nowhere(
    spark: SparkSession, half: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of queue 0 offsets below 20 are archived; the log is made to begin at 25."""
    lost = f"{half['topic']}/test-broker/0"
    spans = TopicTables._spans

    def cut(tables: TopicTables, topic: str) -> dict[str, tuple[int, int]]:
        found = spans(tables, topic)
        return {**found, lost: (25, found[lost][1])}

    monkeypatch.setattr(TopicTables, "_spans", cut)
    query = f"select count(*) from `{half['topic']}`"
    line = ["sql", query, "--csv", "--archive", half["archive"], "--nameserver", half["nameserver"]]
    note = f"offsets 20 to 24 of {lost} are neither archived nor in the log"
    for given, code in ((), 1), (("--on-gap", "report"), 1), (("--on-gap", "skip"), 0):
        done = CliRunner().invoke(root, [*line, *given])
        assert (done.exit_code, done.stdout.splitlines()) == (code, ["count(1)", "95"]), done.output
        assert note in done.stderr
    refused = CliRunner().invoke(root, [*line, "--on-gap", "fail"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{note}; to go on without them: --on-gap skip" in refused.stderr


def test_wrong_names_and_wrong_queries_say_what_to_do(spark: SparkSession, half: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"did you mean .*{half['topic']}"):
        sql(f"select * from `{half['topic']}x`", spark=spark, nameserver=half["nameserver"])
    with pytest.raises(AnalysisException, match="nosuchcolumn"):
        sql(f"select nosuchcolumn from `{half['topic']}`", spark=spark, nameserver=half["nameserver"])
    with pytest.raises(OptionError, match="nothing to query"):
        sql("select 1", spark=spark)
    with pytest.raises(OptionError, match="one of them"):
        sql("select 1", spark=spark, nameserver="127.0.0.1:1", store="x")
    with pytest.raises(OptionError, match="no archive"):
        sql("select * from x", spark=spark, archive="/nonexistent")


def test_values_become_text_and_json(spark: SparkSession) -> None:
    frame = spark.sql(
        "select cast('a' as binary) b, x'ff00' c, timestamp_millis(1) t, "
        "map('k', 1) m, named_struct('x', 1) s, null n"
    )
    row = next(in_utc(frame, frame.collect()))
    assert [cell_text(value) for value in row] == [
        "a",
        "/wA=",
        "1970-01-01 00:00:00.001Z",
        '{"k": 1}',
        '{"x": 1}',
        "-",
    ]
    assert json.loads(json.dumps([plain(value) for value in row], default=str)) == [
        "a",
        {"base64": "/wA="},
        "1970-01-01T00:00:00.001000+00:00",
        {"k": 1},
        {"x": 1},
        None,
    ]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time is not UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_times_inside_of_other_values_are_utc_too(spark: SparkSession, new_york: None) -> None:
    frame = spark.sql(
        "select named_struct('start', t) s, array(t, null) a, map(t, named_struct('t', t)) m, "
        "timestamp_ntz'2025-01-31 15:00:00' z, array(timestamp_ntz'2025-01-31 15:00:00') az "
        "from (select timestamp_millis(1700000000000) t)"
    )
    row = next(in_utc(frame, frame.collect()))
    utc = "2023-11-14T22:13:20+00:00"
    assert [plain(value) for value in row] == [
        {"start": utc},
        [utc, None],
        {utc: {"t": utc}},
        "2025-01-31T15:00:00",
        ["2025-01-31T15:00:00"],
    ]
    assert cell_text(row[0]) == f'{{"start": "{utc}"}}'


def test_json_has_every_column_and_only_what_json_knows(spark: SparkSession, half: dict[str, str]) -> None:
    query = (
        "select 1 x, 2 x, 3 x_2, 4 x, double('NaN') nan, array(double('-Infinity'), float('Infinity')) inf, "
        "named_struct('y', 1, 'y', 2) s, 1.50 d"
    )
    line = ["sql", query, "--archive", half["archive"], "--archive-only"]
    done = CliRunner().invoke(root, [*line, "--json"])
    assert done.exit_code == 0, done.output

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(done.stdout, parse_constant=refused) == {
        "x": 1,
        "x_3": 2,
        "x_2": 3,
        "x_4": 4,
        "nan": "NaN",
        "inf": ["-Infinity", "Infinity"],
        "s": {"y": 1, "y_2": 2},
        "d": "1.50",
    }
    printed = CliRunner().invoke(root, [*line, "--csv"])
    assert printed.stdout.splitlines()[1].startswith('1,2,3,4,NaN,"[""-Infinity"", ""Infinity""]"')
    assert printed.stdout.splitlines()[1].endswith(",1.50")


def test_topics_that_differ_in_case_only_are_not_mixed_up(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    tables = TopicTables(spark, Places(node.address))
    tables._topics = ["Case", "case", "Only"]
    with pytest.raises(OptionError, match="differ in case only"):
        tables._topic_of("CASE", ValueError())
    assert tables._topic_of("only", ValueError()) == "Only"
