"""The master's side of one connection: where to start, what to send next, when to give up. No I/O.

The replica's first report fixes where the stream begins; from then on each byte is sent once, in order, as long as
the connection has room. What was sent lies in the connection's buffer and nowhere else, so a sender needs no memory
of its own, however far behind its replica is.

Rules
- Nothing is sent before the first report, and no report may exceed what was sent: a replica that claims more is not a
  copy of this log.
- A slave that starts ahead of a classic master gets heartbeats and nothing else. Apache RocketMQ sends on as soon as
  its log has grown that far, and the copy is then wrong in the middle without anybody noticing.
- A frame never crosses a segment, nor the end of an epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from penstock.errors import FrameError
from penstock.replication.frames import (
    Handshake,
    NewerEpoch,
    ReplicaFrameReader,
    Report,
    ReportReader,
    TablesApplied,
    encode_epoch_transfer_head,
    encode_handshake_reply,
    encode_tables_head,
    encode_transfer_head,
)
from penstock.replication.handshake import epoch_at
from penstock.replication.options import ReplicationOptions
from penstock.replication.port import Leadership, SourceLog
from penstock.replication.steps import (
    Acked,
    Close,
    Joined,
    Ready,
    Received,
    Send,
    SenderEvent,
    SenderInstruction,
    Superseded,
    TablesAcked,
    TablesChanged,
    Trouble,
    has_slept,
)

Steps = list[SenderInstruction]


class Sender(ABC):
    """What both protocols share. `position` is the next byte to send, -1 before the first report."""

    def __init__(self, log: SourceLog, options: ReplicationOptions, batch_bytes: int, now_ms: int) -> None:
        self._log = log
        self._options = options
        self._batch_bytes = batch_bytes
        self._heard_ms = self._said_ms = self._ticked_ms = now_ms
        self._second_ms = now_ms
        self._second_bytes = 0
        self._is_stuck = False
        self.position = -1
        self.acked = -1
        self.sent_bytes = 0
        self.is_closed = False

    @property
    def has_more(self) -> bool:
        """Whether there are log bytes that could be sent."""
        return self.position >= 0 and not self._is_stuck and self.position < self._log.max_offset

    def handle(self, event: SenderEvent, now_ms: int) -> Steps:
        """See `replication/steps.py`. After a `Close` nothing more comes."""
        if self.is_closed:
            return []
        steps: Steps = []
        try:
            if isinstance(event, Received):
                self._heard_ms = now_ms
                self._receive(event.data, now_ms, steps)
            elif isinstance(event, Ready):
                self._transfer(event.room, now_ms, steps)
            elif isinstance(event, TablesChanged):
                self._tables_changed(event)
            else:
                self._tick(now_ms, steps)
        except FrameError as error:
            self._close(str(error), steps)
        return steps

    @abstractmethod
    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        """Take what the replica says."""

    @abstractmethod
    def _head(self, size: int) -> tuple[bytes, int] | None:
        """The head of a frame at `position` and how many bytes it may announce; None: nothing can be said there."""

    def _tables_changed(self, event: TablesChanged) -> None:
        """Only replicas of a coordinated set get side tables; a classic slave asks for them elsewhere."""
        return

    def _close(self, reason: str, steps: Steps) -> None:
        self.is_closed = True
        steps.append(Close(reason))

    def _trouble(self, text: str, steps: Steps) -> None:
        if not self._is_stuck:
            self._is_stuck = True
            steps.append(Trouble(text))

    def _tick(self, now_ms: int, steps: Steps) -> None:
        if has_slept(self._ticked_ms, now_ms, self._options):
            self._heard_ms = now_ms
        self._ticked_ms = now_ms
        if now_ms - self._heard_ms > self._options.housekeeping_interval_ms:
            self._close(f"the replica has said nothing for {now_ms - self._heard_ms} ms", steps)

    # -- positions -------------------------------------------------------------------------------------------

    def _start(self, asked: int, from_last_file: bool, steps: Steps) -> None:
        """The first report says where to begin."""
        log = self._log
        if asked:
            self.position = asked
        elif from_last_file:
            self.position = log.max_offset - log.max_offset % log.segment_size
        else:
            self.position = log.min_offset
        if asked > log.max_offset:
            self._trouble(
                f"the replica's log ends at {asked}, ours at {log.max_offset}: it has what this master never had or "
                "has lost; nothing is sent to it. Empty its store, or let it be master",
                steps,
            )
        else:
            self._check_start(steps)

    def _check_start(self, steps: Steps) -> None:
        """A replica that is too slow for retention, or was away too long, cannot be helped."""
        if self.position < self._log.min_offset:
            self._trouble(
                f"the replica needs the log from {self.position} on, ours begins at {self._log.min_offset}: "
                "nothing is sent to it. Empty its store, so that it begins anew",
                steps,
            )

    def _acked(self, offset: int, steps: Steps) -> None:
        if offset > self.position:
            if self._is_stuck:
                return
            raise FrameError(f"the replica acknowledges {offset}, of which {self.position} was sent")
        if offset < self.acked:
            raise FrameError(f"the replica had {self.acked} and now has {offset}")
        self.acked = offset
        if not self._is_stuck:
            steps.append(Acked(offset))

    # -- sending ---------------------------------------------------------------------------------------------

    def _transfer(self, room: int, now_ms: int, steps: Steps) -> None:
        if self.position < 0:
            return
        while room > 0 and self.has_more:
            head = self._head(self._allowed(now_ms))
            if head is None or not head[1]:
                break
            body = self._log.slice_for_transfer(self.position, head[1])
            if body is None:
                self._check_start(steps)
                break
            size = len(body)
            if size < head[1]:
                shorter = self._head(size)
                if shorter is None:
                    break
                head = shorter
            steps.append(Send((head[0], body)))
            self.position += size
            self.sent_bytes += size
            self._second_bytes += size
            self._said_ms = now_ms
            room -= size
        if now_ms - self._said_ms >= self._options.heartbeat_interval_ms:
            self._heartbeat(now_ms, steps)

    def _heartbeat(self, now_ms: int, steps: Steps) -> None:
        head = self._head(0)
        if head is not None:
            self._said_ms = now_ms
            steps.append(Send((head[0],)))

    def _allowed(self, now_ms: int) -> int:
        """Bytes of the next frame, as far as the limit per second goes."""
        limit = self._options.transfer_bytes_per_second_max
        if not limit:
            return self._batch_bytes
        if now_ms - self._second_ms >= 1000:
            self._second_ms, self._second_bytes = now_ms, 0
        return max(0, min(self._batch_bytes, limit - self._second_bytes))


class ClassicSender(Sender):
    """To a slave of the classic protocol, Java's or ours."""

    def __init__(self, log: SourceLog, options: ReplicationOptions, now_ms: int) -> None:
        super().__init__(log, options, options.transfer_batch_bytes, now_ms)
        self._reader = ReportReader()

    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        for report in self._reader.feed(data):
            if self.position < 0:
                self._start(report.offset, True, steps)
            self._acked(report.offset, steps)

    def _head(self, size: int) -> tuple[bytes, int]:
        return encode_transfer_head(self.position, size), size


