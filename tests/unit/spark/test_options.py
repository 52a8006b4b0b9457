"""Options of a read, as texts."""

import dataclasses
import re
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.spark.options import NAMES, OnGap, ReadOptions
from penstock.spark.positions import EARLIEST, LATEST, PositionKind

LIVE = {"nameserver": "a:1", "topic": "T"}


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({**LIVE, **options})


def test_defaults():
    found = parse()
    assert (found.nameserver, found.topic) == (("a:1",), ("T",))
    assert (found.starting_position, found.ending_position) == (EARLIEST, LATEST)
    assert (found.on_gap, found.batch_rows, found.verify) == (OnGap.FAIL, 8192, True)
    assert not found.is_offline
    assert found.what == "topic T"


def test_names_are_case_insensitive_and_values_are_read():
    found = ReadOptions.parse(
        {
            "NAMESERVER": "a:1;b",
            "topicpattern": "orders-.*",
            "StartingPosition": "LATEST",
            "endingPosition": '{"orders-1/b/0": 5}',
            "maxRowsPerTrigger": "1000",
            "MAXBYTESPERTRIGGER": "2000",
            "minPartitions": "3",
            "cores": "40",
            "group": "g",
            "tags": "A || B||A",
            "key": "k",
            "onGap": "Report",
            "gapTable": "/gaps",
            "columns": "body, queue_id",
            "batchRows": "100",
            "batchBytes": "2048",
            "verify": "FALSE",
            "pullBytes": "65536",
            "retryMs": "0",
            "discoverMs": "1",
        }
    )
    assert found.nameserver == ("a:1", "b:9876")
    assert (found.topic, found.topic_pattern) == ((), "orders-.*")
    assert found.starting_position.kind is PositionKind.LATEST
    assert found.ending_position.offsets == (("orders-1/b/0", 5),)
    assert (found.max_rows_per_trigger, found.max_bytes_per_trigger, found.min_partitions) == (1000, 2000, 3)
    assert found.cores == 40
    assert (found.tags, found.tag_expression, found.key) == (("A", "B"), "A || B", "k")
    assert (found.on_gap, found.gap_table) == (OnGap.REPORT, "/gaps")
    assert found.columns == ("body", "queue_id")
    assert (found.batch_rows, found.batch_bytes, found.verify, found.pull_bytes) == (100, 2048, False, 65536)
    assert found.what == "topics matching 'orders-.*'"


def test_every_field_has_a_name():
    assert set(NAMES) | {"access"} == {item.name for item in dataclasses.fields(ReadOptions)}


def test_a_store_directory_needs_no_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = ReadOptions.parse({"path": "store"})
    assert found.is_offline
    assert found.path == str(tmp_path / "store"), "executors have another working directory"
    assert ReadOptions.parse({"path": "/s", "topic": "a , b"}).topic == ("a", "b")
    assert "store directory" in found.what


def test_what_spark_adds_is_no_mistake():
    assert parse(paths='["a"]', **{"spark.app.name": "x"}).topic == ("T",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"startingOffsets": "earliest"},
            "there is no option 'startingOffsets'.*did you mean startingPosition",
        ),
        ({"toppic": "x"}, "did you mean topic"),
        ({"zzzzzz": "x"}, "options are: nameserver, topic"),
        ({"topic": "a b"}, "invalid topic name"),
        ({"topic": " , "}, "topic is empty"),
        ({"topicPattern": "a"}, "both topic and topicPattern"),
        ({"nameserver": "a:b:c:d"}, "nameserver: "),
        ({"nameserver": " "}, "no name server"),
        ({"startingPosition": "first"}, "startingPosition is 'first'.*use earliest, latest"),
        ({"endingPosition": "{"}, "endingPosition is no JSON"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is '0'.*from 1 to"),
        ({"maxBytesPerTrigger": "1e6"}, "maxBytesPerTrigger"),
        ({"minPartitions": "-3"}, "minPartitions"),
        ({"cores": "0"}, "cores"),
        ({"minPartitions": "9" * 40}, "minPartitions"),
        ({"group": " "}, "group is empty"),
        ({"tags": "A | B"}, "write tags as A || B"),
        ({"tags": "||"}, "write tags as A || B"),
        ({"onGap": "ignore"}, "use fail, report or skip"),
        ({"onGap": "report"}, "no gapTable"),
        ({"gapTable": "/x"}, "nothing to write to it"),
        ({"columns": "bodi"}, "did you mean body"),
        ({"columns": ","}, "names no column"),
        ({"columns": "body,body"}, "named twice"),
        ({"verify": "1"}, "use true or false"),
        ({"batchRows": "many"}, "batchRows"),
        ({"path": "/store"}, "nameserver cannot go with a path"),
    ],
)
def test_mistakes_are_named(options, said):
    with pytest.raises(
        OptionError, match=said.replace("||", r"\|\|").replace("| B", r"\| B") if "tags" in options else said
    ):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no nameserver"),
        ({"nameserver": "a"}, "no topic is given"),
        ({"nameserver": "a", "topicPattern": "("}, "no regular expression"),
        ({"path": "/s", "group": "g"}, "group cannot go with a path"),
        ({"path": ""}, "path is empty"),
    ],
)
def test_what_is_missing_or_does_not_fit(options, said):
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse(options)


def test_a_star_means_all_tags():
    assert parse(tags="*").tags == ()


def test_options_can_be_pickled():
    import pickle  # noqa: TID251

    found = parse(startingPosition='{"T/b/0": 3}', tags="A")
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_page_has_every_option_with_its_default():
    page = (Path(__file__).parents[3] / "docs/spark/source.md").read_text()
    table = page[page.index("## Options") : page.index("## Positions")]
    rows = {
        name: default
        for names, defaults in re.findall(r"^\| (`[^|]+) \| ?([^|]*?) ?\|", table, re.M)
        for name, default in zip(
            re.findall(r"`(\w+)`", names), defaults.replace("`", "").split(", "), strict=False
        )
    }
    assert set(rows) == set(NAMES.values())
    defaults = ReadOptions()
    for field, name in NAMES.items():
        value = getattr(defaults, field)
        if isinstance(value, int) and value:
            assert rows[name].strip() == str(value).lower(), name
