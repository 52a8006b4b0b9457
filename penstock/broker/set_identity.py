"""Who this broker is in its set, kept beside its data: RocketMQ's files, and one of our own.

    brokerIdentity          cluster#name#id                 the id is ours
    brokerIdentity-temp     cluster#name#id#check code      it is being applied for
    brokerIncarnation       number, boot id; a line each    how often a broker was started here (ours)

Rules. An id is written down with its check code before it is applied for, so that a broker that died over it asks for
the same one again. A directory belongs to one set: another cluster or broker name in the options is refused. The
incarnation is durable before anybody is told of it. Files are replaced whole and synced. Owned by one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OptionError, StoreFormatError
from penstock.runtime import Disk
from penstock.runtime.disk import write_atomically

IDENTITY = "brokerIdentity"
APPLICATION = "brokerIdentity-temp"
INCARNATION = "brokerIncarnation"
# Changes whenever the machine starts, and so says whether what was written but not synced can have been lost.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ID_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Application:
    """An id that is being applied for."""

    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a broker on its directory."""

    # From 1, one more each time.
    incarnation: int
    # Whether the machine ran on since the start before: what a process had written is still there.
    is_same_boot: bool


class SetIdentity:
    """The files of one data directory."""

    def __init__(self, disk: Disk, folder: Path, cluster: str, name: str) -> None:
        self._disk = disk
        self._folder = folder
        self._cluster = cluster
        self._name = name

    def broker_id(self) -> int | None:
        """The id that was given to this directory, None if none was."""
        parts = self._read(IDENTITY, 3)
        return None if parts is None else self._checked(IDENTITY, parts)

    def application(self) -> Application | None:
        """An application that was begun, and may have been granted."""
        parts = self._read(APPLICATION, 4)
        return None if parts is None else Application(self._checked(APPLICATION, parts), parts[3])

    def apply_for(self, application: Application) -> None:
        """About to apply for an id."""
        text = f"{self._cluster}#{self._name}#{application.broker_id}#{application.check_code}"
        write_atomically(self._disk, self._folder / APPLICATION, text.encode())

    def give_up(self) -> None:
        """The id was refused: somebody else has it."""
        self._remove(APPLICATION)

    def granted(self, broker_id: int) -> None:
        """The id is this broker's, for good."""
        text = f"{self._cluster}#{self._name}#{broker_id}"
        write_atomically(self._disk, self._folder / IDENTITY, text.encode())
        self._remove(APPLICATION)

    def start(self) -> Start:
        """Count one more start; durable when this returns."""
        before, boot = self._last_start()
        now = self._boot_id()
        write_atomically(self._disk, self._folder / INCARNATION, f"{before + 1}\n{now}\n".encode())
        return Start(before + 1, bool(now) and now == boot)

    def _last_start(self) -> tuple[int, str]:
        path = self._folder / INCARNATION
        if not self._disk.exists(path):
            return 0, ""
        number, _, boot = self._disk.read(path).decode(errors="replace").strip().partition("\n")
        if not number.isascii() or not number.isdigit() or int(number) > _ID_MAX:
            raise StoreFormatError(
                f"{INCARNATION} cannot be read",
                "write a number into it that is higher than any before, the milliseconds since 1970 for example",
            )
        return int(number), boot.strip()

    def _boot_id(self) -> str:
        try:
            return self._disk.read(BOOT_ID).decode(errors="replace").strip()
        except OSError:
            return ""  # unknown: every start then counts as one after a power failure

    def _read(self, file: str, count: int) -> list[str] | None:
        path = self._folder / file
        if not self._disk.exists(path):
            return None
        parts = self._disk.read(path).decode(errors="replace").strip().split("#")
        if len(parts) != count or not parts[2].isascii() or not parts[2].isdigit() or int(parts[2]) > _ID_MAX:
            raise StoreFormatError(
                f"{file} cannot be read", "restore it; without it the broker would get another id"
            )
        return parts

    def _checked(self, file: str, parts: list[str]) -> int:
        if (parts[0], parts[1]) != (self._cluster, self._name):
            raise OptionError(
                f"{file} says that this directory belongs to broker {parts[1]} of cluster {parts[0]}, "
                f"not to {self._name} of {self._cluster}",
                "set broker_name and cluster_name back, or give the new broker another directory",
            )
        return int(parts[2])

    def _remove(self, file: str) -> None:
        if self._disk.exists(self._folder / file):
            self._disk.remove(self._folder / file)
            self._disk.sync_dir(self._folder)
