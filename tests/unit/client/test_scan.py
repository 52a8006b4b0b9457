"""Bulk reading against a real broker in this process."""

import asyncio
import itertools
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import penstock
from penstock.client import scanning
from penstock.client.instance import ClientInstance
from penstock.client.loop_thread import LoopThread
from penstock.client.pull_socket import PullSockets
from penstock.client.received import decode_records
from penstock.client.scan import AsyncScan, PullStatus, QueueId, Scan
from penstock.errors import (
    ClientClosedError,
    ConnectError,
    OptionError,
    PenstockError,
    RouteNotFoundError,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.remoting import TlsOptions
from penstock.spark.group_progress import GroupProgress
from penstock.testing import EmbeddedBroker, broker
from penstock.testing.embedded import _make
from tests.support.guarded_node import SECRETS, guarded_node
from tests.unit.client.scans import bodies, fill
from tests.waiting import PATIENT_SENDS, turns, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as found:
        yield found


@pytest.fixture
def scan(address) -> Iterator[Scan]:
    with Scan(address, retry_ms=2_000) as found:
        yield found


# -- what there is -----------------------------------------------------------------------------------------------


def test_topics_queues_and_ranges(scan, address):
    fill(address, "Orders", 10, queues=3)
    fill(address, "Other", 1)
    assert scan.topics() == ["Orders", "Other"]
    assert scan.topics("Or.*") == ["Orders"]
    assert scan.topics("Or") == [], "the whole name"
    queues = scan.queues("Orders")
    assert [queue.key for queue in queues] == [f"Orders/test-broker/{n}" for n in range(3)]
    assert all(queue.address for queue in queues)
    assert [tuple(item) for item in scan.ranges(queues).values()] == [(0, 4), (0, 3), (0, 3)]
    assert scan.range(queues[0]) == (0, 4)
    assert scan.offset_by_time(queues[0], 0) == 0
    assert scan.offset_by_time(queues[0], 2**50) == 4
    assert scan.offsets_by_time({queues[0]: 0, queues[1]: 2**50}) == {queues[0]: 0, queues[1]: 3}


def test_internal_topics_are_for_patterns_that_mean_them(scan, address):
    fill(address, "T", 1)
    with penstock.Admin(address) as admin:
        admin.create_topic("%DLQ%G", 1)
    assert scan.topics("%DLQ%.*") == ["%DLQ%G"]
    assert scan.topics(".*") == ["T"]


def test_queues_without_messages_are_there(scan, address):
    with penstock.Admin(address) as admin:
        admin.create_topic("Empty", 2)
    queues = scan.queues("Empty")
    assert list(scan.ranges(queues).values()) == [(0, 0), (0, 0)]
    assert [answer.status for answer in scan.read([(queues[0], 0, 0)])] == []


def test_what_is_not_there(scan):
    with pytest.raises(RouteNotFoundError, match="penstock topic create Nope"):
        scan.queues("Nope")
    with pytest.raises(OptionError, match="no regular expression"):
        scan.topics("(")
    with pytest.raises(OptionError):
        Scan("a:b:c")


def test_nobody_is_there():
    with Scan("127.0.0.1:1", retry_ms=0) as scan, pytest.raises(ConnectError, match="no name server answers"):
        scan.topics()
    with pytest.raises(ClientClosedError):
        scan.topics()


# -- reading -----------------------------------------------------------------------------------------------------


def test_ranges_are_read_whole_and_in_order(scan, address):
    fill(address, "T", 100, queues=2)
    first, second = scan.queues("T")
    assert bodies([scan.pull(first, 3, rows=2)]) == [b"6", b"8"]
    answers = list(scan.read([(first, 10, 50), (second, 0, 0), (second, 40, 45)], rows=7))
    found = bodies(answers)
    assert found[:40] == [b"%d" % (2 * n) for n in range(10, 50)]
    assert found[40:] == [b"%d" % (2 * n + 1) for n in range(40, 45)]
    assert {answer.status for answer in answers} == {PullStatus.FOUND}
    assert max(len(decode_records(answer.data)) for answer in answers) == 7


def test_answers_are_as_large_as_was_asked_for(scan, address):
    fill(address, "Big", 1)
    place = penstock.MessageQueue("Big", "test-broker", 0)
    with penstock.Producer(address, **PATIENT_SENDS) as producer:
        for future in [producer.send_async("Big", bytes(4_000), queue=place) for _ in range(999)]:
            future.result()
    queue = scan.queues("Big")[0]
    answers = list(scan.read([(queue, 0, 1_000)], size=2 << 20))
    assert len(answers) == 3
    assert sum(len(decode_records(answer.data)) for answer in answers) == 1_000


def test_what_lies_on_disk_is_read_in_large_answers_too():
    with broker(memory_percent=0) as address, Scan(address) as scan:
        fill(address, "Cold", 2_000)
        (queue,) = scan.queues("Cold")
        answers = list(scan.read([(queue, 0, 2_000)]))
        assert len(answers) == 1
        assert bodies(answers) == [b"%d" % n for n in range(2_000)]


def test_tags_are_filtered_by_the_broker(scan, address):
    for n in range(6):
        fill(address, "T", 1, tag="ABC"[n % 3])
    queue = scan.queues("T")[0]
    assert len(bodies(scan.read([(queue, 0, 6)], tags="A || C"))) == 4
    (nothing,) = scan.read([(queue, 0, 6)], tags="X")
    assert (nothing.status, nothing.next_offset, bytes(nothing.data)) == (PullStatus.SKIPPED, 6, b"")


def test_ends_and_beginnings_are_told(scan, address):
    fill(address, "T", 5)
    queue = scan.queues("T")[0]
    (end,) = scan.read([(queue, 5, 9)])
    assert (end.status, end.next_offset, end.max) == (PullStatus.NOTHING, 5, 5)
    (behind,) = scan.read([(queue, 8, 9)])
    assert (behind.status, behind.next_offset) == (PullStatus.MOVED, 5)
    first, last = scan.read([(queue, 3, 9)])
    assert (first.next_offset, last.status) == (5, PullStatus.NOTHING)


# -- failures ----------------------------------------------------------------------------------------------------


@contextmanager
def restartable(directory) -> Iterator[tuple[EmbeddedBroker, LoopThread]]:
    embedded, thread = _make(directory, {}), LoopThread("restartable")
    try:
        thread.run(embedded.start())
        try:
            yield embedded, thread
        finally:
            thread.run(embedded.stop())
    finally:
        thread.stop()


@pytest.mark.fault("F1")
def test_a_broker_that_restarts_elsewhere_is_found_again(tmp_path):
    from penstock.broker.broker import Broker

    with restartable(tmp_path) as (embedded, thread), Scan(embedded.address, retry_ms=10_000) as scan:
        fill(embedded.address, "T", 50)
        queue = scan.queues("T")[0]
        reading = scan.read([(queue, 0, 50)], rows=10)
        found = bodies(itertools.islice(reading, 2))
        old = embedded.broker

        async def restart() -> None:
            await old.stop()
            options = replace(old.options, port=0)
            embedded.broker = Broker(options, embedded.store_options, tmp_path, runtime=embedded.runtime)
            await embedded.broker.start()

        thread.run(restart())
        assert embedded.broker.address != queue.address
        found += bodies(reading)
        assert found == [b"%d" % n for n in range(50)]


@pytest.mark.fault("F1")
def test_a_broker_that_stays_away_is_given_up(tmp_path):
    with restartable(tmp_path) as (embedded, thread), Scan(embedded.address, retry_ms=300) as scan:
        fill(embedded.address, "T", 5)
        queue = scan.queues("T")[0]
        thread.run(embedded.broker.stop())
        with pytest.raises(ConnectError, match=r"reading T/test-broker/0 at offset 2 failed for 0.3 s"):
            scan.pull(queue, 2)
        failures: dict = {}
        assert scan.ranges([queue], failures=failures) == {}
        assert isinstance(failures[queue], ConnectError)
        with pytest.raises(ConnectError):
            scan.range(queue)


def test_an_unknown_broker_is_named(scan, address):
    fill(address, "T", 1)
    with pytest.raises(ConnectError, match="has no broker 'gone' now"):
        scan.range(QueueId("T", "gone", 0))


# -- groups ------------------------------------------------------------------------------------------------------


def test_progress_of_a_group_is_committed_and_shows_as_lag(scan, address):
    fill(address, "T", 10, queues=2)
    first, second = scan.queues("T")
    scan.commit("spark", {first: 5, second: 3})
    with penstock.Admin(address) as admin:
        assert admin.offsets("spark", "T") == {first.queue: 5, second.queue: 3}
        assert {item.queue.queue_id: item.lag for item in admin.describe_group("spark").progress} == {
            0: 0,
            1: 2,
        }
    scan.commit_soon("spark", {second: 5}).result(60)
    with penstock.Admin(address) as admin:
        assert admin.offsets("spark", "T")[second.queue] == 5


def test_a_topic_that_was_deleted_holds_up_no_commit_of_another(scan, address, monkeypatch):
    monkeypatch.setattr(scanning, "COMMITS_AT_ONCE", 2)
    fill(address, "Gone", 1)
    fill(address, "T", 10, queues=5)
    (gone,), kept = scan.queues("Gone"), scan.queues("T")
    with penstock.Admin(address) as admin:
        admin.delete_topic("Gone")
        with pytest.raises(PenstockError, match="Gone"):
            scan.commit("spark", {gone: 1} | dict.fromkeys(kept, 2))
        assert admin.offsets("spark", "T") == {queue.queue: 2 for queue in kept}
        failures: dict[QueueId, PenstockError] = {}
        scan.commit_soon("spark", {gone: 1} | dict.fromkeys(kept, 1), failures=failures).result(60)
        assert list(failures) == [gone]
        assert admin.offsets("spark", "T") == {queue.queue: 1 for queue in kept}
        until_retry_topics(admin, "%RETRY%spark")


def test_a_stream_commits_what_it_can(scan, address, monkeypatch):
    """Also with a deleted topic among its queues: else retention would wait for the group for ever."""
    monkeypatch.setattr(scanning, "COMMITS_AT_ONCE", 2)
    fill(address, "Gone", 1)
    fill(address, "T", 10, queues=5)
    (gone,), kept = scan.queues("Gone"), scan.queues("T")
    progress = GroupProgress(scan, "spark")
    with penstock.Admin(address) as admin:
        admin.delete_topic("Gone")
        for offset in (1, 2):
            progress.moved({gone: 1} | dict.fromkeys(kept, offset))
            assert not progress.finish(5)
            assert admin.offsets("spark", "T") == {queue.queue: offset for queue in kept}


def test_a_reset_by_an_operator_does_not_stop_commits(scan, address):
    fill(address, "T", 10)
    queue = scan.queues("T")[0]
    scan.commit("spark", {queue: 10})
    with penstock.Admin(address) as admin:
        admin.reset_offsets("spark", "T", "first")
        scan.commit("spark", {queue: 7})
        assert admin.offsets("spark", "T") == {queue.queue: 7}


def retry_topics(admin) -> list[str]:
    return [name for name in admin.list_topics(internal=True) if name.startswith("%RETRY%")]


def until_retry_topics(admin, *names) -> None:
    """The name server learns of them a moment after the broker has made them."""
    wait_until(lambda: retry_topics(admin) == list(names))


def count_calls(monkeypatch, code) -> list[str]:
    """Addresses that were sent requests of a code, from now on."""
    asked: list[str] = []
    call = ClientInstance.call

    async def counted(self, address, command, *others):
        if command.code == code:
            asked.append(address)
        return await call(self, address, command, *others)

    monkeypatch.setattr(ClientInstance, "call", counted)
    return asked


def test_a_group_that_only_commits_is_found_by_its_retry_topic_and_has_no_members(scan, address, monkeypatch):
    """RocketMQ's tools list groups, and find their brokers, by these topics."""
    asked = count_calls(monkeypatch, RequestCode.CONSUMER_SEND_MSG_BACK)
    fill(address, "T", 10, queues=2)
    first, second = scan.queues("T")
    scan.commit("spark", {first: 5, second: 3})
    with penstock.Admin(address) as admin:
        until_retry_topics(admin, "%RETRY%spark")
        assert admin.describe_topic("%RETRY%spark").messages == 0
        described = admin.describe_group("spark")
        assert (described.members, described.lag) == ((), 2)
        assert {item.queue.topic for item in described.progress} == {"T"}
    scan.commit("spark", {first: 5, second: 4})
    assert asked == [first.address], "once for all queues of a broker, and not again"
    scan.commit("other", {first: 1})
    with penstock.Admin(address) as admin:
        until_retry_topics(admin, "%RETRY%other", "%RETRY%spark")


def test_consumers_of_the_group_keep_their_queues(scan, address):
    fill(address, "T", 4, queues=2)
    with penstock.Consumer(address, "shared", start_from="first") as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(consumer.assignment) == 3)  # with the queue for retries
        with penstock.Admin(address) as admin:
            before = admin.describe_group("shared").members
            assert len(before) == 1
            scan.commit("shared", {scan.queues("T")[0]: 1})
            assert admin.describe_group("shared").members == before
        assert len(consumer.assignment) == 3


