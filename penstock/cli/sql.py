"""`penstock sql`: topics as tables, over the archive and the log behind it; rows as a table, as JSON or as CSV.

Options become `Places` of `penstock.spark.pipelines.sql`. The outcome goes to standard output, what is to be known
about it (cut off, messages that are nowhere) to standard error. Ends with 1 if messages were left out, unless
`--on-gap skip` says that they may be.
"""

from __future__ import annotations

import csv
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import check_brokers, echo_json, reaching
from penstock.cli.complaints import awaiting, note
from penstock.cli.escaping import body_text, printable
from penstock.cli.option_types import NumberType
from penstock.cli.pipeline_options import Job, pipeline_options
from penstock.cli.pipeline_steps import TimeType
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType
    from rich.text import Text

    from penstock.spark.pipelines.sql import Places, TableInfo, TopicTables

ROWS_SHOWN = 1_000
CELL_MAX = 400
UNBROKEN_MAX = 40
EXIT_LEFT_OUT = 1


@click.command("sql")
@click.argument("query", metavar="QUERY", required=False)
@click.option("--archive", metavar="DIR", default="", help="An archive: what is in it is read from there.")
@click.option("--store", metavar="DIR", default="", help="A store directory, instead of running brokers.")
@click.option("--archive-only", is_flag=True, help="The archive and nothing else.")
@click.option(
    "--as-of",
    "as_of",
    # UTC as the times in queries and results are, and as in Python.
    type=TimeType(utc=True),
    help="As it was then: 2025-01-31T15:00 (UTC, or with a zone), 10m (ago), milliseconds.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--limit", type=NumberType(1, 1 << 40), help="Rows at most; a table on a terminal has 1000.")
@click.option(
    "--on-gap",
    type=click.Choice(("report", "skip", "fail")),
    help="Messages that are nowhere: tell and end with 1 (report), go on without them, or print no rows.",
)
@pipeline_options(checkpoint=False)
def sql(
    job: Job,
    query: str | None,
    archive: str,
    store: str,
    archive_only: bool,
    as_of: int | None,
    as_csv: bool,
    limit: int | None,
    on_gap: str | None,
) -> int:
    """Query topics with SQL, the archive and the log together.

    Without QUERY the tables are listed. Topics are tables: select tags, count(*) from orders group by tags. Names
    with other characters than letters, digits and _ stand in backquotes. Columns are those of a message, and
    body_text. With --archive, what is archived is read from there and the rest from the brokers, no message twice
    and none left out.
    """
    from penstock.spark import needs_extra

    try:
        from penstock.spark.pipelines.sql import Places, TopicTables
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    if as_csv and job.as_json:
        raise click.UsageError("Use either --csv or --json.", click.get_current_context())
    if archive_only and not archive:
        raise click.UsageError("--archive-only needs --archive", click.get_current_context())
    given = job.nameserver if not (store or archive_only) else ""
    places = Places(given, archive, store, str(as_of) if as_of is not None else "", access=job.access)
    if query is None:
        from penstock.client.admin import Admin

        with reaching(), awaiting(f"waiting for {given}"):
            found = TopicTables(None, places).info()
            if given and not found:
                with Admin(given, **job.access.settings()) as admin:
                    check_brokers(admin)
        if not found:
            note("no topics; `penstock status` shows whether the brokers are up")
        _list(found, job.as_json, as_csv)
        return 0
    with reaching(), awaiting(f"waiting for {given}" if given else "looking at the archive"):
        TopicTables(None, places).topics()  # where nothing can be read, Spark need not start
    with job.spark("sql") as spark, _gap_table(spark, on_gap) as (gaps, table):
        tables = TopicTables(spark, replace(places, on_gap=gaps, gap_table=table))
        left_out = _run(tables, query, job.as_json, as_csv, limit, whole=on_gap == "fail")
    return EXIT_LEFT_OUT if left_out and on_gap != "skip" else 0


@contextmanager
def _gap_table(spark: SparkSession, on_gap: str | None) -> Iterator[tuple[str, str]]:
    """A place for what could not be read. On a cluster executors share no folder of ours: there it is an error."""
    from penstock.spark.session import is_local

    gaps = on_gap or ("report" if is_local(spark.sparkContext.master) else "fail")
    if gaps != "report":
        yield gaps, ""
        return
    with tempfile.TemporaryDirectory(prefix="penstock-sql-") as folder:
        yield gaps, folder


def _run(
    tables: TopicTables, query: str, as_json: bool, as_csv: bool, limit: int | None, *, whole: bool
) -> int:
    """Print the rows; how many things were said about what is missing. With `whole` nothing may be."""
    frame = _understood(tables, query)
    if whole:
        tables.require_whole("to go on without them: --on-gap skip")
    if as_json or as_csv:
        rows = in_utc(
            frame, (frame.limit(limit) if limit else frame).toLocalIterator(prefetchPartitions=True)
        )
        _print_json(frame.columns, rows) if as_json else _print_csv(frame.columns, rows)
    else:
        _print_table(frame, limit or ROWS_SHOWN)
    notes = [*tables.notes, *_gaps(tables.places)]
    for text in notes:
        note(text)
    return len(notes)


