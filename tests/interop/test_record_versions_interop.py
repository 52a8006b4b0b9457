"""Records that not every release knows: version 2 (topics over 127 bytes) and sealed records."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CorruptRecordError
from penstock.store import MessageStore
from penstock.store.audit import LogAudit
from tests.interop import penstock_side
from tests.interop.conftest import CopyStore, WrittenStores
from tests.interop.java_messages import MessageSpec, StoredMessage
from tests.interop.java_store import JavaStore
from tests.interop.penstock_side import OPTIONS, check_content, same
from tests.interop.workload import V2_TOPIC, expected_of_java, more_messages

SEAL = "__CRC32#"
SEALED = replace(OPTIONS, seal_records=True)


# -- version 2 ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("record-version-2", "rocketmq-5.3")
@pytest.mark.parametrize("writer", ["java-clean", "java-halted", "penstock"])
def test_version_2_records_are_read_by_the_other_side(
    java_5: JavaStore, written_stores: WrittenStores, writer: str
) -> None:
    written = written_stores.get(java_5, writer)
    records = [record for record in written.records if record.topic == V2_TOPIC]
    assert len(records) == 12
    by_java = [message.record for message in written.java.messages if message.record.topic == V2_TOPIC]
    assert sorted(by_java, key=lambda record: record.physical_offset) == records
    with MessageStore.open(written.directory, OPTIONS, read_only=True) as store:
        for record in records:
            assert store.log.slice(record.physical_offset, 8)[4:].hex() == "daa320ab"
            found = store.message_at(record.physical_offset)
            assert found is not None
            same(record, penstock_side.java_form(found), f"position {record.physical_offset}")


@pytest.mark.fault("F15")
def test_the_4_line_ends_a_log_at_version_2(java_4: JavaStore, tmp_path: Path) -> None:
    """A limit of that line, which docs/ tells: the record and all after it are out of its sight. As long as it
    appends nothing there, Penstock still has all of it."""
    specs = [*more_messages(20, "before"), MessageSpec(V2_TOPIC, 0, b"v2"), *more_messages(20, "after")]
    records = penstock_side.write(tmp_path, specs)
    read = java_4.read(tmp_path)
    assert read.max_physical_offset == records[20].physical_offset
    found = sorted((message.record for message in read.messages), key=lambda record: record.physical_offset)
    assert found == records[:20]
    with MessageStore.open(tmp_path, OPTIONS) as store:
        check_content(store, records)
    assert (
        java_4.write(tmp_path / "other", [MessageSpec(V2_TOPIC, 0, b"v2")]).puts[0].status
        == "MESSAGE_ILLEGAL"
    )


# -- seals -------------------------------------------------------------------------------------------------------


def unsealed(record: StoredMessage) -> StoredMessage:
    """The message without the seal, which must be there."""
    assert len(record.properties[SEAL]) == 10
    return replace(record, properties={k: v for k, v in record.properties.items() if k != SEAL})


def damage_keys(directory: Path, record: StoredMessage) -> None:
    """Turn one bit in a record's KEYS: outside the body, where RocketMQ's ordinary checksum does not look."""
    with open(directory / "commitlog" / f"{0:020d}", "r+b") as segment:
        segment.seek(record.physical_offset)
        content = bytearray(segment.read(record.size_bytes))
        content[content.index(b"KEYS\x01") + 5] ^= 0x20
        segment.seek(record.physical_offset)
        segment.write(content)


@pytest.mark.feature("record-version-2", "rocketmq-5.3")
def test_sealed_records_are_ordinary_messages_to_java(java: JavaStore, tmp_path: Path) -> None:
    records = penstock_side.write(tmp_path, more_messages(200, "sealed"), SEALED)
    read = java.read(tmp_path, halt=True)
    assert read.gaps == ()
    found = sorted((message.record for message in read.messages), key=lambda record: record.physical_offset)
    assert len(found) == len(records)
    for record, message in zip(records, found, strict=True):
        same(record, unsealed(message), f"position {record.physical_offset}")


@pytest.mark.feature("record-version-2", "rocketmq-5.3")
@pytest.mark.invariant("I12")
@pytest.mark.fault("F7")
def test_java_checks_the_seals_of_penstock(java_5: JavaStore, tmp_path: Path) -> None:
    records = penstock_side.write(tmp_path, more_messages(200, "sealed"), SEALED)
    read = java_5.read(tmp_path, check_seals=True)
    assert (len(read.messages), read.gaps) == (200, ())
    damage_keys(tmp_path, records[120])
    assert (
        java_5.read(tmp_path, check_seals=True, halt=True).max_physical_offset == records[120].physical_offset
    )


@pytest.mark.feature("record-version-2", "rocketmq-5.3")
@pytest.mark.invariant("I12")
@pytest.mark.fault("F7")
def test_penstock_checks_the_seals_of_java(java_5: JavaStore, tmp_path: Path, copy_store: CopyStore) -> None:
    specs = more_messages(200, "sealed")
    records = expected_of_java(specs, java_5.write(tmp_path / "store", specs, seal=True).puts)
    with MessageStore.open(tmp_path / "store", OPTIONS, read_only=True) as store:
        assert penstock_side.audited(store).records == len(records)
        for record in records:
            found = store.message_at(record.physical_offset)
            assert found is not None
            same(record, unsealed(penstock_side.java_form(found)), f"position {record.physical_offset}")
    damaged = copy_store(tmp_path / "store")
    damage_keys(damaged, records[120])
    with MessageStore.open(damaged, OPTIONS, read_only=True) as store:
        audit = LogAudit(store.log, store.queues, store.findings, threading.RLock(), repair=False).run()
        assert audit.damaged_records == 1
        assert {finding.position for finding in store.findings.damage()} == {records[120].physical_offset}
        with pytest.raises(CorruptRecordError):
            store.message_at(records[120].physical_offset)
        result = store.get("orders", records[120].queue_id, records[120].queue_offset, 1)
        assert (result.count, result.damaged) == (0, (records[120].queue_offset,))
