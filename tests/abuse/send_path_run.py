"""Runs mutated sends through the scanner, the record builder and the answers of `SendPath`, and prints what came out.

    python -m tests.abuse.send_path_run SEED CHUNKS

One line for each chunk of frames and one for the log at the end. The hot modules are in whichever form they were
loaded (PENSTOCK_PURE=1 for plain Python), and the lines are the same for each: that is what the test compares, and
what a build with checks (`make fuzz`) has to survive.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
from pathlib import Path

from penstock import _hot
from penstock._hot.frames import TopicQueues
from penstock._hot.sends import SendPath
from penstock.errors import FrameError
from penstock.message import HostAddress, Message
from penstock.protocol.command import decode_frame, frame_size
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.testing import ManualClock
from penstock.testing.scratch_disk import scratch_parent
from tests.abuse.mutation import Mutator
from tests.support.request_corpus import BROKER_REQUESTS, TOPIC
from tests.support.send_frames import BINARY, HEAD, SUFFIX
from tests.support.store_checks import small_options

SENDS = tuple(request for request in BROKER_REQUESTS if request.code in (10, 310, 320))
BODY_MAX = 1 << 16
PEER = HostAddress("10.0.0.9", 4321).encode()
PREFIX = HostAddress("127.0.0.1", 10911).encode().hex().upper().encode()


class Bench:
    """A store, and a path that knows two topics of it."""

    def __init__(self, folder: Path) -> None:
        options = small_options(
            segment_size_bytes=1 << 20, max_message_size_bytes=BODY_MAX, flush_mode=FlushMode.ASYNC
        )
        clock = ManualClock()
        self.store = MessageStore.open(folder, options, runtime=Runtime(clock=clock), background=False)
        self.path = SendPath(SUFFIX, HEAD, BINARY, 1 << 24, 1 << 16, 100)
        for name in (TOPIC, "hostile-0"):
            self.store.append(Message(name, b"first"))
            queues = [self.store.request(Message(name, b""), queue_id).queue for queue_id in range(4)]
            self.path.put_topic(TopicQueues(name.encode(), queues))

    def run(self, data: bytes) -> str:
        """What becomes of a chunk: where the scan stopped, how many frames were stored, what is answered."""
        path, start, is_rolled, told = self.path, 0, False, []
        while start < len(data):
            stopped = path.scan(data, start)
            count = path.count
            self.store.append_run(lambda builder: path.build(builder, PEER))
            for number in range(path.built):  # what it takes, the general decoder takes
                at = path.frame_at(number)
                decode_frame(data, at, at + frame_size(data, at))
            if path.built < count:
                stopped = path.frame_at(path.built)
            answers = bytes(path.answers(PREFIX))
            told.append(f"{start}-{stopped} {count} {path.built} {_digest(answers)} {path.take_counts()}")
            if path.built < count and not is_rolled:  # as the ordinary path does where a segment is full
                start, is_rolled = stopped, True
                self.store.append(Message(TOPIC, bytes(BODY_MAX)))
            else:
                start = _behind(data, stopped)
        return "; ".join(told)


def _behind(data: bytes, at: int) -> int:
    """Where the next frame is, behind one that is for the ordinary path."""
    try:
        return at + frame_size(data, at) if len(data) - at >= 8 else len(data)
    except FrameError:
        return len(data)


def chunks(seed: int, count: int) -> list[bytes]:
    """Frames as a socket may bring them: several in one chunk, the last one often cut."""
    mutator, luck = Mutator(SENDS, seed), random.Random(seed)
    made, number = [], 0
    for _ in range(count):
        size = luck.choice((1, 1, 2, 5))
        data = b"".join(mutator.frame(number + n) for n in range(size))
        number += size
        if luck.random() < 0.2:
            data = data[: luck.randrange(len(data) + 1)]
        made.append(data)
    return made


def log_of(store: MessageStore) -> bytes:
    return b"".join(
        bytes(store.log.slice(at, min(1 << 16, store.log.max_offset - at)) or b"")
        for at in range(0, store.log.max_offset, 1 << 16)
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16] if data else "-"


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    print(f"form {_hot.form()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as folder:
        bench = Bench(Path(folder))
        for number, data in enumerate(chunks(seed, count)):
            print(number, len(data), bench.run(data))
        print("log", bench.store.log.max_offset, _digest(log_of(bench.store)))
        bench.store.close()


if __name__ == "__main__":
    main()
