"""Pipeline files: everything that is wrong is found at once, with its line; what is right is read as it was meant."""

from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.spark.pipelines.file_sections import Document, Problem, key_lines
from penstock.spark.pipelines.stream_file import BESIDE_FIELDS, PipelineFile, parse_pipeline, read_pipeline
from penstock.spark.schema import COLUMNS

WHOLE = """\
name = "orders"
nameserver = "127.0.0.1:9876"
checkpoint = "state"

[spark]
"spark.sql.shuffle.partitions" = 2

[sources.orders]
topic = "orders"
starting = "earliest"
group = "totals"
max_rows = 10_000
on_gap = "report"
gap_table = "gaps"
fields = "order_id string, amount double, at timestamp"
columns = ["queue_id", "store_time"]
watermark = { column = "at", delay = "10 minutes" }
deduplicate = ["order_id"]

[sources.clicks]
format = "json"
path = "clicks"
schema = "at timestamp, page string"

[tables.customers]
format = "parquet"
path = "/data/customers"

[steps.totals]
sql = '''
select window(at, '1 minute') as w, sum(amount) as total
from orders group by 1
'''

[sinks.topic]
from = "totals"
topic = "order-totals"
body = "json"
keys = "w"
trigger = "10 seconds"

[sinks.poison]
from = "orders_bad"
path = "poison"
partition_by = "queue_id"
trigger = "available-now"
"""


def problems(text: str, **given: str) -> list[str]:
    return [str(problem) for problem in parse_pipeline(text, **given).problems]


def edited(old: str, new: str) -> str:
    assert WHOLE.count(old) == 1
    return WHOLE.replace(old, new)


def read_whole(**given: str) -> PipelineFile:
    return parse_pipeline(WHOLE, Path("/pipelines/orders.toml"), **given)


def test_a_whole_file_is_read_as_it_was_meant() -> None:
    file = read_whole()
    assert file.problems == []
    assert (file.name, file.nameserver, file.checkpoint) == ("orders", "127.0.0.1:9876", "/pipelines/state")
    assert file.settings == {"spark.sql.shuffle.partitions": "2"}
    assert file.views == ["orders", "orders_bad", "clicks", "customers", "totals"]
    orders, clicks, customers = file.sources
    assert orders.options == {
        "topic": "orders",
        "startingPosition": "earliest",
        "group": "totals",
        "maxRowsPerTrigger": "10000",
        "onGap": "report",
        "gapTable": "/pipelines/gaps",
        "nameserver": "127.0.0.1:9876",
    }
    assert orders.columns == ("queue_id", "store_time")
    assert (orders.shaping.watermark, orders.shaping.delay) == ("at", "10 minutes")
    assert orders.shaping.deduplicate == ("order_id",)
    assert (clicks.path, clicks.schema, clicks.is_static) == (
        "/pipelines/clicks",
        "at timestamp, page string",
        False,
    )
    assert (customers.path, customers.is_static) == ("/data/customers", True)
    topic, poison = file.sinks
    assert (topic.format, topic.options["topic"], topic.keys) == ("penstock", "order-totals", ("w",))
    assert (poison.format, poison.path, poison.partition_by) == (
        "parquet",
        "/pipelines/poison",
        ("queue_id",),
    )


def test_options_of_the_command_overrule_the_file() -> None:
    file = read_whole(nameserver="10.0.0.1:9876", checkpoint="/elsewhere")
    assert file.checkpoint == "/elsewhere"
    assert file.sources[0].options["nameserver"] == "10.0.0.1:9876"
    assert file.sinks[0].options["nameserver"] == "10.0.0.1:9876"


def test_without_fields_all_columns_are_there_and_no_view_of_bad_messages() -> None:
    file = parse_pipeline(
        edited('fields = "order_id string, amount double, at timestamp"\n', "").replace(
            'columns = ["queue_id", "store_time"]\n', ""
        )
    )
    assert file.sources[0].columns == tuple(COLUMNS)
    assert file.sources[0].bad_name == ""


def test_beside_fields_the_columns_that_say_where_a_message_is_from() -> None:
    file = parse_pipeline(edited('columns = ["queue_id", "store_time"]\n', ""))
    assert file.sources[0].columns == BESIDE_FIELDS
    assert set(BESIDE_FIELDS) < set(COLUMNS)


