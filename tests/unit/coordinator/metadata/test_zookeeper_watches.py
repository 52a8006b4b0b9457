"""Lasting watches out of ZooKeeper's one-time ones: the order of setting the next one and telling of the last."""

import asyncio

from penstock.coordinator.metadata.zookeeper_watches import ZooKeeperWatches
from penstock.errors import MetadataClosedError, MetadataUnavailableError
from tests.unit.coordinator.virtual_time import VirtualClock, run_virtually
from tests.waiting import until


class Servers:
    """Watches that are set when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def arm(self, path: str) -> None:
        self.asked.append(path)
        answer = await self.answers.get()
        if answer is not None:
            raise answer


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_listener_is_called_after_the_next_watch_is_set() -> None:
    async def life() -> None:
        servers, calls = Servers(), list[str]()
        watches = ZooKeeperWatches(servers.arm)
        watches.add("/w", calls.append)
        await turns()
        assert (servers.asked, calls) == (["/w"], [])
        servers.answers.put_nowait(None)
        await turns()
        assert calls == ["/w"]
        watches.changed("/w")
        await turns()
        # Told now, the listener might read before the watch is set, and miss what changes in between.
        assert (len(servers.asked), len(calls)) == (2, 1)
        servers.answers.put_nowait(None)
        await turns()
        assert len(calls) == 2
        await watches.stop()

    asyncio.run(life())


def test_changes_while_it_is_being_set_are_one_more_round() -> None:
    async def life() -> None:
        servers, calls = Servers(), list[str]()
        watches = ZooKeeperWatches(servers.arm)
        watches.add("/w", calls.append)
        await turns()
        for _ in range(5):
            watches.changed("/w")
        watches.changed("/other")
        servers.answers.put_nowait(None)
        servers.answers.put_nowait(None)
        await turns()
        assert (servers.asked, calls) == (["/w", "/w"], ["/w", "/w"])
        watches.all_changed()
        servers.answers.put_nowait(None)
        await turns()
        assert len(calls) == 3
        await watches.stop()

    asyncio.run(life())


def test_a_watch_that_cannot_be_set_is_tried_again_and_nobody_is_told_before() -> None:
    async def life() -> None:
        servers, calls = Servers(), list[str]()
        watches = ZooKeeperWatches(servers.arm)
        watches.add("/w", calls.append)
        servers.answers.put_nowait(MetadataUnavailableError("away"))
        await until(lambda: len(servers.asked) == 2)
        assert calls == []
        servers.answers.put_nowait(MetadataClosedError("not open"))
        await asyncio.sleep(0.5)
        # Not open: nothing to try again before there is a connection.
        assert (len(servers.asked), calls) == (2, [])
        watches.all_changed()
        servers.answers.put_nowait(None)
        await until(lambda: calls == ["/w"])
        await watches.stop()

    run_virtually(life(), VirtualClock())


def test_who_comes_second_is_told_too_and_the_last_to_go_ends_the_task() -> None:
    async def life() -> None:
        servers, first, second = Servers(), list[str](), list[str]()
        watches = ZooKeeperWatches(servers.arm)
        one = watches.add("/w", first.append)
        servers.answers.put_nowait(None)
        await turns()
        two = watches.add("/w", second.append)
        servers.answers.put_nowait(None)
        await turns()
        assert second == ["/w"]
        one.cancel()
        watches.changed("/w")
        servers.answers.put_nowait(None)
        await turns()
        assert (len(first), len(second)) == (2, 2)
        assert len(asyncio.all_tasks()) == 2
        two.cancel()
        await turns()
        assert len(asyncio.all_tasks()) == 1
        await watches.stop()

    asyncio.run(life())
