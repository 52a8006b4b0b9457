"""The report of an audit: one HTML page that needs nothing but itself.

    verdict, numbers, findings          the first screen says whether there is something to do
    topics, flow, groups, latency       how it went, with plots
    gaps ... differences                the single faults; all of them are in the Parquet files beside the page

Rules: whatever came out of a message is escaped (A21), nothing is loaded, nothing is run. A table on the page is cut
to ROWS rows and says so. Pure functions on the driver: a result in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.spark.pipelines import report_plots
from penstock.spark.pipelines.audit_findings import duration_text
from penstock.spark.pipelines.audit_result import AuditResult, iso
from penstock.spark.pipelines.report_charts import shown
from penstock.spark.pipelines.report_style import POLICY, STYLE

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 50
Row = Mapping[str, Any]
# Title, key in the row, how to write it: n is a number, t a time, b bytes, s a share, d milliseconds, w words.
Column = tuple[str, str, str]


def render(result: AuditResult) -> str:
    """The page."""
    sections = [(name, title, body) for name, title, body in _sections(result) if body]
    nav = "".join(f'<a href="#{name}">{shown(title)}</a>' for name, title, _ in sections)
    bodies = "".join(f'<h2 id="{name}">{shown(title)}</h2>{body}' for name, title, body in sections)
    title = f"Audit of {shown(result.source, 200)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{_verdict(result)}{_cards(result)}<nav>{nav}</nav>{bodies}"
        "</main></body></html>\n"
    )


def _verdict(result: AuditResult) -> str:
    count = len(result.problems)
    kind, words = (
        ("bad", f"{count} problem{'s' if count != 1 else ''} found") if count else ("good", "no problems")
    )
    against = f", compared with {shown(result.against, 200)}" if result.against else ""
    span = duration_text(result.finished_ms - result.started_ms)
    return (
        f'<p><span class="verdict {kind}">{words}</span></p>'
        f'<p class="soft">{iso(result.started_ms)}, took {span}{against}. Times are UTC; windows are '
        f"{duration_text(result.window_s * 1000)} wide.</p>"
    )


def _cards(result: AuditResult) -> str:
    def total(table: str, column: str) -> int:
        found = result.tables.get(table)
        return sum(value or 0 for value in found.column(column).to_pylist()) if found is not None else 0

    topics = result.tables.get("topics")
    cards = [
        ("messages", f"{result.rows:,}"),
        ("topics", f"{topics.num_rows if topics is not None else 0:,}"),
        ("queues", f"{total('topics', 'queues'):,}"),
        ("stored", size_text(total("topics", "bytes"))),
        ("missing", f"{total('queues', 'missing'):,}"),
        ("stored too often", f"{total('duplicate_totals', 'extra'):,}"),
        ("waiting for groups", f"{total('groups', 'waiting'):,}"),
        ("dead letters", f"{total('dead_letter_totals', 'rows'):,}"),
    ]
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{value}</b><span>{name}</span></div>' for name, value in cards)
        + "</div>"
    )


def _sections(result: AuditResult) -> Iterable[tuple[str, str, str]]:
    tables = result.tables
    plots = report_plots
    yield "findings", "Findings", _findings(result)
    yield "topics", "Topics", _table(result, "topics", _TOPICS) + plots.queue_bars(_rows(tables, "queues"))
    yield "produced", "Produced over time", plots.produced(_rows(tables, "produced"), result.window_s)
    yield (
        "groups",
        "Produced and consumed",
        _table(result, "groups", _GROUPS)
        + plots.consumed(_rows(tables, "consumed"), result.window_s)
        + _titled("Between two looks at the groups", _table(result, "rates", _RATES)),
    )
    yield (
        "latency",
        "Latency from birth",
        _table(result, "latency", _LATENCY)
        + plots.latency(_rows(tables, "latency_windows"), result.window_s)
        + plots.latency_histogram(_rows(tables, "latency_histogram")),
    )
    yield "dead_letters", "Dead letters", _dead_letters(result)
    yield "gaps", "Gaps", _table(result, "gaps", _GAPS)
    yield "duplicates", "Duplicates", _table(result, "duplicates", _DUPLICATES)
    yield "disorder", "Out of order", _table(result, "disorder", _DISORDER, _disorder_row)
    yield (
        "keys",
        "Keys",
        _table(result, "keys", _KEYS) + plots.hot_keys(_rows(tables, "hot_keys")),
    )
    yield (
        "compared",
        "Compared with the other source",
        _table(result, "compared", _COMPARED)
        + _titled("Queues of which nothing was compared", _table(result, "not_compared", _NOT_COMPARED))
        + _titled("Differences", _table(result, "differences", _DIFFERENCES)),
    )
    yield "queues", "Queues", _table(result, "queues", _QUEUES)


# -- tables ------------------------------------------------------------------------------------------------------

_PLACE: tuple[Column, ...] = (("Topic", "topic", "w"), ("Broker", "broker", "w"), ("Queue", "queue_id", "n"))
_TOPICS: tuple[Column, ...] = (
    ("Topic", "topic", "w"),
    ("Queues", "queues", "n"),
    ("Messages", "rows", "n"),
    ("Size", "bytes", "b"),
    ("First stored", "first_time", "t"),
    ("Last stored", "last_time", "t"),
    ("Largest queue / mean", "skew", "f"),
)
_GROUPS: tuple[Column, ...] = (
    ("Topic", "topic", "w"),
    ("Group", "group", "w"),
    ("Produced", "produced", "n"),
    ("Consumed", "consumed", "n"),
    ("Produced / consumed", "ratio", "f"),
    ("Waiting", "waiting", "n"),
    ("Expired unread", "expired", "n"),
    ("Oldest waiting", "oldest_waiting", "t"),
)
_RATES: tuple[Column, ...] = (
    ("Topic", "topic", "w"),
    ("Group", "group", "w"),
    ("From", "from_time", "t"),
    ("To", "to_time", "t"),
    ("Produced", "produced", "n"),
    ("Consumed", "consumed", "n"),
    ("Produced / consumed", "ratio", "f"),
    ("In/s", "produced_per_s", "f"),
    ("Out/s", "consumed_per_s", "f"),
)
_LATENCY: tuple[Column, ...] = (
    ("Topic", "topic", "w"),
    ("Until", "stage", "w"),
    ("Messages", "rows", "n"),
    ("50 %", "p50_ms", "d"),
    ("90 %", "p90_ms", "d"),
    ("99 %", "p99_ms", "d"),
    ("99.9 %", "p999_ms", "d"),
    ("Longest", "max_ms", "d"),
    ("Before birth", "negative", "n"),
)
_DEAD: tuple[Column, ...] = (
    ("Group", "group", "w"),
    ("From topic", "origin_topic", "w"),
    ("Reason", "reason", "w"),
    ("Tries", "tries", "n"),
    ("Messages", "rows", "n"),
    ("First", "first_time", "t"),
    ("Last", "last_time", "t"),
    ("Last id", "last_id", "w"),
)
_GAPS: tuple[Column, ...] = (
    *_PLACE,
    ("From offset", "first_offset", "n"),
    ("To offset", "last_offset", "n"),
    ("Missing", "missing", "n"),
    ("Stored after", "before_time", "t"),
    ("Stored before", "after_time", "t"),
    ("Why", "reason", "w"),
)
_DUPLICATES: tuple[Column, ...] = (
    ("By", "kind", "w"),
    ("Topic", "topic", "w"),
    ("Id or keys", "value", "w"),
    ("Copies", "copies", "n"),
    ("First", "first_time", "t"),
    ("Last", "last_time", "t"),
    ("First at", "first_place", "w"),
    ("Last at", "last_place", "w"),
)
_DISORDER: tuple[Column, ...] = (
    ("By", "kind", "w"),
    *_PLACE,
    ("Key", "key", "w"),
    ("Offset", "queue_offset", "n"),
    ("Is", "value", "w"),
    ("Offset before", "previous_offset", "n"),
    ("Was", "previous_value", "w"),
)
_KEYS: tuple[Column, ...] = (
    ("Topic", "topic", "w"),
    ("Keys", "keys", "n"),
    ("In several queues", "in_several_queues", "n"),
    ("Most messages of one", "most_rows", "n"),
    ("Messages with keys", "rows", "n"),
)
_COMPARED: tuple[Column, ...] = (
    *_PLACE,
    ("From offset", "from_offset", "n"),
    ("To offset", "to_offset", "n"),
    ("Rows here", "left_rows", "n"),
    ("Rows there", "right_rows", "n"),
    ("Parts", "buckets", "n"),
    ("That differ", "different_buckets", "n"),
)
_NOT_COMPARED: tuple[Column, ...] = (
    *_PLACE,
    ("Messages in", "there", "w"),
    ("Here from", "left_first", "n"),
    ("Here to", "left_end", "n"),
    ("There from", "right_first", "n"),
    ("There to", "right_end", "n"),
)
_DIFFERENCES: tuple[Column, ...] = (
    *_PLACE,
    ("Offset", "queue_offset", "n"),
    ("Difference", "difference", "w"),
    ("Columns", "altered", "w"),
    ("Message id", "message_id", "w"),
    ("Stored", "store_time", "t"),
)
_QUEUES: tuple[Column, ...] = (
    *_PLACE,
    ("Expected from", "expected_first", "n"),
    ("Expected to", "expected_end", "n"),
    ("Messages", "rows", "n"),
    ("Size", "bytes", "b"),
    ("Missing", "missing", "n"),
    ("Repeated", "repeated", "n"),
    ("Clock went back", "backwards", "n"),
)
_NUMBERS = frozenset("nbfsd")


def _rows(tables: Mapping[str, pa.Table], name: str) -> list[dict[str, Any]]:
    table = tables.get(name)
    return table.to_pylist() if table is not None else []


def _table(
    result: AuditResult, name: str, columns: Sequence[Column], change: Callable[[Row], Row] | None = None
) -> str:
    """A table of the result, cut; empty if it has no rows."""
    table = result.tables.get(name)
    if table is None or not table.num_rows:
        return ""
    rows: list[Row] = table.slice(0, ROWS).to_pylist()
    rows = [change(row) for row in rows] if change is not None else rows
    more = result.totals.get(name, table.num_rows) - len(rows)
    note = f'<p class="soft">and {more:,} more: see {name}.parquet</p>' if more > 0 else ""
    return html_table(columns, rows) + note


def html_table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Rows as a table that scrolls by itself on a narrow screen."""
    head = "".join(f'<th class="{_class(kind)}">{shown(title)}</th>' for title, _, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{_class(kind)}">{cell(row.get(key), kind)}</td>' for _, key, kind in columns)
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(kind: str) -> str:
    return "n" if kind in _NUMBERS else kind


def cell(value: Any, kind: str) -> str:
    """One value for people, escaped."""
    if value is None or value == "":
        return "-"
    if kind == "n":
        return f"{value:,}"
    if kind == "f":
        return f"{value:,.2f}"
    if kind == "b":
        return size_text(value)
    if kind == "d":
        return duration_text(value) if value >= 0 else f"-{duration_text(-value)}"
    if kind == "t":
        return f"{_utc(value):%Y-%m-%d %H:%M:%S}"
    return shown(value, 200)


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC) if value.tzinfo is not None else value


