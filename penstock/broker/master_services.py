"""What only a master does besides answering: it delivers delayed messages, by level and by time, asks about
transactions, publishes what was staged, gives popped messages out and takes back what is not acknowledged, pushes to
clients, says which groups still need old messages, recognises what is sent again, and writes offsets to ZooKeeper
where they are to be there.

A slave gets all of that with its master's log. So these services run while the broker is master, begin with what the
log and the tables hold when it becomes one, and end before it stops being one. Owned by the event loop.
"""

from __future__ import annotations

import asyncio

from penstock.broker.delay import DelayService
from penstock.broker.idempotence import Idempotence
from penstock.broker.pop_service import PopService
from penstock.broker.publications import Publications
from penstock.broker.push_service import PushService
from penstock.broker.retention_groups import RetentionGroups
from penstock.broker.timer import TimerService
from penstock.broker.transactions import Transactions
from penstock.broker.zookeeper_offsets import ZooKeeperOffsets
from penstock.store.loop_flush import LoopFlusher


class MasterServices:
    """`start` and `stop` as often as the broker becomes master and stops being it; each twice is once."""

    def __init__(
        self,
        delay: DelayService,
        timers: TimerService,
        publications: Publications,
        transactions: Transactions,
        retention: RetentionGroups,
        flusher: LoopFlusher,
        clean_interval_ms: int,
        zookeeper: ZooKeeperOffsets | None = None,
        *,
        pop: PopService,
        sequences: Idempotence,
    ) -> None:
        self._sequences = sequences
        self._pop = pop
        self.push: PushService  # reads as pulls do, so it is made after them
        self._delay = delay
        self._timers = timers
        self._publications = publications
        self._transactions = transactions
        self._retention = retention
        self._flusher = flusher
        self._clean_interval_ms = clean_interval_ms
        self._zookeeper = zookeeper
        self._timer: asyncio.TimerHandle | None = None
        self.is_running = False

    async def recover(self) -> None:
        """Before sends are taken: finish what the master before was publishing when it ended, and know the offsets it
        knew."""
        if self._zookeeper is not None:
            await self._zookeeper.prepare()
        await asyncio.get_running_loop().run_in_executor(None, self._publications.recover)
        await self.read_log()

    async def read_log(self) -> None:
        """Know what the log says of transactions, of what was popped and of what was sent idempotently."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._transactions.recover)
        await loop.run_in_executor(None, self._pop.recover)
        await loop.run_in_executor(None, self._sequences.recover)

    def start(self) -> None:
        if self.is_running:
            return
        self.is_running = True
        self._publications.start(self._flusher)
        self._delay.start()
        self._timers.start()
        self._transactions.start()
        self._pop.start()
        self.push.start()
        if self._zookeeper is not None:
            self._zookeeper.lead()
        self._tell()

    def _tell(self) -> None:
        self._retention.tell()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._clean_interval_ms / 1000, self._tell)

    async def stop(self) -> None:
        """What is under way comes to its end; nothing new begins."""
        if not self.is_running:
            self._sequences.rest()  # it was about to lead, and did not
            return
        self.is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.push.stop()
        self._delay.pause()
        self._timers.pause()
        await self._transactions.stop()
        await self._pop.stop()
        await self._publications.stop()
        self._sequences.rest()
        if self._zookeeper is not None:
            await self._zookeeper.rest()
