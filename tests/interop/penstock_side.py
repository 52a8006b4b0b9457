"""Penstock's side of the exchange: writes a workload, and tells what a store holds in the words Java uses.

Rule: both sides are compared as the same plain values, field by field, so that a difference names its field.
Stores are opened and closed inside each call, except where a test hands one in.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from penstock._hot.records import AppendRequest
from penstock.message import HostAddress, Message, encode_properties
from penstock.message import StoredMessage as PenstockMessage
from penstock.store import GetStatus, MessageStore, StoreOptions
from penstock.store.audit import AuditTotals, LogAudit
from tests.disk_limits import NO_DISK_LIMITS
from tests.interop.java_messages import (
    SMALL_SIZES,
    BatchSpec,
    MessageSpec,
    QueuedMessage,
    ReadResult,
    StoredMessage,
)
from tests.interop.workload import QueueKey, Spec, expected_record, in_queues

# The sizes that the Java side is given. How full this machine's disk is must not decide a test.
OPTIONS = StoreOptions(
    segment_size_bytes=SMALL_SIZES.segment_bytes,
    queue_file_entries=SMALL_SIZES.queue_entries,
    index_slots=SMALL_SIZES.index_slots,
    index_entries=SMALL_SIZES.index_entries,
    max_message_size_bytes=256 << 10,
    **NO_DISK_LIMITS,
)
GROUP_SIZE = 32
SINGLE_EVERY = 7


def write(directory: Path, specs: Iterable[Spec], options: StoreOptions = OPTIONS) -> list[StoredMessage]:
    """Append everything in order, a part singly, a part in groups, batches as batches; stop cleanly. The
    records that must be there, in log order. Each run of specs with one store host is one open store."""
    records: list[StoredMessage] = []
    for host, run in groupby(specs, key=_store_host):
        with MessageStore.open(directory, options, store_host=HostAddress.parse(host)) as store:
            records += _Writer(store).append_all(list(run))
    return records


def _store_host(spec: Spec) -> str:
    return spec.messages[0].store_host if isinstance(spec, BatchSpec) else spec.store_host


class _Writer:
    """One open store, and the messages that wait to become a group."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting: list[tuple[MessageSpec, AppendRequest]] = []
        self._records: list[StoredMessage] = []

    def append_all(self, specs: Sequence[Spec]) -> list[StoredMessage]:
        for number, spec in enumerate(specs):
            if isinstance(spec, BatchSpec):
                self._append_group()
                self._append_batch(spec)
            elif number % SINGLE_EVERY == 0 and _is_plain(spec):
                self._append_group()
                self._append_single(spec)
            else:
                self._wait(spec)
        self._append_group()
        return self._records

    def _append_single(self, spec: MessageSpec) -> None:
        result = self._store.append(
            message_of(spec),
            spec.queue_id,
            born_timestamp=spec.born_timestamp_ms,
            born_host=HostAddress.parse(spec.born_host),
        )
        self._expect(spec, result.queue_offset, result.physical_offset, result.size, result.store_timestamp)
        assert result.message_id == self._records[-1].message_id

    def _wait(self, spec: MessageSpec) -> None:
        request = self._store.request(
            message_of(spec),
            spec.queue_id,
            born_timestamp=spec.born_timestamp_ms,
            born_host=HostAddress.parse(spec.born_host),
            sys_flag=spec.sys_flag,
            reconsume_times=spec.reconsume_times,
            prepared_offset=spec.prepared_transaction_offset,
        )
        self._waiting.append((spec, request))
        if len(self._waiting) == GROUP_SIZE:
            self._append_group()

    def _append_group(self) -> None:
        if not self._waiting:
            return
        self._store.append_group([request for _, request in self._waiting])
        for spec, request in self._waiting:
            self._expect(
                spec, request.queue_offset, request.physical_offset, request.size, request.store_timestamp
            )
        self._waiting = []

    def _append_batch(self, spec: BatchSpec) -> None:
        first = spec.messages[0]
        result = self._store.append_batch(
            first.topic,
            first.queue_id,
            encoded_batch(spec),
            born_timestamp=first.born_timestamp_ms,
            born_host=HostAddress.parse(first.born_host),
        )
        assert result.count == len(spec.messages)
        positions = [int(message_id[-16:], 16) for message_id in result.message_ids]
        ends = [*positions[1:], result.physical_offset + result.size]
        for n, message in enumerate(spec.messages):
            offset, size = result.first_queue_offset + n, ends[n] - positions[n]
            self._expect(message, offset, positions[n], size, result.store_timestamp)
            assert result.message_ids[n] == self._records[-1].message_id

    def _expect(self, spec: MessageSpec, offset: int, position: int, size: int, stored_ms: int) -> None:
        assert size > 0, f"{spec} was refused"
        has_queue_offset = spec.sys_flag & 0xC in (0, 8)
        self._records.append(
            expected_record(
                spec,
                queue_offset=offset if has_queue_offset else 0,
                position=position,
                size_bytes=size,
                store_timestamp_ms=stored_ms,
            )
        )


