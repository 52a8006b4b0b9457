"""A thread that calls one function at an interval until it is stopped.

Rule: the function itself decides by the clock it was given whether anything is due, so tests call it
directly and never wait. An exception ends neither the thread nor the process: it goes to `on_error`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class PeriodicThread:
    """Owns one daemon thread; `start` and `stop` are called by the owner, once each."""

    def __init__(
        self,
        name: str,
        interval_ms: int,
        tick: Callable[[], object],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._tick = tick
        self._on_error = on_error
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first call comes after one interval."""
        self._thread.start()

    def wake(self) -> None:
        """Call the function now instead of at the end of the interval."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread and wait for it; a call under way is finished."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._tick()
            except Exception as error:
                self._on_error(error)
