"""The page of an audit: complete, without scripts, and safe whatever messages contain. No Spark."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from penstock.spark.pipelines.audit_findings import findings
from penstock.spark.pipelines.audit_result import AuditResult, Limits
from penstock.spark.pipelines.report import render, size_text
from penstock.spark.pipelines.report_charts import (
    Point,
    bar_list,
    histogram,
    line_chart,
    number_text,
    shown,
    stack_chart,
    ticks,
    time_ticks,
)

pa = pytest.importorskip("pyarrow")

T0 = datetime(2026, 5, 1, 23, 30, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\u202e\"'&\x00"
VOID = {"meta", "line", "rect", "circle", "polyline", "br"}


class Checker(HTMLParser):
    """Tags that are opened are closed in order; texts are gathered."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Checker:
    parser = Checker()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def tables(name: str = "orders") -> dict[str, Any]:
    windows = [T0 + timedelta(minutes=5 * i) for i in (0, 1, 2, 5)]
    place = {"topic": name, "broker": "b", "queue_id": 0}
    rows: dict[str, list[dict[str, Any]]] = {
        "topics": [
            {"topic": name, "queues": 2, "rows": 40, "bytes": 5_000_000, "first_time": T0, "last_time": T0}
            | {"most_rows": 30, "skew": 1.5}
        ],
        "queues": [
            place
            | {"queue_id": i, "expected_first": 0, "expected_end": 40, "rows": 10 + 20 * i, "bytes": 900}
            | {"missing": 1, "gaps": 1, "repeated": 0, "backwards": 0}
            for i in range(2)
        ],
        "produced": [{"topic": name, "window": at, "rows": 10, "bytes": 100} for at in windows],
        "consumed": [
            {
                "topic": name,
                "group": "g",
                "window": at,
                "produced": 10,
                "consumed": 7,
                "waiting": 3,
                "ratio": 1.43,
            }
            for at in windows
        ],
        "groups": [
            {"topic": name, "group": "g", "produced": 40, "consumed": 28, "waiting": 12, "expired": 0}
            | {"ratio": 1.43, "oldest_waiting": T0}
        ],
        "rates": [
            {
                "topic": name,
                "group": "g",
                "from_time": T0,
                "to_time": T0,
                "produced": 5,
                "consumed": 4,
                "ratio": 1.25,
            }
            | {"produced_per_s": 5.0, "consumed_per_s": 4.0}
        ],
        "latency": [
            {
                "topic": name,
                "stage": "stored",
                "rows": 40,
                "p50_ms": 1,
                "p90_ms": 5,
                "p99_ms": 900,
                "p999_ms": 2000,
            }
            | {"max_ms": 61_000, "negative": 0}
        ],
        "latency_windows": [
            {"topic": name, "stage": "stored", "window": at, "rows": 10, "p50_ms": 1, "p99_ms": 900}
            for at in windows
        ],
        "latency_histogram": [{"topic": name, "stage": "stored", "power": p, "rows": 9} for p in (0, 1, 4)],
        "dead_letters": [
            {"group": "g", "origin_topic": name, "reason": EVIL, "tries": 17, "rows": 2, "first_time": T0}
            | {"last_time": T0, "last_id": EVIL}
        ],
        "gaps": [
            place
            | {
                "first_offset": i,
                "last_offset": i,
                "missing": 1,
                "before_time": T0,
                "after_time": None,
                "reason": "",
            }
            for i in range(60)
        ],
        "duplicate_totals": [{"kind": "id", "topic": name, "values": 1, "extra": 1}],
        "duplicates": [
            {"kind": "id", "topic": name, "value": EVIL, "copies": 2, "first_time": T0, "last_time": T0}
            | {"first_place": "b/0@1", "last_place": "b/0@2"}
        ],
        "disorder": [
            place
            | {
                "kind": kind,
                "key": EVIL,
                "queue_offset": 5,
                "previous_offset": 4,
                "value": 1,
                "previous_value": 2,
            }
            for kind in ("sequence", "born_time")
        ],
        "hot_keys": [
            {"topic": name, "rank": 1, "key": EVIL, "rows": 30, "bytes": 1, "queues": 1, "share": 0.75}
        ],
        "keys": [{"topic": name, "keys": 2, "in_several_queues": 1, "most_rows": 30, "rows": 40}],
    }
    return {key: pa.Table.from_pylist(value) for key, value in rows.items()}


def page(name: str = "orders") -> str:
    made = tables(name)
    result = AuditResult(f"log at {name}", "archive x", 1_000, 61_000, 300, 40, made, {"gaps": 75})
    result.findings = findings(made, Limits())
    return render(result)


