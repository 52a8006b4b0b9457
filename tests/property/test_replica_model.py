"""Two stores that take turns as master and replica, against a simple model, over random sequences of append, copy in
any pieces, confirm, elect, cut, crash, stop, reopen and time.

The model knows up to where both logs are the same and what was confirmed. After every step: the logs are equal byte
for byte up to there; each store shows only confirmed records, whole, in order, genuine; and a message that anybody
has ever seen keeps its offset for ever, and is there in the end, by offset and by key.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.runtime import Runtime, SeededEntropy
from penstock.store import FlushMode, MessageStore, StoreOptions
from penstock.testing.clock import ManualClock
from penstock.testing.scratch_disk import scratch_parent
from tests.support.replica_checks import log_bytes
from tests.support.store_checks import (
    Ledger,
    assert_genuine,
    message_of,
    place_of,
    read_queue,
    serial_of,
    small_options,
)

pytestmark = [
    pytest.mark.invariant("I2"),
    pytest.mark.invariant("I3"),
    pytest.mark.invariant("I4"),
    pytest.mark.invariant("I5"),
    pytest.mark.invariant("I7"),
]


class PairMachine(RuleBasedStateMachine):
    """`stores[leader]` is master, the other follows it."""

    @initialize(sync=st.booleans(), seal=st.booleans(), segment=st.sampled_from([4096, 8192]))
    def open(self, sync: bool, seal: bool, segment: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pair-", dir=scratch_parent()))
        self.clock = ManualClock()
        mode = FlushMode.SYNC if sync else FlushMode.ASYNC
        self.options: StoreOptions = small_options(
            segment_size_bytes=segment, flush_mode=mode, seal_records=seal, queue_file_entries=16
        )
        self.leader = 0
        self.common = 0
        self.confirmed = 0
        self.serial = 0
        self.seen = Ledger()
        self.stores = [self._open(0), self._open(1)]

    def _open(self, number: int) -> MessageStore:
        return MessageStore.open(
            self.folder / str(number),
            self.options,
            runtime=Runtime(clock=self.clock),
            background=False,
            replica=number != self.leader,
            bounded=True,
        )

    @property
    def master(self) -> MessageStore:
        return self.stores[self.leader]

    @property
    def follower(self) -> MessageStore:
        return self.stores[1 - self.leader]

    @property
    def is_behind_a_cut(self) -> bool:
        """Whether the follower still has a tail of its own time as a master."""
        return self.follower.log.max_offset > self.common

    @rule(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        serials = range(self.serial + 1, self.serial + 1 + len(sizes))
        self.serial = serials.stop
        self.master.append_group(
            [
                self.master.request(message_of(serial, size), place_of(serial)[1])
                for serial, size in zip(serials, sizes, strict=True)
            ]
        )

    @rule(pieces=st.lists(st.integers(1, 1500), min_size=1, max_size=6))
    def copy(self, pieces: list[int]) -> None:
        if self.is_behind_a_cut:
            self.follower.truncate(self.common)
        for size in pieces:
            position = self.follower.log.max_offset
            view = self.master.slice_for_transfer(position, size)
            if view is None:
                return
            data = bytes(view)
            view.release()
            self.common = self.follower.append_replica(data, position)

    @rule(tell=st.booleans())
    def confirm(self, tell: bool) -> None:
        """What both have is confirmed; the follower is told with the next bytes, or not yet."""
        self.follower.flush()
        self.master.flush()
        self.confirmed = max(self.confirmed, self.common)
        self.master.bound(self.confirmed)
        if tell:
            self.follower.bound(min(self.confirmed, self.follower.log.max_offset))

    @precondition(lambda self: not self.is_behind_a_cut)
    @rule()
    def elect_the_follower(self) -> None:
        self.master.replica_mode(True)
        self.common = self.follower.cut_tail()
        # A part of a record was confirmed as bytes; nobody could have seen it.
        self.confirmed = min(self.confirmed, self.common)
        self.follower.replica_mode(False)
        self.leader = 1 - self.leader

    @rule(number=st.integers(0, 1))
    def crash(self, number: int) -> None:
        """A killed process loses nothing that was written, except a record that was there in part."""
        self.stores[number].abandon()
        self._reopen(number)
        assert not self.stores[number].report.clean

    @rule(number=st.integers(0, 1))
    def stop(self, number: int) -> None:
        self.stores[number].close()
        self._reopen(number)
        assert self.stores[number].report.clean

    def _reopen(self, number: int) -> None:
        had_own_tail = number != self.leader and self.is_behind_a_cut
        self.stores[number] = self._open(number)
        assert self.stores[number].report.damage == []
        if number != self.leader and not had_own_tail:
            self.common = self.follower.log.max_offset

    @rule(number=st.integers(0, 1))
    def flush(self, number: int) -> None:
        self.stores[number].flush()

    @rule(ms=st.integers(1, 20_000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)
        for store in self.stores:
            store.keeper.tick()

    @rule()
    def cut_again(self) -> None:
        """Cutting where the logs part, and cutting where nothing is to be cut, both are harmless."""
        if self.is_behind_a_cut:
            self.follower.truncate(self.common)
        else:
            self.common = self.follower.cut_tail()

    @invariant()
    def logs_are_equal_up_to_where_they_part(self) -> None:
        low = max(store.log.min_offset for store in self.stores)
        assert self.confirmed <= self.master.log.max_offset
        if low < self.common:
            assert log_bytes(self.master, low, self.common) == log_bytes(self.follower, low, self.common)

    @invariant()
    def only_confirmed_messages_are_seen_and_they_stay(self) -> None:
        for store in self.stores:
            bound = store.dispatch.bounded_at
            assert store.dispatch.offset <= bound
            assert store.dispatch.offset <= self.confirmed
            count = 0
            for queue in store.queues:
                for message in read_queue(store, queue.topic, queue.queue_id):
                    assert_genuine(message)
                    assert message.physical_offset + message.size <= self.confirmed
                    self.seen.add(queue.topic, queue.queue_id, message.queue_offset, serial_of(message))
                    count += 1
            if store is self.master and store.flusher.flushed_offset >= bound >= self.confirmed:
                assert count == self.seen.count

    @invariant()
    def nothing_is_damaged(self) -> None:
        for store in self.stores:
            totals = store.keeper.audit.run()
            assert (totals.damaged_records, totals.wrong_entries) == (0, 0)
            assert store.findings.damage() == []

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        self.copy([1 << 20] * 200)
        self.confirm(True)
        for store in self.stores:
            for place, offsets in self.seen.acked.items():
                found = {m.queue_offset: serial_of(m) for m in read_queue(store, *place)}
                assert offsets.items() <= found.items()
                for offset in list(offsets)[-2:]:
                    hits = store.reader.query(place[0], f"k{offsets[offset]}")
                    assert [m.queue_offset for m in hits] == [offset]
            store.close()
        shutil.rmtree(self.folder)


TestReplicaModel = PairMachine.TestCase
TestReplicaModel.settings = settings(stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("seed", range(8))
def test_long_walks(seed: int) -> None:
    """The same rules, drawn so that the logs grow over many segments, part, and meet again."""
    entropy, machine = SeededEntropy(seed), PairMachine()
    machine.open(bool(seed & 1), bool(seed & 2), (4096, 8192)[seed >> 2 & 1])
    try:
        for _ in range(250):
            draw = entropy.below(20)
            if draw < 6:
                machine.append([entropy.below(500) for _ in range(1 + entropy.below(6))])
            elif draw < 13:
                machine.copy([1 + entropy.below(1500) for _ in range(1 + entropy.below(5))])
            elif draw < 15:
                machine.confirm(entropy.below(3) > 0)
            elif draw == 15:
                if not machine.is_behind_a_cut:
                    machine.elect_the_follower()
            elif draw == 16:
                machine.crash(entropy.below(2))
            elif draw == 17:
                machine.stop(entropy.below(2))
            elif draw == 18:
                machine.time_passes(1 + entropy.below(20_000))
            else:
                machine.cut_again()
            machine.logs_are_equal_up_to_where_they_part()
            machine.only_confirmed_messages_are_seen_and_they_stay()
        machine.nothing_is_damaged()
        assert machine.seen.count > 100
    finally:
        machine.teardown()
