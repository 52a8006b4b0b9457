"""What every metadata store does, whichever is behind the port: memory, SQLite, a real ZooKeeper."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.coordinator.metadata import Check, Create, Delete, Entry, MetadataStore, SessionState, Set
from penstock.coordinator.metadata.port import VALUE_BYTES_MAX
from penstock.errors import (
    EntryExistsError,
    MetadataClosedError,
    MetadataError,
    NoEntryError,
    NotEmptyError,
    VersionConflictError,
)
from penstock.testing.metadata import MemoryEnsemble
from tests.unit.coordinator.metadata.backends import Backend, settle
from tests.waiting import until


def test_an_entry_counts_its_changes(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        assert await store.get("/a") is None
        assert await store.create("/a", b"one") == Entry("/a", b"one", 0)
        assert await store.get("/a") == Entry("/a", b"one", 0)
        assert await store.set("/a", b"two") == Entry("/a", b"two", 1)
        assert await store.set("/a", b"", 1) == Entry("/a", b"", 2)
        assert await store.get("/a") == Entry("/a", b"", 2)
        await store.delete("/a", 2)
        assert await store.get("/a") is None

    backend.run(life)


def test_an_entry_that_was_deleted_starts_anew(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/a", b"")
        await store.set("/a", b"1")
        await store.delete("/a")
        assert await store.create("/a", b"2") == Entry("/a", b"2", 0)

    backend.run(life)


def test_what_is_not_as_expected_is_refused_and_changes_nothing(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/a/b", b"kept")
        await store.set("/a/b", b"kept")
        for refused, call in (
            (EntryExistsError, lambda: store.create("/a/b", b"other")),
            (EntryExistsError, lambda: store.create("/a", b"other")),
            (NoEntryError, lambda: store.set("/none", b"other")),
            (NoEntryError, lambda: store.set("/none", b"other", 0)),
            (NoEntryError, lambda: store.delete("/none")),
            (VersionConflictError, lambda: store.set("/a/b", b"other", 0)),
            (VersionConflictError, lambda: store.set("/a/b", b"other", 2)),
            (VersionConflictError, lambda: store.delete("/a/b", 0)),
            (NotEmptyError, lambda: store.delete("/a")),
        ):
            with pytest.raises(refused) as error:
                await call()
            assert error.value.hint
            assert "/a" in error.value.message or "/none" in error.value.message
        assert await store.get("/a/b") == Entry("/a/b", b"kept", 1)
        assert await store.get("/none") is None

    backend.run(life)


def test_parents_are_made_and_children_are_listed(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        assert await store.children("/") == ()
        assert await store.children("/a") == ()
        for path in ("/a/b/c", "/a/b/a", "/a/b/b-%RETRY%g", "/z"):
            await store.create(path, b"x")
        assert await store.children("/") == ("a", "z")
        assert await store.children("/a") == ("b",)
        assert await store.children("/a/b") == ("a", "b-%RETRY%g", "c")
        assert await store.children("/a/b/c") == ()
        assert await store.get("/a/b") == Entry("/a/b", b"", 0)
        await store.delete("/a/b/a")
        assert await store.children("/a/b") == ("b-%RETRY%g", "c")

    backend.run(life)


@pytest.mark.abuse("A6")
def test_what_is_no_path_is_refused_before_anything_is_sent(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        for path in (
            "",
            "a",
            "a/b",
            "/a/",
            "//",
            "/a//b",
            "/./a",
            "/a/..",
            "/a\x00b",
            "/a\n",
            "/" + "x" * 5000,
        ):
            for call in (
                lambda path=path: store.get(path),
                lambda path=path: store.children(path),
                lambda path=path: store.create(path, b""),
                lambda path=path: store.set(path, b""),
                lambda path=path: store.delete(path),
                lambda path=path: store.transact([Check(path)]),
            ):
                with pytest.raises(MetadataError):
                    await call()
        for call in (
            lambda: store.create("/", b""),
            lambda: store.set("/", b""),
            lambda: store.delete("/"),
            lambda: store.transact([Set("/", b"")]),
        ):
            with pytest.raises(MetadataError):
                await call()
        assert await store.children("/") == ()

    backend.run(life)


def test_values_have_a_limit_alone_and_together(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        largest = bytes(VALUE_BYTES_MAX)
        await store.create("/largest", largest)
        assert (await store.set("/largest", largest)).version == 1
        entry = await store.get("/largest")
        assert entry is not None
        assert entry.value == largest
        with pytest.raises(MetadataError, match="1000001 bytes"):
            await store.create("/larger", largest + b"x")
        with pytest.raises(MetadataError, match="1000001 bytes"):
            await store.set("/largest", largest + b"x")
        with pytest.raises(MetadataError, match="1000001 bytes"):
            await store.transact([Create("/one", largest), Create("/two", b"x")])
        assert await store.children("/") == ("largest",)

    backend.run(life)


# -- transactions ------------------------------------------------------------------------------------------------


def test_a_transaction_does_all_of_it_in_order(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/counter", b"0")
        await store.create("/old", b"")
        await store.transact(
            [
                Check("/counter", 0),
                Set("/counter", b"1", 0),
                Set("/counter", b"2", 1),
                Create("/new", b""),
                Create("/new/child", b"c"),
                Create("/deep/er/est", b"d"),
                Delete("/old"),
                Create("/old", b"again"),
                Check("/old", 0),
            ]
        )
        assert await store.get("/counter") == Entry("/counter", b"2", 2)
        assert await store.get("/new/child") == Entry("/new/child", b"c", 0)
        assert await store.get("/deep/er/est") == Entry("/deep/er/est", b"d", 0)
        assert await store.get("/old") == Entry("/old", b"again", 0)
        await store.transact([])

    backend.run(life)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Create("/there", b""), EntryExistsError),
        (Set("/none", b""), NoEntryError),
        (Set("/there", b"", 7), VersionConflictError),
        (Delete("/none"), NoEntryError),
        (Delete("/there", 7), VersionConflictError),
        (Delete("/full"), NotEmptyError),
        (Check("/none"), NoEntryError),
        (Check("/there", 7), VersionConflictError),
    ],
    ids=lambda case: case.__name__ if isinstance(case, type) else type(case).__name__,
)
def test_a_transaction_does_nothing_if_one_part_cannot_be(
    backend: Backend, last: Create | Set | Delete | Check, error: type[MetadataError]
) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/there", b"as it was")
        await store.create("/full/child", b"")
        await store.create("/goes", b"")
        with pytest.raises(error, match=last.path):
            await store.transact(
                [
                    Set("/there", b"changed"),
                    Create("/made", b""),
                    Delete("/goes"),
                    last,
                    Create("/after", b""),
                ]
            )
        assert await store.get("/there") == Entry("/there", b"as it was", 0)
        assert await store.children("/") == ("full", "goes", "there")

    backend.run(life)


def test_a_transaction_of_many_small_parts_has_a_limit_too(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        def many(count: int) -> list[Create]:
            return [Create(f"/top/{'x' * 90}-{number:06d}", b"value") for number in range(count)]

        await store.create("/top", b"")
        # Near the limit with the longest root as well; over it, ZooKeeper would only hang up.
        await store.transact(many(4700))
        assert len(await store.children("/top")) == 4700
        with pytest.raises(MetadataError, match="4800 operations"):
            await store.transact(many(4800))

    backend.run(life)


def test_a_transaction_makes_nothing_below_what_it_deletes(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/a/b", b"kept")
        with pytest.raises(MetadataError, match=r"/a/b/c/d .* deletes"):
            await store.transact([Delete("/a/b"), Create("/a/b/c/d", b"")])
        assert await store.get("/a/b") == Entry("/a/b", b"kept", 0)
        await store.transact([Delete("/a/b"), Create("/a/b", b""), Create("/a/b/c", b"")])

    backend.run(life)


def test_compare_and_set_counts_exactly_under_contention(backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        await one.create("/counter", b"0")

        async def count(store: MetadataStore) -> None:
            for _ in range(5):
                while True:
                    entry = await store.get("/counter")
                    assert entry is not None
                    try:
                        await store.set("/counter", b"%d" % (int(entry.value) + 1), entry.version)
                        break
                    except VersionConflictError:
                        await asyncio.sleep(0)

        await asyncio.gather(*(count(store) for store in (one, two) for _ in range(4)))
        assert await one.set("/counter", b"done") == Entry("/counter", b"done", 41)

    backend.run_two(life)


# -- ephemeral entries -------------------------------------------------------------------------------------------


def test_ephemeral_entries_go_with_their_process_and_others_stay(backend: Backend) -> None:
    async def whole() -> None:
        async with backend.open() as store:
            await store.create("/live/me", b"here", ephemeral=True)
            assert await store.get("/live/me") == Entry("/live/me", b"here", 0, is_ephemeral=True)
            assert await store.set("/live/me", b"still") == Entry("/live/me", b"still", 1, is_ephemeral=True)
            await store.transact([Create("/live/too", b"", ephemeral=True), Create("/stays", b"s")])
            await store.set("/stays", b"on")
        async with backend.open() as store:
            assert await store.children("/live") == ()
            assert await store.get("/live") == Entry("/live", b"", 0)
            assert await store.get("/stays") == Entry("/stays", b"on", 1)
            await store.create("/live/me", b"again", ephemeral=True)

    asyncio.run(whole())


def test_an_ephemeral_entry_has_no_children(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        await store.create("/live", b"", ephemeral=True)
        for path in ("/live/child", "/live/deeper/child"):
            with pytest.raises(MetadataError, match="ephemeral"):
                await store.create(path, b"")
        await store.delete("/live")
        await store.create("/live/child", b"")

    backend.run(life)


def test_an_ephemeral_entry_may_become_a_lasting_one_and_back(backend: Backend) -> None:
    async def whole() -> None:
        async with backend.open() as store:
            await store.create("/a", b"1", ephemeral=True)
            await store.transact([Delete("/a"), Create("/a", b"2")])
            await store.create("/b", b"1")
            await store.transact([Delete("/b"), Create("/b", b"2", ephemeral=True)])
        async with backend.open() as store:
            assert await store.get("/a") == Entry("/a", b"2", 0)
            assert await store.get("/b") is None

    asyncio.run(whole())


# -- watches -----------------------------------------------------------------------------------------------------


def test_a_watch_tells_of_the_entry_and_of_those_right_below(backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        calls: list[str] = []
        one.watch("/w", calls.append)
        await until(lambda: calls)
        await settle()
        told = len(calls)
        for change in (
            lambda: two.create("/w", b""),
            lambda: two.set("/w", b"1"),
            lambda: two.create("/w/child", b""),
            lambda: two.delete("/w/child"),
            lambda: two.create("/w/child/grandchild", b""),
            lambda: two.transact([Set("/w", b"2"), Create("/other", b"")]),
            lambda: two.transact([Delete("/w/child/grandchild"), Delete("/w/child")]),
            lambda: two.delete("/w"),
            lambda: two.create("/w", b"again"),
        ):
            await change()
            await until(lambda told=told: len(calls) > told)
            await settle()
            told = len(calls)
        assert set(calls) == {"/w"}

    backend.run_two(life)


def test_who_reads_in_the_listener_ends_with_the_last_value(backend: Backend) -> None:
    async def life(one: MetadataStore, two: MetadataStore) -> None:
        seen: list[bytes] = []
        wake = asyncio.Event()

        async def follow() -> None:
            while not seen or seen[-1] != b"199":
                await wake.wait()
                wake.clear()
                entry = await one.get("/w")
                if entry is not None:
                    seen.append(entry.value)

        one.watch("/w", lambda _path: wake.set())
        reader = asyncio.create_task(follow())
        await two.create("/w", b"")
        for number in range(200):
            await two.set("/w", b"%d" % number)
        await asyncio.wait_for(reader, 60)

    backend.run_two(life)


def test_a_cancelled_watch_is_silent_and_the_others_go_on(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        first: list[str] = []
        second: list[str] = []
        watch = store.watch("/w", first.append)
        store.watch("/w", second.append)
        await until(lambda: first and second)
        watch.cancel()
        watch.cancel()
        await settle()
        told, heard = len(first), len(second)
        await store.create("/w", b"")
        await until(lambda: len(second) > heard)
        await settle()
        assert len(first) == told
        # And a path that nobody watches any more can be watched again.
        again: list[str] = []
        lone = store.watch("/x", again.append)
        await until(lambda: again)
        lone.cancel()
        store.watch("/x", again.append)
        await until(lambda: len(again) == 2)
        await store.create("/x", b"")
        await until(lambda: len(again) >= 3)

    backend.run(life)


def test_a_watch_may_be_set_before_the_start_and_is_silent_after_the_stop(backend: Backend) -> None:
    async def whole() -> None:
        store = backend.store()
        calls: list[str] = []
        store.watch("/w", calls.append)
        await settle()
        await store.start()
        await store.create("/w", b"")
        await until(lambda: calls)
        await settle()
        calls.clear()
        await store.stop()
        async with backend.open() as other:
            await other.set("/w", b"changed")
        await settle()
        assert calls == []
        late = store.watch("/w", calls.append)
        await settle()
        late.cancel()

    asyncio.run(whole())


def test_a_listener_that_fails_keeps_nobody_from_being_told(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_path: str) -> None:
        raise ValueError("of the listener")

    async def life(store: MetadataStore) -> None:
        told: list[str] = []
        store.watch("/w", fails)
        store.watch("/w", told.append)
        await until(lambda: told)
        await store.create("/w", b"")
        await until(lambda: len(told) > 1)

    backend.run(life)
    assert "of the listener" in caplog.text


def test_a_listener_may_change_what_it_watches(backend: Backend) -> None:
    async def life(store: MetadataStore) -> None:
        tasks: list[asyncio.Task[Entry]] = []
        calls: list[str] = []

        def listener(path: str) -> None:
            calls.append(path)
            if len(tasks) < 3:
                tasks.append(asyncio.get_running_loop().create_task(store.set("/w", b"%d" % len(tasks))))

        await store.create("/w", b"")
        store.watch("/w", listener)
        await until(lambda: len(tasks) == 3 and all(task.done() for task in tasks))
        assert await store.get("/w") == Entry("/w", b"2", 3)

    backend.run(life)


# -- the session -------------------------------------------------------------------------------------------------


def test_states_and_certainty_over_a_life(backend: Backend) -> None:
    async def whole() -> None:
        store = backend.store()
        states: list[SessionState] = []
        store.on_state(states.append)
        assert store.state is SessionState.LOST
        assert store.surely_until_ms <= store.clock_ms
        await store.stop()
        await store.start()
        assert store.state is SessionState.CONNECTED
        first = store.surely_until_ms
        assert first > store.clock_ms
        # It moves on by itself, so that it never runs out while all is well.
        if first - store.clock_ms < 1_000_000:
            await until(lambda: store.surely_until_ms > first)
        await store.stop()
        await store.stop()
        assert states == [SessionState.CONNECTED, SessionState.LOST]
        assert store.surely_until_ms <= store.clock_ms

    asyncio.run(whole())


def test_a_store_that_is_not_open_says_so(backend: Backend) -> None:
    async def whole() -> None:
        store = backend.store()
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: store.get("/a"),
            lambda: store.children("/"),
            lambda: store.create("/a", b""),
            lambda: store.set("/a", b""),
            lambda: store.delete("/a"),
            lambda: store.transact([Check("/a")]),
        )
        for _ in range(2):
            for call in calls:
                with pytest.raises(MetadataClosedError, match=backend.name):
                    await call()
            if store.state is SessionState.LOST:
                await store.start()
                await store.stop()

    asyncio.run(whole())


def test_the_address_names_the_backend(backend: Backend) -> None:
    assert backend.store().address.startswith(backend.name + ":")


# -- all alike ---------------------------------------------------------------------------------------------------


async def outcomes(store: MetadataStore, seed: int) -> list[object]:
    """What a long row of random operations answers, on few paths, so that they meet."""
    choice = random.Random(seed)
    paths = [f"/{a}" for a in "ab"] + [f"/{a}/{b}" for a in "ab" for b in "cd"] + ["/a/c/e"]
    answers: list[object] = []

    def version() -> int | None:
        return choice.choice([None, None, 0, 1, 2])

    def operation() -> Create | Set | Delete | Check:
        path = choice.choice(paths)
        kind = choice.randrange(5)
        if kind < 2:
            return Create(path, b"%d" % choice.randrange(100), ephemeral=choice.random() < 0.2)
        if kind == 2:
            return Set(path, b"%d" % choice.randrange(100), version())
        return Delete(path, version()) if kind == 3 else Check(path, version())

    for _ in range(250):
        rows = [operation() for _ in range(choice.choice([1, 1, 1, 2, 3]))]
        # Parents are made outside of the transaction: so that all backends agree, they are made first by hand.
        for row in rows:
            if isinstance(row, Create) and row.path.count("/") > 1:
                try:
                    await store.create(row.path.rpartition("/")[0], b"")
                except MetadataError:
                    pass
        try:
            await store.transact(rows)
            answers.append("done")
        except MetadataError as error:
            answers.append(type(error))
        path = choice.choice(paths)
        answers.append((await store.get(path), await store.children(path)))
    return answers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_operations_have_the_same_outcome_everywhere(backend: Backend, seed: int) -> None:
    async def whole() -> None:
        async with backend.open() as store:
            found = await outcomes(store, seed)
        reference = MemoryEnsemble().client()
        await reference.start()
        assert found == await outcomes(reference, seed)
        await reference.stop()
        kinds = {answer for answer in found if isinstance(answer, type)}
        assert {EntryExistsError, NoEntryError, VersionConflictError, NotEmptyError} <= kinds

    asyncio.run(whole())
