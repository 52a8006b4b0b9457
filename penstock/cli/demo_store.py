"""Chapters of the demonstration: a store written, killed, torn, recovered, proven and looked into.

The writer is another process that dies by SIGKILL, the files are files, and what counts is what was acknowledged.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.demo_telling import Telling

if TYPE_CHECKING:
    from penstock.store import MessageStore

WRITE_LIMIT_S = 5.0
SILENCE_LIMIT_S = 15.0


@dataclass(slots=True)
class Acknowledged:
    """What the writer promised: for each message number its queue offset."""

    offsets: dict[int, int] = field(default_factory=dict)
    groups: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Survival:
    """What was acknowledged, and what was found of it."""

    acknowledged: int = 0
    by_offset: int = 0
    by_key: int = 0
    is_sound: bool = False
    recovered: str = ""

    @property
    def is_whole(self) -> bool:
        return 0 < self.acknowledged == self.by_offset == self.by_key and self.is_sound

    def line(self) -> str:
        if not self.acknowledged:
            return "The writer was killed before its first acknowledgement."
        missing = self.acknowledged - min(self.by_offset, self.by_key)
        return (
            f"{self.acknowledged:,} acknowledged, {self.by_offset:,} found by offset, {self.by_key:,} by key, "
            f"{missing:,} missing; recovery {self.recovered}"
        )


class StoreChapters:
    """The steps, in order; each says what it shows."""

    def __init__(self, directory: Path, wanted: int, telling: Telling) -> None:
        self._directory, self._wanted, self._telling = directory, wanted, telling
        self._title, self._say = telling.title, telling.say

    def run(self) -> Survival:
        acknowledged = self._write_and_kill()
        if not acknowledged.offsets:
            return Survival()
        self._tear()
        found, by_key, recovered = self._recover(acknowledged)
        return Survival(len(acknowledged.offsets), found, by_key, self._verify(), recovered)

    # -- writing and dying -----------------------------------------------------------------------------------

    def _write_and_kill(self) -> Acknowledged:
        from penstock.cli import demo_workload as workload
        from penstock.cli.console import rate_text

        self._title("Write under synchronous flush in another process, and kill it with SIGKILL")
        self._say(f"in {self._directory}")
        acknowledged = Acknowledged()
        arguments = [sys.executable, "-m", "penstock.cli.demo_writer", str(self._directory)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as writer:
            try:
                self.collect(writer, acknowledged)
            finally:
                writer.kill()
        count = len(acknowledged.offsets)
        queues = len(workload.TOPICS) * workload.QUEUES_PER_TOPIC
        rate = rate_text(count * workload.BODY_SIZE, int(acknowledged.seconds * 1000))
        self._say(
            f"{count:,} messages of 1 KiB acknowledged, {acknowledged.groups:,} groups of {workload.GROUP}, "
            f"{queues} queues of {len(workload.TOPICS)} topics, every message with tag and key"
        )
        per_second = int(count / max(acknowledged.seconds, 0.001))
        self._say(f"{per_second:,} messages/s, {rate}, each group on disk before its acknowledgement")
        if writer.returncode == -signal.SIGKILL:
            self._say("the writer ended by signal SIGKILL")
        else:
            self._say(f"the writer ended by itself with {writer.returncode}")
        return acknowledged

    def collect(self, writer: subprocess.Popen[bytes], acknowledged: Acknowledged) -> None:
        """Read acknowledgements until there are enough, then kill the writer in whatever it is doing."""
        stream = writer.stdout
        if stream is None:
            return
        first = 0.0
        watchdog = threading.Timer(SILENCE_LIMIT_S, writer.kill)  # for a disk that does not answer at all
        watchdog.start()
        try:
            for line in stream:
                first = first or time.perf_counter()
                self.take(line, acknowledged)
                if len(acknowledged.offsets) >= self._wanted or time.perf_counter() - first > WRITE_LIMIT_S:
                    break
            time.sleep(random.uniform(0, 0.02))  # at some moment, not right after an acknowledgement
            writer.kill()
            for line in stream:  # what it had said before it died counts as well
                self.take(line, acknowledged)
        finally:
            watchdog.cancel()
            watchdog.join()
        acknowledged.seconds = time.perf_counter() - first

    @staticmethod
    def take(line: bytes, acknowledged: Acknowledged) -> None:
        if not line.endswith(b"\n"):
            return  # died in the middle of the line: not acknowledged
        number, _, offsets = line.decode("ascii").partition(" ")
        for i, offset in enumerate(offsets.split(",")):
            acknowledged.offsets[int(number) + i] = int(offset)
        acknowledged.groups += 1

    def _tear(self) -> None:
        """Leave half a record behind the last one, as a write that the crash cut in two would."""
        from penstock.cli.demo_workload import OPTIONS
        from penstock.message import HostAddress, Message, StoredMessage, encode_record
        from penstock.runtime import Runtime
        from penstock.store.inspection.view import StoreView
        from penstock.store.sizes import GivenSizes

        self._title("Tear the end of the log: half a record, as from a write cut in two")
        with StoreView(self._directory, GivenSizes(OPTIONS.segment_size_bytes), Runtime.system()) as view:
            end = view.end.position
            path, at = view.segment_path(end)
        host, body = HostAddress("127.0.0.1", 10911), b"never acknowledged " * 50
        message = Message.of("orders", body, keys="torn")
        now = time.time_ns() // 1_000_000
        record = encode_record(
            StoredMessage(
                topic=message.topic,
                body=body,
                properties=message.properties,
                queue_id=0,
                queue_offset=0,
                physical_offset=end,
                size=0,
                body_crc=0,
                flag=0,
                sys_flag=0,
                born_timestamp=now,
                born_host=host,
                store_timestamp=now,
                store_host=host,
                reconsume_times=0,
                prepared_transaction_offset=0,
            )
        )
        half = record[: len(record) // 2][: max(OPTIONS.segment_size_bytes - at, 0)]
        if path:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(half)
        self._say(f"{len(half):,} of {len(record):,} bytes written at log position {end:,}")

    # -- recovering ------------------------------------------------------------------------------------------

    def _recover(self, acknowledged: Acknowledged) -> tuple[int, int, str]:
        """Open the store again and look for every acknowledged message, by offset and by key."""
        from penstock.cli.console import progress_bar, rate_text, size_text
        from penstock.cli.demo_workload import OPTIONS
        from penstock.store import MessageStore

        self._title("Open it again: the log is read, the torn end cut, queues and index rebuilt")
        started = time.perf_counter()
        with progress_bar("Recovering") as update:
            store = MessageStore.open(self._directory, OPTIONS, progress=update)
        seconds = max(time.perf_counter() - started, 0.001)
        with store:
            report = store.report
            rate = rate_text(report.bytes_read, int(seconds * 1000))
            recovered = f"{int(report.records / seconds):,} records/s, {rate}"
            self._say(
                f"{report.records:,} records, {size_text(report.bytes_read)} in {seconds:.3f} s: {recovered}"
            )
            self._say(
                f"end of the log {report.end:,}, {report.bytes_dropped:,} bytes cleared behind it, "
                f"damaged places {len(report.damage)}"
            )
            self._title("Look for every acknowledged message")
            started = time.perf_counter()
            found, unacknowledged = self.by_offset(store, acknowledged)
            self._say(f"by queue offset: {found:,} of {len(acknowledged.offsets):,}, body, tag and key equal")
            self._say(
                f"and {unacknowledged:,} whole ones that were written but not acknowledged when it died"
            )
            by_key = self._by_key(store, acknowledged)
            self._say(f"by key: {by_key:,} of {len(acknowledged.offsets):,}")
            self._say(f"{found + by_key:,} proofs in {time.perf_counter() - started:.2f} s")
        return found, by_key, recovered

    @staticmethod
    def by_offset(store: MessageStore, acknowledged: Acknowledged) -> tuple[int, int]:
        """Read every queue from its beginning: (acknowledged messages found, others)."""
        from penstock.cli.demo_workload import (
            QUEUES_PER_TOPIC,
            TOPICS,
            key_of,
            message_of,
            queue_of,
            topic_of,
        )

        places = {(topic_of(n), queue_of(n), offset): n for n, offset in acknowledged.offsets.items()}
        found = others = 0
        for topic in TOPICS:
            for queue_id in range(QUEUES_PER_TOPIC):
                offset = store.min_offset(topic, queue_id)
                while messages := store.read(topic, queue_id, offset, 512):
                    for message in messages:
                        number = places.get((topic, queue_id, message.queue_offset))
                        if number is None:
                            others += 1
                            continue
                        wanted = message_of(number)
                        same = message.body == wanted.body and message.properties == wanted.properties
                        found += same and message.keys == [key_of(number)]
                    offset = messages[-1].queue_offset + 1
        return found, others

    @staticmethod
    def _by_key(store: MessageStore, acknowledged: Acknowledged) -> int:
        from penstock.cli.demo_workload import key_of, topic_of

        found = 0
        for number, offset in acknowledged.offsets.items():
            messages = store.reader.query(topic_of(number), key_of(number))
            found += len(messages) == 1 and messages[0].queue_offset == offset
        return found

    # -- looking into it -------------------------------------------------------------------------------------

    def _verify(self) -> bool:
        from penstock.cli import console, render
        from penstock.store import inspection

        self._title("Verify it: every record, queue entry and index entry, read-only")
        self._telling.command(f"penstock store verify {self._directory}")
        with console.progress_bar("Verifying") as update:
            report = inspection.verify(self._directory, progress=update)
        render.show_verify(self._telling.console, report)
        return report.sound
