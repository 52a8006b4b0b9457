"""Parcels on their way to brokers: the first attempt without any task, further ones in one.

Rules: a route and a connection that are there already are used at once, in the caller's stack; only what has to
wait (for a route, a connection, a second attempt) becomes a task. No parcel overtakes one that waits for its first
attempt. Every parcel ends exactly once, through `finish`, with a result or an error. Of an idempotent producer a
parcel gets its sequence when it is sent for the first time, and keeps it. Belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from penstock.client.batching import Parcel
from penstock.client.fault_latency import FaultLatency
from penstock.client.instance import ClientInstance
from penstock.client.options import ProducerOptions
from penstock.client.outgoing import Outgoing
from penstock.client.queue_selection import RoundRobin, select_by_key
from penstock.client.results import BatchResult, Recalled, SendResult, is_stored, read_result
from penstock.client.routes import TopicRoute
from penstock.client.send_attempts import NextQueue, SendAttempts, Verdict
from penstock.errors import (
    ClientClosedError,
    ConnectError,
    PenstockError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    DURABILITY_FIELD,
    PRODUCER_FIELD,
    REPEATED_FIELD,
    SEQUENCE_FIELD,
    RecallMessageRequestHeader,
)
from penstock.protocol.recall import RecallHandle
from penstock.remoting import Connection, check

logger = logging.getLogger(__name__)
_ALREADY_DONE = (asyncio.InvalidStateError, concurrent.futures.InvalidStateError)
_BACKOFF_FIRST_MS = 50
_BACKOFF_MAX_MS = 1_000
# While there is no master the route is asked for this often: a new one takes a few seconds to be elected.
_ABSENT_MAX_MS = 200
_RETRY_AFTER_MAX_MS = 5_000
# Answers of a broker that is not master, or not sure to be, now.
_NO_MASTER = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.SERVICE_NOT_AVAILABLE,
)


class Sender:
    """Sends parcels of one producer. `finish` is called with each parcel, its result or its error."""

    def __init__(
        self,
        instance: ClientInstance,
        options: ProducerOptions,
        finish: Callable[[Parcel, SendResult | None, PenstockError | None], None],
    ) -> None:
        self._instance = instance
        self._options = options
        self._finish = finish
        self._clock = instance.runtime.clock
        self._entropy = instance.runtime.entropy
        self._faults = FaultLatency() if options.avoid_slow_brokers else None
        self._turns: dict[str, RoundRobin] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._producer_id = options.producer_id or (
            self._entropy.bytes(16).hex() if options.idempotent else ""
        )
        self._next_sequence = 0
        # Parcels that wait for a route or a connection.
        self._unsent: set[Parcel] = set()

    # -- where to --------------------------------------------------------------------------------------------

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route to send by."""
        options = self._options
        return await self._instance.routes.for_publishing(
            topic, options.template_topic, options.topic_queues, refresh=refresh
        )

    def knows_route(self, topic: str) -> bool:
        """Whether a topic's route was found before."""
        return self._instance.routes.cache.get(topic) is not None

    def known_queue(self, item: Outgoing) -> MessageQueue | None:
        """The queue that a message is bound to, if its route is known."""
        if item.queue is not None or not item.queue_key:
            return item.queue
        route = self._instance.routes.cache.get(item.topic)
        if route is None or not route.publish_queues:
            return None
        return select_by_key(route.key_queues if item.is_homed else route.publish_queues, item.queue_key)

    def _next_queue(self, parcel: Parcel) -> NextQueue:
        item = parcel.items[0]
        bound = parcel.queue or item.queue
        if bound is not None:
            return partial(_always, bound)
        if item.is_homed:
            return partial(self._home, item)
        if item.queue_key:
            return partial(_by_key, item.queue_key)
        turns = self._turns.get(item.topic)
        if turns is None:
            start = self._entropy.below(1 << 30)
            turns = self._turns[item.topic] = RoundRobin(start, self._faults)
        if self._faults is None:
            return turns.next
        return partial(_by_turns, turns, self._clock)

    def _home(self, item: Outgoing, queues: Sequence[MessageQueue], avoid: str) -> MessageQueue:
        """The queue of a message's own key, also while its broker set has no master: it is waited for."""
        route = self._instance.routes.cache.get(item.topic)
        return select_by_key(route.key_queues if route is not None else queues, item.queue_key)

    # -- attempts --------------------------------------------------------------------------------------------

    def post(self, parcel: Parcel) -> None:
        """Send a parcel; never waits."""
        parcel.began_ms = self._clock.monotonic_ms()
        lane = parcel.lane
        if lane is not None and len(lane.in_flight) == 1:
            lane.heard_ms = parcel.began_ms  # it was idle: silence begins now
        is_idempotent = self._options.idempotent
        if is_idempotent:
            self._number(parcel)
        attempts = SendAttempts(
            self._next_queue(parcel),
            attempts_max=1 if parcel.items[0].is_half and not is_idempotent else 1 + self._options.retries,
            is_idempotent=is_idempotent,
            durability=parcel.items[0].durability,
            retry_not_durable=self._options.retry_not_durable,
            wait_until_ms=parcel.began_ms + self._options.send_timeout_ms * self._options.retries,
        )
        route = self._instance.routes.cache.get(parcel.topic)
        if route is not None and route.publish_queues and not self._unsent:
            queue = attempts.choose(route.publish_queues)
            address = route.master(queue.broker_name)
            connection = self._instance.remoting.open_connection(address) if address is not None else None
            if connection is not None:
                self._request(parcel, attempts, connection, queue, partial(self._answered, parcel, attempts))
                return
        self._unsent.add(parcel)
        self._spawn(self._deliver(parcel, attempts))

    def _number(self, parcel: Parcel) -> None:
        """Give a parcel its sequences: those that it has, the program's, or those that come next."""
        if parcel.sequence < 0:
            parcel.sequence = parcel.items[0].sequence
        if parcel.sequence < 0:
            parcel.sequence = self._next_sequence
            self._next_sequence += len(parcel.items)

    def _request(
        self,
        parcel: Parcel,
        attempts: SendAttempts,
        connection: Connection,
        queue: MessageQueue,
        respond: Callable[[int, Command | RemotingError], None],
    ) -> None:
        self._unsent.discard(parcel)
        command = self._command(parcel, queue)
        started = self._clock.monotonic_ms() if self._faults is not None else 0
        connection.request(command, partial(respond, started), self._options.send_timeout_ms)

    def _command(self, parcel: Parcel, queue: MessageQueue) -> Command:
        """V2's letters, written out: this is the request that is sent most."""
        first, options = parcel.items[0], self._options
        is_batch = parcel.is_batch
        fields = {
            "a": options.group,
            "b": queue.topic,
            "c": options.template_topic,
            "d": str(options.topic_queues),
            "e": str(queue.queue_id),
            "f": str(first.sys_flag),
            "g": str(self._clock.now_ms()),
            "h": "0" if is_batch else str(first.flag),
            # RocketMQ puts what a batch has behind the properties of each of its messages.
            "i": "" if is_batch else first.properties.decode(),
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": queue.broker_name,
        }
        if first.durability:
            fields[DURABILITY_FIELD] = first.durability
        if parcel.sequence >= 0:
            fields[PRODUCER_FIELD] = self._producer_id
            fields[SEQUENCE_FIELD] = str(parcel.sequence)
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        return Command(int(code), fields, parcel.encode())

    def _answered(
        self, parcel: Parcel, attempts: SendAttempts, started_ms: int, outcome: Command | RemotingError
    ) -> None:
        """The first attempt ended; called by the connection."""
        verdict = self._judge(parcel, attempts, started_ms, outcome)
        if verdict is Verdict.RETRY:
            self._spawn(self._deliver(parcel, attempts))
        else:
            self._conclude(parcel, attempts, verdict)

    def _judge(
        self, parcel: Parcel, attempts: SendAttempts, started_ms: int, outcome: Command | RemotingError
    ) -> Verdict:
        queue = attempts.queue
        broker_name = queue.broker_name if queue is not None else ""
        if not isinstance(outcome, Command):
            self._record(broker_name, None)
            if isinstance(outcome, ConnectError):
                return attempts.absent(outcome, self._clock.monotonic_ms())
            return attempts.lost(outcome)
        if parcel.lane is not None:
            parcel.lane.heard_ms = self._clock.monotonic_ms()
        if not is_stored(outcome.code):
            self._record(broker_name, None)
            return attempts.refused(outcome, self._clock.monotonic_ms())
        if self._faults is not None:
            self._record(broker_name, self._clock.monotonic_ms() - started_ms)
        try:
            result = read_result(outcome, parcel.items[0].msg_id, parcel.topic, broker_name, attempts.number)
        except PenstockError as error:
            attempts.is_unknown = True  # stored, but where is not known
            return attempts.lost(error)
        if parcel.sequence >= 0 and REPEATED_FIELD not in outcome.fields:
            return attempts.unrecognised(result)
        return attempts.stored_as(result)

    def _record(self, broker_name: str, latency_ms: int | None) -> None:
        if self._faults is None:
            return
        now = self._clock.monotonic_ms()
        if latency_ms is None:
            self._faults.failed(broker_name, now)
        else:
            self._faults.answered(broker_name, latency_ms, now)

    def _conclude(self, parcel: Parcel, attempts: SendAttempts, verdict: Verdict) -> None:
        if verdict is Verdict.DONE:
            shortfall = attempts.shortfall()
            self._finish(parcel, None if shortfall else attempts.stored, shortfall)
            return
        self._doubt(parcel, attempts)
        error = attempts.error()
        error.__cause__ = attempts.cause
        self._finish(parcel, None, error)

    async def _deliver(self, parcel: Parcel, attempts: SendAttempts) -> None:
        """Attempts that have to wait for something."""
        try:
            verdict = Verdict.RETRY
            while verdict is Verdict.RETRY:
                if attempts.count or attempts.absences:
                    await self._pause(parcel, attempts)
                verdict = await self._attempt(parcel, attempts)
        except PenstockError as error:  # no route, no name server: nothing was sent this time
            self._abandon(parcel, attempts, error)
        except asyncio.CancelledError:
            self._abandon(parcel, attempts, ClientClosedError("the producer was closed", "flush it first"))
            raise
        else:
            self._conclude(parcel, attempts, verdict)
        finally:
            self._unsent.discard(parcel)

    def _abandon(self, parcel: Parcel, attempts: SendAttempts, error: PenstockError) -> None:
        attempts.lost(error)
        if attempts.count > 1 or attempts.is_unknown:
            self._conclude(parcel, attempts, Verdict.GIVE_UP)
        else:
            self._doubt(parcel, attempts)
            self._finish(parcel, None, error)

    def _doubt(self, parcel: Parcel, attempts: SendAttempts) -> None:
        """This send is not tried again, but the next one should find the master of then."""
        if attempts.route_is_stale and not isinstance(attempts.cause, ClientClosedError):
            self._instance.routes.doubt(parcel.topic)

    async def _pause(self, parcel: Parcel, attempts: SendAttempts) -> None:
        """Wait before trying the same broker again, as long as it asked for; another one is tried at once."""
        first = parcel.items[0]
        is_free = parcel.queue is None and first.queue is None and not first.queue_key
        if attempts.absences < 2 and is_free and not attempts.is_bound:
            route = self._instance.routes.cache.get(parcel.topic)
            if route is not None and len({queue.broker_name for queue in route.publish_queues}) > 1:
                return
        if attempts.absences:
            wait_ms = min(_ABSENT_MAX_MS, _BACKOFF_FIRST_MS << min(attempts.absences - 1, 10))
        else:
            wait_ms = min(_BACKOFF_MAX_MS, _BACKOFF_FIRST_MS * 4 ** (attempts.count - 1))
        await asyncio.sleep(min(attempts.retry_after_ms or wait_ms, _RETRY_AFTER_MAX_MS) / 1000)

    async def _attempt(self, parcel: Parcel, attempts: SendAttempts) -> Verdict:
        now_ms = self._clock.monotonic_ms
        try:
            route = await self.route(parcel.topic, refresh=attempts.route_is_stale)
        except (ConnectError, RouteNotFoundError) as error:
            if not attempts.count and not attempts.absences:
                raise
            return attempts.absent(error, now_ms())  # it was there before, and may come back with its broker
        if not route.publish_queues:
            nowhere = ConnectError(
                f"no queue of topic {parcel.topic!r} can be written to",
                "its brokers have no master, or the topic has no write permission",
            )
            if not route.is_writable:
                raise nowhere
            return attempts.absent(nowhere, now_ms())
        queue = attempts.choose(route.publish_queues)
        address = route.master(queue.broker_name)
        if address is None:
            return attempts.absent(ConnectError(f"broker {queue.broker_name!r} has no master now"), now_ms())
        try:
            connection = await self._instance.remoting.connection(address)
        except ConnectError as error:
            self._record(queue.broker_name, None)
            return attempts.absent(error, now_ms())
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def respond(started_ms: int, outcome: Command | RemotingError) -> None:
            if not answer.done():
                answer.set_result(self._judge(parcel, attempts, started_ms, outcome))

        self._request(parcel, attempts, connection, queue, respond)
        try:
            return await answer
        except asyncio.CancelledError:
            attempts.is_unknown = True
            raise

    async def send_oneway(self, parcel: Parcel) -> None:
        """Send without an answer; errors only if it cannot be sent."""
        if self._options.idempotent:
            self._number(parcel)
        route = await self.route(parcel.topic)
        if not route.publish_queues:
            self._instance.routes.doubt(parcel.topic)
            raise ConnectError(f"no queue of topic {parcel.topic!r} can be written to")
        queue = self._next_queue(parcel)(route.publish_queues, "")
        address = route.master(queue.broker_name)
        try:
            if address is None:
                raise ConnectError(f"broker {queue.broker_name!r} has no master now")
            await self._instance.remoting.send(address, self._command(parcel, queue))
        except ConnectError:
            self._instance.routes.doubt(parcel.topic)
            raise

    async def recall(self, handle: str) -> Recalled:
        """Take a message back that waits for its time. Asked again while there is no master: twice is once."""
        found = RecallHandle.decode(handle)
        header = RecallMessageRequestHeader(
            producer_group=self._options.group,
            topic=found.topic,
            recall_handle=handle,
            broker_name=found.broker_name,
        )
        deadline = self._clock.monotonic_ms() + self._options.send_timeout_ms
        is_first = True
        while True:
            try:
                return await self._recall(found, header, refresh=not is_first)
            except (RemotingError, ResponseError) as error:
                is_final = isinstance(error, ResponseError) and error.code not in _NO_MASTER
                if is_final or self._clock.monotonic_ms() >= deadline:
                    raise
            is_first = False
            await asyncio.sleep(_ABSENT_MAX_MS / 1000)

    async def _recall(
        self, found: RecallHandle, header: RecallMessageRequestHeader, *, refresh: bool
    ) -> Recalled:
        address = (await self.route(found.topic, refresh=refresh)).master(found.broker_name)
        if address is None:
            raise ConnectError(f"broker {found.broker_name!r} has no master now", "try again in a moment")
        command = Command(RequestCode.RECALL_MESSAGE, header.encode())
        answer = check(await self._instance.remoting.call(address, command, self._options.send_timeout_ms))
        return Recalled(answer.fields.get("msgId", ""), answer.fields.get("MSG_REGION", ""))

    # -- tasks -----------------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is still waiting."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def complete(parcel: Parcel, result: SendResult | None, error: PenstockError | None) -> int:
    """Tell everybody who waits for a parcel's messages; how many failed with nobody to tell."""
    if parcel.future is not None:
        if result is None:
            _settle(parcel.future, None, error)
        else:
            _settle(parcel.future, BatchResult(result, [item.msg_id for item in parcel.items]), None)
        return 0
    results: Sequence[SendResult] | None = None
    untold = 0
    for number, item in enumerate(parcel.items):
        if item.future is None and item.callback is None:
            untold += error is not None
            continue
        if result is not None and results is None:
            ids = [each.msg_id for each in parcel.items]
            results = [result] if len(ids) == 1 else BatchResult(result, ids)
        one = results[number] if results is not None else None
        if item.future is not None:
            _settle(item.future, one, error)
        else:
            _call(item.callback, one, error)
    return untold


def _settle(future: Any, result: object, error: PenstockError | None) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except _ALREADY_DONE:
        pass  # cancelled by who waited for it; the message was sent all the same


def _call(callback: Callable[..., object], result: SendResult | None, error: PenstockError | None) -> None:
    try:
        callback(result, error)
    except Exception:
        logger.exception("the callback of a send failed")


def _always(queue: MessageQueue, queues: Sequence[MessageQueue], avoid: str) -> MessageQueue:
    return queue


def _by_key(key: str, queues: Sequence[MessageQueue], avoid: str) -> MessageQueue:
    return select_by_key(queues, key)


def _by_turns(turns: RoundRobin, clock: Any, queues: Sequence[MessageQueue], avoid: str) -> MessageQueue:
    return turns.next(queues, avoid, clock.monotonic_ms())
