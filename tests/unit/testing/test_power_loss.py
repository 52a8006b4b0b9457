"""What a crash of the faulty disk leaves of files and names."""

import errno
from pathlib import Path

import pytest

from penstock.runtime import File, SeededEntropy
from penstock.testing import (
    BLOCK_BYTES,
    SIZE,
    FaultyDisk,
    PowerLostError,
    UnsyncedBlock,
    keep_random_blocks,
    keep_unsynced,
)


def created(disk: FaultyDisk, name: str, content: bytes = b"", *, synced: bool = False) -> File:
    file = disk.open(disk.root / name, create=True)
    if content:
        file.pwrite(content, 0)
    if synced:
        file.sync()
    return file


def content(disk: FaultyDisk, name: str) -> bytes | None:
    path = disk.root / name
    return path.read_bytes() if path.exists() else None


# Files: F6, what was not synced is lost.


@pytest.mark.fault("F6")
def test_synced_bytes_stay_and_the_others_go(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"synced", synced=True)
    file.pwrite(b"SY", 0)
    file.pwrite(b"more", 6)
    assert file.pread(100, 0) == b"SYncedmore"
    disk.crash()
    assert content(disk, "f") == b"synced"


@pytest.mark.fault("F6")
def test_what_was_there_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a" * 10_000)
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f")
    file.pwrite(b"b" * 5_000, 2_000)
    file.truncate(3_000)
    file.allocate(20_000)
    disk.crash()
    assert content(disk, "f") == b"a" * 10_000


