"""`penstock sql`: topics are tables, made of the archive and of the log behind it.

    sql("select tags, count(*) from orders group by tags", nameserver="127.0.0.1:9876", archive="archive")

A table is made when a query names it: its messages up to the archive's end come from the archive, the rest from the
log, queue by queue (`seam`), so none comes twice and none is left out. The columns are those of a message and
`body_text`, the body as text. `as_of` shows every table as it was: what had been stored until then.

Rules: the archive's manifest is read first and the log's ends after it; both are fixed then, for all tables of a
query. Names are compared as Spark does, without case, and the exact name wins. A table of the session that has the
name already stays what it is. Runs on the driver; changes nothing, but that opening an archive finishes a merge which
a crash cut short (`archive_reading`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.access import FROM_ENVIRONMENT, Access, explaining
from penstock.client.scan import Scan
from penstock.errors import OptionError, PenstockError, RouteNotFoundError
from penstock.spark.access_options import access_options
from penstock.spark.options import near_names
from penstock.spark.packs import messages
from penstock.spark.pipelines.archive_names import queue_key
from penstock.spark.pipelines.archive_reading import ArchiveSnapshot
from penstock.spark.pipelines.seam import Layer, Range, Span, plan
from penstock.spark.pipelines.sql_columns import columns_needed, stand_in
from penstock.spark.positions import parse_time, sorted_offsets
from penstock.spark.schema import COLUMNS, message_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY_TEXT = "body_text"
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
# The narrowest column: what is read of a topic of which a query wants no column at all, as count(*).
CHEAPEST = "queue_offset"
TABLES_MAX = 200


@dataclass(frozen=True, slots=True)
class Places:
    """Where the messages are. Without `nameserver` and `store` there is the archive alone."""

    nameserver: str = ""
    archive: str = ""
    store: str = ""
    as_of: str = ""
    on_gap: str = "fail"
    gap_table: str = ""
    access: Access = FROM_ENVIRONMENT

    def __post_init__(self) -> None:
        if self.nameserver and self.store:
            raise OptionError(
                "a nameserver and a store directory are both given", "the log is read from one of them"
            )
        if not (self.nameserver or self.store or self.archive):
            raise OptionError(
                "there is nothing to query", "give a nameserver, an archive or a store directory"
            )

    @property
    def as_of_ms(self) -> int | None:
        return parse_time("as of", self.as_of) if self.as_of else None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A topic as a table: how many messages come from where."""

    topic: str
    queues: int
    archived: int
    live: int


