"""Who gets which messages: queues in turn, one taker at a time in order, lots of a fair size."""

import asyncio
import threading

import pytest

from penstock.client.handout import LoopHandout, Report, ThreadHandout
from penstock.client.process_queue import ProcessQueue, QueueLimits
from penstock.client.received import ReceivedMessage
from penstock.protocol.bodies import MessageQueue
from tests.unit.client.consumer_messages import received


def owner(number: int = 0, *, orderly: bool = False) -> ProcessQueue:
    return ProcessQueue(MessageQueue("T", "b", number), 0, QueueLimits(), orderly=orderly)


def fill(handout: ThreadHandout | LoopHandout, queue: ProcessQueue, count: int) -> None:
    handout.offer(queue, queue.put([received(offset) for offset in range(count)], count))


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_queues_are_served_in_turn() -> None:
    handout = ThreadHandout(orderly=False)
    first, second = owner(0), owner(1)
    fill(handout, first, 4)
    fill(handout, second, 4)
    taken = [handout.take(2) for _ in range(4)]
    assert [lot.owner for lot in taken if lot] == [first, second, first, second]
    assert handout.take() is None
    assert handout.waiting == 0


def test_in_order_a_queue_is_with_one_taker_at_a_time() -> None:
    handout = ThreadHandout(orderly=True)
    queue = owner(orderly=True)
    fill(handout, queue, 4)
    lot = handout.take(1)
    assert lot is not None
    assert handout.take(1) is None
    handout.free(queue)
    again = handout.take(3)
    assert again is not None
    assert offsets(again.messages) == [1, 2, 3]


def test_given_back_means_first_in_line() -> None:
    handout = ThreadHandout(orderly=False)
    queue = owner()
    fill(handout, queue, 4)
    lot = handout.take(2)
    assert lot is not None
    handout.give_back(queue, lot.messages)
    again = handout.take(4)
    assert again is not None
    assert offsets(again.messages) == [0, 1, 2, 3]


def test_what_was_dropped_is_not_given_back() -> None:
    handout = ThreadHandout(orderly=False)
    queue = owner()
    fill(handout, queue, 2)
    lot = handout.take(2)
    assert lot is not None
    handout.drop(queue)
    handout.give_back(queue, lot.messages)
    assert handout.take() is None
    assert handout.waiting == 0


def test_slow_work_is_given_out_one_by_one_and_fast_work_in_lots() -> None:
    handout = ThreadHandout(orderly=False, takers=2)
    queue = owner()
    fill(handout, queue, 2_000)
    first = handout.take()
    assert first is not None
    assert len(first.messages) == 1
    for _ in range(50):
        handout.note_pace(0.1, 100)
    fast = handout.take()
    assert fast is not None
    assert len(fast.messages) == 256
    for _ in range(50):
        handout.note_pace(1_000, 1)
    slow = handout.take()
    assert slow is not None
    assert len(slow.messages) == 1


def test_the_last_messages_are_shared_fairly() -> None:
    handout = ThreadHandout(orderly=False, takers=10)
    for _ in range(50):
        handout.note_pace(0.1, 100)
    queue = owner()
    fill(handout, queue, 20)
    lot = handout.take()
    assert lot is not None
    assert len(lot.messages) == 2


def test_paused_and_resumed() -> None:
    handout = ThreadHandout(orderly=False)
    queue = owner()
    queue.pause()
    fill(handout, queue, 2)
    assert handout.take() is None
    queue.resume()
    handout.offer(queue)
    assert handout.take() is not None


def test_a_thread_waits_until_there_is_something() -> None:
    handout = ThreadHandout(orderly=False)
    queue, got = owner(), []

    def take() -> None:
        got.append(handout.wait(1))

    thread = threading.Thread(target=take)
    thread.start()
    fill(handout, queue, 1)
    thread.join(60)
    assert offsets(got[0].messages) == [0]
    assert handout.wait(1, timeout_s=0.01) is None


def test_closing_sends_waiting_threads_home() -> None:
    handout = ThreadHandout(orderly=False)
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(handout.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    handout.close()
    for thread in threads:
        thread.join(60)
    assert got == [None, None, None]
    fill(handout, owner(), 1)
    assert handout.wait() is None


def test_missing_takers_are_asked_for() -> None:
    handout = ThreadHandout(orderly=False)
    short: list[int] = []
    handout.on_short = short.append
    fill(handout, owner(), 3)
    assert short == [3]


def test_a_task_waits_until_there_is_something_and_closing_sends_it_home() -> None:
    async def scenario() -> None:
        handout = LoopHandout(orderly=False)
        waiting = asyncio.ensure_future(handout.wait(1))
        await asyncio.sleep(0)
        fill(handout, owner(), 1)
        lot = await waiting
        assert lot is not None
        assert await handout.wait(1, timeout_s=0.01) is None
        home = asyncio.ensure_future(handout.wait(1))
        await asyncio.sleep(0)
        handout.close()
        assert await home is None

    asyncio.run(scenario())


def test_a_wake_up_meant_for_a_cancelled_task_reaches_another() -> None:
    async def scenario() -> None:
        handout = LoopHandout(orderly=False)
        first = asyncio.ensure_future(handout.wait(1))
        second = asyncio.ensure_future(handout.wait(1))
        await asyncio.sleep(0)
        fill(handout, owner(), 1)
        first.cancel()
        lot = await asyncio.wait_for(second, 60)
        assert lot is not None
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(scenario())


def test_a_report_says_nothing_about_what_is_still_in_hand() -> None:
    report = Report(owner())
    assert (report.done, report.failed, report.left) == ([], [], [])
