"""The columns of a message in Spark: what a user may ask for, and what Arrow batches must look like."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types

from penstock.errors import OptionError
from penstock.spark.batches import arrow_schema
from penstock.spark.schema import (
    COLUMNS,
    MAY_BE_NULL,
    PROPERTY_VALUES,
    check_columns,
    check_schema,
    message_schema,
    parse_columns,
)


def test_the_schema_has_all_columns_with_their_types() -> None:
    schema = message_schema()
    assert [field.name for field in schema.fields] == list(COLUMNS)
    assert {field.name: field.dataType.simpleString() for field in schema.fields} == COLUMNS
    assert {field.name for field in schema.fields if field.nullable} == MAY_BE_NULL
    assert check_schema(schema) == (tuple(COLUMNS), MAY_BE_NULL)


def test_a_subset_in_another_order_is_a_schema() -> None:
    schema = message_schema(["body", "queue_id"])
    assert schema.simpleString() == "struct<body:binary,queue_id:int>"
    assert check_schema(schema) == (("body", "queue_id"), frozenset())


@pytest.mark.parametrize("columns", [list(COLUMNS), ["body", "queue_id"], ["properties"], ["store_time"]])
def test_batches_have_the_schema_that_spark_makes_of_it(columns: list[str]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert arrow_schema(columns).equals(to_arrow_schema(message_schema(columns), timezone="UTC"))


def test_a_schema_may_let_more_be_null_and_batches_say_the_same() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    pairs = types.MapType(types.StringType(), types.StringType())
    schema = types.StructType(
        [
            types.StructField("body", types.BinaryType()),
            types.StructField("queue_id", types.IntegerType(), False),
            types.StructField("properties", pairs, False),
        ]
    )
    names, nullable = check_schema(schema)
    assert nullable == {"body", PROPERTY_VALUES}
    assert arrow_schema(names, nullable).equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("queueid", types.IntegerType(), "there is no column 'queueid'; did you mean queue_id"),
        ("zzz", types.IntegerType(), "choose from: topic, broker"),
        ("queue_id", types.LongType(), "column 'queue_id' is int, not bigint"),
        ("body", types.StringType(), "column 'body' is binary, not string"),
        ("store_time", types.TimestampNTZType(), "is timestamp, not timestamp_ntz"),
        (
            "properties",
            types.MapType(types.StringType(), types.BinaryType()),
            "is map<string,string>, not map",
        ),
    ],
)
def test_another_name_or_type_is_refused_with_what_to_write(name: str, kind: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_schema(types.StructType([types.StructField(name, kind)]))


@pytest.mark.parametrize("name", sorted(MAY_BE_NULL))
def test_not_null_is_refused_where_a_message_has_none(name: str) -> None:
    kind = types.TimestampType() if "time" in name else types.StringType()
    with pytest.raises(OptionError, match="may be null; leave out NOT NULL"):
        check_schema(types.StructType([types.StructField(name, kind, False)]))


def test_an_empty_schema_and_a_column_twice_are_refused() -> None:
    with pytest.raises(OptionError, match="has no columns"):
        check_schema(types.StructType([]))
    with pytest.raises(OptionError, match="'body' is named twice"):
        check_columns(["body", "topic", "body"])


def test_columns_out_of_an_option() -> None:
    assert parse_columns(" queue_id, body ,") == ("queue_id", "body")
    with pytest.raises(OptionError, match="did you mean tags"):
        parse_columns("tag")
