"""Pops in order: one lot of a queue at a time, from the first message that is not acknowledged, across restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.pop_order import KEEP_MS, ORDERED_QUEUE, OrderedLot, OrderedLots
from penstock.broker.pop_reading import Source
from penstock.broker.pop_records import CheckKey, OrderedNotes, QueueKey
from penstock.broker.pop_service import LAG_MAX, REVIVE_QUEUES
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.popping import (
    GROUP,
    Popped,
    ack,
    batch_ack,
    change,
    fill,
    held,
    is_unknown,
    pop,
    popped,
    settled,
    take,
    turn,
)
from tests.support.running_broker import Bench, Client, run, running
from tests.unit.broker.test_pop_crash import killed, later
from tests.waiting import turns

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


async def lot(client: Client, **more: object) -> list[Popped]:
    return await take(client, order="true", **{"queue": 0, **more})


def offsets(found: list[Popped]) -> list[int]:
    return [one.handle.offset for one in found]


def kept(bench: Bench, queue: int = 0) -> int:
    return bench.broker.offsets.query(GROUP, "T", queue)


@pytest.mark.invariant("I3")
def test_a_queue_is_with_one_at_a_time_until_all_is_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 5)
            await fill(bench.client, 2, queue=1)
            answer = await pop(bench.client, queue=0, most=3, order="true")
            assert answer.fields["reviveQid"] == str(ORDERED_QUEUE)
            assert answer.fields["orderCountInfo"] == "0 0 0"
            first = popped(answer)
            assert offsets(first) == [0, 1, 2]
            # Neither in order nor otherwise; another queue, or another group, is free.
            assert await lot(bench.client) == []
            assert offsets(await take(bench.client, queue=0)) == []
            assert offsets(await lot(bench.client, group="others")) == [0, 1, 2, 3, 4]
            assert len(await lot(bench.client, queue=1)) == 2
            waiting = asyncio.create_task(pop(bench.client, queue=0, order="true", wait_ms=20_000))
            await held(bench, 1)
            assert (await ack(bench.client, first[1])).code == 0
            assert (await ack(bench.client, first[0])).code == 0
            await settled(bench)
            assert kept(bench) == 2
            assert not waiting.done()
            assert (await ack(bench.client, first[2])).code == 0
            assert offsets(popped(await waiting)) == [3, 4]
            # Each counts once.
            assert is_unknown(await ack(bench.client, first[2]))

    run(scenario)


@pytest.mark.invariant("I3")
def test_what_is_not_acknowledged_in_time_comes_again_from_the_first_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 4)
            first = await lot(bench.client, most=3, invisible_ms=5_000)
            assert (await ack(bench.client, first[1])).code == 0
            clock.advance(4_999)
            assert await lot(bench.client) == []
            waiting = asyncio.create_task(pop(bench.client, queue=0, order="true", wait_ms=20_000))
            await held(bench, 1)
            clock.advance(1)
            turn(bench)
            answer = await waiting
            again = popped(answer)
            # Also what was acknowledged behind it, as with RocketMQ; nothing has gone to a retry topic.
            assert offsets(again) == [0, 1, 2, 3]
            assert answer.fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 0"
            assert f"%RETRY%{GROUP}_T" not in bench.broker.topics.all()
            # Whoever had them comes too late.
            assert is_unknown(await ack(bench.client, first[0]))
            assert is_unknown(await change(bench.client, first[0], 5_000))
            assert (await batch_ack(bench.client, again)).code == 0
            await settled(bench)
            assert kept(bench) == 4

    run(scenario)


def test_an_acknowledgement_counts_until_somebody_else_has_the_lot(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 2)
            first = await lot(bench.client, invisible_ms=5_000)
            clock.advance(6_000)
            turn(bench)
            assert (await ack(bench.client, first[0])).code == 0
            assert offsets(await lot(bench.client)) == [1]

    run(scenario)


def test_the_time_of_one_message_is_changed_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 2)
            first, second = await lot(bench.client, invisible_ms=10_000)
            clock.advance(8_000)
            answer = await change(bench.client, second, 20_000)
            assert answer.code == 0
            # It is the same pop, with a time that counts from it.
            assert answer.fields["popTime"] == str(first.handle.pop_time)
            assert answer.fields["invisibleTime"] == "28000"
            assert answer.fields["reviveQid"] == str(ORDERED_QUEUE)
            clock.advance(19_999)
            turn(bench)
            assert await lot(bench.client) == []
            # Handles from before and after the change count both: by offset and time of the pop.
            assert (await ack(bench.client, first)).code == 0
            shorter = await change(bench.client, second.changed(answer), 1_000)
            assert shorter.code == 0
            clock.advance(1_000)
            turn(bench)
            [again] = await lot(bench.client)
            assert again.handle.offset == 1
            assert is_unknown(await ack(bench.client, second.changed(shorter)))

    run(scenario)


def test_an_attempt_that_is_made_again_gets_the_same_lot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            await lot(bench.client, most=2, attemptId="one")
            answer = await pop(bench.client, queue=0, most=2, order="true", attemptId="one")
            again = popped(answer)
            assert offsets(again) == [0, 1]
            assert answer.fields["orderCountInfo"] == "0 0 0"
            assert await lot(bench.client, attemptId="two") == []
            assert (await batch_ack(bench.client, again)).code == 0
            assert offsets(await lot(bench.client, attemptId="two")) == [2]

    run(scenario)


def test_news_are_not_told_of_what_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            first = await lot(bench.client, most=1)
            fields = {"consumerGroup": GROUP, "topic": "T", "queueId": "0", "pollTime": "0", "order": "true"}
            answer = await bench.client.call(RequestCode.NOTIFICATION, fields)
            assert answer.fields["hasMsg"] == "false"
            assert (await ack(bench.client, first[0])).code == 0
            answer = await bench.client.call(RequestCode.NOTIFICATION, fields)
            assert answer.fields["hasMsg"] == "true"

    run(scenario)


def test_who_waits_for_one_queue_is_not_tried_for_another(tmp_path: Path) -> None:
    """In order every consumer waits for every queue: a message must not wake all of them."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1)
            for queue in range(3):
                await lot(bench.client, queue=queue)
            assert bench.broker.pop is not None
            tried: list[int] = []
            reader = bench.broker.pop.processors[0]._reader  # type: ignore[attr-defined]
            find = reader.find

            def watch(sources: Iterator[Source], *more: object) -> object:
                known = list(sources)
                tried.extend(source.queue.queue_id for source in known)
                return find(iter(known), *more)

            waiting = [
                asyncio.create_task(pop(bench.client, queue=queue, order="true", wait_ms=20_000))
                for queue in (1, 2)
            ]
            await held(bench, 2)
            await bench.client.send("other")  # each was tried once more when it was held
            await turns()
            reader.find = watch
            await bench.client.send("T", b"new", 2)
            assert [one.body for one in popped(await waiting[1])] == [b"new"]
            assert set(tried) == {2}
            await bench.client.send("T", b"newer", 1)
            assert [one.body for one in popped(await waiting[0])] == [b"newer"]

    run(scenario)


