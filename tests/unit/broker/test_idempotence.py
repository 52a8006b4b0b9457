"""Idempotent sends at a real broker: sent again they are stored once, also after restarts, and answered alike."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.sequence_file import FILE_NAME
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from penstock.runtime import SeededEntropy
from penstock.store import FlushMode
from penstock.testing.reserved_port import ReservedPort
from tests.support.idempotent_sends import BATCH, SEND, bodies, send, send_batch
from tests.support.running_broker import (
    STORE,
    Bench,
    Client,
    batch_item,
    properties,
    records,
    run,
    running,
    send_fields,
)
from tests.support.staged import item, stage
from tests.waiting import turns, until

Scenario = Callable[[Bench], Coroutine[Any, Any, None]]


def answer(command: Command) -> tuple[object, ...]:
    """What a repeated send must be told again."""
    fields = command.fields
    return (
        command.code,
        *(fields.get(name) for name in ("msgId", "queueId", "queueOffset", "transactionId", "recallHandle")),
    )


def with_broker(path: Path, test: Scenario, **options: Any) -> None:
    async def scenario() -> None:
        async with running(path, **options) as bench:
            await test(bench)

    run(scenario)


def crashed(path: Path) -> Path:
    """The directory as kill -9 would leave it now: what was written is there, nothing was closed."""
    return Path(shutil.copytree(path, path.with_name(f"{path.name}-crashed")))


# -- one message ---------------------------------------------------------------------------------------------


@pytest.mark.feature("idempotent-sends", "own")
def test_a_send_that_is_repeated_is_stored_once_and_answered_alike(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first = await send(bench.client, 7, b"one")
        await send(bench.client, 8, b"two")
        again = await send(bench.connect(), 7, b"one")
        assert first.code == 0
        assert answer(again) == answer(first)
        assert [one.fields["penstockRepeated"] for one in (first, again)] == ["false", "true"]
        assert again.fields["durability"] == first.fields["durability"]
        assert await bodies(bench) == [b"one", b"two"]
        (message, _) = records((await bench.client.pull()).body)
        assert message.properties["PENSTOCK_PRODUCER"] == "p"
        assert message.properties["PENSTOCK_SEQUENCE"] == "7"
        assert bench.broker.sequences.repeated == 1

    with_broker(tmp_path, test)


def test_sequences_are_a_producers_own_in_each_queue(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await send(bench.client, 1, b"a")
        assert (await send(bench.client, 1, b"b", producer="q")).fields["penstockRepeated"] == "false"
        assert (await send(bench.client, 1, b"c", 1)).fields["penstockRepeated"] == "false"
        assert (await send(bench.client, 1, b"d", topic="U")).fields["penstockRepeated"] == "false"
        # In any order: several may be under way at once.
        for sequence in (9, 3, 5):
            assert (await send(bench.client, sequence, b"e")).fields["penstockRepeated"] == "false"
        assert await bodies(bench) == [b"a", b"b", b"e", b"e", b"e"]

    with_broker(tmp_path, test)


def test_another_message_with_a_known_sequence_is_refused_and_not_called_stored(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await send(bench.client, 1, b"one")
        refused = await send(bench.client, 1, b"another")
        assert refused.code == 13
        assert "another body" in (refused.remark or "")
        assert "penstockOutcome" not in refused.fields
        assert await bodies(bench) == [b"one"]

    with_broker(tmp_path, test)


def test_one_that_is_older_than_the_window_is_refused_as_unknown(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for sequence in range(30):
            assert (await send(bench.client, sequence)).code == 0
        for sequence in (0, 10):
            refused = await send(bench.client, sequence)
            assert refused.code == 13
            assert refused.fields["penstockOutcome"] == "unknown"
            assert "older" in (refused.remark or "")
        assert (await send(bench.client, 25)).fields["penstockRepeated"] == "true"
        assert len(await bodies(bench)) == 30

    with_broker(tmp_path, test, idempotence_window=8)


def test_properties_of_a_message_that_is_passed_on_mean_nothing(tmp_path: Path) -> None:
    """Who sends a message on with all its properties, as a redrive of dead letters does, sends another message."""

    async def test(bench: Bench) -> None:
        await send(bench.client, 1, b"one")
        (message,) = records((await bench.client.pull()).body)
        copied = properties(**{name: value for name, value in message.properties.items() if name != "WAIT"})
        for _ in range(3):  # the first teaches the compiled way the queue
            answered = await bench.client.call(SEND, send_fields("T", 0, copied), b"one")
            assert answered.code == 0
            assert "penstockRepeated" not in answered.fields
        items = batch_item(b"one", copied) * 2
        assert (await bench.client.call(BATCH, send_fields("T", 0, m="true"), items)).code == 0
        found = records((await bench.client.pull()).body)
        assert len(found) == 6
        assert all("PENSTOCK_SEQUENCE" not in one.properties for one in found[1:])

    with_broker(tmp_path, test)


@pytest.mark.abuse("A3")
def test_what_is_no_producer_and_no_sequence_is_refused(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for fields in (
            {"penstockProducer": "p"},
            {"penstockSequence": "1"},
            {"penstockProducer": "p" * 65, "penstockSequence": "1"},
            {"penstockProducer": "a\x01b", "penstockSequence": "1"},
            {"penstockProducer": "p\n", "penstockSequence": "1"},
            {"penstockProducer": "p", "penstockSequence": "-1"},
            {"penstockProducer": "p", "penstockSequence": str(2**63)},
            {"penstockProducer": "p", "penstockSequence": "1.0"},
            {"penstockProducer": "p", "penstockSequence": "9" * 5_000},
        ):
            refused = await bench.client.call(SEND, send_fields("T", 0, "", **fields), b"x")
            assert refused.code == 13, fields
            batch = await bench.client.call(BATCH, send_fields("T", 0, m="true", **fields), batch_item(b"x"))
            assert batch.code == 13, fields
        assert (await send(bench.client, 1, queue=-1)).code == 13
        empty = send_fields("T", 0, m="true", penstockProducer="p", penstockSequence=1)
        assert (await bench.client.call(BATCH, empty, b"")).code == 13
        assert (await bench.client.call(BATCH, empty, b"\0" * 30)).code != 0
        await bench.client.heartbeat("g", "T")
        assert (await send(bench.client, 1, topic="%RETRY%g")).code == 13
        assert len(bench.broker.sequences.table) == 0
        assert await bodies(bench) == []

    with_broker(tmp_path, test)


# -- the other kinds -----------------------------------------------------------------------------------------


@pytest.mark.feature("idempotent-sends", "own")
def test_a_batch_is_stored_once_as_a_whole(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        lines = [b"%d" % number for number in range(50)]
        first = await send_batch(bench.client, 100, lines)
        await send(bench.client, 1, b"between")
        again = await send_batch(bench.client, 100, lines)
        assert first.code == 0
        assert answer(again) == answer(first)
        assert len(again.fields["msgId"].split(",")) == 50
        single = await send(bench.client, 107, b"7")
        assert single.fields["penstockRepeated"] == "true"
        assert single.fields["queueOffset"] == "7"
        mixed = await send_batch(bench.client, 140, [b"%d" % number for number in range(40, 60)])
        assert mixed.code == 13
        assert mixed.fields["penstockOutcome"] == "unknown"
        assert "10 of the 20" in (mixed.remark or "")
        assert await bodies(bench) == [*lines, b"between"]

    with_broker(tmp_path, test)


@pytest.mark.feature("idempotent-sends", "own")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", ["level", "timer"])
def test_a_message_for_later_is_stored_once_and_delivered_once(
    tmp_path: Path, kind: str, restart: bool
) -> None:
    asked = {"DELAY": "1"} if kind == "level" else {"TIMER_DELAY_MS": "1500"}
    text = properties(UNIQ_KEY="id1", **asked)

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            first = await send(bench.client, 1, b"later", 2, props=text)
            assert answer(await send(bench.client, 1, b"later", 2, props=text)) == answer(first)
            assert ("recallHandle" in first.fields) is (kind == "timer")
            if not restart:
                await delivered_once(bench, first)
        if restart:
            async with running(tmp_path) as bench:
                again = await send(bench.client, 1, b"later", 2, props=text)
                assert again.fields["queueOffset"] == first.fields["queueOffset"]
                await delivered_once(bench, again)

    async def delivered_once(bench: Bench, first: Command) -> None:
        await until(lambda: bodies(bench, 2))
        assert answer(await send(bench.client, 1, b"later", 2, props=text)) == answer(first), (
            "it is due by now"
        )
        waiting = (SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC)
        assert sum(bench.broker.store.max_offset(topic, 0) for topic in waiting) == 1
        assert await bodies(bench, 2) == [b"later"]

    run(scenario)


@pytest.mark.feature("idempotent-sends", "own")
def test_the_half_of_a_transaction_is_stored_once_and_committed_by_either_answer(tmp_path: Path) -> None:
    text = properties(UNIQ_KEY="id1", TRAN_MSG="true", PGROUP="producers")

    async def test(bench: Bench) -> None:
        first = await send(bench.client, 1, b"half", 3, props=text, f=4)
        again = await send(bench.client, 1, b"half", 3, props=text, f=4)
        assert first.code == 0
        assert answer(again) == answer(first)
        assert len(bench.broker.transactions.open) == 1
        ending = {
            "producerGroup": "producers",
            "tranStateTableOffset": again.fields["queueOffset"],
            "commitLogOffset": str(int(again.fields["msgId"][-16:], 16)),
            "commitOrRollback": "8",
            "msgId": "id1",
            "transactionId": "id1",
        }
        for _ in range(2):
            assert (await bench.client.call(RequestCode.END_TRANSACTION, ending)).code == 0
        assert await bodies(bench, 3) == [b"half"]
        # Its sequence is that of the message, too, which is in its own topic now.
        assert answer(await send(bench.client, 1, b"half", 3, props=text, f=4)) == answer(first)
        assert await bodies(bench, 3) == [b"half"]

    with_broker(tmp_path, test)


def test_a_one_way_send_is_recognised_as_well(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        fields = send_fields("T", 0, properties(UNIQ_KEY="a"), penstockProducer="p", penstockSequence=1)
        for _ in range(3):
            await bench.client.remoting.send(bench.client.address, Command(SEND, dict(fields), b"one"))
        assert (await send(bench.client, 2, b"two")).code == 0
        assert await bodies(bench) == [b"one", b"two"]

    with_broker(tmp_path, test)


# -- as safe as the first ------------------------------------------------------------------------------------


def test_a_repetition_waits_for_the_same_flush_as_the_first(tmp_path: Path) -> None:
    """Never called flushed before it is."""

    async def test(bench: Bench) -> None:
        assert (await send(bench.client, 0)).fields["durability"] == "flushed"
        flusher = bench.broker.flusher
        assert flusher is not None
        held: list[tuple[int, Any]] = []
        flusher.when_flushed = lambda position, callback: held.append((position, callback))  # type: ignore[method-assign]
        first = asyncio.ensure_future(send(bench.client, 1))
        await until(lambda: len(held) == 1)
        again = asyncio.ensure_future(send(bench.connect(), 1))
        await until(lambda: len(held) == 2)
        await turns()
        assert not first.done()
        assert not again.done()
        assert held[0][0] == held[1][0], "both wait for the end of the one record"
        assert bench.broker.flow.waiting == 2, "what waits is counted, and limited"
        del flusher.when_flushed  # type: ignore[method-assign]
        for position, callback in held:
            flusher.when_flushed(position, callback)
        assert answer(await again) == answer(await first)
        assert (await again).fields["durability"] == "flushed"
        assert bench.broker.flow.waiting == 0
        assert await bodies(bench) == [b"hello", b"hello"]

    with_broker(tmp_path, test, store=replace(STORE, flush_mode=FlushMode.SYNC))


# -- restarts ------------------------------------------------------------------------------------------------


@pytest.mark.feature("idempotent-sends", "own")
@pytest.mark.fault("F1")
@pytest.mark.parametrize("snapshot", ["kept", "lost", "torn", "old"])
@pytest.mark.parametrize("is_crash", [False, True])
def test_what_was_stored_is_known_after_a_restart(tmp_path: Path, is_crash: bool, snapshot: str) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        file = data / "config" / FILE_NAME
        answers: dict[int, Command] = {}
        port = ReservedPort()  # of both lives
        async with running(data, port=port.number, idempotence_save_interval_ms=1) as bench:
            for sequence in range(20):
                answers[sequence] = await send(bench.client, sequence, b"%d" % sequence)
            await until(file.exists)
            if snapshot == "old":
                old = file.read_bytes()
            for sequence in range(20, 30):
                answers[sequence] = await send(bench.client, sequence, b"%d" % sequence)
            if is_crash:
                data = crashed(data)
                file = data / "config" / FILE_NAME
        if snapshot == "lost":
            file.unlink()
        elif snapshot == "torn":
            file.write_bytes(file.read_bytes()[:-5])
        elif snapshot == "old":
            file.write_bytes(old)
        async with running(data, port=port.number) as bench:
            for sequence, first in answers.items():
                again = await send(bench.client, sequence, b"%d" % sequence)
                assert answer(again) == answer(first)
                assert again.fields["penstockRepeated"] == "true"
            assert (await send(bench.client, 30, b"30")).fields["queueOffset"] == "30"
            assert await bodies(bench) == [b"%d" % number for number in range(31)]

    run(scenario)


@pytest.mark.fault("F6")
def test_the_file_promises_nothing_that_the_disk_may_lose(tmp_path: Path) -> None:
    """What is not flushed is not in the file: after a power loss it would be called stored and be gone."""
    file = tmp_path / "config" / FILE_NAME

    async def scenario() -> None:
        slow = replace(STORE, flush_interval_ms=600_000, flush_thorough_interval_ms=600_000)
        async with running(tmp_path, store=slow, idempotence_save_interval_ms=1) as bench:
            await send(bench.client, 1, b"flushed", durability="flushed")
            await send(bench.client, 2, b"in memory")
            service = bench.broker.sequences
            flushed = bench.broker.store.flusher.flushed_offset
            assert flushed < bench.broker.store.log.max_offset
            await until(lambda: service.saved_to >= flushed)
            kept = file.read_bytes()
            assert b"\0\0\0\0\0\0\0\1" in kept
            from penstock.broker.sequence_file import decode
            from penstock.broker.sequence_table import NOT_STORED, Pair, SequenceTable

            table = SequenceTable(100, 100)
            decode(kept, table)
            assert table.find(Pair("p", "T", 0), 1) >= 0
            assert table.find(Pair("p", "T", 0), 2) == NOT_STORED

    run(scenario)


def test_idempotent_sends_wait_while_the_log_is_read_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for sequence in range(50):
                await send(bench.client, sequence)
        (tmp_path / "config" / FILE_NAME).unlink()
        for name in ("FIRST_MS", "TURN_MS"):
            monkeypatch.setattr(f"penstock.broker.idempotence.{name}", -1)
        monkeypatch.setattr("penstock.broker.idempotence.PAUSE_MS", 3_600_000)
        async with running(tmp_path) as bench:
            assert not bench.broker.sequences.is_ready
            refused = await send(bench.client, 3)
            assert refused.code == 2
            assert (refused.remark or "").startswith("[REJECTREQUEST]")
            assert int(refused.fields["penstockRetryAfterMs"]) > 0
            assert (await bench.client.send("T", b"plain", 0)).code == 0
            monkeypatch.setattr("penstock.broker.idempotence.TURN_MS", 10)
            await until(lambda: bench.broker.sequences.is_ready)
            assert (await send(bench.client, 3)).fields["penstockRepeated"] == "true"
            assert len(await bodies(bench)) == 51

    run(scenario)


def test_a_deleted_topic_begins_anew_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        async with running(data) as bench:
            await send(bench.client, 1, b"gone")
            await bench.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            first = await send(bench.client, 1, b"new")
            assert first.fields["penstockRepeated"] == "false"
            data = crashed(data)
        async with running(data) as bench:
            assert (await send(bench.client, 1, b"new")).fields["penstockRepeated"] == "true"
            assert await bodies(bench) == [b"new"]
            await bench.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            data = crashed(data)
        async with running(data) as bench:
            assert (await send(bench.client, 1, b"third")).fields["penstockRepeated"] == "false"
            assert await bodies(bench) == [b"third"]

    run(scenario)


@pytest.mark.invariant("I11")
def test_what_is_cut_off_the_log_is_not_called_stored(tmp_path: Path) -> None:
    """A master that is one no more loses what nobody confirmed; whatever comes in its place is another message."""

    async def test(bench: Bench) -> None:
        store, service = bench.broker.store, bench.broker.sequences
        await send(bench.client, 1, b"stays")
        end = store.log.max_offset
        await send(bench.client, 2, b"goes")
        service.rest()
        store.replica_mode(True)
        store.truncate(end)
        store.replica_mode(False)
        assert (await bench.client.send("T", b"another", 0)).code == 0
        service.recover()
        assert (await send(bench.client, 1, b"stays")).fields["penstockRepeated"] == "true"
        assert (await send(bench.client, 2, b"goes")).fields["penstockRepeated"] == "false"
        assert await bodies(bench) == [b"stays", b"another", b"goes"]

    with_broker(tmp_path, test)


def test_a_table_that_is_wrong_is_not_believed(tmp_path: Path) -> None:
    """Checked against the record itself: a message that is not in the log is never called stored."""

    async def test(bench: Bench) -> None:
        await send(bench.client, 1, b"one")
        service = bench.broker.sequences
        (pair,) = [pair for pair, _ in service.table.items()]
        service.table.add(pair, 5, 0, 1)
        assert (await send(bench.client, 5, b"one")).fields["penstockRepeated"] == "false"
        assert (await send(bench.client, 5, b"one")).fields["penstockRepeated"] == "true"
        assert await bodies(bench) == [b"one", b"one"]

    with_broker(tmp_path, test)


# -- storm ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("idempotent-sends", "own")
def test_a_storm_of_repetitions_leaves_every_message_exactly_once(tmp_path: Path) -> None:
    """Eight connections send the same 600 messages and batches in any order, again and again, over a restart."""
    entropy = SeededEntropy(11)

    async def storm(bench: Bench, seen: dict[int, tuple[object, ...]], rounds: int) -> None:
        async def one(client: Client) -> None:
            for _ in range(rounds):
                sequence = entropy.below(600)
                queue = sequence % 3
                if sequence % 50 < 10:
                    start = sequence - sequence % 50
                    answered = await send_batch(
                        client, start, [b"%d" % (start + n) for n in range(10)], start % 3
                    )
                    sequence = start
                else:
                    answered = await send(client, sequence, b"%d" % sequence, queue)
                assert answered.code == 0, answered.remark
                assert seen.setdefault(sequence, answer(answered)) == answer(answered)

        await asyncio.gather(*(one(bench.connect()) for _ in range(8)))

    async def scenario() -> None:
        seen: dict[int, tuple[object, ...]] = {}
        data = tmp_path / "data"
        port = ReservedPort()  # of both lives
        async with running(data, port=port.number) as bench:
            await storm(bench, seen, 120)
            data = crashed(data)
        async with running(data, port=port.number) as bench:
            await storm(bench, seen, 120)
            found = [body for queue in range(3) for body in await bodies(bench, queue)]
        wanted = {b"%d" % sequence for sequence in seen}
        wanted |= {b"%d" % (start + n) for start in seen if start % 50 == 0 for n in range(10)}
        assert len(found) == len(set(found)), "each once"
        assert set(found) == wanted
        assert len(wanted) > 300

    run(scenario)


# -- what is no send of a producer ---------------------------------------------------------------------------


@pytest.mark.abuse("A14")
def test_what_is_staged_brings_no_sequences_into_the_log(tmp_path: Path) -> None:
    """Or a stranger could have another's sends called stored."""

    async def test(bench: Bench) -> None:
        for name in ("PENSTOCK_PRODUCER", "PENSTOCK_SEQUENCE"):
            refused = await stage(bench.client, [item(1, **{name: "7"})])
            assert refused.code == 13
        assert (await stage(bench.client, [item(1, PENSTOCK_OTHER="7")])).code == 0

    with_broker(tmp_path, test)


