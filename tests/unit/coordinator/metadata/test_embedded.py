"""The metadata file of a single node: owned by one process, there after kill -9, refused when it is not ours."""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.coordinator.metadata import Entry, MetadataStore, SessionState, Set, metadata_store
from penstock.coordinator.metadata.embedded import APPLICATION_ID, EmbeddedMetadata
from penstock.errors import (
    MetadataClosedError,
    MetadataError,
    MetadataFormatError,
    MetadataLockedError,
    MetadataUnavailableError,
    MetadataUnknownError,
)

ROOT = Path(__file__).resolve().parents[4]
WRITER = "tests.unit.coordinator.metadata.metadata_writer"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "metadata.db"


async def opened(path: Path) -> EmbeddedMetadata:
    store = EmbeddedMetadata(path)
    await store.start()
    return store


def make(path: Path, **entries: bytes) -> None:
    """A file with these entries at the top."""

    async def whole() -> None:
        store = await opened(path)
        for name, value in entries.items():
            await store.create(f"/{name}", value)
        await store.stop()

    asyncio.run(whole())


def launch(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT)


def kill_after(process: subprocess.Popen[bytes], lines: int, more_s: float) -> list[int]:
    """What it acknowledged before it was killed, a moment after so many lines."""
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(lines)]
    time.sleep(more_s)
    process.kill()
    acknowledged += [
        int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")
    ]
    process.wait()
    process.stdout.close()
    return acknowledged


@pytest.mark.feature("metadata-store", "tubemq")
@pytest.mark.fault("F1")
@pytest.mark.seed("S0-14", "S0-28", "S0-33", "S0-35", "S0-37")
def test_what_was_acknowledged_is_there_after_kill_9(path: Path) -> None:
    choice = random.Random(1)
    acknowledged: list[int] = []
    for _ in range(4):
        acknowledged += kill_after(launch(path), choice.randrange(1, 30), choice.random() * 0.05)
    assert len(set(acknowledged)) == len(acknowledged)

    async def look() -> None:
        store = await opened(path)
        rows = [int(name) for name in await store.children("/rows")]
        counter = await store.get("/counter")
        assert counter is not None
        assert set(acknowledged) <= set(rows)
        # The transaction is whole: the counter and the row came together, each time.
        assert rows == list(range(int(counter.value) + 1))
        assert counter.version == len(rows)
        # Ephemeral entries died with their process.
        assert await store.children("/live") == ()
        await store.stop()

    asyncio.run(look())


def test_a_second_owner_is_refused_in_another_process_and_in_this_one(path: Path) -> None:
    process = launch(path)
    assert process.stdout is not None
    process.stdout.readline()

    async def refused() -> None:
        with pytest.raises(MetadataLockedError, match=r"metadata\.db"):
            await opened(path)

    asyncio.run(refused())
    kill_after(process, 0, 0)

    async def twice() -> None:
        store = await opened(path)
        second = EmbeddedMetadata(path)
        with pytest.raises(MetadataLockedError):
            await second.start()
        await second.stop()
        assert await store.get("/counter") is not None
        await store.stop()

    asyncio.run(twice())


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is a letter, and no database at all\n" * 100)
    before = path.read_bytes()

    async def whole() -> None:
        with pytest.raises(MetadataFormatError, match=r"metadata\.db"):
            await opened(path)

    asyncio.run(whole())
    assert path.read_bytes() == before


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE addresses (name TEXT)")
    other.close()

    async def whole() -> None:
        with pytest.raises(MetadataFormatError, match="no metadata file"):
            await opened(path)

    asyncio.run(whole())


