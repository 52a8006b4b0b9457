"""A real coordinator, a real broker that reports to it, and consumers that it balances: all in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.coordinator.balancing import Balancing
from penstock.coordinator.balancing_part import BalancingPart
from penstock.coordinator.server import Coordinator
from penstock.message import Message
from penstock.protocol.bodies import MessageQueue
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, EmbeddedBroker
from penstock.testing.metadata import MemoryEnsemble
from tests.support.coordinator_wire import FakeBroker, coordinator, leading
from tests.waiting import PATIENT_SENDS, until

# No lease expires while its consumer lives, however slow the machine is.
LEASE_MS = 60_000
# For tests that wait for the leases of a dead consumer.
SHORT_LEASE = {"partition_lease_ms": 1_200}
# Times of the coordinator that let a test end soon; proportions as by default.
QUICK = {
    "first_balance_ms": 300,
    "balance_interval_ms": 2_000,
    "balance_gather_ms": 60,
    "balance_retry_ms": 150,
    "consumer_return_ms": 300,
    "broker_silent_ms": 2_000,
}


class Reporter(FakeBroker):
    """The reports of a real broker: its own topics, and its own answers to what a coordinator asks of it."""

    def __init__(self, node: EmbeddedBroker) -> None:
        assert node.broker is not None
        super().__init__(1, node.broker.options.broker_name)
        self.node = node
        self.address = node.broker_address
        self._unused = self.client
        self.client = RemotingClient(node.broker.table, runtime=Runtime.system())

    async def report(self, those: list[Coordinator]) -> None:
        """Beat at whoever leads, until cancelled."""
        joined: set[int] = set()
        while True:
            for at in those:
                if at.leadership.is_sure and at.sets.is_settled:
                    with contextlib.suppress(Exception):
                        if id(at) not in joined:
                            await self.join(at)
                            joined.add(id(at))
                        answer = await self.state(at, topics=self.topics(), topics_version=self._version())
                        self.epoch = answer.master_epoch
            await asyncio.sleep(0.05)

    def topics(self) -> dict[str, tuple[int, int, int]]:
        broker = self.node.broker
        found = broker.topics.all() if broker is not None else {}
        return {
            name: (topic.read_queue_nums, topic.write_queue_nums, int(topic.perm))
            for name, topic in found.items()
        }

    def _version(self) -> int:
        return hash(tuple(sorted(self.topics().items()))) & 0xFFFFFFFF

    async def close(self) -> None:
        await self._unused.close()
        await super().close()


@dataclass(slots=True)
class Cluster:
    """Everything that a test touches."""

    node: EmbeddedBroker
    ensemble: MemoryEnsemble
    coordinators: list[Coordinator]
    addresses: list[str]
    received: dict[str, list[str]] = field(default_factory=dict)

    @property
    def leader(self) -> Coordinator:
        return next(one for one in self.coordinators if one.leadership.is_sure)

    @property
    def balancing(self) -> Balancing:
        part = self.leader.parts[0]
        assert isinstance(part, BalancingPart)
        return part.balancing

    def consumer(self, name: str, group: str = "g", **settings: Any) -> AsyncConsumer:
        """One whose listener writes down what it got under the consumer's name."""
        got = self.received.setdefault(name, [])

        async def listen(message: Any) -> None:
            got.append(message.body.decode())

        given = {
            "listener": listen,
            "balance": "coordinator",
            "coordinators": self.addresses,
            "instance_name": name,
            "start_from": "first",
            "coordinator_interval_ms": 300,
            **settings,
        }
        return AsyncConsumer(self.node.address, group, **given)

    async def send(self, topic: str, texts: Iterable[str]) -> None:
        async with AsyncProducer(self.node.address, **PATIENT_SENDS) as producer:
            for number, text in enumerate(texts):
                message = Message(topic, text.encode())
                await producer.send(message, queue=await self.queue(producer, topic, number))

    async def queue(self, producer: AsyncProducer, topic: str, number: int) -> MessageQueue:
        queues = await producer.queues(topic)
        return queues[number % len(queues)]

    @property
    def everything(self) -> list[str]:
        return sorted(text for got in self.received.values() for text in got)


@contextlib.asynccontextmanager
async def cluster(
    path: Path | None = None,
    *,
    topics: dict[str, int] | None = None,
    coordinators: int = 1,
    broker: dict[str, Any] | None = None,
    ensemble: Any = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """`ensemble` hands out metadata stores, one for each coordinator; in memory unless another one is given."""
    node = EmbeddedBroker(path, broker=replace(BROKER, **{"partition_lease_ms": LEASE_MS, **(broker or {})}))
    ensemble = ensemble or MemoryEnsemble()
    async with contextlib.AsyncExitStack() as stack:
        await node.start()
        stack.push_async_callback(node.stop)
        those = [
            await stack.enter_async_context(
                coordinator(ensemble, parts=(BalancingPart,), **{**QUICK, **options})
            )
            for _ in range(coordinators)
        ]
        await leading(*those)
        reporter = Reporter(node)
        stack.push_async_callback(reporter.close)
        for topic, queues in (topics or {}).items():
            await create_topic(node, topic, queues)
        task = asyncio.create_task(reporter.report(those))
        try:
            found = Cluster(node, ensemble, those, [one.address for one in those])
            await until(lambda: bool(found.leader.topics.sets))
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def create_topic(node: EmbeddedBroker, topic: str, queues: int) -> None:
    from penstock.protocol.codes import RequestCode
    from penstock.protocol.command import Command

    client = RemotingClient(runtime=Runtime.system())
    number = str(queues)
    fields = {"topic": topic, "readQueueNums": number, "writeQueueNums": number, "perm": "6"}
    try:
        answer = await client.call(node.broker_address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        assert answer.code == 0, answer.remark
    finally:
        await client.close()


def shares(*consumers: AsyncConsumer, topic: str = "T") -> list[set[MessageQueue]]:
    return [{queue for queue in consumer.assignment if queue.topic == topic} for consumer in consumers]
