"""Epochs of a log: RocketMQ's file to the byte, what may follow what, and how far two logs are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LogPositionError, StoreFailedError, StoreFormatError
from penstock.runtime import SystemDisk
from penstock.store.epochs import (
    Epoch,
    EpochFile,
    appended,
    common,
    containing,
    decode,
    encode,
    trimmed,
    truncated,
    without_beyond,
)
from penstock.testing import FaultyDisk, keep_unsynced, lose_unsynced

# The example that RocketMQ's own source gives, checksum included.
ROCKETMQ = b"2\n773307083\n7-7000\n8-8000\n"
ENTRIES = (Epoch(7, 7000), Epoch(8, 8000))
FAR = 1 << 40


def epochs(*pairs: tuple[int, int]) -> tuple[Epoch, ...]:
    return tuple(Epoch(*pair) for pair in pairs)


def test_the_file_is_rocketmqs() -> None:
    assert encode(ENTRIES) == ROCKETMQ
    assert decode(ROCKETMQ) == ENTRIES
    assert decode(b"2\n0\n7-7000\n8-8000\n") == ENTRIES, "a checksum of 0 is not checked"
    assert decode(b"2\r\n823222924\r\n7-7000\r\n8-8000\r\n") == ENTRIES, "as a broker on Windows writes it"


@pytest.mark.fault("F7")
def test_every_flipped_bit_is_noticed_or_harmless() -> None:
    for bit in range(len(ROCKETMQ) * 8):
        damaged = bytearray(ROCKETMQ)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert decode(bytes(damaged)) == ENTRIES, bit
        except ValueError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"2\n773307083",
        b"1\n0\n7-7000\n8-8000\n",
        b"2\n0\n8-8000\n7-7000\n",
        b"2\n0\n7-7000\n8-7000\n",
        b"2\n0\n7-7000\n7-8000\n",
        b"1\n0\n77000\n",
        b"1\n0\n7--7000\n",
        b"1\n0\n-7-7000\n",
        b"1\n0\n7-9223372036854775808\n",
        b"1\n0\n2147483648-1\n",
        b"x\n0\n7-7000\n",
    ],
)
def test_what_is_no_epoch_file(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_what_may_follow() -> None:
    one = appended((), 3, 0)
    assert one == epochs((3, 0))
    assert appended(one, 3, 0) is one
    assert appended(one, 5, 10) == epochs((3, 0), (5, 10))
    for epoch, start in ((3, 10), (2, 10), (2, 0), (-1, 5), (4, -1), (1 << 31, 5)):
        with pytest.raises(LogPositionError):
            appended(one, epoch, start)
    with pytest.raises(LogPositionError, match="cannot follow epoch 5"):
        appended(epochs((3, 0), (5, 10)), 6, 9)


@pytest.mark.invariant("I7")
def test_an_epoch_that_wrote_nothing_leaves_its_place_to_the_next() -> None:
    """RocketMQ would keep (2, 100) and count the bytes of epoch 3 as epoch 2's."""
    assert appended(epochs((1, 0), (2, 100)), 3, 100) == epochs((1, 0), (3, 100))
    # An old master wrote in epoch 2; the new one heard of epoch 2, had nothing of it, and wrote in epoch 3.
    assert common(epochs((1, 0), (2, 100)), 150, epochs((1, 0), (3, 100)), 180) == 100


def test_cutting_at_both_ends() -> None:
    entries = epochs((1, 0), (2, 100), (5, 300))
    assert truncated(entries, 100) == epochs((1, 0))
    assert truncated(entries, 101) == epochs((1, 0), (2, 100))
    assert truncated(entries, 0) == ()
    assert without_beyond(entries, 299) == epochs((1, 0), (2, 100))
    assert without_beyond(entries, 300) == entries
    assert trimmed(entries, 99) == entries
    assert trimmed(entries, 100) == epochs((2, 100), (5, 300))
    assert trimmed(entries, FAR) == epochs((5, 300))
    assert trimmed((), 5) == ()


def test_the_epoch_of_a_position() -> None:
    entries = epochs((1, 50), (2, 100))
    found = [containing(entries, position) for position in (0, 49, 50, 99, 100, FAR)]
    assert found == [None, None, Epoch(1, 50), Epoch(1, 50), Epoch(2, 100), Epoch(2, 100)]
    assert containing((), 5) is None


@pytest.mark.parametrize(
    ("local", "local_end", "remote", "remote_end", "expected"),
    [
        (((1, 0),), 80, ((1, 0),), 100, 80),
        (((1, 0),), 120, ((1, 0),), 100, 100),
        (((1, 0), (2, 100)), 150, ((1, 0), (3, 90)), 200, 90),
        (((1, 0), (2, 100)), 150, ((1, 0), (3, 110)), 200, 100),
        (((1, 0), (2, 100)), 150, ((1, 0), (2, 100), (3, 120)), 200, 120),
        (((1, 0), (2, 100)), 150, ((1, 0), (2, 100), (3, 180)), 200, 150),
        (((1, 0), (2, 100)), 150, ((1, 0), (2, 105)), 200, 100),
        (((1, 0),), 80, ((2, 0),), 100, None),
        ((), 0, ((2, 0),), 100, None),
        (((1, 0),), 10, (), 0, None),
        (((2, 100),), 150, ((1, 0), (2, 100)), 140, 140),
    ],
)
def test_how_far_two_logs_are_the_same(
    local: tuple[tuple[int, int], ...],
    local_end: int,
    remote: tuple[tuple[int, int], ...],
    remote_end: int,
    expected: int | None,
) -> None:
    assert common(local, local_end, remote, remote_end) == expected
    assert common(remote, remote_end, local, local_end) == expected


