"""F7: whatever happened to files that the log can make again, the store opens, says so, and serves all of the log.

Damage to the log itself is in `test_damage_at_rest.py`. A number repeats one case:

    PENSTOCK_SEED=5 pytest tests/fault/test_mutated_stores.py -k clean
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.message import StoredMessage
from penstock.store import MessageStore, StoreOptions
from penstock.store.audit import LogAudit
from penstock.store.findings import Findings
from penstock.store.inspection import dump_log, dump_queues, stats, verify
from tests.disk_limits import NO_DISK_LIMITS
from tests.effort import by_length, first_seed
from tests.fault.damaged_sample import NEXT, NEXT_SERIAL, OPTIONS, Sample, served
from tests.fault.store_mutation import mutate
from tests.support.running_broker import running
from tests.support.store_checks import append, body_of, open_store, serial_of

pytestmark = [pytest.mark.fault("F7"), pytest.mark.invariant("I12")]
STORES = by_length(60, 1_000)
SEED = first_seed(20261119)


@pytest.fixture(scope="module", params=["clean stop", "crash"])
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return Sample(tmp_path_factory.mktemp("sample") / "store", request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.mark.long
@pytest.mark.timeout(by_length(300, 3_600))
def test_stores_with_damaged_derived_files_open(sample: Sample, folder: Path) -> None:
    outcomes: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for number in range(STORES):
        shutil.rmtree(folder, ignore_errors=True)
        copy(sample.folder, folder)
        what = mutate(folder, random.Random(SEED * 1_000_003 + number))
        try:
            inspect(folder)
            outcomes += open_and_check(sample, folder)
        except Exception as error:  # the next ones are of interest, too
            failures[f"{number}: {what}"] = repr(error)[:300]
    print(f"\nPENSTOCK_SEED={SEED}, {STORES} stores: {dict(outcomes)}")
    assert not failures, f"{len(failures)} of {STORES}, seed {SEED}: " + "\n".join(
        f"{what}: {why}" for what, why in list(failures.items())[:10]
    )
    assert outcomes["opened"] == STORES
    assert outcomes["findings"] > 0


def copy(source: Path, target: Path) -> None:
    """With the holes of its files: a timer wheel is large and nearly empty."""
    subprocess.run(["cp", "-r", "--sparse=always", source, target], check=True)


def inspect(folder: Path) -> None:
    """Whatever looks at a directory says what it finds, and ends."""
    verify(folder)
    stats(folder)
    assert sum(1 for _ in dump_log(folder))
    for _ in dump_queues(folder, NEXT[0]):
        pass


def open_and_check(sample: Sample, folder: Path) -> Counter[str]:
    """Twice: what the first open repaired stays so."""
    outcomes: Counter[str] = Counter(opened=1)
    for again in range(2):
        store = open_store(folder, OPTIONS)
        try:
            outcomes["findings"] += bool(store.findings.total)
            repaired = scrub(store)
            outcomes["scrubbed"] += bool(repaired)
            assert not (again and repaired), "a repaired entry is damaged again"
            check_all_is_there(sample, store)
            if not again:
                offset = append(store, NEXT_SERIAL)
                assert offset >= sample.ends[NEXT], "an offset was given out again"
                assert serial_of(store.read(*NEXT, offset)[0]) == NEXT_SERIAL
        finally:
            store.close()
    return outcomes


def scrub(store: MessageStore) -> int:
    """One round of what a running store does all the time: entries that differ from the log are written anew."""
    findings = Findings()
    LogAudit(store.log, store.queues, findings, threading.RLock(), repair=True).run()
    return findings.total


def check_all_is_there(sample: Sample, store: MessageStore) -> None:
    found, named = served(store)
    assert found - {NEXT_SERIAL} == set(sample.records), f"lost: {sorted(set(sample.records) - found)}"
    for place, acked in sample.ledger.acked.items():
        for offset, serial in acked.items():
            assert serial_of(store.read(*place, offset)[0]) == serial
        assert not [offset for topic, queue, offset in named if (topic, queue) == place and offset in acked]
        assert store.max_offset(*place) >= sample.ends[place]


@pytest.mark.parametrize("position", [2**63 - 1, 2**62 + 1, 2**62, 2**48, 2**31, -1, -(2**63)], ids=str)
@pytest.mark.parametrize("which", ["last", "first"])
def test_a_queue_entry_at_an_impossible_position_does_not_keep_a_store_from_opening(
    sample: Sample, folder: Path, position: int, which: str
) -> None:
    copy(sample.folder, folder)
    files = sorted((folder / "consumequeue" / "orders" / "0").iterdir())
    path = files[0] if which == "first" else files[-1]
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    struct.pack_into(">q", data, 0 if which == "first" else (used - 1) // 20 * 20, position)
    path.write_bytes(data)
    inspect(folder)
    assert open_and_check(sample, folder)["findings"] or which == "first"


def test_a_lost_first_queue_file_is_built_again_though_the_checkpoint_is_zeroed(
    sample: Sample, folder: Path
) -> None:
    """A checkpoint of zeros passed for that of a Java broker, which may have deleted the queue file."""
    copy(sample.folder, folder)
    first, *others = sorted((folder / "consumequeue" / "orders" / "0").iterdir())
    assert others
    first.unlink()
    (folder / "checkpoint").write_bytes(bytes((folder / "checkpoint").stat().st_size))
    inspect(folder)
    assert open_and_check(sample, folder)["findings"]


@pytest.mark.parametrize("size", [2**31 - 2, 0, -1, 1, 90], ids=str)
def test_the_newest_queue_entry_lies_about_its_size(sample: Sample, folder: Path, size: int) -> None:
    copy(sample.folder, folder)
    path = sorted((folder / "consumequeue" / "orders" / "0").iterdir())[-1]
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, (len(data.rstrip(b"\0")) - 1) // 20 * 20 + 8, size)
    path.write_bytes(data)
    inspect(folder)
    open_and_check(sample, folder)


@pytest.mark.parametrize("value", [-1, -(2**63), 2**63 - 1], ids=str)
@pytest.mark.parametrize(
    "at", [0, 8, 16, 24], ids=["begin time", "end time", "begin position", "end position"]
)
def test_the_newest_index_file_lies_in_its_header(sample: Sample, folder: Path, at: int, value: int) -> None:
    """Also where the sizes of index files are found by looking into it: `verify` and `dump` are given none."""
    copy(sample.folder, folder)
    path = sorted((folder / "index").iterdir())[-1]
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, at, value)
    path.write_bytes(data)
    inspect(folder)
    open_and_check(sample, folder)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**62, 2**60])
def test_the_first_record_of_a_queue_lies_about_its_offset(sample: Sample, folder: Path, offset: int) -> None:
    """No checksum covers it. Where all queue files are gone the first record says where its queue begins."""
    copy(sample.folder, folder)
    shutil.rmtree(folder / "consumequeue")
    (folder / "penstock.manifest.json").unlink()
    serial = sample.ledger.acked[NEXT][0]
    path, at = sample.segment_file(sample.records[serial][0])
    damaged = bytearray((folder / "commitlog" / path.name).read_bytes())
    struct.pack_into(">q", damaged, at + 20, offset)
    (folder / "commitlog" / path.name).write_bytes(damaged)
    inspect(folder)
    with open_store(folder, OPTIONS) as store:
        found, _ = served(store)
        assert found == set(sample.records) - {serial}
        assert append(store, NEXT_SERIAL) == sample.ends[NEXT]


BROKER_STORES = by_length(6, 500)
BROKER_FILES = StoreOptions(
    segment_size_bytes=1 << 16,
    queue_file_entries=20,
    index_slots=20,
    index_entries=50,
    max_message_size_bytes=4096,
    **NO_DISK_LIMITS,
)
SENT = 120


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker left that had plain, delayed and timed messages."""
    folder = tmp_path_factory.mktemp("broker") / "store"

    async def fill() -> None:
        async with running(folder, store=BROKER_FILES) as bench:
            for number in range(SENT):
                later = {
                    0: {},
                    1: {"DELAY": "3"},
                    2: {"TIMER_DELAY_SEC": str(40_000 + number)},
                }[number % 3 if number > SENT // 2 else 0]
                answer = await bench.client.send(
                    "T", body_of(number), number % 4, KEYS=f"k{number}", UNIQ_KEY=f"U{number}", **later
                )
                assert answer.code == 0

    asyncio.run(fill())
    return folder


@pytest.mark.long
@pytest.mark.timeout(by_length(300, 3_600))
def test_brokers_start_on_damaged_derived_files(broker_folder: Path, folder: Path) -> None:
    failures: dict[str, str] = {}
    for number in range(BROKER_STORES):
        shutil.rmtree(folder, ignore_errors=True)
        copy(broker_folder, folder)
        what = mutate(folder, random.Random(SEED * 1_000_003 + number))
        try:
            verify(folder)
            assert sum(1 for _ in dump_log(folder)) >= SENT
            asyncio.run(start_and_read(folder))
        except Exception as error:
            failures[f"{number}: {what}"] = repr(error)[:300]
    print(f"\nPENSTOCK_SEED={SEED}, {BROKER_STORES} brokers")
    assert not failures, f"{len(failures)} of {BROKER_STORES}, seed {SEED}: " + "\n".join(
        f"{what}: {why}" for what, why in list(failures.items())[:10]
    )


async def start_and_read(folder: Path) -> None:
    """The broker serves what was sent and takes more."""
    async with running(folder, store=BROKER_FILES) as bench:
        scrub(bench.broker.store)
        found = {
            message.body
            for queue in bench.broker.store.queues
            for message in read_all(bench.broker.store, queue.topic, queue.queue_id)
        }
        assert {body_of(number) for number in range(SENT)} <= found
        assert (await bench.client.send("T", b"after", 1)).code == 0


def read_all(store: MessageStore, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, max_count=32)
        yield from result.messages()
        offset = result.next_offset


def test_a_lost_file_is_noticed_though_another_queue_proves_used_offsets(
    sample: Sample, folder: Path
) -> None:
    """Recovery notes used offsets in the manifest first; where queues began must still be what it was."""
    copy(sample.folder, folder)
    first, second = sorted((folder / "consumequeue" / "payments" / "0").iterdir())[:2]
    swapped = first.read_bytes(), second.read_bytes()
    second.write_bytes(swapped[0])
    first.write_bytes(swapped[1])
    min((folder / "consumequeue" / "%RETRY%billing" / "0").iterdir()).unlink()
    assert open_and_check(sample, folder)["findings"]
