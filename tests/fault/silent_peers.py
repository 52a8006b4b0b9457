"""Peers that are there and of no use: one accepts and never answers, one does not even accept.

Neither is a process: the kernel does the accepting, or with a full backlog leaves the dialling client waiting.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager


@contextmanager
def hanging_peer() -> Iterator[str]:
    """Accepts every connection, reads what comes, answers nothing."""
    stopping = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server, ExitStack() as accepted:
        server.settimeout(0.05)

        def accept() -> None:
            while not stopping.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                accepted.enter_context(closing(peer))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopping.set()
            thread.join()


@contextmanager
def unreachable_peer() -> Iterator[str]:
    """Dialling it takes until the client loses patience: the backlog is full, and nobody accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as dialled:
        address = server.getsockname()
        for _ in range(4):
            client = dialled.enter_context(closing(socket.socket()))
            client.setblocking(False)
            client.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"


def dead_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
