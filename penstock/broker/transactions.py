"""Transactions, assembled: the table of open ones, their ends, the checks, the requests.

Assembly only; each part's rules are in its own module. `recover` before sends are taken, `start` and `stop` as often
as this broker becomes master and stops being it.
"""

from __future__ import annotations

from penstock.broker.delay import DelayService
from penstock.broker.message_ids import UniqueIds
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.open_transactions import OpenTransactions
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.transactions import TransactionsProcessor
from penstock.broker.producers import Producers
from penstock.broker.send_rules import SendRules
from penstock.broker.topics import Topics
from penstock.broker.transaction_checks import TransactionChecks
from penstock.broker.transaction_ends import TransactionEnds
from penstock.broker.writing import MessageWriter
from penstock.message import HostAddress
from penstock.remoting import ProcessorTable
from penstock.runtime import Clock
from penstock.security import Guard
from penstock.store import MessageStore


class Transactions:
    """One for a broker."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        rules: SendRules,
        topics: Topics,
        offsets: ConsumerOffsets,
        producers: Producers,
        unique_ids: UniqueIds,
        clock: Clock,
        store_host: HostAddress,
        delay: DelayService,
        guard: Guard | None = None,
    ) -> None:
        self.open = OpenTransactions(options, store, offsets)
        self.ends = TransactionEnds(rules, store, writer, topics, self.open, unique_ids, clock, store_host)
        self.checks = TransactionChecks(
            options,
            store,
            writer,
            topics,
            offsets,
            producers,
            self.open,
            self.ends,
            clock,
            lambda: min(store.flusher.flushed_offset, delay.confirmed_offset()),
        )
        self._requests = TransactionsProcessor(options, store, writer, self.open, self.ends, clock, guard)

    def register(self, table: ProcessorTable) -> None:
        self._requests.register(table)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        for part in (self.open, self.checks, self._requests):
            part.reconfigure(options)

    def recover(self) -> None:
        """Know what is open; may run in a thread."""
        self.ends.forget()
        self.open.recover()

    def start(self) -> None:
        self.checks.start()

    async def stop(self) -> None:
        await self.checks.stop()
