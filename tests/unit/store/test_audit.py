"""The audit that the scrubber and `verify` run: what it counts, finds and repairs, and that it finds nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.message import Message, TransactionKind
from penstock.store import MessageStore
from penstock.store.audit import LogAudit
from penstock.store.consume_queue import FILLER
from penstock.store.findings import Findings
from penstock.testing import ManualClock
from tests.support.store_checks import append, open_store, small_options

SEGMENT = 8192


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as opened:
        for serial in range(120):
            append(opened, serial)
        opened.queues.drain()
        yield opened


def audit_of(store: MessageStore, *, repair: bool = False) -> LogAudit:
    return LogAudit(store.log, store.queues, Findings(), threading.RLock(), repair=repair)


def flip(store: MessageStore, position: int) -> None:
    """Change one byte of the log, as a bad disk would."""
    segment = store.log.segment_of(position)
    assert segment is not None
    with open(segment.path, "r+b") as file:
        file.seek(position - segment.base)
        byte = file.read(1)[0]
        file.seek(position - segment.base)
        file.write(bytes([byte ^ 0x10]))


def test_a_sound_store(store: MessageStore) -> None:
    audit = audit_of(store)
    totals = audit.run()
    assert (totals.records, totals.entries) == (120, 120)
    assert (totals.damaged_records, totals.damaged_bytes, totals.wrong_entries) == (0, 0, 0)
    assert totals.bytes <= store.log.max_offset
    assert audit.findings.all() == []


@pytest.mark.parametrize("budget", [1, 100, 1000, 10**6])
def test_step_by_step_sees_the_same_and_starts_again(store: MessageStore, budget: int) -> None:
    audit = audit_of(store)
    for _ in range(100_000):
        audit.step(budget)
        if audit.totals.rounds == 1:
            break
    assert audit.totals.rounds == 1
    assert 120 <= audit.totals.records <= 120 + budget // 90 + 1
    assert audit.findings.all() == []


@pytest.mark.invariant("I12")
@pytest.mark.fault("F7")
def test_every_damaged_body_is_found_once(store: MessageStore) -> None:
    messages = [m for m in store.read("orders", 0, 0, 100) if len(m.body) > 20]
    for message in messages[::3]:
        flip(store, message.physical_offset + 88 + 5)
    audit = audit_of(store)
    audit.run()
    positions = [finding.position for finding in audit.findings.damage()]
    assert positions == [m.physical_offset for m in messages[::3]]
    assert [f.length for f in audit.findings.damage()] == [m.size for m in messages[::3]]
    assert audit.totals.records == 120 - len(positions)
    audit.run()
    assert len(audit.findings.all()) == len(positions)  # not said again


@pytest.mark.fault("F7")
@pytest.mark.parametrize("repair", [True, False])
def test_a_wrong_entry_is_reported_and_with_leave_repaired(store: MessageStore, repair: bool) -> None:
    queue = store.queues.get("orders", 1)
    assert queue is not None
    right = queue.entry(4)
    queue.replace(4, FILLER)
    audit = audit_of(store, repair=repair)
    totals = audit.run()
    assert totals.wrong_entries == 1
    (finding,) = audit.findings.all()
    assert finding.kind == ("queue entry repaired" if repair else "damaged queue")
    assert "orders/1 offset 4" in finding.detail
    assert (queue.entry(4) == right) == repair
    again = audit_of(store)
    assert again.run().wrong_entries == (0 if repair else 1)


@pytest.mark.fault("F7")
def test_a_wrong_tag_in_an_entry_is_a_wrong_entry(store: MessageStore) -> None:
    queue = store.queues.get("orders", 0)
    assert queue is not None
    raw = bytearray(queue.entry_bytes(3, 4))
    raw[19] ^= 1
    queue.replace(3, bytes(raw))
    assert audit_of(store).run().wrong_entries == 1


def test_due_times_of_delayed_messages_are_not_compared(store: MessageStore) -> None:
    """They depend on the delays that were configured when the entry was made."""
    store.append(Message("SCHEDULE_TOPIC_XXXX", b"x", {"DELAY": "3"}))
    assert audit_of(store).run().wrong_entries == 0


@pytest.mark.parametrize("kind", [TransactionKind.PREPARED, TransactionKind.ROLLBACK])
def test_messages_without_a_place_in_a_queue(store: MessageStore, kind: TransactionKind) -> None:
    store.append_group([store.request(Message.of("half", b"x"), sys_flag=int(kind))])
    audit = audit_of(store)
    assert (audit.run().records, audit.totals.wrong_entries) == (121, 0)


def test_queues_of_deleted_topics_are_not_missed(store: MessageStore) -> None:
    store.delete_topics(["payments"])
    audit = audit_of(store)
    assert audit.run().entries == 80
    assert audit.findings.all() == []


def test_after_retention(store: MessageStore) -> None:
    segment = store.log.segments[0]
    assert segment is not None
    store.log.remove_segment(segment)
    store.keeper._follow(store.log.min_offset)
    audit = audit_of(store)
    totals = audit.run()
    assert totals.records == totals.entries < 120
    assert audit.findings.all() == []


@pytest.mark.invariant("I12")
@pytest.mark.fault("F7")
def test_the_scrubber_finds_damage_at_its_own_pace(tmp_path: Path) -> None:
    clock = ManualClock()
    options = small_options(scrub_bytes_per_second=40_000)
    with open_store(tmp_path, options, clock=clock) as store:
        for serial in range(120):
            append(store, serial)
        message = store.read("orders", 1, 15, 1)[0]
        flip(store, message.physical_offset + 90)
        needed = store.log.max_offset // 4000 + 20
        for _ in range(needed):
            assert (
                store.findings.damage() == []
                or store.findings.damage()[0].position == message.physical_offset
            )
            clock.advance(100)
            store.keeper.tick()
        assert [finding.position for finding in store.findings.damage()] == [message.physical_offset]


def test_the_scrubber_can_be_off(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, small_options(scrub_bytes_per_second=0), clock=clock) as store:
        append(store, 2)
        flip(store, 90)
        for _ in range(50):
            clock.advance(1000)
            store.keeper.tick()
        assert store.findings.damage() == []
        assert store.keeper.audit.totals.records == 0