@dataclass(slots=True)
class TopicTables:
    """The tables of one query. `notes` are what whoever reads the result should know. Without Spark they can be
    listed, not read."""

    session: SparkSession | None
    places: Places
    notes: list[str] = field(default_factory=list)
    _archive: ArchiveSnapshot | None = None
    _live: dict[str, dict[str, Span]] = field(default_factory=dict)
    _topics: list[str] | None = None

    @property
    def spark(self) -> SparkSession:
        if self.session is None:
            raise PenstockError("there is no Spark to read tables with", "give a session")
        return self.session

    # -- queries ---------------------------------------------------------------------------------------------

    def query(self, text: str) -> DataFrame:
        """The result of a query. Its tables are there while it is understood, and gone from the session after."""
        needed = columns_needed(self.spark, text, self._with_stand_ins)
        return self._with_tables(text, lambda topic: self.table(topic, needed.get(topic)))

    def _with_stand_ins(self, text: str) -> DataFrame:
        return self._with_tables(text, lambda topic: with_text(stand_in(self.spark, topic)))

    def _with_tables(self, text: str, make: Any) -> DataFrame:
        """Try, and make the table that is missing, until none is."""
        from pyspark.errors import AnalysisException

        made: list[str] = []
        try:
            while True:
                try:
                    with _without_context_log():
                        return self.spark.sql(text)
                except AnalysisException as error:
                    name = missing_table(error)
                    if name is None or name in made or len(made) >= TABLES_MAX:
                        raise
                    make(self._topic_of(name, error)).createOrReplaceTempView(f"`{name}`")
                    made.append(name)
        finally:
            for name in made:
                self.spark.catalog.dropTempView(name)

    def _topic_of(self, name: str, error: Exception) -> str:
        topics = self.topics()
        alike = [topic for topic in topics if topic.lower() == name.lower()]
        if name in alike and (len(alike) == 1 or self.spark.conf.get("spark.sql.caseSensitive") == "true"):
            return name
        if len(alike) > 1:
            raise OptionError(
                f"topics {', '.join(alike)} differ in case only",
                "set spark.sql.caseSensitive to true, and write names exactly",
            ) from error
        if alike:
            return alike[0]
        near = near_names(name, topics)
        hint = f"did you mean {near}" if near else f"topics are: {', '.join(topics[:20]) or 'none'}"
        raise OptionError(f"there is no topic {name!r}", hint) from error

    # -- tables ----------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of all tables."""
        if self._topics is None:
            found = set(self._snapshot().topics)
            if self.places.store:
                from penstock.spark.offline import OfflineStore

                with OfflineStore(self.places.store) as store:
                    found |= set(store.topics())
            elif self.places.nameserver:
                with self._scan() as scan:
                    found |= set(scan.topics())
            self._topics = sorted(found)
        return self._topics

    def info(self) -> list[TableInfo]:
        """All tables, with what is in them."""
        rows = []
        for topic in self.topics():
            archived, spans, _ = self._parts(topic)
            layers = plan(archived, spans).layers
            count = sum(last - first + 1 for ranges in archived.values() for first, last in ranges)
            rows.append(
                TableInfo(topic, len({*archived, *spans}), count, sum(layer.rows for layer in layers))
            )
        return rows

    def table(self, topic: str, columns: Sequence[str] | None = None) -> DataFrame:
        """All messages of a topic, of the archive and of the log, with `body_text`. With `columns`, others are null:
        they are not read, and are there for a query that names them and has no use for them."""
        wanted = self._to_read(columns)
        archived, spans, broker = self._parts(topic)
        seam = plan(archived, spans)
        self._note_lost(seam.lost)
        until = self.places.as_of_ms
        parts = []
        snapshot = self._snapshot().only([topic], until)
        if snapshot.files:
            parts.append(_of_broker(snapshot.frame(self.spark, wanted), broker))
        parts += [_of_broker(self._layer(topic, layer, spans, wanted), broker) for layer in seam.layers]
        if not parts:
            parts = [self.spark.createDataFrame([], message_schema(wanted))]
        frame = reduce(lambda one, other: one.unionAll(other), parts)
        if until is not None:
            frame = frame.where(f"store_time <= timestamp_millis({until})")
        return with_text(all_columns(frame))

    def _to_read(self, columns: Sequence[str] | None) -> list[str]:
        """In the order of the contract, with what the conditions of the table itself need."""
        if columns is None:
            return list(COLUMNS)
        wanted = set(columns) or {CHEAPEST}
        if self.places.as_of:
            wanted.add("store_time")
        return [name for name in COLUMNS if name in wanted]

    def _layer(
        self, topic: str, layer: Layer, spans: Mapping[str, Span], columns: Sequence[str]
    ) -> DataFrame:
        """The part of the log that a layer names; queues that it leaves out are read from end to end: not at all."""
        starts = {key: layer.starts.get(key, span[1]) for key, span in spans.items()}
        ends = {key: layer.ends.get(key, span[1]) for key, span in spans.items()}
        options = {
            "topic": topic,
            "startingPosition": json.dumps(sorted_offsets(starts)),
            "endingPosition": json.dumps(sorted_offsets(ends)),
            "columns": ",".join(columns),
            "onGap": self.places.on_gap,
        }
        if self.places.on_gap == "report":
            options["gapTable"] = self.places.gap_table
        if self.places.store:
            return messages(self.spark, Path(self.places.store).absolute(), **options)
        options |= {"nameserver": self.places.nameserver, **access_options(self.places.access)}
        return messages(self.spark, **options)

    # -- what is where ---------------------------------------------------------------------------------------

    @contextmanager
    def _scan(self) -> Iterator[Scan]:
        with explaining(), Scan(self.places.nameserver, **self.places.access.settings()) as scan:
            yield scan

    def _snapshot(self) -> ArchiveSnapshot:
        """The archive, before anything else is asked: what comes to it later is still in the log."""
        if self._archive is None:
            given = self.places.archive
            self._archive = ArchiveSnapshot.open(given) if given else ArchiveSnapshot(Path(), ())
        return self._archive

    def _parts(self, topic: str) -> tuple[dict[str, list[Range]], dict[str, Span], str]:
        """Archived ranges and spans of the log, by the log's names of the queues; the broker that they belong to, if
        only one of the two says so."""
        archived = self._snapshot().ranges([topic])
        if topic not in self._live:
            self._live[topic] = self._spans(topic)
        return aligned(archived, self._live[topic])

    def _spans(self, topic: str) -> dict[str, Span]:
        if self.places.store:
            from penstock.spark.offline import OfflineStore

            with OfflineStore(self.places.store) as store:
                return {queue_key(*place): span for place, span in store.queues([topic]).items()}
        if not self.places.nameserver:
            return {}
        with self._scan() as scan:
            try:
                found = scan.ranges(scan.queues(topic))
            except RouteNotFoundError:
                if not self._snapshot().ranges([topic]):
                    raise
                # Nobody can tell which: a name server forgets the topics of a broker that is away.
                self.notes.append(
                    f"no broker has topic {topic} now, it is deleted or they are away: only what is archived of it "
                    "is there (to ask for that alone, name no name server)"
                )
                return {}
        return {queue.key: (item.min, item.max) for queue, item in found.items()}

    def require_whole(self, hint: str) -> None:
        """Raise what there is to say about messages that are missing, if there is anything."""
        if self.notes:
            more = " and more" if len(self.notes) > 3 else ""
            raise PenstockError(f"{'; '.join(self.notes[:3])}{more}", hint)

    def _note_lost(self, lost: Mapping[str, Sequence[Range]]) -> None:
        for key, ranges in lost.items():
            for first, last in ranges:
                self.notes.append(f"offsets {first} to {last} of {key} are neither archived nor in the log")


