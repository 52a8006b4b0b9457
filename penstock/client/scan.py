"""Bulk reading of topics for programs without an event loop: whole ranges of queues, as stored bytes.

    with Scan("127.0.0.1:9876") as scan:
        queues = scan.queues("orders")
        for queue, (low, high) in scan.ranges(queues).items():
            for pulled in scan.read([(queue, low, high)]):
                ...                                        # pulled.data: records one after the other

What Spark's driver and executors use. It reads without being a consumer, in answers of a MiB where the broker
allows that, and asks for the next answers before the last one is handed out. Works against Penstock and RocketMQ.

Rules: as in `scanning`, whose methods these are. May be used from any thread but the client's own; one `read` at a
time per thread. Nothing is connected before it is needed, so making a Scan costs nothing and cannot fail.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.client.async_admin import AdminSettings
from penstock.client.loop_thread import LoopThread
from penstock.client.options import DEFAULT_NAME_SERVER
from penstock.client.read_ahead import QueueRange, ReadAhead
from penstock.client.scan_results import OffsetRange, Pulled, PullStatus, QueueId
from penstock.client.scanning import RETRY_MS, AsyncScan
from penstock.errors import ClientClosedError, PenstockError
from penstock.remoting import TlsOptions
from penstock.runtime import Runtime

__all__ = ["AsyncScan", "OffsetRange", "PullStatus", "Pulled", "QueueId", "QueueRange", "Scan"]

T = TypeVar("T")
# Rows and bytes to ask for at once; a broker may answer with less.
ROWS = 16_384
SIZE = 1 << 20


class Scan:
    """A reader of topics. `with` closes it; the first call starts it."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        retry_ms: int = RETRY_MS,
        **settings: Unpack[AdminSettings],
    ) -> None:

        def make() -> AsyncScan:
            return AsyncScan(name_servers, runtime=runtime, tls=tls, retry_ms=retry_ms, **settings)

        # Made here only to have a wrong address refused at once, and again inside the loop.
        make()
        self._make = make
        self._async: AsyncScan | None = None
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    # -- life ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop every connection."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
            scan, self._async = self._async, None
        if thread is not None and not thread.is_foreign:
            try:
                if scan is not None:
                    thread.run(scan.close())
            finally:
                thread.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> tuple[LoopThread, AsyncScan]:
        with self._lock:
            if self._is_closed:
                raise ClientClosedError("the scan is closed", "make a new one")
            if self._thread is None or self._async is None:
                self._thread = LoopThread.acquire()
                self._async = self._make()
            return self._thread, self._async

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._started()[0].run(coroutine)

    @property
    def _scan(self) -> AsyncScan:
        return self._started()[1]

    # -- what there is ---------------------------------------------------------------------------------------

    def topics(self, pattern: str = "") -> list[str]:
        """Names of all topics but the system's own; those whose whole name the pattern matches."""
        return self._run(self._scan.topics(pattern))

    def queues(self, topic: str) -> list[QueueId]:
        """The queues that can be read, by broker and number. RouteNotFoundError if there is no such topic."""
        return self._run(self._scan.queues(topic))

    def queues_of(self, topics: Sequence[str]) -> dict[str, list[QueueId]]:
        """The same for many topics, side by side; those that do not exist are left out."""
        return self._run(self._scan.queues_of(topics))

    def range(self, queue: QueueId) -> OffsetRange:
        """The oldest offset that is still there, and the one that the next message gets."""
        return self.ranges([queue])[queue]

    def ranges(
        self, queues: Iterable[QueueId], *, failures: dict[QueueId, PenstockError] | None = None
    ) -> dict[QueueId, OffsetRange]:
        """The same for many queues: one question per topic and broker. With `failures`, queues whose broker does
        not answer are put there instead of raising."""
        return self._run(self._scan.ranges(list(queues), failures=failures))

    def offset_by_time(self, queue: QueueId, time_ms: int) -> int:
        """The first offset stored at that time or later; the queue's end if there is none."""
        return self._run(self._scan.offset_by_time(queue, time_ms))

    def offsets_by_time(self, times: Mapping[QueueId, int]) -> dict[QueueId, int]:
        """The same for many queues at once."""
        return self._run(self._scan.offsets_by_time(times))

    # -- reading ---------------------------------------------------------------------------------------------

    def pull(
        self,
        queue: QueueId,
        offset: int,
        *,
        rows: int = ROWS,
        size: int = SIZE,
        tags: str = "",
        columns: Sequence[str] = (),
    ) -> Pulled:
        """Records from an offset on: about as many as asked for, or as the broker's limits let it answer. With
        `columns`, those instead, where the broker has them."""
        return self._run(self._scan.pull(queue, offset, rows=rows, size=size, tags=tags, columns=columns))

    def read(
        self,
        ranges: Iterable[QueueRange],
        *,
        rows: int = ROWS,
        size: int = SIZE,
        tags: str = "",
        columns: Sequence[str] = (),
        reuse: bool = False,
    ) -> Iterator[Pulled]:
        """Answers that cover ranges [start, end) of queues, in their order; the next one is on its way while the
        caller works on the last.

        Every answer is handed out, also those without records; the last one of a range may reach past its end. A
        range ends early where an answer leads no further: NOTHING, or MOVED backwards. What that means is for the
        caller to say. With `columns`, large answers of a broker that can are columns of these names, in this order;
        each answer says what it is. With `reuse` the data of an answer is good only until the next one is taken; its
        memory serves again then, which saves time.
        """
        thread, scan = self._started()
        ahead = ReadAhead(
            thread, scan, [item for item in ranges if item[1] < item[2]], rows, size, tags, columns
        )
        done: bytes | bytearray | memoryview = b""
        try:
            while ahead:
                pulled = ahead.next()
                yield pulled
                if reuse:
                    # Not this one: batches that are views of it may still be in the caller's hands.
                    scan.sockets.buffers.give_back(done)
                    done = pulled.data
        finally:
            ahead.close()

    # -- groups ----------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Store how far a group has come, as the offset of the next message to read. The group need not exist. All
        queues are tried before the first failure is raised."""
        self._run(self._scan.commit(group, offsets))

    def commit_soon(
        self,
        group: str,
        offsets: Mapping[QueueId, int],
        *,
        failures: dict[QueueId, PenstockError] | None = None,
    ) -> concurrent.futures.Future[None]:
        """The same without waiting. With `failures`, queues that cannot be committed are put there instead of
        raising; it is whole when the future has ended."""
        thread, scan = self._started()
        return thread.submit(scan.commit(group, dict(offsets), failures=failures))
