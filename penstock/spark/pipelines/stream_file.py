"""The file that describes a streaming pipeline: what may be in it, and everything that is wrong with one.

    name = "orders"
    [sources.orders]      a topic, or any other stream that Spark reads; fields of JSON bodies become columns
    [tables.customers]    something that stands still, to join with
    [steps.totals]        a query in SQL over sources, tables and steps above it
    [sinks.out]           where a source or a step goes: a topic, files, the console

Rules: reading finds all problems at once, each with its line and field (`file_sections`); what only Spark can
judge (SQL, columns, what a stream allows) is `stream_build`'s. Paths are relative to the file. Plain data: no
Spark, no network; docs/spark/stream.md describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import OptionError, did_you_mean
from penstock.spark.access_options import access_options, is_file, names_access
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.file_sections import Document, Problem, Section, shown
from penstock.spark.schema import COLUMNS
from penstock.spark.sink_options import WriteOptions

PENSTOCK = "penstock"
AVAILABLE_NOW = "available-now"
MODES = ("append", "update", "complete")
BAD_SUFFIX = "_bad"
# What is read beside the fields of a JSON body, unless `columns` says otherwise.
BESIDE_FIELDS = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "message_id",
    "keys",
    "tags",
    "born_time",
    "store_time",
)
# Keys of a source that become options of the read.
READ_KEYS = {
    "topic": "topic",
    "topic_pattern": "topicPattern",
    "starting": "startingPosition",
    "max_rows": "maxRowsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "min_partitions": "minPartitions",
    "group": "group",
    "tags": "tags",
    "key": "key",
    "on_gap": "onGap",
    "gap_table": "gapTable",
    "verify": "verify",
}
TABLE_KEYS = {
    "topic": "topic",
    "starting": "startingPosition",
    "ending": "endingPosition",
    "tags": "tags",
    "key": "key",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d+ (?:millisecond|second|minute|hour|day|week)s?")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is done to rows after a source or a step: late ones are given up after `delay`, equal ones dropped."""

    watermark: str = ""
    delay: str = ""
    deduplicate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A stream, or with `is_static` a table. `fields` are those of a JSON body, in Spark's words."""

    name: str
    format: str
    # May have a secret: in no text.
    options: Mapping[str, str] = field(repr=False)
    is_static: bool = False
    path: str = ""
    fields: str = ""
    schema: str = ""
    columns: tuple[str, ...] = ()
    shaping: Shaping = Shaping()

    @property
    def is_ours(self) -> bool:
        return self.format == PENSTOCK

    @property
    def bad_name(self) -> str:
        """The view of the messages whose body could not be read; empty where bodies are not read."""
        return self.name + BAD_SUFFIX if self.fields and self.is_ours else ""


@dataclass(frozen=True, slots=True)
class Step:
    """A query over what is above it."""

    name: str
    sql: str
    shaping: Shaping = Shaping()


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a view goes. For a topic, `body` = json packs the columns and `keys`, `tags` name some of them."""

    name: str
    view: str
    format: str
    # May have a secret: in no text.
    options: Mapping[str, str] = field(repr=False)
    path: str = ""
    mode: str = "append"
    trigger: str = ""
    partition_by: tuple[str, ...] = ()
    body: str = ""
    keys: tuple[str, ...] = ()
    tags: str = ""

    @property
    def is_ours(self) -> bool:
        return self.format == PENSTOCK


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A file as it was read; `problems` is empty if it can be run, as far as can be told without Spark."""

    path: Path
    name: str
    nameserver: str
    checkpoint: str
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    document: Document = field(compare=False, repr=False)

    @property
    def problems(self) -> list[Problem]:
        return sorted(self.document.problems)

    @property
    def views(self) -> list[str]:
        """Names that SQL and sinks can use, in the order in which they are made."""
        sources = [name for source in self.sources for name in (source.name, source.bad_name) if name]
        return [*sources, *(step.name for step in self.steps)]


def sink_checkpoint(file: PipelineFile, sink: str) -> str:
    """Where Spark keeps how far a sink is."""
    return f"{file.checkpoint.rstrip('/')}/{sink}"


