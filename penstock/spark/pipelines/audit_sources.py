"""Where an audit or a replay reads from: the live log, an archive, a store directory, or any DataFrame.

    log                    every topic of the cluster at --nameserver        log:orders,pay*    some of them
    archive:DIR            what `penstock pipeline archive` wrote
    store:DIR              a store directory of Penstock or of RocketMQ, with no broker running
    DIR                    whichever of the two the directory is

Rule: the range of every queue is found out once, on the driver, before anything is read, and the read is told
exactly that range. So what is read twice is the same rows twice, and what is missing in it is known to be missing.
Runs on the driver. Nothing here reads a message itself: that is Spark's work.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import OptionError
from penstock.spark.access_options import access_options
from penstock.spark.options import ReadOptions, near_names
from penstock.spark.packs import messages
from penstock.spark.positions import OTHERS
from penstock.spark.session import messages_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipelines.archive_reading import ArchiveSnapshot

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRIES_MAX = 16
_SYSTEM_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "PENSTOCK_")
KINDS = ("log", "archive", "store")


class QueueKey(NamedTuple):
    """A queue of a cluster. A store directory does not say whose it is: its broker is empty."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    @classmethod
    def parse(cls, text: str) -> QueueKey:
        """`topic/broker/queue`, as offsets are written."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[2].isdecimal():
            raise OptionError(f"{text!r} names no queue", "write it as topic/broker/queue")
        return cls(parts[0], parts[1], int(parts[2]))


# First offset and the one after the last.
Ranges = Mapping[QueueKey, tuple[int, int]]


class Progress(NamedTuple):
    """How far a group has come in a queue: the offset of the next message it takes."""

    group: str
    queue: QueueKey
    committed: int


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: `kind` is log, archive or store. `start` and `end` are store times in milliseconds; None is
    the first message there is, and the last one there is at this moment."""

    kind: str
    path: str = ""
    nameserver: str = ""
    topics: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    # The times as a person wrote them: `2h` is the same wish tomorrow, and another moment.
    start_text: str = field(default="", compare=False)
    end_text: str = field(default="", compare=False)
    # Who asks the cluster, and how; not a part of what is asked for.
    access: Access = field(default=FROM_ENVIRONMENT, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"there is no source {self.kind!r}", f"use one of {', '.join(KINDS)}")
        if self.kind == "log" and not self.nameserver:
            raise OptionError("the live log needs a name server", "say which with --nameserver HOST:PORT")
        if self.kind != "log" and not self.path:
            raise OptionError(f"{self.kind} needs a directory", f"write it as {self.kind}:DIR")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise OptionError("the time range is empty", "its end must be later than its start")

    @property
    def label(self) -> str:
        """For people."""
        place = f"log at {self.nameserver}" if self.kind == "log" else f"{self.kind} {self.path}"
        return f"{place} ({', '.join(self.topics)})" if self.topics else place

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "path": self.path,
            "nameserver": self.nameserver,
            "topics": list(self.topics),
            "start": self.start,
            "end": self.end,
        }


