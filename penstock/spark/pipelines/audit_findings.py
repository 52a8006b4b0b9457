"""What the tables of an audit mean: from numbers to sentences, problems first.

Rule: a finding counts everything, also what a table was cut of, and says in one sentence what was found and what it
may mean. Plain code on small tables, on the driver; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.spark.pipelines.audit_result import NOTE, PROBLEM, Finding, Limits

if TYPE_CHECKING:
    import pyarrow as pa

Rows = list[dict[str, Any]]
# A key with fewer messages is not hot, whatever its share: in a small topic every key has a large one.
HOT_ROWS_MIN = 100


def findings(tables: Mapping[str, pa.Table], limits: Limits) -> tuple[Finding, ...]:
    """All findings, problems first, large ones first."""
    rows = {name: table.to_pylist() for name, table in tables.items() if name in _TABLES}
    found = [
        finding
        for check in (_queues, _duplicates, _disorder, _groups, _dead_letters, _latency, _keys, _compared)
        for finding in check(rows, limits)
    ]
    return tuple(sorted(found, key=lambda item: (not item.is_problem, item.kind, -item.count, item.topic)))


_TABLES = frozenset(
    {
        "compared",
        "dead_letter_totals",
        "dead_letters",
        "difference_totals",
        "disorder_totals",
        "duplicate_totals",
        "groups",
        "hot_keys",
        "keys",
        "latency",
        "not_compared",
        "queues",
        "topics",
    }
)


def _severity(kind: str, limits: Limits) -> str:
    return NOTE if kind in limits.allow else PROBLEM


def _over(value: float, limit: float | None) -> str:
    return PROBLEM if limit is not None and value > limit else NOTE


def _by_topic(rows: Rows, name: str) -> Iterator[tuple[str, int, Rows]]:
    """Sum of a column per topic, with the rows that are part of it."""
    topics: dict[str, Rows] = {}
    for row in rows:
        if row[name]:
            topics.setdefault(row["topic"], []).append(row)
    for topic, some in sorted(topics.items()):
        yield topic, sum(row[name] for row in some), some


def _queues(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    queues = tables.get("queues", [])
    for topic, missing, some in _by_topic(queues, "missing"):
        gaps = sum(row["gaps"] for row in some)
        yield Finding(
            "gaps",
            _severity("gaps", limits),
            topic,
            missing,
            f"{_count(missing, 'offset')} of {topic} {_are(missing)} missing, in {_count(gaps, 'gap')} of "
            f"{_count(len(some), 'queue')}",
            "gaps",
        )
    for topic, repeated, some in _by_topic(queues, "repeated"):
        yield Finding(
            "repeated",
            _severity("repeated", limits),
            topic,
            repeated,
            f"{_count(repeated, 'row')} of {topic} {_are(repeated)} there again under an offset that was there "
            f"before, in {_count(len(some), 'queue')}",
            "queues",
        )
    for topic, backwards, some in _by_topic(queues, "backwards"):
        yield Finding(
            "backwards",
            _severity("backwards", limits),
            topic,
            backwards,
            f"{_count(backwards, 'message')} of {topic} {_has(backwards)} an earlier store time than the one in "
            f"front of {_them(backwards)}, in {_count(len(some), 'queue')}: the broker's clock went back",
            "disorder",
        )
    for row in tables.get("topics", []):
        if row["queues"] > 1 and row["skew"] is not None and row["skew"] >= min(2.0, limits.skew or 2.0):
            yield Finding(
                "skew",
                _over(row["skew"], limits.skew),
                row["topic"],
                row["most_rows"],
                f"the largest queue of {row['topic']} has {row['skew']:.1f} times the mean of its "
                f"{row['queues']} queues",
                "queues",
            )


def _duplicates(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    for row in tables.get("duplicate_totals", []):
        kind = "duplicate-ids" if row["kind"] == "id" else "duplicate-keys"
        what = "message id" if row["kind"] == "id" else "key"
        how = "were stored" if row["kind"] == "id" else "were sent with the same body"
        if row["values"] == 1:
            how = how.replace("were", "was")
        yield Finding(
            kind,
            _severity(kind, limits),
            row["topic"],
            row["extra"],
            f"{_count(row['values'], what)} of {row['topic']} {how} more than once: "
            f"{_count(row['extra'], 'message')} too many",
            "duplicates",
        )


def _disorder(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    for row in tables.get("disorder_totals", []):
        rows, topic, keys = row["rows"], row["topic"], _count(row["keys"], "key")
        if row["kind"] == "sequence":
            what = "came after one of the same key with a higher sequence"
            text = f"{_count(rows, 'message')} of {topic} {what}, {keys}"
            yield Finding("order", _severity("order", limits), topic, rows, text, "disorder")
        elif row["kind"] == "born_time":
            text = (
                f"{_count(rows, 'message')} of {topic} {_are(rows)} older than the one of the same key in front of "
                f"{_them(rows)}, {keys}, by at most {duration_text(row['worst'])}"
            )
            yield Finding("late", NOTE, topic, rows, text, "disorder")


def _groups(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    for row in tables.get("groups", []):
        topic, group = row["topic"], row["group"]
        if row["expired"]:
            yield Finding(
                "expired",
                _severity("expired", limits),
                topic,
                row["expired"],
                f"{_count(row['expired'], 'message')} of {topic} expired before group {group} took "
                f"{_them(row['expired'])}",
                "groups",
            )
        if row["waiting"]:
            text = f"{_count(row['waiting'], 'message')} of {topic} {_wait(row['waiting'])} for group {group}"
            yield Finding("lag", _over(row["waiting"], limits.lag), topic, row["waiting"], text, "groups")


def _dead_letters(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    for row in tables.get("dead_letters", []):
        origin = f" of {row['origin_topic']}" if row["origin_topic"] else ""
        yield Finding(
            "dead-letters",
            _severity("dead-letters", limits),
            row["origin_topic"],
            row["rows"],
            f"group {row['group']} gave up {_count(row['rows'], 'message')}{origin} after "
            f"{_count(row['tries'], 'try')}: {row['reason']}",
            "dead_letters",
        )
    totals, shown = tables.get("dead_letter_totals", []), tables.get("dead_letters", [])
    rest, kinds = _all(totals, "rows") - _all(shown, "rows"), _all(totals, "kinds") - len(shown)
    if kinds > 0:
        text = f"{_count(rest, 'message')} more {_were(rest)} given up, for {_count(kinds, 'rarer reason')}"
        yield Finding("dead-letters", _severity("dead-letters", limits), "", rest, text, "dead_letter_totals")


def _all(rows: Rows, name: str) -> int:
    return sum(row[name] for row in rows)


def _latency(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    for row in tables.get("latency", []):
        topic, stage = row["topic"], row["stage"]
        if stage == "stored" and row["p99_ms"] is not None and limits.latency_ms is not None:
            text = f"99 % of {topic} {_were_stored(row['p99_ms'])}, limit {duration_text(limits.latency_ms)}"
            if row["p99_ms"] > limits.latency_ms:
                yield Finding("latency", PROBLEM, topic, row["rows"], text, "latency")
        if row["negative"]:
            text = (
                f"{_count(row['negative'], 'message')} of {topic} {_were(row['negative'])} {stage} before birth: "
                "the clocks of a client and of the broker differ"
            )
            yield Finding("clock", NOTE, topic, row["negative"], text, "latency")


def _were_stored(p99_ms: int) -> str:
    return f"were stored within {duration_text(p99_ms)} only"


def _keys(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    share = limits.hot_key if limits.hot_key is not None else 0.2
    for row in tables.get("hot_keys", []):
        if row["share"] > share and row["rows"] >= HOT_ROWS_MIN:
            text = f"key {row['key']} has {row['share']:.0%} of the messages of {row['topic']} that have keys"
            severity = _over(row["share"], limits.hot_key)
            yield Finding("hot-keys", severity, row["topic"], row["rows"], text, "hot_keys")
    for row in tables.get("keys", []):
        if row["in_several_queues"]:
            many = row["in_several_queues"]
            what = "messages in several queues, where no order holds"
            text = f"{_count(many, 'key')} of {row['topic']} {_has(many)} {what}"
            yield Finding("spread-keys", NOTE, row["topic"], many, text, "keys")


def _compared(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    yield from _not_compared(tables, limits)
    for row in tables.get("difference_totals", []):
        kind = {"missing left": "missing", "missing right": "missing", "altered": "altered"}.get(
            row["difference"], "repeated"
        )
        side = {"left": "the first source", "right": "the second source"}.get(
            row["difference"].split()[-1], ""
        )
        what = {
            "missing": f"missing in {side}",
            "altered": "not the same",
            "repeated": f"repeated in {side}",
        }[kind]
        text = f"{_count(row['rows'], 'row')} of {row['topic']} {_are(row['rows'])} {what}"
        yield Finding(kind, _severity(kind, limits), row["topic"], row["rows"], text, "differences")


def _not_compared(tables: Mapping[str, Rows], limits: Limits) -> Iterator[Finding]:
    """Nothing in common is a problem, because no difference could have been found. Single queues are a note: a log
    expires, and an archive comes later."""
    rest = tables.get("not_compared", [])
    if not rest:
        return
    if not tables.get("compared", []):
        text = (
            f"nothing was compared: {_count(len(rest), 'queue')} with messages, and no offset that is in both "
            "sources; is it the other source that was meant, and has its broker the same name?"
        )
        severity = _severity("not-compared", limits)
        yield Finding("not-compared", severity, "", len(rest), text, "not_compared")
    queues: dict[tuple[str, str], int] = {}
    for row in rest:
        place = row["topic"], row["there"]
        queues[place] = queues.get(place, 0) + 1
    for (topic, there), count in sorted(queues.items()):
        where = {
            "left": f"{_has(count)} messages in the first source only",
            "right": f"{_has(count)} messages in the second source only",
            "both": f"{_has(count)} no offset that is in both sources",
        }[there]
        text = f"{_count(count, 'queue')} of {topic} {where}: not compared"
        yield Finding("one-sided", NOTE, topic, count, text, "not_compared")


# -- words -------------------------------------------------------------------------------------------------------


def _count(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"


def duration_text(ms: float) -> str:
    """A time span in the unit that people would use."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    for limit, unit, name in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86_400:.3g} d"
