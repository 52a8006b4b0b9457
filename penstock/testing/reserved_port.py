"""A port that is set aside for one server, from before its first start until after its last.

    with ReservedPort() as reserved:
        start_server(reserved.number)       # listens there, as often as it is started

Rule: the port is bound and not listened at, with SO_REUSEADDR. So the kernel gives it to nobody who asks for any free
port or dials out, also while the server is down, and connections to it are refused; a server that is given the number
and sets SO_REUSEADDR, as asyncio and the JVM do, listens there all the same. Never: guesses a port that is free now.
"""

from __future__ import annotations

import os
import socket
import weakref
from types import TracebackType
from typing import Self

# Descriptors of the ports that are reserved at the moment. A check for leaks leaves them out: a port lives as long as
# its server, which may be one of the whole test run.
HELD: set[int] = set()


class ReservedPort:
    """One port of a loopback address, until it is released or garbage."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, 0))
            self.number = int(bound.getsockname()[1])
            descriptor = bound.detach()
        HELD.add(descriptor)
        self._release = weakref.finalize(self, _close, descriptor)

    def release(self) -> None:
        """Give the port back. May be called again."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _close(descriptor: int) -> None:
    HELD.discard(descriptor)
    os.close(descriptor)
