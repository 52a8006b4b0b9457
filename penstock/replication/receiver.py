"""The replica's side of one connection: what to report, what to append, when to give up. No I/O but the log's.

Rules
- A frame must begin where the log ends, heartbeats included; an empty log takes any start. Otherwise the connection
  is closed, with what came before it kept and reported.
- A report never names a byte that this node does not vouch for (`stored_offset`).
- In a coordinated set nothing is appended before the handshake has cut the log back to what both sides surely share,
  and an epoch is written down before its first byte.
- A replica that follows a newer epoch takes nothing from an older master and acknowledges nothing to it. That is what
  makes an old master's replicated acknowledgements impossible after an election.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.errors import FrameError, StoreError
from penstock.replication.frames import (
    EpochTransfer,
    Handshake,
    HandshakeReply,
    MasterFrameReader,
    TransferReader,
    encode_epoch_report,
    encode_handshake,
    encode_newer_epoch,
    encode_report,
    encode_tables_applied,
)
from penstock.replication.handshake import common_point
from penstock.replication.options import ReplicationOptions
from penstock.replication.port import EpochTable, ReplicaLog
from penstock.replication.steps import (
    ApplyTables,
    Close,
    Connected,
    Follow,
    Following,
    Received,
    ReceiverEvent,
    ReceiverInstruction,
    Send,
    Stored,
    TablesDone,
    has_slept,
)

Steps = list[ReceiverInstruction]


class MismatchError(FrameError):
    """A frame that does not continue this log."""


class Receiver(ABC):
    """What both protocols share."""

    def __init__(self, log: ReplicaLog, options: ReplicationOptions, now_ms: int) -> None:
        self._log = log
        self._options = options
        self.heard_ms = self._said_ms = self._ticked_ms = now_ms
        self._reported = -1
        # Whether the log is being copied: a coordinated set has a handshake before that.
        self.is_following = False
        self.received_bytes = 0
        self.is_closed = False

    @property
    def awaits_flush(self) -> bool:
        """Whether more is written than may be reported: a sync, and `Stored` after it, would help."""
        return self._log.stored_offset < self._log.max_offset

    def handle(self, event: ReceiverEvent, now_ms: int) -> Steps:
        """See `replication/steps.py`. After a `Close` nothing more comes."""
        if self.is_closed:
            return []
        steps: Steps = []
        try:
            if isinstance(event, Received):
                self.heard_ms = now_ms
                self._receive(event.data, now_ms, steps)
                self._report_progress(now_ms, steps)
            elif isinstance(event, Stored):
                self._report_progress(now_ms, steps)
            elif isinstance(event, Connected):
                self._connected(now_ms, steps)
            elif isinstance(event, TablesDone):
                self._tables_done(event.sequence, now_ms, steps)
            elif isinstance(event, Follow):
                self._follow(event.epoch, steps)
            else:
                self._tick(now_ms, steps)
        except FrameError as error:
            # What was appended before the broken frame is there, and the master may as well know.
            self._report_progress(now_ms, steps)
            self._close(str(error), steps)
        except StoreError as error:
            self._close(f"the log takes no more: {error}", steps, self._options.retry_interval_ms)
        return steps

    @abstractmethod
    def _connected(self, now_ms: int, steps: Steps) -> None:
        """Say the first word."""

    @abstractmethod
    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        """Take what the master says."""

    @abstractmethod
    def _encode_report(self, offset: int) -> bytes:
        """A report in the protocol's form."""

    def _tables_done(self, sequence: int, now_ms: int, steps: Steps) -> None:
        raise FrameError("a classic master sends no side tables")

    def _follow(self, epoch: int, steps: Steps) -> None:
        raise FrameError("a classic master has no epoch")

    def _tick(self, now_ms: int, steps: Steps) -> None:
        if has_slept(self._ticked_ms, now_ms, self._options):
            self.heard_ms = now_ms
        self._ticked_ms = now_ms
        if now_ms - self.heard_ms > self._options.housekeeping_interval_ms:
            self._close(f"the master has said nothing for {now_ms - self.heard_ms} ms", steps)
        elif self.is_following and now_ms - self._said_ms >= self._options.heartbeat_interval_ms:
            self._report(now_ms, steps)

    def _close(self, reason: str, steps: Steps, retry_ms: int | None = None) -> None:
        self.is_closed = True
        steps.append(Close(reason, retry_ms))

    def _report_progress(self, now_ms: int, steps: Steps) -> None:
        if self.is_following and self._log.stored_offset > self._reported:
            self._report(now_ms, steps)

    def _report(self, now_ms: int, steps: Steps) -> None:
        self.is_following = True
        self._reported = self._log.stored_offset
        self._said_ms = now_ms
        steps.append(Send((self._encode_report(self._reported),)))

    def _check_position(self, position: int) -> None:
        own = self._log.max_offset
        if own and position != own:
            raise MismatchError(f"the master sends from {position}, this log ends at {own}")

    def _append(self, position: int, body: memoryview) -> None:
        self._log.append_replica(body, position)
        self.received_bytes += len(body)


class ClassicReceiver(Receiver):
    """From a master of the classic protocol, Java's or ours.

    The first report goes out at once. Apache RocketMQ's slave lets its heartbeat interval pass first; no master can
    tell the difference but by the time.
    """

    def __init__(self, log: ReplicaLog, options: ReplicationOptions, now_ms: int) -> None:
        super().__init__(log, options, now_ms)
        self._reader = TransferReader(options.frame_bytes_max)

    def _connected(self, now_ms: int, steps: Steps) -> None:
        self._report(now_ms, steps)

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)

    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        for frame in self._reader.feed(data):
            self._check_position(frame.position)
            if frame.body:
                self._append(frame.position, frame.body)


