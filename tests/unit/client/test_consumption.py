"""Reports and what follows from them: offsets, tries, rests, dead letters; subscriptions and figures."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.consume_concurrently import ConcurrentConsumption
from penstock.client.consume_meters import ConsumeMeters, Window
from penstock.client.consume_orderly import OrderlyConsumption
from penstock.client.handout import LoopHandout, Report
from penstock.client.offset_store import OffsetStore
from penstock.client.process_queue import ProcessQueue, QueueLimits
from penstock.client.received import DEAD_LETTER, RETRY, ReceivedMessage, Retry
from penstock.client.subscription import Subscriptions, wants
from penstock.client.workers import Work, is_async, verdict_of
from penstock.errors import FilterError, OptionError
from penstock.testing import ManualClock
from tests.unit.client.consumer_messages import QUEUE, received
from tests.unit.client.test_offset_store import Memory
from tests.waiting import until


class Back:
    """Takes messages back, or not."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.taken: list[tuple[int, int]] = []

    async def hand_back(self, message: ReceivedMessage, retry: Retry) -> bool:
        self.taken.append((message.queue_offset, retry.delay_level))
        return self.takes


class Bench:
    """One queue with messages, and all that is around it."""

    def __init__(self, *, orderly: bool, back: Back | None, count: int = 4, **settings: Any) -> None:
        self.clock = ManualClock()
        self.handout = LoopHandout(orderly=orderly)
        self.offsets = OffsetStore(Memory(), self.clock)
        self.meters = ConsumeMeters(self.clock)
        kind = OrderlyConsumption if orderly else ConcurrentConsumption
        self.consumption = kind(self.handout, self.offsets, self.meters, back, **settings)  # type: ignore[arg-type]
        self.owner = ProcessQueue(QUEUE, 0, QueueLimits(), orderly=orderly)
        self.messages = [received(offset) for offset in range(count)]
        self.consumption.accept(self.owner, self.owner.put(self.messages, count))

    def take(self, most: int = 100) -> list[int]:
        lot = self.handout.take(most)
        return [] if lot is None else [message.queue_offset for message in lot.messages]


def bench(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def test_done_moves_the_offset() -> None:
    async def scenario() -> None:
        all_of = Bench(orderly=False, back=Back())
        assert all_of.take() == [0, 1, 2, 3]
        all_of.consumption.settle(Report(all_of.owner, done=all_of.messages[1:], spent_ms=3))
        assert all_of.offsets.get(QUEUE) == 0
        all_of.consumption.settle(Report(all_of.owner, done=all_of.messages[:1]))
        assert all_of.offsets.get(QUEUE) == 4
        assert all_of.meters.done == 4

    bench(scenario)


def test_what_failed_is_handed_back_and_then_done() -> None:
    async def scenario() -> None:
        back = Back()
        one = Bench(orderly=False, back=back)
        one.take(2)
        first, second, *_ = one.messages
        one.consumption.settle(Report(one.owner, failed=[(first, RETRY), (second, Retry(5))]))
        assert one.offsets.get(QUEUE) is None
        await one.consumption.drain()
        assert back.taken == [(0, 0), (1, 5)]
        assert one.offsets.get(QUEUE) == 2

    bench(scenario)


def test_what_nobody_takes_back_is_tried_again_here_and_never_skipped() -> None:
    async def scenario() -> None:
        one = Bench(orderly=False, back=Back(takes=False), count=1, local_retry_ms=20)
        one.take()
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], RETRY)]))
        assert one.take() == []
        taken: list[int] = []
        await until(lambda: taken.extend(one.take()) or taken)
        assert taken == [0]
        assert one.messages[0].tries == 1
        assert one.offsets.get(QUEUE) is None

    bench(scenario)


def test_in_broadcasting_a_failure_is_given_up() -> None:
    async def scenario() -> None:
        one = Bench(orderly=False, back=None, count=1)
        one.take()
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], RETRY)]))
        assert one.offsets.get(QUEUE) == 1

    bench(scenario)


def test_a_report_about_a_dropped_queue_counts_nothing() -> None:
    async def scenario() -> None:
        back = Back()
        one = Bench(orderly=False, back=back)
        one.take()
        one.handout.drop(one.owner)
        one.consumption.settle(
            Report(one.owner, done=one.messages[:1], failed=[(one.messages[1], RETRY)], left=one.messages[2:])
        )
        await one.consumption.drain()
        assert back.taken == []
        assert one.offsets.get(QUEUE) is None
        assert one.take() == []

    bench(scenario)


