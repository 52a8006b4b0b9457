"""Where a message goes in an archive: folders by topic and day, files by queue and range of offsets.

    topic=orders/date=2025-01-31/broker-a-0-00000000000000000000-00000000000000000099.parquet
    topic=%25RETRY%25billing/date=2025-01-31/@-3-00000000000000000007-00000000000000000007.parquet

Both offsets are inclusive. Names are percent-encoded, as every reader of such folders expects: Spark, Arrow and
DuckDB decode the folder's value. `@` stands for the broker without a name, which is a store directory's. A file
holds all offsets of its range unless the log itself had a hole there.

No Spark and no Arrow; driver and executors use it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from penstock.errors import OptionError
from penstock.spark.pipelines.manifest import FileRecord

SUFFIX = ".parquet"
NO_BROKER = "@"
_FILE = re.compile(r"(.+)-(\d{1,10})-(\d{20})-(\d{20})\.parquet")
_HIDDEN = "_."
# What file systems allow for a name.
NAME_BYTES_MAX = 255
_NUMBER_MAX = 2**31 - 1


def folder_of(topic: str, day: str) -> str:
    """The folder of a topic's messages of one day (UTC, by store time), from the archive's root."""
    return f"topic={quote(topic, safe='')}/date={day}"


def file_name(broker: str, queue_id: int, first: int, last: int) -> str:
    return f"{_broker_text(broker)}-{queue_id}-{first:020d}-{last:020d}{SUFFIX}"


def require_names(topic: str, broker: str = "") -> None:
    """Refuse a topic or broker whose encoded name no file system takes, before anything is written of it. A shorter
    name would not do: plain readers have the topic from the folder."""
    folder, file = folder_of(topic, "").partition("/")[0], file_name(broker, _NUMBER_MAX, 0, 0)
    for name, what in ((folder, f"topic {topic}"), (file, f"broker {broker} of topic {topic}")):
        if len(name) > NAME_BYTES_MAX:
            raise OptionError(
                f"{what} cannot be archived: its name has {len(name)} bytes in a path, {NAME_BYTES_MAX} are possible",
                "leave the topic out: name the others with --topic, or give a --topic-pattern that does not match "
                "it. If a batch with it was planned already, delete the checkpoint as well; the archive goes on "
                "after what its manifest has",
            )


def _broker_text(broker: str) -> str:
    """A name that begins with `_` or `.` would be passed over by readers as hidden."""
    if not broker:
        return NO_BROKER
    text = quote(broker, safe="")
    return f"%{ord(text[0]):02X}{text[1:]}" if text[0] in _HIDDEN else text


def queue_key(topic: str, broker: str, queue_id: int) -> str:
    """How a queue is named in positions, manifests and gap reports."""
    return f"{topic}/{broker}/{queue_id}"


def split_key(key: str) -> tuple[str, str, int]:
    """Topic, broker and queue of a key; none of the three has a `/`."""
    topic, broker, queue_id = key.split("/")
    return topic, broker, int(queue_id)


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file of an archive, as its manifest describes it."""

    topic: str
    day: str
    broker: str
    queue_id: int
    first: int
    last: int
    rows: int
    size: int
    min_time: int
    max_time: int

    @property
    def path(self) -> str:
        name = file_name(self.broker, self.queue_id, self.first, self.last)
        return f"{folder_of(self.topic, self.day)}/{name}"

    @property
    def key(self) -> str:
        return queue_key(self.topic, self.broker, self.queue_id)

    def record(self) -> FileRecord:
        about: dict[str, Any] = {
            "topic": self.topic,
            "date": self.day,
            "broker": self.broker,
            "queue_id": self.queue_id,
            "first": self.first,
            "last": self.last,
            "min_store_time": self.min_time,
            "max_store_time": self.max_time,
        }
        return FileRecord(self.path, self.rows, self.size, about)

    @staticmethod
    def of(record: FileRecord) -> ArchivedFile:
        about = record.about
        return ArchivedFile(
            about["topic"],
            about["date"],
            about["broker"],
            about["queue_id"],
            about["first"],
            about["last"],
            record.rows,
            record.size,
            about["min_store_time"],
            about["max_store_time"],
        )


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file: where it lies, from the archive's root, and what it is."""

    staged: str
    file: ArchivedFile


@dataclass(frozen=True, slots=True)
class PathParts:
    """What a path alone says of a file."""

    topic: str
    day: str
    broker: str
    queue_id: int
    first: int
    last: int


def parse_path(path: str) -> PathParts | None:
    """What the path of a data file, from the archive's root, says; None if it is none of ours."""
    parts = PurePosixPath(path).parts
    match = _FILE.fullmatch(parts[-1]) if len(parts) == 3 else None
    if match is None or not parts[0].startswith("topic=") or not parts[1].startswith("date="):
        return None
    broker = "" if match[1] == NO_BROKER else unquote(match[1])
    topic = unquote(parts[0].removeprefix("topic="))
    return PathParts(
        topic, parts[1].removeprefix("date="), broker, int(match[2]), int(match[3]), int(match[4])
    )
