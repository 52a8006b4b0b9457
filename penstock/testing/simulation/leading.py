"""A simulated broker while it is master: its replicas, and what they have acknowledged.

One leadership, from `lead` to `step_down` of `replication/leader.py`; a master of a new epoch gets a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.membership import Lead, Superseded
from penstock.replication.acks import AckTracker, Proposal
from penstock.replication.options import ReplicationOptions
from penstock.replication.sender import EpochSender
from penstock.replication.steps import (
    Acked,
    Close,
    Joined,
    Ready,
    Received,
    Send,
    SenderInstruction,
    TablesAcked,
    TablesChanged,
)
from penstock.replication.steps import Superseded as SupersededBy
from penstock.replication.steps import Tick as ReplicationTick
from penstock.replication.waiting import Callback
from penstock.testing.simulation.world import StreamEnd

if TYPE_CHECKING:
    from penstock.testing.simulation.broker import SimBroker

OPTIONS = ReplicationOptions(
    epoch_batch_bytes=200,
    heartbeat_interval_ms=1_000,
    housekeeping_interval_ms=4_000,
    in_sync_lag_ms_max=2_000,
)


class Leading:
    """One leadership: what `replication/leader.py` holds between `lead` and `step_down`."""

    def __init__(self, broker: SimBroker, step: Lead) -> None:
        self.broker = broker
        self.epoch = step.epoch
        log, epochs = broker.log, broker.epochs
        end = log.cut_tail()
        epochs.truncate(end)
        if not epochs.entries:
            epochs.append(step.epoch, log.min_offset)
        elif epochs.last_epoch < step.epoch:
            epochs.append(step.epoch, end)
        self._senders: dict[StreamEnd, EpochSender] = {}
        self._ids: dict[StreamEnd, int] = {}
        self.tracker = AckTracker(
            broker.broker_id,
            OPTIONS,
            members=step.members,
            set_epoch=step.set_epoch,
            joins_from=end,
            read_stored=lambda: log.stored_offset,
            on_confirm=log.bound,
            now_ms=broker.now_ms(),
        )

    # -- what a sender asks ----------------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        return self.broker.epochs.entries

    @property
    def confirm_offset(self) -> int:
        return self.tracker.confirm_offset

    def tables_snapshot(self) -> tuple[int, bytes] | None:
        return self.tracker.tables_sequence, b"%d" % self.broker.committed

    # -- what `SetReplicas` asks -----------------------------------------------------------------------------

    def appended(self) -> None:
        self.tracker.stored()

    def when_replicated(self, position: int, need: int, callback: Callback) -> None:
        self.tracker.when_replicated(position, need, callback, self.broker.now_ms())

    # -- replicas --------------------------------------------------------------------------------------------

    def accept(self, end: StreamEnd) -> None:
        now_ms = self.broker.now_ms()
        sender = EpochSender(self.broker.log, self, self.broker.broker_id, OPTIONS, now_ms)
        self._senders[end] = sender
        end.on_data = lambda data: self._carry_out(
            end, sender.handle(Received(data), self.broker.now_ms()) if end in self._senders else []
        )
        end.on_lost = lambda: self._lost(end)

    def _lost(self, end: StreamEnd) -> None:
        self._senders.pop(end, None)
        replica = self._ids.pop(end, None)
        if replica is not None and not self.tracker.is_over:
            self.tracker.left(replica)

    def pump(self) -> None:
        now_ms = self.broker.now_ms()
        for end, sender in list(self._senders.items()):
            if end not in self._senders:
                continue
            self._carry_out(end, sender.handle(ReplicationTick(), now_ms))
            if end in self._senders:
                self._carry_out(end, sender.handle(Ready(1_000), now_ms))
                if end in self._ids:
                    self.tracker.sent(self._ids[end], now_ms)

    def review(self) -> Proposal | None:
        self.tracker.stored()
        self.tracker.expire(self.broker.now_ms())
        return self.tracker.review(self.broker.now_ms())

    def send_tables(self, body: bytes, callback: Callback) -> None:
        sequence = self.tracker.next_tables()
        for end, sender in list(self._senders.items()):
            self._carry_out(end, sender.handle(TablesChanged(sequence, body), self.broker.now_ms()))
        self.tracker.when_tables_replicated(sequence, callback, self.broker.now_ms())

    def step_down(self) -> None:
        self.close_all()
        self.tracker.finish()

    def close_all(self) -> None:
        ends = list(self._senders)
        self._senders.clear()
        for end in ends:
            end.close()

    def _carry_out(self, end: StreamEnd, steps: list[SenderInstruction]) -> None:
        broker = self.broker
        for step in steps:
            if isinstance(step, Send):
                end.send(b"".join(bytes(part) for part in step.parts))
                continue
            if isinstance(step, Close):
                end.close()
                self._lost(end)
                return
            if broker.leading is not self:
                return
            if isinstance(step, Acked):
                self.tracker.acked(self._ids[end], step.offset, broker.now_ms())
            elif isinstance(step, TablesAcked):
                self.tracker.tables_acked(self._ids[end], step.sequence)
            elif isinstance(step, Joined):
                self._joined(end, step)
            elif isinstance(step, SupersededBy):
                broker._step_down()
                broker.handle(Superseded(step.epoch))

    def _joined(self, end: StreamEnd, step: Joined) -> None:
        for other, replica in list(self._ids.items()):
            if replica == step.replica_id:
                other.close()
                self._lost(other)
        self._ids[end] = step.replica_id
        self.tracker.joined(
            step.replica_id, self.broker.now_ms(), is_learner=step.is_learner, has_tables=step.has_tables
        )