@pytest.mark.fault("F6")
def test_a_truncation_is_lost_too_unless_it_was_synced(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    for name in ("lost", "kept"):
        file = created(disk, name, b"x" * 9_000, synced=True)
        file.truncate(10)
        file.pwrite(b"new", 10)
        if name == "kept":
            file.sync()
    disk.crash()
    assert content(disk, "lost") == b"x" * 9_000
    assert content(disk, "kept") == b"x" * 10 + b"new"


def test_a_file_that_was_never_synced_is_there_and_empty(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    created(disk, "f", b"content")
    disk.crash()
    assert content(disk, "f") == b""


def test_kill_loses_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, lose_directory_entries=True)
    file = created(disk, "f", b"never synced")
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    disk.rename(tmp_path / "f", tmp_path / "g")
    disk.kill()
    assert content(disk, "g") == b"never synced"
    with pytest.raises(PowerLostError):
        disk.exists(tmp_path)


@pytest.mark.fault("F6")
def test_any_subset_of_blocks_may_survive(tmp_path: Path) -> None:
    """A later block on disk without the earlier one: what a log must not take for whole."""
    seen = set()
    for seed in range(40):
        root = tmp_path / str(seed)
        root.mkdir()
        disk = FaultyDisk(root)
        file = disk.open(root / "f", create=True)
        file.allocate(3 * BLOCK_BYTES)
        file.sync()
        for letter in (b"a", b"b", b"c"):
            file.pwrite(letter * BLOCK_BYTES, b"abc".index(letter) * BLOCK_BYTES)
        disk.crash(keep_random_blocks(SeededEntropy(seed)))
        found = content(disk, "f")
        assert found is not None
        for index, letter in enumerate(b"abc"):
            block = found[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
            assert block in (bytes([letter]) * BLOCK_BYTES, b"\0" * BLOCK_BYTES)
        seen.add(bytes(found[index * BLOCK_BYTES] for index in range(3)))
    assert len(seen) == 8, "40 seeds show every combination"


def test_the_same_seed_leaves_the_same_disk(tmp_path: Path) -> None:
    left = []
    for round_name in ("first", "second"):
        root = tmp_path / round_name
        root.mkdir()
        disk = FaultyDisk(root)
        for name in ("x", "y", "z"):
            created(disk, name, name.encode() * 50_000)
        disk.crash(keep_random_blocks(SeededEntropy(7)))
        left.append([content(disk, name) for name in ("x", "y", "z")])
    assert left[0] == left[1]


def test_keep_is_asked_block_by_block_and_about_the_length(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"a" * (2 * BLOCK_BYTES), synced=True)
    file.pwrite(b"b" * (2 * BLOCK_BYTES), BLOCK_BYTES)
    asked = []

    def keep(block: UnsyncedBlock) -> bool:
        asked.append(block)
        return block.number in (2, SIZE)

    disk.crash(keep)
    assert asked == [UnsyncedBlock(tmp_path / "f", number) for number in (SIZE, 1, 2)]
    assert content(disk, "f") == b"a" * (2 * BLOCK_BYTES) + b"b" * BLOCK_BYTES


def test_a_lost_truncation_brings_the_whole_tail_back(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"a" * 20_000, synced=True)
    file.truncate(5_000)
    disk.crash(lambda block: block.number != SIZE)
    found = content(disk, "f")
    assert found is not None
    assert len(found) == 20_000
    assert found[8192:] == b"a" * (20_000 - 8192)


def test_a_length_may_reach_the_disk_before_the_bytes(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    created(disk, "f", b"x" * 100)
    disk.crash(lambda block: block.number == SIZE)
    assert content(disk, "f") == b"\0" * 100


# Files: F5, a torn write.


@pytest.mark.fault("F5")
def test_the_last_write_can_be_cut_at_every_byte(tmp_path: Path) -> None:
    for cut in range(9):
        root = tmp_path / str(cut)
        root.mkdir()
        disk = FaultyDisk(root)
        file = created(disk, "f", b"0123456789", synced=True)
        file.pwrite(b"AB", 0)
        file.pwrite(b"abcdefgh", 6)
        write = disk.last_unsynced_write()
        assert write is not None
        assert (write.path, write.offset, write.size) == (root / "f", 6, 8)
        disk.crash(torn_at=cut)
        whole, before = b"AB2345abcdefgh", b"AB23456789"
        assert content(disk, "f") == whole[: 6 + cut] + before[6 + cut :]


@pytest.mark.fault("F5")
def test_a_torn_write_into_a_preallocated_file_leaves_its_length(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(10_000)
    file.pwrite(b"record", 9_000)
    disk.crash(torn_at=3)
    assert content(disk, "f") == b"\0" * 9_000 + b"rec" + b"\0" * 997


@pytest.mark.fault("F5")
def test_the_torn_file_can_be_chosen(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    created(disk, "log", b"log entry")
    created(disk, "queue", b"queue entry")
    newest = disk.last_unsynced_write()
    assert newest is not None
    assert newest.path.name == "queue"
    disk.crash(torn_at=3, torn_path_contains="log")
    assert (content(disk, "log"), content(disk, "queue")) == (b"log", b"queue entry")


def test_nothing_to_tear_is_an_error_of_the_test(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    created(disk, "f", b"synced", synced=True)
    assert disk.last_unsynced_write() is None
    with pytest.raises(ValueError):
        disk.crash(torn_at=0)
    created(disk, "g", b"12345")
    with pytest.raises(ValueError):
        disk.crash(torn_at=6)
    disk.crash(torn_at=5)
    assert content(disk, "g") == b"12345"


@pytest.mark.fault("F5")
def test_a_short_write_is_what_can_be_torn(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f")
    disk.fail_next("pwrite", errno.ENOSPC, partial_bytes=4)
    with pytest.raises(OSError):
        file.pwrite(b"abcdefgh", 0)
    write = disk.last_unsynced_write()
    assert write is not None
    assert write.size == 4
    disk.crash(torn_at=2)
    assert content(disk, "f") == b"ab"


# Files: F8, a failed sync.


@pytest.mark.fault("F8")
def test_after_a_failed_sync_a_second_one_saves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(BLOCK_BYTES)
    file.sync()
    file.pwrite(b"lost", 0)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    assert file.pread(4, 0) == b"lost", "the page cache still shows it, which is the trap"
    file.sync()
    assert disk.last_unsynced_write() is None
    disk.crash(keep_unsynced)
    assert content(disk, "f") == b"\0" * BLOCK_BYTES


@pytest.mark.fault("F8")
def test_after_a_failed_sync_writing_again_and_syncing_helps(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"a" * (2 * BLOCK_BYTES), synced=True)
    file.pwrite(b"b" * (2 * BLOCK_BYTES), 0)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.pwrite(b"b" * BLOCK_BYTES, BLOCK_BYTES)
    file.sync()
    disk.crash()
    assert content(disk, "f") == b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES


@pytest.mark.fault("F8")
def test_after_a_failed_sync_a_new_write_is_lost_down_to_what_is_durable(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"durable", synced=True)
    file.pwrite(b"DROPPED", 0)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.pwrite(b"another", 0)
    disk.crash()
    assert content(disk, "f") == b"durable"


@pytest.mark.fault("F8")
def test_a_durable_length_cuts_what_a_failed_sync_left(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"a" * 9_000, synced=True)
    file.truncate(10)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.sync()  # the length is not a page: this one brings it to the disk
    file.truncate(9_000)
    file.sync()
    disk.crash()
    assert content(disk, "f") == b"a" * 10 + b"\0" * 8_990


@pytest.mark.fault("F8")
def test_a_failed_sync_of_one_file_does_not_touch_another(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    bad, good = created(disk, "bad", b"x"), created(disk, "good", b"y")
    disk.fail_next("sync", errno.EIO, path_contains="bad")
    good.sync()
    with pytest.raises(OSError):
        bad.sync()
    disk.crash()
    assert (content(disk, "bad"), content(disk, "good")) == (b"", b"y")


# Files: writes and crashes while a sync is under way (F9).


@pytest.mark.fault("F9")
def test_a_sync_covers_what_was_written_before_it_began(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, sleep=lambda _: file.pwrite(b"late", 5))
    disk.sync_delay_s = 1
    file = created(disk, "f", b"early")
    file.sync()
    assert file.pread(100, 0) == b"earlylate"
    disk.crash()
    assert content(disk, "f") == b"early"


@pytest.mark.fault("F5")
@pytest.mark.fault("F9")
def test_a_write_during_a_sync_can_be_torn(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, sleep=lambda _: file.pwrite(b"late", 5))
    disk.sync_delay_s = 1
    file = created(disk, "f", b"early")
    file.sync()
    disk.crash(torn_at=2)
    assert content(disk, "f") == b"earlyla"


@pytest.mark.fault("F9")
def test_a_write_during_a_sync_that_fails_can_still_become_durable(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, sleep=lambda _: file.pwrite(b"late", 5))
    file = created(disk, "f", b"start", synced=True)
    file.pwrite(b"EARLY", 0)
    disk.sync_delay_s = 1
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    disk.sync_delay_s = 0
    file.sync()  # the late write made the page dirty again, and a page is written whole
    disk.crash()
    assert content(disk, "f") == b"EARLYlate"


@pytest.mark.fault("F9")
def test_power_that_goes_during_a_sync_makes_it_fail(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, sleep=lambda _: disk.crash())
    disk.sync_delay_s = 1
    file = created(disk, "f", b"early")
    with pytest.raises(PowerLostError):
        file.sync()
    assert content(disk, "f") == b""


# Maps.


def test_a_map_of_a_dead_process_keeps_what_it_showed(tmp_path: Path) -> None:
    """The abandoned store's threads may still read: the file under their map must not shrink."""
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(100_000)
    file.pwrite(b"end", 99_997)
    mapped = file.map(100_000)
    disk.crash()
    assert content(disk, "f") == b""
    assert mapped[99_997:] == b"end"
    mapped.close()


def test_a_crash_keeps_modification_times(tmp_path: Path) -> None:
    """Retention looks at them, and a power loss does not make a file younger."""
    disk = FaultyDisk(tmp_path)
    file = created(disk, "f", b"old", synced=True)
    file.pwrite(b"new", 0)
    before = disk.modified_ms(tmp_path / "f")
    disk.crash()
    assert FaultyDisk(tmp_path).modified_ms(tmp_path / "f") == before


# Names.


@pytest.fixture
def forgetful(tmp_path: Path) -> FaultyDisk:
    root = tmp_path / "store"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    return FaultyDisk(root, lose_directory_entries=True)


def test_a_new_name_needs_a_sync_of_the_file_or_of_the_directory(tmp_path: Path) -> None:
    for synced, expected in (("nothing", None), ("file", b"x"), ("directory", b"")):
        root = tmp_path / synced
        root.mkdir()
        disk = FaultyDisk(root, lose_directory_entries=True)
        created(disk, "f", b"x", synced=synced == "file")
        if synced == "directory":
            disk.sync_dir(root)
        assert disk.unsynced_entries == (1 if synced == "nothing" else 0)
        disk.crash()
        assert content(disk, "f") == expected


def test_names_are_kept_unless_the_dial_says_otherwise(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    created(disk, "f", b"x", synced=True)
    disk.rename(tmp_path / "f", tmp_path / "g")
    created(disk, "h", b"y", synced=True)
    disk.remove(tmp_path / "h")
    assert disk.unsynced_entries == 0
    disk.crash()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]


@pytest.mark.parametrize("synced", [False, True])
def test_a_rename_comes_undone_with_what_it_replaced(forgetful: FaultyDisk, synced: bool) -> None:
    created(forgetful, "new", b"new", synced=True)
    forgetful.rename(forgetful.root / "new", forgetful.root / "old")
    if synced:
        forgetful.sync_dir(forgetful.root)
    forgetful.crash()
    if synced:
        assert (content(forgetful, "old"), content(forgetful, "new")) == (b"new", None)
    else:
        assert (content(forgetful, "old"), content(forgetful, "new")) == (b"old", b"new")


@pytest.mark.parametrize("synced", ["source", "target", "both"])
def test_a_rename_between_directories_needs_both_synced(forgetful: FaultyDisk, synced: str) -> None:
    root = forgetful.root
    forgetful.make_dirs(root / "a")
    forgetful.sync_dir(root)
    forgetful.rename(root / "old", root / "a" / "old")
    if synced in ("source", "both"):
        forgetful.sync_dir(root)
    if synced in ("target", "both"):
        forgetful.sync_dir(root / "a")
    forgetful.crash()
    moved = synced == "both"
    assert content(forgetful, "old") == (None if moved else b"old")
    assert content(forgetful, "a/old") == (b"old" if moved else None)


@pytest.mark.parametrize("synced", [False, True])
def test_a_removed_file_comes_back(forgetful: FaultyDisk, synced: bool) -> None:
    file = forgetful.open(forgetful.root / "old")
    file.pwrite(b"OLD", 0)
    forgetful.remove(forgetful.root / "old")
    assert forgetful.list(forgetful.root) == []
    file.pwrite(b"still open", 0)
    if synced:
        forgetful.sync_dir(forgetful.root)
    forgetful.crash()
    assert content(forgetful, "old") == (None if synced else b"old")


def test_a_new_directory_takes_its_files_with_it(forgetful: FaultyDisk) -> None:
    root = forgetful.root
    forgetful.make_dirs(root / "a" / "b")
    created(forgetful, "a/b/f", b"x", synced=True)
    forgetful.sync_dir(root / "a" / "b")
    forgetful.sync_dir(root / "a")
    forgetful.crash()
    assert not (root / "a").exists(), "nobody synced the root"


def test_a_new_directory_stays_when_every_parent_was_synced(forgetful: FaultyDisk) -> None:
    root = forgetful.root
    forgetful.make_dirs(root / "a" / "b")
    created(forgetful, "a/b/f", b"x", synced=True)
    for folder in (root / "a" / "b", root / "a", root):
        forgetful.sync_dir(folder)
    forgetful.crash()
    assert content(forgetful, "a/b/f") == b"x"


@pytest.mark.parametrize("synced", [False, True])
def test_a_removed_tree_comes_back(forgetful: FaultyDisk, synced: bool) -> None:
    root = forgetful.root
    forgetful.make_dirs(root / "a")
    file = created(forgetful, "a/f", b"durable", synced=True)
    forgetful.sync_dir(root)
    file.pwrite(b"UNSYNCED", 0)
    forgetful.remove_tree(root / "a")
    assert not (root / "a").exists()
    if synced:
        forgetful.sync_dir(root)
    forgetful.crash()
    assert content(forgetful, "a/f") == (None if synced else b"durable")


def test_some_of_the_oldest_changes_of_names_may_survive(tmp_path: Path) -> None:
    expected = [["a"], ["a", "b"], ["b", "c"], ["c"]]
    for kept, names in enumerate(expected):
        root = tmp_path / str(kept)
        root.mkdir()
        (root / "a").write_bytes(b"")
        disk = FaultyDisk(root, lose_directory_entries=True)
        disk.open(root / "b", create=True)
        disk.rename(root / "a", root / "c")
        disk.remove(root / "b")
        assert disk.unsynced_entries == 3
        disk.crash(kept_entries=kept)
        assert sorted(path.name for path in root.iterdir()) == names


def test_an_older_rename_that_is_undone_replaces_even_a_synced_file(forgetful: FaultyDisk) -> None:
    root = forgetful.root
    forgetful.rename(root / "old", root / "backup")
    created(forgetful, "old", b"new", synced=True)
    forgetful.crash()
    assert (content(forgetful, "old"), content(forgetful, "backup")) == (b"old", None)


def test_nothing_is_left_beside_the_root(forgetful: FaultyDisk) -> None:
    created(forgetful, "f", b"x", synced=True)
    forgetful.rename(forgetful.root / "f", forgetful.root / "old")
    forgetful.remove(forgetful.root / "old")
    forgetful.crash()
    assert [path.name for path in forgetful.root.parent.iterdir()] == ["store"]
    assert sorted(path.name for path in forgetful.root.iterdir()) == ["f", "old"]
