"""Coordinators on free ports over one metadata store in memory, and brokers that report to them over sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.server import Coordinator
from penstock.protocol.bodies.controller import SyncStateSet, TopicTableReport
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import (
    BrokerBeatRequestHeader,
    BrokerBeatResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable, RemotingClient
from penstock.runtime import Runtime
from penstock.testing.metadata import MemoryEnsemble
from tests.waiting import until

# Quicker than in earnest, but not so quick that a busy machine looks like a dead broker.
QUICK: dict[str, Any] = {
    "port": 0,
    "master_lease_ms": 800,
    "lease_margin_ms": 20,
    "lease_scan_ms": 10,
    "broker_silent_ms": 800,
    "scan_interval_ms": 50,
    "promotion_timeout_ms": 2_000,
}


@contextlib.asynccontextmanager
async def coordinator(
    ensemble: MemoryEnsemble | None = None, *, parts: tuple[Any, ...] = (), **options: Any
) -> AsyncIterator[Coordinator]:
    """A running one; `QUICK` unless told otherwise."""
    server = Coordinator(
        CoordinatorOptions(**{**QUICK, **options}),
        (ensemble or MemoryEnsemble()).client(),
        runtime=Runtime.system(),
        parts=parts,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class FakeBroker:
    """What a broker says to its coordinators, one connection each; it obeys nothing."""

    def __init__(self, broker_id: int = 1, name: str = "broker-a", cluster: str = "c") -> None:
        self.id = broker_id
        self.name = name
        self.cluster = cluster
        self.address = f"10.0.0.{broker_id}:10911"
        self.incarnation = 1
        self.epoch = 0
        self.beats = 0
        self.notices: list[NotifyBrokerRoleChangedRequestHeader] = []
        self.told: list[SyncStateSet] = []
        self.on_notice: Callable[[], None] | None = None
        table = ProcessorTable()
        table.register(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self._notified)
        table.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self._create_topic)
        self.created: list[dict[str, str]] = []
        self.client = RemotingClient(table, runtime=Runtime.system())

    def _notified(self, connection: Connection, command: Command) -> None:
        self.notices.append(NotifyBrokerRoleChangedRequestHeader.decode(command.fields))
        self.told.append(SyncStateSet.decode(command.body))
        if self.on_notice is not None:
            self.on_notice()

    def _create_topic(self, connection: Connection, command: Command) -> Command:
        self.created.append(command.fields)
        return command.answer()

    async def ask(self, at: Coordinator, code: int, body: bytes = b"", **fields: Any) -> Command:
        texts = {name: _text(value) for name, value in fields.items()}
        return await self.client.call(at.address, Command(code, texts, body), timeout_ms=60_000)

    async def join(self, at: Coordinator) -> Command:
        """Take an id, register; become master if nobody is."""
        who = {"clusterName": self.cluster, "brokerName": self.name}
        answer = await self.ask(
            at,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            **who,
            appliedBrokerId=self.id,
            registerCheckCode=f"code-{self.id}",
        )
        assert answer.code == 0, answer.remark
        answer = await self.register(at)
        if "masterBrokerId" not in answer.fields:
            answer = await self.elect(at, self.id)
        self.epoch = int(answer.fields["masterEpoch"])
        return answer

    async def register(self, at: Coordinator, **fields: Any) -> Command:
        answer = await self.ask(
            at,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            **{
                "clusterName": self.cluster,
                "brokerName": self.name,
                "brokerId": self.id,
                "brokerAddress": self.address,
                "haAddress": self.address.replace("10911", "10912"),
                "incarnation": self.incarnation,
                "maxEpoch": self.epoch,
                **fields,
            },
        )
        assert answer.code == 0, answer.remark
        return answer

    async def elect(self, at: Coordinator, broker_id: int = -1, *, designate: bool = False) -> Command:
        return await self.ask(
            at,
            RequestCode.CONTROLLER_ELECT_MASTER,
            clusterName=self.cluster,
            brokerName=self.name,
            brokerId=broker_id,
            designateElect=designate,
        )

    async def beat(self, at: Coordinator, topics: Any = None, **changes: Any) -> Command:
        header = BrokerBeatRequestHeader(
            **{
                "cluster_name": self.cluster,
                "broker_name": self.name,
                "broker_id": self.id,
                "broker_address": self.address,
                "ha_address": self.address.replace("10911", "10912"),
                "incarnation": self.incarnation,
                "master_epoch": self.epoch,
                **changes,
            }
        )
        body = b"" if topics is None else TopicTableReport(topics).encode()
        return await self.client.call(
            at.address, Command(RequestCode.BROKER_BEAT, header.encode(), body), timeout_ms=60_000
        )

    async def state(self, at: Coordinator, **changes: Any) -> BrokerBeatResponseHeader:
        answer = await self.beat(at, **changes)
        assert answer.code == 0, answer.remark
        return BrokerBeatResponseHeader.decode(answer.fields)

    async def alter(self, at: Coordinator, *members: int, epoch: int, set_epoch: int) -> Command:
        return await self.ask(
            at,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            SyncStateSet(frozenset(members), set_epoch).encode(),
            brokerName=self.name,
            masterBrokerId=self.id,
            masterEpoch=epoch,
        )

    async def keep_beating(self, at: Coordinator) -> None:
        """Every 50 ms, in the epoch that the answer names, until cancelled."""
        while True:
            with contextlib.suppress(Exception):
                self.epoch = (await self.state(at)).master_epoch
                self.beats += 1
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self.client.close()


@contextlib.asynccontextmanager
async def brokers(*ids: int, **values: Any) -> AsyncIterator[list[FakeBroker]]:
    found = [FakeBroker(broker_id, **values) for broker_id in ids]
    try:
        yield found
    finally:
        for broker in found:
            await broker.close()


@contextlib.asynccontextmanager
async def beating(at: Coordinator, *those: FakeBroker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(broker.keep_beating(at)) for broker in those]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def leading(*those: Coordinator) -> Coordinator:
    """Whoever leads, once somebody does and has read everything."""
    await until(lambda: any(one.leadership.is_sure and one.sets.is_settled for one in those))
    return next(one for one in those if one.leadership.is_sure)


def run(test: Callable[..., Awaitable[None]], *ids: int, **options: Any) -> None:
    """Run a test with one leading coordinator and brokers that have joined it."""

    async def go() -> None:
        async with coordinator(**options) as server, brokers(*ids) as those:
            await leading(server)
            for broker in those:
                await broker.join(server)
            await test(server, *those)

    asyncio.run(go())


def body_of(answer: Command) -> Any:
    return json.loads(answer.body)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