def test_a_group_that_was_deleted_is_found_again_after_the_next_commit(scan, address):
    fill(address, "T", 10)
    queue = scan.queues("T")[0]
    scan.commit("spark", {queue: 1})
    with penstock.Admin(address) as admin:
        until_retry_topics(admin, "%RETRY%spark")
        admin.delete_group("spark")
        admin.delete_topic("%RETRY%spark")
        assert retry_topics(admin) == []
        scan.commit("spark", {queue: 2})
        until_retry_topics(admin, "%RETRY%spark")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_who_may_consume_for_a_group_may_list_it(tmp_path):
    with guarded_node(tmp_path) as node:
        node.admin.create_topic("in-1", 1)
        node.send("in-1", [b"0", b"1"])
        keys = {"access_key": "spark", "secret_key": SECRETS["spark"]}
        with Scan(node.address, tls=TlsOptions(trusted=node.certificate), **keys) as scan:
            scan.commit("spark", {scan.queues("in-1")[0]: 1})
        until_retry_topics(node.admin, "%RETRY%spark")
        assert node.admin.describe_group("spark").lag == 1


def test_offsets_count_where_a_group_cannot_be_listed(scan, address, monkeypatch):
    """A broker that takes no messages makes no topic for them; the next commit tries it again."""
    fill(address, "T", 10)
    queue = scan.queues("T")[0]
    call = ClientInstance.call
    refusing = True

    async def refused(self, address, command, *others):
        if refusing and command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return command.answer(ResponseCode.NO_PERMISSION, "it accepts no messages")
        return await call(self, address, command, *others)

    monkeypatch.setattr(ClientInstance, "call", refused)
    scan.commit("spark", {queue: 1})
    with penstock.Admin(address) as admin:
        assert admin.offsets("spark", "T") == {queue.queue: 1}
        assert retry_topics(admin) == []
        refusing = False
        scan.commit("spark", {queue: 2})
        until_retry_topics(admin, "%RETRY%spark")


