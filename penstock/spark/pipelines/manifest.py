"""The manifest of a tree of Parquet files: which files are in it, and which batches of which query put them there.

    _manifest/00000000000000000012.json       entry 12: what one commit added and dropped
    _manifest/00000000000000000012.intent     the same, while its files are still being moved into place
    _manifest/00000000000000000012.snapshot   the sum of entries 1 to 12

A file is one line of JSON and one line with its CRC-32, synced before it gets its name. An intent becomes an entry
by being renamed, so an entry's files are all in place. Readers need no lock: the newest snapshot and the entries
after it are the tree at one moment.

Runs on the driver, and in the process in which Spark commits a batch. This module reads and writes manifest files;
moving data files is `parquet_tree`'s. It never looks into a data file.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.errors import CodecError, StoreFormatError
from penstock.runtime import Disk
from penstock.runtime.disk import write_atomically

FOLDER = "_manifest"
VERSION = 1
# Entries between two snapshots: how many small files a reader opens at most, give or take.
SNAPSHOT_EVERY = 64
_NAME = re.compile(r"(\d{20})\.(json|intent|snapshot)")
_READ_ATTEMPTS = 5
_NUMBER_MAX = 1 << 62
# An entry without a query comes from a batch job, or from merging files.
NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One data file: its path from the root, with `/`, and what the tree's owner wants to know of it."""

    path: str
    rows: int
    size: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "rows": self.rows, "size": self.size, **self.about}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FileRecord:
        about = {key: part for key, part in value.items() if key not in ("path", "rows", "size")}
        record = FileRecord(_path(value["path"]), value["rows"], value["size"], about)
        if not all(
            type(number) is int and 0 <= number <= _NUMBER_MAX for number in (record.rows, record.size)
        ):
            raise ValueError(f"impossible numbers for {record.path}")
        return record