def read_pipeline(
    path: str | Path,
    *,
    nameserver: str | None = None,
    checkpoint: str | None = None,
    access: Access = FROM_ENVIRONMENT,
) -> PipelineFile:
    """Read a file; `nameserver` and `checkpoint` overrule what it says, `access` is for sources and sinks of ours
    that say nothing of it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OptionError(f"there is no file {file}", "docs/spark/stream.md shows how one looks") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise OptionError(f"{file} is not a text file", "a pipeline is a TOML file in UTF-8") from None
    return parse_pipeline(text, file, nameserver=nameserver, checkpoint=checkpoint, access=access)


def parse_pipeline(
    text: str,
    path: Path = Path("pipeline.toml"),
    *,
    nameserver: str | None = None,
    checkpoint: str | None = None,
    access: Access = FROM_ENVIRONMENT,
) -> PipelineFile:
    """The file with this text; a wrong one has `problems`."""
    document = Document.parse(text)
    return _Reader(document, path, nameserver, checkpoint, access).read()


class _Reader:
    """Goes through the sections once and notes what is wrong."""

    def __init__(
        self,
        document: Document,
        path: Path,
        nameserver: str | None,
        checkpoint: str | None,
        access: Access,
    ) -> None:
        self._document, self._file = document, path
        self._base = path.absolute().parent
        self._nameserver, self._checkpoint, self._access = nameserver, checkpoint, access
        # Name of a view to the section that made it.
        self._views: dict[str, Section] = {}

    def read(self) -> PipelineFile:
        root = self._document.section()
        name = root.text("name", self._file.stem)
        if not _NAME.fullmatch(name.replace("-", "_")):
            root.note("name", f"{shown(name)} is no name: letters, digits, _ and - only")
        nameserver, checkpoint = root.text("nameserver"), root.text("checkpoint", f"{name}-checkpoint")
        self._nameserver = self._nameserver or nameserver or None
        checkpoint = self._checkpoint or self._relative(checkpoint)
        settings = root.pairs("spark")
        for key in settings:
            if not key.startswith("spark."):
                self._document.note(("spark", key), "no setting of Spark: they begin with spark.")
        sources = [self._source(section, static=False) for section in root.tables("sources")]
        tables = [self._source(section, static=True) for section in root.tables("tables")]
        steps = [self._step(section) for section in root.tables("steps")]
        sinks = [self._sink(section) for section in root.tables("sinks")]
        root.finish()
        if self._document.content:
            if not sources:
                root.note("", "there is no [sources.NAME]: nothing would be read")
            if not sinks:
                root.note("", "there is no [sinks.NAME]: nothing would be written")
        self._check_shared(sinks)
        return PipelineFile(
            self._file,
            name,
            self._nameserver or "",
            checkpoint,
            settings,
            (*sources, *tables),
            tuple(steps),
            tuple(sinks),
            self._document,
        )

    # -- sources ---------------------------------------------------------------------------------------------

    def _source(self, section: Section, *, static: bool) -> Source:
        kind = section.text("format", PENSTOCK)
        options = section.pairs("options")
        path = self._relative(section.text("path"))
        ours = kind == PENSTOCK
        fields = section.text("fields") if ours else ""
        schema = "" if ours else section.text("schema")
        columns = section.words("columns") if ours else ()
        if ours:
            options = self._read_options(section, options, path, TABLE_KEYS if static else READ_KEYS)
            self._check_columns(section, columns)
        made = Source(
            section.name,
            kind,
            options,
            static,
            path,
            fields.strip(),
            schema.strip(),
            columns or (BESIDE_FIELDS if fields.strip() else tuple(COLUMNS)) if ours else (),
            Shaping() if static else self._shaping(section),
        )
        section.finish()
        self._new_view(section, made.name)
        if made.bad_name:
            self._new_view(section, made.bad_name)
        return made

    def _read_options(
        self, section: Section, options: Mapping[str, str], path: str, keys: Mapping[str, str]
    ) -> dict[str, str]:
        """The options of a read of ours, judged as the source will judge them."""
        made = dict(options)
        for key, option in keys.items():
            if value := section.option(key):
                made[option] = value
        if "gapTable" in made:
            made["gapTable"] = self._relative(made["gapTable"])
        if not path:
            made = self._with_access(made)
            server = section.text("nameserver") or self._nameserver
            if server is None:
                section.note("", "no nameserver: set it here, at the top of the file or with --nameserver")
            else:
                made["nameserver"] = server
        given = {**made, **({"path": path} if path else {})}
        _judge(section, given, {option: key for key, option in keys.items()}, ReadOptions.parse)
        return made

    @staticmethod
    def _check_columns(section: Section, columns: tuple[str, ...]) -> None:
        for name in columns:
            if name not in COLUMNS:
                near = did_you_mean(name, COLUMNS) or f"columns are {', '.join(COLUMNS)}"
                section.note("columns", f"there is no column {shown(name)}; {near}")

    def _shaping(self, section: Section) -> Shaping:
        column = delay = ""
        table = section.table("watermark")
        if table is not None:
            column = table.text("column", required=True)
            delay = table.text("delay", required=True)
            if delay and not _INTERVAL.fullmatch(delay):
                table.note("delay", f"{shown(delay)} is no time: write it as in '10 minutes'")
            table.finish()
        columns = section.words("deduplicate")
        if columns and table is None:
            section.note("deduplicate", "needs a watermark, or every key would be remembered for ever")
        return Shaping(column, delay, columns)

    # -- steps and sinks -------------------------------------------------------------------------------------

    def _step(self, section: Section) -> Step:
        made = Step(section.name, section.text("sql", required=True).strip(), self._shaping(section))
        section.finish()
        self._new_view(section, made.name)
        return made

    def _sink(self, section: Section) -> Sink:
        view = section.text("from", required=True)
        if view and view not in self._views:
            near = did_you_mean(view, self._views) or f"there are {', '.join(self._views) or 'none'}"
            section.note("from", f"there is no source or step {shown(view)}; {near}")
        kind = section.text("format", PENSTOCK if section.has("topic") else "parquet")
        ours = kind == PENSTOCK
        options = section.pairs("options")
        path = self._relative(section.text("path"))
        trigger = section.text("trigger")
        if trigger and trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(trigger):
            section.note("trigger", f"{shown(trigger)} is no trigger: '10 seconds' or '{AVAILABLE_NOW}'")
        if ours:
            options = self._write_options(section, options)
        elif kind in ("parquet", "json", "csv", "orc", "text") and not path:
            section.note("", f"path is missing: where the {kind} files go")
        mode = section.choice("mode", MODES, "append")
        if ours and mode != "append":
            section.note(
                "mode",
                "a topic takes 'append' only: a message that was sent is not changed; aggregations need a watermark",
            )
        made = Sink(
            section.name,
            view,
            kind,
            options,
            path,
            mode,
            trigger,
            section.words("partition_by") if not ours else (),
            section.choice("body", ("json", "column"), "column") if ours else "",
            section.words("keys") if ours else (),
            section.text("tags") if ours else "",
        )
        section.finish()
        if not _NAME.fullmatch(made.name):
            section.note("", f"{shown(made.name)} is no name: letters, digits and _ only")
        return made

    def _write_options(self, section: Section, options: Mapping[str, str]) -> dict[str, str]:
        made = self._with_access(dict(options))
        if topic := section.text("topic"):
            made["topic"] = topic
        server = section.text("nameserver") or self._nameserver
        if server is None:
            section.note("", "no nameserver: set it here, at the top of the file or with --nameserver")
        else:
            made["nameserver"] = server
        _judge(section, made, {"topic": "topic"}, WriteOptions.parse)
        return made

    def _with_access(self, options: dict[str, str]) -> dict[str, str]:
        """As a whole or not at all: half of one user's keys and half of another's would help nobody."""
        if not names_access(options):
            return {**access_options(self._access), **options}
        return {name: self._relative(text) if is_file(name) else text for name, text in options.items()}

    # -- what sections have to do with each other --------------------------------------------------------------

    def _new_view(self, section: Section, name: str) -> None:
        if not _NAME.fullmatch(name):
            section.note("", f"{shown(name)} is no name for SQL: letters, digits and _ only")
        taken = {view.lower(): view for view in self._views}
        if name.lower() in taken:
            other = ".".join(self._views[taken[name.lower()]].path)
            section.note("", f"the name {name} is taken by {other}")
            return
        self._views[name] = section

    def _check_shared(self, sinks: list[Sink]) -> None:
        paths: dict[str, str] = {}
        for sink in sinks:
            if sink.path and sink.path in paths:
                self._document.note(
                    ("sinks", sink.name, "path"), f"sinks.{paths[sink.path]} writes to the same path"
                )
            paths.setdefault(sink.path, sink.name)

    def _relative(self, path: str) -> str:
        """A path below the file's directory; addresses and absolute paths stay as they are."""
        if not path or _SCHEME.match(path) or path.startswith("/"):
            return path
        return str(self._base / path)


def _judge(
    section: Section,
    options: Mapping[str, str],
    keys: Mapping[str, str],
    parse: Callable[[Mapping[str, str]], object],
) -> None:
    """Note what the source or the sink would refuse. It stops at the first, so what it named is left out and it is
    asked again. `keys` says which key an option came from; a missing name server has been noted already."""
    left = {**({} if "path" in options else {"nameserver": "127.0.0.1:9876"}), **options}
    while True:
        try:
            parse(left)
            return
        except OptionError as error:
            named = next((option for option in left if error.message.startswith(option)), "")
            section.note(keys.get(named, ""), str(error))
            if not named or named in ("nameserver", "topic", "path"):
                return
            del left[named]