def test_everything_that_is_wrong_is_found_at_once() -> None:
    text = """\
nameservr = "x"

[spark]
shuffle = 3

[sources.orders]
topic = "orders"
topik = "x"
starting = "earlyest"
max_rows = 0
columns = ["queue"]
watermark = { column = "at", delay = "10 mins" }

[steps.totals]
sql = \"\"\"
select [sources.x]
key = 1
\"\"\"
deduplicate = "x"

[sinks.out]
from = "total"
topic = "order-totals"
mode = "apend"

[sinks.files]
from = 3
"""
    assert [(item.line, item.where) for item in parse_pipeline(text).problems] == [
        (1, "nameservr"),
        (4, "spark.shuffle"),
        (6, "sources.orders"),
        (8, "sources.orders.topik"),
        (9, "sources.orders.starting"),
        (10, "sources.orders.max_rows"),
        (11, "sources.orders.columns"),
        (12, "sources.orders.watermark.delay"),
        (19, "steps.totals.deduplicate"),
        (21, "sinks.out"),
        (22, "sinks.out.from"),
        (24, "sinks.out.mode"),
        (26, "sinks.files"),
        (27, "sinks.files.from"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'topic = "orders"',
            'topik = "orders"',
            "line 9, sources.orders.topik: unknown key; did you mean topic?",
        ),
        ("[steps.totals]", "[step.totals]", "line 29, step: unknown key; did you mean steps?"),
        ('from = "totals"', 'from = "total"', "there is no source or step 'total'; did you mean totals?"),
        ('from = "totals"', "", "sinks.topic: from is missing"),
        ("max_rows = 10_000", "max_rows = -1", "sources.orders.max_rows: maxRowsPerTrigger"),
        ('on_gap = "report"', 'on_gap = "shrug"', "sources.orders.on_gap: onGap is 'shrug'"),
        ('topic = "orders"\n', "", "sources.orders: no topic is given"),
        ('delay = "10 minutes"', 'delay = "soon"', "'soon' is no time"),
        ('column = "at", delay', "delay", "column is missing"),
        ('trigger = "10 seconds"', 'trigger = "often"', "'often' is no trigger"),
        ('body = "json"', 'body = "json"\nmode = "update"', "sinks.topic.mode: a topic takes 'append' only"),
        (
            'body = "json"',
            'body = "json"\nmode = "complete"',
            "sinks.topic.mode: a topic takes 'append' only",
        ),
        ('path = "poison"\n', "", "path is missing: where the parquet files go"),
        ('body = "json"', 'body = "xml"', "'xml' is not one of json, column"),
        ("[sources.clicks]", "[sources.orders_bad]", "the name orders_bad is taken by sources.orders"),
        ("[steps.totals]", '[steps."to tals"]', "'to tals' is no name for SQL"),
        ('columns = ["queue_id", "store_time"]', 'columns = ["queueid"]', "did you mean queue_id?"),
        ('columns = ["queue_id", "store_time"]', "columns = [1]", "must be a list of words"),
        ('"spark.sql.shuffle.partitions" = 2', "partitions = 2", "no setting of Spark"),
        ('name = "orders"', 'name = "or ders"', "'or ders' is no name"),
        ("[sources.clicks]", "sources.clicks = 3\n[x]", "sources"),
    ],
)
def test_each_mistake_is_told_where_it_is(old: str, new: str, told: str) -> None:
    assert any(told in problem for problem in problems(edited(old, new))), problems(edited(old, new))


def test_no_name_server_anywhere_is_told_for_each_that_needs_one() -> None:
    found = problems(edited('nameserver = "127.0.0.1:9876"\n', ""))
    assert [item.partition(":")[0] for item in found] == ["line 7, sources.orders", "line 34, sinks.topic"]
    assert problems(edited('nameserver = "127.0.0.1:9876"\n', ""), nameserver="127.0.0.1:1") == []


def test_two_sinks_may_not_write_to_one_path() -> None:
    more = '\n[sinks.twice]\nfrom = "totals"\npath = "poison"\n'
    assert any("sinks.poison writes to the same path" in item for item in problems(WHOLE + more))


def test_a_file_without_sources_or_sinks_does_nothing() -> None:
    found = problems('name = "x"\n')
    assert len(found) == 2
    assert "nothing would be read" in found[0] + found[1]


def test_what_is_no_toml_is_told_with_its_line() -> None:
    assert [problem.line for problem in parse_pipeline('name = "x"\nsteps = [\n').problems] == [2]
    assert "not TOML" in problems("name = ")[0]


def test_a_file_that_is_not_there_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no file .*docs/spark/stream\.md"):
        read_pipeline(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="not a text file"):
        read_pipeline(tmp_path / "binary.toml")


def test_lines_of_keys_are_not_fooled_by_strings() -> None:
    text = 'a = 1\nb = """\nc = 2\n[d]\n"""\n[e.f]  # here\n"g.h" = 3\ni.j = \'\'\'x\'\'\'\nk = 1\n'
    assert key_lines(text) == {
        ("a",): 1,
        ("b",): 2,
        ("e", "f"): 6,
        ("e", "f", "g.h"): 7,
        ("e", "f", "i", "j"): 8,
        ("e", "f", "k"): 9,
    }


def test_a_problem_without_a_line_of_its_own_has_the_one_of_its_section() -> None:
    document = Document.parse("[a]\nb = {c = 1}\n")
    document.note(("a", "b", "c"), "x")
    document.note(("z",), "y")
    assert document.problems == [Problem(2, "a.b.c", "x"), Problem(0, "z", "y")]
    assert str(document.problems[0]) == "line 2, a.b.c: x"
