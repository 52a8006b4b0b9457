"""All queues of a store: loading what is there, the manifest that remembers how far they came, deleting topics."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from penstock._hot.dispatch import Dispatcher
from penstock.errors import TopicNameError
from penstock.message import Message
from penstock.store import GetStatus, MessageStore
from penstock.store.findings import Findings
from penstock.store.layout import StorePaths
from penstock.store.queue_table import TAIL_MAX, Manifest, QueueTable
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import audit, faulty, open_store, small_options


def table_in(folder: Path, disk: FaultyDisk, findings: Findings | None = None) -> QueueTable:
    return QueueTable(
        disk,
        StorePaths(folder),
        small_options(),
        findings or Findings(),
        Dispatcher((), False),
        read_only=False,
    )


def fill(store: MessageStore, topic: str, count: int, queue: int = 0) -> None:
    for i in range(count):
        store.append(Message.of(topic, b"%d" % i), queue)


# -- loading -------------------------------------------------------------------------------------------------


def test_every_queue_comes_back(tmp_path: Path) -> None:
    places = {("a", 0): 1, ("a", 7): 9, ("b", 0): 16, ("%RETRY%g", 2): 17, ("a|b-c_d", 2**31 - 1): 3}
    with open_store(tmp_path) as store:
        for (topic, queue), count in places.items():
            fill(store, topic, count, queue)
    with open_store(tmp_path) as store:
        found = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
        assert found == places
        assert len(store.queues) == len(places)
        assert store.findings.all() == []


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    "stray", ["..x", "a.b", "tópico", "t/-1", "t/01x", "t/2147483648", "t/99999999999", "t/٣", "t/ 1"]
)
def test_folders_that_are_no_queue_are_left_alone_and_named(tmp_path: Path, stray: str) -> None:
    with open_store(tmp_path) as store:
        fill(store, "t", 2)
    (tmp_path / "consumequeue" / stray).mkdir(parents=True)
    with open_store(tmp_path) as store:
        assert [(queue.topic, queue.queue_id) for queue in store.queues] == [("t", 0)]
        assert [finding.kind for finding in store.findings.all()] == ["stray file"]
    assert (tmp_path / "consumequeue" / stray).is_dir()


def test_get_never_makes_a_queue(tmp_path: Path) -> None:
    table = table_in(tmp_path, faulty(tmp_path))
    assert table.get("t", 0) is None
    assert len(table) == 0
    made = table.get_or_create("t", 0)
    assert table.get_or_create("t", 0) is table.get("t", 0) is made
    with pytest.raises(TopicNameError):
        table.get_or_create("../t", 0)
    assert len(table) == 1
    assert os.listdir(tmp_path) == []


# -- writing and syncing -------------------------------------------------------------------------------------


def test_a_queue_is_synced_when_it_has_enough_pages(tmp_path: Path) -> None:
    """Two pages hold 409.6 entries: 409 do not make them, 410 do."""
    disk = faulty(tmp_path)
    table = table_in(tmp_path, disk)
    queue = table.get_or_create("t", 0)

    def syncs_with(entries: int) -> bool:
        for _ in range(entries):
            queue.state.add_entry(0, 100, 0)
        table.drain()
        disk.log.clear()
        table.sync(table, 2)
        return any(entry.op == "sync" for entry in disk.log)

    assert not syncs_with(409)
    assert syncs_with(1)
    assert not syncs_with(0)
    queue.state.add_entry(0, 100, 0)
    table.drain()
    disk.log.clear()
    table.sync(table, 0)
    assert [entry.op for entry in disk.log].count("sync") == 1
    table.close()


def test_the_keeper_writes_entries_every_second_and_syncs_all_every_ten(tmp_path: Path) -> None:
    disk, clock = faulty(tmp_path), ManualClock()
    with open_store(tmp_path, disk=disk, clock=clock) as store:
        store.keeper.tick()

        def after(milliseconds: int) -> set[str]:
            clock.advance(milliseconds)
            disk.log.clear()
            store.keeper.tick()
            return {entry.op for entry in disk.log if entry.path.startswith("consumequeue/t/0/")}

        fill(store, "t", 3)
        assert after(999) == set()
        assert "pwrite" in after(1)
        fill(store, "t", 1)
        assert after(1000) == {"pwrite"}
        assert after(8000) == {"sync"}


def test_a_busy_queue_writes_its_entries_without_the_keeper(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options(segment_size_bytes=1 << 20)) as store:
        store.append_group([store.request(Message.of("t", b"")) for _ in range(TAIL_MAX - 1)])
        assert not (tmp_path / "consumequeue").exists()
        store.append(Message.of("t", b""))
        queue = store.queues.get("t", 0)
        assert queue is not None
        assert queue.state.tail_count == 0
        assert queue.has_files
        assert queue.max_offset == TAIL_MAX


# -- the manifest --------------------------------------------------------------------------------------------


def test_a_manifest_comes_back() -> None:
    manifest = Manifest(
        starts={("t", 0): 8, ("t", 12): 0},
        ends={("t", 0): 20, ("t", 12): 3},
        index_end=4096,
        index_files=["20231114221320000"],
        log_start=8192,
        segment_size_bytes=8192,
        queue_file_entries=8,
        deleted={"gone": 77},
    )
    assert Manifest.decode(manifest.encode()) == manifest
    assert Manifest.decode(Manifest().encode()) == Manifest()


@pytest.mark.fault("F7")
def test_every_damaged_byte_of_a_manifest_is_noticed() -> None:
    data = Manifest(ends={("t", 0): 20}, log_start=0).encode()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x04
        with pytest.raises(ValueError):
            Manifest.decode(bytes(damaged))
        with pytest.raises(ValueError):
            Manifest.decode(data[:at])


@pytest.mark.fault("F7")
@pytest.mark.parametrize("value", [None, [], {}, 3, {"version": 1}, {"queues": []}])
def test_a_manifest_of_another_shape_is_ignored_and_named(tmp_path: Path, value: object) -> None:
    with open_store(tmp_path) as store:
        fill(store, "t", 3)
    line = json.dumps(value).encode()
    (tmp_path / "penstock.manifest.json").write_bytes(b"%s\ncrc32 %08x\n" % (line, zlib.crc32(line)))
    with open_store(tmp_path) as store:
        assert store.max_offset("t", 0) == 3
        assert [finding.kind for finding in store.findings.all()] == ["manifest unreadable"]


def test_what_the_manifest_says_after_a_clean_close(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store, "t", 11)
        fill(store, "u", 2, queue=3)
    manifest = Manifest.decode((tmp_path / "penstock.manifest.json").read_bytes())
    assert manifest.ends == {("t", 0): 11, ("u", 3): 2}
    assert manifest.starts == {("t", 0): 0, ("u", 3): 0}
    assert (manifest.log_start, manifest.segment_size_bytes, manifest.queue_file_entries) == (0, 8192, 8)


@pytest.mark.invariant("I4")
@pytest.mark.fault("F7")
@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_a_queue_whose_files_are_lost_is_built_again(tmp_path: Path, ending: str) -> None:
    store = open_store(tmp_path)
    fill(store, "t", 20)
    store.keeper.tick()
    getattr(store, ending)()
    shutil.rmtree(tmp_path / "consumequeue" / "t")
    with open_store(tmp_path) as store:
        assert [int(m.body) for m in store.read("t", 0, 0)] == list(range(20))
        assert store.append(Message.of("t", b"next")).queue_offset == 20
        assert audit(store).all() == []


def test_the_manifest_is_replaced_whole(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, disk=disk) as store:
        fill(store, "t", 2)
        disk.log.clear()
        store.keeper.tick()
        steps = [entry for entry in disk.log if "manifest" in entry.path or "manifest" in entry.target]
        assert [entry.op for entry in steps][-2:] == ["sync", "rename"]
        assert steps[-1].target == "penstock.manifest.json"
        assert not any(entry.op == "pwrite" and entry.path == "penstock.manifest.json" for entry in steps)


# -- deleting topics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_deleting_topics(tmp_path: Path, ending: str) -> None:
    store = open_store(tmp_path)
    for topic in ("a", "b", "c"):
        fill(store, topic, 5)
        fill(store, topic, 2, queue=1)
    store.keeper.tick()
    assert store.delete_topics(["a", "c", "absent"]) == ["a", "c"]
    assert store.delete_topics(["a"]) == []
    assert sorted(os.listdir(tmp_path / "consumequeue" / "b")) == ["0", "1"]
    assert not (tmp_path / "consumequeue" / "a" / "0").exists()
    getattr(store, ending)()
    with open_store(tmp_path) as store:
        assert {queue.topic for queue in store.queues} == {"b"}
        assert store.get("a", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert [int(m.body) for m in store.read("b", 0, 0)] == list(range(5))
        assert store.append(Message.of("a", b"new")).queue_offset == 0
        assert [m.body for m in store.read("a", 0, 0)] == [b"new"]
        assert store.findings.damage() == []


def test_the_manifest_says_that_a_topic_is_deleted_before_its_files_go(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, disk=disk) as store:
        fill(store, "t", 2)
        store.keeper.tick()
        disk.log.clear()
        store.delete_topics(["t"])
        steps = [(entry.op, entry.target or entry.path) for entry in disk.log]
        said = steps.index(("rename", "penstock.manifest.json"))
        assert said < steps.index(("remove_tree", "consumequeue/t/0"))
        assert store.queues.was_deleted("t", 0)
        assert not store.queues.was_deleted("t", store.log.max_offset)
        assert not store.queues.was_deleted("u", 0)
        store.queues.forget_deleted(store.log.max_offset)
        assert not store.queues.was_deleted("t", 0)
