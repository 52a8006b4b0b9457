"""Which plots a report has, and how they are made out of the tables of an audit.

Rule: a plot shows at most SERIES lines; more would be noise, so the largest are drawn and the rest is left to the
tables. A window without messages is a zero where messages are counted, and a break where they are timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.spark.pipelines.audit_findings import duration_text
from penstock.spark.pipelines.report_charts import Point, bar_list, histogram, line_chart, shown, stack_chart

SERIES = 6
_MOMENTS_MAX = 2_000
Row = Mapping[str, Any]


def _seconds(value: datetime) -> float:
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()


def _moments(rows: Iterable[Row], width_s: int) -> list[float]:
    """Every window from the first to the last, also those without a row."""
    found = sorted({_seconds(row["window"]) for row in rows})
    if not found or (found[-1] - found[0]) / width_s > _MOMENTS_MAX:
        return found
    return [found[0] + i * width_s for i in range(round((found[-1] - found[0]) / width_s) + 1)]


def _by(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in names), []).append(row)
    return groups


def _points(rows: Iterable[Row], column: str, moments: Sequence[float], missing: float | None) -> list[Point]:
    values = {_seconds(row["window"]): row[column] for row in rows}
    return [Point(moment, values.get(moment, missing)) for moment in moments]


def produced(rows: Sequence[Row], width_s: int) -> str:
    """Messages per window, a line per topic."""
    moments = _moments(rows, width_s)
    topics = sorted(_by(rows, "topic").items(), key=lambda item: -sum(row["rows"] for row in item[1]))
    series = {name: _points(some, "rows", moments, 0) for (name,), some in topics[:SERIES]}
    return _titled(
        f"Messages per {duration_text(width_s * 1000)}", line_chart("messages", series, width_s=width_s)
    )


def consumed(rows: Sequence[Row], width_s: int) -> str:
    """Per topic and group: of the messages of each window, those consumed by now and those that wait."""
    groups = sorted(
        _by(rows, "topic", "group").items(), key=lambda item: -sum(row["waiting"] for row in item[1])
    )
    parts = []
    for (topic, group), some in groups[:SERIES]:
        moments = _moments(some, width_s)
        series = {
            "consumed by now": _points(some, "consumed", moments, 0),
            "waiting": _points(some, "waiting", moments, 0),
        }
        title = f"{topic} for {group}, by time of storing"
        parts.append(_titled(title, stack_chart(title, series, width_s=width_s)))
    return "".join(parts)


def latency(rows: Sequence[Row], width_s: int) -> str:
    """Median and 99th percentile over time, for each topic and stage."""
    groups = sorted(
        _by(rows, "topic", "stage").items(), key=lambda item: -sum(row["rows"] for row in item[1])
    )
    parts = []
    for (topic, stage), some in groups[:SERIES]:
        moments = _moments(some, width_s)
        series = {
            "50 %": _points(some, "p50_ms", moments, None),
            "99 %": _points(some, "p99_ms", moments, None),
        }
        title = f"{topic}: birth until {stage}"
        parts.append(_titled(title, line_chart(title, series, text=duration_text, width_s=width_s)))
    return "".join(parts)


def latency_histogram(rows: Sequence[Row]) -> str:
    """How many messages took how long, in powers of two, all topics together per stage."""
    parts = []
    for (stage,), some in sorted(_by(rows, "stage").items()):
        counts: dict[int, int] = {}
        for row in some:
            counts[row["power"]] = counts.get(row["power"], 0) + row["rows"]
        bars = [(_power_text(power), float(counts.get(power, 0))) for power in range(max(counts) + 1)]
        parts.append(
            _titled(
                f"Messages by time until {stage}; each bar reaches to twice its label",
                histogram("messages by latency", bars),
            )
        )
    return "".join(parts)


def _power_text(power: int) -> str:
    """The lower end of a bar: 0, 1, 2, 4, 8 ms and so on."""
    return "<1 ms" if power == 0 else f"{duration_text(2 ** (power - 1))}"


def queue_bars(rows: Sequence[Row]) -> str:
    """Messages per queue of topics with several queues, the most uneven topics first."""
    topics = [(name, some) for (name,), some in _by(rows, "topic").items() if len(some) > 1]
    topics.sort(key=lambda item: -_unevenness(item[1]))
    parts = []
    for name, some in topics[:SERIES]:
        whole = sum(row["rows"] for row in some) or 1
        bars = [
            (
                f"{row['broker']}/{row['queue_id']}",
                float(row["rows"]),
                f"{row['rows']:,} ({row['rows'] / whole:.0%})",
            )
            for row in some[:64]
        ]
        parts.append(_titled(f"Queues of {name}", bar_list(f"messages per queue of {name}", bars)))
    return "".join(parts)


def _unevenness(rows: Sequence[Row]) -> float:
    counts = [row["rows"] for row in rows]
    return max(counts) / (sum(counts) / len(counts)) if sum(counts) else 0.0


def hot_keys(rows: Sequence[Row]) -> str:
    """The most frequent keys of each topic."""
    parts = []
    for (topic,), some in list(_by(rows, "topic").items())[:SERIES]:
        bars = [(row["key"], float(row["rows"]), f"{row['rows']:,} ({row['share']:.1%})") for row in some]
        parts.append(_titled(f"Most frequent keys of {topic}", bar_list(f"keys of {topic}", bars, colour=1)))
    return "".join(parts)


def _titled(title: str, body: str) -> str:
    return f"<h3>{shown(title)}</h3>{body}" if body else ""
