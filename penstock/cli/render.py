"""How the commands show what they found: tables for people, JSON for programs.

Rule: standard output carries the outcome, standard error carries progress (only on a terminal) and complaints.
Text goes into rich as `Text`, never as markup, after `escaping.printable`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from penstock.cli.escaping import printable
from penstock.store.inspection import Issue, StoreStats, VerifyReport

WIDE = 110
ISSUES_SHOWN = 50
Update = Callable[[int, int], None]


class OutputConsole(Console):
    """Standard output. A closed pipe is told like any other, so that one place decides what it means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    return OutputConsole(highlight=False, markup=False, emoji=False)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """ASCII only, so that no terminal acts on what a message contains."""
    click.echo(json.dumps(value, indent=indent, default=str))


@contextmanager
def progress_bar(title: str) -> Iterator[Update]:
    """A bar on standard error for work that is told as (bytes done, bytes in all); nothing off a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# -- values ------------------------------------------------------------------------------------------------------


def size_text(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def count_text(count: int, noun: str) -> str:
    """A number of things: `1 file`, `2,000 entries`."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def rate_text(count: int, duration_ms: int) -> str:
    """Megabytes (10^6) per second."""
    return f"{count / max(duration_ms, 1) / 1000:,.1f} MB/s"


def time_text(timestamp_ms: int) -> str:
    """A store time as ISO 8601 in UTC with milliseconds; a number no calendar has stays a number."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without frames; `right` names the columns of numbers."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def state_text(clean: bool, in_use: bool) -> str:
    if in_use:
        return "in use by a broker"
    return "closed cleanly" if clean else "not closed cleanly"


# -- verify ------------------------------------------------------------------------------------------------------


def show_verify(console: Console, report: VerifyReport) -> None:
    """Totals, what was found, and a verdict in the last line."""
    log, queues, index, sizes = report.log, report.queues, report.index, report.sizes
    table = plain_table("Part", "Files", "Compared", "Wrong", right=("Compared", "Wrong"))
    segments = f"{count_text(log.segments, 'segment')} of {size_text(sizes.segment_size_bytes)}"
    table.add_row("log", segments, count_text(log.records, "record"), f"{log.damaged_records:,}")
    shape = f"{sizes.queue_file_entries:,} entries a file"
    files = f"{count_text(queues.queues, 'queue')} of {count_text(queues.topics, 'topic')}, {shape}"
    table.add_row("queues", files, count_text(queues.entries, "entry"), f"{queues.wrong_entries:,}")
    compared = count_text(index.compared, "entry") if index.checked else "not checked"
    shape = f" of {sizes.index_slots:,} slots, {sizes.index_entries:,} entries" if index.checked else ""
    wrong = index.wrong_entries + index.wrong_slots
    table.add_row(
        "index", f"{count_text(index.files, 'file')}{shape if index.files else ''}", compared, f"{wrong:,}"
    )
    console.print(Text(printable(report.path), style="bold"))
    console.print()
    console.print(table)
    console.print()
    state = state_text(report.clean, report.in_use)
    console.print(Text(f"log      {log.start:,} to {log.end:,}, {size_text(log.end - log.start)}, {state}"))
    console.print(Text(f"stored   {time_text(log.first_timestamp)} to {time_text(log.last_timestamp)}"))
    records = f"{log.records * 1000 // max(report.duration_ms, 1):,} records/s"
    rate = f"{rate_text(log.bytes, report.duration_ms)}, {records}"
    console.print(Text(f"read     in {report.duration_ms / 1000:.3f} s: {rate} (hot modules: {report.form})"))
    if report.issues:
        console.print()
        show_issues(console, report.issues, report.issues_total)
    console.print()
    notes = report.issues_total - report.damage_total
    if report.sound:
        console.print(Text(f"sound{_with_notes(notes)}", style="bold green"))
    else:
        places = count_text(report.damage_total, "damaged place")
        console.print(Text(f"DAMAGED: {places}{_with_notes(notes)}", style="bold red"))


def _with_notes(notes: int) -> str:
    return f", {count_text(notes, 'note')}" if notes else ""


def show_issues(console: Console, issues: Sequence[Issue], total: int) -> None:
    """Findings with their places; on a narrow terminal the file goes below its finding."""
    wide = console.width >= WIDE
    columns = ("", "Position", "Length", "What", *(("File",) if wide else ()))
    table = plain_table(*columns, right=("Position", "Length"))
    for issue in issues[:ISSUES_SHOWN]:
        mark = Text("damage", style="red") if issue.damage else Text("note", style="dim")
        position = f"{issue.position:,}" if issue.position >= 0 else "-"
        length = f"{issue.length:,}" if issue.length else "-"
        what = Text(printable(f"{issue.kind}: {issue.detail}", 400))
        place = Text(_place_text(issue), style="dim")
        if wide:
            table.add_row(mark, position, length, what, place)
        else:
            table.add_row(mark, position, length, Text("\n").join([what, place]) if place else what)
    console.print(table)
    if total > ISSUES_SHOWN:
        console.print(Text(f"and {total - ISSUES_SHOWN:,} more: see --json", style="dim"))


def _place_text(issue: Issue) -> str:
    at = f" byte {issue.file_position:,}" if issue.file_position >= 0 else ""
    return printable(f"{issue.path}{at}") if issue.path else ""


# -- stats -------------------------------------------------------------------------------------------------------


def show_stats(console: Console, stats: StoreStats, *, per_queue: bool) -> None:
    """The store in a few lines, its files, and its topics, the largest first."""
    log, points = stats.log, stats.checkpoint
    console.print(Text(printable(stats.path), style="bold"))
    console.print()
    extent = f"{size_text(log.end - log.start)} in {count_text(log.segments, 'segment')}"
    about = "in the log" if stats.exact else "by queue entries; --exact reads the log"
    lines = [
        ("messages", f"{stats.messages:,} ({about})"),
        ("state", f"{state_text(stats.clean, stats.in_use)} (hot modules: {stats.form})"),
        ("log", f"{log.start:,} to {log.end:,}, {extent}"),
        ("stored", f"{time_text(log.first_timestamp)} to {time_text(log.last_timestamp)}"),
        ("index", count_text(stats.index_entries, "entry")),
        (
            "checkpoint",
            f"log {time_text(points.physic_timestamp)}, queues {time_text(points.logics_timestamp)}",
        ),
        ("disk", f"{stats.disk_used_percent} % used, {size_text(stats.disk_available_bytes)} free"),
    ]
    for name, value in lines:
        console.print(Text(f"{name:<12}{value}"))
    files = plain_table("Files", "Number", "Size", "Written", right=("Number", "Size", "Written"))
    for kind, entry in stats.files.items():
        row = (f"{entry.files:,}", size_text(entry.size_bytes), size_text(entry.written_bytes))
        files.add_row(Text(printable(kind)), *row)
    console.print()
    console.print(files)
    console.print()
    console.print(_queue_table(stats) if per_queue else _topic_table(stats))


def _name(topic: str) -> Text:
    """A topic in one line; RocketMQ allows 255 characters."""
    return Text(printable(topic), no_wrap=True, overflow="ellipsis")


def _topic_table(stats: StoreStats) -> Table:
    topics: dict[str, list[int]] = {}
    for queue in stats.queues:
        totals = topics.setdefault(queue.topic, [0, 0, 0])
        totals[0] += 1
        totals[1] += queue.messages
        totals[2] += queue.bytes
    table = plain_table("Topic", "Queues", "Messages", *(("Size",) if stats.exact else ()))
    for column in table.columns[1:]:
        column.justify = "right"
    for topic, (queues, messages, size) in sorted(topics.items(), key=lambda item: (-item[1][1], item[0])):
        extra = (size_text(size),) if stats.exact else ()
        table.add_row(_name(topic), f"{queues:,}", f"{messages:,}", *extra)
    return table


def _queue_table(stats: StoreStats) -> Table:
    table = plain_table("Topic", "Queue", "From", "To", "Messages", *(("Size",) if stats.exact else ()))
    for column in table.columns[1:]:
        column.justify = "right"
    for queue in sorted(stats.queues, key=lambda queue: (-queue.messages, queue.topic, queue.queue_id)):
        extra = (size_text(queue.bytes),) if stats.exact else ()
        numbers = (f"{queue.min_offset:,}", f"{queue.max_offset:,}", f"{queue.messages:,}")
        table.add_row(_name(queue.topic), str(queue.queue_id), *numbers, *extra)
    return table
