"""Dead letters sent again: every one of them ends with an answer, and none is sent twice.

    lock the dead letters' queue -> note that some are begun -> send their copies -> note how they ended -> tell

Rules. A copy has an id that follows from its dead letter (`redrive_marks.copy_id`): if nobody knows whether it was
stored, the topic is asked for that id, and only where it is surely missing is it sent again. So a command may be
killed anywhere and given again. Two at once do not meet: the queue's lock, which a broker keeps for a minute after
its holder was last heard, belongs to one of them. The dead letter itself stays where it is.

Nothing is dropped: what cannot be sent is told with the reason, and stays to be redriven. Belongs to the event
loop of the admin client.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from penstock.client.admin_messages import MessageAdmin
from penstock.client.broker_calls import BrokerCalls
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.dead_letters import DeadLetter
from penstock.client.queue_reading import TOOLS_GROUP
from penstock.client.received import dead_letter_topic
from penstock.client.redrive_marks import MARKS_PRODUCER, MarkLog, Marks, copy_id
from penstock.client.results import is_stored
from penstock.client.routes import TopicRoute
from penstock.errors import (
    ClientError,
    ConnectError,
    PenstockError,
    PropertiesTooLargeError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from penstock.message import PropertyName, SystemFlag, encode_properties
from penstock.message.failures import NOTES, REDRIVEN_FROM
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader

logger = logging.getLogger(__name__)
_NO_ORIGIN = "it does not say from which topic it came; name one"
_UNPROVEN_ORIGIN = (
    "a consumer that may not publish to {} sent it to the retry topic itself; name a topic to trust it"
)
CHUNK = 32
ATTEMPTS = 3
# The index is written a moment after the log: a copy that is not found is looked for once more after this.
LOOK_AGAIN_MS = 1_000
LOCK_AGAIN_S = 0.5
_BUSY = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL))
# What belongs to the failed message's way and not to the message.
_NOT_COPIED = frozenset(
    (
        *NOTES,
        PropertyName.DELAY,
        PropertyName.UNIQ_KEY,
        PropertyName.REAL_TOPIC,
        PropertyName.REAL_QUEUE_ID,
        PropertyName.SEAL,
        PropertyName.WAIT,
        *("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "TRAN_MSG", "PGROUP", "__transactionId__"),
        *("MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "1ST_POP_TIME"),
        *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
    )
)
_KEPT_FLAGS = SystemFlag.COMPRESSED | SystemFlag.COMPRESSION_MASK


class Outcome(StrEnum):
    """What became of one dead letter."""

    SENT = "sent"
    WOULD_SEND = "would send"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """One dead letter, what became of it, and why."""

    letter: DeadLetter
    outcome: Outcome
    topic: str
    # The unique id of the copy.
    copy_id: str = ""
    reason: str = ""


class Redriving:
    """Sends dead letters of one group again. `run` is given them in pages and tells each result."""

    def __init__(
        self, calls: ClusterCalls, group: str, *, to: str = "", rate: float = 0, wait_s: float = 0
    ) -> None:
        self._calls = calls
        self._instance = calls.instance
        self._group = group
        self._marks = Marks(group)
        self._to = to
        self._rate = rate
        self._wait_s = wait_s
        self._log = MarkLog(calls)
        self._messages = MessageAdmin(calls)
        self._locks = BrokerCalls(calls.instance, TOOLS_GROUP)
        self._held: set[MessageQueue] = set()
        self._due_s = 0.0

    async def run(self, letters: Sequence[DeadLetter]) -> AsyncIterator[RedriveResult]:
        """All of them, by broker and topic."""
        parts: dict[tuple[str, str], list[DeadLetter]] = {}
        for letter in letters:
            topic = self._to or letter.redrive_topic
            if not topic:
                yield RedriveResult(letter, Outcome.FAILED, "", reason=no_origin(letter))
            else:
                parts.setdefault((letter.message.queue.broker_name, topic), []).append(letter)
        # A rate is kept by small steps, so that little is in doubt if this is killed.
        step = CHUNK if not self._rate else max(1, min(CHUNK, int(self._rate)))
        for (broker, topic), some in parts.items():
            for at in range(0, len(some), step):
                for result in await self._chunk(broker, topic, some[at : at + step]):
                    yield result

    async def close(self) -> None:
        """Give the locks back."""
        if self._held:
            await self._locks.unlock(self._held)

    def _skipped(self, letter: DeadLetter) -> RedriveResult:
        mark = self._marks.sent[letter.name]
        reason = f"it was sent again to {mark.topic} before"
        return RedriveResult(letter, Outcome.SKIPPED, mark.topic, mark.msg_id, reason)

    # -- some at a time --------------------------------------------------------------------------------------

    async def _chunk(self, broker: str, topic: str, letters: list[DeadLetter]) -> list[RedriveResult]:
        await self._lock(broker)
        await self._settle_doubts(broker, letters)
        results = [self._skipped(letter) for letter in letters if letter.name in self._marks.sent]
        waiting = [letter for letter in letters if letter.name not in self._marks.sent]
        if not waiting:
            return results
        try:
            route = await self._instance.routes.get(topic)
            if not route.publish_queues:
                raise RouteNotFoundError(f"topic {topic} has no queue that takes messages")
        except (RouteNotFoundError, ConnectError) as nowhere:
            return results + [self._failed(letter, topic, nowhere.message) for letter in waiting]
        ids = {letter.name: copy_id(letter.name, topic, letter.died_ms) for letter in waiting}
        await self._log.begun(broker, self._group, topic, ids)
        tasks = []
        for letter in waiting:
            await self._pace()
            tasks.append(asyncio.ensure_future(self._send(letter, topic, route, ids[letter.name])))
        outcomes = await asyncio.gather(*tasks)
        unknown = [
            ids[letter.name] for letter, error in zip(waiting, outcomes, strict=True) if is_open(error)
        ]
        found = await self._look_up(topic, unknown)
        sent: dict[str, str] = {}
        unsent: list[str] = []
        for letter, error in zip(waiting, outcomes, strict=True):
            name, msg_id = letter.name, ids[letter.name]
            if error is None or msg_id in found:
                sent[name] = msg_id
                results.append(RedriveResult(letter, Outcome.SENT, topic, msg_id))
            elif is_open(error):
                reason = f"{error.message}; whether it was stored is not known: the next run finds out"
                results.append(self._failed(letter, topic, reason, msg_id))
                self._marks.in_doubt[name] = (topic, msg_id)
            else:
                unsent.append(name)
                results.append(self._failed(letter, topic, error.message))
        await self._end(broker, topic, sent, unsent)
        return results

    async def _end(self, broker: str, topic: str, sent: dict[str, str], unsent: list[str]) -> None:
        """Note how some ended, at the broker and here."""
        await self._log.ended(broker, self._group, topic, sent, unsent)
        self._marks.end(topic, sent, unsent, self._instance.runtime.clock.now_ms())

    def _failed(self, letter: DeadLetter, topic: str, reason: str, msg_id: str = "") -> RedriveResult:
        return RedriveResult(letter, Outcome.FAILED, topic, msg_id, reason)

    async def _lock(self, broker: str) -> None:
        """Hold the lock of the dead letters' queue; asking again keeps it. Whoever gets it reads what those before
        have noted."""
        queue = MessageQueue(dead_letter_topic(self._group), broker, 0)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._wait_s
        granted, refused = await self._locks.lock([queue])
        while refused and queue not in self._held and loop.time() < until_s:
            await asyncio.sleep(LOCK_AGAIN_S)
            granted, refused = await self._locks.lock([queue])
        if refused:
            raise ClientError(
                f"somebody else is redriving dead letters of {self._group} at {broker}",
                "wait for them; a lock whose holder died ends after a minute",
            )
        if not granted:
            raise ConnectError(f"broker {broker} does not answer", "what was told so far is done; try again")
        if queue not in self._held:
            self._held.add(queue)
            self._marks = await self._log.read(self._group)

    async def _settle_doubts(self, broker: str, letters: list[DeadLetter]) -> None:
        """Those that an earlier run began and did not end: were they stored?"""
        doubtful: dict[str, dict[str, DeadLetter]] = {}
        for letter in letters:
            if letter.name in self._marks.in_doubt:
                topic, msg_id = self._marks.in_doubt[letter.name]
                doubtful.setdefault(topic, {})[msg_id] = letter
        for topic, some in doubtful.items():
            found = await self._look_up(topic, list(some))
            sent = {letter.name: msg_id for msg_id, letter in some.items() if msg_id in found}
            unsent = [letter.name for msg_id, letter in some.items() if msg_id not in found]
            await self._end(broker, topic, sent, unsent)

    async def _look_up(self, topic: str, ids: Sequence[str]) -> set[str]:
        """Which of these unique ids are stored in a topic."""
        found: set[str] = set()
        for wait_ms in (0, LOOK_AGAIN_MS):
            left = [msg_id for msg_id in ids if msg_id not in found]
            if left and wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            for msg_id in left:
                if await self._messages.by_unique_id(msg_id, topic) is not None:
                    found.add(msg_id)
        return found

    async def _pace(self) -> None:
        """Wait for the moment at which the next one may be sent."""
        if not self._rate:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._due_s > now_s:
            await asyncio.sleep(self._due_s - now_s)
        self._due_s = max(self._due_s, now_s) + 1 / self._rate

    # -- one -------------------------------------------------------------------------------------------------

    async def _send(
        self, letter: DeadLetter, topic: str, route: TopicRoute, msg_id: str
    ) -> PenstockError | None:
        """None if it is stored."""
        try:
            properties = _properties(letter, msg_id)
        except PenstockError as unfit:
            return unfit
        queue = _queue(letter, route)
        stored = letter.message.stored
        header = SendMessageRequestHeader(
            producer_group=MARKS_PRODUCER,
            topic=topic,
            queue_id=queue.queue_id,
            sys_flag=stored.sys_flag & _KEPT_FLAGS,
            born_timestamp=self._instance.runtime.clock.now_ms(),
            flag=stored.flag,
            properties=properties.decode(),
            reconsume_times=0,
            broker_name=queue.broker_name,
        )
        error: PenstockError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(0.1 * 4**attempt)
            command = Command(RequestCode.SEND_MESSAGE_V2, header.encode(), stored.body)
            try:
                answer = await self._instance.call_broker(queue.broker_name, command)
            except ConnectError as failure:
                error = failure  # it never left; the broker may come back, or another be master
                await self._refresh(topic)
                continue
            except PenstockError as failure:
                return failure
            if is_stored(answer.code):
                return None
            error = ResponseError(answer.code, answer.remark or "no reason given")
            if answer.code not in _BUSY:
                break
        return error

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except PenstockError as error:
            logger.info("the route of %s: %s", topic, error)


def is_open(error: PenstockError | None) -> TypeGuard[PenstockError]:
    """Whether a send that ended so may be stored all the same."""
    return isinstance(error, RemotingError) and not isinstance(error, ConnectError | ResponseError)


def no_origin(letter: DeadLetter) -> str:
    """Why nothing says where a dead letter is to be sent."""
    return _UNPROVEN_ORIGIN.format(letter.origin_topic) if letter.origin_topic else _NO_ORIGIN


def _properties(letter: DeadLetter, msg_id: str) -> bytes:
    kept = {name: value for name, value in letter.message.properties.items() if name not in _NOT_COPIED}
    kept[PropertyName.UNIQ_KEY] = msg_id
    try:
        return encode_properties({**kept, REDRIVEN_FROM: letter.letter_id})
    except PropertiesTooLargeError:
        return encode_properties(kept)


def _queue(letter: DeadLetter, route: TopicRoute) -> MessageQueue:
    """The queue it came from, so that it meets the messages of its key again; else one that follows from its name."""
    broker, _, rest = letter.origin.partition("/")
    number = rest.partition("/")[0]
    if route.topic == letter.origin_topic and number.isascii() and number.isdigit() and len(number) < 10:
        origin = MessageQueue(route.topic, broker, int(number))
        if origin in route.publish_queues:
            return origin
    return route.publish_queues[zlib.crc32(letter.name.encode()) % len(route.publish_queues)]
