"""Dead letters as tables, lines and JSON. All text that came from outside is made printable first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from rich.console import Console
from rich.text import Text

from penstock.cli.console import WIDE, count_text, name_text, plain_table, time_text
from penstock.cli.escaping import body_text, one_line, printable
from penstock.cli.received import received_json, unpacked
from penstock.client.dead_letters import DeadLetter, DeadLetterSummary
from penstock.client.redriving import Outcome, RedriveResult

ROWS_AT_ONCE = 100
BODY_SHOWN = 160
TOPICS_SHOWN = 3


def in_parts(letters: Iterable[DeadLetter], size: int) -> Iterator[list[DeadLetter]]:
    """So many at a time."""
    waiting = iter(letters)
    while part := list(islice(waiting, size)):
        yield part


# -- by reason ---------------------------------------------------------------------------------------------------


def summary_json(summary: DeadLetterSummary) -> dict[str, object]:
    return {
        "group": summary.group,
        "count": summary.count,
        "redriven": summary.redriven,
        "error": summary.error or None,
        "reasons": [
            {
                "reason": kind.kind,
                "count": kind.count,
                "redriven": kind.redriven,
                "oldest": time_text(kind.oldest_ms),
                "newest": time_text(kind.newest_ms),
                "topics": kind.topics,
                "example": {"id": kind.example_id, "reason": kind.example},
            }
            for kind in summary.kinds
        ],
    }


def show_summaries(console: Console, summaries: Iterable[DeadLetterSummary]) -> None:
    """A table for each group, its reasons by number."""
    found = False
    for summary in summaries:
        if found:
            console.print()
        found = True
        told = f"{printable(summary.group)}: {count_text(summary.count, 'dead letter')}"
        if summary.redriven:
            told += f", {summary.redriven:,} redriven"
        console.print(Text(told, style="bold"))
        wide = console.width >= WIDE
        columns = ("Count", "Redriven", "Reason", "From", *(("Oldest",) if wide else ()), "Newest")
        table = plain_table(*columns, right=("Count", "Redriven"))
        for kind in summary.kinds:
            topics = sorted(kind.topics, key=lambda topic: (-kind.topics[topic], topic))
            more = f" and {len(topics) - TOPICS_SHOWN} more" if len(topics) > TOPICS_SHOWN else ""
            table.add_row(
                f"{kind.count:,}",
                f"{kind.redriven:,}" if kind.redriven else "-",
                Text(printable(kind.kind)),
                name_text(", ".join(topics[:TOPICS_SHOWN]) + more),
                *((time_text(kind.oldest_ms),) if wide else ()),
                time_text(kind.newest_ms),
            )
        console.print(table)
        if summary.error:
            console.print(Text(f"not all could be read: {one_line(summary.error)}", style="red"))
    if not found:
        console.print(Text("no dead letters", style="dim"))


# -- one by one --------------------------------------------------------------------------------------------------


def letter_json(letter: DeadLetter) -> dict[str, object]:
    """Everything about a dead letter."""
    return {
        **received_json(letter.message),
        "group": letter.group,
        "letter_id": letter.letter_id,
        "reason": letter.reason,
        "reason_kind": letter.kind,
        "tries": letter.message.tries,
        "origin_topic": letter.origin_topic,
        "origin_id": letter.origin_id,
        "origin": letter.origin,
        "first_failed": time_text(letter.first_failed_ms),
        "died": time_text(letter.died_ms),
        "redriven": None
        if letter.redriven is None
        else {
            "topic": letter.redriven.topic,
            "message_id": letter.redriven.msg_id,
            "time": time_text(letter.redriven.time_ms),
        },
    }


def show_letters(console: Console, letters: Iterable[DeadLetter]) -> int:
    """Rows as they come, in parts; how many there were."""
    count = 0
    for part in in_parts(letters, ROWS_AT_ONCE):
        wide = console.width >= WIDE
        table = plain_table(
            *(
                ("Id", "Died", "From, keys", "Reason; body")
                if wide
                else ("Id; from, keys", "Died; reason; body")
            )
        )
        table.show_header = not count
        count += len(part)
        for letter in part:
            table.add_row(*_cells(letter, wide=wide))
        console.print(table)
    if not count:
        console.print(Text("no dead letters", style="dim"))
    return count


def _cells(letter: DeadLetter, *, wide: bool) -> tuple[Text, ...]:
    message = letter.message
    state = f"redriven {time_text(letter.redriven.time_ms)}" if letter.redriven is not None else ""
    keys = printable(" ".join(message.keys), BODY_SHOWN) or "-"
    died, tries = time_text(letter.died_ms), count_text(message.tries, "try")
    topic = printable(letter.origin_topic) or "-"
    why = (printable(letter.reason, BODY_SHOWN), body_preview(letter))
    if wide:
        return _cell(letter.letter_id, state), _cell(died, tries), _cell(topic, keys), _cell(*why)
    return _cell(letter.letter_id, f"{topic}  {keys}", state), _cell(f"{died}  {tries}", *why)


def _cell(first: str, *others: str) -> Text:
    return Text(first).append("".join(f"\n{line}" for line in others if line), "dim")


def body_preview(letter: DeadLetter) -> str:
    """The beginning of the body in a line."""
    body = unpacked(letter.message).body
    text, encoding = body_text(body[: 4 * BODY_SHOWN])
    shown = printable(text, BODY_SHOWN) or "(empty)"
    return shown if encoding == "utf-8" else f"base64:{shown}"


# -- results -----------------------------------------------------------------------------------------------------


def result_json(result: RedriveResult) -> dict[str, object]:
    return {
        "id": result.letter.letter_id,
        "message_id": result.letter.message.msg_id,
        "outcome": str(result.outcome),
        "topic": result.topic,
        "copy_id": result.copy_id or None,
        "reason": result.reason or None,
    }


def result_line(result: RedriveResult) -> str:
    """What became of one dead letter, in a line."""
    where = f" to {result.topic}" if result.outcome in (Outcome.SENT, Outcome.WOULD_SEND) else ""
    why = f": {result.reason}" if result.reason else ""
    return one_line(f"{result.outcome:<10} {result.letter.letter_id}{where}{why}")


@dataclass(slots=True)
class Tally:
    """How many ended how."""

    counts: Counter[Outcome] = field(default_factory=Counter)

    def add(self, result: RedriveResult) -> None:
        self.counts[result.outcome] += 1

    @property
    def count(self) -> int:
        return self.counts.total()

    @property
    def failed(self) -> int:
        return self.counts[Outcome.FAILED]

    def line(self) -> str:
        told = [f"{number:,} {outcome}" for outcome in Outcome if (number := self.counts[outcome])]
        return ", ".join(told) or "no dead letters"