def test_reading_leaves_no_trace_in_groups(scan, address):
    fill(address, "T", 10)
    list(scan.read([(scan.queues("T")[0], 0, 10)]))
    with penstock.Admin(address) as admin:
        assert admin.list_groups() == []


def test_the_async_form(address):
    fill(address, "T", 3)

    async def test() -> None:
        async with AsyncScan(address) as scan:
            queue = (await scan.queues("T"))[0]
            assert bodies([await scan.pull(queue, 0, rows=10, size=1 << 20)]) == [b"0", b"1", b"2"]

    thread = LoopThread("test")
    try:
        thread.run(test())
    finally:
        thread.stop()


def test_pulls_that_begin_at_once_do_not_get_in_each_others_way(address):
    """Each waits in a thread, with a connection of its own; the next ones use them again."""
    fill(address, "T", 3)

    async def test() -> None:
        async with AsyncScan(address) as scan:
            queue = (await scan.queues("T"))[0]
        async with AsyncScan(address) as scan:
            for _ in range(3):
                pulls = (scan.pull(queue, offset, rows=1, size=1 << 20) for offset in range(3))
                assert bodies(await asyncio.gather(*pulls)) == [b"0", b"1", b"2"]
            assert isinstance(scan.sockets, PullSockets)
            assert len(scan.sockets.opened) <= 3

    thread = LoopThread("test")
    try:
        thread.run(test())
    finally:
        thread.stop()


@pytest.mark.fault("F3")
def test_a_broker_that_says_nothing_keeps_nobody_else_in_the_loop(address):
    """Pulls wait in threads of the scan's own: more of them than a loop has must not stop the others' work."""
    fill(address, "T", 3)

    async def test() -> None:
        async with AsyncScan(address, retry_ms=0) as scan:
            queue = (await scan.queues("T"))[0]
            # The system takes connections for it; nobody ever answers on them.
            with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
                silent = replace(queue, address=f"127.0.0.1:{listener.getsockname()[1]}")
                pulls = [asyncio.ensure_future(scan.pull(silent, 0, rows=1, size=1 << 20)) for _ in range(64)]
                await turns()
                assert not any(pull.done() for pull in pulls)
                assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 60) == "done"
                await scan.close()
                found = await asyncio.gather(*pulls, return_exceptions=True)
        assert {type(error) for error in found} == {ClientClosedError}

    thread = LoopThread("test")
    try:
        thread.run(test())
    finally:
        thread.stop()
