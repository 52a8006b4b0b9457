"""Messages as rows and as JSON lines.

A table is printed in parts, so that a store of any size can be dumped and the first rows come at once; all
parts have the same column widths. JSON has everything, rows what fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.console import GAP, WIDE, plain_table, print_json, time_text
from penstock.cli.escaping import body_text, printable
from penstock.message import PropertyName, StoredMessage
from penstock.store.inspection import DamagedRange

ROWS_AT_ONCE = 100
KEYS_AND_TAG = (PropertyName.KEYS, PropertyName.TAGS, PropertyName.UNIQ_KEY)
SHOWN_MAX = 240


def message_json(message: StoredMessage) -> dict[str, object]:
    """Everything about a message."""
    body, encoding = body_text(message.body)
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "position": message.physical_offset,
        "size": message.size,
        "message_id": message.message_id,
        "store_time": time_text(message.store_timestamp),
        "store_timestamp": message.store_timestamp,
        "store_host": str(message.store_host),
        "born_timestamp": message.born_timestamp,
        "born_host": str(message.born_host),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "tag": message.tag,
        "keys": message.keys,
        "properties": dict(message.properties),
        "body": body,
        "body_encoding": encoding,
    }


def damage_json(damage: DamagedRange) -> dict[str, object]:
    return {"damaged": True, "position": damage.position, "length": damage.length, "reason": damage.reason}


def print_line(row: StoredMessage | DamagedRange) -> bool:
    """One row as one line of JSON; whether it is damage."""
    if isinstance(row, DamagedRange):
        print_json(damage_json(row), indent=None)
        return True
    print_json(message_json(row), indent=None)
    return False


class MessageTable:
    """A table that grows: each part is printed as it comes, the header once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = False

    def add(self, rows: Iterable[StoredMessage | DamagedRange]) -> int:
        """Print some rows; how many of them are damage."""
        damaged, wide = 0, self._console.width >= WIDE
        table = _table(self._console.width, show_header=not self._begun)
        for row in rows:
            damaged += isinstance(row, DamagedRange)
            table.add_row(*(_damage_cells(row, wide) if isinstance(row, DamagedRange) else _cells(row, wide)))
        self._console.print(table)
        self._begun = True
        return damaged

    def close(self) -> None:
        """Say so if there was nothing."""
        if not self._begun:
            self._console.print(Text("no messages", style="dim"))


def show_messages(console: Console, rows: Iterable[StoredMessage | DamagedRange]) -> int:
    """Print rows in parts; how many of them are damage."""
    table, waiting, damaged = MessageTable(console), iter(rows), 0
    while part := list(islice(waiting, ROWS_AT_ONCE)):
        damaged += table.add(part)
    table.close()
    return damaged


def _table(width: int, *, show_header: bool) -> Table:
    """Two lines a message: what it says, and below it, dimmed, where it is."""
    wide = width >= WIDE
    table = plain_table("Message", "Stored", *(("Tag, keys", "Body") if wide else ("Body; tag, keys",)))
    table.show_header = show_header
    fixed = [26, 24, 24] if wide else [22, 24]
    for column, column_width in zip(
        table.columns, [*fixed, width - sum(fixed) - GAP * len(fixed)], strict=True
    ):
        column.width = max(column_width, 10)
    return table


def _cell(upper: str, lower: str = "", style: str = "") -> Text:
    """Two lines, each cut to the column with an ellipsis."""
    cell = Text(no_wrap=True, overflow="ellipsis")
    return cell.append(upper, style).append(f"\n{lower}", "dim")


def _cells(message: StoredMessage, wide: bool) -> Iterator[Text]:
    name = f"{printable(message.topic, SHOWN_MAX)}/{message.queue_id} @ {message.queue_offset:,}"
    yield _cell(name, f"at {message.physical_offset:,}, {message.size:,} B")
    yield _cell(time_text(message.store_timestamp), f"from {message.born_host}")
    labels = [printable(message.tag, SHOWN_MAX) or "-", _keys(message)]
    if wide:
        yield _cell(*labels)
        yield _cell(_shown_body(message), _other_properties(message))
    else:
        yield _cell(_shown_body(message), "  ".join(filter(None, [*labels, _other_properties(message)])))


def _keys(message: StoredMessage) -> str:
    """The sender's keys; the client's unique one, which is long, only where there is no other."""
    keys = message.properties.get(PropertyName.KEYS) or message.properties.get(PropertyName.UNIQ_KEY, "")
    return printable(keys, SHOWN_MAX)


def _shown_body(message: StoredMessage) -> str:
    body, encoding = body_text(message.body)
    shown = printable(body, SHOWN_MAX) or "(empty)"
    return shown if encoding == "utf-8" else f"base64:{shown}"


def _other_properties(message: StoredMessage) -> str:
    others = (f"{name}={value}" for name, value in message.properties.items() if name not in KEYS_AND_TAG)
    return printable(" ".join(others), SHOWN_MAX)


def _damage_cells(damage: DamagedRange, wide: bool) -> Iterator[Text]:
    place = f"at {damage.position:,}, {damage.length:,} B" if damage.position >= 0 else ""
    yield _cell("damaged", place, "red")
    yield Text("-")
    if wide:
        yield Text("-")
    yield _cell(printable(damage.reason), style="red")