def test_a_message_that_takes_too_long_is_handed_back_once() -> None:
    async def scenario() -> None:
        back = Back()
        one = Bench(orderly=False, back=back, count=2)
        one.take()
        one.messages[0].started_ms = 1_000
        one.consumption.expire(one.owner, 1_500, 1_000)
        assert back.taken == []
        one.consumption.expire(one.owner, 2_500, 1_000)
        one.consumption.expire(one.owner, 2_600, 1_000)
        await one.consumption.drain()
        assert back.taken == [(0, 3)]
        assert one.offsets.get(QUEUE) == 1
        # Its listener comes to an end after all: too late to matter.
        one.consumption.settle(Report(one.owner, done=one.messages[:1]))
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], RETRY)]))
        await one.consumption.drain()
        assert back.taken == [(0, 3)]

    bench(scenario)


def test_in_order_a_failure_rests_and_comes_again_first() -> None:
    async def scenario() -> None:
        one = Bench(orderly=True, back=Back(), suspend_ms=20)
        assert one.take(3) == [0, 1, 2]
        one.consumption.settle(
            Report(
                one.owner, done=one.messages[:1], failed=[(one.messages[1], RETRY)], left=one.messages[2:3]
            )
        )
        assert one.take() == []
        # While it rests nothing is in hand: whoever gives the queue up need not wait.
        assert one.owner.in_hand == 0
        taken: list[int] = []
        await until(lambda: taken.extend(one.take()) or len(taken) >= 3)
        assert taken == [1, 2, 3]
        assert one.messages[1].tries == 1
        assert one.offsets.get(QUEUE) == 1

    bench(scenario)


def test_in_order_a_limit_sends_to_the_dead_letters() -> None:
    async def scenario() -> None:
        back = Back()
        one = Bench(orderly=True, back=back, retries_max=0)
        one.take(2)
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], RETRY)], left=one.messages[1:2]))
        await one.consumption.drain()
        assert back.taken == [(0, -1)]
        assert one.take() == [1, 2, 3]
        assert one.offsets.get(QUEUE) == 1

    bench(scenario)


def test_in_order_without_a_limit_only_the_listener_can_bury() -> None:
    async def scenario() -> None:
        back = Back(takes=False)
        one = Bench(orderly=True, back=back, suspend_ms=10)
        one.take(1)
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], DEAD_LETTER)]))
        taken: list[int] = []
        await until(lambda: taken.extend(one.take(1)) or taken)
        # Nobody took it: it stays where it is.
        assert back.taken == [(0, -1)]
        assert taken == [0]

    bench(scenario)


def test_closing_waits_for_no_rest() -> None:
    async def scenario() -> None:
        one = Bench(orderly=True, back=Back(), suspend_ms=60_000)
        one.take(1)
        one.consumption.settle(Report(one.owner, failed=[(one.messages[0], RETRY)]))
        one.handout.retire(one.owner)
        await asyncio.wait_for(one.consumption.drain(), 60)
        assert one.owner.in_hand == 0
        one.consumption.cancel()

    bench(scenario)


# -- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        (True, None),
        (False, RETRY),
        (RETRY, RETRY),
        (Retry(4), Retry(4)),
        ("done", Retry(reason="the listener returned str")),
        (1, Retry(reason="the listener returned int")),
    ],
)
def test_what_a_listener_returns(result: object, expected: Retry | None) -> None:
    assert verdict_of(result, received()) == expected


def test_a_message_may_carry_its_verdict() -> None:
    message = received()
    message.retry_later(7)
    assert verdict_of(None, message) == Retry(7)


def test_in_order_a_failure_ends_the_lot() -> None:
    one = Bench(orderly=True, back=None)
    lot = one.handout.take(4)
    assert lot is not None
    work = Work(lot, one.handout, one.clock, orderly=True)
    first, second = work.advance(), work.advance()
    assert first is not None
    assert second is not None
    work.judge(second, RETRY)
    assert work.advance() is None
    report = work.end()
    assert report.done == [first]
    assert report.failed == [(second, RETRY)]
    assert [message.queue_offset for message in report.left] == [2, 3]


def test_work_stops_when_the_queue_is_given_up() -> None:
    one = Bench(orderly=False, back=None)
    lot = one.handout.take(4)
    assert lot is not None
    work = Work(lot, one.handout, one.clock, orderly=False)
    assert work.advance() is not None
    one.handout.retire(one.owner)
    assert work.advance() is None
    report = work.end()
    assert (len(report.done), len(report.left)) == (1, 3)


