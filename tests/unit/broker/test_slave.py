"""A classic slave in one process with its master and a name server: what it follows, refuses and hands out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.classic_set import ClassicMaster, ClassicSlave
from penstock.broker.options import BrokerOptions, BrokerRole
from penstock.errors import OptionError
from penstock.message.column_answers import unpack
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import PullSysFlag
from penstock.runtime import Runtime
from tests.support.running_broker import Bench, polling, records, run, running, send_fields
from tests.support.staged import item, stage
from tests.waiting import until

QUICK = {"slave_sync_interval_ms": 50}


class Pair:
    """A master and its slave."""

    def __init__(self, master: Bench, slave: Bench) -> None:
        self.master, self.slave = master, slave

    async def follow(self) -> None:
        """Until the slave has the master's log."""
        mine, copied = self.master.broker.store.log, self.slave.broker.store.log
        await until(lambda: copied.max_offset == mine.max_offset > 0)

    @property
    def place(self) -> ClassicSlave:
        place = self.slave.broker.place
        assert isinstance(place, ClassicSlave)
        return place

    def lose_master(self) -> None:
        """As the slave sees it; the master can still be told what to do."""
        assert self.slave.broker.pulls is not None
        self.slave.broker.pulls.has_master = lambda: False


@asynccontextmanager
async def pair(
    path: Path, slave_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Pair]:
    names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
    await names.start()
    try:
        async with AsyncExitStack() as stack:
            known = {"name_servers": (names.address,), **options}
            master = await stack.enter_async_context(running(path / "master", **known))
            await master.broker.registration.wait_registered(60_000)
            mine = {**known, "broker_id": 1, "role": BrokerRole.SLAVE, **QUICK, **(slave_options or {})}
            slave = await stack.enter_async_context(running(path / "slave", **mine))
            found = Pair(master, slave)
            await until(lambda: found.place.slave.has_master)
            yield found
    finally:
        await names.stop()


