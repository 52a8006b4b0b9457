"""The columns that a message has in Spark: names, types, and what a user may ask for.

A row is one stored message. Every read, live or from a store directory, gives these columns or a subset of them in
any order; only what is asked for is decoded and moved. Columns that are never null say so to Spark: it asks for each
value otherwise, which is a third of what it pays for a row (docs/performance.md).

Rule: this table is the only place that names the columns. Runs on the driver (schemas) and on executors (names).
Nothing here needs Spark until a schema is made or checked, and pyspark is imported there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: dict[str, str] = {
    # The topic that the record names; for a message that is tried again, the retry topic.
    "topic": "string",
    # Name of the broker, empty for a store directory: its files do not say whose they are.
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    # The producer's unique key, else the id made of store host and log position.
    "message_id": "string",
    # The words of KEYS as they were sent, with spaces between them; null without keys.
    "keys": "string",
    # Null without a tag.
    "tags": "string",
    # Unpacked, where the producer packed it.
    "body": "binary",
    # Of equal names the last one; text that is no UTF-8 has U+FFFD in the place of what cannot be read.
    "properties": "map<string,string>",
    # Times are microseconds UTC; null where a producer wrote a time outside the years 1 to 9999.
    "born_time": "timestamp",
    "store_time": "timestamp",
    # ip:port, [ip]:port for IPv6.
    "born_host": "string",
    "reconsume_times": "int",
    "physical_offset": "bigint",
    # Bytes of the whole record in the log.
    "size": "int",
}
# Those that ever are null. A schema of the user's may say so of all: it costs time, no more.
MAY_BE_NULL = frozenset({"keys", "tags", "born_time", "store_time"})
# Stands in a `Selection` beside the columns, for the values inside the map.
PROPERTY_VALUES = "properties.value"


class Selection(NamedTuple):
    """The columns of a read in their order, and what its schema lets be null: batches must say the same."""

    names: tuple[str, ...]
    nullable: frozenset[str]


def message_schema(columns: Iterable[str] = ()) -> StructType:
    """The schema of all columns, or of these, in this order."""
    from pyspark.sql import types

    # Spelled out: parsing the text would need a JVM, and Spark asks for the schema in processes without one.
    made = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType(), valueContainsNull=False),
    }
    names = check_columns(columns) or tuple(COLUMNS)
    return types.StructType(
        [types.StructField(name, made[COLUMNS[name]], name in MAY_BE_NULL) for name in names]
    )


def check_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The same names, if all are columns and none is named twice."""
    names = tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise OptionError(f"there is no column {name!r}", _near(name))
        if names.count(name) > 1:
            raise OptionError(f"column {name!r} is named twice", "name each column once")
    return names


def check_schema(schema: StructType) -> Selection:
    """What a schema that a user gave selects, if it is a subset of the columns with their types, in any order."""
    names = check_columns(field.name for field in schema.fields)
    if not names:
        raise OptionError("the schema has no columns", f"name some of: {', '.join(COLUMNS)}")
    nullable = set()
    for field in schema.fields:
        found, wanted = field.dataType.simpleString(), COLUMNS[field.name]
        if found != wanted:
            raise OptionError(f"column {field.name!r} is {wanted}, not {found}", "cast it after reading")
        if field.nullable:
            nullable.add(field.name)
        elif field.name in MAY_BE_NULL:
            raise OptionError(f"column {field.name!r} may be null", "leave out NOT NULL")
        if getattr(field.dataType, "valueContainsNull", False):
            nullable.add(PROPERTY_VALUES)
    return Selection(names, frozenset(nullable))


def parse_columns(text: str) -> tuple[str, ...]:
    """Names out of an option: `queue_id, body`."""
    return check_columns(name for name in (part.strip() for part in text.split(",")) if name)


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), COLUMNS, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from: {', '.join(COLUMNS)}"
