"""Small stores for the tests of inspection and of the command line, and ways to damage them."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions
from penstock.testing import ManualClock

SMALL = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=100,
    index_slots=500,
    index_entries=400,
    max_message_size_bytes=8192,
    scrub_bytes_per_second=0,
)
TOPICS = ("orders", "%RETRY%group-1", "SCHEDULE_TOPIC_XXXX")


def sample_message(number: int) -> Message:
    body = b"body %04d " % number * 20
    return Message.of(TOPICS[number % 3], body, tag=f"tag{number % 4}", keys=f"k{number} shared")


def write_store(path: Path, count: int = 400, *, clean: bool = True, seal: bool = False) -> Path:
    """`count` messages in three topics with two queues each; about 270 bytes a record, two keys."""
    runtime = Runtime(clock=ManualClock())
    store = MessageStore.open(path, replace(SMALL, seal_records=seal), runtime=runtime, background=False)
    for number in range(count):
        store.append(sample_message(number), number // 3 % 2)
    if clean:
        store.close()
    else:
        store.abandon()
    return path


def like_java(path: Path) -> Path:
    """Take away what only Penstock writes; a Java broker's directory has the rest."""
    (path / "penstock.manifest.json").unlink()
    checkpoint = path / "checkpoint"
    data = bytearray(checkpoint.read_bytes())
    data[32:56] = bytes(24)
    checkpoint.write_bytes(data)
    (path / "abort.bak").write_bytes(b"")
    return path


def log_file(path: Path, position: int = 0) -> Path:
    base = position - position % SMALL.segment_size_bytes
    return path / "commitlog" / f"{base:020d}"


def queue_file(path: Path, topic: str = "orders", queue: int = 0, offset: int = 0) -> Path:
    return path / "consumequeue" / topic / str(queue) / f"{offset // 100 * 2000:020d}"


def index_files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def record_positions(path: Path) -> list[int]:
    """Positions of all records, read by their sizes alone."""
    found = []
    for segment in sorted((path / "commitlog").iterdir()):
        base, data, at = int(segment.name), segment.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if size == 0 or magic == 0xCBD43194:
                break
            found.append(base + at)
            at += size
    return found


def body_at(path: Path, position: int) -> int:
    """Byte of a record's body in its segment file (IPv4 hosts)."""
    return position % SMALL.segment_size_bytes + 88


def topic_at(path: Path, position: int) -> int:
    """Byte of a record's topic in its segment file."""
    at = position % SMALL.segment_size_bytes
    (size,) = struct.unpack_from(">i", log_file(path, position).read_bytes(), at + 84)
    return at + 88 + size + 1


def tree_state(path: Path) -> dict[str, tuple[int, int, str]]:
    """Everything by which a change of a directory could be noticed: names, times, lengths, content."""
    state = {}
    for entry in sorted([path, *path.rglob("*")]):
        stat = entry.stat()
        digest = hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else "folder"
        state[str(entry.relative_to(path))] = (stat.st_mtime_ns, stat.st_size, digest)
    return state
