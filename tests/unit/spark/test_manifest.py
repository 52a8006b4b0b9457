"""The manifest: its bytes, its snapshots, and what damage does to it."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CodecError, StoreFormatError
from penstock.runtime import SystemDisk
from penstock.spark.pipelines import manifest as manifest_module
from penstock.spark.pipelines.manifest import Entry, FileRecord, Manifest, Move, TreeState, seal, unseal

SNAPSHOT_EVERY = 8


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "SNAPSHOT_EVERY", SNAPSHOT_EVERY)


def entry(number: int, **changes: object) -> Entry:
    record = FileRecord(f"topic=t/date=2025-01-31/{number}.parquet", 10, 100, {"first": number})
    return replace(Entry((record,), query="q", batch=number), **changes)


def manifest_of(root: Path, count: int) -> Manifest:
    """A manifest with entries as commits write them."""
    manifest = Manifest(root, SystemDisk())
    manifest.folder.mkdir()
    state = TreeState()
    for number in range(count):
        announced = manifest.announce(entry(number), state, 1_700_000_000_000)
        manifest.settle(announced)
        state.apply(announced)
        manifest.tidy(state)
    return manifest


def test_entry_and_snapshot_come_back_as_they_were(tmp_path: Path) -> None:
    written = entry(
        7,
        drop=("topic=t/date=2025-01-31/a.parquet",),
        moves=(
            Move("_staging/x/0.tmp", "topic=t/a.parquet"),
            Move("@beside/s", "topic=t", "@beside/p", "a.parquet"),
        ),
        written_at=12,
        sequence=8,
    )
    assert Entry.decode(written.encode()) == written
    state = TreeState(3, {"a": FileRecord("a", 1, 2, {"x": "y"})}, {"q": 9})
    assert TreeState.decode(state.encode()) == state


def test_the_bytes_are_one_line_and_its_checksum() -> None:
    data = entry(0, sequence=1).encode()
    assert data == (
        b'{"add":[{"first":0,"path":"topic=t/date=2025-01-31/0.parquet","rows":10,"size":100}],"batch":0,"drop":[],'
        b'"move":[],"query":"q","sequence":1,"version":1,"written_at":0}\ncrc32 %s\n' % data[-9:-1]
    )


@pytest.mark.fault("F7")
def test_every_flipped_byte_is_noticed() -> None:
    data = entry(0, sequence=1).encode()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(ValueError):
            Entry.decode(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(ValueError):
            Entry.decode(data[:size])


@pytest.mark.abuse("A22")
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a\0b", "a\\b", 5])
def test_paths_that_lead_out_of_the_tree_are_refused(path: object) -> None:
    value = unseal(entry(0, sequence=1).encode())
    value["drop"] = [path]
    with pytest.raises(ValueError):
        Entry.decode(seal(value))


def test_a_later_version_is_refused_with_its_number() -> None:
    value = unseal(entry(0, sequence=1).encode()) | {"version": 2}
    with pytest.raises(ValueError, match="version 2"):
        Entry.decode(seal(value))


def test_an_absent_manifest_is_an_empty_tree(tmp_path: Path) -> None:
    assert Manifest(tmp_path, SystemDisk()).load() == TreeState()


def test_files_add_up_and_batches_are_the_last_ones(tmp_path: Path) -> None:
    state = manifest_of(tmp_path, 5).load()
    assert state.sequence == 5
    assert len(state.files) == 5
    assert state.batches == {"q": 4}


def test_dropped_files_are_gone(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, 2)
    dropping = Entry((FileRecord("big", 20, 200),), drop=tuple(manifest.load().files))
    manifest.settle(manifest.announce(dropping, manifest.load(), 0))
    assert list(manifest.load().files) == ["big"]
    assert manifest.load().batches == {"q": 1}


def test_snapshots_keep_the_number_of_files_small_and_nothing_is_lost(tmp_path: Path) -> None:
    count = SNAPSHOT_EVERY * 4 + 3
    manifest = manifest_of(tmp_path, count)
    assert len(manifest.sequences("snapshot")) == 2
    assert len(manifest.sequences("json")) == SNAPSHOT_EVERY + 3
    state = manifest.load()
    assert (state.sequence, len(state.files), state.batches) == (count, count, {"q": count - 1})


@pytest.mark.fault("F7")
def test_a_damaged_snapshot_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, SNAPSHOT_EVERY * 3 + 1)
    whole = manifest.load()
    newest = manifest.path(manifest.sequences("snapshot")[-1], "snapshot")
    newest.write_bytes(newest.read_bytes()[:-20])
    assert manifest.load() == whole


@pytest.mark.fault("F7")
def test_damage_that_nothing_replaces_is_told_with_its_file(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, 3)
    path = manifest.path(2, "json")
    path.write_bytes(b"{}")
    with pytest.raises(CodecError, match=path.name):
        manifest.load()
    path.unlink()
    with pytest.raises(StoreFormatError, match="hole"):
        manifest.load()


@pytest.mark.fault("F7")
def test_no_snapshot_at_all_is_not_taken_for_an_empty_tree(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, SNAPSHOT_EVERY * 3)
    for sequence in manifest.sequences("snapshot"):
        manifest.path(sequence, "snapshot").write_bytes(b"nothing")
    with pytest.raises(StoreFormatError, match="snapshot"):
        manifest.load()


def test_an_intent_is_not_yet_part_of_the_tree(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, 1)
    announced = manifest.announce(entry(1), manifest.load(), 0)
    assert manifest.load().sequence == 1
    assert manifest.pending() == announced
    manifest.settle(announced)
    assert manifest.pending() is None
    assert manifest.load().sequence == 2