@contextmanager
def _without_context_log() -> Iterator[None]:
    """PySpark prints a page of JSON for every query that cannot be analysed; here that is only a question."""
    from pyspark.logger import PySparkLogger

    # By its own class: whoever asks first decides what it is, and PySpark calls it with what others do not know.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def aligned(
    archived: Mapping[str, list[Range]], spans: Mapping[str, Span]
) -> tuple[dict[str, list[Range]], dict[str, Span], str]:
    """What came from a store directory has no broker's name, be it the log or what was archived of one. Beside a
    single broker on the other side they are the same queues. Both then go by the log's names of them; the third is
    the broker's, where one side lacks it."""
    ours, theirs = ({key.split("/")[1] for key in keys} for keys in (archived, spans))
    if "" not in ours | theirs or not (ours and theirs):
        return dict(archived), dict(spans), ""
    if len(ours) > 1 or len(theirs) > 1:
        names = ", ".join(sorted((ours | theirs) - {""}))
        raise OptionError(
            f"archive and log have messages of brokers {names}, and a store directory is of one",
            "query the archive or the log alone",
        )
    (was,), (broker,) = ours, theirs
    renamed = {key.replace(f"/{was}/", f"/{broker}/", 1): ranges for key, ranges in archived.items()}
    return renamed, dict(spans), was or broker


def _of_broker(frame: DataFrame, broker: str) -> DataFrame:
    """With this broker's name in place of the one that may be missing."""
    from pyspark.sql import functions

    if not broker or "broker" not in frame.columns:
        return frame
    return frame.withColumn("broker", functions.lit(broker))


def all_columns(frame: DataFrame) -> DataFrame:
    """With null for the columns that the frame has not."""
    from pyspark.sql import functions

    has = set(frame.columns)
    if len(has) == len(COLUMNS):
        return frame
    return frame.select(
        *(
            name if name in has else functions.lit(None).cast(kind).alias(name)
            for name, kind in COLUMNS.items()
        )
    )


def with_text(frame: DataFrame) -> DataFrame:
    """With `body_text`: the body as UTF-8, U+FFFD where it is none. Spark computes it only if it is asked for."""
    from pyspark.sql import functions

    return frame.withColumn(BODY_TEXT, functions.make_valid_utf8(functions.col("body").cast("string")))


def missing_table(error: Any) -> str | None:
    """The table that a query names and the session has not; None if that is not what is wrong."""
    if error.getCondition() != NOT_FOUND:
        return None
    name: str = (error.getMessageParameters() or {}).get("relationName", "")
    plain = name.removeprefix("`").removesuffix("`")
    return plain if plain and "`" not in plain else None


def sql(
    text: str,
    *,
    spark: SparkSession | None = None,
    nameserver: str = "",
    archive: str = "",
    store: str = "",
    as_of: str = "",
    on_gap: str = "fail",
    gap_table: str = "",
    access: Access = FROM_ENVIRONMENT,
) -> DataFrame:
    """The result of a query over topics: of the archive, of the log behind it, or of both."""
    places = Places(nameserver, archive, store, as_of, on_gap, gap_table, access)
    if spark is None:
        from penstock.spark.session import session

        spark = session("penstock sql")
    tables = TopicTables(spark, places)
    frame = tables.query(text)
    if on_gap == "fail":
        tables.require_whole('to go on without them: on_gap="skip"')
    return frame
