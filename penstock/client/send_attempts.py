"""One send on its way: where the next attempt goes, whether there is one, and what it all came to.

    attempts.choose(queues)                                            -> queue to send to
    attempts.stored_as(result) / .refused(response) / .lost(error)     -> done, try again, or give up
    attempts.absent(error)                                             -> wait for somebody who could store it
    attempts.error() / .shortfall()                                    -> what to raise

Rules: an attempt that never left this machine, or that a broker refused, has failed; one whose answer is missing
is unknown, and then the whole send is unknown unless a later attempt stores the message: the first may have
stored it too, and only the caller can tell whether twice is bad. What is refused for being wrong (too large,
no such queue) is not tried again. A send with a key goes to the queue of its key every time. While there is no
master, as for some seconds after one has died, nothing can be attempted: that is waited for until `wait_until_ms`,
and does not use up the attempts. An idempotent send that may be stored goes nowhere else from then on: only the
broker set that may have it knows it again. Plain code, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from penstock.client.results import SendResult, SendStatus
from penstock.errors import PenstockError, SendError, SendFailedError, SendUnknownError
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import OUTCOME_FIELD, OUTCOME_UNKNOWN

# Answers after which another broker may do better.
RETRIED_CODES = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        204,  # NO_BUYER_ID
        205,  # NOT_IN_CURRENT_UNIT
        ResponseCode.GO_AWAY,
    )
)
# Answers that say that the route led to the wrong place, or soon will have.
_STALE_CODES = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    )
)
# How the remark of an answer begins that says: not here, not now, and nothing is stored. The first is what slaves and
# overloaded brokers say, the second a master whose replicas are not back yet.
_NOT_NOW = ("[REJECTREQUEST]", "[IN_SYNC_REPLICAS_NOT_ENOUGH]")
_HINTS = {
    int(ResponseCode.SYSTEM_BUSY): "the broker is overloaded; send more slowly or try again later",
    int(ResponseCode.MESSAGE_ILLEGAL): "correct the message: its size, properties or delay are not accepted",
    int(ResponseCode.SERVICE_NOT_AVAILABLE): "the broker cannot write; look at its log and disk",
    int(ResponseCode.NO_PERMISSION): "the topic or broker is not writable, or you may not write to it",
    int(ResponseCode.TOPIC_NOT_EXIST): "create the topic first (`penstock topic create`)",
    int(ResponseCode.INVALID_PARAMETER): "correct the topic's name or the queue number",
}
# The header field in which a Penstock broker says after how many milliseconds to try again.
RETRY_AFTER_FIELD = "penstockRetryAfterMs"
_UNKNOWN_HINT = "it may be stored; if you send it again, let consumers recognise it by its keys"
_ORDER = {"": 0, "memory": 1, "flushed": 2, "replicated": 3}

NextQueue = Callable[[Sequence[MessageQueue], str], MessageQueue]


class Verdict(Enum):
    """What to do after an attempt."""

    DONE = "done"
    RETRY = "retry"
    GIVE_UP = "give up"


class SendAttempts:
    """The history of one send (a message, or a batch as one)."""

    def __init__(
        self,
        next_queue: NextQueue,
        *,
        attempts_max: int,
        durability: str = "",
        retry_not_durable: bool = False,
        wait_until_ms: int = 0,
        is_idempotent: bool = False,
    ) -> None:
        self._is_idempotent = is_idempotent
        self._is_unrecognised = False
        self._next_queue = next_queue
        self._wait_until_ms = wait_until_ms
        # How often nobody was there.
        self.absences = 0
        self._attempts_max = attempts_max
        self._durability = durability
        self._retry_not_durable = retry_not_durable
        self._history: list[str] = []
        self._last_code = int(ResponseCode.SYSTEM_ERROR)
        self._last_hint = ""
        self.is_unknown = False
        self.route_is_stale = False
        # How long the last answer asked to wait; 0 if it did not say.
        self.retry_after_ms = 0
        self.queue: MessageQueue | None = None
        self.stored: SendResult | None = None
        self.cause: PenstockError | None = None

    @property
    def count(self) -> int:
        """Attempts made."""
        return len(self._history) + (1 if self.stored is not None else 0)

    @property
    def number(self) -> int:
        """Which attempt this is, those counted where nobody was there."""
        return self.count + self.absences + 1

    @property
    def is_bound(self) -> bool:
        """Whether every further attempt goes to the queue of the last one."""
        return self._is_idempotent and self.is_unknown

    def choose(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The queue of the next attempt, at another broker than the last one if there is one."""
        if self.is_bound and self.queue is not None:
            self.route_is_stale = False
            return self.queue
        self.queue = self._next_queue(queues, self.queue.broker_name if self.queue is not None else "")
        self.route_is_stale = False
        return self.queue

    def refused(self, response: Command, now_ms: int = 0) -> Verdict:
        """A broker answered that it did not store the message, or that it does not know."""
        code = response.code
        # Its disk failed while the message was on the way there. Only our own brokers say so.
        if response.fields.get(OUTCOME_FIELD) == OUTCOME_UNKNOWN:
            self.is_unknown = True
        elif (response.remark or "").startswith(_NOT_NOW) and now_ms < self._wait_until_ms:
            return self._wait(_retry_after(response))
        self._last_code = code
        self._last_hint = _HINTS.get(code, "")
        self.retry_after_ms = _retry_after(response)
        self.cause = None
        self._note(f"answered {code}: {(response.remark or 'no reason given')[:300]}")
        self.route_is_stale = code in _STALE_CODES or (response.remark or "").startswith(_NOT_NOW)
        return self._again() if code in RETRIED_CODES else Verdict.GIVE_UP

    def stored_as(self, result: SendResult) -> Verdict:
        """A broker stored the message; whether that is enough."""
        self.stored = result
        if result.status is SendStatus.OK and self.is_durable_enough(result):
            return Verdict.DONE
        if self._retry_not_durable and self._again() is Verdict.RETRY:
            # Stored once, about to be stored again: from here on a failure leaves the first copy behind.
            self._note(f"stored with status {result.status.value}")
            self.is_unknown, self.stored = True, None
            return Verdict.RETRY
        return Verdict.DONE

    def unrecognised(self, result: SendResult) -> Verdict:
        """A broker stored an idempotent message and knows nothing of sequences: sent again it is there twice."""
        self.stored = result
        self._is_unrecognised = True
        return Verdict.DONE

    def absent(self, error: PenstockError, now_ms: int) -> Verdict:
        """Nobody was there who could have stored the message: no attempt was made."""
        return self.lost(error) if now_ms >= self._wait_until_ms else self._wait(0)

    def _wait(self, retry_after_ms: int) -> Verdict:
        self.absences += 1
        self.route_is_stale = True
        self.retry_after_ms = retry_after_ms
        return Verdict.RETRY

    def lost(self, error: PenstockError) -> Verdict:
        """An attempt ended without an answer."""
        self.is_unknown = self.is_unknown or error.outcome_unknown
        # A broker that does not answer may have been replaced.
        self.route_is_stale = error.route_stale or error.outcome_unknown
        self._last_code = error.code
        self._last_hint = error.hint
        self.retry_after_ms = 0
        self.cause = error
        self._note(error.message)
        return self._again() if error.retriable else Verdict.GIVE_UP

    def is_durable_enough(self, result: SendResult) -> bool:
        """Whether a demand was met. A broker that does not know the demand cannot meet it knowingly, but says
        OK only for what it was configured to do; that is all there is to know."""
        if not self._durability or not result.durability:
            return True
        return _ORDER.get(result.durability, 0) >= _ORDER[self._durability]

    def shortfall(self) -> SendUnknownError | None:
        """The error of a message that is stored, but not as was demanded; None if it is."""
        result = self.stored
        if result is not None and self._is_unrecognised:
            return SendUnknownError(
                f"the message is stored, but broker {result.queue.broker_name!r} keeps no sequences: it does not "
                "know a message that is sent again",
                "idempotent sends need brokers of Penstock; use a producer without idempotent for others",
                attempts=tuple(self._history),
                result=result,
            )
        if result is None or not self._durability:
            return None
        if result.status is SendStatus.OK and self.is_durable_enough(result):
            return None
        reached = result.durability or result.status.value
        return SendUnknownError(
            f"the message is stored but {self._durability!r} was not reached in time ({reached})",
            "it is readable and may still become durable; if you send it again there will be two",
            code=_code_of(result.status),
            attempts=tuple(self._history),
            result=result,
        )

    def error(self) -> SendError:
        """What to raise after the last attempt."""
        tries = "1 attempt" if len(self._history) == 1 else f"{len(self._history)} attempts"
        text = f"{tries}: {'; '.join(self._history)}"
        if self.is_unknown:
            return SendUnknownError(
                f"not known whether the message was stored ({text})",
                _UNKNOWN_HINT,
                code=self._last_code,
                attempts=tuple(self._history),
            )
        return SendFailedError(
            f"the message was not stored ({text})",
            self._last_hint,
            code=self._last_code,
            attempts=tuple(self._history),
        )

    def _again(self) -> Verdict:
        return Verdict.RETRY if self.count < self._attempts_max else Verdict.GIVE_UP

    def _note(self, what: str) -> None:
        where = f"{self.queue.broker_name}:{self.queue.queue_id} " if self.queue is not None else ""
        self._history.append(f"{where}{what}")


def _retry_after(response: Command) -> int:
    """What a Penstock broker says about when to come back; RocketMQ's say nothing."""
    try:
        return response.integer_or(RETRY_AFTER_FIELD, 0, 0, 60_000)
    except PenstockError:
        return 0


def _code_of(status: SendStatus) -> int:
    return int(
        {
            SendStatus.OK: ResponseCode.FLUSH_DISK_TIMEOUT,
            SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
            SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
            SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
        }[status]
    )
