"""The broker sets as a coordinator knows them that does not lead: a copy, at most 3 s old.

Who is alive it knows from the leader's entries in the registry, which may lag behind a little more.

How old it is, is known like this. Before it reads, it writes (its own entry in the registry). ZooKeeper lets nobody
read an older state than his own last answered write, so what is read is at least as new as the moment at which that
write was sent. Reads alone would prove nothing: a server that is cut off from the others answers them for a while.

Rules. The copy is refreshed every second. A question that finds it too old waits for the next one, 3 s at most; then
it is refused, and the refusal says how old the copy is. Owned by the coordinator's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from penstock.coordinator.broker_sets import read_sets
from penstock.coordinator.metadata import MetadataStore
from penstock.coordinator.registry import live_ids
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.topic_reports import SetName
from penstock.errors import MetadataError, RequestError
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.coordinator")
REFRESH_MS = 1_000


class RecordCopies:
    """See the module's text. `touch` writes something and returns when that was answered."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        touch: Callable[[], Awaitable[None]],
        *,
        stale_max_ms: int = 3_000,
        stale_wait_ms: int = 3_000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._touch = touch
        self._stale_max_ms = stale_max_ms
        self._stale_wait_ms = stale_wait_ms
        self._records: Mapping[SetName, SetRecord] = {}
        self._alive: Mapping[SetName, frozenset[int]] = {}
        self._as_of_ms: int | None = None
        self._wake = asyncio.Event()
        self._refreshed = asyncio.Event()
        self._is_failing = False

    @property
    def age_ms(self) -> int | None:
        """How old the copy may be; None before the first."""
        return None if self._as_of_ms is None else self._clock.monotonic_ms() - self._as_of_ms

    async def records(self) -> Mapping[SetName, SetRecord]:
        """The copy, once it is new enough."""
        try:
            async with asyncio.timeout(self._stale_wait_ms / 1000):
                while not self._is_fresh():
                    self._refreshed.clear()
                    self._wake.set()
                    await self._refreshed.wait()
        except TimeoutError as error:
            age = self.age_ms
            how_old = "there is none yet" if age is None else f"it is {age} ms old"
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the copy of the metadata here is too old: {how_old}, over {self._stale_max_ms}",
                "ask again, or another coordinator",
            ) from error
        return self._records

    def alive(self, name: SetName) -> frozenset[int]:
        """Ids of the members that the leader took for alive when the copy was made."""
        return self._alive.get(name, frozenset())

    def _is_fresh(self) -> bool:
        age = self.age_ms
        return age is not None and age <= self._stale_max_ms

    async def refresh(self) -> None:
        """One round."""
        sent_ms = self._clock.monotonic_ms()
        await self._touch()
        records = await read_sets(self._store)
        alive = {name: await live_ids(self._store, name) for name in records}
        self._records, self._alive = records, alive
        self._as_of_ms = sent_ms
        self._refreshed.set()

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.refresh()
                self._is_failing = False
            except MetadataError as error:
                if not self._is_failing:
                    self._is_failing = True
                    _LOG.warning("the copy of the metadata cannot be refreshed: %s", error)
            try:
                async with asyncio.timeout(REFRESH_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
