"""The master is killed, another one registers in its place: a producer with `retries=0` finds it with its next send.

With `retries=0` a send that fails is the program's to repeat, and the next one has to find the new master. Periodic
refreshing and heartbeats are off here: only what the failed sends do can bring the new route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from penstock.client.async_producer import AsyncProducer
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.support.server_processes import broker, name_server, options, wait_known

OFF_MS = 3_600_000
# At most so many questions about a topic's route, and one more at the beginning and the end.
PER_SECOND = 2
QUIET = {
    "retries": 0,
    "route_interval_ms": OFF_MS,
    "heartbeat_interval_ms": OFF_MS,
    "send_timeout_ms": 60_000,
}
WAIT_S = 90.0


class RouteQuestions:
    """A hook that counts how often the route of a topic is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, address: str, request: Command) -> None:
        self.count += request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC

    def after_response(self, address: str, request: Command, response: Command) -> None:
        pass


async def until_sent(send: Callable[[], Awaitable[object]]) -> int:
    """Send again and again, as a program would; how many failed."""
    failed, deadline = 0, time.monotonic() + WAIT_S
    while True:
        try:
            await send()
            return failed
        except PenstockError:
            failed += 1
            assert time.monotonic() < deadline, f"{failed} sends failed, the last one too"
            await asyncio.sleep(0.01)


@pytest.mark.fault("F1")
def test_the_next_send_finds_the_new_master(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(name_server(tmp_path / "names"))
        named = options("broker", broker_name="one")
        first = stack.enter_context(broker(tmp_path / "first", names.address, *named))
        wait_known(names.address, "one")
        threaded = stack.enter_context(penstock.Producer(names.address, **QUIET))
        asyncio.run(fail_over(stack, tmp_path, names.address, first.kill, threaded))


async def fail_over(
    stack: ExitStack, tmp_path: Path, names: str, kill: Callable[[], None], threaded: penstock.Producer
) -> None:
    questions = {mode: RouteQuestions() for mode in ("async", "enqueue", "oneway")}
    producers = {mode: AsyncProducer(names, rpc_hook=hook, **QUIET) for mode, hook in questions.items()}

    async def enqueue() -> object:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def on_result(result: object, error: BaseException | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        producers["enqueue"].enqueue("orders", b"enqueued", on_result=on_result)
        return await done

    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "sync": lambda: asyncio.to_thread(threaded.send, "orders", b"sync"),
        "async": lambda: producers["async"].send("orders", b"async"),
        "enqueue": enqueue,
        "oneway": lambda: producers["oneway"].send_oneway("orders", b"oneway"),
    }
    for producer in producers.values():
        await producer.start()
    try:
        for send in ways.values():
            await send()
        await asyncio.to_thread(kill)
        before, began = questions["async"].count, time.monotonic()
        for _ in range(200):
            with pytest.raises(PenstockError):
                await ways["async"]()
        asked, took_s = questions["async"].count - before, time.monotonic() - began
        assert asked <= 2 + took_s * PER_SECOND, "failing sends are no storm of questions"
        named = options("broker", broker_name="one")
        await asyncio.to_thread(stack.enter_context, broker(tmp_path / "second", names, *named))
        await asyncio.gather(*(until_sent(send) for send in ways.values()))
    finally:
        for producer in producers.values():
            await producer.close()