class EpochReceiver(Receiver):
    """From the master of an epoch. `epoch` is the newest one this replica knows of."""

    def __init__(
        self,
        log: ReplicaLog,
        epochs: EpochTable,
        replica_id: int,
        epoch: int,
        options: ReplicationOptions,
        now_ms: int,
    ) -> None:
        super().__init__(log, options, now_ms)
        self._epochs = epochs
        self._replica_id = replica_id
        self._reader = MasterFrameReader(options.frame_bytes_max, options.tables_bytes_max)
        self._tables_applied = -1
        self.epoch = epoch
        self.confirm_offset = 0

    def _connected(self, now_ms: int, steps: Steps) -> None:
        self._said_ms = now_ms
        options = self._options
        frame = Handshake(self._replica_id, options.sync_from_last_file, True, options.is_learner)
        steps.append(Send((encode_handshake(frame),)))

    def _encode_report(self, offset: int) -> bytes:
        return encode_epoch_report(offset)

    def _follow(self, epoch: int, steps: Steps) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            self._close(f"the set is in epoch {epoch}", steps, 0)

    def _receive(self, data: bytes | bytearray | memoryview, now_ms: int, steps: Steps) -> None:
        for frame in self._reader.feed(data):
            if isinstance(frame, HandshakeReply):
                if self.is_following:
                    raise FrameError("the master answers a handshake twice")
                self._begin(frame, now_ms, steps)
            elif not self.is_following:
                raise FrameError("the master sent something before the handshake")
            elif isinstance(frame, EpochTransfer):
                self._take(frame)
            else:
                if frame.sequence < self._tables_applied:
                    raise FrameError(f"tables {frame.sequence} came after {self._tables_applied}")
                steps.append(ApplyTables(frame.sequence, frame.body))
            if self.is_closed:
                return

    # -- handshake -------------------------------------------------------------------------------------------

    def _begin(self, reply: HandshakeReply, now_ms: int, steps: Steps) -> None:
        """Make the log a prefix of the master's, then ask for the rest."""
        if reply.epoch < self.epoch:
            steps.append(Send((encode_newer_epoch(self.epoch),)))
            self._close(f"the master is of epoch {reply.epoch}, the set in epoch {self.epoch}", steps)
            return
        self.epoch = reply.epoch
        end = self._log.max_offset
        # A crash may have left epochs whose bytes it took; they say nothing about this log any more.
        local = tuple(entry for entry in self._epochs.entries if entry[1] < end)
        if end > self._log.min_offset:
            point = common_point(local, end, reply.epochs, reply.max_offset)
            if point is None and self._is_unconfirmed(reply):
                point = self._log.min_offset
            if point is None:
                self._close(
                    "this log shares no epoch with the master's "
                    f"({_shown(local)} here, {_shown(reply.epochs)} there); empty the store to begin anew",
                    steps,
                    self._options.retry_interval_ms,
                )
                return
            # The log first: epochs without bytes are harmless, bytes of a forgotten epoch would pass for another's.
            if point < end:
                self._log.truncate(point)
            self._epochs.truncate(point)
        elif self._epochs.entries:
            self._epochs.truncate(0)  # nothing of theirs is left
        steps.append(Following(self.epoch))
        self._report(now_ms, steps)

    def _is_unconfirmed(self, reply: HandshakeReply) -> bool:
        """Whether no byte of this log was ever confirmed, and the master's log begins where this one does.

        So it is with the first master of a set that stopped before any replica had a byte of it: the set has no epoch
        in common with it, and nothing in this log was acknowledged as replicated.
        """
        begin = self._log.min_offset
        return self._log.confirmed_offset <= begin and bool(reply.epochs) and reply.epochs[0][1] == begin

    # -- following -------------------------------------------------------------------------------------------

    def _take(self, frame: EpochTransfer) -> None:
        self._check_position(frame.position)
        if frame.body:
            self._enter_epoch(frame)
            self._append(frame.position, frame.body)
        confirm = min(frame.confirm_offset, self._log.max_offset)
        if confirm > self.confirm_offset:
            self.confirm_offset = confirm
            self._log.bound(confirm)

    def _enter_epoch(self, frame: EpochTransfer) -> None:
        entries = self._epochs.entries
        last = entries[-1] if entries else None
        if last == (frame.epoch, frame.epoch_start):
            return
        if frame.epoch > self.epoch:
            raise FrameError(f"bytes of epoch {frame.epoch} from a master of epoch {self.epoch}")
        if last is not None:
            if frame.epoch <= last[0]:
                raise FrameError(f"bytes of epoch {frame.epoch} behind those of epoch {last[0]}")
            if frame.position != frame.epoch_start:
                raise FrameError(
                    f"epoch {frame.epoch} begins at {frame.epoch_start}, its bytes at {frame.position}"
                )
        self._epochs.append(frame.epoch, frame.epoch_start)

    def _tables_done(self, sequence: int, now_ms: int, steps: Steps) -> None:
        self._tables_applied = sequence
        self._said_ms = now_ms
        steps.append(Send((encode_tables_applied(sequence),)))


def _shown(epochs: tuple[tuple[int, int], ...]) -> str:
    shown = ", ".join(f"{epoch}-{start}" for epoch, start in epochs[-3:])
    return f"...{shown}" if len(epochs) > 3 else shown or "none"