def test_a_message_that_was_not_worked_on_goes_back_with_the_rest() -> None:
    one = Bench(orderly=False, back=None)
    lot = one.handout.take(4)
    assert lot is not None
    work = Work(lot, one.handout, one.clock, orderly=False)
    work.advance()
    assert (again := work.advance()) is not None
    work.rewind()
    assert work.advance() is again
    report = work.end()
    assert [message.queue_offset for message in report.done] == [0]
    assert [message.queue_offset for message in report.left] == [1, 2, 3]


def test_coroutine_functions_are_recognised() -> None:
    async def coroutine(message: object) -> None:
        """Awaits nothing."""

    class Caller:
        async def __call__(self, message: object) -> None:
            """Awaits nothing either."""

    assert is_async(coroutine)
    assert is_async(Caller())
    assert not is_async(lambda message: None)
    assert not is_async(print)


# -- subscriptions -----------------------------------------------------------------------------------------------


def test_subscriptions_grow_in_version_and_bring_the_retry_topic() -> None:
    clock = ManualClock()
    wanted = Subscriptions("g", clock, broadcasting=False)
    first = wanted.add("T", "b || a")
    assert wanted.topics == ["%RETRY%g", "T"]
    second = wanted.add("T", "a")
    assert second.sub_version > first.sub_version
    assert wants(second, "a")
    assert not wants(second, "b")
    assert not wants(second, "")
    assert first.code_set == frozenset({97, 98})
    assert wants(wanted.add("U"), "")
    assert wanted.remove("T")
    assert not wanted.remove("T")
    wanted.remove("U")
    assert wanted.topics == []
    assert Subscriptions("g", clock, broadcasting=True).add("T").topic == "T"


def test_what_is_only_made_changes_nothing_and_the_newer_counts() -> None:
    wanted = Subscriptions("g", ManualClock(), broadcasting=False)
    first = wanted.add("T", "a")
    older = wanted.make("T", sql="b > 1")
    assert wanted.get("T") is first
    newer = wanted.make("T", "c")
    wanted.put(newer)
    wanted.put(older)
    assert wanted.get("T") is newer
    wanted.make("U", sql="b > 1")
    assert wanted.topics == ["%RETRY%g", "T"]


@pytest.mark.parametrize(
    ("sql", "position"), [("price >", 7), ("price > 5 xor a", 10), ("price > 'x'", 6), ("(a = 1", 6)]
)
def test_a_wrong_sql_expression_is_refused_with_its_place(sql: str, position: int) -> None:
    wanted = Subscriptions("g", ManualClock(), broadcasting=False)
    with pytest.raises(FilterError) as caught:
        wanted.add("T", sql=sql)
    assert caught.value.position == position
    assert len(wanted) == 0


@pytest.mark.parametrize(
    ("topic", "expression", "sql"),
    [
        ("", "*", ""),
        ("a b", "*", ""),
        ("x" * 256, "*", ""),
        ("T", "||", ""),
        ("T", "a", "b > 1"),
        ("T\n", "*", ""),
    ],
)
def test_nonsense_is_refused_before_it_is_sent(topic: str, expression: str, sql: str) -> None:
    wanted = Subscriptions("g", ManualClock(), broadcasting=False)
    with pytest.raises(OptionError):
        wanted.add(topic, expression, sql)
    assert len(wanted) == 0


# -- figures -----------------------------------------------------------------------------------------------------


def test_a_window_forgets() -> None:
    window = Window(1_000, 3)
    window.add(0, 1)
    window.add(500, 1)
    window.add(2_500, 5)
    assert window.sum(2_900) == 7
    assert window.sum(3_100) == 5
    assert window.sum(60_000) == 0


def test_figures_of_a_topic() -> None:
    clock = ManualClock()
    meters = ConsumeMeters(clock)
    owner = ProcessQueue(QUEUE, 0, QueueLimits())
    meters.consumed(Report(owner, done=[received(n) for n in range(60)], spent_ms=120))
    meters.consumed(Report(owner, failed=[(received(), RETRY)], spent_ms=2))
    meters.consumed(Report(owner))
    meters.pulled("T", 64, 10)
    status = meters.status("T")
    assert status.consume_ok_tps == 1.0
    assert status.consume_failed_msgs == 1
    assert status.consume_rt == 2.0
    assert (status.pull_rt, status.pull_tps) == (10.0, 64 / 60)
    clock.advance(10 * 60_000)
    assert meters.status("T").consume_ok_tps == 0
    assert meters.status("T").consume_failed_msgs == 1