@pytest.mark.parametrize("topic", ["rmq_sys_TRACE_DATA_x", "%RETRY%g"])
def test_a_topic_whose_sends_cannot_be_recognised_takes_none(tmp_path: Path, topic: str) -> None:
    async def test(bench: Bench) -> None:
        refused = await send(bench.client, 1, b"one", topic=topic)
        assert refused.code == 13
        assert "takes no idempotent sends" in refused.remark

    with_broker(tmp_path, test)


def test_a_topic_that_only_looks_like_the_brokers_own_is_recognised(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first = await send(bench.client, 1, b"one", topic="PENSTOCK_STAGED_orders")
        again = await send(bench.client, 1, b"one", topic="PENSTOCK_STAGED_orders")
        assert (first.code, again.code, again.fields["penstockRepeated"]) == (0, 0, "true")
        assert answer(first) == answer(again)

    with_broker(tmp_path, test)


@pytest.mark.abuse("A14")
def test_a_full_table_is_not_searched_for_every_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        table, searched = bench.broker.sequences.table, []
        expire = table.expire
        monkeypatch.setattr(table, "expire", lambda before: searched.append(before) or expire(before))
        assert (await send(bench.client, 1, producer="one")).code == 0
        for number in range(20):
            assert (await send(bench.client, 1, producer=f"other-{number}")).code == 2
        assert 1 <= len(searched) <= 5
        assert (await send(bench.client, 2, producer="one")).code == 0

    with_broker(tmp_path, test, idempotence_queues_max=1)
