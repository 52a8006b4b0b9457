"""Makes DataFrames of a pipeline file: sources become views, steps become views over them, sinks become writers.

Rules: everything is tried, and what Spark refuses is noted at the step or sink where it was refused, so that one
look finds every mistake; whatever depends on a refused view is left out rather than refused again. With stand-ins
nothing is connected to: a topic is a stream of its columns that never has a row, which is all that Spark needs to
judge SQL, columns and what a stream allows.

Runs on the driver, in a session of its own: views of the same name elsewhere are not touched.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.errors import did_you_mean
from penstock.spark.pipelines.stream_file import PipelineFile, Shaping, Sink, Source, Step
from penstock.spark.reasons import reason_of
from penstock.spark.session import messages_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORRUPT = "_corrupt_record"
# Columns that the sink knows besides the body, of which a JSON body leaves the first ones beside it.
KEYS_AND_TAGS = ("keys", "key", "tags")
SINK_COLUMNS = (*KEYS_AND_TAGS, "topic", "properties", "delay", "queue")
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ?")


class Built:
    """The views and sinks of a file, made in one session; what could not be made is in the file's problems."""

    def __init__(self, file: PipelineFile, spark: SparkSession, *, stand_ins: bool = False) -> None:
        self._file, self._stand_ins = file, stand_ins
        self._spark = spark.newSession()
        self._views: dict[str, DataFrame] = {}
        self._failed: set[str] = set()
        # Sinks with the frame that each writes.
        self.sinks: dict[str, DataFrame] = {}

    @property
    def session(self) -> SparkSession:
        return self._spark

    def build(self) -> Built:
        for name, value in self._file.settings.items():
            if self._spark.conf.isModifiable(name):
                self._spark.conf.set(name, value)
        for source in self._file.sources:
            self._try(
                ("tables" if source.is_static else "sources", source.name), lambda s=source: self._source(s)
            )
        for step in self._file.steps:
            self._try(("steps", step.name, "sql"), lambda s=step: self._step(s))
        for sink in self._file.sinks:
            if sink.view in self._views:
                self._try(("sinks", sink.name), lambda s=sink: self._sink(s))
        return self

    def _try(self, place: tuple[str, ...], make: Any) -> None:
        """Make a part; what Spark has against it is noted there."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from penstock.errors import PenstockError

        try:
            make()
        except (PySparkException, Py4JError, PenstockError) as error:
            if place[0] != "sinks":
                self._failed.add(place[1])
            message = self._explained(error)
            if message:
                self._file.document.note(place, message)

    def _explained(self, error: Exception) -> str:
        """What to tell; nothing for a view that could not be made itself, which has been told."""
        get = getattr(error, "getCondition", None)
        if get is not None and get() == _NOT_FOUND:
            found = (error.getMessageParameters() or {}).get("relationName", "")  # type: ignore[attr-defined]
            name = found.replace("`", "")
            if name in self._failed or name.removesuffix("_bad") in self._failed:
                return ""
            if name in self._file.views:
                return f"{name} is further down in the file: a step sees only what is above it"
            near = did_you_mean(name, self._views) or f"there are {', '.join(self._views) or 'none'}"
            return f"there is no source or step {name}; {near}"
        return _CONDITION.sub("", reason_of(error))

    def _add_view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._views[name] = frame

    # -- sources ---------------------------------------------------------------------------------------------

    def _source(self, source: Source) -> None:
        if not source.is_ours:
            self._add_view(source.name, _shaped(self._foreign(source), source.shaping))
            return
        if not source.fields:
            self._add_view(source.name, _shaped(self._messages(source, source.columns), source.shaping))
            return
        good, bad = self._parsed(source)
        self._add_view(source.name, _shaped(good, source.shaping))
        self._add_view(source.bad_name, bad)

    def _foreign(self, source: Source) -> DataFrame:
        """A source of Spark's own, or of another package."""
        if self._stand_ins and source.schema and not source.is_static:
            return self._empty_stream(_schema(source.schema))
        reader: Any = self._spark.read if source.is_static else self._spark.readStream
        reader = reader.format(source.format).options(**source.options)
        if source.schema:
            reader = reader.schema(source.schema)
        return reader.load(source.path) if source.path else reader.load()

    def _messages(self, source: Source, columns: tuple[str, ...]) -> DataFrame:
        from penstock.spark.schema import message_schema

        schema = message_schema(columns)
        if self._stand_ins:
            return self._spark.createDataFrame([], schema) if source.is_static else self._empty_stream(schema)
        reader = messages_reader(self._spark, stream=not source.is_static)
        reader = reader.options(**source.options).schema(schema)
        return reader.load(source.path) if source.path else reader.load()

    def _parsed(self, source: Source) -> tuple[DataFrame, DataFrame]:
        """Messages whose body has the fields, as columns beside their own; and those whose body has not."""
        from pyspark.sql import functions as fn

        fields = _schema(source.fields)
        clashes = sorted({item.name for item in fields.fields} & set(source.columns))
        if clashes:
            from penstock.errors import OptionError

            raise OptionError(
                f"{', '.join(clashes)}: in fields and a column of the message",
                "list in columns those that you need of the message, without these",
            )
        every = (*source.columns, *(("body",) if "body" not in source.columns else ()))
        wide = fields.add(CORRUPT, "string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        text = fn.col("body").cast("string")
        rows = self._messages(source, every).withColumn("_parsed", fn.from_json(text, wide, options))
        wrong = fn.col("_parsed").isNull() | fn.col(f"_parsed.{CORRUPT}").isNotNull()
        wanted = [fn.col(f"_parsed.`{item.name}`") for item in fields.fields if item.name != CORRUPT]
        good = rows.where(~wrong).select(*wanted, *source.columns)
        return good, rows.where(wrong).select(*every)

    def _empty_stream(self, schema: StructType) -> DataFrame:
        """A stream that never has a row of these columns."""
        from pyspark.sql import functions as fn

        rate = self._spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        columns = [fn.lit(None).cast(item.dataType).alias(item.name) for item in schema.fields]
        return rate.select(*columns)

    # -- steps and sinks -------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        self._add_view(step.name, _shaped(self._spark.sql(step.sql), step.shaping))

    def _sink(self, sink: Sink) -> None:
        from penstock.errors import OptionError

        frame = self._views[sink.view]
        if not frame.isStreaming:
            raise OptionError(
                f"{sink.view} is a table and no stream", "a sink takes what comes from one of [sources]"
            )
        if sink.is_ours:
            from penstock.spark.sink_rows import SinkColumns

            frame = _packed(frame, sink)
            SinkColumns(frame.schema, sink.options.get("topic", ""))
        _check_streaming(self._spark, frame, sink.mode)
        self.sinks[sink.name] = frame


def _shaped(frame: DataFrame, shaping: Shaping) -> DataFrame:
    if shaping.watermark:
        frame = frame.withWatermark(shaping.watermark, shaping.delay)
    return frame.dropDuplicatesWithinWatermark(list(shaping.deduplicate)) if shaping.deduplicate else frame


def _schema(text: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(text)


def _packed(frame: DataFrame, sink: Sink) -> DataFrame:
    """The columns that a topic takes: the body, and those that the sink knows."""
    from pyspark.sql import functions as fn

    from penstock.errors import OptionError

    missing = [
        name for name in (*sink.keys, *([sink.tags] if sink.tags else [])) if name not in frame.columns
    ]
    if missing:
        near = did_you_mean(missing[0], frame.columns) or f"there are {', '.join(frame.columns)}"
        raise OptionError(f"{sink.view} has no column {', '.join(missing)}", near)
    # As the sink itself: names in any case.
    named = {name.lower(): name for name in frame.columns}
    columns: dict[str, Any] = {}
    if sink.body == "json":
        columns["body"] = fn.to_json(fn.struct(*(fn.col(f"`{name}`") for name in frame.columns)))
        columns |= _beside_json(frame, named)
    elif "body" in named:
        known = [name for name in SINK_COLUMNS if name != "topic" or "topic" not in sink.options]
        columns = {name: fn.col(f"`{named[name]}`") for name in ("body", *known) if name in named}
    else:
        raise OptionError(
            f"{sink.view} has no column body",
            'select one, as in to_json(struct(*)) as body, or write body = "json" in the sink',
        )
    if sink.keys:
        columns.pop("key", None)
        columns["keys"] = fn.concat_ws(" ", *(fn.col(f"`{name}`").cast("string") for name in sink.keys))
    if sink.tags:
        columns["tags"] = fn.col(f"`{sink.tags}`").cast("string")
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def _beside_json(frame: DataFrame, named: dict[str, str]) -> dict[str, Any]:
    """Keys and tag of a row that is a JSON body: its columns of these names. Their type is the body's matter, so what
    is no text becomes text, and lists, maps and structs, which make no key, are in the body only."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    found: dict[str, Any] = {}
    for role in KEYS_AND_TAGS:
        if role not in named or (role == "key" and "keys" in found):
            continue
        kind = frame.schema[named[role]].dataType
        if isinstance(kind, ArrayType | MapType | StructType | VariantType):
            continue
        column = fn.col(f"`{named[role]}`")
        found[role] = column if kind.simpleString() in ("string", "binary") else column.cast("string")
    return found


def _check_streaming(spark: SparkSession, frame: DataFrame, mode: str) -> None:
    """What a stream does not allow (an aggregation in append mode without a watermark), before it is started."""
    checker = spark._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = spark._jvm.org.apache.spark.sql.streaming.OutputMode
    made = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), made)
