"""What the commands of `penstock store` found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.console import WIDE, count_text, name_text, plain_table, rate_text, size_text, time_text
from penstock.cli.escaping import printable
from penstock.store.inspection import Issue, StoreStats, VerifyReport

ISSUES_SHOWN = 50


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
        table.add_row(name_text(topic), f"{queues:,}", f"{messages:,}", *extra)
    return table


def _queue_table(stats: StoreStats) -> Table:
    table = plain_table("Topic", "Queue", "From", "To", "Messages", *(("Size",) if stats.exact else ()))
    for column in table.columns[1:]:
        column.justify = "right"
    for queue in sorted(stats.queues, key=lambda queue: (-queue.messages, queue.topic, queue.queue_id)):
        extra = (size_text(queue.bytes),) if stats.exact else ()
        numbers = (f"{queue.min_offset:,}", f"{queue.max_offset:,}", f"{queue.messages:,}")
        table.add_row(name_text(queue.topic), str(queue.queue_id), *numbers, *extra)
    return table
