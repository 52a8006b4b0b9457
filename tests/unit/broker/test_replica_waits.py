"""Sends that wait for replicas: a master, and slaves whose acknowledgements the test sends itself."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.classic_set import ClassicMaster
from penstock.broker.options import BrokerRole
from penstock.broker.replica_waits import ClassicReplicas, ReplicaWait, replication_options
from penstock.errors import RequestError
from penstock.protocol.bodies.running import HARuntimeInfo
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import DURABILITY_FIELD
from penstock.replication import Outcome
from penstock.store import Durability, FlushMode
from tests.support.running_broker import STORE, Bench, batch_item, properties, run, running, send_fields
from tests.support.staged import item, publish, shown, staged
from tests.waiting import until

SYNC = replace(STORE, flush_mode=FlushMode.SYNC)
TWO: dict[str, Any] = {"role": "sync", "in_sync_replicas": 2, "slave_timeout_ms": 300}
# Where slaves acknowledge: no time runs out.
PATIENT = TWO | {"slave_timeout_ms": 60_000}


class HandSlave:
    """A classic slave that acknowledges what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.end = 0
        self.is_acking = False
        self._task = asyncio.create_task(self._read())

    @staticmethod
    async def connect(bench: Bench, *, first: int | None = None) -> HandSlave:
        place = bench.broker.place
        assert isinstance(place, ClassicMaster)
        slave = HandSlave(*await asyncio.open_connection("127.0.0.1", place.ha_port))
        slave.ack(bench.broker.store.log.max_offset if first is None else first)
        log = bench.broker.store.log
        await until(lambda: place.server.replicas() and slave.end >= log.max_offset)
        return slave

    def ack(self, offset: int) -> None:
        self.end = max(self.end, offset)
        self._writer.write(struct.pack(">q", offset))

    async def _read(self) -> None:
        while True:
            position, size = struct.unpack(">qi", await self._reader.readexactly(12))
            await self._reader.readexactly(size)
            self.end = position + size
            if self.is_acking:
                self.ack(self.end)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def master(path: Path, **options: Any) -> AsyncIterator[Bench]:
    role = BrokerRole.SYNC_MASTER if options.pop("role", "") == "sync" else BrokerRole.ASYNC_MASTER
    async with running(path, role=role, **options) as bench:
        yield bench


async def send(bench: Bench, demand: str | None = None, body: bytes = b"x", **props: str) -> Command:
    fields = send_fields(props=properties(**props))
    if demand is not None:
        fields[DURABILITY_FIELD] = demand
    return await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, body)


def said(answer: Command) -> tuple[int, str | None]:
    return answer.code, answer.fields.get(DURABILITY_FIELD)


@pytest.mark.seed("S1-32")
@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("fast", [False, True])
def test_a_synchronous_master_answers_when_its_slave_has_the_message(
    tmp_path: Path, flush: FlushMode, fast: bool
) -> None:
    async def scenario() -> None:
        store = replace(STORE, flush_mode=flush)
        async with master(tmp_path, store=store, fast=fast, **PATIENT) as bench:
            slave = await HandSlave.connect(bench, first=0)
            slave.is_acking = True
            for number in range(4):  # the later ones are the compiled way's, where there is one
                assert said(await send(bench, body=b"%d" % number)) == (0, "replicated")
            slave.is_acking = False
            waiting = asyncio.create_task(send(bench, body=b"late"))
            broker = bench.broker
            await until(lambda: broker.flow.waiting and slave.end >= broker.store.log.max_offset)
            slave.ack(slave.end - 1)  # all but the last byte of it
            place = broker.place
            assert isinstance(place, ClassicMaster)
            await until(lambda: [one.acked_offset for one in place.server.replicas()] == [slave.end - 1])
            assert not waiting.done()
            slave.ack(slave.end)
            assert said(await waiting) == (0, "replicated")
            assert bench.broker.flow.waiting == 0
            await slave.close()

    run(scenario)


@pytest.mark.seed("S0-22")
@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("fast", [False, True])
def test_a_slave_that_is_silent_makes_it_known_as_stored_here_only(
    tmp_path: Path, flush: FlushMode, fast: bool
) -> None:
    async def scenario() -> None:
        here = "flushed" if flush is FlushMode.SYNC else "memory"
        async with master(tmp_path, store=replace(STORE, flush_mode=flush), fast=fast, **TWO) as bench:
            slave = await HandSlave.connect(bench, first=0)
            for number in range(3):
                answer = await send(bench, body=b"%d" % number)
                assert said(answer) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, here)
                assert answer.fields["queueOffset"] == str(number)
            # It is stored all the same, and on an uncoordinated master it can be read.
            assert (await bench.client.pull()).code == 0
            await slave.close()

    run(scenario)


