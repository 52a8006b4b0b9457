"""Topics, groups, offsets, progress of delays and timers travel beside the log, from a master to a replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.delay import DelayService
from penstock.broker.flow_control import FlowControl
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.side_tables import SideTables
from penstock.broker.statistics import Statistics
from penstock.broker.table_journal import OLD_FILE_NAME
from penstock.broker.timer import TimerService
from penstock.broker.timer_progress import TimerProgress
from penstock.broker.topics import Topics
from penstock.broker.writing import MessageWriter
from penstock.errors import CodecError, RequestError, StoreError
from penstock.message import Message
from penstock.metadata.offset_table import DelayOffsetTable
from penstock.metadata.table_log import frame
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.replication import HaServer, ReplicationOptions
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions
from penstock.store.epochs import EpochFile
from penstock.store.layout import StorePaths
from penstock.store.loop_flush import LoopFlusher
from tests.unit.broker.journals import journal
from tests.waiting import turns, until


class Node:
    """One broker's tables over a real store, without sockets."""

    def __init__(self, folder: Path, *, replica: bool = False) -> None:
        runtime, options = Runtime.system(), BrokerOptions()
        store_options = StoreOptions(
            segment_size_bytes=1 << 20, queue_file_entries=100, max_message_size_bytes=1 << 16
        )
        self.store = MessageStore.open(
            folder, store_options, runtime=runtime, background=False, replica=replica
        )
        config = folder / "config"
        self.journal = journal(config)
        self.topics = Topics(options, runtime, self.journal)
        self.groups = Groups(options, runtime, self.journal)
        self.offsets = ConsumerOffsets(options, runtime, self.journal)
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        flusher = LoopFlusher(self.store)
        clock = runtime.clock
        flow = FlowControl(options, store_options, clock)
        writer = MessageWriter(self.store, flusher, flow, Statistics(clock, "c"), clock)
        self.delays = DelayService(options, self.store, writer, flusher, runtime, self.journal)
        self.delays.load()
        self.timers = TimerService(options, self.store, writer, flusher, runtime, StorePaths(folder))
        self.timers.load()
        self.tables = SideTables(
            self.store, self.topics, self.groups, self.offsets, self.delays, self.timers, self.journal
        )
        self.tables.recover()
        epochs = EpochFile.open(runtime.disk, folder / "epochs", self.store.log.max_offset)
        self.server = HaServer(
            self.store, ReplicationOptions(), runtime, own_id=1, epochs=epochs, snapshot=self.tables.snapshot
        )

    def must_wait(self) -> bool:
        return self.tables.must_wait

    def lead(self, *members: int) -> None:
        self.server.lead(1, members or (1,), 1)
        self.tables.lead(self.server)

    def taken(self) -> list[bytes]:
        """What is sent from now on."""
        sent: list[bytes] = []
        real = self.server.send_tables

        def send(body: bytes) -> int:
            sent.append(body)
            return real(body)

        self.server.send_tables = send  # type: ignore[method-assign]
        return sent

    def state(self) -> tuple[object, ...]:
        return (
            dict(self.topics.all()),
            self.topics.data_version,
            dict(self.groups.all()),
            self.groups.data_version,
            {key: dict(queues) for key, queues in self.offsets.all()},
            self.delays.progress().offsets,
            self.timers.saver.safe,
        )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Node, Node]:
    return Node(tmp_path / "master"), Node(tmp_path / "replica", replica=True)


def run(pair: tuple[Node, Node], scenario: Callable[[], object]) -> None:
    async def inside() -> None:
        found = scenario()
        if asyncio.iscoroutine(found):
            await found

    try:
        asyncio.run(inside())
    finally:
        for node in pair:
            node.tables.step_down()
            asyncio.run(node.journal.close(is_saved=False))
            node.store.close()


def test_a_snapshot_makes_a_replica_what_its_master_is(pair: tuple[Node, Node]) -> None:
    master, replica = pair

    def scenario() -> None:
        master.topics.update(TopicConfig("orders", 4, 4))
        master.groups.get("workers")
        master.groups.forbid_read("workers", "orders", True)
        master.offsets.commit("workers", "orders", 2, 17)
        master.delays.follow(DelayOffsetTable(offsets={3: 5}))
        master.timers.follow(TimerProgress(1_700_000_000_250, 7))
        replica.topics.update(TopicConfig("stranger", 1, 1))
        replica.groups.get("strangers")
        replica.offsets.commit("strangers", "stranger", 0, 1)
        replica.tables.apply(master.tables.snapshot())
        assert replica.state() == master.state()
        assert replica.groups.is_read_forbidden("workers", "orders")
        replica.tables.apply(master.tables.snapshot())
        assert replica.state() == master.state()

    run(pair, scenario)


