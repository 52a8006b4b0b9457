"""The process that the crash tests kill: appends until it dies, and tells what was acknowledged.

    python -m tests.fault.crash_writer FOLDER SEED FIRST MODE KIB

Prints `ready`, then a line `TOPIC QUEUE OFFSET SERIAL` for every message, only after its append was answered. Opens
the folder by itself and after it was ready, so kills hit recovery too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from penstock.runtime import SeededEntropy
from penstock.store import FlushMode, MessageStore, StoreOptions
from tests.support.store_checks import batch_of, message_of, place_of, small_options


def options_of(mode: str, segment_kib: int = 16) -> StoreOptions:
    return small_options(
        segment_size_bytes=segment_kib * 1024,
        queue_file_entries=32,
        index_slots=64,
        index_entries=100,
        flush_mode=FlushMode(mode),
        flush_interval_ms=5,
        queue_flush_interval_ms=10,
        queue_thorough_interval_ms=25,
        scrub_bytes_per_second=1 << 20,
    )


def keep_busy(store: MessageStore) -> None:
    """Let the keeper work all the time instead of ten times a second."""
    while True:
        time.sleep(0.004)
        if store._thread is not None:
            store._thread.wake()


def tell(lines: list[str]) -> None:
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def append_some(store: MessageStore, entropy: SeededEntropy, serial: int) -> int:
    """One append of a random kind; the next serial number."""
    kind = entropy.below(4)
    if kind < 2:
        topic, queue = place_of(serial)
        result = store.append(message_of(serial), queue)
        tell([f"{topic} {queue} {result.queue_offset} {serial}"])
        return serial + 1
    if kind == 2:
        serials = range(serial, serial + 1 + entropy.below(12))
        requests = [store.request(message_of(s), place_of(s)[1]) for s in serials]
        store.append_group(requests)
        tell(
            [
                f"{place_of(s)[0]} {place_of(s)[1]} {request.queue_offset} {s}"
                for s, request in zip(serials, requests, strict=True)
            ]
        )
        return serials.stop
    topic, queue = place_of(serial)
    batch = range(serial, serial + 6 * (1 + entropy.below(4)), 6)  # every sixth serial goes to the same queue
    placed = store.append_batch(topic, queue, batch_of(batch))
    tell([f"{topic} {queue} {placed.first_queue_offset + i} {s}" for i, s in enumerate(batch)])
    return batch.stop


def main() -> None:
    logging.disable(logging.WARNING)  # repairs are expected here; damage and failures are not
    tell(["ready"])
    folder, seed, first, mode, segment_kib = sys.argv[1:]
    store = MessageStore.open(folder, options_of(mode, int(segment_kib)))
    threading.Thread(target=keep_busy, args=(store,), daemon=True).start()
    entropy, serial = SeededEntropy(int(seed)), int(first)
    while True:
        serial = append_some(store, entropy, serial)


if __name__ == "__main__":
    main()
