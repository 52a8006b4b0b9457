"""Packs: what is in them, and what they are made of. `tests/spark/test_messages.py` takes them apart in Spark."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

from penstock.errors import OptionError
from penstock.spark.batches import arrow_schema
from penstock.spark.packs import BASE, ENDS, SIZE, STARTS, check_pack_schema, messages, pack_schema, packed
from penstock.spark.schema import COLUMNS, MAY_BE_NULL

NAMES = ("queue_id", "body", "tags")


def batch(count: int, first: int = 0) -> pa.RecordBatch:
    """Bodies of different lengths, some empty; every third without a tag."""
    numbers = range(first, first + count)
    columns = [
        pa.array(numbers, pa.int32()),
        pa.array([b"%d," % n * (n % 4) for n in numbers], pa.binary()),
        pa.array([None if n % 3 == 0 else f"T{n}" for n in numbers], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(NAMES))


def rows(packs: pa.RecordBatch) -> list[tuple[int, bytes, str | None]]:
    """What the expressions of `unpacked` do, by hand."""
    found = []
    for pack in packs.to_pylist():
        for at, start in enumerate(pack[STARTS]):
            body = pack["body"][start - pack[BASE] : pack[ENDS][at] - pack[BASE]]
            found.append((pack["queue_id"][at], body, pack["tags"][at]))
    return found


def plain(given: pa.RecordBatch) -> list[tuple[int, bytes, str | None]]:
    return [tuple(row.values()) for row in given.to_pylist()]


@pytest.mark.parametrize("count", [1, 4, 5, 9, 10, 11, 100])
def test_every_row_is_in_a_pack_once_and_in_order(count):
    (made,) = packed([batch(count)], rows=5)
    assert made.num_rows == -(-count // 5)
    assert [len(pack) for pack in made.column("queue_id").to_pylist()] == [
        min(5, count - first) for first in range(0, count, 5)
    ]
    assert rows(made) == plain(batch(count))
    made.validate(full=True)


def test_batches_of_other_sizes_and_parts_of_batches_are_packed_as_they_are():
    """Answers in columns are cut into parts that share one memory: offsets do not begin at nothing."""
    whole = batch(40, first=3)
    given = [
        whole.slice(0, 12),
        whole.slice(12, 12),
        whole.slice(24, 7),
        whole.slice(31),
        batch(5).slice(0, 0),
    ]
    made = list(packed(given, rows=6))
    assert [row for part in made for row in rows(part)] == plain(whole)
    assert made[-1].num_rows == 0
    assert len({part.schema for part in made}) == 1


def test_large_bodies_make_packs_of_few_messages():
    """A pack that no cache holds is slower than rows."""
    sizes = [0, SIZE // 4, SIZE // 4, SIZE // 4, SIZE // 4, 0, 3 * SIZE - 1, 1]
    columns = [pa.array(range(8), pa.int32()), pa.array([bytes(size) for size in sizes]), pa.array(["T"] * 8)]
    given = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(NAMES))
    (made,) = packed([given])
    assert [len(pack) for pack in made.column("queue_id").to_pylist()] == [2, 2, 2, 2], "by their mean size"
    assert rows(made) == plain(given)
    (huge,) = packed([given.slice(6, 1)])
    assert rows(huge) == plain(given)[6:7]


def test_bodies_are_not_copied():
    given = batch(50)
    (made,) = packed([given], rows=7)
    assert made.column("body").buffers()[2].address == given.column("body").buffers()[2].address
    assert made.column(STARTS).values.buffers()[1].address == given.column("body").buffers()[1].address


@pytest.mark.parametrize(
    "columns", [(), ("body",), ("tags", "queue_id"), ("properties", "born_time", "body")]
)
def test_packs_have_the_schema_that_spark_is_told(columns):
    from pyspark.sql.pandas.types import to_arrow_schema

    names = columns or tuple(COLUMNS)
    given = pa.RecordBatch.from_pylist([], schema=arrow_schema(names))
    (made,) = packed([given])
    assert made.schema.equals(to_arrow_schema(pack_schema(columns), timezone="UTC"))
    chosen = check_pack_schema(pack_schema(columns), columns)
    assert chosen.names == names
    assert chosen.nullable == MAY_BE_NULL & set(names)


def test_packs_of_another_schema_are_refused():
    other = StructType([StructField(field.name, field.dataType) for field in pack_schema(["body"])])
    for schema, columns in ((pack_schema(["body"]), ["tags"]), (other, ["body"])):
        with pytest.raises(OptionError, match=r"schema of their own.*leave out schema\(\)"):
            check_pack_schema(schema, columns)


@pytest.mark.parametrize("name", ["packed", "Packed", "PATH"])
def test_what_messages_says_itself_nobody_else_says(name):
    with pytest.raises(OptionError, match="second argument"):
        messages(None, **{name: "x"})  # type: ignore[arg-type]