@pytest.mark.seed("S4-5")
def test_the_page_has_every_section_and_says_what_was_found() -> None:
    found = check(page())
    text = " ".join(found.text)
    for title in ("Findings", "Topics", "Produced over time", "Produced and consumed", "Latency from birth"):
        assert title in text
    for title in ("Dead letters", "Gaps", "Duplicates", "Out of order", "Keys", "Queues"):
        assert title in text
    assert "4 problems found" not in text
    assert "3 problems found" in text
    assert "2 offsets of orders are missing" in text
    assert "and 25 more: see gaps.parquet" in text
    assert "svg" in found.tags


def test_every_link_of_the_page_leads_into_it() -> None:
    found = check(page())
    ids = {value for name, value in found.attributes if name == "id"}
    links = {value for name, value in found.attributes if name == "href"}
    assert links
    assert {f"#{name}" for name in ids} == links


@pytest.mark.abuse("A21")
def test_nothing_from_a_message_becomes_markup() -> None:
    made = page(EVIL)
    found = check(made)
    assert "script" not in found.tags
    assert "\u202e" not in made
    assert "\x00" not in made
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\\u202e" in made


def test_nothing_is_loaded_and_both_schemes_are_there() -> None:
    made = page()
    assert not re.search(r"(src|@import|url\()", made.replace("default-src", "").replace("style-src", ""))
    assert re.findall(r"https?://[^\"']+", made) == ["http://www.w3.org/2000/svg"] * made.count("<svg")
    assert "prefers-color-scheme:dark" in made
    assert "default-src 'none'" in made


def test_an_audit_of_nothing_is_a_page_all_the_same() -> None:
    result = AuditResult("log", "", 0, 10, 1, 0, {}, {})
    text = " ".join(check(render(result)).text)
    assert "no problems" in text
    assert "Nothing to report" in text


# -- charts ------------------------------------------------------------------------------------------------------


def test_lines_are_interrupted_where_there_is_nothing() -> None:
    points = [Point(0, 1), Point(60, 2), Point(120, None), Point(180, 3)]
    made = line_chart("t", {"a": points})
    check(made)
    assert made.count("<polyline") == 1
    assert made.count("<circle") == 3
    assert "legend" not in made
    assert line_chart("t", {"a": [Point(0, None)]}) == ""
    assert line_chart("t", {}) == ""


def test_values_stay_inside_the_plot() -> None:
    made = line_chart("t", {"a": [Point(i, i * i * 7.3) for i in range(50)], "b": [Point(3, 1e9)]})
    for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', made):
        assert 62 <= float(x) <= 888
        assert 12 <= float(y) <= 210


def test_one_point_and_equal_values_are_drawn() -> None:
    for points in ([Point(5, 0)], [Point(5, 3)], [Point(5, 3), Point(6, 3)]):
        check(line_chart("t", {"a": points}))
        check(stack_chart("t", {"a": points}, width_s=1))


def test_stacked_bars_add_up() -> None:
    made = stack_chart("t", {"a": [Point(0, 1), Point(10, 2)], "b": [Point(0, 3), Point(10, 0)]}, width_s=10)
    check(made)
    assert made.count("<rect") == 3
    bars = [
        (float(y), float(h)) for y, h in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', made)
    ]
    assert bars[1][0] + bars[1][1] == pytest.approx(bars[0][0], abs=0.2)


def test_histograms_and_bar_lists() -> None:
    made = histogram("t", [(f"{i}", float(i)) for i in range(40)])
    check(made)
    assert made.count("<rect") == 40
    assert made.count('text-anchor="middle"') < 20
    assert check(bar_list("t", [(EVIL, 2.0, "2"), ("b", 0.0, "0")])).tags == {"svg", "text", "rect", "title"}
    assert histogram("t", []) == bar_list("t", []) == ""


@pytest.mark.parametrize(
    ("top", "marks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100])],
)
def test_ticks_are_round(top: float, marks: list[float]) -> None:
    assert ticks(top) == pytest.approx(marks)


def test_times_on_an_axis_are_round_and_name_the_day_once() -> None:
    marks = time_ticks(T0.timestamp(), T0.timestamp() + 3_600)
    assert [label for _, label in marks] == [
        "05-01 23:30",
        "23:40",
        "23:50",
        "05-02 00:00",
        "00:10",
        "00:20",
        "00:30",
    ]
    assert len(time_ticks(0, 0)) == 1
    assert len(time_ticks(0, 400 * 86_400)) <= 15


def test_numbers_and_texts() -> None:
    assert [number_text(n) for n in (0, 0.25, 999, 1_234, 5.6e6)] == ["0", "0.25", "999", "1.23k", "5.6M"]
    assert [size_text(n) for n in (0, 1023, 5_000_000)] == ["0 B", "1,023 B", "4.77 MiB"]
    assert shown("x" * 200, 10) == "x" * 9 + "…"
    assert shown(None) == ""
