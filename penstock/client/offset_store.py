"""How far a group has come in each queue: in memory, and behind it the broker or a file.

    clustering      the broker keeps the offsets, so that any member can go on where another stopped
    broadcasting    every consumer goes its own way, so it keeps them itself:

        <directory>/<name>/<group>/offsets.json      {"offsetTable":{"{\\"brokerName\\":...}":7}}
        <directory>/<name>/<group>/lock              held by the consumer that uses them

Rules: memory is what counts while a queue is held; it is written out every few seconds and when the queue is
given up. An offset only grows, unless somebody sets it on purpose. What could not be written is tried again with
the next round. A second broadcasting consumer of the same name on the machine gets a place of its own (`-2`,
`-3` …), because two writers of one file would forget each other's progress. File names are never built from raw
names (A6). Belongs to the consumer's event loop; files are written in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from penstock.client.broker_calls import BrokerCalls
from penstock.errors import ClientError, CodecError, PenstockError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import JsonValue
from penstock.protocol.bodies import MessageQueue, ResetOffsetBody
from penstock.runtime import Clock, FileLock, Runtime

logger = logging.getLogger(__name__)
# An offset that did not change is still written this often: a broker may have lost what it had.
REPEAT_MS = 30_000
PLACES_MAX = 64


class OffsetBackend(Protocol):
    """Where offsets outlive the consumer."""

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The stored offset, or None if the group never was in this queue."""

    async def store(
        self, offsets: dict[MessageQueue, int], *, surely: bool
    ) -> dict[MessageQueue, PenstockError]:
        """Write offsets; why those were not written that were not. `surely` waits for the answers."""

    async def close(self) -> None:
        """Give up what it holds."""


class OffsetStore:
    """The offsets of the queues that a consumer holds."""

    def __init__(self, backend: OffsetBackend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, tuple[int, int]] = {}
        # Whether the user says when an offset is to be stored; nothing moves by itself then.
        self.is_manual = False

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return dict(self._offsets)

    def get(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        return self._offsets.get(queue)

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The stored offset of a queue that is taken over."""
        return await self._backend.fetch(queue)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is done with."""
        if not self.is_manual and offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Consumption goes on at another offset, maybe an earlier one."""
        if not self.is_manual:
            self.set(queue, offset)

    def set(self, queue: MessageQueue, offset: int) -> None:
        """This offset and no other is to be stored."""
        self._offsets[queue] = offset
        self._written.pop(queue, None)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is somebody else's."""
        self._offsets.pop(queue, None)
        self._written.pop(queue, None)

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, surely: bool = False
    ) -> dict[MessageQueue, PenstockError]:
        """Write what changed, of all queues or of those given; what could not be written, and why."""
        wanted = self._offsets if queues is None else {q for q in queues if q in self._offsets}
        now = self._clock.monotonic_ms()
        due: dict[MessageQueue, int] = {}
        for queue in list(wanted):
            offset = self._offsets[queue]
            written, when = self._written.get(queue, (-1, 0))
            if offset != written or (not surely and now - when >= REPEAT_MS):
                due[queue] = offset
        if not due:
            return {}
        failed = await self._backend.store(due, surely=surely)
        for queue, offset in due.items():
            if queue not in failed and queue in self._offsets:
                self._written[queue] = (offset, now)
        return failed

    async def close(self) -> None:
        await self._backend.close()


class BrokerOffsets:
    """Kept by the master of each queue."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    async def fetch(self, queue: MessageQueue) -> int | None:
        return await self._calls.committed(queue)

    async def store(
        self, offsets: dict[MessageQueue, int], *, surely: bool
    ) -> dict[MessageQueue, PenstockError]:
        write = self._calls.commit if surely else self._calls.commit_unheard
        failed: dict[MessageQueue, PenstockError] = {}

        async def one(queue: MessageQueue, offset: int) -> None:
            try:
                await write(queue, offset)
            except PenstockError as error:
                logger.info("storing offset %d of %s: %s", offset, queue, error)
                failed[queue] = error

        await asyncio.gather(*(one(queue, offset) for queue, offset in offsets.items()))
        return failed

    async def close(self) -> None:
        """Nothing is held."""


class FileOffsets:
    """Kept in a file of this machine. Opened with the first use."""

    def __init__(self, directory: Path, name: str, group: str, runtime: Runtime) -> None:
        self._root = directory
        self._name = name
        self._group = group
        self._disk = runtime.disk
        self._lock: FileLock | None = None
        self._file: ConfigFile | None = None
        self._offsets: dict[MessageQueue, int] = {}
        self._saving = asyncio.Lock()

    @property
    def path(self) -> Path | None:
        """The file in use."""
        return self._file.path if self._file is not None else None

    async def fetch(self, queue: MessageQueue) -> int | None:
        async with self._saving:
            if self._file is None:
                await asyncio.to_thread(self._open)
        return self._offsets.get(queue)

    async def store(
        self, offsets: dict[MessageQueue, int], *, surely: bool
    ) -> dict[MessageQueue, PenstockError]:
        async with self._saving:
            content = ResetOffsetBody({**self._offsets, **offsets})
            try:
                await asyncio.to_thread(self._save, content)
            except PenstockError as error:
                logger.warning("storing offsets of group %s: %s", self._group, error)
                return dict.fromkeys(offsets, error)
            self._offsets = content.offsets
        return {}

    async def close(self) -> None:
        async with self._saving:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _open(self) -> None:
        folder = self._take_place()
        file = ConfigFile(self._disk, folder / "offsets.json")
        try:
            loaded = file.load(_parse)
        except CodecError as error:
            # Better to consume again than not at all; the file is left for whoever wants to look.
            logger.warning(
                "offsets of group %s cannot be read, starting without them: %s", self._group, error
            )
            loaded = None
        self._offsets = dict(loaded.value.offsets) if loaded is not None else {}
        self._file = file

    def _take_place(self) -> Path:
        """The first folder of this name that no other consumer uses."""
        for number in range(1, PLACES_MAX + 1):
            place = file_name(self._name if number == 1 else f"{self._name}-{number}")
            folder = self._root / place / file_name(self._group)
            try:
                self._disk.make_dirs(folder)
                self._lock = self._disk.lock(folder / "lock", b"")
            except BlockingIOError:
                continue
            except OSError as error:
                raise ClientError(
                    f"offsets of a broadcasting consumer cannot be kept in {folder}: {error.strerror}",
                    "set offset_directory to a directory that can be written",
                ) from error
            return folder
        raise ClientError(
            f"{PLACES_MAX} broadcasting consumers of group {self._group!r} run on this machine",
            "give them different values of instance_name",
        )

    def _save(self, content: ResetOffsetBody) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.save(content.to_json())


def _parse(value: JsonValue, source: str) -> ResetOffsetBody:
    return ResetOffsetBody.from_json(value)


def file_name(text: str) -> str:
    """A name for a file: the same for the same text, without meaning to the file system, not too long."""
    safe = quote(text, safe="@ +")
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    if len(safe) > 120:
        safe = f"{safe[:80]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return safe