def test_changes_bring_a_replica_along_and_may_come_twice(pair: tuple[Node, Node]) -> None:
    master, replica = pair

    async def scenario() -> None:
        master.lead()
        sent = master.taken()
        replica.tables.apply(master.tables.snapshot())
        master.topics.update(TopicConfig("orders", 4, 4))
        master.topics.update(TopicConfig("others", 4, 4))
        master.groups.get("workers")
        master.groups.get("leavers")
        master.offsets.commit("workers", "orders", 2, 17)
        master.offsets.commit("workers", "orders", 3, 4)
        master.offsets.commit("leavers", "orders", 0, 4)
        await until(lambda: sent)
        assert len(sent) == 1  # gathered
        master.topics.delete("others")
        assert len(sent) == 2  # at once
        master.groups.delete("leavers")
        master.offsets.remove_group("leavers")
        master.offsets.commit("workers", "orders", 2, 9)  # backwards is allowed, and is what counts
        master.delays.follow(DelayOffsetTable(offsets={3: 5}))
        master.timers.follow(TimerProgress(1_700_000_000_250, 7))
        master.tables.send()
        for body in [one for one in sent for _ in range(2)]:
            replica.tables.apply(body)
        assert replica.state() == master.state()
        assert replica.offsets.query("workers", "orders", 2) == 9
        master.tables.send()
        assert len(sent) == 3  # nothing has changed

    run(pair, scenario)


def test_a_replica_sends_nothing_of_its_own(pair: tuple[Node, Node]) -> None:
    _, replica = pair

    def scenario() -> None:
        replica.topics.update(TopicConfig("orders", 4, 4))
        replica.tables.send()
        with pytest.raises(RequestError, match="not master"):
            replica.tables.check_master()

    run(pair, scenario)


@pytest.mark.invariant("I1")
def test_who_waits_is_told_when_every_member_has_it_and_not_otherwise(pair: tuple[Node, Node]) -> None:
    master, _ = pair

    async def scenario() -> None:
        master.lead()
        assert not master.must_wait()
        await master.tables.replicated()  # nobody else could be elected
        assert master.server.tracker is not None
        master.server.tracker.decided((1, 2), 2)
        assert master.must_wait()
        master.offsets.commit("workers", "orders", 2, 17)
        waiting = asyncio.ensure_future(master.tables.replicated())
        await turns()
        assert not waiting.done()
        master.server.tracker.joined(2, 0, has_tables=True)
        master.server.tracker.tables_acked(2, master.server.tracker.tables_sequence)
        await waiting
        late = asyncio.ensure_future(master.tables.replicated())
        await late  # nothing new
        master.offsets.commit("workers", "orders", 2, 18)
        lost = asyncio.ensure_future(master.tables.replicated())
        await turns()
        master.server.step_down()
        with pytest.raises(RequestError, match="stopped being master"):
            await lost

    run(pair, scenario)