def test_whoever_does_not_want_to_wait_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path, **TWO) as bench:
            slave = await HandSlave.connect(bench, first=0)
            assert said(await send(bench, WAIT="false")) == (0, "memory")
            assert said(await send(bench, "memory")) == (0, "memory")
            assert said(await send(bench, "flushed")) == (0, "flushed")
            assert said(await send(bench, "default"))[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await slave.close()

    run(scenario)


@pytest.mark.parametrize("fast", [False, True])
def test_without_enough_slaves_in_sync_nothing_is_stored(tmp_path: Path, fast: bool) -> None:
    async def scenario() -> None:
        async with master(tmp_path, fast=fast, ha_max_gap_not_in_sync_bytes=1_000, **PATIENT) as bench:
            refused = await send(bench)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "IN_SYNC_REPLICAS_NOT_ENOUGH" in (refused.remark or "")
            assert bench.broker.store.log.max_offset == 0
            slave = await HandSlave.connect(bench, first=0)
            slave.is_acking = True
            for _ in range(3):
                assert said(await send(bench)) == (0, "replicated")
            # It falls behind by more than the gap: nobody waits for it any more.
            slave.is_acking = False
            for _ in range(6):
                await send(bench, "memory", body=bytes(300))
            before = bench.broker.store.log.max_offset
            assert "IN_SYNC_REPLICAS_NOT_ENOUGH" in ((await send(bench)).remark or "")
            assert said(await send(bench, "memory")) == (0, "memory")
            await until(lambda: slave.end > before)
            slave.ack(slave.end)
            slave.is_acking = True
            server = bench.broker.place.server  # type: ignore[union-attr]
            await until(lambda: not server.replicas()[0].behind_bytes)
            assert said(await send(bench)) == (0, "replicated")
            await slave.close()
            await until(lambda: not server.replicas())
            assert "IN_SYNC_REPLICAS_NOT_ENOUGH" in ((await send(bench)).remark or "")

    run(scenario)


def test_with_fewer_in_sync_a_master_that_may_waits_for_fewer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path, auto_in_sync_replicas=True, **TWO | {"slave_timeout_ms": 1_500}) as bench:
            assert said(await send(bench)) == (0, "memory")
            slave = await HandSlave.connect(bench, first=0)
            assert said(await send(bench))[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT
            slave.is_acking = True
            assert said(await send(bench)) == (0, "replicated")
            await slave.close()

    run(scenario)


@pytest.mark.seed("S3-52")
def test_replication_can_be_demanded_of_an_asynchronous_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path, slave_timeout_ms=1_500) as bench:
            assert "IN_SYNC_REPLICAS_NOT_ENOUGH" in ((await send(bench, "replicated")).remark or "")
            assert bench.broker.store.log.max_offset == 0
            slave = await HandSlave.connect(bench, first=0)
            assert said(await send(bench)) == (0, "memory")
            assert said(await send(bench, "replicated")) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "memory")
            slave.is_acking = True
            assert said(await send(bench, "replicated")) == (0, "replicated")
            fields = send_fields() | {DURABILITY_FIELD: "replicated", "m": "true"}
            batch = batch_item(b"one") + batch_item(b"two")
            answer = await bench.client.call(RequestCode.SEND_BATCH_MESSAGE, fields, batch)
            assert said(answer) == (0, "replicated")
            await slave.close()

    run(scenario)


def test_one_acknowledgement_answers_everybody_it_covers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path, store=SYNC, **TWO | {"slave_timeout_ms": 5_000}) as bench:
            slave = await HandSlave.connect(bench, first=0)
            slave.is_acking = True
            await send(bench)
            slave.is_acking = False
            waiting = [asyncio.create_task(send(bench, body=b"%d" % number)) for number in range(50)]
            broker = bench.broker
            await until(lambda: broker.flow.waiting == 50 and slave.end >= broker.store.log.max_offset)
            slave.ack(slave.end)
            assert {said(answer) for answer in await asyncio.gather(*waiting)} == {(0, "replicated")}
            assert bench.broker.flow.waiting == bench.broker.flow.waiting_bytes == 0
            await slave.close()

    run(scenario)


def test_a_master_that_stops_says_that_it_does_not_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = TWO | {"slave_timeout_ms": 60_000}
        async with master(tmp_path, store=replace(STORE, sync_flush_timeout_ms=200), **options) as bench:
            slave = await HandSlave.connect(bench, first=0)
            waiting = asyncio.create_task(send(bench))
            await until(lambda: bench.broker.flow.waiting)
            stopping = asyncio.create_task(bench.broker.stop())
            answer = await waiting
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.fields["penstockOutcome"] == "unknown"
            await stopping
            await slave.close()

    run(scenario)


