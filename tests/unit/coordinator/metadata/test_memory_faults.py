"""The metadata store in memory is as unkind as ZooKeeper, and its certainty ends before the session does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.coordinator.metadata import Entry, SessionState
from penstock.errors import MetadataUnavailableError, MetadataUnknownError
from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
from tests.unit.coordinator.virtual_time import run_virtually, virtual_runtime

TIMEOUT_MS = 6000
Life = Callable[[MemoryEnsemble, MemoryMetadata, MemoryMetadata], Awaitable[None]]


def run(life: Life, latency_s: float = 0.0) -> None:
    runtime, clock = virtual_runtime()
    ensemble = MemoryEnsemble(
        runtime, session_timeout_ms=TIMEOUT_MS, operation_timeout_ms=TIMEOUT_MS, latency=lambda: latency_s
    )

    async def whole() -> None:
        one, two = ensemble.client(), ensemble.client()
        await one.start()
        await two.start()
        await life(ensemble, one, two)
        await one.stop()
        await two.stop()

    run_virtually(whole(), clock)


def test_a_session_outlives_a_short_cut() -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        states: list[SessionState] = []
        one.on_state(states.append)
        await one.create("/mine", b"", ephemeral=True)
        one.cut()
        assert one.state is SessionState.SUSPENDED
        await asyncio.sleep(5.9)
        assert await two.get("/mine") is not None
        one.heal()
        await asyncio.sleep(20)
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert await two.get("/mine") is not None

    run(life)


def test_a_session_ends_with_a_long_cut() -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        states: list[SessionState] = []
        one.on_state(states.append)
        await one.create("/mine", b"", ephemeral=True)
        one.cut()
        await asyncio.sleep(6.1)
        assert await two.get("/mine") is None
        assert states == [SessionState.SUSPENDED]
        one.heal()
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        await one.create("/mine", b"again", ephemeral=True)

    run(life)


@pytest.mark.fault("F2", "F3")
@pytest.mark.invariant("I6")
@pytest.mark.parametrize("how", ["cut", "silent", "pause"])
def test_certainty_ends_before_the_session_does(how: str) -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        await one.create("/mine", b"", ephemeral=True)
        await asyncio.sleep(3.7)
        if how == "pause":
            one.pause()
        else:
            one.cut(silently=how == "silent")
        ended = False
        for _ in range(1000):
            ended = await two.get("/mine") is None
            if ended:
                break
            await asyncio.sleep(0.01)
        assert ended
        assert one.clock_ms - one.surely_until_ms > TIMEOUT_MS / 4
        one.heal()
        assert one.state is SessionState.CONNECTED

    run(life)


def test_silence_is_noticed_in_time_to_go_elsewhere() -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, _two: MemoryMetadata) -> None:
        one.cut(silently=True)
        await asyncio.sleep(3.9)
        assert one.state is SessionState.CONNECTED
        await asyncio.sleep(0.2)
        assert one.state is SessionState.SUSPENDED
        one.heal()
        assert one.state is SessionState.CONNECTED

    run(life)


def test_a_change_whose_answer_is_lost_is_unknown_and_a_read_is_repeated() -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        outcomes: list[bool] = []
        for cut_after_s in (0.05, 0.15):
            change = asyncio.create_task(one.create(f"/a-{cut_after_s}", b""))
            read = asyncio.create_task(one.get("/a-none"))
            await asyncio.sleep(cut_after_s)
            one.cut()
            await asyncio.sleep(1)
            one.heal()
            with pytest.raises(MetadataUnknownError) as error:
                await change
            assert error.value.outcome_unknown
            assert await read is None
            outcomes.append(await two.get(f"/a-{cut_after_s}") is not None)
        # Lost on the way there, and on the way back: the caller cannot tell.
        assert outcomes == [False, True]

    run(life, latency_s=0.1)


def test_while_cut_off_nothing_is_sent() -> None:
    async def life(_ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        one.cut()
        before = one.clock_ms
        with pytest.raises(MetadataUnavailableError) as error:
            await one.create("/a", b"")
        assert error.value.retriable
        assert one.clock_ms - before >= TIMEOUT_MS
        with pytest.raises(MetadataUnavailableError):
            await one.get("/a")
        one.heal()
        assert await two.get("/a") is None
        # Whoever asked shortly before the connection came back is served.
        one.cut()
        waiting = asyncio.create_task(one.create("/b", b""))
        await asyncio.sleep(3)
        one.heal()
        assert await waiting == Entry("/b", b"", 0)

    run(life)


@pytest.mark.fault("F11")
def test_no_session_ends_while_no_server_serves() -> None:
    async def life(ensemble: MemoryEnsemble, one: MemoryMetadata, two: MemoryMetadata) -> None:
        await one.create("/mine", b"", ephemeral=True)
        ensemble.stop_serving()
        assert one.state is two.state is SessionState.SUSPENDED
        await asyncio.sleep(60)
        with pytest.raises(MetadataUnavailableError):
            await ensemble.client().start()
        assert one.surely_until_ms < one.clock_ms
        ensemble.serve_again()
        assert one.state is two.state is SessionState.CONNECTED
        assert await two.get("/mine") is not None
        assert one.surely_until_ms > one.clock_ms
        await asyncio.sleep(60)
        assert await two.get("/mine") is not None

    run(life)


def test_a_client_that_stops_while_cut_off_leaves_its_entries_to_the_timeout() -> None:
    async def life(ensemble: MemoryEnsemble, _one: MemoryMetadata, two: MemoryMetadata) -> None:
        third = ensemble.client()
        await third.start()
        await third.create("/third", b"", ephemeral=True)
        third.cut()
        await third.stop()
        assert await two.get("/third") is not None
        await asyncio.sleep(6.1)
        assert await two.get("/third") is None

    run(life)
