"""Signals to commands: SIGTERM ends one as Ctrl-C does, with everything closed and put away."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, AnyStr

EXIT_INTERRUPTED = 130


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt while the block runs, unless the command handles it already. In another thread
    there are no signals."""
    is_handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    if is_handled or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_line(stream: IO[AnyStr], size: int = -1) -> AnyStr:
    """The next line, at most so much of it. On a terminal Ctrl-C ends this at any moment: Python alone misses a
    signal that comes right before it begins to read, and waits for a line."""
    if stream.isatty() and threading.current_thread() is threading.main_thread():
        _wait_for_input(stream)
    return stream.readline(size)


def _wait_for_input(stream: IO[AnyStr]) -> None:
    signalled, wakeup = os.pipe()
    try:
        os.set_blocking(wakeup, False)
        before = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        try:
            while stream.fileno() not in select.select([stream.fileno(), signalled], [], [])[0]:
                os.read(signalled, 64)  # of a signal whose handler raised nothing
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(signalled)
        os.close(wakeup)
