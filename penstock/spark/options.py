"""The options of a read, validated once: what a user may write behind `spark.read.format("penstock").option(...)`.

Names are case-insensitive, as everywhere in Spark. What is unknown, missing, out of range or against another option
raises OptionError with what to write instead. docs/spark/source.md has the same table with examples.

Rule: plain values that can be pickled; the driver makes them and executors read them. No Spark, no network.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.client.addresses import parse_name_servers
from penstock.errors import OptionError
from penstock.spark.access_options import NAMES as ACCESS_NAMES
from penstock.spark.access_options import take_access
from penstock.spark.positions import EARLIEST, LATEST, Position
from penstock.spark.schema import parse_columns

INT64_MAX = (1 << 63) - 1
# Options that Spark adds itself, or that belong to the table around a read.
_SPARKS_OWN = frozenset({"paths", "serialization.format", "provider"})


class OnGap(StrEnum):
    """What becomes of messages that should be there and are not."""

    FAIL = "fail"
    REPORT = "report"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A field is an option; `NAMES` has how it is written, `access_options` those that become `access`."""

    # Addresses of name servers, `host:port` with `;` between them.
    nameserver: tuple[str, ...] = ()
    # Topics by name.
    topic: tuple[str, ...] = ()
    # Topics by a regular expression for the whole name; new ones are picked up while a stream runs.
    topic_pattern: str = ""
    # A store directory instead of name servers; topics are then all of it by default.
    path: str = ""
    # Where to begin: earliest, latest, timestamp:<ISO 8601 or milliseconds>, or JSON of offsets.
    starting_position: Position = EARLIEST
    # Where a batch read ends, exclusive; the same forms.
    ending_position: Position = LATEST
    # Streams: at most so many rows in a micro-batch, shared by how far queues are behind; 0: no limit.
    max_rows_per_trigger: int = 0
    # Streams: about so many bytes of stored records in a micro-batch; 0: no limit.
    max_bytes_per_trigger: int = 0
    # At least so many tasks, if there are as many rows; big ranges are split for it. 0: by rows and cores.
    min_partitions: int = 0
    # How many tasks run at once; 0: as many as the driver's machine has cores.
    cores: int = 0
    # Consumer group to which a stream's progress is committed.
    group: str = ""
    # Messages with one of these tags only, `A || B`.
    tags: tuple[str, ...] = ()
    # Messages with this key only.
    key: str = ""
    # fail, report or skip.
    on_gap: OnGap = OnGap.FAIL
    # Directory for the rows that onGap=report writes.
    gap_table: str = ""
    # Columns to read, `queue_id, body`; all by default.
    columns: tuple[str, ...] = ()
    # Batch: many messages in one row, for `packs.unpacked` to take apart.
    packed: bool = False
    # Rows and bytes of one Arrow batch at most.
    batch_rows: int = 8_192
    batch_bytes: int = 8 << 20
    # Whether checksums are compared while decoding.
    verify: bool = True
    # Bytes to ask a broker for at once; it may answer with less.
    pull_bytes: int = 4 << 20
    # How long a broker may be out of reach before a task fails, in milliseconds.
    retry_ms: int = 60_000
    # Streams: how often new topics, queues and brokers are looked for, in milliseconds.
    discover_ms: int = 5_000
    # Who asks, and over TLS or not.
    access: Access = FROM_ENVIRONMENT

    @property
    def is_offline(self) -> bool:
        return bool(self.path)

    @property
    def tag_expression(self) -> str:
        """The tags as brokers want them."""
        return " || ".join(self.tags)

    @property
    def what(self) -> str:
        """What is read, in words, for messages."""
        if self.path:
            return f"store directory {self.path}"
        return f"topic {', '.join(self.topic)}" if self.topic else f"topics matching {self.topic_pattern!r}"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """From texts; OptionError says what is wrong."""
        access, others = take_access(options)
        given: dict[str, Any] = {"access": access}
        for name, text in others.items():
            lower = name.lower()
            if lower in _SPARKS_OWN or lower.startswith("spark."):
                continue
            if lower == _REMOVED:
                _refuse_push_filters(str(text))
                continue
            known = _BY_LOWER.get(lower)
            if known is None:
                raise OptionError(f"there is no option {name!r}", _near(name))
            field, read = known
            given[field] = read(NAMES[field], str(text))
        made = cls(**given)
        made._check_together()
        return made

    def _check_together(self) -> None:
        if self.path:
            others = [NAMES[name] for name in ("nameserver", "group") if getattr(self, name)]
            others += ["options of access"] if self.access != FROM_ENVIRONMENT else []
            if others:
                raise OptionError(
                    f"{' and '.join(others)} cannot go with a path",
                    "a path opens a store directory without a broker: leave out one or the other",
                )
        else:
            if not self.nameserver:
                raise OptionError(
                    "no nameserver is given",
                    'write .option("nameserver", "host:9876"), or .load("path/to/store") for a store directory; '
                    "in SQL, CREATE TEMPORARY VIEW name USING penstock OPTIONS (...): a table hands over no options",
                )
            if not self.topic and not self.topic_pattern:
                raise OptionError(
                    "no topic is given", 'write .option("topic", "orders,payments"), or a topicPattern'
                )
        if self.topic and self.topic_pattern:
            raise OptionError("both topic and topicPattern are given", "leave out one of them")
        if self.on_gap is OnGap.REPORT and not self.gap_table:
            raise OptionError("onGap is report and there is no gapTable", "name a directory for its rows")
        if self.gap_table and self.on_gap is not OnGap.REPORT:
            raise OptionError(
                "there is a gapTable and nothing to write to it", 'add .option("onGap", "report")'
            )


