"""The master's side on sockets: listens on the replication port, one sender for each replica.

It listens as long as the broker runs and turns everybody away unless this node is master: `serve` makes it a classic
master, `lead` the master of an epoch, `step_down` neither. Owned by the loop in which `start` was called.

What a broker has to do: call `appended` after every append and, under synchronous flush, after every sync. Nothing
here looks at the log by itself, but for a tick that mends what was forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import ConnectError, OptionError, StoreRoleError
from penstock.replication.acks import AckTracker, Proposal
from penstock.replication.frames import Epoch
from penstock.replication.options import ReplicationOptions
from penstock.replication.port import EpochTable
from penstock.replication.replica_link import ReplicaLink
from penstock.replication.sender import ClassicSender, EpochSender, Sender
from penstock.replication.steps import Joined, TablesChanged, Tick
from penstock.replication.store_log import StoreLog
from penstock.replication.waiting import Callback, Outcome
from penstock.runtime import Runtime
from penstock.runtime.network import Listener
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.replication")


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One connected replica, for status pages."""

    replica_id: int
    address: str
    acked_offset: int
    behind_bytes: int
    sent_bytes: int
    is_in_sync: bool


class HaServer:
    """See the module's text. `epochs`, `own_id` and the callables are for a coordinated set only."""

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        runtime: Runtime,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        own_id: int = 0,
        epochs: EpochTable | None = None,
        snapshot: Callable[[], bytes] | None = None,
        on_proposal: Callable[[Proposal], None] = lambda proposal: None,
        on_superseded: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self._store = store
        self._log = StoreLog(store)
        self._options = options
        self._runtime = runtime
        self._host, self._port = host, port
        self._own_id = own_id
        self._epochs = epochs
        self._snapshot = snapshot
        self._on_proposal = on_proposal
        self._on_superseded = on_superseded
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._confirm_timer: asyncio.TimerHandle | None = None
        self.links: set[ReplicaLink] = set()
        self._connections = 0
        self._is_waking = False
        self.tracker: AckTracker | None = None
        # The epoch in which this node is master, 0 where it is none or a classic one.
        self.epoch = 0

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._listener = await self._runtime.network.listen(
                lambda: ReplicaLink(self), self._host, self._port
            )
        except OSError as error:
            raise ConnectError(
                f"cannot listen on {self._host}:{self._port} for replicas: {error.strerror or error}",
                "is another broker running there? choose another port, or 0 for a free one",
            ) from error
        self._schedule_tick()

    async def stop(self) -> None:
        """Stop listening; whoever waits for replicas is told that the outcome is unknown."""
        self.step_down()
        for timer in (self._timer, self._confirm_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._confirm_timer = None
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
            await asyncio.sleep(0)  # transports are closed by callbacks of the loop

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, with the port that the system chose if 0 was asked for."""
        return (self._host, self._port) if self._listener is None else self._listener.addresses[0]

    # -- roles -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Be a classic master: whoever connects gets the log, and copies are counted."""
        self.step_down()
        self._whole_end()
        self._become_writable()
        self._store.bound(None)
        self.tracker = AckTracker(
            self._own_id, self._options, read_stored=lambda: self._log.stored_offset, now_ms=self.now_ms()
        )

    def lead(self, epoch: int, members: Iterable[int], set_epoch: int) -> None:
        """Be the master of an epoch. When this returns the epoch is on disk, and messages may be appended.

        Order: the end of the log is made a record's end, the epoch is written down, only then may the log grow.
        """
        if self._epochs is None:
            raise OptionError("there is no epoch table", "give HaServer one to lead a coordinated set")
        known = self._epochs.entries
        if known and epoch < known[-1][0]:
            raise StoreRoleError(
                f"this log has bytes of epoch {known[-1][0]}, it cannot be led in epoch {epoch}",
                "ask the coordinator who is master",
            )
        self.step_down()
        end = self._whole_end()
        self._epochs.truncate(end)
        known = self._epochs.entries
        if not known:
            # All that is there counts as the first epoch's, so that an empty replica can be sent all of it.
            self._epochs.append(epoch, self._log.min_offset)
        elif known[-1][0] < epoch:
            self._epochs.append(epoch, end)
        self._become_writable()
        self.epoch = epoch
        self.tracker = AckTracker(
            self._own_id,
            self._options,
            members=members,
            set_epoch=set_epoch,
            # Whatever was confirmed before is in this log: a replica without it must not join.
            joins_from=end,
            read_stored=lambda: self._log.stored_offset,
            on_confirm=self._confirmed,
            now_ms=self.now_ms(),
        )

    def _whole_end(self) -> int:
        """Where the log ends, after a record; a replica may have got the last one in part."""
        return self._store.cut_tail() if self._store.is_replica else self._log.max_offset

    def _become_writable(self) -> None:
        if self._store.is_replica:
            self._store.replica_mode(False)

    def step_down(self) -> None:
        """Serve nobody and acknowledge nothing any more. What may be seen of the log stays as it is."""
        tracker, self.tracker = self.tracker, None
        self.epoch = 0
        for link in list(self.links):
            link.abort("this node is not master any more")
        if tracker is not None:
            tracker.finish()

    def superseded(self, epoch: int) -> None:
        """There is a newer epoch than ours: stop at once."""
        if self.tracker is not None and epoch > self.epoch > 0:
            _LOG.warning("epoch %d is over, the set is in epoch %d", self.epoch, epoch)
            self.step_down()
            self._on_superseded(epoch)

    # -- what a sender asks of a leadership ------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self._epochs.entries if self._epochs is not None else ()

    @property
    def confirm_offset(self) -> int:
        """Every member of the sync-state set has the log up to here, and nothing before it is held back: what is to
        be seen all at once must not be seen in part at a replica, nor by the bound it has when it is elected."""
        return min(self.tracker.confirm_offset, self._store.held_at) if self.tracker is not None else 0

    def hold_ended(self) -> None:
        """What was held back may be shown as far as it is confirmed, here and at the replicas."""
        if self.tracker is not None:
            self._confirmed(self.tracker.bound)

    def tables_snapshot(self) -> tuple[int, bytes] | None:
        if self._snapshot is None or self.tracker is None:
            return None
        return self.tracker.tables_sequence, self._snapshot()

    # -- for the broker --------------------------------------------------------------------------------------

    def appended(self) -> None:
        """The log has grown, or more of it is on disk. Cheap: one round serves all calls before it."""
        if self._is_waking or self.tracker is None:
            return
        if self.links or self.tracker.waiting:
            self._is_waking = True
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        if self.tracker is not None:
            self.tracker.stored()
            for link in list(self.links):
                link.pump()

    def when_replicated(
        self, position: int, need: int, callback: Callback, timeout_ms: int | None = None
    ) -> None:
        """Call back once `need` copies (this node's counts), or `ALL_IN_SYNC`, have the log up to `position`."""
        if self.tracker is None:
            callback(Outcome.SUPERSEDED)
        else:
            self.tracker.when_replicated(position, need, callback, self.now_ms(), timeout_ms)

    def send_tables(self, body: bytes) -> int:
        """Send a change of the side tables, already made here, to every replica; its sequence number."""
        if self.tracker is None:
            raise StoreRoleError("this node is not master", "send side tables from the master")
        if self._snapshot is None:
            raise OptionError("there is no snapshot of the side tables", "give HaServer one to send them")
        if len(body) > self._options.tables_bytes_max:
            raise OptionError(f"side tables of {len(body)} bytes", "raise replication.tables_bytes_max")
        sequence = self.tracker.next_tables()
        event = TablesChanged(sequence, body)
        for link in list(self.links):
            link.carry_out(link.sender.handle(event, self.now_ms()))
            link.schedule()
        return sequence

    def when_tables_replicated(
        self, sequence: int, callback: Callback, timeout_ms: int | None = None
    ) -> None:
        """Call back once all members of the sync-state set have applied the side tables up to `sequence`."""
        if self.tracker is None:
            callback(Outcome.SUPERSEDED)
        else:
            self.tracker.when_tables_replicated(sequence, callback, self.now_ms(), timeout_ms)

    def replicas(self) -> list[ReplicaStatus]:
        """The connected replicas."""
        tracker = self.tracker
        if tracker is None:
            return []
        tracker.stored()
        near = self._log.max_offset - self._options.in_sync_gap_bytes_max
        found = []
        for link in self.links:
            known = tracker.replicas.get(link.replica_id)
            if known is not None:
                in_sync = link.replica_id in tracker.members if self.epoch else known.acked > near
                behind = max(0, self._log.max_offset - max(0, known.acked))
                found.append(
                    ReplicaStatus(
                        link.replica_id, link.address, known.acked, behind, link.sender.sent_bytes, in_sync
                    )
                )
        return sorted(found, key=lambda status: status.replica_id)

    # -- connections -----------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._runtime.clock.monotonic_ms()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    @property
    def send_buffer_bytes(self) -> int:
        return self._options.send_buffer_bytes

    def opened(self, link: ReplicaLink) -> Sender | None:
        """The sender for a new connection, None if it is turned away."""
        if self.tracker is None or len(self.links) >= self._options.connections_max:
            return None
        self.links.add(link)
        self._connections += 1
        if self.epoch:
            return EpochSender(self._log, self, self._own_id, self._options, self.now_ms())
        # A classic slave has no name: its connection is what is counted.
        link.replica_id = self._connections
        self.tracker.joined(link.replica_id, self.now_ms())
        return ClassicSender(self._log, self._options, self.now_ms())

    def joined(self, link: ReplicaLink, step: Joined) -> None:
        if self.tracker is None:
            return
        for other in list(self.links):
            if other is not link and other.replica_id == step.replica_id:
                other.abort(f"replica {step.replica_id} has connected again")
        link.replica_id = step.replica_id
        # Without a snapshot there are no tables, and nobody has to have them.
        has_tables = step.has_tables and self._snapshot is not None
        self.tracker.joined(step.replica_id, self.now_ms(), is_learner=step.is_learner, has_tables=has_tables)

    def lost(self, link: ReplicaLink) -> None:
        if link in self.links:
            self.links.discard(link)
            if self.tracker is not None and link.replica_id >= 0:
                self.tracker.left(link.replica_id)

    def _confirmed(self, offset: int | None) -> None:
        """The confirm offset has moved: show what it covers, and let the replicas know soon."""
        self._store.bound(offset if offset is None else min(offset, self._store.held_at))
        if self._confirm_timer is None and self.links:
            delay_s = self._options.confirm_interval_ms / 1000
            self._confirm_timer = self.loop.call_later(delay_s, self._spread_confirm)

    def _spread_confirm(self) -> None:
        self._confirm_timer = None
        for link in list(self.links):
            link.pump()

    # -- time ------------------------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        delay_s = self._options.review_interval_ms / 1000
        self._timer = self.loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._schedule_tick()
        now = self.now_ms()
        for link in list(self.links):
            link.carry_out(link.sender.handle(Tick(), now))
            link.pump()
        tracker = self.tracker
        if tracker is not None:
            tracker.stored()
            tracker.expire(now)
            proposal = tracker.review(now)
            if proposal is not None and not tracker.is_over:
                self._on_proposal(proposal)