steps = st.lists(
    st.tuples(st.sampled_from(["lead0", "lead1", "follow", "crash"]), st.integers(0, 5)), max_size=40
)


@pytest.mark.invariant("I7")
@given(steps=steps)
def test_the_common_point_is_never_behind_the_first_difference(steps: list[tuple[str, int]]) -> None:
    """Two logs, each byte of which names the epoch and the master that wrote it, in turn led by either."""
    logs: list[list[tuple[int, int]]] = [[], []]
    tables: list[tuple[Epoch, ...]] = [(), ()]
    leader, epoch = 0, 0
    for step, count in steps:
        other = 1 - leader
        if step.startswith("lead"):
            leader, epoch = int(step[-1]), epoch + 1
            tables[leader] = appended(tables[leader], epoch, len(logs[leader]))
            logs[leader] += [(epoch, leader)] * count
        elif step == "crash":  # unflushed bytes are lost, the epochs are not
            logs[other] = logs[other][: max(len(logs[other]) - count, 0)]
            tables[other] = without_beyond(tables[other], len(logs[other]))
        elif epoch:
            point = common(tables[other], len(logs[other]), tables[leader], len(logs[leader]))
            point = 0 if point is None else point
            assert logs[other][:point] == logs[leader][:point]
            logs[other], tables[other] = logs[other][:point], truncated(tables[other], point)
            for at in range(point, min(point + count, len(logs[leader]))):
                entry = containing(tables[leader], at)
                assert entry is not None
                tables[other] = appended(tables[other], *entry)
                logs[other].append(logs[leader][at])


def test_the_file_and_its_backup(tmp_path: Path) -> None:
    path, disk = tmp_path / "epochFileCheckpoint", SystemDisk()
    file = EpochFile.open(disk, path, 0)
    assert (file.entries, file.last, path.exists()) == ((), None, False)
    file.append(7, 7000)
    file.append(8, 8000)
    assert path.read_bytes() == ROCKETMQ
    assert decode(path.with_name(path.name + ".bak").read_bytes()) == ENTRIES[:1]
    assert EpochFile.open(disk, path, 9000).entries == file.entries == ENTRIES
    assert file.containing(7500) == ENTRIES[0]
    for damage in (b"", b"nonsense"):
        path.write_bytes(damage)
        # The newest epoch may be the one that is missing: its bytes must not pass for those of the one before.
        with pytest.raises(StoreFormatError, match="may lack the epoch of the log's end"):
            EpochFile.open(disk, path, 9000)
        assert EpochFile.open(disk, path, 7000).entries == ENTRIES[:1]
    path.write_bytes(b"nonsense")
    path.with_name(path.name + ".bak").write_bytes(b"too")
    with pytest.raises(StoreFormatError, match="restore one of the two files"):
        EpochFile.open(disk, path, 9000)


def test_epochs_behind_the_logs_end_are_forgotten_on_disk_too(tmp_path: Path) -> None:
    path, disk = tmp_path / "epochFileCheckpoint", SystemDisk()
    path.write_bytes(ROCKETMQ)
    assert EpochFile.open(disk, path, 7999).entries == ENTRIES[:1]
    assert EpochFile.open(disk, path, FAR).entries == ENTRIES[:1]
    file = EpochFile.open(disk, path, 6999)
    assert file.entries == ()
    assert list(tmp_path.iterdir()) == []
    file.append(9, 5)
    file.trim(100)
    assert EpochFile.open(disk, path, FAR).entries == epochs((9, 5))


@pytest.mark.fault("F6")
@pytest.mark.invariant("I11")
@pytest.mark.parametrize("names_are_lost", [False, True], ids=["names-kept", "names-lost"])
@pytest.mark.parametrize("keep", [lose_unsynced, keep_unsynced], ids=["lose", "keep"])
def test_the_power_may_go_before_any_change(tmp_path: Path, keep: object, names_are_lost: bool) -> None:
    """What is on disk is the content before a change or after it, whole; what returned is there."""
    stages = [(), epochs((1, 0)), epochs((1, 0), (2, 50)), epochs((1, 0)), epochs((1, 0), (3, 40)), ()]
    changes, finished = 0, False
    while not finished:
        folder = tmp_path / str(changes)
        folder.mkdir()
        disk = FaultyDisk(folder, lose_directory_entries=names_are_lost)
        disk.stop_after(changes)
        stage = 0
        try:
            file = EpochFile.open(disk, folder / "epochFileCheckpoint", FAR)
            for change, arguments in (
                (file.append, (1, 0)),
                (file.append, (2, 50)),
                (file.truncate, (50,)),
                (file.append, (3, 40)),
                (file.truncate, (0,)),
            ):
                change(*arguments)
                stage += 1
        except (StoreFailedError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        disk.crash(keep)  # type: ignore[arg-type]
        found = EpochFile.open(SystemDisk(), folder / "epochFileCheckpoint", FAR).entries
        assert found in stages[stage : stage + 2], (changes, stage, found)
        changes += 1
    assert changes > 20


def test_a_change_that_fails_leaves_the_epochs_as_they_were(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = EpochFile.open(disk, tmp_path / "epochFileCheckpoint", FAR)
    file.append(1, 0)
    disk.fail_next("sync", 5, times=1)
    with pytest.raises(StoreFailedError, match="saving epochFileCheckpoint failed"):
        file.append(2, 50)
    assert file.entries == epochs((1, 0))
    file.append(2, 50)
    assert EpochFile.open(disk, tmp_path / "epochFileCheckpoint", FAR).entries == epochs((1, 0), (2, 50))
