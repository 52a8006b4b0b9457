"""The replica that the crash tests kill: follows one of two masters' logs, is cut, follows the other, without end.

    python -m tests.fault.replica_writer MASTERS FOLDER FORK SEED MODE

MASTERS has the logs `old` and `new`, the same up to position FORK. Prints `ready`, then a line for every step that is
over: `copied WHICH END`, `flushed WHICH END`, `cut WHICH END`. Opens the folder by itself and after it was ready, so
kills hit recovery and unfinished cuts too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

from penstock.runtime import SeededEntropy
from penstock.store import MessageStore
from tests.fault.crash_writer import options_of
from tests.support.replica_checks import copy, is_prefix


def keep_busy(store: MessageStore) -> None:
    while True:
        time.sleep(0.004)
        if store._thread is not None:
            store._thread.wake()


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    logging.disable(logging.WARNING)
    tell("ready")
    masters, folder, fork_text, seed, mode = sys.argv[1:]
    fork, entropy = int(fork_text), SeededEntropy(int(seed))
    logs = {
        which: MessageStore.open(Path(masters) / which, options_of(mode), read_only=True)
        for which in ("old", "new")
    }
    store = MessageStore.open(folder, options_of(mode), replica=True)
    threading.Thread(target=keep_busy, args=(store,), daemon=True).start()
    which = next(name for name, log in logs.items() if is_prefix(store, log))
    tell(f"copied {which} {store.log.max_offset}")
    while True:
        source = logs[which]
        while store.log.max_offset < source.log.max_offset:
            end = min(store.log.max_offset + 1 + entropy.below(3000), source.log.max_offset)
            copy(source, store, end=end, cut=1 + entropy.below(2000))
            tell(f"copied {which} {end}")
            if not entropy.below(3):
                tell(f"flushed {which} {store.flush()}")
            if store.log.max_offset > fork and not entropy.below(4):
                break
        if store.log.max_offset > fork:
            store.truncate(fork)
            which = "new" if which == "old" else "old"
            tell(f"cut {which} {fork}")


if __name__ == "__main__":
    main()
