"""When the broker says no for the moment: what is wrong, and when to try again.

Rules: a refusal costs less than what it refuses, is made before anything is stored, and says three things: what
is wrong, how far over the limit it is, and after which time trying again makes sense. That time is also in
the answer's header (`penstockRetryAfterMs`), so that a client need not read English. Where others have filled the
room, a topic that has hardly anything in it gets in a little longer, and so does what the broker stores for itself:
one batch may have as many messages as there is room for. Owned by the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.broker.options import BrokerOptions
from penstock.errors import DiskFullError, RequestError, StoreError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers import OUTCOME_FIELD, OUTCOME_UNKNOWN
from penstock.protocol.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from penstock.runtime import Clock
from penstock.store.options import StoreOptions

RETRY_AFTER_FIELD = "penstockRetryAfterMs"
# What a first guess at the time of a flush is, before any was seen.
_FIRST_GUESS_MS = 20
_LONGEST_HINT_MS = 5_000
# What share of the room a topic may have that gets in although the room is full, and how much more there is for such.
_SMALL_SHARE = 100
_MORE_ROOM = 4
# Topics that are written on behalf of messages which are stored already.
_BROKERS_OWN = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC)


# Topics with how many messages and bytes.
Parts = Iterable[tuple[str, int, int]]


class BusyError(RequestError):
    """Not now. `retry_after_ms` is an estimate, not a promise."""

    def __init__(self, message: str, retry_after_ms: int, code: int = ResponseCode.SYSTEM_BUSY) -> None:
        super().__init__(code, message, f"try again in about {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms

    @property
    def fields(self) -> dict[str, str]:
        """What the answer's header says besides."""
        return {RETRY_AFTER_FIELD: str(self.retry_after_ms)}


class UnknownOutcomeError(RequestError):
    """A request that may have been carried out: its message is stored, and may be lost again or stay."""

    outcome_unknown = True

    @property
    def fields(self) -> dict[str, str]:
        """What the answer's header says besides."""
        return {OUTCOME_FIELD: OUTCOME_UNKNOWN}


def refusal_fields(error: Exception) -> dict[str, str]:
    """Header fields of the answer to a request that ended with this error."""
    return error.fields if isinstance(error, BusyError | UnknownOutcomeError) else {}


class FlowControl:
    """Counts what waits for the disk, and refuses more than may wait."""

    def __init__(self, options: BrokerOptions, store_options: StoreOptions, clock: Clock) -> None:
        self.options = options
        self._store_options = store_options
        self._clock = clock
        self.waiting = 0
        self.waiting_bytes = 0
        # Of each topic that has some: how many messages wait, and how many bytes.
        self._messages_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        # What got in since the room is full: requests, and their bytes.
        self._over = self._over_bytes = 0
        self.refused = 0
        # Smoothed time from the append to the flush, of the sends that waited for one.
        self._flush_ms = float(_FIRST_GUESS_MS)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    # -- sends -----------------------------------------------------------------------------------------------

    def admit(self, size: int, topic: str | None = None) -> None:
        """Let a send to a topic in, or what the broker stores for itself, or say why not. Only sends that wait for a
        flush fill the room."""
        options = self.options
        most, most_bytes = options.sends_waiting_max, options.sends_waiting_bytes_max
        if self.waiting < most and (self.waiting_bytes + size <= most_bytes or not self.waiting):
            return
        is_small = topic is None or (
            self._messages_of[topic] < most // _SMALL_SHARE
            and self._bytes_of[topic] + size <= most_bytes // _SMALL_SHARE
        )
        more, more_bytes = most // _MORE_ROOM, most_bytes // _MORE_ROOM
        if is_small and self._over < more and self._over_bytes + size <= more_bytes:
            self._over += 1
            self._over_bytes += size
            return
        self.refused += 1
        raise BusyError(
            f"[REJECTREQUEST]{self.waiting} messages of {self.waiting_bytes} bytes wait for the disk; the limits "
            f"are {options.sends_waiting_max} messages and {options.sends_waiting_bytes_max} bytes",
            self.retry_after_ms,
        )

    def admit_queue(self, topic: str, count: int) -> None:
        """Let a queue get its first message, or say why not. What consumers gave back gets in a little longer."""
        limit = self.options.queues_max
        if count < (limit + limit // 4 if topic.startswith(_BROKERS_OWN) else limit):
            return
        self.refused += 1
        raise BusyError(
            f"the broker has {count} queues with messages and takes no more; delete topics, or raise queues_max",
            _LONGEST_HINT_MS,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        )

    def began(self, count: int, size: int, parts: Parts = ()) -> None:
        """Messages began to wait for their flush; `parts` are topics with their messages and bytes."""
        self.waiting += count
        self.waiting_bytes += size
        for topic, messages, topic_bytes in parts:
            self._messages_of[topic] += messages
            self._bytes_of[topic] += topic_bytes

    def ended(self, count: int, size: int, took_ms: int, parts: Parts = ()) -> None:
        """They wait no more."""
        self.waiting -= count
        self.waiting_bytes -= size
        options = self.options
        if self.waiting < options.sends_waiting_max and self.waiting_bytes < options.sends_waiting_bytes_max:
            self._over = self._over_bytes = 0
        for topic, messages, topic_bytes in parts:
            self._messages_of[topic] -= messages
            self._bytes_of[topic] -= topic_bytes
            if not self._messages_of[topic]:
                del self._messages_of[topic], self._bytes_of[topic]
        self._flush_ms += (took_ms - self._flush_ms) / 8

    @property
    def retry_after_ms(self) -> int:
        """Two flushes from now half of what waits should be gone."""
        return min(max(int(2 * self._flush_ms), 1), _LONGEST_HINT_MS)

    # -- pulls -----------------------------------------------------------------------------------------------

    def polls_full(self, held: int) -> BusyError:
        """One connection holds too many long polls."""
        self.refused += 1
        limit = self.options.long_polls_per_connection_max
        return BusyError(
            f"{held} pulls of this connection are waiting; the limit is {limit}; "
            "use fewer queues per connection",
            1_000,
            ResponseCode.FLOW_CONTROL,
        )

    # -- the store -------------------------------------------------------------------------------------------

    def explain(self, error: StoreError) -> RequestError:
        """Why the store took nothing, as an answer: a full disk may clear by itself, a failure does not."""
        if isinstance(error, DiskFullError):
            return BusyError(
                f"{error.message}; {error.hint}",
                self._store_options.clean_interval_ms,
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        return RequestError(error.code, error.message, error.hint)
