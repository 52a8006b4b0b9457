"""`penstock store verify | dump | stats DIR`: what is in a store directory, found without changing it.

All three open read-only and take no lock, so they may run beside a broker of either kind. What they find out is
`penstock.store.inspection`'s; here options become arguments and outcomes are shown.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.complaints import complain
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import NumberType, SizeType

if TYPE_CHECKING:
    from penstock.message import StoredMessage
    from penstock.store.inspection import DamagedRange
    from penstock.store.sizes import GivenSizes

EXIT_DAMAGE = 1
OFFSET_MAX = (1 << 63) - 1
ENTRIES_MAX = (1 << 31) - 1

_DIRECTORY = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def _sizes(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options by which sizes are given that would else be found in the files."""
    decorators = (
        click.option("--segment-size", type=SizeType(), help="Bytes of a log segment, as in 1G."),
        click.option("--queue-entries", type=NumberType(1, ENTRIES_MAX), help="Entries of a queue file."),
        click.option("--index-slots", type=NumberType(1, ENTRIES_MAX), help="Slots of an index file."),
        click.option("--index-entries", type=NumberType(2, ENTRIES_MAX), help="Entries of an index file."),
    )
    return functools.reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), command)


def _given(
    segment_size: int | None, queue_entries: int | None, index_slots: int | None, index_entries: int | None
) -> GivenSizes:
    from penstock.store.sizes import GivenSizes

    return GivenSizes(segment_size, queue_entries, index_slots, index_entries)


def is_in_use(directory: Path) -> bool:
    """Whether a process holds the directory's lock; asking takes no lock and writes nothing."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK), wanted)
        return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


@click.group(cls=CommandGroup)
def store() -> None:
    """Look into a store directory without changing it.

    DIR is a store of Penstock or of Apache RocketMQ, also one in use. The sizes of its files are found in the
    files; where that fails they can be given.
    """


@store.command()
@_DIRECTORY
@_AS_JSON
@_sizes
def verify(directory: Path, as_json: bool, **sizes: int | None) -> int:
    """Check every record, queue entry and index entry of DIR.

    Ends with 0 if the store is sound, 1 if damage was found, 2 if it cannot be opened.
    """
    from penstock.cli import console, render
    from penstock.store import inspection

    with console.progress_bar("Verifying") as update:
        report = inspection.verify(directory, _given(**sizes), in_use=is_in_use(directory), progress=update)
    if as_json:
        console.print_json(report.to_json())
    else:
        render.show_verify(console.output(), report)
    return 0 if report.sound else EXIT_DAMAGE


@store.command()
@_DIRECTORY
@click.option("--topic", metavar="T", help="Messages of this topic; without it all, as they lie in the log.")
@click.option("--queue", type=NumberType(0, ENTRIES_MAX), help="Only this queue of the topic.")
@click.option(
    "--from",
    "start",
    metavar="OFFSET",
    type=NumberType(0, OFFSET_MAX),
    default=0,
    help="Begin at this queue offset; without --topic, at this position in the log.",
)
@click.option("--max", "limit", type=NumberType(0, OFFSET_MAX), help="Show at most so many messages.")
@_AS_JSON
@_sizes
def dump(
    directory: Path,
    as_json: bool,
    topic: str | None,
    queue: int | None,
    start: int,
    limit: int | None,
    **sizes: int | None,
) -> int:
    """Show the messages of DIR.

    With --json one object per line. Ends with 1 if something in between was damaged.
    """
    from penstock.cli import console, messages

    if queue is not None and topic is None:
        raise click.UsageError("--queue needs --topic", click.get_current_context())
    with closing(_rows(directory, topic, queue, start, _given(**sizes))) as rows:
        if as_json:
            damaged = sum(messages.print_line(row) for row in islice(rows, limit))
        else:
            damaged = messages.show_messages(console.output(), islice(rows, limit))
    if damaged:
        places = console.count_text(damaged, "damaged place")
        complain(f"{places}; see `penstock store verify`")
    return EXIT_DAMAGE if damaged else 0


def _rows(
    directory: Path, topic: str | None, queue: int | None, start: int, given: GivenSizes
) -> Generator[StoredMessage | DamagedRange]:
    from penstock.cli import console
    from penstock.store import inspection

    if topic is None:
        yield from inspection.dump_log(directory, given, start=start)
        return
    with console.progress_bar("Opening") as update:
        rows = inspection.dump_queues(directory, topic, queue, given, start=start, progress=update)
        first = next(rows, None)
    if first is not None:
        yield first
        yield from rows


@store.command()
@_DIRECTORY
@click.option("--exact", is_flag=True, help="Count in the log, which takes a read of all of it.")
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of one per topic.")
@_AS_JSON
@_sizes
def stats(directory: Path, as_json: bool, exact: bool, per_queue: bool, **sizes: int | None) -> None:
    """Show what DIR holds and how large it is."""
    from penstock.cli import console, render
    from penstock.store import inspection

    with console.progress_bar("Counting") as update:
        result = inspection.stats(
            directory, _given(**sizes), exact=exact, in_use=is_in_use(directory), progress=update
        )
    if as_json:
        console.print_json(result.to_json())
    else:
        render.show_stats(console.output(), result, per_queue=per_queue)