def _is_plain(spec: MessageSpec) -> bool:
    """Whether `append` can say all of it."""
    return not (spec.sys_flag or spec.reconsume_times or spec.prepared_transaction_offset)


def message_of(spec: MessageSpec) -> Message:
    return Message(spec.topic, spec.body, spec.properties, spec.flag)


def encoded_batch(spec: BatchSpec) -> bytes:
    """The batch as a client sends it."""
    parts = []
    for message in spec.messages:
        properties = encode_properties(message.properties)
        size = 4 + 4 + 4 + 4 + 4 + len(message.body) + 2 + len(properties)
        parts += [
            struct.pack(">iiiii", size, 0, 0, message.flag, len(message.body)),
            message.body,
            struct.pack(">h", len(properties)),
            properties,
        ]
    return b"".join(parts)


# -- what a store holds ----------------------------------------------------------------------------------------


def java_form(message: PenstockMessage) -> StoredMessage:
    """A message that Penstock read, as Java would report it."""
    return StoredMessage(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        size_bytes=message.size,
        body_crc=message.body_crc,
        body=message.body,
        properties=dict(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp,
        born_host=str(message.born_host),
        store_timestamp_ms=message.store_timestamp,
        store_host=str(message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        message_id=message.message_id,
    )


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[QueuedMessage]:
    """Every message of a queue with its entry; fails on an offset that does not give one."""
    found: list[QueuedMessage] = []
    queue = store.queues.get(topic, queue_id)
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while offset < end:
        result = store.get(topic, queue_id, offset, 64)
        assert result.status is GetStatus.FOUND, f"{topic}/{queue_id} offset {offset}: {result.status}"
        assert (result.damaged, result.missing) == ((), ()), f"{topic}/{queue_id} from {offset}"
        for message in result.messages():
            entry = queue.entry(offset)
            found.append(
                QueuedMessage(offset, entry.position, entry.size, entry.tags_code, java_form(message))
            )
            offset += 1
        assert offset == result.next_offset
    return found


def audited(store: MessageStore) -> AuditTotals:
    """The whole log and every queue compared; fails if anything is wrong with them."""
    audit = LogAudit(store.log, store.queues, store.findings, threading.RLock(), repair=False)
    totals = audit.run()
    assert store.findings.damage() == []
    assert (totals.damaged_records, totals.damaged_bytes, totals.wrong_entries) == (0, 0, 0)
    return totals


def check_content(store: MessageStore, records: Sequence[StoredMessage]) -> None:
    """The store holds exactly these records: in the log, by position, in the queues, with dense offsets."""
    totals = audited(store)
    queues = in_queues(records)
    assert (totals.records, totals.entries) == (len(records), sum(map(len, queues.values())))
    for record in records:
        found = store.message_at(record.physical_offset)
        assert found is not None, f"nothing at {record.physical_offset}"
        same(record, java_form(found), f"position {record.physical_offset}")
    assert {(queue.topic, queue.queue_id) for queue in store.queues if queue.max_offset} == set(queues)
    for (topic, queue_id), expected in queues.items():
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (0, len(expected))
        check_queue(expected, read_queue(store, topic, queue_id))


def check_java_content(result: ReadResult, records: Sequence[StoredMessage]) -> None:
    """The same, for what Java read from its queues."""
    assert result.gaps == ()
    queues = in_queues(records)
    ranges = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in result.queues}
    assert ranges == {key: (0, len(expected)) for key, expected in queues.items()}
    found = by_queue(result)
    for key, expected in queues.items():
        check_queue(expected, found[key])
    assert result.max_physical_offset == max(record.physical_offset + record.size_bytes for record in records)


def by_queue(result: ReadResult) -> dict[QueueKey, list[QueuedMessage]]:
    queues: dict[QueueKey, list[QueuedMessage]] = {}
    for message in result.messages:
        queues.setdefault((message.record.topic, message.record.queue_id), []).append(message)
    return queues


def check_queue(expected: Sequence[StoredMessage], found: Sequence[QueuedMessage]) -> None:
    """One queue: these records, in this order, at offsets 0, 1, 2, ..., each behind its entry."""
    assert len(found) == len(expected)
    for offset, (record, message) in enumerate(zip(expected, found, strict=True)):
        place = f"{record.topic}/{record.queue_id} offset {offset}"
        assert (message.logical_offset, record.queue_offset) == (offset, offset), place
        assert message.entry_physical_offset == record.physical_offset, place
        assert message.entry_size_bytes == record.size_bytes, place
        same(record, message.record, place)


def same(expected: StoredMessage, found: StoredMessage, place: str) -> None:
    """Equal in every field; a difference is named, without the hundred thousand bytes around it."""
    if expected == found:
        return
    differing = [
        f"{field.name}: expected {str(wanted)[:200]!r}, found {str(got)[:200]!r}"
        for field in fields(expected)
        if (wanted := getattr(expected, field.name)) != (got := getattr(found, field.name))
    ]
    raise AssertionError(f"{place}: " + "; ".join(differing))


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file of a directory with a hash of its content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
