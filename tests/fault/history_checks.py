"""Judges a history against the store it left behind: what was promised must be there, and nothing else.

    I1   every acknowledged message is in the store where the answer said, and every group is done with it
    I2   nothing is stored or delivered that was not sent, or that its client was told is not stored
    I3   a queue has its messages in the order in which they were sent; groups first see them in that order
    I4   offsets are dense, and one offset means one message to producers, consumers and the store
    I13  what is stored is acknowledged, of unknown outcome, or one more copy of such; all of it was delivered

`Figures` are what a test prints: counts, redelivery, recovery times.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.message import StoredMessage
from penstock.store import MessageStore, StoreOptions
from tests.disk_limits import NO_DISK_LIMITS
from tests.fault.operation_history import Group, History, Outcome, Place, Send, properties_of
from tests.support.store_checks import audit, body_of, read_queue, serial_of

KEYS_LOOKED_UP = 100
# As in server_processes.broker.
STORE = StoreOptions(
    segment_size_bytes=4 << 20,
    queue_file_entries=2_000,
    **NO_DISK_LIMITS,
)


@dataclass(frozen=True)
class Figures:
    """What a history came to."""

    ok: int
    failed: int
    unknown: int
    unknown_stored: int
    copies: int
    deliveries: dict[str, int]
    redelivered: dict[str, int]
    handed_back: int

    def __str__(self) -> str:
        groups = ", ".join(
            f"{name} {count} deliveries of which {self.redelivered[name]} again"
            for name, count in sorted(self.deliveries.items())
        )
        return (
            f"{self.ok} acknowledged, {self.failed} failed, {self.unknown} unknown ({self.unknown_stored} of them "
            f"stored), {self.copies} stored once more by retries; {groups}; {self.handed_back} handed back"
        )


def check_history(history: History, data: Path) -> Figures:
    """Everything, in the store as the next broker would open it."""
    with MessageStore.open(data, STORE, background=False) as store:
        stored = _read(store, history)
        _check_keys(store, history)
        assert audit(store).all() == []
        assert store.findings.damage() == []
    copies = Counter(stored.values())
    _check_sends(history, stored, copies)
    _check_order(history)
    for name, group in history.groups.items():
        _check_group(history, name, group, stored)
    unknown = history.of(Outcome.UNKNOWN)
    return Figures(
        ok=len(history.of(Outcome.OK)),
        failed=len(history.of(Outcome.FAILED)),
        unknown=len(unknown),
        unknown_stored=sum(send.serial in copies for send in unknown),
        copies=sum(count - 1 for count in copies.values()),
        deliveries={name: len(group.deliveries) for name, group in history.groups.items()},
        redelivered={
            name: sum(count - 1 for count in group.seen.values()) for name, group in history.groups.items()
        },
        handed_back=sum(
            not delivery.is_done for group in history.groups.values() for delivery in group.deliveries
        ),
    )


def _read(store: MessageStore, history: History) -> dict[Place, int]:
    """The serial number at every place. I2: each message as it was sent, and copies that retries made under the
    same id, so that whoever cannot bear them can tell. I4: `read_queue` refuses holes."""
    stored: dict[Place, int] = {}
    ids: dict[int, str] = {}
    for queue in range(history.queues):
        for message in read_queue(store, history.topic, queue):
            serial = serial_of(message)
            assert serial in history.sends, f"nobody sent {message}"
            assert _is_genuine(message, serial), f"{serial} is stored as {message}"
            name = message.properties["UNIQ_KEY"]
            assert ids.setdefault(serial, name) == name, f"copies of {serial} have different ids"
            stored[queue, message.queue_offset] = serial
    return stored


def _is_genuine(message: StoredMessage, serial: int) -> bool:
    return message.body == body_of(serial) and properties_of(serial).items() <= message.properties.items()


def _check_keys(store: MessageStore, history: History) -> None:
    """Acknowledged messages are found by key; some of them are looked for, from one end to the other."""
    sends = history.of(Outcome.OK)
    for send in sends[:: max(1, len(sends) // KEYS_LOOKED_UP)]:
        found = store.reader.query(history.topic, f"k{send.serial}")
        places = [(message.queue_id, message.queue_offset) for message in found]
        assert send.place in places, f"key k{send.serial} leads to {places}, not to {send.place}"


def _check_sends(history: History, stored: dict[Place, int], copies: Counter[int]) -> None:
    acknowledged = history.of(Outcome.OK)
    lost = [send for send in acknowledged if send.place is not None and stored.get(send.place) != send.serial]
    assert not lost, f"I1: {len(lost)} acknowledged messages are not where they should be: {lost[:5]}"
    places = Counter(send.place for send in acknowledged)
    twice = [place for place, count in places.items() if count > 1]
    assert not twice, f"I4: offsets that were given out twice: {twice[:5]}"
    false = [send for send in history.of(Outcome.FAILED) if send.serial in copies]
    assert not false, f"I2: {len(false)} messages are stored and their clients told otherwise: {false[:5]}"


def _check_order(history: History) -> None:
    """I3. A send that began after another was answered comes after it in their queue; within a lane the order of
    sending is the order in the queue, whenever they were answered."""
    by_queue: dict[int, list[Send]] = {}
    by_lane: dict[tuple[str, int], list[Send]] = {}
    for send in history.of(Outcome.OK):
        assert send.place is not None
        by_queue.setdefault(send.place[0], []).append(send)
        if send.lane:
            by_lane.setdefault((send.lane, send.place[0]), []).append(send)
    lanes = Counter(lane for lane, _ in by_lane)
    assert all(count == 1 for count in lanes.values()), f"a queue key leads to several queues: {lanes}"
    for sends in by_lane.values():
        offsets = [_offset(send) for send in sorted(sends, key=lambda send: send.serial)]
        assert offsets == sorted(offsets), f"I3: {sends[0].lane} is out of order"
    for sends in by_queue.values():
        _check_real_time(sends)


def _check_real_time(sends: Sequence[Send]) -> None:
    ended = sorted(sends, key=lambda send: send.ended)
    highest, at = -1, 0
    for send in sorted(sends, key=lambda send: send.started):
        while at < len(ended) and ended[at].ended < send.started:
            highest = max(highest, _offset(ended[at]))
            at += 1
        assert _offset(send) > highest, f"I3: {send} lies before a message that was answered earlier"


def _offset(send: Send) -> int:
    assert send.place is not None
    return send.place[1]


def _check_group(history: History, name: str, group: Group, stored: dict[Place, int]) -> None:
    assert not group.wrong, f"I2: {len(group.wrong)} wrong messages: {group.wrong[:5]}"
    refused = {send.serial for send in history.of(Outcome.FAILED)}
    next_of: dict[int, int] = dict.fromkeys(range(history.queues), 0)
    for delivery in group.deliveries:
        assert delivery.serial not in refused, f"I2: {name} was given what was not stored: {delivery}"
        if delivery.topic != history.topic:
            continue  # a retry: the copy has a place of its own
        queue, offset = delivery.place
        assert stored.get(delivery.place) == delivery.serial, (
            f"I4: {name} was given {delivery.serial} at {delivery.place}, where {stored.get(delivery.place)} is"
        )
        assert offset <= next_of[queue], f"I3: {name} skipped from {next_of[queue]} to {delivery}"
        next_of[queue] = max(next_of[queue], offset + 1)
    ends = Counter(queue for queue, _ in stored)
    assert next_of == {queue: ends[queue] for queue in range(history.queues)}, f"I13: {name} {next_of} {ends}"
    missed = history.acknowledged - group.done
    assert not missed, (
        f"I1: {name} is not done with {len(missed)} acknowledged messages: {sorted(missed)[:5]}"
    )


def percentiles(seconds: Sequence[float]) -> str:
    """I14: recovery is a distribution, not one number."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return (
        f"p50 {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s of {len(ordered)}"
    )
