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
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Self, TypeVar

from penstock.errors import CodecError, DiskFullError, StoreError
from penstock.metadata.fastjson import JsonObject, JsonValue, dump_pretty, loads
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.runtime import Disk
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

    @property
    def is_backup(self) -> bool:
        return bool(self.main_problem)


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
            return LoadedConfig(main, self.path)
        backup, backup_problem = self._try_read(self.backup_path, parse)
        if backup is not None:
            return LoadedConfig(
                backup, self.backup_path, main_problem or f"{self.path.name} is missing or empty"
            )
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
        if self._main_is_good is None:
            self._main_is_good = self._try_read(self.path, JsonFields)[0] is not None
        try:
            make_lasting_dirs(self._disk, self.path.parent)
            self._write_temporary(data)
            if self._main_is_good:
                self._disk.rename(self.path, self.backup_path)
                self._main_is_good = False
                self._disk.sync_dir(self.path.parent)
            self._disk.rename(self.temporary_path, self.path)
            self._disk.sync_dir(self.path.parent)
        except OSError as error:
            raise self._save_error(error) from error
        self._main_is_good = True

    def _try_read(self, path: Path, parse: Callable[[JsonValue, str], T]) -> tuple[T | None, str]:
        """The parsed content, or None and what was wrong; missing and empty are not wrong."""
        try:
            data = self._disk.read(path)
            if not data.strip():
                return None, ""
            value = loads(data, source=path.name, max_bytes=FILE_BYTES_MAX, max_loose=FILE_BYTES_MAX)
            return parse(value, path.name), ""
        except FileNotFoundError:
            return None, ""
        except CodecError as error:
            return None, error.message
        except OSError as error:
            return None, f"{path.name}: cannot be read: {error.strerror}"

    def _write_temporary(self, data: bytes) -> None:
        file = self._disk.open(self.temporary_path, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()

    def _save_error(self, error: OSError) -> StoreError:
        text = f"cannot save {self.path.name}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(text, "free some space; the content before this change is kept")
        return StoreError(text, "check the disk; the content before this change is kept")
