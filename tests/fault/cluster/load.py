"""Clients of the cluster: producers that demand replication, and two groups that the coordinators balance.

What counts as acknowledged is what the broker said was replicated; a message that is stored and not known to be so is
of unknown outcome. Members of a group leave and join while the others work. `Watch` looks from outside, all the time:

    committed offsets    every broker is asked; an answer never says less than one that was there before the question
    owners               no two members of a group have a lease of the same queue that counts at the same moment
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import penstock
from penstock.client.claims import Claims
from penstock.client.results import SendResult
from penstock.errors import ClientClosedError, PenstockError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import QueryConsumerOffsetRequestHeader
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from tests.fault.client_load import AUDIT, WORKERS, Load
from tests.fault.operation_history import History, Outcome, Send

QUERY_TIMEOUT_MS = 2_000
LOOK_S = 0.05
ASK_EVERY = 10


class ReplicatedHistory(History):
    """Where only what was replicated is acknowledged."""

    def stored(self, send: Send, result: SendResult) -> None:
        super().stored(send, result)
        if result.durability != "replicated":
            send.outcome, send.error = Outcome.UNKNOWN, f"{result.status}, {result.durability or 'unsaid'}"


class ClusterLoad(Load):
    """Load whose groups are balanced by the coordinators and change their members."""

    def __init__(self, name_servers: str, coordinators: str, history: History) -> None:
        super().__init__(
            name_servers,
            history,
            producer_settings={"durability": "replicated", "retries": 2},
            consumer_settings={
                "balance": "coordinator",
                "coordinators": coordinators,
                "coordinator_interval_ms": 1_000,
                "persist_interval_ms": 500,
            },
        )
        self._names = itertools.count(self._members)
        self._left: str = ""

    @property
    def consumers(self) -> Sequence[penstock.Consumer]:
        return tuple(self._consumers)

    def leave(self, is_worker: bool) -> None:
        """One member of a group goes."""
        self._left = WORKERS if is_worker else AUDIT
        one = next(consumer for consumer in self._consumers if consumer.group == self._left)
        one.close()
        self._consumers.remove(one)

    def join(self) -> None:
        """Another comes in its place."""
        begin, letter = (self._begin_worker, "w") if self._left == WORKERS else (self._begin_audit, "a")
        begin(f"{letter}{next(self._names)}")


@dataclass(frozen=True, slots=True)
class Told:
    """An offset that a broker told, and when."""

    at: float
    broker: str
    group: str
    queue: int
    offset: int


class Watch:
    """See the module's text. `wrong` is what must never be."""

    def __init__(self, brokers: Sequence[str], load: ClusterLoad) -> None:
        self._brokers = brokers
        self._load = load
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._highest: dict[tuple[str, int], Told] = {}
        self._failure: BaseException | None = None
        self.wrong: list[str] = []
        self.told: list[Told] = []
        self.looks = 0
        self.held: dict[tuple[str, MessageQueue], set[str]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:
            self._failure = error

    async def _watch(self) -> None:
        client = RemotingClient(runtime=Runtime.system())
        try:
            for turn in itertools.count():
                if self._stopping.is_set():
                    return
                self.look()
                if turn % ASK_EVERY == 0:
                    await self.ask(client)
                await asyncio.sleep(LOOK_S)
        finally:
            await client.close()

    # -- committed offsets -----------------------------------------------------------------------------------

    async def ask(self, client: RemotingClient) -> None:
        """Everybody is asked at the same time, and their answers compared with those of earlier rounds."""
        calls = [
            self._told(client, address, group, queue)
            for address in self._brokers
            for group in (WORKERS, AUDIT)
            for queue in range(self._load.history.queues)
        ]
        found = [one for one in await asyncio.gather(*calls) if one is not None]
        for one in found:
            before = self._highest.get((one.group, one.queue))
            if before is not None and one.offset < before.offset:
                self.wrong.append(f"a committed offset went back: {before}, then {one}")
        for one in found:
            before = self._highest.get((one.group, one.queue))
            if before is None or one.offset > before.offset:
                self._highest[one.group, one.queue] = one
        self.told += found

    async def _told(self, client: RemotingClient, address: str, group: str, queue: int) -> Told | None:
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=self._load.history.topic, queue_id=queue
        )
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        with contextlib.suppress(PenstockError):
            answer = await client.call(address, command, QUERY_TIMEOUT_MS)
            if answer.code == 0:
                return Told(time.monotonic(), address, group, queue, int(answer.fields["offset"]))
        return None

    # -- owners ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Leases are read twice: one that is the same both times was held in between, when the others were read."""
        consumers = self._load.consumers
        first = [_leases(one) for one in consumers]
        second = [_leases(one) for one in consumers]
        holders: dict[tuple[str, MessageQueue], list[str]] = {}
        for one, before, after in zip(consumers, first, second, strict=True):
            for queue, asked_ms in before.items():
                if after.get(queue) == asked_ms:
                    holders.setdefault((one.group, queue), []).append(one.client_id)
        for key, those in holders.items():
            self.held.setdefault(key, set()).update(those)
            if len(those) > 1:
                self.wrong.append(f"{time.monotonic():.3f}: {key} has the owners {those}")
        self.looks += 1


def _leases(consumer: penstock.Consumer) -> dict[MessageQueue, int]:
    """The leases that count at this moment by the consumer's own clock."""
    try:
        core = consumer.core
    except ClientClosedError:
        return {}
    claims = core.locker
    assert isinstance(claims, Claims)
    now_ms = core.clock.monotonic_ms()
    return {
        queue: asked_ms
        for queue, asked_ms in dict(claims.leases).items()
        if now_ms < asked_ms + claims.expiry_ms
    }
