"""The journal of a broker's tables: `config/tables.<number>.log`, what changed since the JSON files were written.

    i32 size, i32 CRC-32 of the body, body          again and again; a body is one JSON object:

    {"files":{"topics.json":["<fingerprint>"]}}            first in each journal file: what the JSON files were then
    {"table":"topics.json","file":"<fingerprint>"}         this JSON file is about to replace the one before
    {"table":"topics.json","file":"...","complete":true}   the same, and it has all changes before this record
    {"table":"topics.json","file":"...","alone":true}      another program wrote it: changes before this do not count
    {"table":"topics.json","change":{...}}                 one change, with the whole new value of what it names

A table is its JSON file with all changes of the journal applied, oldest first. Because a change names whole values,
it makes no difference whether the JSON file has some of them already. A JSON file that the journal does not know
was written by another program (a Java broker, Penstock 0.1) after a crash: then it alone counts, or else the
journal would bring old values back. A torn end is where the file ends. Reading changes nothing on disk.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from penstock.errors import CodecError
from penstock.metadata.config_files import ConfigFile, LoadedConfig
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import JsonFields
from penstock.runtime import Disk

_LOG = logging.getLogger("penstock.metadata")
_HEAD = struct.Struct(">II")
_NAME = re.compile(r"tables\.([0-9]{10})\.log")
# The fingerprint of a JSON file that is not there.
ABSENT = ""


class JournaledTable(Protocol):
    """A table with a JSON file whose changes can be in the journal."""

    FILE_NAME: ClassVar[str]

    @classmethod
    def from_json(cls, value: JsonValue, source: str = ...) -> Self: ...

    def apply(self, change: JsonFields) -> None:
        """Take over one change. Raises CodecError, and changes nothing, where it cannot be read."""


T = TypeVar("T", bound=JournaledTable)


@dataclass(slots=True)
class TableChanges:
    """What the journal has of one table."""

    fingerprints: list[str] = field(default_factory=list)
    changes: list[JsonValue] = field(default_factory=list)
    # Files that have so many of the changes for certain.
    complete: dict[str, int] = field(default_factory=dict)

    def belong_to(self, loaded: LoadedConfig[T] | None) -> bool:
        """Whether they continue what was loaded.

        A backup beside a main file that cannot be read is older than all of them, whatever it is. Where there is no
        file they do if there was none, or if the first one may not have got its name before a crash.
        """
        if loaded is None:
            return ABSENT in self.fingerprints and len(set(self.fingerprints)) <= 2
        return loaded.fingerprint in self.fingerprints or loaded.is_main_damaged


@dataclass(slots=True)
class TableLog:
    """All journal files of a directory, read."""

    numbers: list[int] = field(default_factory=list)
    tables: dict[str, TableChanges] = field(default_factory=dict)

    def of(self, name: str) -> TableChanges:
        return self.tables.setdefault(name, TableChanges())


@dataclass(frozen=True, slots=True)
class LoadedTable(Generic[T]):
    """A table as it was when the broker ended. `is_behind`: its JSON file is not all of it, or is only a backup;
    `is_foreign`: another program wrote the file, and changes in the journal were left out."""

    value: T | None
    fingerprint: str
    is_behind: bool = False
    is_foreign: bool = False


def log_path(config: Path, number: int) -> Path:
    return config / f"tables.{number:010}.log"


def log_numbers(disk: Disk, config: Path) -> list[int]:
    """Numbers of the journal files that are there, oldest first."""
    found = (_NAME.fullmatch(name) for name in disk.list(config))
    return sorted(int(match[1]) for match in found if match is not None)


def frame(body: bytes) -> bytes:
    """One record."""
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def frames(data: bytes, name: str) -> Iterator[bytes]:
    """The bodies of all records, the oldest first, up to a torn end."""
    at = 0
    while at < len(data):
        size, checksum = _HEAD.unpack_from(data, at) if at + _HEAD.size <= len(data) else (-1, 0)
        body = data[at + _HEAD.size : at + _HEAD.size + max(size, 0)]
        if len(body) != size or zlib.crc32(body) != checksum:
            _LOG.warning("%s ends with %d bytes that are no whole record; ignored", name, len(data) - at)
            return
        yield body
        at += _HEAD.size + size


def read_log(disk: Disk, config: Path) -> TableLog:
    """Read all journal files of a directory."""
    log = TableLog(log_numbers(disk, config))
    for number in log.numbers:
        path = log_path(config, number)
        for body in frames(disk.read(path), path.name):
            try:
                _take(log, JsonFields(json.loads(body), path.name))
            except (ValueError, CodecError) as error:
                _LOG.error("a record of %s cannot be read and is left out: %s", path.name, error)
    return log


def _take(log: TableLog, record: JsonFields) -> None:
    files = record.inner("files")
    if files is not None:
        for name in list(files.rest()):
            known = log.of(name).fingerprints
            known += [one for one in files.text_list(name) if one not in known]
        return
    table = log.of(record.text("table", ""))
    if record.has("change"):
        table.changes.append(record.value("change"))
        return
    if record.boolean("alone", False):
        table.fingerprints.clear()
        table.changes.clear()
        table.complete.clear()
    fingerprint = record.text("file", ABSENT)
    table.fingerprints.append(fingerprint)
    if record.boolean("complete", False):
        table.complete[fingerprint] = len(table.changes)


def load_table(
    file: ConfigFile, kind: type[T], journal: TableLog, say: Callable[[str], None] = _LOG.warning
) -> LoadedTable[T]:
    """A table from its main file or its backup, with the changes of the journal.

    Raises CodecError if there is content and none of it can be read.
    """
    loaded = file.load(kind.from_json)
    name, found = kind.FILE_NAME, journal.tables.get(kind.FILE_NAME, TableChanges())
    value, fingerprint = (None, ABSENT) if loaded is None else (loaded.value, loaded.fingerprint)
    is_backup = loaded is not None and loaded.is_backup
    if loaded is not None and is_backup:
        say(f"{name}: loaded {loaded.path.name} ({loaded.main_problem}); the main file is written again")
    changes = found.changes[found.complete.get(fingerprint, 0) :]
    if not changes:
        return LoadedTable(value, fingerprint, is_behind=is_backup)
    if not found.belong_to(loaded):
        what = "another program wrote" if loaded is not None else "somebody removed"
        say(f"{name}: {what} this file after the broker ended; {len(changes)} later changes do not count")
        return LoadedTable(value, fingerprint, is_behind=is_backup, is_foreign=True)
    if value is None:
        value = kind()
    for change in changes:
        try:
            value.apply(JsonFields(change, "the journal of the tables"))
        except CodecError as error:
            _LOG.error("a change of %s cannot be read and is left out: %s", name, error)
    return LoadedTable(value, fingerprint, is_behind=True)


def encode_files(known: dict[str, list[str]]) -> bytes:
    return _encode({"files": {name: list(fingerprints) for name, fingerprints in known.items()}})


def encode_file(table: str, fingerprint: str, flag: str = "") -> bytes:
    """`flag`: complete or alone."""
    body: JsonObject = {"table": table, "file": fingerprint}
    return _encode({**body, flag: True} if flag else body)


def encode_change(table: str, change: JsonValue) -> bytes:
    return _encode({"table": table, "change": change})


def _encode(body: JsonObject) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
