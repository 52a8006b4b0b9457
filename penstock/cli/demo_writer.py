"""The writer of the demonstration, a process of its own that is going to be killed.

    python -m penstock.cli.demo_writer DIR

Appends groups under synchronous flush until it dies. After a group is flushed, and only then, it says so on
standard output: the number of the group's first message and the queue offset of each, in one line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.cli.demo_workload import GROUP, OPTIONS, message_of, queue_of
from penstock.store import Durability, MessageStore


def write(directory: Path) -> None:
    """Write until killed."""
    store = MessageStore.open(directory, OPTIONS)
    number = 0
    while True:
        requests = [store.request(message_of(n), queue_of(n)) for n in range(number, number + GROUP)]
        reached, _ = store.append_group(requests)
        if reached < Durability.FLUSHED:
            raise SystemExit("a group was not flushed; nothing may be acknowledged")
        offsets = ",".join(str(request.queue_offset) for request in requests)
        os.write(1, f"{number} {offsets}\n".encode())
        number += GROUP


if __name__ == "__main__":
    write(Path(sys.argv[1]))