class Lapsing:
    """Replicas of a broker that may lose the right to acknowledge at any moment, as in a coordinated set."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.is_lapsed = False
        self.waiting: list[Any] = []
        self.appends = 0

    def refusal(self, demand: Durability | None) -> RequestError | None:
        return None

    def appended(self) -> None:
        self.appends += 1

    def when_replicated(self, end: int, demand: Durability | None, callback: Any) -> None:
        self.waiting.append(callback)

    def lapsed(self) -> RequestError | None:
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "no lease") if self.is_lapsed else None


@pytest.mark.parametrize("fast", [False, True])
def test_whoever_may_not_acknowledge_any_more_says_nothing_certain(tmp_path: Path, fast: bool) -> None:
    """Also where nothing was waited for: the right is asked for after the message was stored."""

    async def scenario() -> None:
        async with master(tmp_path, fast=fast) as bench:
            assert bench.broker.writer is not None
            replicas: ReplicaWait = Lapsing(waits=False)
            assert isinstance(replicas, Lapsing)
            bench.broker.writer.replicas = replicas
            for _ in range(3):
                assert said(await send(bench)) == (0, "memory")
            replicas.is_lapsed = True
            for demand in (None, "memory", "flushed"):
                answer = await send(bench, demand)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert answer.fields["penstockOutcome"] == "unknown"
            assert bench.broker.flow.waiting == 0
            bench.broker.writer.replicas = waiting = Lapsing(waits=True)
            for outcome, lapsed in ((Outcome.TIMED_OUT, True), (Outcome.SUPERSEDED, False)):
                task = asyncio.create_task(send(bench))
                await until(lambda: bool(waiting.waiting))
                waiting.is_lapsed = lapsed
                waiting.waiting.pop()(outcome)
                answer = await task
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert answer.fields["penstockOutcome"] == "unknown"
            waiting.is_lapsed = True  # but the replicas have it: whoever is master now has it
            task = asyncio.create_task(send(bench))
            await until(lambda: bool(waiting.waiting))
            waiting.waiting.pop()(Outcome.REPLICATED)
            assert said(await task) == (0, "replicated")
            assert waiting.appends

    run(scenario)


@pytest.mark.seed("S0-32")
def test_what_is_needed_follows_the_options(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path, **TWO) as bench:
            place = bench.broker.place
            assert isinstance(place, ClassicMaster)
            options = replication_options(bench.broker.options)
            assert (options.in_sync_replicas, options.replica_timeout_ms) == (2, 300)
            sync = ClassicReplicas(place.server, options, is_sync=True)
            assert sync.waits
            assert sync.refusal(Durability.MEMORY) is None
            assert not ClassicReplicas(place.server, options, is_sync=False).waits
            alone = ClassicReplicas(place.server, replace(options, in_sync_replicas=1), is_sync=True)
            assert not alone.waits  # RocketMQ's default: a synchronous master that waits for nobody
            assert alone.refusal(None) is None

    run(scenario)


def test_a_publication_is_answered_when_the_slave_has_it_also_when_it_is_asked_for_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with master(tmp_path, **TWO) as bench:
            slave = await HandSlave.connect(bench, first=0)
            handle = await staged(bench.client, [item(number) for number in range(5)])
            for _ in range(2):
                answer = await publish(bench.client, "query", 1, [handle])
                assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
                assert answer.fields["penstockOutcome"] == "unknown"
            await until(lambda: slave.end >= bench.broker.store.log.max_offset)
            slave.ack(slave.end)
            assert (await publish(bench.client, "query", 1, [handle])).code == 0
            assert len(shown(bench)) == 5  # once, whatever was asked how often
            await slave.close()

    run(scenario)


def test_the_status_names_slaves_and_how_far_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with master(tmp_path) as bench:
            slave = await HandSlave.connect(bench, first=0)
            await send(bench)
            slave.is_acking = True
            await send(bench, "replicated")
            answer = await bench.client.call(RequestCode.GET_BROKER_HA_STATUS)
            status = HARuntimeInfo.decode(answer.body)
            end = bench.broker.store.log.max_offset
            assert (status.is_master, status.master_commit_log_max_offset) == (True, end)
            assert status.in_sync_slave_nums == 1
            (found,) = status.connections
            assert (found.slave_ack_offset, found.diff, found.in_sync) == (end, 0, True)
            await slave.close()

    run(scenario)