def _understood(tables: TopicTables, query: str) -> DataFrame:
    """Spark's complaint about a query is followed by a plan, which helps nobody here."""
    from pyspark.errors import AnalysisException

    try:
        return tables.query(query)
    except AnalysisException as error:
        said = re.split(r";?\n(?:'|\+-|==)", str(error), maxsplit=1)[0]
        raise PenstockError(
            said, "names with other signs than letters, digits and _ stand in `backquotes`"
        ) from error


def _gaps(places: Places) -> list[str]:
    from penstock.spark.gaps import read_gaps

    if not places.gap_table:
        return []
    return [
        f"offsets {gap.first_offset} to {gap.last_offset} of {gap.topic}/{gap.broker}/{gap.queue_id} are left out: "
        f"{gap.reason}"
        for gap in read_gaps(places.gap_table)
    ]


def _list(found: Sequence[TableInfo], as_json: bool, as_csv: bool) -> None:
    rows = [(info.topic, info.queues, info.archived, info.live) for info in found]
    names = ("topic", "queues", "archived", "live")
    if as_json:
        _print_json(names, rows)
    elif as_csv:
        _print_csv(names, rows)
    elif rows:
        from penstock.cli.console import name_text, output, plain_table

        table = plain_table("Topic", "Queues", "Archived", "Live", right=("Queues", "Archived", "Live"))
        for topic, *numbers in rows:
            table.add_row(name_text(topic), *(f"{number:,}" for number in numbers))
        output().print(table)


# -- rows --------------------------------------------------------------------------------------------------------


def _print_table(frame: DataFrame, limit: int) -> None:
    from penstock.cli.console import output, plain_table

    rows = list(in_utc(frame, frame.limit(limit + 1).collect()))
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    numbers = ("byte", "short", "integer", "long", "float", "double", "decimal")
    right = [printable(name) for name, kind in kinds.items() if kind in numbers]
    table = plain_table(*(printable(name) for name in frame.columns), right=right)
    for row in rows[:limit]:
        table.add_row(*(_cell(value) for value in row))
    output().print(table)
    if len(rows) > limit:
        note(f"the first {limit:,} rows; --limit shows more, --csv and --json all")


def _cell(value: Any) -> str | Text:
    """Texts may be broken into lines, everything else and what looks like an id may not."""
    from rich.text import Text

    text = printable(cell_text(value), CELL_MAX)
    is_text = isinstance(value, str | bytes | bytearray | dict | list | tuple)
    return Text(text) if is_text and (" " in text or len(text) > UNBROKEN_MAX) else text


def in_utc(frame: DataFrame, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows with times in UTC, also those inside of other values: PySpark hands them out in the machine's zone,
    without saying so. Times that have no zone (timestamp_ntz) look the same there and stay as they are, so the type
    decides."""
    convert = [_converter(part.dataType) for part in frame.schema.fields]
    for row in rows:
        yield tuple(made(value) for made, value in zip(convert, row, strict=True))


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """What makes a value of this type printable as ours; null stays null. A struct becomes a dict."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    convert: Callable[[Any], Any]
    if isinstance(kind, TimestampType):
        convert = _utc
    elif isinstance(kind, ArrayType):
        element = _converter(kind.elementType)

        def convert(value: Any) -> Any:
            return [element(part) for part in value]

    elif isinstance(kind, MapType):
        key, item = _converter(kind.keyType), _converter(kind.valueType)

        def convert(value: Any) -> Any:
            return {_key_text(key(name)): item(part) for name, part in value.items()}

    elif isinstance(kind, StructType):
        names = distinct([part.name for part in kind.fields])
        parts = [_converter(part.dataType) for part in kind.fields]

        def convert(value: Any) -> Any:
            return {name: made(part) for name, made, part in zip(names, parts, value, strict=True)}

    else:
        return _same
    return lambda value: None if value is None else convert(value)


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _same(value: Any) -> Any:
    return value


def _key_text(value: Any) -> str:
    """The key of a map, which JSON has as text only."""
    made = plain(value)
    return _json_text(made) if isinstance(made, dict | list) else str(made)


def distinct(names: Sequence[str]) -> list[str]:
    """The names of an object's fields: the second `x` is `x_2`, since readers of JSON keep only one of a name."""
    made: list[str] = []
    for name in names:
        text, number = name, 2
        while text in made or (text != name and text in names):
            text, number = f"{name}_{number}", number + 1
        made.append(text)
    return made


def cell_text(value: Any) -> str:
    """A value for a person."""
    if value is None:
        return "-"
    if isinstance(value, bytes | bytearray):
        return body_text(bytes(value))[0]
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    made = plain(value)
    return _json_text(made) if isinstance(made, dict | list) else str(made)


def _json_text(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def plain(value: Any) -> Any:
    """A value for JSON: bytes as text where they are text, else in base64 under that name. Numbers that JSON has not
    are the words that Spark's to_json writes: null would say that there is nothing."""
    if isinstance(value, bytes | bytearray):
        text, encoding = body_text(bytes(value))
        return text if encoding == "utf-8" else {encoding: text}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def _print_json(names: Iterable[str], rows: Iterable[Any]) -> None:
    columns = distinct(list(names))
    for row in rows:
        echo_json({name: plain(value) for name, value in zip(columns, row, strict=True)}, lines=True)


def _print_csv(names: Iterable[str], rows: Iterable[Any]) -> None:
    """As it is into a file; a terminal is given nothing that it could act on."""
    safe = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([safe(name) for name in names])
    for row in rows:
        writer.writerow("" if value is None else safe(cell_text(value)) for value in row)
