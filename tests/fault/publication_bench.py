"""Publications on a store without sockets and threads, so that a disk can fail at any one of its changes.

A writer with a query id does what Spark's sink does: stages the rows of a batch, publishes them under the batch's
number, and after a failure publishes again or, where its handles lead nowhere any more, runs the batch again under
the same number. Rows are made from their numbers, so what readers see can be compared with what was written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.flow_control import FlowControl
from penstock.broker.groups import Groups
from penstock.broker.locks import QueueLocks
from penstock.broker.options import BrokerOptions
from penstock.broker.publications import Publications
from penstock.broker.send_rules import SendRules
from penstock.broker.staging import Handle, Staging
from penstock.broker.statistics import Statistics
from penstock.broker.table_journal import TableJournal
from penstock.broker.topics import Topics
from penstock.broker.writing import MessageWriter
from penstock.errors import RequestError
from penstock.message import HostAddress, Message
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.headers import StageMessagesRequestHeader
from penstock.runtime import Disk, Runtime
from penstock.store import Durability, FlushMode, MessageStore
from penstock.store.layout import StorePaths
from penstock.store.loop_flush import LoopFlusher
from penstock.testing import ManualClock
from penstock.testing.scratch_disk import ScratchDisk
from tests.support.store_checks import small_options

TOPICS = (("orders", 2), ("payments", 1))
TARGETS = [(topic, queue) for topic, queues in TOPICS for queue in range(queues)]
HOST = HostAddress("127.0.0.1", 40000).encode()
ROWS_PER_REQUEST = 6


def row_body(batch: int, row: int) -> bytes:
    return b"%d/%d|" % (batch, row) + b"." * (row * 37 % 160)


def place_of(batch: int, row: int) -> tuple[str, int]:
    return TARGETS[(batch + row) % len(TARGETS)]


class Life:
    """One life of a store with its publications; `Life.open` recovers what the life before has left."""

    def __init__(self, folder: Path, mode: FlushMode, disk: Disk | None = None) -> None:
        self.mode = mode
        clock = ManualClock()
        runtime = Runtime(clock=clock, disk=disk or ScratchDisk())
        options = BrokerOptions(port=0)
        store_options = small_options(flush_mode=mode, max_message_size_bytes=4_000, segment_size_bytes=8_192)
        self.store = MessageStore.open(folder, store_options, runtime=runtime, background=False)
        journal = self._journal = TableJournal(runtime.disk, StorePaths(folder).config)
        try:
            self.topics = Topics(options, runtime, journal)
            # Topics are another table's business (`test_broker_kill.py`); here they are always known.
            for topic, queues in TOPICS:
                self.topics.ensure(topic, queues)
            groups = Groups(options, runtime, journal)
            self.rules = SendRules(options, self.topics, groups, QueueLocks(options, clock), 0, runtime)
            flow = FlowControl(options, store_options, clock)
            statistics = Statistics(clock, options.cluster_name)
            self.publications = Publications(
                options, self.store, self.topics, self.rules, flow, statistics, runtime, journal
            )
            self.publications.recover()
            self.flusher = LoopFlusher(self.store)
            writer = MessageWriter(self.store, self.flusher, flow, statistics, clock)
            self.staging = Staging(self.store, self.rules, writer, 10_000)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Let go of all files as a crash would."""
        self._journal.abandon()
        self.store.abandon()

    async def run(self, work: Callable[[Life], object]) -> None:
        """Work with everything started, then stop what runs; the store stays open."""
        self.flusher.start()
        self.publications.start(self.flusher)
        try:
            outcome = work(self)
            if asyncio.iscoroutine(outcome):
                await outcome
        finally:
            await self.publications.stop()
            self.flusher.stop()

    def stage(self, batch: int, first: int, count: int) -> str:
        items = []
        for row in range(first, first + count):
            target = TARGETS.index(place_of(batch, row))
            text = b"UNIQ_KEY\x01B%dR%d\x02KEYS\x01k%d\x02" % (batch, row, row)
            items.append(encode_item(target, row_body(batch, row), text))
        header = StageMessagesRequestHeader(producer_group="sink", born_timestamp=7)
        key = f"S{batch}-{first}-{self.store.log.max_offset}"
        request, messages, _ = self.staging.request(header, encode_head(TOPICS) + b"".join(items), HOST, key)
        self.store.append_group([request], durability=Durability.MEMORY)
        return str(Handle(request.physical_offset, request.size, messages, key))

    def send(self, number: int) -> None:
        """An ordinary message between the others."""
        self.store.append(Message("orders", b"plain %d" % number), durability=Durability.MEMORY)

    def shown(self) -> Counter[tuple[str, int, bytes]]:
        """What readers see of the published topics, plain messages left out."""
        found: Counter[tuple[str, int, bytes]] = Counter()
        for topic, queue in TARGETS:
            for message in self.store.read(topic, queue, 0, 100_000):
                if not message.body.startswith(b"plain"):
                    found[topic, queue, message.body] += 1
        return found

    def shown_rows(self, batch: int) -> int:
        """How many rows of a batch are there: none or all, each once and in its place."""
        found = {key: count for key, count in self.shown().items() if key[2].startswith(b"%d/" % batch)}
        assert set(found.values()) <= {1}, f"rows of batch {batch} are there twice"
        return len(found)


@dataclass
class Sink:
    """What a writer knows of its batches, across crashes."""

    sizes: dict[int, int] = field(default_factory=dict)
    handles: dict[int, list[str]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)

    async def write(self, life: Life, batch: int, rows: int) -> None:
        """One batch, as often as it takes."""
        self.sizes[batch] = rows
        if batch not in self.handles:
            staged = [
                life.stage(batch, first, min(ROWS_PER_REQUEST, rows - first))
                for first in range(0, rows, ROWS_PER_REQUEST)
            ]
            self.handles[batch] = staged
        await life.publications.publish("query", batch, self.handles[batch])
        self.answered.add(batch)

    async def write_again(self, life: Life, batch: int) -> None:
        """After a crash: publish again; where the handles lead nowhere any more, run the batch again."""
        try:
            await self.write(life, batch, self.sizes[batch])
        except RequestError:
            self.handles.pop(batch, None)
            await self.write(life, batch, self.sizes[batch])

    def check(self, life: Life) -> None:
        """All or nothing of every batch; all of it where that was answered."""
        for batch, rows in self.sizes.items():
            found = life.shown_rows(batch)
            assert found in (0, rows), f"{found} of {rows} rows of batch {batch} are there"
            assert found == rows or batch not in self.answered, f"batch {batch} was answered and is gone"
            assert found == 0 or life.publications.published.last("query") is not None

    def check_all(self, life: Life) -> None:
        """Every batch is there, row for row, and nothing else."""
        expected = Counter(
            (*place_of(batch, row), row_body(batch, row))
            for batch, rows in self.sizes.items()
            for row in range(rows)
        )
        assert life.shown() == expected
