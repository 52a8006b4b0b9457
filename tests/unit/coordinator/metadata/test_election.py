"""One leader at a time, with a term that only grows, whatever happens to the candidates."""

import asyncio
import random
from pathlib import Path

import pytest

from penstock.coordinator.metadata import Election, MetadataStore, metadata_store
from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
from tests.unit.coordinator.metadata.backends import Backend
from tests.unit.coordinator.virtual_time import run_virtually, virtual_runtime
from tests.waiting import until


def leading(*elections: Election) -> list[Election]:
    return [election for election in elections if election.is_leader]


def test_one_of_two_leads_and_both_know_who(backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        first, second = one.election("/lead", "host-1:9877"), two.election("/lead", "host-2:9877")
        assert (first.is_leader, first.leader, first.term) == (False, None, 0)
        heard: list[tuple[bool, str | None, int]] = []
        second.on_change(lambda election: heard.append((election.is_leader, election.leader, election.term)))
        await first.start()
        await until(lambda: first.is_leader)
        await second.start()
        await until(lambda: second.leader == "host-1:9877")
        assert leading(first, second) == [first]
        assert first.term == second.term == 1
        await first.stop()
        assert not first.is_leader
        await until(lambda: second.is_leader)
        assert (second.leader, second.term) == ("host-2:9877", 2)
        assert heard[0] == (False, "host-1:9877", 1)
        assert heard[-1] == (True, "host-2:9877", 2)
        await first.start()
        await until(lambda: first.leader == "host-2:9877")
        await second.stop()
        await until(lambda: first.is_leader)
        assert first.term == 3
        await first.stop()
        await first.stop()

    backend.run_two(life)


def test_a_cancelled_listener_is_not_told(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        told: list[Election] = []
        election = store.election("/lead", "a")
        election.on_change(told.append).cancel()
        await election.start()
        await until(lambda: election.is_leader)
        await election.stop()
        assert told == []

    backend.run(life)


def test_a_leader_whose_entry_is_taken_away_leads_anew_with_a_new_term(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        heard: list[tuple[bool, int]] = []
        election = store.election("/lead", "a")
        election.on_change(lambda election: heard.append((election.is_leader, election.term)))
        await election.start()
        await until(lambda: election.is_leader)
        await store.delete("/lead/leader")
        await until(lambda: election.is_leader and election.term == 2)
        assert heard == [(True, 1), (False, 1), (True, 2)]
        await election.stop()

    backend.run(life)


def test_an_entry_of_somebody_else_is_no_reason_to_give_up(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/lead/leader", b"not json")
        election = store.election("/lead", "a")
        await election.start()
        await until(lambda: "none of ours" in caplog.text)
        assert not election.is_leader
        await store.delete("/lead/leader")
        await until(lambda: election.is_leader)
        await election.stop()

    backend.run(life)


@pytest.mark.fault("F11")
def test_a_leader_without_a_session_leads_no_more(shared_backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        first, second = one.election("/lead", "a"), two.election("/lead", "b")
        told: list[bool] = []
        first.on_change(lambda election: told.append(election.is_leader))
        await first.start()
        await until(lambda: first.is_leader)
        await second.start()
        await until(lambda: second.leader == "a")
        await shared_backend.end_session(one)
        await until(lambda: leading(first, second) and max(first.term, second.term) == 2)
        await until(lambda: first.leader == second.leader)
        assert told[:2] == [True, False]
        assert len(leading(first, second)) == 1
        await first.stop()
        await second.stop()

    shared_backend.run_two(life)


def test_the_term_outlives_the_process(backend: Backend) -> None:
    async def whole() -> None:
        for term in (1, 2, 3):
            async with backend.open() as store:
                election = store.election("/lead", "a")
                await election.start()
                await until(lambda election=election: election.is_leader)
                assert election.term == term
                if term != 2:  # A process that is killed does not resign.
                    await election.stop()
                else:
                    election_task = election
        await election_task.stop()

    asyncio.run(whole())


def test_terms_do_not_go_back_when_the_servers_lose_their_data() -> None:
    async def whole() -> None:
        store = MemoryEnsemble().client()
        await store.start()
        election = store.election("/lead", "a")
        await store.create("/lead/term", b"41")
        await election.start()
        await until(lambda: election.term == 42)
        await store.delete("/lead/term")
        await store.delete("/lead/leader")
        await until(lambda: election.term == 43)
        entry = await store.get("/lead/term")
        assert entry is not None
        assert entry.value == b"43"
        await election.stop()
        await store.stop()

    asyncio.run(whole())


@pytest.mark.fault("F2")
@pytest.mark.invariant("I6")
@pytest.mark.parametrize("how", ["cut", "silent", "pause"])
def test_a_leader_that_is_cut_off_stops_before_another_starts(how: str) -> None:
    runtime, clock = virtual_runtime()

    async def whole() -> None:
        ensemble = MemoryEnsemble(runtime)
        one, two = ensemble.client(), ensemble.client()
        await one.start()
        await two.start()
        first, second = one.election("/lead", "a"), two.election("/lead", "b")
        told: list[tuple[int, str, bool]] = []
        for election in (first, second):
            election.on_change(
                lambda election: told.append((one.clock_ms, election.identity, election.is_leader))
            )
        await first.start()
        await asyncio.sleep(1)
        await second.start()
        await asyncio.sleep(1)
        if how == "pause":
            one.pause()
        else:
            one.cut(silently=how == "silent")
        cut_ms = one.clock_ms
        while not second.is_leader:
            assert not (first.is_leader and second.is_leader)
            await asyncio.sleep(0.01)
        stopped = next(at for at, who, leads in told if who == "a" and not leads)
        started = next(at for at, who, leads in told if who == "b" and leads)
        # Both are told by their listeners, in this order, with the margin between them.
        assert cut_ms < stopped < started - 1000
        assert started - cut_ms <= 6000 + 1000
        one.heal()
        await asyncio.sleep(1)
        assert (first.is_leader, first.leader, first.term) == (False, "b", 2)
        for election in (first, second):
            await election.stop()
        await one.stop()
        await two.stop()

    run_virtually(whole(), clock)


def test_a_leader_that_was_only_uncertain_goes_on_with_its_term() -> None:
    runtime, clock = virtual_runtime()

    async def whole() -> None:
        ensemble = MemoryEnsemble(runtime)
        store = ensemble.client()
        await store.start()
        election = store.election("/lead", "a")
        told: list[tuple[bool, int]] = []
        election.on_change(lambda election: told.append((election.is_leader, election.term)))
        await election.start()
        await asyncio.sleep(1)
        ensemble.stop_serving()
        await asyncio.sleep(30)
        assert not election.is_leader
        ensemble.serve_again()
        await asyncio.sleep(1)
        assert told == [(True, 1), (False, 1), (True, 1)]
        await election.stop()
        await store.stop()

    run_virtually(whole(), clock)


class Watchdog:
    """Looks at all candidates at every change and in between: I6. What it finds is kept: what a listener raises is
    only logged."""

    def __init__(self, elections: list[Election]) -> None:
        self._elections = elections
        self.leaders: list[tuple[int, str]] = []
        self.broken: list[str] = []
        for election in elections:
            election.on_change(self.look)

    def look(self, _changed: Election | None = None) -> None:
        leaders = leading(*self._elections)
        if len(leaders) > 1:
            self.broken.append(f"two leaders: {[(one.identity, one.term) for one in leaders]}")
        for leader in leaders:
            if (leader.term, leader.identity) not in self.leaders:
                if any(term >= leader.term for term, _ in self.leaders):
                    self.broken.append(f"term {leader.term} of {leader.identity} after {self.leaders}")
                self.leaders.append((leader.term, leader.identity))


async def storm(ensemble: MemoryEnsemble, choice: random.Random) -> Watchdog:
    stores = [ensemble.client() for _ in range(3)]
    for store in stores:
        await store.start()
    elections = [store.election("/lead", f"candidate-{number}") for number, store in enumerate(stores)]
    watchdog = Watchdog(elections)
    for election in elections:
        await election.start()
    for _ in range(40):
        await asyncio.sleep(choice.uniform(0, 5))
        await trouble(ensemble, choice, choice.choice(stores), choice.choice(elections))
        for _ in range(20):
            watchdog.look()
            await asyncio.sleep(choice.uniform(0, 0.2))
    ensemble.serve_again()
    for store in stores:
        store.heal()
    for election in elections:
        await election.start()
    await asyncio.sleep(15)
    watchdog.look()
    assert watchdog.broken == []
    assert len(leading(*elections)) == 1, "when all is well again, somebody leads"
    assert len({election.leader for election in elections}) == 1
    for election, store in zip(elections, stores, strict=True):
        await election.stop()
        await store.stop()
    return watchdog


async def trouble(
    ensemble: MemoryEnsemble, choice: random.Random, store: MemoryMetadata, election: Election
) -> None:
    match choice.randrange(10):
        case 0 | 1:
            store.cut(silently=choice.random() < 0.5)
        case 2:
            store.pause()
        case 3 | 4 | 5:
            store.heal()
        case 6 if ensemble.is_serving and store.is_linked:
            store.expire()
        case 7:
            await election.stop()
        case 8:
            await election.start()
        case 9 if ensemble.is_serving:
            ensemble.stop_serving()
        case 9:
            ensemble.serve_again()


@pytest.mark.fault("F1", "F2", "F3", "F11", "F12")
@pytest.mark.invariant("I6")
@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_never_two_leaders_in_a_storm(first_seed: int) -> None:
    handovers = 0
    for seed in range(first_seed, first_seed + 10):
        choice = random.Random(seed)
        runtime, clock = virtual_runtime()
        ensemble = MemoryEnsemble(runtime, latency=lambda choice=choice: choice.uniform(0, 0.3))
        try:
            watchdog = run_virtually(storm(ensemble, choice), clock)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        handovers += len(watchdog.leaders)
    assert handovers > 20, "the storms were too mild to show anything"


def test_the_same_seed_is_the_same_storm() -> None:
    stories = []
    for _ in range(2):
        choice = random.Random(7)
        runtime, clock = virtual_runtime()
        ensemble = MemoryEnsemble(runtime, latency=lambda choice=choice: choice.uniform(0, 0.3))
        stories.append((run_virtually(storm(ensemble, choice), clock).leaders, clock.now_s))
    assert stories[0] == stories[1]


def test_an_election_is_kept_in_the_file(tmp_path: Path) -> None:
    async def whole() -> None:
        store = metadata_store(f"sqlite:{tmp_path}/metadata.db")
        await store.start()
        election = store.election("/coordinator", "127.0.0.1:9877")
        await election.start()
        await until(lambda: election.is_leader)
        entry = await store.get("/coordinator/leader")
        assert entry is not None
        assert entry.value == b'{"identity":"127.0.0.1:9877","term":1}'
        assert entry.is_ephemeral
        await election.stop()
        assert await store.get("/coordinator/leader") is None
        await store.stop()

    asyncio.run(whole())
