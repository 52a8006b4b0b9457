"""Half messages and how they end: what is stored where, what consumers see, what is refused, what comes again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import DiskFullError, RequestError
from penstock.message import TransactionKind
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import HALF_DONE_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from penstock.store import FlushMode
from tests.support.running_broker import STORE, properties, records, run, running, send_fields
from tests.support.transaction_bench import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    end,
    half_fields,
    halves,
    marks,
    prepare,
    stored,
)
from tests.waiting import until


@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_committed_message_is_seen_as_it_was_sent_and_not_before(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            fields = half_fields("U1", queue=2, TAGS="a", KEYS="k1")
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields | {"h": "9"}, b"it")
            assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "2", "0")
            [half] = halves(bench)
            assert (half.topic, half.queue_id, half.sys_flag & 0xC) == (HALF_TOPIC, 0, 0)
            assert half.properties["REAL_TOPIC"] == "T"
            assert half.properties["REAL_QID"] == "2"
            assert half.properties["__transactionId__"] == "U1"
            assert half.properties["TRAN_MSG"] == "true"
            assert half.properties["PGROUP"] == "producers"
            assert (await bench.client.pull(queue=2)).code != 0
            second = await prepare(bench.client, "U2", queue=2)
            known = second.__class__("U1", 0, half.physical_offset)
            ended = await end(bench.client, known, COMMIT)
            assert ended.code == 0, ended.remark
            [message] = records((await bench.client.pull(queue=2, subscription="a")).body)
            assert (message.body, message.flag, message.tag, message.keys) == (b"it", 9, "a", ["U1", "k1"])
            assert message.sys_flag & 0xC == TransactionKind.COMMIT
            assert message.prepared_transaction_offset == half.physical_offset
            assert message.born_timestamp == half.born_timestamp
            assert message.properties == half.properties
            assert marks(bench) == [b"0,"]
            [mark] = stored(bench, HALF_DONE_TOPIC)
            assert (mark.tag, mark.sys_flag) == ("d", 0)
            assert len(bench.broker.transactions.open) == 1

    run(scenario)


@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
def test_what_is_rolled_back_or_unknown_is_never_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            back, unknown = await prepare(bench.client, "U1"), await prepare(bench.client, "U2")
            assert (await end(bench.client, back, ROLLBACK)).code == 0
            assert (await end(bench.client, unknown, UNKNOWN)).code == 0
            assert stored(bench) == []
            assert marks(bench) == [b"0,"]
            assert bench.broker.transactions.open.offsets() == [1]
            # Sooner or later: what was rolled back stays so, and what was unknown can still be committed.
            late = await end(bench.client, back, COMMIT)
            assert (late.code, "rolled back" in (late.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert (await end(bench.client, back, ROLLBACK)).code == 0
            assert (await end(bench.client, unknown, COMMIT)).code == 0
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U2"]

    run(scenario)


@pytest.mark.invariant("I9")
def test_a_commit_that_is_sent_again_adds_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            # At the same time, so that they share a write; and afterwards.
            together = await asyncio.gather(*(end(bench.client, half, COMMIT) for _ in range(5)))
            assert [answer.code for answer in together] == [0] * 5
            again = await end(bench.client, half, COMMIT)
            assert (again.code, again.remark) == (0, "it had ended so before")
            other = await end(bench.client, half, ROLLBACK)
            assert (other.code, "committed" in (other.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert len(stored(bench)) == 1
            assert marks(bench) == [b"0,"]
        async with running(tmp_path) as bench:
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert (await end(bench.client, half, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR
            assert len(stored(bench)) == 1
            assert marks(bench) == [b"0,"]

    run(scenario)


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I9")
def test_an_end_that_is_sent_again_waits_for_the_disk_as_the_first_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=FlushMode.SYNC)) as bench:
            half = await prepare(bench.client, "U1")
            flusher = bench.broker.flusher
            assert flusher is not None
            begin = flusher._next
            flusher._next = lambda: None  # type: ignore[method-assign]  # the disk is stuck: no sync begins
            first = asyncio.ensure_future(end(bench.connect(), half, COMMIT))
            await until(lambda: not len(bench.broker.transactions.open))
            other = bench.connect()
            again = asyncio.ensure_future(end(other, half, COMMIT))
            await until(lambda: bench.broker.flow.waiting == 2)
            assert (first.done(), again.done()) == (False, False)
            flusher._next = begin  # type: ignore[method-assign]
            begin()
            assert ((await first).code, (await again).code) == (0, 0)
            assert len(stored(bench)) == 1

    run(scenario)


@pytest.mark.invariant("I1")
def test_an_end_that_is_sent_again_is_not_acknowledged_by_a_master_whose_lease_is_over(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            bench.broker.store.hold()
            writer = bench.broker.writer
            assert writer is not None
            over = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the lease is over", "")
            writer.replicas.lapsed = lambda: over  # type: ignore[union-attr, method-assign]
            codes = [(await end(bench.connect(), half, COMMIT)).code for _ in range(2)]
            assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
            bench.broker.store.release()

    run(scenario)


def test_ends_that_come_together_share_one_mark(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            known = [await prepare(bench.client, f"U{n}", b"%d" % n) for n in range(40)]
            ended = await asyncio.gather(
                *(end(bench.client, half, ROLLBACK if half.offset % 4 == 3 else COMMIT) for half in known)
            )
            assert {answer.code for answer in ended} == {0}
            named = [int(part) for body in marks(bench) for part in body.decode().split(",") if part]
            assert sorted(named) == list(range(40))
            assert len(marks(bench)) < 40
            bodies = {message.body for message in stored(bench)}
            assert bodies == {b"%d" % n for n in range(40) if n % 4 != 3}
            assert len(bench.broker.transactions.open) == 0
            assert bench.broker.transactions.ends.committed == 30
            assert bench.broker.transactions.ends.rolled_back == 10
            rates = bench.broker.statistics
            assert rates.puts.value == 40 + 30 + len(marks(bench))
            counted = {topic: rates.find("TOPIC_PUT_NUMS", topic) for topic in ("T", HALF_TOPIC)}
            assert {topic: item and item.value for topic, item in counted.items()} == {
                "T": 30,
                HALF_TOPIC: 40,
            }

    run(scenario)


def test_a_one_way_end_gets_no_answer_and_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            connection = await bench.client.remoting.connection(bench.broker.address)
            connection.send(Command(RequestCode.END_TRANSACTION, half.end(COMMIT)))
            assert (await bench.client.pull(wait_ms=50_000)).code == 0

    run(scenario)


def test_a_delay_is_looked_at_when_the_message_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1", DELAY="1")
            assert bench.broker.store.max_offset(SCHEDULE_TOPIC, 0) == 0
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert stored(bench) == []
            [waiting] = stored(bench, SCHEDULE_TOPIC)
            assert waiting.properties["REAL_TOPIC"] == "T"
            # Committed, as the log says: once more adds nothing.
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert len(stored(bench, SCHEDULE_TOPIC)) == 1
            answer = await bench.client.pull(wait_ms=50_000)
            [message] = records(answer.body)
            assert message.store_timestamp - waiting.store_timestamp >= 1_000

    run(scenario)


def test_a_broker_can_refuse_transactions_and_ends_those_that_are_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
        async with running(tmp_path, reject_transactions=True) as bench:
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, half_fields("U2"), b"no")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "transactional" in (answer.remark or "")
            assert len(halves(bench)) == 1
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert len(stored(bench)) == 1

    run(scenario)


def test_a_message_that_was_consumed_before_is_not_prepared_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.heartbeat()).code == 0
            props = properties(TRAN_MSG="true", PGROUP="producers", UNIQ_KEY="U", DELAY="1")
            fields = send_fields("%RETRY%consumers", 0, props, j=1, f=0)
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"again")).code == 0
            dead = send_fields("%RETRY%consumers", 0, props, j=17, f=0)
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, dead, b"dead")).code == 0
            assert halves(bench) == []
            assert bench.broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1
            assert [message.body for message in stored(bench, "%DLQ%consumers")] == [b"dead"]

    run(scenario)


def test_a_sender_cannot_count_checks_or_pretend_to_be_a_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            first = await prepare(bench.client, "U1")
            forged = await prepare(
                bench.client,
                "U2",
                TRAN_PREPARED_QUEUE_OFFSET="0",
                TRANSACTION_CHECK_TIMES="99",
                PENSTOCK_PREPARED_MS="1",
            )
            assert bench.broker.transactions.open.offsets() == [0, 1]
            assert not {"TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"} & {
                *halves(bench)[1].properties
            }
            assert (await end(bench.client, forged, ROLLBACK)).code == 0
            assert (await end(bench.client, first, COMMIT)).code == 0
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U1"]

    run(scenario)


def test_a_commit_that_the_disk_refuses_leaves_the_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            store = bench.broker.store

            def full(*args: object, **kwargs: object) -> None:
                raise DiskFullError("full", "delete something")

            monkeypatch.setattr(store, "append_group", full)
            assert (await end(bench.client, half, COMMIT)).code != 0
            monkeypatch.undo()
            assert stored(bench) == []
            assert bench.broker.transactions.open.offsets() == [0]
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert len(stored(bench)) == 1

    run(scenario)


def test_a_write_that_ends_between_message_and_mark_has_committed_and_marks_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half, other = await prepare(bench.client, "U1"), await prepare(bench.client, "U2")
            store = bench.broker.store
            whole = store.append_group

            def torn(requests: list[object], **kwargs: object) -> None:
                whole(requests[:-1], **kwargs)  # type: ignore[arg-type]
                raise DiskFullError("full", "delete something")

            monkeypatch.setattr(store, "append_group", torn)
            assert (await end(bench.client, half, COMMIT)).code != 0
            monkeypatch.undo()
            assert len(stored(bench)) == 1
            assert (await end(bench.client, half, COMMIT)).code == 0
            assert len(stored(bench)) == 1
            assert marks(bench) == []
            assert (await end(bench.client, other, ROLLBACK)).code == 0
            assert marks(bench) == [b"0,1,"]

    run(scenario)


def test_a_topic_that_was_deleted_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            half = await prepare(bench.client, "U1")
            bench.broker.topics.delete("T")
            answer = await end(bench.client, half, COMMIT)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert bench.broker.transactions.open.offsets() == [0]
            assert (await end(bench.client, half, ROLLBACK)).code == 0
            assert stored(bench) == []

    run(scenario)


def test_a_transaction_ends_although_its_half_message_cannot_be_seen_yet(tmp_path: Path) -> None:
    """A publication holds the log back meanwhile; its answer did not wait for that."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            store = bench.broker.store
            store.hold()
            committed, left = await prepare(bench.client, "U1"), await prepare(bench.client, "U2")
            assert halves(bench) == []
            assert (await end(bench.client, committed, COMMIT)).code == 0
            # Of one that is not known to be open nothing can be said before it is seen.
            bench.broker.transactions.open.end(left.offset)
            assert (await end(bench.client, left, COMMIT)).code == ResponseCode.SYSTEM_BUSY
            store.release()
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U1"]

    run(scenario)