@dataclass(frozen=True, slots=True)
class Move:
    """A staged file or folder, and where it belongs. `parked` is where a folder goes that is there already; `holds`
    names a file that only the new folder has, which tells whether the swap has happened."""

    staged: str
    place: str
    parked: str = ""
    holds: str = ""

    def to_json(self) -> list[str]:
        return [self.staged, self.place, *((self.parked, self.holds) if self.parked else ())]

    @staticmethod
    def from_json(value: list[str]) -> Move:
        return Move(*(_path(part) for part in value))


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit. `moves` are what an intent still has to do, and history afterwards."""

    add: tuple[FileRecord, ...]
    drop: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    query: str = ""
    batch: int = NO_BATCH
    written_at: int = 0
    sequence: int = 0

    def encode(self) -> bytes:
        return seal(
            {
                "version": VERSION,
                "sequence": self.sequence,
                "query": self.query,
                "batch": self.batch,
                "written_at": self.written_at,
                "add": [record.to_json() for record in self.add],
                "drop": list(self.drop),
                "move": [move.to_json() for move in self.moves],
            }
        )

    @staticmethod
    def decode(data: bytes) -> Entry:
        """Raises ValueError for anything that is not an entry as written."""
        value = unseal(data)
        try:
            return Entry(
                add=tuple(FileRecord.from_json(record) for record in value["add"]),
                drop=tuple(_path(path) for path in value["drop"]),
                moves=tuple(Move.from_json(move) for move in value["move"]),
                query=str(value["query"]),
                batch=int(value["batch"]),
                written_at=int(value["written_at"]),
                sequence=int(value["sequence"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no entry: {error!r}") from error


@dataclass(slots=True)
class TreeState:
    """The tree after some entry: its files by path, and the last batch of each query."""

    sequence: int = 0
    files: dict[str, FileRecord] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        for path in entry.drop:
            self.files.pop(path, None)
        for record in entry.add:
            self.files[record.path] = record
        if entry.query:
            self.batches[entry.query] = max(entry.batch, self.batches.get(entry.query, NO_BATCH))
        self.sequence = entry.sequence

    def encode(self) -> bytes:
        files = [self.files[path].to_json() for path in sorted(self.files)]
        return seal({"version": VERSION, "sequence": self.sequence, "batches": self.batches, "files": files})

    @staticmethod
    def decode(data: bytes) -> TreeState:
        """Raises ValueError for anything that is not a snapshot as written."""
        value = unseal(data)
        try:
            records = [FileRecord.from_json(record) for record in value["files"]]
            batches = {str(query): int(batch) for query, batch in value["batches"].items()}
            return TreeState(int(value["sequence"]), {record.path: record for record in records}, batches)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no snapshot: {error!r}") from error


def seal(value: Mapping[str, Any]) -> bytes:
    line = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return b"%s\ncrc32 %08x\n" % (line, zlib.crc32(line))


def unseal(data: bytes) -> dict[str, Any]:
    """The value of a sealed line; raises ValueError if its checksum, its form or its version is another."""
    line, _, rest = data.partition(b"\n")
    if rest != b"crc32 %08x\n" % zlib.crc32(line):
        raise ValueError("its checksum does not match")
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    if value.get("version") != VERSION:
        raise ValueError(f"it has version {value.get('version')!r}; this Penstock knows {VERSION}")
    return value


def _path(text: Any) -> str:
    """A path below the root: what a manifest names is renamed and deleted, so it must not lead elsewhere."""
    if not isinstance(text, str) or not text or "\0" in text or "\\" in text:
        raise ValueError(f"{text!r} is no path")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{text!r} leads out of the tree")
    return text


class Manifest:
    """The manifest files below one root."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.folder = root / FOLDER
        self._disk = disk

    # -- reading ---------------------------------------------------------------------------------------------

    def load(self) -> TreeState:
        """The tree as it is now. While a writer tidies up, a file may be gone that was just listed: look again."""
        problem: Exception | None = None
        for _ in range(_READ_ATTEMPTS):
            try:
                return self._load_once()
            except FileNotFoundError as error:
                problem = error
        raise StoreFormatError(
            f"the manifest of {self.root} has a hole: {problem}",
            "its parts come back from a copy of the _manifest folder only; the data files are not affected",
        )

    def _load_once(self) -> TreeState:
        entries, snapshots = self.sequences("json"), self.sequences("snapshot")
        state = self._newest_snapshot(snapshots, entries)
        newest = max([*entries, state.sequence])
        for sequence in range(state.sequence + 1, newest + 1):
            state.apply(self._read_entry(sequence))
        return state

    def _newest_snapshot(self, snapshots: list[int], entries: list[int]) -> TreeState:
        """The newest one that is whole. Entries are kept until there are two, so the one before does as well."""
        damage = ""
        for sequence in sorted(snapshots, reverse=True):
            path = self.path(sequence, "snapshot")
            try:
                state = TreeState.decode(self._disk.read(path))
            except ValueError as error:
                damage = f"{path.name}: {error}"
                continue
            if state.sequence == sequence:
                return state
            damage = f"{path.name}: it is the snapshot of entry {state.sequence}"
        if damage and (not entries or min(entries) > 1):
            raise StoreFormatError(
                f"no snapshot in {self.folder} can be read: {damage}",
                "put back a copy of the _manifest folder; the data files are not affected",
            )
        return TreeState()

    def _read_entry(self, sequence: int) -> Entry:
        return self.read(self.path(sequence, "json"), sequence)

    def read(self, path: Path, sequence: int) -> Entry:
        """An entry or an intent; raises CodecError if it is damaged."""
        try:
            entry = Entry.decode(self._disk.read(path))
            if entry.sequence != sequence:
                raise ValueError(f"it is entry {entry.sequence}")
        except ValueError as error:
            raise CodecError(
                f"{path} cannot be read: {error}",
                "put back a copy of the _manifest folder; the data files are not affected",
            ) from error
        return entry

    def sequences(self, kind: str) -> list[int]:
        """Numbers of the files of one kind, ascending."""
        found = (_NAME.fullmatch(name) for name in self._disk.list(self.folder))
        return sorted(int(match[1]) for match in found if match and match[2] == kind)

    def path(self, sequence: int, kind: str) -> Path:
        return self.folder / f"{sequence:020d}.{kind}"

    # -- writing, with the tree's lock held --------------------------------------------------------------------

    def pending(self) -> Entry | None:
        """The intent that a crash left, if there is one."""
        intents = self.sequences("intent")
        return self.read(self.path(intents[-1], "intent"), intents[-1]) if intents else None

    def announce(self, entry: Entry, state: TreeState, now_ms: int) -> Entry:
        """Write the intent: from here on the commit will happen, after whatever crash."""
        numbered = replace(entry, sequence=state.sequence + 1, written_at=now_ms)
        write_atomically(self._disk, self.path(numbered.sequence, "intent"), numbered.encode())
        return numbered

    def settle(self, entry: Entry) -> None:
        """The files are in place and synced: the intent becomes an entry."""
        self._disk.rename(self.path(entry.sequence, "intent"), self.path(entry.sequence, "json"))
        self._disk.sync_dir(self.folder)

    def tidy(self, state: TreeState) -> None:
        """Now and then a snapshot; what the snapshot before the newest one covers is not needed any more."""
        snapshots = self.sequences("snapshot")
        if state.sequence - max(snapshots, default=0) < SNAPSHOT_EVERY:
            return
        write_atomically(self._disk, self.path(state.sequence, "snapshot"), state.encode())
        covered = max(snapshots, default=0)
        for kind in ("json", "snapshot"):
            for sequence in self.sequences(kind):
                if sequence < covered or (kind == "json" and sequence == covered):
                    self._disk.remove(self.path(sequence, kind))


def total_rows(records: Iterable[FileRecord]) -> int:
    return sum(record.rows for record in records)
