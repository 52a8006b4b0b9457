"""Wheel, timer log and checkpoint as one: where each waiting message is found again by the second it is due in.

    begin .. put .. commit    messages of the timer topic, in its order, to the log and then to the wheel
    record                    one of a slot's chain, which leads from the newest back
    begin_save, save, end_save    log synced, then the wheel, then the checkpoint that vouches for both
    open                      slots follow records that the last checkpoint did not know; damage raises
    reset                     everything forgotten: the owner fills it anew from the timer topic

Rule: these files are an index. The messages are in the commit log, and the timer topic's queue says which there
are; so whatever is wrong here costs time and never a message. No clock and no event loop; `save` may run in a
thread.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.runtime import Disk
from penstock.runtime.disk import File
from penstock.store.layout import StorePaths
from penstock.store.timer_checkpoint import TimerCheckpoint, TimerCheckpointFile
from penstock.store.timer_log import DELETE, RECORD_SIZE, ROLL, TimerLog, TimerRecord
from penstock.store.timer_wheel import NOWHERE, Slot, TimerFilesDamagedError, TimerWheel, slot_time

_TAIL_STEPS = 100_000


class TimerStore:
    """See the module's text. `open` first."""

    def __init__(self, disk: Disk, paths: StorePaths, file_size: int) -> None:
        self.wheel = TimerWheel(disk, paths.timer_wheel)
        self.log = TimerLog(disk, paths.timer_log, file_size)
        self._file = TimerCheckpointFile(disk, paths.timer_checkpoint)
        self.checkpoint = TimerCheckpoint()
        # Next of the timer topic's queue that is not in the log yet.
        self.queue_offset = 0
        # The oldest record that may still wait.
        self._tail = 0
        self._slots: dict[int, Slot] = {}
        self._saving: tuple[TimerCheckpoint, list[File]] | None = None

    # -- start -----------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Read what is there; False if there is no checkpoint. Raises TimerFilesDamagedError: then `reset`."""
        found = self._file.load()
        self.checkpoint = found or TimerCheckpoint()
        self.queue_offset = self.checkpoint.queue_offset
        has_wheel, has_log = self.wheel.load(), self.log.load()
        position = self.checkpoint.log_position
        if position and not (has_wheel and has_log):
            raise TimerFilesDamagedError("timer wheel or timer log is gone")
        self._recover(max(position, self.log.start))
        self._tail = self.log.start
        return found is not None

    def _recover(self, position: int) -> None:
        """Let slots follow what was logged after the checkpoint, and find where that ends."""
        end = position
        for at, record in self.log.scan(position):
            slot = self.wheel.slot(record.slot_ms)
            if slot is None or slot.last < at:
                first, count = (at, 0) if slot is None else (slot.first, slot.count)
                self.wheel.put(Slot(slot_time(record.slot_ms), first, at, count + _weight(record.bits)))
            end = at + RECORD_SIZE
        self.log.found_end(end)
        if self.checkpoint.log_position > end:
            raise TimerFilesDamagedError(f"the timer log ends at {end}, synced was {position}")

    def reset(self, queue_offset: int) -> None:
        """Begin with empty files; the progress that the checkpoint says stays."""
        self._saving = None
        self._slots.clear()
        self.wheel.remove()
        self.log.remove()
        self.queue_offset, self._tail = queue_offset, 0
        self.checkpoint = replace(self.checkpoint, log_position=0, queue_offset=queue_offset)

    # -- messages --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Messages follow that are put together."""
        self._slots.clear()
        self.log.drop_buffer()

    def put(
        self,
        slot_ms: int,
        bits: int,
        write_ms: int,
        position: int,
        size: int,
        topic_hash: int,
        free_before_ms: int,
    ) -> int:
        """Add a message to the chain of a slot; its place in the log. NOWHERE if a slot of two weeks ago has not been
        emptied: one before `free_before_ms` has."""
        slot_ms = slot_time(slot_ms)
        slot = self._slots.get(slot_ms)
        if slot is None:
            found = self.wheel.occupant(slot_ms)
            if found is not None and found.time_ms == slot_ms:
                slot = found
            elif found is not None and found.time_ms >= free_before_ms:
                return NOWHERE
        previous = NOWHERE if slot is None else slot.last
        record = TimerRecord(previous, bits, min(write_ms, slot_ms), slot_ms, position, size, topic_hash)
        at = self.log.append(record)
        first, count = (at, 0) if slot is None else (slot.first, slot.count)
        self._slots[slot_ms] = Slot(slot_ms, first, at, count + _weight(bits))
        return at

    def commit(self, queue_offset: int) -> None:
        """Write what was put; the queue is done up to an offset. Raises OSError, and then nothing has changed."""
        self.log.commit()
        for slot in self._slots.values():
            self.wheel.put(slot)
        self._slots.clear()
        self.queue_offset = queue_offset

    def record(self, position: int, slot_ms: int) -> TimerRecord:
        """A record of a slot's chain. Raises TimerFilesDamagedError if it is none of it."""
        record = self.log.read(position)
        if record is None or slot_time(record.slot_ms) != slot_ms:
            raise TimerFilesDamagedError(
                f"the chain of slot {slot_ms} leads to {position}, which is none of it"
            )
        return record

    def counts(self, from_ms: int) -> dict[int, int]:
        """How many records of slots from a time on there are, by the hash of their topic."""
        found: dict[int, int] = {}
        for _, record in self.log.scan(self.log.start, self.log.end):
            if record.slot_ms >= from_ms:
                found[record.topic_hash] = found.get(record.topic_hash, 0) + _weight(record.bits)
        return found

    def oldest_needed(self, done_ms: int) -> int | None:
        """Log position of the oldest message that may still wait, given up to when all were delivered; None if none
        waits. Timer log files that nobody needs are deleted."""
        needed = None
        for steps, (at, record) in enumerate(self.log.scan(self._tail, self.log.end)):
            self._tail = at
            if slot_time(record.slot_ms) >= slot_time(done_ms) or steps >= _TAIL_STEPS:
                needed = record.position
                break
        else:
            self._tail = self.log.end
        if self._saving is None:  # else they may be in use
            self.log.delete_before(min(self._tail, self.checkpoint.log_position))
        return needed

    # -- saving ----------------------------------------------------------------------------------------------

    def begin_save(self, read_ms: int, master_offset: int, now_ms: int, state_version: int = 0) -> None:
        """Capture what `save` writes."""
        before = self.checkpoint
        self.wheel.begin_write()
        unsynced = [] if self._saving is None else self._saving[1]
        checkpoint = TimerCheckpoint(
            read_ms,
            self.log.end,
            self.queue_offset,
            master_offset,
            max(state_version, before.state_version),
            now_ms,
            before.counter + 1,
        )
        self._saving = (checkpoint, [*unsynced, *self.log.begin_sync()])

    def save(self) -> None:
        """In any thread. Raises OSError; a failed sync leaves the old checkpoint, which is always safe."""
        if self._saving is not None:
            checkpoint, files = self._saving
            for file in files:
                file.sync()
            self.wheel.write()
            self._file.save(checkpoint)

    def end_save(self) -> None:
        """`save` has worked."""
        if self._saving is not None:
            self.checkpoint = self._saving[0]
            self._saving = None
            self.wheel.end_write()

    def close(self) -> None:
        self.wheel.close()
        self.log.close()


def _weight(bits: int) -> int:
    """What a record adds to the count of its slot: a recall takes one away."""
    return -1 if bits & DELETE and not bits & ROLL else 1
