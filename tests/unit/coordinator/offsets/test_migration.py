"""Offsets from the JSON file to ZooKeeper and back: nothing lost, nothing back, twice is once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.offsets import (
    MigrationReport,
    OffsetKey,
    OffsetStorage,
    StoredOffset,
    copy_from_storage,
    copy_to_storage,
)
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup
from penstock.runtime import SystemDisk
from penstock.testing.metadata import MemoryEnsemble


def run(life: Callable[[OffsetStorage], Awaitable[None]]) -> None:
    async def whole() -> None:
        storage = OffsetStorage(MemoryEnsemble().client(), 7)
        await storage.start()
        await life(storage)
        await storage.stop()

    asyncio.run(whole())


def table(**queues: dict[int, int]) -> ConsumerOffsetTable:
    """By `topic__group`."""
    return ConsumerOffsetTable(
        offsets={TopicGroup(*name.split("__")): dict(offsets) for name, offsets in queues.items()}
    )


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
def test_everything_goes_over_and_comes_back() -> None:
    there = table(T1__G1={0: 100, 1: 98}, T2__G1={0: 5}, T1__G2={3: 0})
    there.offsets[TopicGroup("%RETRY%G1", "G1")] = {0: 9}

    async def life(storage: OffsetStorage) -> None:
        assert await copy_to_storage(there, storage) == MigrationReport(copied=5, kept=0)
        assert storage.changed_count == 0
        assert (await storage.load_all())[OffsetKey("G1", "%RETRY%G1", 0)] == StoredOffset(9)
        back = ConsumerOffsetTable()
        assert await copy_from_storage(storage, back) == MigrationReport(copied=5, kept=0)
        assert back.offsets == there.offsets
        # Once more changes nothing.
        assert await copy_to_storage(there, storage) == MigrationReport(copied=0, kept=5)
        assert await copy_from_storage(storage, back) == MigrationReport(copied=0, kept=5)

    run(life)


def test_the_higher_offset_stays_unless_the_source_is_to_win() -> None:
    async def life(storage: OffsetStorage) -> None:
        # Not written yet, and it counts all the same.
        storage.commit(OffsetKey("G", "T", 0), 50, message_id=3)
        source = table(T__G={0: 40, 1: 40})
        assert await copy_to_storage(source, storage) == MigrationReport(copied=1, kept=1)
        assert await storage.load(OffsetKey("G", "T", 0)) == StoredOffset(50, 3)
        assert await copy_to_storage(source, storage, overwrite=True) == MigrationReport(copied=1, kept=1)
        assert await storage.load(OffsetKey("G", "T", 0)) == StoredOffset(40)
        target = table(T__G={0: 60, 1: 10})
        storage.commit(OffsetKey("G", "T", 2), 1)
        assert await copy_from_storage(storage, target) == MigrationReport(copied=2, kept=1)
        assert target.offsets == {TopicGroup("T", "G"): {0: 60, 1: 40, 2: 1}}
        assert await copy_from_storage(storage, target, overwrite=True) == MigrationReport(copied=1, kept=2)
        assert target.offsets[TopicGroup("T", "G")][0] == 40

    run(life)


def test_what_cannot_go_over_is_named() -> None:
    async def life(storage: OffsetStorage) -> None:
        report = await copy_to_storage(table(T__G={0: -1, 1: 1}), storage)
        assert (report.copied, report.kept) == (1, 0)
        assert "T@G queue 0" in report.skipped[0]
        storage.commit(OffsetKey("G", "a@b", 0), 1)
        back = ConsumerOffsetTable()
        report = await copy_from_storage(storage, back)
        assert report.copied == 1
        assert "a@b" in report.skipped[0]
        assert list(back.offsets) == [TopicGroup("T", "G")]

    run(life)


def test_a_file_of_rocketmq_goes_over_and_back_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir()
    path.write_text('{"offsetTable":{"T1@G1":{0:100,1:98},"%RETRY%G1@G1":{0:4}}}', encoding="utf-8")
    loaded = ConfigFile(SystemDisk(), path).load(ConsumerOffsetTable.from_json)
    assert loaded is not None

    async def life(storage: OffsetStorage) -> None:
        await copy_to_storage(loaded.value, storage)
        again = ConsumerOffsetTable()
        await copy_from_storage(storage, again)
        file = ConfigFile(SystemDisk(), tmp_path / "new" / "consumerOffset.json")
        file.save(again.to_json())
        read = file.load(ConsumerOffsetTable.from_json)
        assert read is not None
        assert read.value.offsets == loaded.value.offsets

    run(life)


NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=8)
TABLES = st.dictionaries(
    st.builds(TopicGroup, NAMES, NAMES),
    st.dictionaries(st.integers(0, 20), st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    max_size=6,
)


@given(first=TABLES, second=TABLES)
def test_two_tables_meet_in_the_maximum(
    first: dict[TopicGroup, dict[int, int]], second: dict[TopicGroup, dict[int, int]]
) -> None:
    async def life(storage: OffsetStorage) -> None:
        await copy_to_storage(ConsumerOffsetTable(offsets=first), storage)
        await copy_to_storage(ConsumerOffsetTable(offsets=second), storage)
        found = ConsumerOffsetTable()
        await copy_from_storage(storage, found)
        expected: dict[TopicGroup, dict[int, int]] = {}
        for offsets in (first, second):
            for key, queues in offsets.items():
                for queue, offset in queues.items():
                    merged = expected.setdefault(key, {})
                    merged[queue] = max(merged.get(queue, 0), offset)
        assert found.offsets == expected

    run(life)