# -- reading texts -----------------------------------------------------------------------------------------------


def _name_servers(name: str, text: str) -> tuple[str, ...]:
    try:
        return parse_name_servers(text)
    except OptionError as error:
        raise OptionError(f"{name}: {error.message}", error.hint) from error


def _topics(name: str, text: str) -> tuple[str, ...]:
    names = _words(text, ",")
    if not names:
        raise OptionError(f"{name} is empty", "name a topic, or several with commas between them")
    for topic in names:
        if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,255}", topic):
            raise OptionError(
                f"invalid topic name {topic[:80]!r}", "for a pattern use the option topicPattern"
            )
    return names


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(
            f"{name} is {text[:80]!r}, no regular expression: {error}", "write one, as in orders-.*"
        ) from error
    return text


def _tags(name: str, text: str) -> tuple[str, ...]:
    tags = _words(text, "||")
    if tags == ("*",):
        return ()
    if not tags or any(" " in tag or "|" in tag for tag in tags):
        raise OptionError(f"{name} is {text[:80]!r}", "write tags as A || B")
    return tags


def _on_gap(name: str, text: str) -> OnGap:
    try:
        return OnGap(text.strip().lower())
    except ValueError:
        raise OptionError(f"{name} is {text[:40]!r}", "use fail, report or skip") from None


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name} is {text[:40]!r}", "use true or false")
    return text.strip().lower() == "true"


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"{name} is empty", "leave it out, or give it a value")
    return text.strip()


def _directory(name: str, text: str) -> str:
    """Made absolute where it is read first: other processes may have other working directories."""
    path = _text(name, text)
    return path if "://" in path or path.startswith("file:") else os.path.abspath(path)


def _columns(name: str, text: str) -> tuple[str, ...]:
    found = parse_columns(text)
    if not found:
        raise OptionError(f"{name} names no column", "leave it out for all of them")
    return found


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        digits = text.strip().replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(digits) <= high:
            raise OptionError(f"{name} is {text[:40]!r}", f"use a whole number from {low} to {high}")
        return int(digits)

    return read


def _words(text: str, separator: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(separator) if part.strip()))


# Field: how it is written, and how it is read.
_FORMS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "nameserver": ("nameserver", _name_servers),
    "topic": ("topic", _topics),
    "topic_pattern": ("topicPattern", _pattern),
    "path": ("path", _directory),
    "starting_position": ("startingPosition", Position.parse),
    "ending_position": ("endingPosition", Position.parse),
    "max_rows_per_trigger": ("maxRowsPerTrigger", _number(1, INT64_MAX)),
    "max_bytes_per_trigger": ("maxBytesPerTrigger", _number(1, INT64_MAX)),
    "min_partitions": ("minPartitions", _number(1, 100_000)),
    "cores": ("cores", _number(1, 100_000)),
    "group": ("group", _text),
    "tags": ("tags", _tags),
    "key": ("key", _text),
    "on_gap": ("onGap", _on_gap),
    "gap_table": ("gapTable", _directory),
    "columns": ("columns", _columns),
    "packed": ("packed", _flag),
    "batch_rows": ("batchRows", _number(1, 1 << 20)),
    "batch_bytes": ("batchBytes", _number(1024, 1 << 30)),
    "verify": ("verify", _flag),
    "pull_bytes": ("pullBytes", _number(4096, 64 << 20)),
    "retry_ms": ("retryMs", _number(0, 86_400_000)),
    "discover_ms": ("discoverMs", _number(0, 3_600_000)),
}
NAMES: dict[str, str] = {field: name for field, (name, _) in _FORMS.items()}
_BY_LOWER = {name.lower(): (field, read) for field, (name, read) in _FORMS.items()}
assert set(_FORMS) | {"access"} == {item.name for item in fields(ReadOptions)}


# An option of earlier versions.
_REMOVED = "pushfilters"


def _refuse_push_filters(text: str) -> None:
    """Raise unless it is off: Spark reused what one filter had planned for other scans of the same DataFrame."""
    if _flag("pushFilters", text):
        raise OptionError(
            "the option pushFilters was removed: a DataFrame that was used twice had wrong rows",
            "leave it out: Spark applies the filters. To read less, use tags, key, startingPosition, endingPosition",
        )


def _near(name: str) -> str:
    return (
        "did you mean " + near
        if (near := near_names(name, (*NAMES.values(), *ACCESS_NAMES)))
        else f"options are: {', '.join((*NAMES.values(), *ACCESS_NAMES))}"
    )


def near_names(name: str, known: Iterable[str]) -> str:
    """Names that look like this one, `a or b?`; empty if none does."""
    by_lower = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 3, 0.6)
    return " or ".join(by_lower[item] for item in near) + "?" if near else ""
