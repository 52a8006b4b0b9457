"""All broker sets of a leading coordinator: the state machines, and the metadata store in which they write.

Rules. There are sets only while this coordinator leads, under one term; a new term begins with new ones, read from
the store. Each set's instructions are carried out in the order in which they came; a result that comes after the
lead was lost is dropped, and so are the requests that wait for it. Broker names are unique over clusters, because
RocketMQ's requests name a set by its broker name alone. A coordinator that was stopped or starved for a while has not
listened meanwhile: silence and leases that ran out in that time say nothing, and it waits anew before it elects.
Owned by the coordinator's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.coordinator.metadata import MetadataStore
from penstock.coordinator.replica_sets import ReplicaSet
from penstock.coordinator.set_messages import (
    Answer,
    Beat,
    Deposed,
    Instruction,
    Notify,
    Read,
    Request,
    Write,
)
from penstock.coordinator.set_record import ROOT, SetRecord
from penstock.coordinator.set_rules import SetPolicy
from penstock.coordinator.topic_reports import SetName
from penstock.errors import (
    EntryExistsError,
    MetadataError,
    MetadataFormatError,
    NoEntryError,
    RequestError,
    VersionConflictError,
)
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.coordinator")
LOAD_RETRY_S = 0.5
# Leases are looked at far more often than this; a longer gap means that nothing was heard in it.
STALL_MS = 500


class BrokerSets:
    """See the module's text. `notify` sends what brokers are told; `changed` is called after a record changed."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        policy: SetPolicy,
        *,
        notify: Callable[[Notify], None],
        changed: Callable[[SetName], None] = lambda _: None,
        deposed: Callable[[int], None] = lambda _: None,
        sets_max: int = 1_024,
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy
        self._notify = notify
        self._changed = changed
        self._deposed = deposed
        self._sets_max = sets_max
        self._term = 0
        self._sets: dict[SetName, ReplicaSet] = {}
        self._names: dict[str, SetName] = {}
        self._loaded = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last_token = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreadable: set[str] = set()
        self._awake_ms = 0
        self.elections = 0

    # -- leading ---------------------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        """Begin a term: read every set and claim it."""
        self.rest()
        self._term = term
        self._awake_ms = self._now()
        self._start(self._load(term))

    def resume(self) -> None:
        """Nothing was heard for a while: the lead was uncertain, or this process did not run."""
        self._awake_ms = self._now()
        for one in list(self._sets.values()):
            self._carry_out(one, one.resume(self._now()))

    def rest(self) -> None:
        """This coordinator does not lead (any more)."""
        self._term = 0
        self._sets.clear()
        self._names.clear()
        self._loaded.clear()
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                # Not 2007: that would say that it was surely not carried out, and it may be on its way.
                future.set_exception(
                    RequestError(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        "this coordinator does not lead any more",
                        "the request may have been carried out; ask the leader for the state of the set",
                    )
                )

    async def stop(self) -> None:
        self.rest()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, term: int) -> None:
        while self._term == term:
            try:
                found = await list_sets(self._store)
            except MetadataError as error:
                _LOG.warning("the broker sets cannot be read: %s; trying again", error)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            for name in found:
                self._begin(name)
            self._loaded.set()
            return

    def _begin(self, name: SetName) -> ReplicaSet:
        one = ReplicaSet(name.cluster, name.name, self._term, self._policy)
        self._sets[name] = one
        self._names[name.name] = name
        self._carry_out(one, one.begin())
        return one

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return self._loaded.is_set()

    @property
    def is_settled(self) -> bool:
        """Whether every set has been read: what is known here is what holds."""
        return self.is_loaded and all(one.record is not None or one.is_empty for one in self._sets.values())

    def names(self) -> list[SetName]:
        return sorted(self._sets)

    def find(self, broker_name: str) -> SetName | None:
        return self._names.get(broker_name)

    def get(self, name: SetName) -> ReplicaSet | None:
        return self._sets.get(name)

    def records(self) -> dict[SetName, SetRecord]:
        return {name: one.record for name, one in sorted(self._sets.items()) if one.record is not None}

    def is_alive(self, one: ReplicaSet, broker_id: int) -> bool:
        return one.members.is_alive(broker_id, self._now())

    def is_live(self, name: SetName) -> bool:
        """Whether a set has a master that is there."""
        one = self._sets.get(name)
        return (
            one is not None
            and one.record is not None
            and one.members.is_alive(one.record.master_id, self._now())
        )

    # -- requests --------------------------------------------------------------------------------------------

    async def ask(self, name: SetName, request: Request, timeout_ms: int, *, is_new: bool = False) -> Answer:
        """Have a set carry out a request. `is_new`: it may be one that makes the set."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._loaded.wait()
                return await self._submit(name, request, timeout_ms, is_new)
        except TimeoutError as error:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the metadata store did not answer within {timeout_ms} ms",
                "the request may have been carried out; ask for the state of the set",
            ) from error

    async def _submit(self, name: SetName, request: Request, timeout_ms: int, is_new: bool) -> Answer:
        one = self._sets.get(name)
        if one is None:
            self._check_new(name, is_new)
            one = self._begin(name)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._last_token += 1
        token, now_ms = self._last_token, self._now()
        self._waiting[token] = future
        try:
            self._carry_out(one, one.submit(token, request, now_ms, now_ms + timeout_ms))
            return await future
        finally:
            self._waiting.pop(token, None)
            if one.is_empty and self._sets.get(name) is one:
                del self._sets[name], self._names[name.name]

    def _check_new(self, name: SetName, is_new: bool) -> None:
        known = self._names.get(name.name)
        if not is_new:
            raise RequestError(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"there is no broker set {name.name} in cluster {name.cluster}",
                "apply for a broker id first (1012, 1013)",
            )
        if known is not None:
            raise RequestError(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"the broker name {name.name} is taken in cluster {known.cluster}",
                "names are unique over clusters",
            )
        if len(self._sets) >= self._sets_max:
            raise RequestError(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"there are {len(self._sets)} broker sets, which is the limit",
                "raise coordinator.sets_max",
            )

    def beat(self, name: SetName, beat: Beat, *, is_sure: bool) -> Answer:
        """A broker reports."""
        self._notice_stall()
        one = self._sets.get(name)
        if one is None:
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            if not self.is_loaded:
                code = ResponseCode.SYSTEM_BUSY
            return Answer(0, code, f"broker set {name.name} is not known here")
        # Its own answer comes first, and always; what follows from it is carried out like anything else.
        answer, *rest = one.beat(0, beat, self._now(), is_sure=is_sure)
        if not isinstance(answer, Answer):
            raise AssertionError("broken invariant: a beat is answered first")
        self._carry_out(one, rest)
        return answer

    def dropped(self, connection: int) -> None:
        self._notice_stall()
        for one in list(self._sets.values()):
            self._carry_out(one, one.dropped(connection, self._now()))

    def tick(self) -> None:
        """Leases end by time alone. Called every 50 ms or so while this coordinator leads."""
        self._notice_stall()
        now_ms = self._now()
        for one in list(self._sets.values()):
            instructions = one.tick(now_ms)
            if instructions:
                self._carry_out(one, instructions)

    def _notice_stall(self) -> None:
        now_ms = self._now()
        if now_ms - self._awake_ms > STALL_MS:
            _LOG.warning(
                "this coordinator did not run for %d ms; leases are waited for", now_ms - self._awake_ms
            )
            self.resume()
        self._awake_ms = now_ms

    # -- instructions ----------------------------------------------------------------------------------------

    def _carry_out(self, one: ReplicaSet, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Answer):
                future = self._waiting.get(instruction.token) if isinstance(instruction.token, int) else None
                if future is not None and not future.done():
                    future.set_result(instruction)
            elif isinstance(instruction, Notify):
                self._tell(instruction)
            elif isinstance(instruction, Write):
                self._start(self._write(one, instruction))
            elif isinstance(instruction, Read):
                self._start(self._read(one, instruction))
            elif isinstance(instruction, Deposed):
                _LOG.warning("broker set %s belongs to a coordinator of term %d", one.name, instruction.term)
                self._deposed(instruction.term)

    def _tell(self, notice: Notify) -> None:
        record = notice.record
        self.elections += 1
        _LOG.info("broker %s is master of %s in epoch %d", record.master_id, record.name, record.master_epoch)
        self._notify(notice)

    async def _read(self, one: ReplicaSet, read: Read) -> None:
        try:
            entry = await self._store.get(read.path)
            record = None if entry is None else SetRecord.decode(entry.value, read.path)
        except MetadataError as error:
            if isinstance(error, MetadataFormatError) and read.path not in self._unreadable:
                self._unreadable.add(read.path)
                _LOG.error("%s", error)
            self._report(one, one.failed, str(error))
            return
        self._report(one, one.loaded, record, None if entry is None else entry.version)

    async def _write(self, one: ReplicaSet, write: Write) -> None:
        try:
            version = await self._change(write)
        except (EntryExistsError, NoEntryError, VersionConflictError):
            self._report(one, one.conflict)
        except MetadataError as error:
            if error.outcome_unknown:
                _LOG.warning("%s: %s; it is read again", write.path, error)
                self._report(one, one.unknown)
            else:
                self._report(one, one.failed, str(error))
        else:
            self._report(one, one.written, version)

    async def _change(self, write: Write) -> int | None:
        if write.record is None:
            await self._store.delete(write.path, write.version)
            return None
        value = write.record.encode()
        if write.version is None:
            return (await self._store.create(write.path, value)).version
        return (await self._store.set(write.path, value, write.version)).version

    def _report(self, one: ReplicaSet, report: Callable[..., list[Instruction]], *what: object) -> None:
        name = SetName(one.cluster, one.name)
        if self._sets.get(name) is not one:
            return
        before = one.record
        self._carry_out(one, report(*what, self._now()))
        if one.record != before:
            self._changed(name)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a change of a broker set failed", exc_info=task.exception())

    def _now(self) -> int:
        return self._clock.monotonic_ms()


async def list_sets(store: MetadataStore) -> list[SetName]:
    """The sets that have an entry."""
    found = []
    for cluster in await store.children(ROOT):
        found += [SetName(cluster, name) for name in await store.children(f"{ROOT}/{cluster}")]
    return found


async def read_sets(store: MetadataStore) -> Mapping[SetName, SetRecord]:
    """All records; those that cannot be read are left out, which their leader logs."""
    found = {}
    for name in await list_sets(store):
        path = f"{ROOT}/{name.cluster}/{name.name}"
        entry = await store.get(path)
        if entry is not None and entry.value:
            try:
                found[name] = SetRecord.decode(entry.value, path)
            except MetadataFormatError as error:
                _LOG.debug("%s", error)
    return found
