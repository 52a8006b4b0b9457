"""Offsets in ZooKeeper over changes of the master: who writes, and what is read when; in memory, so that it can be
away at the right moment."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker import zookeeper_offsets
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.zookeeper_offsets import ZooKeeperOffsets
from penstock.coordinator.offsets import OffsetKey, OffsetStorage, OffsetStorageOptions, StoredOffset
from penstock.errors import MetadataUnavailableError
from penstock.runtime import Runtime
from penstock.testing.metadata import MemoryEnsemble
from tests.unit.broker.journals import journal

KEY = OffsetKey("g", "T", 0)
OPTIONS = BrokerOptions(coordinators=("c:1",), broker_id=1)


class Member:
    """What a broker of a set has of it, and the servers as they are."""

    def __init__(self, ensemble: MemoryEnsemble, folder: Path, **options: int) -> None:
        runtime = Runtime.system()
        self.offsets = ConsumerOffsets(BrokerOptions(**options), runtime, journal(folder))  # type: ignore[arg-type]
        self.leases = PartitionLeases(OPTIONS, runtime.clock)
        self.store = ensemble.client()
        self.storage = OffsetStorage(self.store, 7, OffsetStorageOptions(stop_tries=1))
        self.part = ZooKeeperOffsets(
            self.storage, lambda topic, queue_id: 1_000_000, self.offsets, self.leases, is_alone=False
        )

    async def lead(self) -> None:
        await self.part.prepare()
        self.part.lead()

    async def stored(self) -> dict[OffsetKey, StoredOffset]:
        return await self.storage.load_all()


def run(life: Callable[[Member, Member, MemoryEnsemble], Awaitable[None]], folder: Path) -> None:
    async def whole() -> None:
        ensemble = MemoryEnsemble()
        one, two = Member(ensemble, folder / "1"), Member(ensemble, folder / "2")
        for member in (one, two):
            await member.part.start()
        async with asyncio.timeout(60):
            await life(one, two, ensemble)
        for member in (one, two):
            await member.part.stop()

    asyncio.run(whole())


@pytest.mark.fault("F12")
@pytest.mark.invariant("I6")
def test_only_who_is_surely_master_writes(tmp_path: Path) -> None:
    async def life(one: Member, two: Member, ensemble: MemoryEnsemble) -> None:
        await one.lead()
        one.offsets.commit("g", "T", 0, 10)
        assert await one.storage.flush() == 1
        # It slept over its lease, with something to write, and another leads.
        one.offsets.commit("g", "T", 0, 11)
        one.leases.is_sure = lambda: False
        await two.lead()
        assert two.offsets.query("g", "T", 0) == 10
        two.offsets.commit("g", "T", 0, 50)
        await two.storage.flush()
        assert await one.storage.flush() == 0
        await one.part.rest()
        assert (await two.stored())[KEY].offset == 50
        # Master again, it knows what the other one knew, and writes nothing of its own.
        await two.part.rest()
        one.leases.is_sure = lambda: True
        await one.lead()
        assert one.offsets.query("g", "T", 0) == 50
        assert await one.storage.flush() == 0

    run(life, tmp_path)


def test_a_write_under_way_ends_with_the_certainty(tmp_path: Path) -> None:
    async def life(one: Member, two: Member, ensemble: MemoryEnsemble) -> None:
        await one.lead()
        one.offsets.commit("g", "T", 0, 10)
        await one.storage.flush()
        await two.lead()
        two.offsets.commit("g", "T", 0, 50)
        await two.storage.flush()
        # Sure when it begins; the version that it names is gone, and then it is not sure any more.
        answers = iter([True, True])
        one.leases.is_sure = lambda: next(answers, False)
        one.offsets.commit("g", "T", 0, 11)
        with pytest.raises(MetadataUnavailableError, match="another process's"):
            await one.storage.flush()
        assert (await two.stored())[KEY].offset == 50
        # What it could not write then, it does not write when it is master again either.
        await two.part.rest()
        one.leases.is_sure = lambda: True
        await one.lead()
        assert await one.storage.flush() == 0
        assert (await two.stored())[KEY].offset == 50

    run(life, tmp_path)


def test_a_last_writing_before_the_lease_is_given_back(tmp_path: Path) -> None:
    async def life(one: Member, two: Member, ensemble: MemoryEnsemble) -> None:
        await one.lead()
        one.offsets.commit("g", "T", 0, 10)
        await one.part.rest()
        one.offsets.commit("g", "T", 0, 12)
        await one.part.stop()
        assert (await two.stored())[KEY].offset == 10
        await one.part.start()

    run(life, tmp_path)


@pytest.mark.fault("F11")
def test_what_could_not_be_read_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile a group has committed, another was deleted: those count as they are here."""
    monkeypatch.setattr(zookeeper_offsets, "PREPARE_WAIT_MS", 50)

    async def life(one: Member, two: Member, ensemble: MemoryEnsemble) -> None:
        await two.lead()
        for group, offset in (("g", 100), ("gone", 100), ("quiet", 100)):
            two.offsets.commit(group, "T", 0, offset)
            two.offsets.commit(group, "T", 1, offset)
        await two.part.rest()
        one.offsets.commit("gone", "T", 0, 1)
        one.offsets.commit("quiet", "T", 0, 1)
        ensemble.stop_serving()
        await one.lead()
        assert one.offsets.query("quiet", "T", 0) == 1
        one.offsets.commit("g", "T", 0, 5)
        one.offsets.remove_group("gone")
        ensemble.serve_again()
        await one.storage.flush()
        places = [(group, queue) for group in ("g", "gone", "quiet") for queue in (0, 1)]
        here = [one.offsets.query(group, "T", queue) for group, queue in places]
        assert here == [5, 100, -1, -1, 100, 100]
        stored = await one.stored()
        assert {(key.group, key.partition): found.offset for key, found in stored.items()} == {
            ("g", 0): 5,
            ("g", 1): 100,
            ("quiet", 0): 100,
            ("quiet", 1): 100,
        }

    run(life, tmp_path)


@pytest.mark.abuse("A14")
def test_more_than_is_kept_stays_there(tmp_path: Path) -> None:
    async def life(one: Member, two: Member, ensemble: MemoryEnsemble) -> None:
        await two.lead()
        for queue in range(5):
            two.offsets.commit("g", "T", queue, 1)
        await two.part.rest()
        small = Member(ensemble, tmp_path / "3", offsets_max=3)
        await small.part.start()
        await small.lead()
        assert len(small.offsets.queues("g", "T")) == 3
        await small.storage.flush()
        assert len(await small.stored()) == 5
        await small.part.stop()

    run(life, tmp_path)