def test_a_pop_without_order_takes_over_what_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 3)
            first = await lot(bench.client, most=2, invisible_ms=5_000)
            assert (await ack(bench.client, first[1])).code == 0
            clock.advance(5_000)
            others = await take(bench.client, queue=0)
            assert offsets(others) == [0, 1, 2]
            assert await lot(bench.client) == []
            assert is_unknown(await ack(bench.client, first[0]))
            assert (await batch_ack(bench.client, others)).code == 0
            await settled(bench)
            assert kept(bench) == 3

    run(scenario)


def test_an_operator_moves_the_group_whoever_holds_the_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 4)
            first = await lot(bench.client, most=2)
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 3)
            assert offsets(await lot(bench.client)) == [3]
            assert is_unknown(await ack(bench.client, first[0]))

    run(scenario)


@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_reset_outlives_a_restart_whichever_revive_queue_was_popped_to(tmp_path: Path, first: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1, "X")
            await fill(bench.client, 8)
            assert bench.broker.pop is not None
            service = bench.broker.pop.service
            # In hand until the end: all records of its revive queue are read again.
            service.revive_turn = first
            assert len(await lot(bench.client, topic="X")) == 1
            assert (await batch_ack(bench.client, await lot(bench.client, most=6))).code == 0
            service.revive_turn = first
            assert offsets(await lot(bench.client, most=2)) == [6, 7]
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 0)
            service.revive_turn = (first + 2) % REVIVE_QUEUES
            again = await lot(bench.client, most=2)
            assert offsets(again) == [0, 1]
            assert (await batch_ack(bench.client, again)).code == 0
            await settled(bench)
            assert kept(bench) == 2
        async with running(tmp_path) as bench:
            assert offsets(await lot(bench.client)) == [2, 3, 4, 5, 6, 7]
            await settled(bench)
            assert kept(bench) == 2

    run(scenario)


def test_a_deleted_topic_takes_its_lots_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 2)
            await lot(bench.client)
            assert (await bench.client.call(215, {"topic": "T"})).code == 0
            await fill(bench.client, 1)
            assert len(await lot(bench.client)) == 1

    run(scenario)


@pytest.mark.abuse("A14")
def test_lots_are_counted_and_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock), pop_check_points_max=2) as bench:
            for queue in range(3):
                await fill(bench.client, 1, queue=queue)
            for queue in range(2):
                assert len(await lot(bench.client, queue=queue, invisible_ms=1_000)) == 1
            assert (await pop(bench.client, queue=2, order="true")).code == ResponseCode.SYSTEM_BUSY
            clock.advance(1_000)
            turn(bench)
            clock.advance(KEEP_MS)
            turn(bench)
            assert bench.broker.pop is not None
            assert len(bench.broker.pop.service.ordered.lots) == 0
            assert len(await lot(bench.client, queue=2)) == 1

    run(scenario)


