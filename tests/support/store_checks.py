"""What the fault tests share: small stores, messages that prove themselves, and the check of a whole store.

A message is made from its serial number alone, so every message that a store shows can be compared byte for
byte with what was sent, whether or not its append was acknowledged.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.message import Message, StoredMessage, encode_properties
from penstock.runtime import Disk, Runtime
from penstock.store import FlushMode, MessageStore, StoreOptions
from penstock.store.audit import LogAudit
from penstock.store.findings import Findings
from penstock.testing import FaultyDisk, ManualClock
from tests.disk_limits import NO_DISK_LIMITS
from tests.effort import by_length

# The power goes before every change of the disk in the long variant, else before every fifth.
CUT_STEP = by_length(5, 1)
TOPICS = ("orders", "payments", "%RETRY%billing")
QUEUES = 2


def small_options(**changes: Any) -> StoreOptions:
    """Files so small that a few messages roll all of them; the use and the speed of the machine's own disk play
    no part."""
    values: dict[str, Any] = {
        "segment_size_bytes": 8192,
        "queue_file_entries": 8,
        "index_slots": 20,
        "index_entries": 25,
        "max_message_size_bytes": 2048,
        "flush_mode": FlushMode.SYNC,
        "sync_flush_timeout_ms": 120_000,
        **NO_DISK_LIMITS,
        "scrub_bytes_per_second": 0,
        "file_reserved_hours": 10_000,
    }
    return StoreOptions(**{**values, **changes})


def open_store(
    folder: Path,
    options: StoreOptions | None = None,
    *,
    disk: Disk | None = None,
    clock: ManualClock | None = None,
    **changes: Any,
) -> MessageStore:
    """A store without a thread, on a clock that stands still."""
    clock = clock or ManualClock()
    runtime = Runtime(clock=clock) if disk is None else Runtime(clock=clock, disk=disk)
    return MessageStore.open(folder, options or small_options(), runtime=runtime, background=False, **changes)


def place_of(serial: int) -> tuple[str, int]:
    """Topic and queue of a message."""
    return TOPICS[serial % len(TOPICS)], serial // len(TOPICS) % QUEUES


def body_of(serial: int, size: int | None = None) -> bytes:
    """A body that no other message has; its length varies from serial to serial."""
    size = serial * 37 % 180 if size is None else size
    block = hashlib.sha256(b"%d" % serial).digest()
    return b"%d|%d|" % (serial, size) + (block * (size // len(block) + 1))[:size]


def message_of(serial: int, size: int | None = None) -> Message:
    topic, _ = place_of(serial)
    return Message.of(topic, body_of(serial, size), tag=f"t{serial % 3}", keys=f"k{serial}")


def batch_of(serials: Iterable[int]) -> bytes:
    """The encoded batch of messages that all go to one queue."""
    parts = []
    for serial in serials:
        body = body_of(serial)
        text = encode_properties({"TAGS": f"t{serial % 3}", "KEYS": f"k{serial}"})
        head = b"".join(n.to_bytes(4, "big") for n in (22 + len(body) + len(text), 0, 0, 0, len(body)))
        parts.append(head + body + len(text).to_bytes(2, "big") + text)
    return b"".join(parts)


def serial_of(message: StoredMessage) -> int:
    return int(message.body.split(b"|", 1)[0])


def assert_genuine(message: StoredMessage) -> None:
    """I2: body and properties are those that were sent."""
    serial, size, _ = message.body.split(b"|", 2)
    assert message.body == body_of(int(serial), int(size))
    assert message.tag == f"t{int(serial) % 3}"
    assert f"k{int(serial)}" in message.keys


@dataclass
class Ledger:
    """What was acknowledged: per queue, which serial number has which offset."""

    acked: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)

    def add(self, topic: str, queue: int, offset: int, serial: int, position: int = -1) -> None:
        """I4: an offset is acknowledged for one message only."""
        known = self.acked.setdefault((topic, queue), {}).setdefault(offset, serial)
        assert known == serial, f"{topic}/{queue} offset {offset} was given to {known} and to {serial}"
        self.positions[serial] = position

    def forget_below(self, log_position: int) -> None:
        """Retention was allowed to delete everything below a log position."""
        for offsets in self.acked.values():
            for offset in [o for o, serial in offsets.items() if self.positions[serial] < log_position]:
                del offsets[offset]

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.acked.values())


def append(store: MessageStore, serial: int, ledger: Ledger | None = None, **options: Any) -> int:
    """Append one message; acknowledged ones go into the ledger. The queue offset."""
    topic, queue = place_of(serial)
    result = store.append(message_of(serial, options.pop("size", None)), queue, **options)
    if ledger is not None:
        ledger.add(topic, queue, result.queue_offset, serial, result.physical_offset)
    return result.queue_offset


def append_group(store: MessageStore, serials: Iterable[int], ledger: Ledger | None = None) -> None:
    requests = [(serial, store.request(message_of(serial), place_of(serial)[1])) for serial in serials]
    store.append_group([request for _, request in requests])
    for serial, request in requests:
        assert request.size > 0
        if ledger is not None:
            ledger.add(*place_of(serial), request.queue_offset, serial, request.physical_offset)


def read_queue(store: MessageStore, topic: str, queue: int, *, holes: bool = False) -> list[StoredMessage]:
    """Every message of a queue, read in pieces; I3, I4: offsets follow each other without a hole, unless it is
    allowed and named."""
    messages: list[StoredMessage] = []
    offset, end = store.min_offset(topic, queue), store.max_offset(topic, queue)
    while offset < end:
        result = store.get(topic, queue, offset, max_count=16)
        assert (result.damaged, () if holes else result.missing) == ((), ()), (topic, queue, offset, result)
        found = result.messages()
        offsets = sorted([*result.missing, *(m.queue_offset for m in found)])
        assert offsets == list(range(offset, result.next_offset)), (topic, queue, offset, result)
        assert offsets, (topic, queue, offset, result)
        assert {(m.topic, m.queue_id) for m in found} <= {(topic, queue)}
        messages += found
        offset = result.next_offset
    return messages


def audit(store: MessageStore) -> Findings:
    """Walk the whole log and compare the queues with it; what there is to say."""
    findings = Findings()
    LogAudit(store.log, store.queues, findings, threading.RLock(), repair=False).run()
    return findings


def check_store(store: MessageStore, ledger: Ledger, *, by_key: bool = True, holes: bool = False) -> int:
    """Everything acknowledged is there, in order, by offset and by key; nothing is damaged or half-written.

    Returns how many messages the store shows.
    """
    shown = 0
    for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id)):
        place = (queue.topic, queue.queue_id)
        messages = read_queue(store, *place, holes=holes)
        shown += len(messages)
        acked = ledger.acked.get(place, {})
        present = {message.queue_offset: message for message in messages}
        for message in messages:
            assert_genuine(message)
        positions = [message.physical_offset for message in messages]
        assert positions == sorted(positions), place
        lost = {offset: serial for offset, serial in acked.items() if offset not in present}
        assert not lost, f"lost of {place}: {lost}; the queue has {queue.min_offset} to {queue.max_offset}"
        wrong = {o: (s, serial_of(present[o])) for o, s in acked.items() if serial_of(present[o]) != s}
        assert not wrong, f"other messages than acknowledged in {place}: {wrong}"
        for offset, serial in acked.items() if by_key else ():
            found = store.reader.query(queue.topic, f"k{serial}")
            assert [m.queue_offset for m in found] == [offset], f"key k{serial} of {place}: {found}"
    absent = set(ledger.acked) - {(queue.topic, queue.queue_id) for queue in store.queues}
    assert not absent, f"queues that are gone: {absent}"
    assert audit(store).all() == []
    assert store.findings.damage() == []
    return shown


def reopened(folder: Path, ledger: Ledger, options: StoreOptions | None = None) -> MessageStore:
    """The store opened again on the real disk, and checked."""
    store = open_store(folder, options)
    try:
        check_store(store, ledger)
    except BaseException:
        store.abandon()
        raise
    return store


def faulty(folder: Path, **options: Any) -> FaultyDisk:
    folder.mkdir(parents=True, exist_ok=True)
    return FaultyDisk(folder, **options)
