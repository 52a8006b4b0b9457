"""The life of one message as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from penstock.cli.console import name_text, plain_table, time_text
from penstock.cli.escaping import printable
from penstock.client.trace_records import ConsumeCode, MessageKind, TraceKind, TraceRecord

_WHAT = {
    TraceKind.PUB: "sent",
    TraceKind.SUB_BEFORE: "taken",
    TraceKind.SUB_AFTER: "done",
    TraceKind.END_TRANSACTION: "transaction",
    TraceKind.RECALL: "recalled",
}


def record_json(record: TraceRecord) -> dict[str, object]:
    """Everything that the record says."""
    return {**asdict(record), "kind": str(record.kind), "time": time_text(record.time_ms)}


def show_trace(console: Console, records: Sequence[TraceRecord]) -> None:
    """A line for each thing that happened."""
    if not records:
        console.print(
            Text(
                "no traces: only clients with trace=True (enableMsgTrace) write them, under the producer's id",
                style="dim",
            )
        )
        return
    table = plain_table("Time", "What", "Group", "Took", "Details", right=("Took",))
    for record in records:
        table.add_row(
            time_text(record.time_ms),
            _what(record),
            name_text(record.group),
            "-" if record.kind is TraceKind.SUB_BEFORE else f"{record.cost_ms / 1000:,.3f} s",
            Text(printable(_details(record), 400)),
        )
    console.print(table)


def _what(record: TraceRecord) -> Text:
    if record.is_success:
        return Text(_WHAT[record.kind])
    return Text("failed" if record.kind is TraceKind.SUB_AFTER else f"not {_WHAT[record.kind]}", style="red")


def _details(record: TraceRecord) -> str:
    match record.kind:
        case TraceKind.PUB:
            kind = _name(MessageKind, record.message_kind)
            told = [f"to {record.topic}", f"at {record.store_host}", f"{record.body_size:,} bytes", kind]
            told += [f"tag {record.tag}"] if record.tag else []
            told += [f"keys {record.keys}"] if record.keys else []
            return ", ".join(told)
        case TraceKind.SUB_BEFORE:
            return f"try {record.tries + 1}, delivery {record.request_id}"
        case TraceKind.SUB_AFTER:
            return f"{_name(ConsumeCode, record.code)}, delivery {record.request_id}"
        case TraceKind.END_TRANSACTION:
            return f"{record.state}, transaction {record.transaction_id}"
        case TraceKind.RECALL:
            return f"from {record.topic}"


def _name(kinds: type[MessageKind] | type[ConsumeCode], number: int) -> str:
    """Numbers come from whoever wrote the trace."""
    try:
        return kinds(number).name.lower().replace("_", " ")
    except ValueError:
        return f"number {number}"
