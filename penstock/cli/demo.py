"""`penstock demo`: messages through a broker; then a store written, killed, torn, recovered, proven and looked into.

Everything is real: client and broker talk over sockets, the writer is another process that dies by SIGKILL, the
files are files, and what counts is what was acknowledged. Ends with 1 if a single acknowledged message is missing.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.cli.demo_node import Exchange
    from penstock.store import MessageStore

MESSAGES_MAX = 1_000_000
EXCHANGED_MAX = 50_000
WRITE_LIMIT_S = 8.0
SILENCE_LIMIT_S = 15.0
SHOWN = 5


@dataclass(slots=True)
class Acknowledged:
    """What the writer promised: for each message number its queue offset."""

    offsets: dict[int, int] = field(default_factory=dict)
    groups: int = 0
    seconds: float = 0.0


@click.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the store in this new directory; else it is made in a temporary one and deleted.",
)
@click.option(
    "--messages",
    type=NumberType(1, MESSAGES_MAX),
    default=20_000,
    help="Send so many through the broker, and kill the writer once so many are acknowledged (20000).",
)
def demo(directory: Path | None, messages: int) -> int:
    """Send and receive, crash, recover, verify and dump, with figures."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
            return _Demo(Path(temporary) / "store", messages).run()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise click.UsageError(f"{directory} is not empty; name a new directory", click.get_current_context())
    return _Demo(directory, messages).run()


class _Demo:
    """The steps, in order; each says what it shows."""

    def __init__(self, directory: Path, wanted: int) -> None:
        from penstock.cli import console

        self._directory = directory
        self._wanted = wanted
        self._console: Console = console.output()
        self._step = 0

    def run(self) -> int:
        from penstock import __version__, _hot

        started = time.perf_counter()
        self._console.print(f"Penstock {__version__}, hot modules {_hot.form()}", style="bold")
        exchanged = self._exchange()
        acknowledged = self._write_and_kill()
        if not acknowledged.offsets:
            self._console.print("The writer was killed before its first acknowledgement.", style="bold red")
            return 1
        self._tear()
        found, by_key, recovered = self._recover(acknowledged)
        sound = self._look_into()
        total = len(acknowledged.offsets)
        whole = found == total and by_key == total and sound and exchanged.is_whole
        verdict = (
            f"{total:,} acknowledged, {found:,} found by offset, {by_key:,} by key, {total - min(found, by_key):,} "
            f"missing; recovery {recovered}; {time.perf_counter() - started:.1f} s in all"
        )
        self._console.print()
        style = "bold green" if whole else "bold red"
        self._console.print(
            f"through the broker {exchanged.sent:,} sent, {exchanged.received:,} received", style=style
        )
        self._console.print(verdict, style=style)
        return 0 if whole else 1

    def _title(self, text: str) -> None:
        self._step += 1
        self._console.print()
        self._console.print(f"{self._step}. {text}", style="bold cyan")

    def _say(self, text: str) -> None:
        from rich.padding import Padding

        from penstock.cli.escaping import one_line

        self._console.print(Padding(one_line(text), (0, 0, 0, 3)))

    # -- through a broker ------------------------------------------------------------------------------------

    def _exchange(self) -> Exchange:
        from penstock.cli.demo_node import exchange

        return exchange(min(self._wanted, EXCHANGED_MAX), self._title, self._say)

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
                self._collect(writer, acknowledged)
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

    def _collect(self, writer: subprocess.Popen[bytes], acknowledged: Acknowledged) -> None:
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
                self._take(line, acknowledged)
                if len(acknowledged.offsets) >= self._wanted or time.perf_counter() - first > WRITE_LIMIT_S:
                    break
            time.sleep(random.uniform(0, 0.02))  # at some moment, not right after an acknowledgement
            writer.kill()
            for line in stream:  # what it had said before it died counts as well
                self._take(line, acknowledged)
        finally:
            watchdog.cancel()
            watchdog.join()
        acknowledged.seconds = time.perf_counter() - first

    @staticmethod
    def _take(line: bytes, acknowledged: Acknowledged) -> None:
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
            found, unacknowledged = self._by_offset(store, acknowledged)
            self._say(f"by queue offset: {found:,} of {len(acknowledged.offsets):,}, body, tag and key equal")
            self._say(
                f"and {unacknowledged:,} whole ones that were written but not acknowledged when it died"
            )
            by_key = self._by_key(store, acknowledged)
            self._say(f"by key: {by_key:,} of {len(acknowledged.offsets):,}")
            self._say(f"{found + by_key:,} proofs in {time.perf_counter() - started:.2f} s")
        return found, by_key, recovered

    @staticmethod
    def _by_offset(store: MessageStore, acknowledged: Acknowledged) -> tuple[int, int]:
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

    def _look_into(self) -> bool:
        from penstock.cli import console, messages, render
        from penstock.cli.demo_workload import TOPICS
        from penstock.store import inspection

        self._title("penstock store verify: every record, queue entry and index entry, read-only")
        with console.progress_bar("Verifying") as update:
            report = inspection.verify(self._directory, progress=update)
        render.show_verify(self._console, report)
        self._title(f"penstock store dump --topic {TOPICS[0]} --queue 0 --max {SHOWN}")
        with closing(inspection.dump_queues(self._directory, TOPICS[0], 0)) as rows:
            messages.show_messages(self._console, islice(rows, SHOWN))
        self._title("penstock store stats")
        render.show_stats(self._console, inspection.stats(self._directory), per_queue=False)
        return report.sound