class Read(Protocol):
    """Reads the columns that are wanted, of all ranges or of a part of them."""

    def __call__(self, columns: Sequence[str], part: Ranges | None = None) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A source whose ranges are fixed. `exact` says that every offset
    of `ranges` should be there; without it only what lies between two messages can be missing. `sample` asks the
    groups again, where there is somebody to ask."""

    label: str
    ranges: Ranges
    read: Read
    exact: bool = True
    progress: tuple[Progress, ...] = ()
    tries_max: Mapping[str, int] = field(default_factory=dict)
    sample: Callable[[], tuple[tuple[Progress, ...], Ranges]] | None = None
    # What it was made of; None for a DataFrame.
    source: Source | None = None

    @property
    def topics(self) -> list[str]:
        return sorted({key.topic for key in self.ranges})

    @property
    def messages(self) -> int:
        """How many there should be."""
        return sum(end - first for first, end in self.ranges.values())


def parse_source(
    text: str, nameserver: str = "", topics: Iterable[str] = (), access: Access = FROM_ENVIRONMENT
) -> Source:
    """The source that a command line names."""
    kind, colon, rest = text.partition(":")
    chosen = tuple(topics)
    if kind == "log":
        named = tuple(name.strip() for name in rest.split(",") if name.strip())
        return Source("log", nameserver=nameserver, topics=chosen + named, access=access)
    if colon and kind in KINDS:
        return Source(kind, path=rest, nameserver=nameserver, topics=chosen, access=access)
    return Source(_kind_of(text), path=text, nameserver=nameserver, topics=chosen, access=access)


def _kind_of(path: str) -> str:
    directory = Path(path)
    if (directory / "commitlog").is_dir():
        return "store"
    if (directory / "_manifest").is_dir() or next(directory.glob("topic=*"), None) is not None:
        return "archive"
    what = "is neither a store nor an archive" if directory.is_dir() else "is not there"
    raise OptionError(f"{path} {what}", "write log, archive:DIR or store:DIR")


def check_source(source: Source) -> None:
    """Raise for a source that cannot be read: not a directory of its kind, no such topic, a cluster that does not
    answer or refuses. Without Spark, within seconds."""
    if source.kind == "archive":
        from penstock.spark.pipelines.archive_reading import ArchiveSnapshot

        choose_topics(ArchiveSnapshot.open(source.path).topics, source.topics)
    elif source.kind == "store":
        from penstock.spark.offline import OfflineStore

        with OfflineStore(source.path) as store:
            choose_topics(store.topics(), source.topics)
    else:
        from penstock.spark import preflight
        from penstock.spark.pipelines.audit_cluster import cluster_topics

        with preflight.reaching(source.nameserver, source.access) as settings:
            topics = cluster_topics(source, **settings)
        if topics:
            preflight.check_source(ReadOptions.parse({**_cluster(source), "topic": ",".join(topics)}))


def is_system(topic: str) -> bool:
    """A topic that a broker keeps for itself."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def choose_topics(names: Iterable[str], wanted: Sequence[str], *, dead_letters: bool = True) -> list[str]:
    """Topics that match one of the patterns (`*` and `?`), or without patterns all that people sent to; with
    `dead_letters` also those, unless a pattern asked for something else. Fails if a name matches nothing."""
    known = sorted(set(names))
    if not wanted:
        return [name for name in known if not is_system(name) and _is_plain(name, dead_letters)]
    found: set[str] = set()
    for pattern in wanted:
        matching = fnmatch.filter(known, pattern) if any(c in pattern for c in "*?[") else []
        if pattern in known:
            matching.append(pattern)
        if not matching:
            plain = [name for name in known if not is_system(name)]
            near = near_names(pattern, plain)
            hint = f"did you mean {near}" if near else f"there are: {', '.join(plain)[:200] or 'none'}"
            raise OptionError(f"no topic is called {pattern!r}", hint)
        found.update(matching)
    return sorted(found)


def _is_plain(name: str, dead_letters: bool) -> bool:
    return not name.startswith(RETRY_PREFIX) and (dead_letters or not name.startswith(DEAD_LETTER_PREFIX))


def positions_json(offsets: Mapping[QueueKey, int]) -> str:
    """Offsets as the read options take them. Queues that are not among them are not read: they begin at their end."""
    return json.dumps({str(key): offsets[key] for key in offsets} | {OTHERS: "latest"}, sort_keys=True)


def open_source(
    spark: SparkSession, source: Source, *, on_gap: str = "skip", gap_table: str = "", groups: bool = True
) -> Opened:
    """Fix the ranges of a source. `on_gap` is the option of the read; `gap_table` is where it may say why messages
    are missing (an archive has no such reasons). `groups`: also ask how far the consumer groups are."""
    how = {"onGap": "report", "gapTable": gap_table} if gap_table else {"onGap": on_gap}
    if source.kind == "log":
        return _open_log(spark, source, how, groups)
    if source.kind == "store":
        return _open_store(spark, source, how, groups)
    return _open_archive(spark, source, groups)


def reader_of(spark: SparkSession, source: Source, ranges: Ranges, *, on_gap: str = "fail") -> Read:
    """A source whose ranges were fixed before, as by a replay that goes on. Who reads it writes whole messages
    elsewhere: Spark makes rows of them in any case, so packs would be one step more."""
    if source.kind == "log":
        return _reader(spark, ranges, {**_cluster(source), "onGap": on_gap}, in_packs=False)
    if source.kind == "store":
        return _reader(spark, ranges, {"onGap": on_gap}, source.path, in_packs=False)
    from penstock.spark.pipelines.archive_reading import ArchiveSnapshot

    return _archive_reader(spark, ArchiveSnapshot.open(source.path), source, {key.topic for key in ranges})


def open_beside(spark: SparkSession, opened: Opened, pattern: str) -> Opened | None:
    """Other topics of the same source, if it has such topics with messages."""
    if opened.source is None:
        return None
    try:
        found = open_source(spark, replace(opened.source, topics=(pattern,)), groups=False)
    except OptionError:
        return None  # no topic has such a name
    return found if found.messages else None


def open_frame(frame: DataFrame, label: str = "DataFrame", ranges: Ranges | None = None) -> Opened:
    """Any DataFrame with the columns of a message, for programs that have one already."""

    def read(columns: Sequence[str], part: Ranges | None = None) -> DataFrame:
        return (frame if part is None else _only(frame, part)).select(*columns)

    return Opened(label, ranges or {}, read, exact=ranges is not None)


