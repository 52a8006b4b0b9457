"""Two sides of `MessageStore` that only hand on: what readers call and ask, and what replication calls.

They are the store's interface and hold nothing: the work is in `reading.py`, `replica.py` and `truncation.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from penstock.errors import StoreFailedError
from penstock.message import StoredMessage
from penstock.store.commit_log import CommitLog
from penstock.store.dispatching import LogDispatch
from penstock.store.filtering import RecordFilter
from penstock.store.flush import LogFlusher
from penstock.store.gate import WriteGate
from penstock.store.queue_table import QueueTable
from penstock.store.reading import GetResult, StoreReader, tag_codes
from penstock.store.replica import ReplicaSide
from penstock.store.truncation import Truncation
from penstock.telemetry import Meters


class ReadDoors:
    """What readers call, and how the store is."""

    gate: WriteGate
    reader: StoreReader
    queues: QueueTable
    meters: Meters

    def fail(self, message: str) -> StoreFailedError:
        """Stop accepting for good: the error that every append gets from now on."""
        return self.gate.fail(message)

    @property
    def has_failed(self) -> bool:
        """Whether only a restart can help."""
        return self.gate.has_failed

    @property
    def is_writable(self) -> bool:
        """Whether an append would be accepted now."""
        return self.gate.is_writable

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 256 << 10,
        tags: Iterable[str | int] | None = None,
        wanted: RecordFilter | None = None,
    ) -> GetResult:
        """Records from a queue offset on as one run of bytes; see `StoreReader.get`. `tags`: names or codes;
        `wanted` looks at the properties of each."""
        self.gate.check_open()
        result = self.reader.get(topic, queue_id, offset, max_count, max_bytes, tag_codes(tags), wanted)
        self.meters.add("gets")
        self.meters.add("get_messages", result.count)
        return result

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: Iterable[str | int] | None = None,
    ) -> list[StoredMessage]:
        """The same, decoded."""
        return self.get(topic, queue_id, offset, max_count, 64 << 20, tags).messages()

    def message_at(self, position: int) -> StoredMessage | None:
        """The message at a log position."""
        self.gate.check_open()
        return self.reader.message_at(position)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Oldest readable offset of a queue, 0 if there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the newest visible offset of a queue, 0 if there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.max_offset if queue else 0

    def end_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of a queue gets, whether those before it can be seen or not."""
        queue = self.queues.get(topic, queue_id)
        return queue.state.next_offset if queue else 0


class ReplicaDoors:
    """What replication calls."""

    gate: WriteGate
    log: CommitLog
    flusher: LogFlusher
    dispatch: LogDispatch
    queues: QueueTable
    replica_side: ReplicaSide
    _lock: threading.RLock
    _truncation: Truncation

    @property
    def is_replica(self) -> bool:
        """Whether it takes a master's bytes, and no messages."""
        return self.gate.is_replica

    def replica_mode(self, is_replica: bool) -> None:
        """Refuse messages and take a master's bytes, or the other way round; the log must end with a whole record."""
        self.replica_side.set_mode(is_replica)

    def append_replica(self, data: bytes | memoryview, position: int) -> int:
        """Append bytes of a master's log, cut anywhere but across segments, at the log's end; how far it reaches now.

        An empty log begins at `position`, which then has to be a segment's beginning. Raises LogPositionError where
        the bytes do not continue the log, and what an append raises.
        """
        return self.replica_side.append(data, position)

    def slice_for_transfer(self, position: int, max_bytes: int) -> memoryview | None:
        """Bytes of the log from `position` on, written, maybe not flushed, without a copy; None if there are none."""
        return self.replica_side.slice(position, max_bytes)

    def bound(self, position: int | None) -> int | None:
        """Show nothing that ends behind `position`, whatever is written and flushed; None shows all of that again."""
        return self.replica_side.bound(position)

    def hold_unseen(self) -> None:
        """Let nobody see more than can be seen now, until `release`; for one that becomes a master, and may have to
        finish what the one before had begun. A hold that there is already stays as it is."""
        self.replica_side.hold_unseen()

    @property
    def held_at(self) -> int:
        """From where on a hold keeps the log back; far behind its end where nothing does."""
        return self.dispatch.held_at

    def positions_ahead(self, topic: str, queue_id: int) -> list[int]:
        """Log positions of a queue's records that are there and not visible yet, oldest first."""
        return self.replica_side.positions_ahead(topic, queue_id)

    def truncate(self, position: int) -> None:
        """Cut a replica's log at a record's beginning, durably, with queues and index; see `store/truncation.py`.

        Raises LogPositionError, and nothing is changed, where no record begins. Takes as long as a few syncs.
        """
        self._truncation.run(position)

    def cut_tail(self) -> int:
        """Drop a record that has arrived in part only, durably: what a replica does before it becomes a master; where
        the log ends now."""
        return self._truncation.run(None) if self.gate.is_replica else self.log.max_offset

    def start_over(self, position: int) -> None:
        """Forget what queues and index remember of a log that is lost; a new one begins here."""
        self._truncation.start_over(position)

    @property
    def certain_offset(self) -> int:
        """How far the log is on disk in whole records: what the checkpoint may promise."""
        flushed = self.flusher.flushed_offset
        return min(flushed, self.dispatch.offset) if self.gate.is_replica else flushed

    def follow_deletions(self, deleted: Mapping[str, int]) -> None:
        """What a replica does when its master has deleted topics; see `QueueTable.follow_deletions`."""
        with self._lock:
            self.gate.check_replica()
            self.queues.follow_deletions(deleted)
