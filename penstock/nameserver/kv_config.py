"""The KV config: namespace -> { key -> value }, the only thing that a name server keeps over a restart.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:2"}}}

Rules: a change is on disk before it is visible and before it is answered; one that cannot be saved is refused
and not visible. Saves run one after another in a thread, because a sync may take long and the loop must not wait for
it. The file is the one that a Java name server writes. Owned by the server's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from pathlib import Path

from penstock.errors import RequestError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import JsonValue
from penstock.metadata.json_fields import JsonFields
from penstock.nameserver.options import NameServerOptions
from penstock.protocol.codes import ResponseCode
from penstock.protocol.identity import check_text
from penstock.runtime import Disk

_LOG = logging.getLogger("penstock.nameserver")
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
Table = dict[str, dict[str, str]]
# Changes that may wait for those before them to be saved.
CHANGES_MAX = 256


class KvConfig:
    """The table and its file, if it has one."""

    def __init__(self, options: NameServerOptions, disk: Disk) -> None:
        self._options = options
        self._table: Table = {}
        self._file = ConfigFile(disk, Path(options.kv_config_path)) if options.kv_config_path else None
        self._saving = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

    def load(self) -> None:
        """Read the file; raises CodecError if there is one and neither it nor its backup can be read."""
        if self._file is None:
            return
        loaded = self._file.load(_parse)
        if loaded is not None:
            self._table = loaded.value
            if loaded.is_backup:
                _LOG.warning("KV config read from %s: %s", loaded.path.name, loaded.main_problem)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        check_text("KV namespace", namespace)
        check_text("KV key", key)
        if len(value) > self._options.kv_value_chars_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"a KV value of {len(value)} characters",
                f"the limit is {self._options.kv_value_chars_max} (kv_value_chars_max)",
            )
        self._require_turn()
        await self._finish(self._put(namespace, key, value))

    async def delete(self, namespace: str, key: str) -> None:
        """Also of what is not there."""
        self._require_turn()
        await self._finish(self._delete(namespace, key))

    async def close(self) -> None:
        """Wait for changes under way."""
        while self._changes:
            await asyncio.wait(self._changes)

    async def _finish(self, change: Coroutine[None, None, None]) -> None:
        """A caller that goes away must not stop a save halfway and let the next one run beside it."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    async def _put(self, namespace: str, key: str, value: str) -> None:
        async with self._saving:
            self._require_room(namespace, key, value)
            await self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    async def _delete(self, namespace: str, key: str) -> None:
        async with self._saving:
            entries = self._table.get(namespace, {})
            if key in entries:
                await self._replace(namespace, {name: entries[name] for name in entries if name != key})

    def _require_turn(self) -> None:
        if len(self._changes) >= CHANGES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{CHANGES_MAX} changes of the KV config are under way", "try again"
            )

    def _require_room(self, namespace: str, key: str, value: str) -> None:
        known = self.get(namespace, key)
        if known is None and sum(map(len, self._table.values())) >= self._options.kv_entries_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the KV config has its limit of {self._options.kv_entries_max} entries",
                "delete some, or raise kv_entries_max",
            )
        used = sum(
            len(name) + len(text) for entries in self._table.values() for name, text in entries.items()
        )
        if used + len(key) + len(value) - len(known or "") > self._options.kv_chars_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the KV config has {used} of its {self._options.kv_chars_max} characters",
                "delete some, or raise kv_chars_max",
            )

    async def _replace(self, namespace: str, entries: dict[str, str]) -> None:
        """A namespace stays when its last key goes, as in RocketMQ; but not without end."""
        kept = self._table
        if len(kept) >= self._options.kv_entries_max:
            kept = {name: held for name, held in kept.items() if held}
        changed: Table = {**kept, namespace: entries}
        if self._file is not None:
            await asyncio.to_thread(self._file.save, {"configTable": {n: {**e} for n, e in changed.items()}})
        self._table = changed


def _log_failure(change: asyncio.Task[None]) -> None:
    if not change.cancelled() and (error := change.exception()) is not None:
        _LOG.error("a KV change whose caller went away was not saved: %s", error)


def _parse(value: JsonValue, source: str) -> Table:
    fields = JsonFields(value, source)
    namespaces = fields.inner("configTable")
    if namespaces is None:
        return {}
    return {name: namespaces.texts(name) for name, _ in fields.table("configTable")}
