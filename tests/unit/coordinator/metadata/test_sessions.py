"""Sessions of several processes: what they see of each other, and what is left when one of them ends."""

import asyncio

import pytest

from penstock.coordinator.metadata import Create, Entry, MetadataStore, SessionState
from penstock.errors import EntryExistsError
from tests.unit.coordinator.metadata.backends import Backend
from tests.waiting import until


def test_what_one_writes_the_other_reads(shared_backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        await one.create("/a", b"1")
        seen: list[str] = []
        two.watch("/a", seen.append)
        await until(lambda: seen)
        assert await two.get("/a") == Entry("/a", b"1", 0)
        await two.create("/live/two", b"", ephemeral=True)
        with pytest.raises(EntryExistsError):
            await one.create("/live/two", b"", ephemeral=True)

    shared_backend.run_two(life)


def test_a_process_that_stops_takes_its_ephemeral_entries_along_and_others_are_told(
    shared_backend: Backend,
) -> None:
    async def whole() -> None:
        async with shared_backend.open() as stays:
            calls: list[str] = []
            async with shared_backend.open() as goes:
                await goes.create("/live/goes", b"", ephemeral=True)
                await stays.create("/live/stays", b"", ephemeral=True)
                stays.watch("/live", calls.append)
                await until(lambda: calls)
            assert await stays.children("/live") == ("stays",)
            await until(lambda: len(calls) > 1)

    asyncio.run(whole())


@pytest.mark.fault("F11")
def test_an_expired_session_is_lost_then_a_new_one_begins(shared_backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        await one.transact([Create("/mine", b"", ephemeral=True), Create("/lasting", b"")])
        await two.create("/theirs", b"", ephemeral=True)
        states: list[SessionState] = []
        calls: list[str] = []
        others: list[str] = []
        one.on_state(states.append)
        one.watch("/mine", calls.append)
        two.watch("/", others.append)
        await until(lambda: calls and others)
        calls.clear()
        others.clear()
        await shared_backend.end_session(one)
        await until(lambda: states[-1:] == [SessionState.CONNECTED])
        assert states[-2:] == [SessionState.LOST, SessionState.CONNECTED]
        # The owner reads anew, and finds out: nothing made its entry again.
        await until(lambda: calls and others)
        assert await two.children("/") == ("lasting", "theirs")
        assert await one.get("/mine") is None
        await one.create("/mine", b"again", ephemeral=True)
        assert await two.get("/mine") == Entry("/mine", b"again", 0, is_ephemeral=True)
        await until(lambda: one.surely_until_ms > one.clock_ms)
        assert SessionState.LOST is not two.state

    shared_backend.run_two(life)


@pytest.mark.fault("F11")
def test_a_watch_outlives_the_session(shared_backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        calls: list[str] = []
        one.watch("/w", calls.append)
        await until(lambda: calls)
        await shared_backend.end_session(one)
        await until(lambda: one.state is SessionState.CONNECTED and len(calls) > 1)
        for number in range(3):
            calls.clear()
            await (two.create("/w", b"") if number == 0 else two.set("/w", b"%d" % number))
            await until(lambda: calls)

    shared_backend.run_two(life)
