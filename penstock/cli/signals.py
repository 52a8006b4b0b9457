"""Signals to commands: SIGTERM ends one as Ctrl-C does, with everything closed and put away."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, AnyStr

EXIT_INTERRUPTED = 130
LOOK_UP_MS = 100


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
    """Looks up now and then, because a signal that comes right before the wait does not end it. A descriptor to be
    woken by would be left open by an interrupt that comes before the descriptor is noted."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    while not poll.poll(LOOK_UP_MS):
        pass
