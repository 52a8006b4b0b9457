"""Senders and receivers with a wire between them: any pieces, cuts at any byte, elections. A seed decides it all."""

from __future__ import annotations

import random

import pytest

from penstock.replication.options import ReplicationOptions
from penstock.replication.receiver import ClassicReceiver, EpochReceiver
from penstock.replication.sender import ClassicSender, EpochSender
from penstock.replication.steps import TablesChanged
from tests.support.memory_log import MemoryEpochs, MemoryLeadership, MemoryLog, Wire

OPTIONS = ReplicationOptions(transfer_batch_bytes=17, epoch_batch_bytes=23, confirm_interval_ms=5)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.invariant("I7")
@pytest.mark.fault("F3")
def test_a_classic_copy_survives_cuts_at_any_byte(seed: int) -> None:
    chance = random.Random(seed)
    master, slave = MemoryLog(chance.randbytes(500), segment_size=128), MemoryLog(segment_size=128)
    for _ in range(8):
        wire = Wire(ClassicSender(master, OPTIONS, 0), ClassicReceiver(slave, OPTIONS, 0), chance, room=50)
        wire.connect()
        for _ in range(chance.randrange(60)):
            wire.step()
            if chance.random() < 0.3:
                master.append(chance.randbytes(chance.randrange(40)))
        assert wire.reasons == []
    wire = Wire(ClassicSender(master, OPTIONS, 0), ClassicReceiver(slave, OPTIONS, 0), chance)
    wire.connect()
    wire.settle()
    assert slave.max_offset == master.max_offset
    assert slave.data == master.data[slave.base :]
    assert slave.base % 128 == 0


class Member:
    """A node of a set: its log, its epochs, and as a master its leadership."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.log = MemoryLog(segment_size=128)
        self.epochs = MemoryEpochs()
        self.tables = 0

    def leadership(self, epoch: int) -> MemoryLeadership:
        self.epochs.truncate(self.log.max_offset)
        if not self.epochs.entries or self.epochs.entries[-1][0] < epoch:
            self.epochs.append(epoch, self.log.max_offset)
        tables = b"%d" % self.tables
        return MemoryLeadership(epoch, self.epochs.entries, self.log.max_offset, self.tables, tables)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.invariant("I6", "I7", "I11")
@pytest.mark.fault("F3", "F12")
def test_after_any_elections_replicas_are_copies_of_the_last_master(seed: int) -> None:
    """Masters write what nobody gets, replicas get half of it, connections are cut at any byte, and amid all that
    the next one is elected. A replica is a prefix of its master whenever it has shaken hands."""
    chance = random.Random(seed)
    members = [Member(number) for number in range(3)]
    for epoch in range(1, 15):
        # Whoever has most is elected, as a coordinator does; at times somebody else.
        best = max(members, key=lambda one: (one.epochs.entries[-1:], one.log.max_offset))
        master = best if chance.random() < 0.6 else chance.choice(members)
        leadership = master.leadership(epoch)
        master.log.append(chance.randbytes(chance.randrange(100)))
        for replica in members:
            if replica is master or chance.random() < 0.2:
                continue
            for _ in range(chance.randrange(1, 4)):
                wire = connection(master, leadership, replica, epoch, chance)
                for _ in range(chance.randrange(50)):
                    wire.step()
                    if chance.random() < 0.2:
                        master.log.append(chance.randbytes(chance.randrange(30)))
                    leadership.confirm_offset = master.log.max_offset
                    if wire.is_over:
                        break
                if wire.receiver.is_following:
                    assert replica.log.data == master.log.data[: len(replica.log.data)], (seed, epoch)
    epoch = 99
    leadership = master.leadership(epoch)
    for replica in members:
        if replica is not master:
            wire = connection(master, leadership, replica, epoch, chance)
            wire.settle()
            if wire.reasons:
                assert "shares no epoch" in wire.reasons[0]
                assert replica.epochs.entries[0] != master.epochs.entries[0]
            else:
                assert replica.log.data == master.log.data
                assert replica.epochs.entries == tuple(
                    e for e in master.epochs.entries if e[1] < len(master.log.data)
                )
                assert wire.tables[0] == b"%d" % leadership.sequence


def connection(
    master: Member, leadership: MemoryLeadership, replica: Member, epoch: int, chance: random.Random
) -> Wire:
    wire = Wire(
        EpochSender(master.log, leadership, master.number, OPTIONS, 0),
        EpochReceiver(replica.log, replica.epochs, replica.number, epoch, OPTIONS, 0),
        chance,
        room=chance.choice((10, 100, 10_000)),
    )
    wire.connect()
    return wire


@pytest.mark.parametrize("seed", range(5))
def test_tables_and_log_share_the_wire(seed: int) -> None:
    chance = random.Random(seed)
    one, two = Member(0), Member(1)
    leadership = one.leadership(1)
    wire = connection(one, leadership, two, 1, chance)
    for sequence in range(1, 60):
        leadership.sequence, leadership.tables = sequence, b"%d" % sequence
        wire.sender.handle(TablesChanged(sequence, b"%d" % sequence), wire.now_ms)
        one.log.append(chance.randbytes(chance.randrange(50)))
        wire.step()
    wire.settle()
    assert two.log.data == one.log.data
    numbers = [int(body) for body in wire.tables]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 59
    first = numbers.index(numbers[0])
    assert numbers[first:] == list(range(numbers[0], 60)), "each change once, after all tables"
