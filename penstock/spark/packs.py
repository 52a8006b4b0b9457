"""Messages that travel to Spark in packs: many to a row, and rows again once they are there.

Spark asks a Python source for rows, and copies each of them three times before a query sees it. For a message of a
hundred bytes that is more than most queries do with it. A pack is one row for some thousand messages: their bodies
one behind the other, every other column an array. `messages` reads packs and takes them apart with expressions that
Spark compiles into the query, so a body is copied once, and only where the query wants it.

    pack      body "onetwothree", begins at 0    body_start 0 3 6    body_end 3 6 11    queue_id 4 4 7
    rows      (one, 4)  (two, 4)  (three, 7)

Rules: the rows are those of `spark.read.format("penstock")` with the same options, in the same order. `packed` runs
in an executor's task; it copies a few numbers for each pack, and never looks at a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.spark.schema import Selection, check_columns, message_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Messages and bytes of bodies in a pack, and messages that are handed over at once. With less, what each costs shows;
# with more, a pack is read out of memory instead of a core's cache: with 1 MiB it takes a third longer.
ROWS = 2048
SIZE = 256 << 10
BATCH_ROWS = 16_384
BODY = "body"
# Where the pack's bodies begin and end. They count from `BASE`: where the pack's first one begins.
STARTS, ENDS, BASE = "body_start", "body_end", "body_base"


def messages(spark: SparkSession, path: str | Path = "", **options: Any) -> DataFrame:
    """The messages of topics, or of a store directory, as `spark.read.format("penstock")` gives them with these
    options, and faster: the smaller the messages, and the more columns, the more so.

        messages(spark, nameserver="127.0.0.1:9876", topic="orders", columns=["tags", "body"])

    A list is written as the option wants it, with commas. The columns must be said here: Spark tells a Python source
    nothing of those that a query uses. There is no stream.
    """
    from penstock.spark.session import messages_reader

    given = {name.lower(): value for name, value in options.items()}
    if mine := sorted({"packed", "path"} & given.keys()):
        raise OptionError(f"messages() has no option {mine[0]!r}", "a store directory is its second argument")
    texts = {
        name: ",".join(value) if isinstance(value, (list, tuple)) else value for name, value in given.items()
    }
    reader = messages_reader(spark).options(**{"batchrows": BATCH_ROWS, **texts}).option("packed", "true")
    return unpacked(reader.load(str(path)) if path else reader.load())


# -- packs -------------------------------------------------------------------------------------------------------


def pack_schema(columns: Iterable[str] = ()) -> StructType:
    """The schema of packs of all columns, or of these."""
    from pyspark.sql import types

    places = types.ArrayType(types.IntegerType(), containsNull=False)
    fields = []
    for field in message_schema(columns).fields:
        if field.name == BODY:
            fields.append(types.StructField(BODY, types.BinaryType(), nullable=False))
            fields.append(types.StructField(BASE, types.IntegerType(), nullable=False))
            fields += [types.StructField(name, places, nullable=False) for name in (STARTS, ENDS)]
        else:
            values = types.ArrayType(field.dataType, containsNull=field.nullable)
            fields.append(types.StructField(field.name, values, nullable=False))
    return types.StructType(fields)


def check_pack_schema(schema: StructType, columns: Iterable[str]) -> Selection:
    """What packs of this schema are made of, if nobody wished for another one."""
    if schema != pack_schema(columns):
        raise OptionError(
            "packs have a schema of their own", "name columns with the option columns, and leave out schema()"
        )
    made = message_schema(columns)
    return Selection(tuple(made.names), frozenset(field.name for field in made.fields if field.nullable))


def packed(batches: Iterable[pa.RecordBatch], rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Packs of at most so many messages; those of one batch stay together, and all batches look alike."""
    packer = None
    for batch in batches:
        packer = packer or _Packer(batch.schema, rows)
        yield packer.packs(batch)


class _Packer:
    """What is the same for all batches is made once: for small ones it would be most of the work."""

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        import pyarrow as pa

        self._rows = rows
        self._places = pa.list_(pa.field("element", pa.int32(), nullable=False))
        # Where packs begin, and of which batches that is true: rows of a batch, rows of a pack.
        self._cuts = pa.array([0], pa.int32())
        self._cut_as = (0, rows)
        fields = []
        for field in schema:
            if field.name == BODY:
                parts = {BODY: pa.binary(), BASE: pa.int32(), STARTS: self._places, ENDS: self._places}
            else:
                parts = {field.name: pa.list_(pa.field("element", field.type, field.nullable))}
            fields += [pa.field(name, kind, nullable=False) for name, kind in parts.items()]
        self._schema = pa.schema(fields)
        self._kinds = {field.name: field.type for field in fields}

    def packs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        self._cut(batch)
        arrays: list[pa.Array] = []
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if name == BODY:
                arrays += self._bodies(values)
            else:
                arrays.append(pa.ListArray.from_arrays(self._cuts, values, type=self._kinds[name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _cut(self, batch: pa.RecordBatch) -> None:
        """Say which rows begin a pack."""
        import pyarrow as pa

        count, rows = batch.num_rows, self._rows
        if count and BODY in batch.schema.names:
            bodies = batch.column(BODY)
            places = memoryview(bodies.buffers()[1]).cast("i")
            size = places[bodies.offset + count] - places[bodies.offset]
            rows = max(1, min(rows, count * SIZE // max(size, 1)))
        if (count, rows) != self._cut_as:
            self._cuts = pa.array([*range(0, count, rows), count], pa.int32())
            self._cut_as = count, rows

    def _bodies(self, bodies: pa.Array) -> list[pa.Array]:
        """What Arrow says of where values end is what packs say too: the same memory, seen from two places."""
        import pyarrow as pa

        _, ends, content = bodies.buffers()
        count, packs = len(bodies), len(self._cuts) - 1
        starts = pa.Array.from_buffers(pa.int32(), count, [None, ends], offset=bodies.offset)
        stops = pa.Array.from_buffers(pa.int32(), count, [None, ends], offset=bodies.offset + 1)
        places = memoryview(ends).cast("i")
        bounds = pa.array([places[bodies.offset + cut] for cut in self._cuts.tolist()], pa.int32())
        return [
            pa.Array.from_buffers(pa.binary(), packs, [None, bounds.buffers()[1], content]),
            bounds.slice(0, packs),
            pa.ListArray.from_arrays(self._cuts, starts, type=self._places),
            pa.ListArray.from_arrays(self._cuts, stops, type=self._places),
        ]


def unpacked(packs: DataFrame) -> DataFrame:
    """The messages of packs, a row each.

    Spark likes to move an expression up into what uses it. Under a Python function that would be fatal: it keeps its
    input rows until Python has answered, and those would then be whole packs, one for each message. What is not
    deterministic is never moved, so every column has a part that Spark takes for that; it is always 0.
    """
    from pyspark.sql import functions

    names = check_columns(name for name in packs.columns if name not in (STARTS, ENDS, BASE))
    exploded = packs.select(
        "*", functions.posexplode(STARTS if BODY in names else names[0]).alias("_at", "_value")
    )
    stays = "0 * spark_partition_id()"
    columns = []
    for name in names:
        if name == BODY:
            value = f"substring({BODY}, _value - {BASE} + 1 + {stays}, {ENDS}[_at] - _value)"
        else:
            value = f"{name}[_at + {stays}]"
        columns.append(functions.expr(value).alias(name))
    return exploded.select(*columns)
