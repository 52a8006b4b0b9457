"""Brokers without messages that report to real coordinator processes as brokers must, and remember what they hear.

They show what a coordinator grants and decides, without the time that promotion and replication take.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.protocol.bodies.controller import SyncStateSet
from penstock.protocol.headers.controller import BrokerBeatResponseHeader
from tests.support.coordinator_wire import FakeBroker
from tests.support.server_processes import ServerProcess

BEAT_S = 0.25
BEAT_TIMEOUT_MS = 1_000


@dataclass
class Lease:
    """From when a beat was sent, by the broker's own clock."""

    sent_s: float
    until_s: float
    epoch: int
    term: int


@dataclass
class ReportingBroker:
    """Beats four times a second to whichever coordinator leads; obeys the highest epoch."""

    broker_id: int
    coordinators: list[ServerProcess]
    leases: list[Lease] = field(default_factory=list)
    # (time, epoch, master) of every change that it heard of.
    heard: list[tuple[float, int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = self._make(incarnation=1)
        self.epoch = 0
        self.term = 0
        self.master: int | None = None
        self.members: frozenset[int] = frozenset()
        self.set_epoch = 0
        self._is_registered = False
        self.leader: ServerProcess | None = None
        self._task: asyncio.Task[None] | None = None

    def _make(self, incarnation: int) -> FakeBroker:
        broker = FakeBroker(self.broker_id)
        broker.address = f"127.0.0.1:{20_000 + self.broker_id}"
        broker.incarnation = incarnation
        broker.on_notice = self._notified
        return broker

    def _notified(self) -> None:
        notice, told = self.broker.notices[-1], self.broker.told[-1]
        self._see(notice.term, notice.master_epoch, notice.master_broker_id, told)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def kill(self) -> float:
        """Gone without a word; when."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        killed_s = time.monotonic()
        await self.broker.close()
        return killed_s

    async def restart(self) -> None:
        self.broker = self._make(self.broker.incarnation + 1)
        self.epoch, self._is_registered = 0, False
        self.start()

    async def _run(self) -> None:
        while True:
            await self._round()
            await asyncio.sleep(BEAT_S)

    async def _round(self) -> None:
        for coordinator in sorted(self.coordinators, key=lambda one: one is not self.leader):
            if not coordinator.is_running:
                continue
            try:
                async with asyncio.timeout(BEAT_TIMEOUT_MS / 1000):
                    if await self._report(coordinator):
                        self.leader = coordinator
                        return
            except (PenstockError, TimeoutError):
                self.leader = None

    async def _report(self, coordinator: ServerProcess) -> bool:
        at: FakeBroker = self.broker
        if not self._is_registered:
            self._is_registered = await self._join(coordinator)
            if not self._is_registered:
                return False
        sent_s = time.monotonic()
        answer = await at.beat(coordinator, master_epoch=self.epoch)  # type: ignore[arg-type]
        if answer.code == 2010:
            self._is_registered = False
        if answer.code != 0:
            return False
        header = BrokerBeatResponseHeader.decode(answer.fields)
        self._see(header.term, header.master_epoch, header.master_broker_id, SyncStateSet.decode(answer.body))
        if header.lease_ms and header.master_epoch == self.epoch and header.term == self.term:
            self.leases.append(Lease(sent_s, sent_s + header.lease_ms / 1000, self.epoch, self.term))
        return True

    async def _join(self, coordinator: ServerProcess) -> bool:
        try:
            await self.broker.join(coordinator)  # type: ignore[arg-type]
        except (AssertionError, KeyError):
            return False
        return True

    def _see(self, term: int, epoch: int, master: int | None, members: SyncStateSet) -> None:
        if term < self.term or epoch < self.epoch:
            return
        self.term = term
        if epoch > self.epoch or not self.heard:
            self.heard.append((time.monotonic(), epoch, master))
        self.epoch, self.master = epoch, master
        self.members, self.set_epoch = members.members, members.epoch

    async def let_in(self, *members: int) -> None:
        """As a master: have these in the sync-state set, whatever it takes."""
        while self.members != frozenset(members):
            with contextlib.suppress(PenstockError):
                await self.broker.alter(
                    self.leader,  # type: ignore[arg-type]
                    *members,
                    epoch=self.epoch,
                    set_epoch=self.set_epoch,
                )
            await asyncio.sleep(0.1)

    def uncovered_s(self, since_s: float, until_s: float) -> float:
        """For how long in this time no lease covered it."""
        covered, total = since_s, 0.0
        for lease in sorted(self.leases, key=lambda one: one.sent_s):
            if lease.until_s <= covered or lease.sent_s >= until_s:
                continue
            total += max(0.0, lease.sent_s - covered)
            covered = max(covered, lease.until_s)
        return total + max(0.0, until_s - covered)


def check_leases(brokers: list[ReportingBroker]) -> None:
    """No two brokers ever had a lease at once, by the clock of this machine."""
    found = sorted(
        (lease.sent_s, lease.until_s, broker.broker_id) for broker in brokers for lease in broker.leases
    )
    latest: dict[int, float] = {}
    for sent_s, until_s, broker_id in found:
        for other, other_until_s in latest.items():
            if other != broker_id:
                assert other_until_s <= sent_s, f"{other} and {broker_id} had leases at {sent_s}"
        latest[broker_id] = max(latest.get(broker_id, 0.0), until_s)
