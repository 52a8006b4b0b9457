"""One mechanism keeps all tables: killed, cut, damaged, failing, or with a file that another program wrote."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.published import PublishedBatches
from penstock.broker.request_modes import RequestModes
from penstock.broker.stored_table import StoredTable
from penstock.broker.topics import Topics
from penstock.errors import CodecError, StoreError
from penstock.metadata.group_table import SubscriptionGroup
from penstock.metadata.offset_table import DelayOffsetTable
from penstock.metadata.request_mode_table import RequestMode, RequestModeConfig
from penstock.metadata.topic_table import TopicConfig
from penstock.runtime import Runtime, SeededEntropy, SystemClock, SystemDisk
from penstock.testing import FaultyDisk, Keep, keep_random_blocks, keep_unsynced, lose_unsynced
from tests.unit.broker.journals import close_journals, journal
from tests.waiting import until

OPTIONS = BrokerOptions(
    broker_name="b-a", cluster_name="c1", table_save_interval_ms=1, offset_save_interval_ms=1
)


class Tables:
    """The tables of a broker over one journal, loaded."""

    def __init__(
        self, config: Path, *, disk: SystemDisk | FaultyDisk | None = None, length_max: int = 4 << 20
    ) -> None:
        runtime = Runtime.system()
        self.journal = journal(config, disk, length_max=length_max)
        self.topics = Topics(OPTIONS, runtime, self.journal)
        self.groups = Groups(OPTIONS, runtime, self.journal)
        self.offsets = ConsumerOffsets(OPTIONS, runtime, self.journal)
        self.modes = RequestModes(OPTIONS, runtime, self.journal)
        self.published = PublishedBatches(OPTIONS, runtime, self.journal)
        for owner in self.owners:
            owner.load()

    @property
    def owners(self) -> tuple[Topics, Groups, ConsumerOffsets, RequestModes, PublishedBatches]:
        return self.topics, self.groups, self.offsets, self.modes, self.published

    @property
    def stored(self) -> list[StoredTable]:
        return [owner.stored for owner in self.owners]

    def change(self, number: int) -> None:
        """Something in each table."""
        self.topics.update(TopicConfig(f"T{number % 7}", number + 1, 4))
        self.groups.update(SubscriptionGroup(f"g{number % 7}", retry_max_times=number + 1))
        self.groups.forbid_read(f"g{number % 3}", "T", number % 2 == 0)
        self.offsets.commit(f"g{number % 5}", "T", number % 4, number)
        self.modes.set("T", f"g{number % 3}", RequestModeConfig(RequestMode.POP, number))
        if number % 6 == 5:
            self.topics.delete("T1")
            self.groups.delete("g1")
            self.offsets.remove_group("g1")
            self.modes.remove_topic("T")

    def state(self) -> tuple[object, ...]:
        return (
            dict(self.topics.all()),
            self.topics.data_version,
            dict(self.groups.all()),
            self.groups.data_version,
            {name: dict(topics) for name, topics in self.groups.forbidden().items()},
            {key: dict(queues) for key, queues in self.offsets.all()},
            self.modes.snapshot().modes,
        )

    async def save(self) -> bool:
        return all([await stored.save() for stored in self.stored])

    async def save_files(self) -> bool:
        return all([await stored.save_file() for stored in self.stored])

    async def stop(self) -> None:
        """As a broker does."""
        for stored in self.stored:
            await stored.stop()
        await self.journal.close(is_saved=all(stored.is_clean for stored in self.stored))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        await scenario()

    asyncio.run(inside())


def files(config: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in config.glob(pattern))


# -- what each table has from the others ---------------------------------------------------------------------------


@pytest.mark.fault("F7")
@pytest.mark.parametrize(
    "name",
    [
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "messageRequestMode.json",
        "stagedPublications.json",
    ],
)
def test_a_damaged_main_file_is_written_again_from_its_backup(tmp_path: Path, name: str) -> None:
    """0.1 repaired topics, groups and offsets; modes, publications and delays stayed damaged until a next change."""

    async def scenario() -> None:
        first = Tables(tmp_path)
        for number in range(2):
            first.change(number)
            first.published.remember(f"{number}", 1, 1, number)
            assert await first.save_files()
        await first.stop()
        before = (tmp_path / f"{name}.bak").read_bytes()
        (tmp_path / name).write_bytes(b'{"torn')
        second = Tables(tmp_path)
        for stored in second.stored:
            stored.start()
        await until(lambda: all(stored.is_clean for stored in second.stored))
        await second.stop()
        assert json.loads((tmp_path / name).read_bytes()).keys() == json.loads(before).keys()
        assert (tmp_path / f"{name}.bak").read_bytes() == before, "a damaged file replaces no good backup"

    run(scenario)


def test_a_forbidden_topic_goes_with_a_group_that_is_not_there(tmp_path: Path) -> None:
    """0.1 forgot it in memory alone, and knew it again after the next start."""

    async def scenario() -> None:
        first = Tables(tmp_path)
        first.groups.forbid_read("never-made", "T", True)
        assert not first.groups.delete("never-made")
        assert await first.save()
        assert not Tables(tmp_path).groups.forbidden()

    run(scenario)


# -- the journal ---------------------------------------------------------------------------------------------------


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_killed_broker_knows_every_change_although_no_file_was_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        for number in range(40):
            first.change(number)
        assert not files(tmp_path, "*.json")
        second = Tables(tmp_path)
        assert second.state() == first.state()
        second.change(99)
        assert Tables(tmp_path).state() == second.state()

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.parametrize("saved_at", [0, 7, 20, 39])
def test_file_and_journal_together_are_the_table_whenever_the_file_was_written(
    tmp_path: Path, saved_at: int
) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        for number in range(40):
            first.change(number)
            if number == saved_at:
                assert await first.save_files()
        assert Tables(tmp_path).state() == first.state()

    run(scenario)


def test_changes_while_a_file_is_written_are_not_lost(tmp_path: Path) -> None:
    """The file has rows of different moments then: some of before and some of after a change."""

    async def scenario() -> None:
        first = Tables(tmp_path)
        for number in range(1_000):
            first.offsets.commit(f"group-{number:04}", "T", 0, 0)
        writing = asyncio.ensure_future(first.offsets.stored.save_file())
        moved = 0
        while not writing.done():
            first.offsets.commit(f"group-{moved % 1_000:04}", "T", 0, moved + 1)
            first.offsets.remove_group(f"group-{(moved * 7) % 1_000:04}")
            moved += 1
            await asyncio.sleep(0)
        assert await writing
        assert moved > 10
        assert Tables(tmp_path).state() == first.state()

    run(scenario)


@pytest.mark.fault("F5")
def test_a_torn_end_takes_nothing_else_along(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        for number in range(3):
            first.offsets.commit("g", "T", number, 7)
        path = tmp_path / files(tmp_path, "tables.*.log")[0]
        whole = path.read_bytes()
        first.offsets.commit("g", "T", 3, 7)
        longer = path.read_bytes()
        for size in range(len(whole), len(longer)):
            path.write_bytes(longer[:size])
            found = Tables(tmp_path)
            assert dict(found.offsets.queues("g", "T")) == {0: 7, 1: 7, 2: 7}
        path.write_bytes(longer[:-1] + b"?")
        # What is changed now goes to a file of its own, and counts although the one before it is torn.
        found = Tables(tmp_path)
        found.offsets.commit("g", "T", 0, 8)
        assert dict(Tables(tmp_path).offsets.queues("g", "T")) == {0: 8, 1: 7, 2: 7}

    run(scenario)


def test_a_long_journal_is_cut_when_the_files_have_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path, length_max=2_000)
        longest = 0
        for number in range(300):
            first.change(number)
            if number % 10 == 9:
                assert await first.save_files()
                assert Tables(tmp_path).state() == first.state()
            longest = max(longest, first.journal.length)
        assert longest < 100_000
        assert len(files(tmp_path, "tables.*.log")) <= 3
        await first.stop()
        assert not files(tmp_path, "tables.*.log")
        assert Tables(tmp_path).state() == first.state()

    run(scenario)


def test_a_change_costs_the_same_however_many_groups_there_are(tmp_path: Path) -> None:
    """0.1 wrote the whole file for each."""

    async def scenario() -> None:
        costs: list[int] = []
        for count in (10, 5_000):
            disk = FaultyDisk(tmp_path)
            found = Tables(tmp_path / f"{count}", disk=disk)
            for number in range(count):
                found.groups.update(SubscriptionGroup(f"g{number:06}"))
            assert await found.groups.save()
            before = disk.used_bytes
            found.groups.update(SubscriptionGroup("one-more"))
            found.offsets.commit("one-more", "T", 0, 1)
            assert await found.groups.save()
            costs.append(disk.used_bytes - before)
            await close_journals()
        assert costs[0] > 0
        assert abs(costs[1] - costs[0]) < 100

    run(scenario)


# -- power loss ----------------------------------------------------------------------------------------------------

SURVIVAL: dict[str, Callable[[int], Keep]] = {
    "nothing": lambda _seed: lose_unsynced,
    "everything": lambda _seed: keep_unsynced,
    "random": lambda seed: keep_random_blocks(SeededEntropy(seed)),
}


@pytest.mark.fault("F5", "F6")
@pytest.mark.invariant("I1")
@pytest.mark.parametrize("survivors", SURVIVAL)
def test_what_was_saved_survives_a_power_loss_at_every_step(tmp_path: Path, survivors: str) -> None:
    """Changes, files and cuts of the journal, and the power goes after each write, rename and sync in turn."""

    async def life(disk: FaultyDisk, config: Path) -> int:
        """How many changes were saved when the power went."""
        saved = 0
        try:
            found = Tables(config, disk=disk, length_max=1_500)
            for number in range(8):
                found.offsets.commit("g", "T", number, number)
                found.topics.update(TopicConfig(f"T{number}", 1, 1))
                if not await found.save():
                    break
                saved = number + 1
                if number % 3 == 2 and not await found.save_files():
                    break
        except (OSError, StoreError, CodecError):
            assert not disk.has_power
        return saved

    async def scenario() -> None:
        steps, has_power = 3, False
        while not has_power:
            root = tmp_path / f"{steps}"
            root.mkdir()
            disk = FaultyDisk(root, lose_directory_entries=True)
            disk.stop_after(steps)
            saved = await life(disk, root / "config")
            has_power = disk.has_power
            disk.crash(SURVIVAL[survivors](steps), kept_entries=steps % 3)
            again = Tables(root / "config")
            assert all(again.offsets.query("g", "T", number) == number for number in range(saved)), steps
            assert all(again.topics.get(f"T{number}") is not None for number in range(saved)), steps
            await close_journals()
            steps += 5
        assert saved == 8

    run(scenario)


# -- another program -----------------------------------------------------------------------------------------------


@pytest.mark.fault("F1")
def test_a_file_that_another_program_wrote_after_a_crash_counts_alone(tmp_path: Path) -> None:
    """A Java broker or 0.1 knows nothing of the journal: what it wrote is newer. No start brings old values back."""

    async def scenario() -> None:
        first = Tables(tmp_path)
        first.offsets.commit("g", "T", 0, 5)
        first.topics.update(TopicConfig("kept", 1, 1))
        assert await first.save_files()
        first.offsets.commit("g", "T", 0, 9)
        first.topics.update(TopicConfig("also-kept", 1, 1))
        await close_journals()
        theirs = json.loads((tmp_path / "consumerOffset.json").read_bytes())
        theirs["offsetTable"]["T@g"]["0"] = 7
        (tmp_path / "consumerOffset.json").write_text(json.dumps(theirs))
        for _ in range(3):
            again = Tables(tmp_path)
            assert again.offsets.query("g", "T", 0) == 7
            assert again.topics.get("also-kept") is not None, "nobody else wrote that file"
            await close_journals()
        again = Tables(tmp_path)
        again.offsets.commit("g", "T", 1, 1)
        await close_journals()
        assert dict(Tables(tmp_path).offsets.queues("g", "T")) == {0: 7, 1: 1}

    run(scenario)


def test_files_that_were_removed_stay_removed(tmp_path: Path) -> None:
    """The hint of the error about damaged files says so."""

    async def scenario() -> None:
        first = Tables(tmp_path)
        first.offsets.commit("g", "T", 0, 5)
        assert await first.save_files()
        first.offsets.commit("g", "T", 0, 9)
        assert await first.save_files()
        first.offsets.commit("g", "T", 0, 10)
        await close_journals()
        for name in files(tmp_path, "consumerOffset.json*"):
            (tmp_path / name).unlink()
        assert Tables(tmp_path).offsets.query("g", "T", 0) == -1
        await close_journals()
        assert Tables(tmp_path).offsets.query("g", "T", 0) == -1

    run(scenario)


# -- a disk that fails ---------------------------------------------------------------------------------------------


@pytest.mark.fault("F4")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_where_the_journal_cannot_be_written_the_file_is(tmp_path: Path, error: int) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        first = Tables(tmp_path, disk=disk)
        assert await first.save_files()
        disk.fail_next("pwrite", error, path_contains="tables.")
        first.offsets.commit("g", "T", 0, 5)
        assert not first.offsets.stored.is_kept
        assert Tables(tmp_path).offsets.query("g", "T", 0) == -1
        assert await first.offsets.save()
        assert first.offsets.stored.is_kept
        assert Tables(tmp_path).offsets.query("g", "T", 0) == 5
        first.offsets.commit("g", "T", 0, 6)
        assert Tables(tmp_path).offsets.query("g", "T", 0) == 6
        await close_journals()

    run(scenario)


@pytest.mark.fault("F8")
def test_after_a_failed_sync_nothing_rests_on_the_journal_file(tmp_path: Path) -> None:
    """The sync that fails may have dropped what was written; a second one that succeeds would prove nothing."""

    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        first = Tables(tmp_path, disk=disk)
        assert await first.save()
        first.offsets.commit("g", "T", 0, 5)
        disk.fail_next("sync", errno.EIO, path_contains="tables.")
        assert await first.offsets.save()
        first.offsets.commit("g", "T", 1, 6)
        assert await first.offsets.save()
        disk.crash(lose_unsynced)
        assert dict(Tables(tmp_path).offsets.queues("g", "T")) == {0: 5, 1: 6}

    run(scenario)


@pytest.mark.fault("F4")
def test_who_waits_is_told_where_neither_can_be_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        first = Tables(tmp_path, disk=disk)
        assert await first.save_files()
        disk.fail_next("pwrite", errno.ENOSPC, path_contains="tables.")
        disk.fail_next("pwrite", errno.ENOSPC, path_contains="consumerOffset")
        first.offsets.commit("g", "T", 0, 5)
        assert not await first.offsets.save()
        assert "consumerOffset.json" in first.offsets.stored.failure
        assert await first.offsets.save()
        assert first.offsets.stored.failure == ""
        await close_journals()

    run(scenario)


# -- the task that writes the file ---------------------------------------------------------------------------------


def test_between_two_writes_of_a_file_there_is_the_interval_and_stopping_writes_the_rest(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        opened = journal(tmp_path)
        table = DelayOffsetTable()
        stored = StoredTable(opened, "delayOffset.json", table.members, SystemClock(), interval_ms=600_000)

        def change(offset: int) -> None:
            table.offsets[1] = offset
            stored.changed(table.change_of())

        def written() -> object:
            path = tmp_path / "delayOffset.json"
            return json.loads(path.read_bytes())["offsetTable"] if path.exists() else None

        stored.start()
        change(1)
        await until(lambda: stored.is_clean)
        change(2)
        assert await stored.save()
        assert written() == {"1": 1}, "the journal has it, and that is enough"
        assert await stored.save_file()
        change(3)
        await stored.stop()
        assert written() == {"1": 3}

    run(scenario)


def test_a_failing_last_write_does_not_hold_up_the_stop_and_the_journal_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        (tmp_path / "consumerOffset.json.tmp").mkdir()
        first.offsets.commit("g", "T", 0, 5)
        await first.stop()
        assert files(tmp_path, "tables.*.log")
        assert Tables(tmp_path).offsets.query("g", "T", 0) == 5

    run(scenario)


def test_a_clean_stop_leaves_what_0_1_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        first.change(4)
        await first.stop()
        assert not files(tmp_path, "tables.*")
        offsets = json.loads((tmp_path / "consumerOffset.json").read_bytes())
        assert offsets["offsetTable"] == {"T@g4": {"0": 4}}
        assert offsets["groupTopicMap"] == {"g4": ["T"]}
        groups = json.loads((tmp_path / "subscriptionGroup.json").read_bytes())
        assert groups["subscriptionGroupTable"]["g4"]["retryMaxTimes"] == 5
        assert groups["forbiddenTable"] == {"g1": {"T": 4}}
        modes = json.loads((tmp_path / "messageRequestMode.json").read_bytes())
        assert modes["messageRequestModeMap"]["T"]["g1"]["popShareQueueNum"] == 4

    run(scenario)


def test_a_broker_whose_tables_did_not_change_writes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Tables(tmp_path)
        first.change(4)
        await first.stop()
        disk = FaultyDisk(tmp_path)
        second = Tables(tmp_path, disk=disk)
        await second.stop()
        assert disk.calls["pwrite"] == 0

    run(scenario)
