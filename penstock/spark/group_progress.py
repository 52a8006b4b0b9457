"""Tells the brokers how far a stream has come, as the offsets of a consumer group.

With it `penstock group describe`, mqadmin and every dashboard show the lag of a Spark query like that of any
consumer. It is a view, not the truth: a query goes on from its checkpoint, whatever the group says.

Rules: offsets are committed as "everything before is done". Nothing waits for the brokers: one commit is under way
at most, what comes meanwhile is sent as one when it has ended, and offsets that did not change are not sent again. A
failure is logged and made good by the next commit; it is that of a queue, others are committed all the same. `finish`
waits a moment for the last one. Runs on the driver.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Mapping

from penstock.client.scan import Scan
from penstock.client.scan_results import QueueId
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)


class GroupProgress:
    """The commits of one query. Calls come from one thread; outcomes arrive in the client's."""

    def __init__(self, scan: Scan, group: str) -> None:
        self._scan = scan
        self._group = group
        self._lock = threading.Lock()
        self._committed: dict[QueueId, int] = {}
        self._wanted: dict[QueueId, int] = {}
        self._idle = threading.Event()
        self._idle.set()

    def moved(self, offsets: Mapping[QueueId, int]) -> None:
        """Everything before these offsets is done."""
        if not self._group:
            return
        with self._lock:
            self._wanted |= offsets
            if not self._idle.is_set():
                return  # sent when the one before has ended
        self._send()

    def finish(self, timeout_s: float) -> bool:
        """Wait for what is under way; whether everything is committed."""
        self._idle.wait(timeout_s)
        with self._lock:
            return self._committed == self._wanted

    def _send(self) -> None:
        with self._lock:
            due = {queue: at for queue, at in self._wanted.items() if self._committed.get(queue) != at}
            if not due:
                self._idle.set()
                return
            self._idle.clear()
        failures: dict[QueueId, PenstockError] = {}
        try:
            future = self._scan.commit_soon(self._group, due, failures=failures)
        except Exception as error:
            self._failed(error)
            return
        future.add_done_callback(lambda done: self._ended(done, due, failures))

    def _ended(
        self,
        done: concurrent.futures.Future[None],
        due: dict[QueueId, int],
        failures: Mapping[QueueId, PenstockError],
    ) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            self._failed(error or RuntimeError("cancelled"))
            return
        with self._lock:
            self._committed |= {queue: at for queue, at in due.items() if queue not in failures}
        if failures:
            self._failed(next(iter(failures.values())), f" for {len(failures)} of {len(due)} queues")
        else:
            self._send()

    def _failed(self, error: BaseException, where: str = "") -> None:
        logger.warning("progress of group %s is not committed%s: %s", self._group, where, error)
        self._idle.set()