@pytest.mark.fault("F15")
def test_a_file_of_a_later_format_is_refused(path: Path) -> None:
    make(path, a=b"1")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()

    async def whole() -> None:
        with pytest.raises(MetadataFormatError, match="format 2"):
            await opened(path)

    asyncio.run(whole())


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_damage_is_found_at_the_start(path: Path) -> None:
    make(path, **{f"entry-{number}": b"x" * 900 for number in range(200)})
    data = bytearray(path.read_bytes())
    size = len(data)
    data[size // 2 : size // 2 + 4096] = bytes(4096)
    path.write_bytes(data)

    async def whole() -> None:
        with pytest.raises(MetadataFormatError, match="damaged"):
            await opened(path)

    asyncio.run(whole())


@pytest.mark.fault("F7")
def test_an_entry_without_its_parent_is_damage(path: Path) -> None:
    make(path, a=b"1")
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO entries VALUES ('/lost/child', x'', 0)")
    database.close()

    async def whole() -> None:
        with pytest.raises(MetadataFormatError, match="/lost/child has no parent"):
            await opened(path)

    asyncio.run(whole())


def test_a_making_that_was_cut_short_is_begun_again(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")

    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"")
        await store.stop()

    asyncio.run(whole())
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    database.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").mkdir()

    async def whole() -> None:
        with pytest.raises(MetadataUnavailableError, match=r"metadata\.db"):
            await opened(tmp_path / "metadata.db")

    asyncio.run(whole())


@pytest.mark.fault("F4")
def test_a_full_disk_changes_nothing_and_is_over_when_space_returns(path: Path) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"kept")
        database = store._database
        assert database is not None
        # SQLite reports exactly this when a write meets a full disk.
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(2):
            with pytest.raises(MetadataUnavailableError, match="full") as error:
                await store.create("/b", b"x" * 100_000)
            assert error.value.retriable
            assert await store.get("/b") is None
        assert await store.get("/a") == Entry("/a", b"kept", 0)
        database.execute("PRAGMA max_page_count = 1000000")
        await store.create("/b", b"x" * 100_000)
        await store.stop()
        store = await opened(path)
        assert await store.children("/") == ("a", "b")
        await store.stop()

    asyncio.run(whole())


@pytest.mark.fault("F8")
def test_after_any_other_failure_nothing_is_accepted_before_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"kept")
        states: list[SessionState] = []
        store.on_state(states.append)

        def fails(*_rows: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(store, "_write", fails)
            with pytest.raises(MetadataUnknownError) as error:
                await store.set("/a", b"lost?")
            assert error.value.outcome_unknown
        assert states == [SessionState.LOST]
        assert store.surely_until_ms == 0
        for call in (lambda: store.get("/a"), lambda: store.set("/a", b"more"), lambda: store.children("/")):
            with pytest.raises(MetadataUnavailableError, match="disk I/O error"):
                await call()
        await store.stop()
        store = await opened(path)
        assert await store.get("/a") == Entry("/a", b"kept", 0)
        await store.stop()

    asyncio.run(whole())


def test_who_looks_into_the_file_disturbs_nobody(path: Path) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"1")
        curious = sqlite3.connect(path)
        reading = curious.execute("SELECT path, value, version FROM entries")
        assert reading.fetchall() == [("/a", b"1", 0)]
        await store.set("/a", b"2")
        assert curious.execute("SELECT value, version FROM entries").fetchall() == [(b"2", 1)]
        curious.close()
        await store.stop()

    asyncio.run(whole())


def test_changes_of_a_cancelled_caller_are_whole(path: Path) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"")
        for number in range(50):
            change = asyncio.create_task(store.set("/a", b"%d" % number))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        # The next in turn sees what is on the disk, whatever became of the others.
        seen = await store.set("/a", b"last")
        await store.stop()
        store = await opened(path)
        assert await store.get("/a") == seen
        await store.stop()

    asyncio.run(whole())


def test_who_waits_while_it_is_stopped_is_refused(path: Path) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"0")
        waiting = [asyncio.create_task(store.transact([Set("/a", b"%d" % n)])) for n in range(20)]
        await asyncio.sleep(0)
        await store.stop()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        done = sum(1 for outcome in outcomes if outcome is None)
        assert all(outcome is None or isinstance(outcome, MetadataClosedError) for outcome in outcomes)
        store = await opened(path)
        entry = await store.get("/a")
        assert entry is not None
        assert entry.version == done
        await store.stop()

    asyncio.run(whole())


@pytest.mark.invariant("I16")
def test_many_changes_leave_a_small_file(path: Path) -> None:
    async def whole() -> None:
        store = await opened(path)
        await store.create("/a", b"x" * 1000)
        for _ in range(300):
            await store.set("/a", b"y" * 1000)
        await store.stop()

    asyncio.run(whole())
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 100_000
    assert sorted(os.listdir(path.parent)) == ["metadata.db", "metadata.db.lock"]


def test_errors_say_what_to_do(path: Path) -> None:
    async def life() -> None:
        store: MetadataStore = metadata_store(f"sqlite:{path}")
        with pytest.raises(MetadataError) as error:
            await store.get("/a")
        assert error.value.hint

    asyncio.run(life())