def _only(frame: DataFrame, part: Ranges) -> DataFrame:
    """The rows of these ranges."""
    from pyspark.sql import functions as fn

    inside = fn.lit(False)
    for key, (first, end) in sorted(part.items()):
        if first < end:
            inside |= (
                (fn.col("topic") == key.topic)
                & (fn.col("broker") == key.broker)
                & (fn.col("queue_id") == key.queue_id)
                & fn.col("queue_offset").between(first, end - 1)
            )
    return frame.where(inside)


def _cluster(source: Source) -> dict[str, str]:
    return {"nameserver": source.nameserver, **access_options(source.access)}


def _reader(
    spark: SparkSession, ranges: Ranges, options: Mapping[str, str], path: str = "", *, in_packs: bool = True
) -> Read:
    topics = ",".join(sorted({key.topic for key in ranges}))

    def read(columns: Sequence[str], part: Ranges | None = None) -> DataFrame:
        from penstock.spark.schema import message_schema

        if not ranges:
            return spark.createDataFrame([], message_schema(columns))
        wanted = ranges if part is None else part
        given = {
            **options,
            "topic": topics,
            "columns": ",".join(columns),
            "startingPosition": positions_json({k: r[0] for k, r in wanted.items()}),
            "endingPosition": positions_json({k: r[1] for k, r in wanted.items()}),
        }
        if in_packs:
            return messages(spark, path, **given)
        reader = messages_reader(spark).options(**given)
        return reader.load(path) if path else reader.load()

    return read


# -- live log ----------------------------------------------------------------------------------------------------


def _open_log(spark: SparkSession, source: Source, how: Mapping[str, str], groups: bool) -> Opened:
    from penstock.spark.pipelines.audit_cluster import cluster_progress, cluster_ranges

    ranges = cluster_ranges(source)
    read = _reader(spark, ranges, {**_cluster(source), **how})
    if not groups:
        return Opened(source.label, ranges, read, source=source)
    progress, tries = cluster_progress(source, {key.topic for key in ranges})

    def sample() -> tuple[tuple[Progress, ...], Ranges]:
        now = replace(source, topics=tuple(sorted({key.topic for key in ranges})), start=None, end=None)
        return cluster_progress(source, set(now.topics))[0], cluster_ranges(now)

    return Opened(
        source.label, ranges, read, progress=progress, tries_max=tries, sample=sample, source=source
    )


# -- store directory ---------------------------------------------------------------------------------------------


def _open_store(spark: SparkSession, source: Source, how: Mapping[str, str], groups: bool) -> Opened:
    from penstock.spark.pipelines.audit_store import store_groups, store_ranges

    ranges = store_ranges(source)
    read = _reader(spark, ranges, how, source.path)
    if not groups:
        return Opened(source.label, ranges, read, source=source)
    progress, tries = store_groups(Path(source.path), {key.topic for key in ranges})
    return Opened(source.label, ranges, read, progress=progress, tries_max=tries, source=source)


# -- archive -----------------------------------------------------------------------------------------------------


def _open_archive(spark: SparkSession, source: Source, groups: bool) -> Opened:
    from penstock.spark.pipelines.archive_reading import ArchiveSnapshot

    # One moment of the archive, for its ranges and for its rows.
    snapshot = ArchiveSnapshot.open(source.path)
    topics = set(choose_topics(snapshot.topics, source.topics))
    ranges = {
        QueueKey.parse(key): (min(first for first, _ in runs), max(last for _, last in runs) + 1)
        for key, runs in snapshot.ranges(topics).items()
        if runs
    }
    progress: tuple[Progress, ...] = ()
    tries: Mapping[str, int] = {}
    if source.nameserver and groups:
        from penstock.spark.pipelines.audit_cluster import cluster_progress

        progress, tries = cluster_progress(source, topics)
    return Opened(
        source.label,
        ranges,
        _archive_reader(spark, snapshot, source, topics),
        exact=source.start is None and source.end is None,
        progress=progress,
        tries_max=tries,
        source=source,
    )


def _archive_reader(spark: SparkSession, snapshot: ArchiveSnapshot, source: Source, topics: set[str]) -> Read:
    whole: list[DataFrame] = []

    def read(columns: Sequence[str], part: Ranges | None = None) -> DataFrame:
        # Made once: Spark looks at every file for each new one.
        if not whole:
            whole.append(_in_time(snapshot.only(topics).frame(spark), source))
        return (whole[0] if part is None else _only(whole[0], part)).select(*columns)

    return read


def _in_time(frame: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql import functions as fn

    if source.start is not None:
        frame = frame.where(fn.col("store_time") >= fn.timestamp_millis(fn.lit(source.start)))
    if source.end is not None:
        frame = frame.where(fn.col("store_time") < fn.timestamp_millis(fn.lit(source.end)))
    return frame
