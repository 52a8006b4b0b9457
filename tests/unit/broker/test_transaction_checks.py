"""Checks of open transactions: who is asked, when, how often, and what a broker knows when it starts again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock._hot.records import AppendRequest
from penstock.broker import open_transactions, record_gate, transaction_checks
from penstock.broker.half_messages import FIRST_STORED, marked
from penstock.errors import DiskFullError
from penstock.message import Message, decode_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.testing import ManualClock
from tests.support.running_broker import STORE, Bench, run, running
from tests.support.transaction_bench import (
    COMMIT,
    ROLLBACK,
    Half,
    end,
    half_of,
    halves,
    marks,
    parked,
    prepare,
    producer,
    stored,
)
from tests.waiting import until

# Rounds are called by the tests; nobody is too young to be asked.
OPTIONS: dict[str, Any] = {"transaction_check_interval_ms": 3_600_000, "transaction_timeout_ms": 0}


async def check(bench: Bench) -> None:
    """One round, in which every half message is old enough."""
    await asyncio.sleep(0.01)
    await bench.broker.transactions.checks.check()


def opened(bench: Bench) -> list[int]:
    return bench.broker.transactions.open.offsets()


@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_an_open_transaction_is_put_back_and_its_producer_asked(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush), **OPTIONS) as bench:
            client, asked = await producer(bench)
            half = await prepare(client, "U1", b"body", queue=3)
            await check(bench)
            [question] = await asked.wait()
            copy = halves(bench)[1]
            assert question.is_oneway
            assert question.fields["topic"] == "T"
            assert question.fields["tranStateTableOffset"] == "1"
            assert question.fields["commitLogOffset"] == str(copy.physical_offset)
            assert question.fields["msgId"] == question.fields["transactionId"] == "U1"
            assert question.fields["offsetMsgId"] == copy.message_id
            shown = decode_record(bytes(question.body))
            assert (shown.topic, shown.queue_id, shown.body) == ("T", 3, b"body")
            assert shown.properties == copy.properties
            assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
            assert copy.properties[FIRST_STORED] == str(halves(bench)[0].store_timestamp)
            assert opened(bench) == [1]
            answer = await end(client, half_of(question), COMMIT, fromTransactionCheck="true")
            assert answer.code == 0
            [message] = stored(bench, queue=3)
            assert message.prepared_transaction_offset == copy.physical_offset
            assert FIRST_STORED not in message.properties
            assert opened(bench) == []
            # The answer to the first copy comes late: it is the same transaction.
            assert (await end(client, half, COMMIT)).code == 0
            assert len(stored(bench, queue=3)) == 1

    run(scenario)


@pytest.mark.invariant("I9")
def test_an_answer_to_an_older_copy_ends_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            client, asked = await producer(bench)
            half = await prepare(client, "U1")
            for _ in range(3):
                await check(bench)
            second = half_of((await asked.wait(3))[1])
            assert opened(bench) == [3]
            assert (await end(client, second, COMMIT)).code == 0
            assert (await end(client, half, COMMIT)).code == 0
            assert len(stored(bench)) == 1
            assert opened(bench) == []
            assert marks(bench)[-1] == b"3,"

    run(scenario)


def test_the_connections_of_a_group_are_asked_in_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            client, one = await producer(bench, client_id="producer@1")
            _, two = await producer(bench, client_id="producer@2")
            _, other = await producer(bench, group="others", client_id="producer@3")
            await prepare(client, "U1")
            for _ in range(4):
                await check(bench)
            await one.wait(2)
            await two.wait(2)
            assert other.questions == []

    run(scenario)


def test_a_producer_that_is_gone_is_asked_when_it_is_back_and_nothing_is_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, transaction_check_max=2, **OPTIONS) as bench:
            await prepare(bench.client, "U1")
            for _ in range(5):
                await check(bench)
            assert len(halves(bench)) == 1
            client, asked = await producer(bench)
            await check(bench)
            [question] = await asked.wait()
            assert halves(bench)[1].properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await end(client, half_of(question), ROLLBACK)).code == 0
            assert parked(bench) == []

    run(scenario)


def test_after_too_many_checks_a_transaction_is_parked_and_can_be_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, transaction_check_max=3, **OPTIONS) as bench:
            client, asked = await producer(bench)
            half = await prepare(client, "U1", b"stuck")
            for _ in range(6):
                await check(bench)
            assert len(await asked.wait(3)) == 3
            [message] = parked(bench)
            assert (message.body, message.properties["TRANSACTION_CHECK_TIMES"]) == (b"stuck", "3")
            assert bench.broker.topics.get(CHECK_MAX_TOPIC) is not None
            assert opened(bench) == []
            late = await end(client, half, COMMIT)
            assert (late.code, "parked" in (late.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert stored(bench) == []
            resumed = await client.call(
                RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": message.message_id}
            )
            assert resumed.code == 0, resumed.remark
            await check(bench)
            question = (await asked.wait(4))[3]
            assert decode_record(bytes(question.body)).properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await end(client, half_of(question), COMMIT)).code == 0
            assert [message.body for message in stored(bench)] == [b"stuck"]
            for wrong in (half_of(question).unique, stored(bench)[0].message_id, "F" * 32):
                answer = await client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": wrong})
                assert answer.code == ResponseCode.SYSTEM_ERROR

    run(scenario)


def test_nobody_is_asked_before_the_timeout_or_the_immunity_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = OPTIONS | {"transaction_timeout_ms": 600}
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock), **options) as bench:
            client, asked = await producer(bench)
            await prepare(client, "U1")
            await prepare(client, "U2", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
            await prepare(client, "U3", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
            await prepare(client, "U4", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
            await check(bench)
            assert asked.questions == []
            assert len(halves(bench)) == 4
            clock.advance(700)
            await check(bench)
            found = await asked.wait(3)
            assert bench.broker.transactions.checks.asked == 3
            assert [question.fields["msgId"] for question in found] == ["U1", "U3", "U4"]

    run(scenario)


def test_what_was_to_be_left_alone_for_a_time_cannot_be_ended_unasked_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock), **OPTIONS) as bench:
            client, asked = await producer(bench)
            half = await prepare(client, "U1", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
            early = await prepare(client, "U2", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
            assert (await end(client, early, COMMIT)).code == 0
            clock.advance(1_100)
            assert (await end(client, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
            await check(bench)
            [question] = await asked.wait()
            answer = await end(client, half_of(question), COMMIT, fromTransactionCheck="true")
            assert answer.code == 0
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U2", "U1"]

    run(scenario)


def test_the_service_asks_by_itself_at_its_interval(tmp_path: Path) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {
            "transaction_check_interval_ms": 100,
            "transaction_timeout_ms": 0,
            "transaction_check_max": 3,
        }
        async with running(tmp_path, **options) as bench:
            _client, asked = await producer(bench)
            await prepare(bench.client, "U1")
            assert len(await asked.wait(3)) == 3
            await until(lambda: parked(bench))
            assert bench.broker.transactions.checks.parked == 1

    run(scenario)


# -- progress, and starting again --------------------------------------------------------------------------------


def progress(path: Path) -> dict[str, int]:
    table = json.loads((path / "config" / "consumerOffset.json").read_text())["offsetTable"]
    return {key: queues["0"] for key, queues in table.items() if key.endswith("@CID_RMQ_SYS_TRANS")}


def test_a_broker_that_starts_again_knows_what_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            known = [await prepare(bench.client, f"U{n}") for n in range(6)]
            await end(bench.client, known[0], COMMIT)
            await end(bench.client, known[3], ROLLBACK)
            client, asked = await producer(bench)
            await check(bench)
            await asked.wait(4)
            assert opened(bench) == [6, 7, 8, 9]
            await end(client, known[1], COMMIT)
            before = opened(bench)
            bench.broker.store.flush()
        assert progress(tmp_path) == {
            f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": 6,
            f"{HALF_DONE_TOPIC}@CID_RMQ_SYS_TRANS": 3,
        }
        async with running(tmp_path, **OPTIONS) as bench:
            assert opened(bench) == before == [7, 8, 9]
            assert (await end(bench.client, known[2], COMMIT)).code == 0
            assert (await end(bench.client, known[1], COMMIT)).code == 0
            assert [message.properties["UNIQ_KEY"] for message in stored(bench)] == ["U0", "U1", "U2"]
        # Without any progress it reads everything, and comes to the same.
        for name in ("consumerOffset.json", "consumerOffset.json.bak"):
            (tmp_path / "config" / name).unlink(missing_ok=True)
        async with running(tmp_path, **OPTIONS) as bench:
            assert opened(bench) == [8, 9]

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
def test_a_message_whose_mark_was_lost_is_found_and_not_asked_about(tmp_path: Path) -> None:
    """A Java broker keeps marks in memory for three seconds; what it had committed when it died is not marked."""

    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            half, open_one = await prepare(bench.client, "U1"), await prepare(bench.client, "U2")
            # The same id twice, as a Java program has that sends one Message object in two transactions.
            twin = await prepare(bench.client, "U1", b"twin")
        with MessageStore.open(tmp_path, STORE) as store:
            message = Message("T", b"half", {"UNIQ_KEY": "U1"})
            store.append_group([store.request(message, sys_flag=int(COMMIT), prepared_offset=half.position)])
        async with running(tmp_path, **OPTIONS) as bench:
            client, asked = await producer(bench)
            assert opened(bench) == [0, 1, 2]
            await check(bench)
            found = await asked.wait(2)
            assert [question.fields["msgId"] for question in found] == ["U2", "U1"]
            assert decode_record(bytes(found[1].body)).body == b"twin"
            assert marks(bench)[0] == b"0,"
            assert (await end(client, half, COMMIT)).code == 0
            assert len(stored(bench)) == 1
            assert (await end(client, twin, COMMIT)).code == 0
            assert (await end(client, open_one, ROLLBACK)).code == 0
            assert [message.body for message in stored(bench)] == [b"half", b"twin"]

    run(scenario)


def test_copies_that_a_java_broker_has_left_are_one_transaction(tmp_path: Path) -> None:
    """It saves its progress late, and does not write what a copy is a copy of."""

    def copy(store: MessageStore, checks: int, born: int) -> AppendRequest:
        names = {
            "UNIQ_KEY": "U",
            "PGROUP": "producers",
            "REAL_TOPIC": "T",
            "REAL_QID": "0",
            "TRAN_MSG": "true",
        }
        if checks:
            names["TRANSACTION_CHECK_TIMES"] = str(checks)
        return store.request(Message(HALF_TOPIC, b"%d" % born, names), born_timestamp=born_ms + born)

    born_ms = Runtime.system().clock.now_ms() - 10_000

    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            assert (await bench.client.send()).code == 0
        with MessageStore.open(tmp_path, STORE) as store:
            # Two transactions with one id, as of a Message object that was sent twice.
            for checks, born in ((0, 1), (0, 2), (1, 1), (1, 2), (2, 1)):
                store.append_group([copy(store, checks, born)])
        async with running(tmp_path, **OPTIONS) as bench:
            assert opened(bench) == [3, 4]
            client, asked = await producer(bench)
            await check(bench)
            questions = await asked.wait(2)
            assert [decode_record(bytes(question.body)).body for question in questions] == [b"2", b"1"]
            # The first copy of one, the newest of the other.
            first = halves(bench)[0]
            assert (await end(client, Half("U", 0, first.physical_offset), COMMIT)).code == 0
            assert (await end(client, half_of(questions[0]), COMMIT)).code == 0
            assert opened(bench) == []
            assert sorted(message.body for message in stored(bench))[:2] == [b"1", b"2"]
        async with running(tmp_path, **OPTIONS) as bench:
            assert opened(bench) == []
            assert (await end(bench.client, half_of(questions[1]), COMMIT)).code == 0
            assert len(stored(bench)) == 3

    run(scenario)


def test_what_is_left_alone_for_long_is_put_back_and_the_queue_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "LEFT_BEHIND", 5)

    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            alone = await prepare(bench.client, "U", group="gone")
            immune = await prepare(bench.client, "I", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
            for number in range(6):
                half = await prepare(bench.client, f"U{number}")
                assert (await end(bench.client, half, COMMIT)).code == 0
            await check(bench)
            assert opened(bench) == [8, 9]
            assert bench.broker.transactions.open.progress()[0] == 8
            copies = halves(bench)[8:]
            assert all("TRANSACTION_CHECK_TIMES" not in copy.properties for copy in copies)
            # A Java broker would take a mark of an immune one's first copy for its end.
            assert [*map(marked, stored(bench, HALF_DONE_TOPIC))][-1] == ([0], True)
            assert (await end(bench.client, alone, COMMIT)).code == 0
            assert (await end(bench.client, immune, COMMIT)).code == 0
            assert len(stored(bench)) == 8

    run(scenario)


def test_progress_waits_until_the_log_is_safe(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = replace(STORE, flush_interval_ms=3_600_000, flush_least_pages=1_000_000)
        async with running(tmp_path, store=store, **OPTIONS) as bench:
            client, asked = await producer(bench)
            await prepare(client, "U1")
            await check(bench)
            await asked.wait()
            checks, offsets = bench.broker.transactions.checks, bench.broker.offsets
            checks.safe_offset = lambda: 0
            checks.keep_progress()
            assert offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == -1
            checks.safe_offset = lambda: 1 << 60
            checks.keep_progress()
            assert offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 1
            assert offsets.query("CID_RMQ_SYS_TRANS", HALF_DONE_TOPIC, 0) == 1

    run(scenario)


def test_a_round_that_the_disk_refuses_changes_nothing_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            client, asked = await producer(bench)
            await prepare(client, "U1")

            def full(*args: object, **kwargs: object) -> None:
                raise DiskFullError("full", "delete something")

            monkeypatch.setattr(bench.broker.store, "append_group", full)
            with pytest.raises(Exception, match="full"):
                await check(bench)
            monkeypatch.undo()
            assert opened(bench) == [0]
            assert asked.questions == []
            await check(bench)
            await asked.wait()
            assert opened(bench) == [1]

    run(scenario)


def test_a_half_message_that_is_gone_ends_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **OPTIONS) as bench:
            await prepare(bench.client, "U1")
            await prepare(bench.client, "U2")
            _, asked = await producer(bench)
            real = record_gate.record_of_entry
            first = halves(bench)[0].physical_offset
            monkeypatch.setattr(
                open_transactions,
                "record_of_entry",
                lambda store, entry, *queue: None if entry.position == first else real(store, entry, *queue),
            )
            await check(bench)
            [question] = await asked.wait()
            assert question.fields["msgId"] == "U2"
            assert opened(bench) == [2]
            assert bench.broker.transactions.open.progress()[0] == 2

    run(scenario)
