"""A writer to be killed: appends numbered messages for ever and tells on standard output what was acknowledged.

    python -m tests.interop.killed_writer DIRECTORY sync|async

Each line is `number queue-offset position size store-time`, written with one system call after the append
returned; the reader counts complete lines only. Messages come singly, in groups and in batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from penstock.message import HostAddress
from penstock.store import FlushMode, MessageStore
from tests.interop.java_messages import BatchSpec, MessageSpec
from tests.interop.penstock_side import OPTIONS, encoded_batch, message_of

QUEUES = 3
GROUP_SIZE = 8
BATCH_SIZE = 5
# Half of them span pages, and a few hundred fill several segments.
BODY_SIZES = (0, 10, 700, 3_000, 9_000, 20_000)


def numbered(number: int, queue_id: int) -> MessageSpec:
    """The message with a number; its content follows from the number alone."""
    body = (b"%d," % number) * BODY_SIZES[number % len(BODY_SIZES)]
    return MessageSpec(
        "killed",
        queue_id,
        body[: BODY_SIZES[number % len(BODY_SIZES)]],
        {"KEYS": f"n{number}", "TAGS": "TagA"},
    )


def _acknowledge(lines: Iterator[str]) -> None:
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def _append_single(store: MessageStore, number: int) -> int:
    spec = numbered(number, number % QUEUES)
    result = store.append(
        message_of(spec),
        spec.queue_id,
        born_timestamp=spec.born_timestamp_ms,
        born_host=HostAddress.parse(spec.born_host),
    )
    line = f"{number} {result.queue_offset} {result.physical_offset} {result.size} {result.store_timestamp}"
    _acknowledge(iter([line]))
    return 1


def _append_group(store: MessageStore, number: int) -> int:
    requests = []
    for n in range(number, number + GROUP_SIZE):
        spec = numbered(n, n % QUEUES)
        requests.append(
            store.request(
                message_of(spec),
                spec.queue_id,
                born_timestamp=spec.born_timestamp_ms,
                born_host=HostAddress.parse(spec.born_host),
            )
        )
    store.append_group(requests)
    _acknowledge(
        f"{number + i} {done.queue_offset} {done.physical_offset} {done.size} {done.store_timestamp}"
        for i, done in enumerate(requests)
    )
    return GROUP_SIZE


def _append_batch(store: MessageStore, number: int) -> int:
    batch = BatchSpec(tuple(numbered(number + i, number % QUEUES) for i in range(BATCH_SIZE)))
    first = batch.messages[0]
    result = store.append_batch(
        first.topic,
        first.queue_id,
        encoded_batch(batch),
        born_timestamp=first.born_timestamp_ms,
        born_host=HostAddress.parse(first.born_host),
    )
    starts = [int(message_id[-16:], 16) for message_id in result.message_ids]
    ends = [*starts[1:], result.physical_offset + result.size]
    _acknowledge(
        f"{number + i} {result.first_queue_offset + i} {start} {end - start} {result.store_timestamp}"
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    return BATCH_SIZE


def main(directory: Path, flush_mode: FlushMode) -> None:
    options = replace(OPTIONS, flush_mode=flush_mode)
    number = 0
    with MessageStore.open(directory, options) as store:
        for turn in count():
            number += (_append_single, _append_group, _append_batch)[turn % 3](store, number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), FlushMode(sys.argv[2]))