class EpochSender(Sender):
    """To a replica of a coordinated set. It belongs to one epoch: a master of a new one makes new senders."""

    def __init__(
        self, log: SourceLog, leadership: Leadership, own_id: int, options: ReplicationOptions, now_ms: int
    ) -> None:
        super().__init__(log, options, options.epoch_batch_bytes, now_ms)
        self._leadership = leadership
        self._own_id = own_id
        self._reader = ReplicaFrameReader()
        self._handshake: Handshake | None = None
        self._confirm_said = -1
        # Changes of side tables that are not sent yet, and whether all tables have to go before them.
        self._tables: deque[TablesChanged] = deque()
        self._tables_bytes = 0
        self._wants_snapshot = False
        self._tables_sent = 0

    @property
    def has_more(self) -> bool:
        return super().has_more or (self.position >= 0 and (self._wants_snapshot or bool(self._tables)))

    @property
    def owes_confirm(self) -> bool:
        """Whether the replica does not know the newest confirm offset."""
        return self.position >= 0 and self._confirm_said < self._leadership.confirm_offset

    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        for frame in self._reader.feed(data):
            if isinstance(frame, NewerEpoch):
                if frame.epoch > self._leadership.epoch:
                    steps.append(Superseded(frame.epoch))
                self._close(f"the replica follows epoch {frame.epoch}", steps)
                return
            if isinstance(frame, Handshake):
                self._greet(frame, now_ms, steps)
            elif self._handshake is None:
                raise FrameError("the replica did not begin with a handshake")
            elif isinstance(frame, TablesApplied):
                if frame.sequence > self._tables_sent:
                    raise FrameError(f"the replica has applied tables {frame.sequence} that were never sent")
                steps.append(TablesAcked(frame.sequence))
            else:
                self._reported(frame, steps)

    def _greet(self, frame: Handshake, now_ms: int, steps: Steps) -> None:
        if self._handshake is not None:
            raise FrameError("the replica introduces itself twice")
        if frame.replica_id == self._own_id:
            raise FrameError(
                f"the replica has this master's own id {frame.replica_id}", "give it another one"
            )
        self._handshake = frame
        self._said_ms = now_ms
        steps.append(Joined(frame.replica_id, frame.is_learner, frame.wants_tables))
        leadership = self._leadership
        reply = encode_handshake_reply(self._log.max_offset, leadership.epoch, leadership.epochs)
        steps.append(Send((reply,)))

    def _reported(self, report: Report, steps: Steps) -> None:
        if self.position < 0 and self._handshake is not None:
            self._start(report.offset, self._handshake.from_last_file, steps)
            self._wants_snapshot = self._handshake.wants_tables
        self._acked(report.offset, steps)

    # -- sending ---------------------------------------------------------------------------------------------

    def _transfer(self, room: int, now_ms: int, steps: Steps) -> None:
        if self.position < 0:
            return
        room -= self._send_tables(room, now_ms, steps)
        super()._transfer(room, now_ms, steps)
        if self.owes_confirm and now_ms - self._said_ms >= self._options.confirm_interval_ms:
            self._heartbeat(now_ms, steps)

    def _head(self, size: int) -> tuple[bytes, int] | None:
        found = epoch_at(self._leadership.epochs, self.position)
        if found is None:
            return None
        epoch, end = found
        size = min(size, end - self.position)
        self._confirm_said = self._leadership.confirm_offset
        return encode_epoch_transfer_head(self.position, size, epoch, self._confirm_said), size

    def _start(self, asked: int, from_last_file: bool, steps: Steps) -> None:
        if asked > self._log.max_offset:
            raise FrameError(
                f"after the handshake the replica still has {asked} bytes of {self._log.max_offset}"
            )
        super()._start(asked, from_last_file, steps)
        if epoch_at(self._leadership.epochs, self.position) is None:
            self._trouble(f"no epoch of this master is as old as position {self.position}", steps)

    def _tables_changed(self, event: TablesChanged) -> None:
        """Keep a change until there is room for it; where too many wait, all tables are sent instead."""
        if self._handshake is None or not self._handshake.wants_tables or self.position < 0:
            return  # the snapshot that comes first has it
        if self._wants_snapshot:
            return
        self._tables.append(event)
        self._tables_bytes += len(event.body)
        if self._tables_bytes > self._options.tables_queue_bytes_max:
            self._tables.clear()
            self._tables_bytes = 0
            self._wants_snapshot = True

    def _send_tables(self, room: int, now_ms: int, steps: Steps) -> int:
        sent = 0
        if self._wants_snapshot:
            self._wants_snapshot = False
            snapshot = self._leadership.tables_snapshot()
            if snapshot is not None:
                sent += self._send_table(*snapshot, now_ms, steps)
        while self._tables and sent < room:
            change = self._tables.popleft()
            self._tables_bytes -= len(change.body)
            sent += self._send_table(change.sequence, change.body, now_ms, steps)
        return sent

    def _send_table(self, sequence: int, body: bytes, now_ms: int, steps: Steps) -> int:
        if len(body) > self._options.tables_bytes_max:
            steps.append(
                Trouble(f"side tables of {len(body)} bytes are over tables_bytes_max, and are not sent")
            )
            return 0
        self._tables_sent = sequence
        self._said_ms = now_ms
        steps.append(Send((encode_tables_head(sequence, len(body)), body)))
        return len(body)
