"""What a stream knows of its queues between micro-batches: which there are, how far they reach, how far it is.

    discover    topics, queues and brokers that came or went, every `discoverMs`
    ends        how far messages can be read now; never back, unless a queue really got shorter
    limited     the end of the next micro-batch under the limits

Rules: a queue once seen stays, so that an outage of its broker stops its progress and loses nothing. Only what a
consumer could read counts: a batch that is run again finds the same messages. So the offsets have a new queue's first
message before anything of it is read: a process that runs its first batch again knows from them what retention has
taken since. One broker out of reach holds up its own queues; all of them for longer than `retryMs` is an error. Runs
on the driver, in the process of the stream's reader, one call at a time. Knows no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.client.scan import Scan
from penstock.client.scan_results import OffsetRange, QueueId
from penstock.errors import ConnectError, PenstockError, RouteNotFoundError
from penstock.runtime import Clock, SystemClock
from penstock.spark.gaps import Gaps, Reason
from penstock.spark.live import find_queues
from penstock.spark.options import ReadOptions
from penstock.spark.planning import QueueSlice, share
from penstock.spark.positions import Offsets, sorted_offsets

logger = logging.getLogger(__name__)
# Records that tell how large those of a queue are.
SAMPLE_ROWS = 256
SAMPLE_BYTES = 64 << 10
# A queue is sampled again after this many rows.
SAMPLE_EVERY = 100_000
SIZE_GUESS = 1_024
RETRY_PAUSE_S = 0.2
# How long a start waits at most: somebody may be looking, and the address may be wrong.
START_WAIT_MS = 15_000


class QueueTracker:
    """See the module's text. Keys are `topic/broker/queue`, as in Spark's offsets."""

    def __init__(
        self,
        scan: Scan,
        options: ReadOptions,
        gaps: Gaps,
        clock: Clock | None = None,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        self._scan = scan
        self._options = options
        self._gaps = gaps
        self._clock = clock or SystemClock()
        self._wait = wait or self._clock.sleep
        self._queues: dict[str, QueueId] = {}
        self._ranges: dict[str, OffsetRange] = {}
        self._discovered_ms: int | None = None
        self._silent_since_ms: int | None = None
        # Queues that end before the offset they were read to, and since when.
        self._short_since_ms: dict[str, int] = {}
        # Average size of records, and the offset it was taken at.
        self._sizes: dict[str, tuple[int, int]] = {}

    # -- what there is ---------------------------------------------------------------------------------------

    def queues(self) -> dict[str, QueueId]:
        """Every queue ever seen, looked for again when it is time."""
        now = self._clock.monotonic_ms()
        if self._discovered_ms is None or now - self._discovered_ms >= self._options.discover_ms:
            try:
                found = find_queues(self._scan, self._options)
            except (ConnectError, RouteNotFoundError) as error:
                # A name server that was just started knows no topic; brokers may be asked all the same.
                if not self._queues:
                    raise
                logger.warning("queues of %s are as they were: %s", self._options.what, error)
                found = []
            self._queues |= {queue.key: queue for queue in found}
            self._discovered_ms = now
        return self._queues

    def queue(self, key: str) -> QueueId:
        """Also one that no name server knows now: an executor waits for it."""
        return self._queues.get(key) or QueueId.of_key(key)

    def all_ranges(self) -> Mapping[str, OffsetRange]:
        """First and next offset of every queue. One that cannot be asked is waited for, then it is an error."""
        began_ms = self._clock.monotonic_ms()
        while True:
            try:
                fresh = self._scan.ranges(self.queues().values())
                self._ranges |= {queue.key: item for queue, item in fresh.items()}
                return {queue.key: item for queue, item in fresh.items()}
            except (ConnectError, RouteNotFoundError):
                # A broker that is away is in no route: its topics seem not to exist.
                if self._clock.monotonic_ms() - began_ms >= min(self._options.retry_ms, START_WAIT_MS):
                    raise
                self._discovered_ms = None
            self._wait(RETRY_PAUSE_S)

    def ranges(self) -> Mapping[str, OffsetRange]:
        """The same of all queues that can be asked now."""
        queues = self.queues()
        failures: dict[QueueId, PenstockError] = {}
        fresh = self._scan.ranges(queues.values(), failures=failures)
        self._ranges |= {queue.key: item for queue, item in fresh.items()}
        self._watch_silence(failures, bool(fresh) or not queues)
        return {queue.key: item for queue, item in fresh.items()}

    def _watch_silence(self, failures: Mapping[QueueId, PenstockError], somebody_answers: bool) -> None:
        if not failures:
            self._silent_since_ms = None
            return
        queue, error = next(iter(failures.items()))
        logger.warning("%d queues cannot be asked now, as %s: %s", len(failures), queue, error)
        # Its broker may have moved: look for it with the next question.
        self._discovered_ms = None
        now = self._clock.monotonic_ms()
        if somebody_answers:
            self._silent_since_ms = None
        elif self._silent_since_ms is None:
            self._silent_since_ms = now
        elif now - self._silent_since_ms >= self._options.retry_ms:
            raise ConnectError(
                f"no broker of {self._options.what} answers for {self._options.retry_ms / 1000:g} s: {error.message}",
                "the query goes on where it was when it is started again with the same checkpoint",
            )

    # -- ends ------------------------------------------------------------------------------------------------

    def ends(self, start: Offsets, ranges: Mapping[str, OffsetRange], *, patient: bool) -> Offsets:
        """How far each queue can be read. Queues of `start` that cannot be asked stay where they are."""
        ends = dict(start)
        for key, item in ranges.items():
            begin = start.get(key)
            if begin is not None and item.max < begin:
                ends[key] = self._shorter(key, begin, item.max, patient)
            else:
                self._short_since_ms.pop(key, None)
                # A queue that is new has nothing to be read until it has its first message.
                if begin is not None or item.max > item.min:
                    ends[key] = item.max
        return sorted_offsets(ends)

    def _shorter(self, key: str, begin: int, end: int, patient: bool) -> int:
        """A queue ends before the offset it was read to. A replica that lags behind catches up, so this is
        believed only after a while; then it is a gap, behind which the queue goes on at its new end."""
        now = self._clock.monotonic_ms()
        since = self._short_since_ms.setdefault(key, now)
        if patient and now - since < self._options.retry_ms:
            logger.warning("%s ends at %d, and was read to %d already", key, end, begin)
            return begin
        del self._short_since_ms[key]
        detail = f"the queue ends at {end}, and was read to {begin} already"
        self._gaps.found(self.queue(key), end, begin - 1, Reason.LOST, detail, where="planning")
        return end

    # -- limits ----------------------------------------------------------------------------------------------

    def limited(self, start: Offsets, ends: Offsets, rows: int, size: int) -> Offsets:
        """Ends so near that a micro-batch has at most so many rows and about so many bytes; 0 is no limit. A queue
        that is new gets the place of its first message, and is read by the next micro-batch."""
        begins = {key: self.begin(key, start) for key in ends}
        lags = {key: ends[key] - begins[key] if key in start else 0 for key in ends}
        if rows:
            lags = self._cut(lags, share(rows, lags))
        if size and sum(lags.values()):
            sizes = {key: self._size(key, begins[key]) for key, lag in lags.items() if lag > 0}
            quotas = share(size, {key: lags[key] * sizes[key] for key in sizes})
            lags = self._cut(lags, {key: max(1, quota // sizes[key]) for key, quota in quotas.items()})
        return sorted_offsets({key: begins[key] + lag for key, lag in lags.items()})

    @staticmethod
    def _cut(lags: Offsets, quotas: Mapping[str, int]) -> Offsets:
        # A queue that got shorter has a negative lag; that is kept, it is how the queue goes back.
        return {key: min(lag, quotas.get(key, lag)) for key, lag in lags.items()}

    def begin(self, key: str, start: Offsets) -> int:
        """Where a queue is read from: a new one from the first message that it has. Between the offsets of a batch
        that is nothing, but for batches that were planned when new queues were read at once."""
        if key in start:
            return start[key]
        known = self._ranges.get(key)
        return known.min if known is not None else 0

    def _size(self, key: str, offset: int) -> int:
        """About how large the records of a queue are from an offset on."""
        known = self._sizes.get(key)
        if known is not None and 0 <= offset - known[1] < SAMPLE_EVERY:
            return known[0]
        try:
            pulled = self._scan.pull(self.queue(key), offset, rows=SAMPLE_ROWS, size=SAMPLE_BYTES)
        except PenstockError as error:
            logger.info("size of records of %s: %s", key, error)
            return known[0] if known is not None else SIZE_GUESS
        count = max(pulled.next_offset - offset, 1)
        size = max(len(pulled.data) // count, 1) if pulled.data else SIZE_GUESS
        self._sizes[key] = (size, offset)
        return size

    # -- a micro-batch ---------------------------------------------------------------------------------------

    def slices(self, start: Offsets, end: Offsets) -> list[QueueSlice]:
        """What lies between two offsets."""
        if any(key not in self._ranges for key in end):
            self.ranges()
        return [
            QueueSlice(self.queue(key), self.begin(key, start), stop)
            for key, stop in end.items()
            if stop > self.begin(key, start)
        ]

    def known_ranges(self) -> dict[QueueId, OffsetRange]:
        """As of the last question."""
        return {self.queue(key): item for key, item in self._ranges.items()}