def _disorder_row(row: Row) -> Row:
    """Times are milliseconds there, because a sequence is a number as well."""
    if row["kind"] == "sequence":
        return row
    return {**row, "value": iso(row["value"]), "previous_value": iso(row["previous_value"])}


def _findings(result: AuditResult) -> str:
    if not result.findings:
        return "<p>Nothing to report.</p>"
    lines = []
    for item in result.findings:
        kind, word = ("bad", "problem") if item.is_problem else ("note", "note")
        lines.append(
            f'<tr><td class="t"><span class="mark {kind}">{word}</span></td><td class="t">{shown(item.kind)}</td>'
            f'<td class="w">{shown(item.text, 400)}</td><td class="n">{item.count:,}</td></tr>'
        )
    head = '<th></th><th>Kind</th><th>What</th><th class="n">Count</th>'
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _dead_letters(result: AuditResult) -> str:
    """The most frequent ones are all that is kept: no file has the others."""
    table = result.tables.get("dead_letters")
    rows = table.to_pylist() if table is not None else []
    if not rows:
        return ""
    more = result.totals.get("dead_letters", len(rows)) - len(rows)
    note = f'<p class="soft">and {more:,} rarer ones: see dead_letter_totals.parquet</p>' if more > 0 else ""
    return html_table(_DEAD, rows) + note


def _titled(title: str, body: str) -> str:
    return f"<h3>{shown(title)}</h3>{body}" if body else ""


def size_text(count: int) -> str:
    """Bytes in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:,.0f} B" if unit == "B" else f"{value:.3g} {unit}"
