"""What `penstock message waiting` shows: messages that wait for their time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.client.admin_results import TimersWaiting

_SPANS = {60: "a minute", 3_600: "an hour", 86_400: "a day"}


def _topics(item: TimersWaiting, topic: str) -> dict[str, int]:
    return {name: count for name, count in sorted(item.topics.items()) if not topic or name == topic}


def waiting_json(found: Iterable[TimersWaiting], topic: str) -> dict[str, object]:
    brokers = [
        {
            "broker": item.broker,
            "topics": _topics(item, topic),
            "within_seconds": {str(seconds): count for seconds, count in sorted(item.ahead.items())},
        }
        for item in found
    ]
    return {"waiting": sum(sum(_topics(item, topic).values()) for item in found), "brokers": brokers}


def show_waiting(console: Console, found: Sequence[TimersWaiting], topic: str) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, name_text, plain_table
    from penstock.cli.escaping import printable

    table = plain_table("Broker", "Topic", "Waiting", right=("Waiting",))
    total = 0
    for item in found:
        for name, count in _topics(item, topic).items():
            table.add_row(name_text(item.broker), name_text(name), f"{count:,}")
            total += count
    if total:
        console.print(table)
        console.print()
    for item in found:
        parts = [
            f"{count:,} within {_SPANS[seconds]}"
            for seconds, count in sorted(item.ahead.items())
            if seconds in _SPANS
        ]
        if any(item.ahead.values()) and not topic:
            console.print(Text(printable(f"broker {item.broker}, all topics: {', '.join(parts)}")))
    console.print(Text(f"{count_text(total, 'message')} waiting"))