def test_a_deleted_topic_takes_its_queues_along_and_a_new_one_of_its_name_begins_anew(
    pair: tuple[Node, Node],
) -> None:
    master, replica = pair

    def copy() -> None:
        start = replica.store.log.max_offset
        piece = master.store.slice_for_transfer(start, 1 << 20)
        if piece is not None:
            replica.store.append_replica(piece, start)
            piece.release()

    def scenario() -> None:
        master.lead()
        sent = master.taken()
        master.topics.update(TopicConfig("orders", 1, 1))
        for number in range(3):
            master.store.append(Message.of("orders", b"old %d" % number))
        copy()
        assert replica.store.max_offset("orders", 0) == 3
        master.store.append(Message.of("orders", b"old, and on its way"))
        master.store.delete_topics(["orders"])
        master.topics.delete("orders")
        replica.tables.apply(sent[-1])
        assert replica.store.max_offset("orders", 0) == 0
        master.topics.update(TopicConfig("orders", 1, 1))
        master.store.append(Message.of("orders", b"new"))
        copy()
        master.tables.send()
        replica.tables.apply(sent[-1])
        replica.tables.apply(master.tables.snapshot())
        for node in pair:
            assert [one.body for one in node.store.read("orders", 0, 0)] == [b"new"]
        assert replica.state() == master.state()

    run(pair, scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_killed_broker_has_what_it_sent_or_acknowledged(pair: tuple[Node, Node], tmp_path: Path) -> None:
    """No table's own file was written."""
    master, replica = pair

    def scenario() -> None:
        master.lead()
        sent = master.taken()
        replica.tables.apply(master.tables.snapshot())
        master.topics.update(TopicConfig("orders", 4, 4))
        master.offsets.commit("workers", "orders", 2, 17)
        master.tables.send()
        master.offsets.commit("workers", "orders", 2, 18)
        master.tables.send()
        for body in sent:
            replica.tables.apply(body)

    run(pair, scenario)
    for name in ("master", "replica"):
        assert not list((tmp_path / name / "config").glob("*.json"))
        again = Node(tmp_path / name, replica=True)
        assert again.offsets.query("workers", "orders", 2) == 18
        assert again.topics.get("orders") == TopicConfig("orders", 4, 4)
        asyncio.run(again.journal.close(is_saved=True))
        again.store.close()
        assert not list((tmp_path / name / "config").glob("tables.*"))


@pytest.mark.fault("F1")
def test_the_journal_that_0_1_left_is_taken_over(tmp_path: Path) -> None:
    """0.1 was killed as a member of a set: what it had acknowledged to its master is in `sideTables.log` alone."""
    master = Node(tmp_path / "master")
    master.topics.update(TopicConfig("orders", 4, 4))
    master.offsets.commit("workers", "orders", 2, 17)
    master.timers.follow(TimerProgress(1_700_000_000_250, 7))
    config = tmp_path / "replica" / "config"
    config.mkdir(parents=True)
    (config / OLD_FILE_NAME).write_bytes(frame(master.tables.snapshot()) + b"torn")

    async def scenario() -> None:
        first = Node(tmp_path / "replica", replica=True)
        assert first.state() == master.state()
        assert (config / OLD_FILE_NAME).exists()
        assert await first.offsets.stored.save()
        assert not (config / OLD_FILE_NAME).exists()
        await first.journal.close(is_saved=False)
        first.store.close()
        again = Node(tmp_path / "replica", replica=True)
        assert again.state() == master.state()
        again.store.close()
        master.store.close()

    asyncio.run(scenario())


@pytest.mark.fault("F4")
def test_what_a_replica_cannot_keep_it_does_not_take(pair: tuple[Node, Node]) -> None:
    master, replica = pair

    def scenario() -> None:
        def fail(*_: object) -> None:
            raise StoreError("no space")

        replica.journal.append = fail  # type: ignore[method-assign,assignment]
        with pytest.raises(StoreError):  # the connection ends, nothing is acknowledged
            replica.tables.apply(master.tables.snapshot())

    run(pair, scenario)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"topics":[]}', b'{"offsets":{"offsetTable":{"x":{}}}}', b'{"deleted":{"t":-1}}']
)
def test_what_cannot_be_read_changes_nothing(pair: tuple[Node, Node], body: bytes) -> None:
    _, replica = pair

    def scenario() -> None:
        before = replica.state()
        with pytest.raises(CodecError):
            replica.tables.apply(body)
        assert replica.state() == before

    run(pair, scenario)


@pytest.mark.invariant("I8")
def test_progress_of_delays_waits_for_the_messages_to_be_confirmed(pair: tuple[Node, Node]) -> None:
    """A replica that knew of a delivery whose message it has not got would lose the message."""
    master, _ = pair

    def scenario() -> None:
        confirmed = 0
        master.delays.confirmed_offset = lambda: confirmed
        master.store.append(Message.of(SCHEDULE_TOPIC, b"x"))
        master.store.flush()
        end = master.store.log.max_offset
        master.delays._unsafe.append((end, 3, 1))
        assert master.delays.progress().offsets == {}
        confirmed = end - 1
        assert master.delays.progress().offsets == {}
        confirmed = end
        assert master.delays.progress().offsets == {3: 1}

    run(pair, scenario)