def test_a_long_lot_does_not_keep_all_records_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.pop_service.LAG_MAX", 4)
    assert LAG_MAX > 4

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 2)
            first = await lot(bench.client)
            assert (await ack(bench.client, first[0])).code == 0
            queue = next(q for q in range(8) if bench.broker.store.max_offset(REVIVE, q))
            for _ in range(6 * 8):
                for one in await take(bench.client, "U") if await fill(bench.client, 1, "U") else []:
                    assert (await ack(bench.client, one)).code == 0
            await settled(bench)
            await settled(bench)
            assert bench.broker.pop is not None
            assert bench.broker.pop.service.state.lag(queue) <= 4
        async with running(tmp_path) as bench:
            assert await lot(bench.client) == []
            assert (await ack(bench.client, first[1])).code == 0
            await settled(bench)
            assert kept(bench) == 2

    run(scenario)


# -- lives -------------------------------------------------------------------------------------------------------


def test_many_changes_of_one_lots_times_take_no_more_memory() -> None:
    lots = OrderedLots()
    notes = OrderedNotes((60_000, 60_000), (0, 0), "")
    one = OrderedLot(CheckKey(QueueKey("T", GROUP, 0), 0, 1), 60_000, 0, (0, 1), notes=notes, began_ms=0)
    lots.put(one)
    for _ in range(5_000):
        lots.watch(one)
    assert len(lots._times) + len(lots._stale) < 2_000
    over_ms = one.over_ms()
    assert lots.over(over_ms - 1) == []
    assert one in lots.over(over_ms)
    assert one in lots.stale(over_ms + KEEP_MS)


class Model:
    """What must come of one queue: everything from the first message that is not acknowledged."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.next = 0
        self.lot: list[Popped] = []
        # Until when each message of the lot is invisible.
        self.times: dict[int, int] = {}

    def is_over(self, now_ms: int) -> bool:
        return all(now_ms >= self.times[offset] for offset in offsets(self.lot))

    def expected(self, most: int, now_ms: int) -> list[int]:
        """The next so many messages of the queue."""
        return list(range(self.next, min(self.next + most, self.count))) if self.is_over(now_ms) else []

    def acked(self, one: Popped) -> None:
        self.lot.remove(one)
        self.next = min(offsets(self.lot), default=max(self.times) + 1)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I3")
@pytest.mark.parametrize("seed", range(3))
def test_a_life_with_restarts_keeps_the_order(tmp_path: Path, seed: int) -> None:
    """Pops, acknowledgements in any order, times that are over, and new starts of the broker: what a pop gives is
    all messages from the first that is not acknowledged. One that was swapped, left out or given twice
    would be seen at once."""
    choose = random.Random(seed)
    clock = ManualClock()
    models = [Model(12), Model(12)]

    async def scenario() -> None:
        steps = 0
        while any(model.next < model.count for model in models):
            async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
                if not steps:
                    await fill(bench.client, 12)
                    await fill(bench.client, 12, queue=1)
                for _ in range(choose.randrange(5, 30)):
                    steps += 1
                    await step(bench, choose.randrange(2))
                bench.broker.store.flush()
        assert steps < 2_000

    async def step(bench: Bench, queue: int) -> None:
        model, now_ms = models[queue], clock.now_ms()
        match choose.randrange(6):
            case 0 | 1:
                most = choose.randrange(1, 6)
                wanted = model.expected(most, now_ms)
                found = await lot(bench.client, queue=queue, most=most, invisible_ms=5_000)
                assert offsets(found) == wanted
                if found:
                    model.lot, model.times = found, dict.fromkeys(offsets(found), now_ms + 5_000)
            case 2 | 3 if model.lot:
                one = choose.choice(model.lot)
                assert (await ack(bench.client, one)).code == 0
                model.acked(one)
            case 4 if model.lot and not model.is_over(now_ms):
                one, span_ms = choose.choice(model.lot), choose.randrange(1_000, 7_000)
                assert (await change(bench.client, one, span_ms)).code == 0
                model.times[one.handle.offset] = now_ms + span_ms
            case 5:
                clock.advance(choose.randrange(2_000))
                turn(bench)

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
def test_killed_while_a_lot_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with killed(tmp_path) as client:
            await fill(client, 5)
            first = await lot(client, most=4, invisible_ms=60_000)
            for one in (first[0], first[2]):
                assert (await ack(client, one)).code == 0
        async with killed(tmp_path) as client:
            # Held for who has it: the new process knows the lot, and what of it is done.
            assert await lot(client) == []
            assert is_unknown(await ack(client, first[2]))
            assert (await ack(client, first[1])).code == 0
        async with running(tmp_path, runtime=later(70)) as bench:
            again = await lot(bench.client, wait_ms=20_000)
            assert offsets(again) == [3, 4]
            assert (await batch_ack(bench.client, again)).code == 0
            assert await lot(bench.client, wait_ms=300) == []

    run(scenario)
