"""The hand-worked bytes of docs/formats/timers.md: put together here from the rules alone, and by the product."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from penstock.message.hashing import java_string_hash
from penstock.runtime import Runtime
from penstock.store.layout import StorePaths
from penstock.store.timer_checkpoint import SIZE, TimerCheckpoint, TimerCheckpointFile
from penstock.store.timer_log import TimerRecord
from penstock.store.timer_store import TimerStore
from penstock.store.timer_wheel import Slot
from tests.compat.test_golden_bytes import GOLDEN, hash_of

SECOND = 1_700_000_005
WRITE = 1_700_000_000_000


def store(path: Path) -> TimerStore:
    found = TimerStore(Runtime.system().disk, StorePaths(path), 4_096)
    found.open()
    return found


def test_the_page_by_the_rules() -> None:
    record = struct.pack(">iqiqiqiiq", 52, -1, 1, WRITE, 5_000, 123, 200, _signed(hash_of("orders")), 0)
    assert GOLDEN["timer-log-record"] == record
    assert GOLDEN["timer-log-blank"] == struct.pack(">iqI", 16, 0, 0xCBD43194)
    assert GOLDEN["timer-slot"] == struct.pack(">qqqii", SECOND, 0, 52, 2, 0)
    values = struct.pack(">7q", WRITE, 104, 2, 2, 0, WRITE + 1_000, 1)
    exact = struct.pack(">q", WRITE + 250)
    seal = b"PENT" + exact + struct.pack(">I", zlib.crc32(values + exact))
    assert GOLDEN["timer-checkpoint"] == values + bytes(8) + seal


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def test_the_files_that_are_written(tmp_path: Path) -> None:
    timers = store(tmp_path)
    timers.begin()
    for number in range(2):
        position = 123 + number * 200
        timers.put(SECOND * 1_000, 1, WRITE, position, 200, java_string_hash("orders"), 0)
    timers.commit(2)
    timers.begin_save(WRITE + 250, 2, WRITE + 1_000)
    timers.save()
    timers.end_save()
    timers.close()
    wheel = (tmp_path / "timerwheel").read_bytes()
    assert len(wheel) == 38_707_200
    assert wheel[16_384_160 : 16_384_160 + 32] == GOLDEN["timer-slot"]
    assert wheel.count(0) >= len(wheel) - 32
    log = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert (len(log), log[:52]) == (4_096, GOLDEN["timer-log-record"])
    assert struct.unpack(">iq", log[52:64]) == (52, 0)
    check = (tmp_path / "config" / "timercheck").read_bytes()
    assert (len(check), check[:80]) == (SIZE, GOLDEN["timer-checkpoint"])
    again = store(tmp_path)
    assert (again.queue_offset, again.log.end) == (2, 104)
    assert again.wheel.slot(SECOND * 1_000 + 999) == Slot(SECOND * 1_000, 0, 52, 2)
    assert again.wheel.slot((SECOND + 1_209_600) * 1_000) is None
    again.close()


def test_a_full_file_ends_with_a_blank(tmp_path: Path) -> None:
    timers = store(tmp_path)
    for number in range(100):
        timers.begin()
        timers.put((SECOND + number) * 1_000, 1, WRITE, number, 1, 0, 0)
        timers.commit(number + 1)
    whole = 4_096 // 52 - (4_096 % 52 < 16)
    log = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    left, zero, magic = struct.unpack(">iqI", log[whole * 52 : whole * 52 + 16])
    assert (left, zero, magic) == (4_096 - whole * 52, 0, 0xCBD43194)
    found = [(at, record.position) for at, record in timers.log.scan(0)]
    assert [position for _, position in found] == list(range(100))
    assert found[whole][0] == 4_096
    timers.close()
    again = store(tmp_path)  # without a checkpoint: slots follow the log
    assert again.log.end == found[-1][0] + 52
    slot = again.wheel.slot((SECOND + 99) * 1_000)
    assert slot is not None
    assert slot.last == found[-1][0]
    again.close()


def test_a_checkpoint_that_a_java_broker_has_written_over(tmp_path: Path) -> None:
    file = TimerCheckpointFile(Runtime.system().disk, tmp_path / "timercheck")
    file.save(TimerCheckpoint(WRITE + 250, 104, 2, 2, 0, WRITE, 1))
    found = file.load()
    assert found is not None
    assert found.read_ms == WRITE + 250
    with (tmp_path / "timercheck").open("r+b") as opened:
        opened.write(struct.pack(">7q", WRITE + 7_000, 208, 4, 4, 0, WRITE, 2))
    assert file.load() == TimerCheckpoint(WRITE + 7_000, 208, 4, 4, 0, WRITE, 2)
    with (tmp_path / "timercheck").open("r+b") as opened:
        opened.write(struct.pack(">q", -1))
    assert file.load() is None


def test_a_record_that_was_torn_ends_the_log(tmp_path: Path) -> None:
    timers = store(tmp_path)
    timers.begin()
    for number in range(3):
        timers.put(SECOND * 1_000, 1, WRITE, number, 1, 0, 0)
    timers.commit(3)
    timers.close()
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as log:
        log.seek(52 * 2 + 3)
        log.write(bytes(20))
    again = store(tmp_path)
    assert again.log.end == 104
    slot = again.wheel.slot(SECOND * 1_000)
    assert slot is not None
    assert slot.last == 52
    again.begin()
    at = again.put(SECOND * 1_000, 1, WRITE, 9, 1, 0, 0)
    again.commit(3)
    assert at == 104
    assert TimerRecord(52, 1, WRITE, SECOND * 1_000, 9, 1, 0) == again.log.read(104)
    again.close()
