"""The small JSON files under `config/`: read with a fallback, replaced without a moment of danger.

    config/topics.json          the current content
    config/topics.json.bak      the content before it; read when the main file is missing, empty or unreadable
    config/topics.json.tmp      a save that was under way; never read

Rules. Reading changes nothing on disk. Saving keeps a readable file at every step, whatever fails and
wherever the power goes:

    1. write and sync .tmp      disk full and failing syncs hit here, where nothing is lost
    2. main -> .bak             skipped if main is not known to be readable: it must not replace a good .bak
    3. sync the directory
    4. .tmp -> main             so main is complete or absent, never torn
    5. sync the directory

A Java broker sees what its own writer leaves: main, or only .bak. One `ConfigFile` per file; its owner saves
from one thread at a time. It never deletes, and never decides what a damaged pair of files should have said.
A large file is written piece by piece: `begin`, `add` to the draft, `seal` it (step 1), `replace` (steps 2 to 5).
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Self, TypeVar

from penstock.errors import CodecError, DiskFullError, StoreError
from penstock.metadata.fastjson import JsonObject, JsonValue, dump_pretty, loads
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.runtime import Disk, File
from penstock.runtime.disk import make_lasting_dirs

T = TypeVar("T")
# Larger files are neither read nor written: what could not be read again must not replace what can.
FILE_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """Which of two copies of a table is newer: by epoch of the master, then changes, then time."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0
    extra: JsonObject = field(default_factory=dict, compare=False, repr=False)

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        epoch = self.state_version if state_version is None else state_version
        return DataVersion(epoch, self.counter + 1, now_ms, self.extra)

    @classmethod
    def read(cls, fields: JsonFields | None) -> Self:
        """From a table's `dataVersion`, which old files may lack."""
        if fields is None:
            return cls()
        return cls(
            state_version=fields.integer("stateVersion", 0, 0, INT64_MAX),
            counter=fields.integer("counter", 0, 0, INT64_MAX),
            timestamp_ms=fields.integer("timestamp", 0, 0, INT64_MAX),
            extra=fields.rest(),
        )

    def to_json(self) -> JsonObject:
        return {
            **self.extra,
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }


@dataclass(frozen=True, slots=True)
class LoadedConfig(Generic[T]):
    """What was read, from which file, and what was wrong with the main file if it was not that one."""

    value: T
    path: Path
    main_problem: str = ""
    # Of the bytes that were read; no other content has the same.
    fingerprint: str = ""
    # There is a main file with content, and it cannot be read.
    is_main_damaged: bool = False

    @property
    def is_backup(self) -> bool:
        return bool(self.main_problem)


class ConfigDraft:
    """The next content of a config file while it is written to `.tmp`; each step raises StoreError where it fails."""

    def __init__(self, path: Path, file: File) -> None:
        self._path = path
        self._file = file
        self._size = 0
        self._digest = _digest()

    def add(self, data: bytes) -> None:
        """Append to the content."""
        size = self._size + len(data)
        if size > FILE_BYTES_MAX:
            raise StoreError(
                f"cannot save {self._path.name}: it would have more than {FILE_BYTES_MAX} bytes",
                "delete what is not needed; the content before this change is kept",
            )
        try:
            self._file.pwrite(data, self._size)
        except OSError as error:
            raise _save_error(self._path, error) from error
        self._digest.update(data)
        self._size = size

    def seal(self) -> str:
        """The content is complete: sync it; its fingerprint."""
        try:
            self._file.sync()
        except OSError as error:
            raise _save_error(self._path, error) from error
        finally:
            self._file.close()
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Writing it failed. What is there is not read, and the next draft replaces it."""
        self._file.close()


class ConfigFile:
    """One config file with its backup."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self.temporary_path = path.with_name(path.name + ".tmp")
        # None until a load or a save has told.
        self._main_is_good: bool | None = None

    def load(self, parse: Callable[[JsonValue, str], T]) -> LoadedConfig[T] | None:
        """Main file, else the backup, else None if there never was one. `parse` is a table's `from_json`.

        Raises CodecError if there is content and none of it can be read: starting empty would forget it.
        """
        main, main_problem = self._try_read(self.path, parse)
        self._main_is_good = main is not None
        if main is not None:
            return LoadedConfig(main[0], self.path, fingerprint=main[1])
        backup, backup_problem = self._try_read(self.backup_path, parse)
        if backup is not None:
            problem = main_problem or f"{self.path.name} is missing or empty"
            return LoadedConfig(backup[0], self.backup_path, problem, backup[1], bool(main_problem))
        problems = "; ".join(filter(None, (main_problem, backup_problem)))
        if problems:
            raise CodecError(problems, "restore one of the two files, or remove both to start without them")
        return None

    def save(self, content: JsonObject) -> None:
        """Replace the content. When this returns it is durable; when it raises, the old or the new is."""
        data = dump_pretty(content)
        if len(data) > FILE_BYTES_MAX:
            raise StoreError(
                f"cannot save {self.path.name}: it would have {len(data)} bytes, more than {FILE_BYTES_MAX}",
                "delete what is not needed; the content before this change is kept",
            )
        draft = self.begin()
        try:
            draft.add(data)
            draft.seal()
        except BaseException:
            draft.drop()
            raise
        self.replace()

    def begin(self) -> ConfigDraft:
        """Begin to write the next content; what is there stays until `replace`."""
        if self._main_is_good is None:
            self._main_is_good = self._try_read(self.path, JsonFields)[0] is not None
        try:
            make_lasting_dirs(self._disk, self.path.parent)
            file = self._disk.open(self.temporary_path, create=True)
            try:
                file.truncate(0)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise _save_error(self.path, error) from error
        return ConfigDraft(self.path, file)

    def replace(self) -> None:
        """Have the sealed draft be the content, durably."""
        try:
            if self._main_is_good:
                self._disk.rename(self.path, self.backup_path)
                self._main_is_good = False
                self._disk.sync_dir(self.path.parent)
            self._disk.rename(self.temporary_path, self.path)
            self._disk.sync_dir(self.path.parent)
        except OSError as error:
            raise _save_error(self.path, error) from error
        self._main_is_good = True

    def _try_read(self, path: Path, parse: Callable[[JsonValue, str], T]) -> tuple[tuple[T, str] | None, str]:
        """The parsed content with its fingerprint, or None and what was wrong; missing and empty are not wrong."""
        try:
            data = self._disk.read(path)
            if not data.strip():
                return None, ""
            value = loads(data, source=path.name, max_bytes=FILE_BYTES_MAX, max_loose=FILE_BYTES_MAX)
            return (parse(value, path.name), _digest(data).hexdigest()), ""
        except FileNotFoundError:
            return None, ""
        except CodecError as error:
            return None, error.message
        except OSError as error:
            return None, f"{path.name}: cannot be read: {error.strerror}"


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _save_error(path: Path, error: OSError) -> StoreError:
    text = f"cannot save {path.name}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(text, "free some space; the content before this change is kept")
    return StoreError(text, "check the disk; the content before this change is kept")