@pytest.mark.invariant("I9")
def test_an_end_that_cannot_be_read_yet_is_told_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication holds the log back: the index does not have the committed message, but it is committed."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            store, client = bench.broker.store, bench.client
            kept, dropped, third = [await prepare(client, unique) for unique in ("U1", "U2", "U3")]
            store.hold()
            assert (await end(client, kept, COMMIT)).code == 0
            assert (await end(client, dropped, ROLLBACK)).code == 0
            for _ in range(2):  # while it cannot be read, and then
                assert stored(bench) == [] or store.dispatch.offset == store.log.max_offset
                assert (await end(client, kept, COMMIT)).code == 0
                assert (await end(client, dropped, ROLLBACK)).code == 0
                for half, kind, was in ((kept, ROLLBACK, "committed"), (dropped, COMMIT, "rolled back")):
                    answer = await end(client, half, kind)
                    assert answer.code == ResponseCode.SYSTEM_ERROR
                    assert f"was {was}" in (answer.remark or "")
                store.release()
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U1"]
            # What there is no room to remember is asked for again, not guessed.
            monkeypatch.setattr("penstock.broker.transaction_ends.UNSEEN_MAX", 0)
            store.hold()
            assert (await end(client, third, COMMIT)).code == 0
            assert (await end(client, third, COMMIT)).code == ResponseCode.SYSTEM_BUSY
            store.release()
            assert (await end(client, third, COMMIT)).code == 0

    run(scenario)