# -- following -----------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-29")
def test_a_slave_has_its_masters_log_and_tables(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            master, slave = both.master.broker, both.slave.broker
            for number in range(5):
                assert (await both.master.client.send(body=b"%d" % number)).code == 0
            await both.master.client.heartbeat()
            master.offsets.commit("consumers", "T", 0, 3)
            await both.follow()
            await until(lambda: slave.offsets.query("consumers", "T", 0) == 3)
            assert dict(slave.topics.all()) == dict(master.topics.all())
            assert slave.topics.data_version == master.topics.data_version
            await until(lambda: slave.groups.find("consumers") == master.groups.find("consumers"))
            assert [m.body for m in slave.store.read("T", 0, 0, 10)] == [b"0", b"1", b"2", b"3", b"4"]
            # What the master has no more, the slave has no more either; offsets stay, as RocketMQ has it.
            answer = await both.master.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert answer.code == 0
            await until(lambda: slave.topics.get("T") is None)
            assert slave.store.max_offset("T", 0) == 0

    run(scenario)


def test_a_new_topic_is_known_at_once_or_made_of_the_log(tmp_path: Path) -> None:
    """The master may be gone before the next round; what was copied must be readable all the same."""

    async def scenario() -> None:
        async with pair(tmp_path, {"slave_sync_interval_ms": 3_600_000}) as both:
            slave = both.slave.broker
            await both.master.client.send("NEW")
            await until(lambda: slave.topics.get("NEW"))
            assert slave.topics.get("NEW") == both.master.broker.topics.get("NEW")
            tables = both.place.slave._tables
            tables._address = "127.0.0.1:1"  # nobody answers there
            tables.follow = lambda address: None  # type: ignore[method-assign]
            await both.master.client.send("LATER", queue=2)
            await until(lambda: slave.topics.get("LATER"))
            config = slave.topics.get("LATER")
            assert config is not None
            assert config.read_queue_nums == 3

    run(scenario)


def test_only_the_master_delivers_what_was_delayed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            await both.master.client.send(DELAY="1")
            await until(lambda: both.master.broker.store.max_offset("T", 0) == 1)
            await both.follow()
            slave = both.slave.broker
            assert slave.delay is not None
            assert slave.services is not None
            assert (slave.delay.delivered, slave.services.is_running) == (0, False)
            await until(lambda: slave.delay.offsets().offsets == {1: 1})  # type: ignore[union-attr]
            assert slave.store.max_offset("T", 0) == 1
            path = tmp_path / "slave" / "config" / "delayOffset.json"
            await until(path.exists)

    run(scenario)


# -- refusing ------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-28")
@pytest.mark.seed("S0-31")
def test_a_slave_takes_no_messages_and_no_commits_with_pulls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            await both.master.client.send()
            await both.follow()
            slave, client = both.slave.broker, both.slave.client
            await until(lambda: slave.topics.get("T"))
            before = slave.store.log.max_offset
            for _ in range(2):
                refused = await client.call(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
                assert (refused.code, "slave" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
            back = {
                "offset": "0",
                "group": "consumers",
                "delayLevel": "0",
                "originMsgId": "",
                "originTopic": "T",
            }
            await both.slave.client.heartbeat()
            refused = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert (await stage(client, [item(1)])).code != 0
            answer = await client.pull(sysFlag=int(PullSysFlag.COMMIT_OFFSET), commitOffset=1)
            assert answer.code == 0
            assert slave.offsets.query("consumers", "T", 0) == -1
            assert slave.store.log.max_offset == before

    run(scenario)


# -- handing out ---------------------------------------------------------------------------------------------


@pytest.mark.seed("S0-18")
@pytest.mark.seed("S1-28")
def test_a_slave_sends_consumers_to_its_master_while_it_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            for _ in range(3):
                await both.master.client.send()
            await both.follow()
            await until(lambda: both.slave.broker.topics.get("T"))
            pull = both.slave.client.pull
            found = await pull()
            assert (found.code, len(records(found.body))) == (0, 3)
            assert found.fields["suggestWhichBrokerId"] == "0"
            # Nothing here, and nothing to wait for: ask the master, at the same place.
            for offset in (3, 4, 1_000_000):
                answer = await pull(offset=offset, wait_ms=20_000)
                assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                assert answer.fields["suggestWhichBrokerId"] == "0"
                assert answer.fields["nextBeginOffset"] == str(offset)

    run(scenario)


@pytest.mark.seed("S1-88")
def test_without_its_master_a_slave_names_itself_and_holds_pulls_until_more_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            await both.master.client.send()
            await both.follow()
            await until(lambda: both.slave.broker.topics.get("T"))
            both.lose_master()
            pull = both.slave.client.pull
            found = await pull()
            assert (found.code, found.fields["suggestWhichBrokerId"]) == (0, "1")
            waiting = asyncio.create_task(pull(offset=1, wait_ms=60_000))
            ahead = asyncio.create_task(pull(offset=3, wait_ms=1_000))
            await until(lambda: len(polling(both.slave)) == 2)
            await both.master.client.send(body=b"copied")
            answer = await waiting
            assert [message.body for message in records(answer.body)] == [b"copied"]
            # Somebody who was further with the master is not led back: the messages may come yet.
            answer = await ahead
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.fields["nextBeginOffset"] == "3"

    run(scenario)


def test_a_slave_answers_scans_in_columns_as_its_master_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as both:
            for number in range(5):
                await both.master.client.send(body=b"body %d" % number)
            await both.follow()
            await until(lambda: both.slave.broker.topics.get("T"))
            scan = {
                "offset": 1,
                "maxMsgNums": 1_000,
                "maxMsgBytes": 1 << 20,
                "penstockPull": "scan",
                "columns": "queue_offset,body",
            }
            wanted = await both.master.client.pull(**scan)
            names = tuple(wanted.fields["columns"].split(","))
            assert unpack(names, wanted.body, 4).rows == 4
            for has_master in (True, False):
                if not has_master:
                    both.lose_master()
                answer = await both.slave.client.pull(**scan)
                assert (answer.code, answer.body) == (0, wanted.body)
                for name in ("columns", "storedBytes", "nextBeginOffset"):
                    assert answer.fields[name] == wanted.fields[name]

    run(scenario)


def test_a_master_names_a_slave_to_whoever_is_far_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path, memory_percent=0) as both:  # nothing counts as being in memory
            for _ in range(2):
                await both.master.client.send()
            await both.follow()
            await until(lambda: both.slave.broker.topics.get("T"))
            assert (await both.master.client.pull()).fields["suggestWhichBrokerId"] == "1"
            assert (await both.slave.client.pull()).fields["suggestWhichBrokerId"] == "1"
            both.master.broker.reconfigure(replace(both.master.broker.options, slave_reads=False))
            assert (await both.master.client.pull()).fields["suggestWhichBrokerId"] == "0"
            both.master.broker.reconfigure(replace(both.master.broker.options, slave_reads=True))
            await both.slave.broker.stop()
            place = both.master.broker.place
            assert isinstance(place, ClassicMaster)
            await until(lambda: not place.server.replicas())
            assert (await both.master.client.pull()).fields["suggestWhichBrokerId"] == "0"

    run(scenario)


# -- ports and options ---------------------------------------------------------------------------------------


@contextmanager
def free_port_before_a_taken_one() -> Iterator[int]:
    """The taken one; the one before it is bound as well, so that only a server that is told to listen gets it."""
    while True:
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            number = reserved.getsockname()[1] + 1
            try:
                taken = socket.create_server(("127.0.0.1", number))
            except OSError:
                continue
            with taken:
                yield number
                return


def test_slaves_are_told_the_true_replication_port(tmp_path: Path) -> None:
    """The port after the broker's may be somebody else's; one that was asked for may not."""

    async def scenario() -> None:
        with free_port_before_a_taken_one() as number:
            async with running(tmp_path / "habit", port=number - 1) as bench:
                place = bench.broker.place
                assert isinstance(place, ClassicMaster)
                assert place.ha_port != number
            broker = Broker(
                BrokerOptions(port=0, ha_port=number),
                bench.broker.store_options,
                tmp_path / "asked",
                runtime=Runtime.system(),
            )
            with pytest.raises(Exception, match=str(number)):
                await broker.start()

    run(scenario)


def test_a_slave_needs_an_id_of_its_own() -> None:
    with pytest.raises(OptionError, match="above 0"):
        BrokerOptions(role=BrokerRole.SLAVE)
    assert BrokerOptions(broker_id=2).is_slave
    assert not BrokerOptions(role=BrokerRole.SYNC_MASTER).is_slave
