"""A store against a simple model, over random sequences of append, batch, group, flush, crash, reopen, delete.

The model is a list per queue. After every step: offsets are dense, order is the order of appending, bodies and
properties are equal byte for byte, keys find their messages, nothing the model does not have is readable.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.message import Message, encode_properties
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, GetStatus, MessageStore, StoreOptions
from penstock.testing.clock import ManualClock
from penstock.testing.scratch_disk import scratch_parent
from tests.disk_limits import NO_DISK_LIMITS

TOPICS = ("orders", "payments", "%RETRY%group")
pytestmark = [pytest.mark.invariant("I2"), pytest.mark.invariant("I3"), pytest.mark.invariant("I4")]


def encode_batch(items: list[tuple[bytes, dict[str, str]]]) -> bytes:
    parts = []
    for body, properties in items:
        text = encode_properties(properties)
        size = 22 + len(body) + len(text)
        head = b"".join(value.to_bytes(4, "big") for value in (size, 0, 0, 7, len(body)))
        parts.append(head + body + len(text).to_bytes(2, "big") + text)
    return b"".join(parts)


class StoreMachine(RuleBasedStateMachine):
    """Rules are what users and machines do to a store."""

    @initialize(sync=st.booleans(), seal=st.booleans(), segment=st.sampled_from([4096, 8192, 16384]))
    def open(self, sync: bool, seal: bool, segment: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=scratch_parent()))
        self.clock = ManualClock()
        self.options = StoreOptions(
            segment_size_bytes=segment,
            queue_file_entries=16,
            index_slots=50,
            index_entries=60,
            max_message_size_bytes=2048,
            flush_mode=FlushMode.SYNC if sync else FlushMode.ASYNC,
            seal_records=seal,
            **NO_DISK_LIMITS,
        )
        self.model: dict[tuple[str, int], list[tuple[bytes, dict[str, str]]]] = {}
        # Where the log has each message, learnt when it is first read; and where the log begins.
        self.positions: dict[tuple[str, int], list[int]] = {}
        self.begins = 0
        self.counter = 0
        self.store = self._open()

    def _open(self) -> MessageStore:
        runtime = Runtime(clock=self.clock)
        return MessageStore.open(self.folder, self.options, runtime=runtime, background=False)

    def _message(self, size: int) -> tuple[bytes, dict[str, str]]:
        self.counter += 1
        body = (b"%d:" % self.counter) + b"x" * size
        return body, {"KEYS": f"k{self.counter} shared{self.counter % 3}", "TAGS": f"t{self.counter % 2}"}

    @rule(topic=st.sampled_from(TOPICS), queue=st.integers(0, 2), size=st.integers(0, 1200))
    def append(self, topic: str, queue: int, size: int) -> None:
        body, properties = self._message(size)
        result = self.store.append(Message(topic, body, properties), queue)
        entries = self.model.setdefault((topic, queue), [])
        assert result.queue_offset == len(entries)
        entries.append((body, properties))

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=12), topic=st.sampled_from(TOPICS))
    def append_group(self, sizes: list[int], topic: str) -> None:
        requests = []
        for i, size in enumerate(sizes):
            body, properties = self._message(size)
            requests.append(self.store.request(Message(topic, body, properties), i % 2))
            self.model.setdefault((topic, i % 2), []).append((body, properties))
        self.store.append_group(requests)
        assert all(request.size > 0 for request in requests)

    @rule(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=5), topic=st.sampled_from(TOPICS))
    def append_batch(self, sizes: list[int], topic: str) -> None:
        items = [self._message(size) for size in sizes]
        entries = self.model.setdefault((topic, 1), [])
        result = self.store.append_batch(topic, 1, encode_batch(items))
        assert (result.first_queue_offset, result.count) == (len(entries), len(items))
        entries += items

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule(ms=st.integers(1, 20_000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)
        self.store.keeper.tick()
        self._retention_came_by()

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        assert not (self.folder / "abort").exists()
        self.store = self._open()
        assert self.store.report.clean
        assert self.store.report.damage == []

    @rule()
    def crash_and_open(self) -> None:
        """A killed process loses nothing: what was written is in the page cache."""
        self.store.abandon()
        self.store = self._open()
        assert not self.store.report.clean
        assert self.store.report.damage == []

    @rule()
    def delete_old_segments(self) -> None:
        """All full segments expire at once."""
        self.clock.advance(73 * 3_600_000 + 10**9)
        self.store.keeper.request_clean()
        self.store.keeper.clean()
        self._retention_came_by()

    def _retention_came_by(self) -> None:
        """The only thing that moves the log's beginning, and never into the segment that is written."""
        active = self.store.log.active
        if active is not None:
            assert self.begins <= self.store.log.min_offset <= active.base
            self.begins = self.store.log.min_offset

    @invariant()
    def queues_hold_what_the_model_holds(self) -> None:
        self.store.flush()
        assert self.store.log.min_offset == self.begins
        for (topic, queue), entries in self.model.items():
            positions = self.positions.setdefault((topic, queue), [])
            low = self.store.min_offset(topic, queue)
            assert low == sum(position < self.begins for position in positions)
            assert self.store.max_offset(topic, queue) == len(entries)
            offset = low
            while offset < len(entries):
                result = self.store.get(topic, queue, offset, max_count=7)
                assert result.status is GetStatus.FOUND, (topic, queue, offset, result)
                assert (result.damaged, result.missing) == ((), ())
                for message in result.messages():
                    assert message.queue_offset == offset
                    if offset == len(positions):
                        positions.append(message.physical_offset)
                    assert message.physical_offset == positions[offset]
                    body, properties = entries[offset]
                    assert message.body == body
                    assert {k: v for k, v in message.properties.items() if k != "__CRC32#"} == properties
                    offset += 1
                assert result.next_offset == offset

    @invariant()
    def keys_find_their_messages(self) -> None:
        for (topic, queue), entries in self.model.items():
            low = self.store.min_offset(topic, queue)
            for offset in {low, len(entries) - 1}:
                if low <= offset < len(entries):
                    key = entries[offset][1]["KEYS"].split()[0]
                    found = self.store.reader.query(topic, key)
                    assert [(m.queue_id, m.queue_offset) for m in found] == [(queue, offset)], key

    @invariant()
    def audit_finds_nothing(self) -> None:
        totals = self.store.keeper.audit.run()
        assert totals.damaged_records == 0
        assert totals.wrong_entries == 0
        assert self.store.findings.damage() == []

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            with MessageStore.open(self.folder, self.options, read_only=True) as reader:
                for (topic, queue), entries in self.model.items():
                    assert reader.max_offset(topic, queue) == len(entries)
            shutil.rmtree(self.folder)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(stateful_step_count=25, deadline=None)


def test_durability_that_was_reached_is_what_is_said(tmp_path: Path) -> None:
    options = StoreOptions(
        segment_size_bytes=8192, max_message_size_bytes=2048, index_slots=50, index_entries=60
    )
    with MessageStore.open(tmp_path, options, background=False) as store:
        relaxed = store.append(Message.of("t", b"1"))
        assert relaxed.durability is Durability.MEMORY
        assert store.flusher.flushed_offset == 0
        demanded = store.append(Message.of("t", b"2"), durability=Durability.FLUSHED)
        assert demanded.durability is Durability.FLUSHED
        assert store.flusher.flushed_offset == demanded.physical_offset + demanded.size
