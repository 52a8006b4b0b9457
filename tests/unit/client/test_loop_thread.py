import asyncio
import os
import threading

import pytest

from penstock.client.loop_thread import LoopThread
from penstock.errors import ClientError
from tests.waiting import wait_until


@pytest.fixture
def thread():
    shared = LoopThread.acquire()
    yield shared
    shared.release()


async def answer(value=42):
    await asyncio.sleep(0)
    return value


async def for_ever():
    await asyncio.Event().wait()


def test_coroutines_run_in_the_loops_thread(thread):
    async def where():
        return threading.current_thread().name

    assert thread.run(answer()) == 42
    assert thread.run(where()) == "penstock-client"
    assert thread.submit(answer(1)).result() == 1
    assert not thread.is_current


def test_holders_share_the_thread_and_the_last_ends_it(thread):
    other = LoopThread.acquire()
    assert other is thread
    other.release()
    assert thread.run(answer()) == 42


def test_a_thread_after_the_last_is_a_new_one():
    one = LoopThread.acquire()
    one.release()
    two = LoopThread.acquire()
    assert two is not one
    assert two.run(answer()) == 42
    two.release()
    two.stop()


def test_errors_come_back_and_a_timeout_cancels(thread):
    async def fail():
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        thread.run(fail())
    begun, ended = threading.Event(), threading.Event()

    async def watched():
        begun.set()
        try:
            await for_ever()
        finally:
            ended.set()

    def is_cancelled_under_way():
        with pytest.raises(TimeoutError):
            thread.run(watched(), timeout_s=0.01)
        return begun.is_set()

    wait_until(is_cancelled_under_way)  # a busy loop may not have begun with it in time
    assert ended.wait(60)


def test_what_still_runs_is_cancelled_at_the_end():
    own = LoopThread.acquire()
    future = own.submit(for_ever())
    own.release()
    assert future.cancelled()


def test_the_loop_does_not_wait_for_itself(thread):
    async def inside():
        assert thread.is_current
        with pytest.raises(ClientError, match="event loop"):
            thread.run(answer())

    thread.run(inside())


def test_a_child_process_is_told_to_make_its_own(thread):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        text = b"worked"
        try:
            thread.run(answer())
        except ClientError as error:
            text = str(error).encode()
        finally:
            os.write(writer, text)
            os._exit(0)
    os.close(writer)
    told = os.read(reader, 1000)
    os.close(reader)
    os.waitpid(child, 0)
    assert b"before a fork" in told
