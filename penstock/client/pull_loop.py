"""Pulling one queue: ask for what comes next, take it in, ask again.

    answer   0  found            decode, filter by tag text, hand out
            19  nothing new      the broker has waited for us; ask again
            20  nothing matched  go on behind what was looked at
            21  offset moved     the queue begins anew at the offset that the broker names
        24, 25  who are you      send a heartbeat, ask again
       2, 215   too fast         ask again after a short while
         other  trouble          ask again after a second

Rules: the next question has left before the last answer is decoded, so that the broker works while we do.
While the queue is full or paused nothing is asked. The offset that is done with travels with each question to a
master. Records that cannot be read, or are of another topic, are never skipped: the queue stops there, says so,
and tries again (I12). One task per queue, in the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from penstock.client.process_queue import ProcessQueue
from penstock.client.queue_loop import QueueContext, QueueLoop
from penstock.client.received import ReceivedMessage, decode_records
from penstock.client.routes import MASTER_ID, read_address
from penstock.client.subscription import wants
from penstock.errors import (
    CodecError,
    CorruptRecordError,
    RemotingError,
    ResponseError,
)
from penstock.protocol.bodies import SubscriptionData
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PULL_BATCH, PULL_FIELD, PullMessageRequestHeader, PullSysFlag
from penstock.remoting import Connection

logger = logging.getLogger(__name__)
BUSY_MS = 20
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
_UNKNOWN_TO_BROKER = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)


class PullLoop(QueueLoop):
    """Pulls one queue until it is retired."""

    def __init__(self, context: QueueContext, owner: ProcessQueue) -> None:
        super().__init__(context, owner)
        self._broker_id = MASTER_ID
        # Attempts in a row that nobody answered.
        self._unanswered = 0
        self._fields: dict[str, str] = {}
        self._version = -1
        self._asked_ms = 0
        self._spent_ms = 0
        self._sub: SubscriptionData | None = None
        self._last_address: str | None = None
        # Of the question whose answer is waited for; older answers do not count.
        self._serial = 0
        self._ended: asyncio.Future[Command | None] | None = None

    async def run(self) -> None:
        """Ends when the queue is retired; cancelled otherwise."""
        try:
            await super().run()
        finally:
            self._serial += 1  # no answer counts any more

    async def _turn(self) -> None:
        connection = await self._context.instance.remoting.connection(self._address())
        answer = await self._episode(connection)
        if answer is not None:
            await self._not_found(answer)

    # -- asking ----------------------------------------------------------------------------------------------

    async def _episode(self, connection: Connection) -> Command | None:
        """Pull as long as messages come. Answers with messages are dealt with, and the next questions asked, where
        they arrive, so that the questions of many queues leave together; what else comes ends the episode: an
        answer without messages, an error, or None if no question could be asked at once."""
        ended: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
        self._ended = ended
        self._request(connection, self._owner.next_offset)
        return await ended

    def _request(self, connection: Connection, offset: int) -> None:
        self._serial += 1
        command = Command(int(RequestCode.PULL_MESSAGE), self._header(offset))
        self._asked_ms = self._clock.monotonic_ms()
        respond = partial(self._respond, self._serial)
        connection.request(command, respond, self._context.options.pull_timeout_ms)

    def _respond(self, serial: int, outcome: Command | RemotingError) -> None:
        ended = self._ended
        if serial != self._serial or ended is None or ended.done():
            return  # nobody waits for it any more
        try:
            if not isinstance(outcome, Command):
                ended.set_exception(outcome)
            elif outcome.code != ResponseCode.SUCCESS:
                ended.set_result(outcome)
            else:
                self._found(outcome, ended)
        except Exception as error:  # whatever it is, it is the loop's and not the connection's
            ended.set_exception(error)

    def _ask_at_once(self, offset: int) -> bool:
        """Ask the next question, if that can be done without waiting for anything."""
        owner = self._owner
        if owner.is_retired or owner.is_paused or owner.is_full:
            return False
        address = self._known_address()
        connection = self._context.instance.remoting.open_connection(address) if address else None
        if connection is None:
            return False
        self._request(connection, offset)
        return True

    def _known_address(self) -> str | None:
        """Where to pull. A broker that is in no route any more may still be there: a name server that was just
        started knows nobody until the brokers have told it."""
        broker = self._context.instance.routes.cache.brokers.get(self._queue.broker_name)
        if broker is not None:
            self._last_address = read_address(broker, self._broker_id)
        return self._last_address

    def _slave_id(self) -> int:
        """A slave of the queue's broker, or the master if there is none."""
        broker = self._context.instance.routes.cache.brokers.get(self._queue.broker_name)
        slaves = [] if broker is None else [number for number in broker.broker_addrs if number != MASTER_ID]
        return min(slaves, default=MASTER_ID)

    def _header(self, offset: int) -> dict[str, str]:
        """The fields of the question; all but three are the same each time."""
        context, queue = self._context, self._queue
        subscription = context.subscription(queue.topic)
        version = subscription.sub_version if subscription is not None else 0
        if version != self._version:
            self._sub, self._version = subscription, version
            self._fields = PullMessageRequestHeader(
                consumer_group=context.options.group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=0,
                max_msg_nums=context.options.pull_batch,
                sys_flag=0,
                commit_offset=0,
                suspend_timeout_millis=context.options.suspend_ms,
                # Without a subscription that the broker knows from heartbeats, the question carries its own.
                subscription=None if subscription is not None else "*",
                sub_version=version,
                expression_type=subscription.expression_type if subscription is not None else "TAG",
                broker_name=queue.broker_name,
            ).encode()
            self._fields[PULL_FIELD] = PULL_BATCH
            if context.holder:
                self._fields[HOLDER_FIELD] = context.holder
        flag = PullSysFlag.SUSPEND if context.options.suspend_ms else PullSysFlag(0)
        if subscription is None:
            flag |= PullSysFlag.SUBSCRIPTION
        done = context.offsets.get(queue)
        if (
            done is not None
            and done > 0
            and not context.options.is_broadcasting
            and self._broker_id == MASTER_ID
        ):
            flag |= PullSysFlag.COMMIT_OFFSET
        fields = dict(self._fields)
        fields["queueOffset"] = str(offset)
        fields["sysFlag"] = str(int(flag))
        fields["commitOffset"] = str(done or 0)
        return fields

    # -- answers ---------------------------------------------------------------------------------------------

    def _found(self, answer: Command, ended: asyncio.Future[Command | None]) -> None:
        """Messages have come: ask the next question first, then take them in, when it has left."""
        owner = self._owner
        self._answered(answer)
        next_offset = answer.integer("nextBeginOffset", 0)
        if next_offset <= owner.next_offset:
            # An answer that leads nowhere would be asked for in a circle.
            raise CodecError(f"the broker's answer ends at {next_offset}, before {owner.next_offset + 1}")
        self._spent_ms = owner.pulled_ms - self._asked_ms
        is_last = not self._ask_at_once(next_offset)
        # Runs before anything more is read, and after all questions of this moment have left together.
        asyncio.get_running_loop().call_soon(self._take_in, answer.body, next_offset, is_last, ended)

    def _take_in(
        self, body: bytes | bytearray, next_offset: int, is_last: bool, ended: asyncio.Future[Command | None]
    ) -> None:
        if ended.done() or self._owner.is_dropped:
            return
        try:
            messages = self._decode(body)
        except Exception as error:
            # What was just asked comes too early: nothing may be taken in behind what was not.
            self._serial += 1
            good = error.position if isinstance(error, CorruptRecordError) else 0
            if not good:
                ended.set_exception(error)
                return
            # What comes before the damage is good; the next pull begins with the damage and says so.
            is_last, messages = True, self._decode(memoryview(body)[:good])
            next_offset = messages[-1].queue_offset + 1
        self._context.meters.pulled(self._queue.topic, len(messages), self._spent_ms)
        self._accept(messages, next_offset)
        if is_last:
            ended.set_result(None)

    def _decode(self, body: bytes | bytearray | memoryview) -> list[ReceivedMessage]:
        return decode_records(body, self._queue, self._context.options.body_bytes_max)

    def _accept(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        owner, subscription = self._owner, self._sub
        if subscription is not None and subscription.tags_set:
            messages = [message for message in messages if wants(subscription, message.tag)]
        elif subscription is not None and (keys := subscription.keys):
            messages = [message for message in messages if not keys.isdisjoint(message.keys)]
        new = owner.put(messages, next_offset)
        if new:
            self._context.accept(owner, new)
        elif not len(owner):
            self._context.offsets.advance(self._queue, owner.next_offset)

    async def _not_found(self, answer: Command) -> None:
        code = answer.code
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            before = (self._owner.next_offset, self._broker_id)
            self._answered(answer)
            self._owner.put((), answer.integer("nextBeginOffset", 0))
            if not len(self._owner):
                self._context.offsets.advance(self._queue, self._owner.next_offset)
            if code == ResponseCode.PULL_NOT_FOUND and not self._context.options.suspend_ms:
                await asyncio.sleep(self._context.options.pull_retry_ms / 1000)
            elif code != ResponseCode.PULL_NOT_FOUND and before == (self._owner.next_offset, self._broker_id):
                await asyncio.sleep(BUSY_MS / 1000)  # nothing matched, and yet nothing to go on to
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._answered(answer)
            offset = answer.integer("nextBeginOffset", 0)
            if self._owner.is_dropped:
                return
            logger.warning(
                "%s goes on at offset %d instead of %d: %s",
                self._queue, offset, self._owner.next_offset, answer.remark or "the broker says so",
            )  # fmt: skip
            self._owner.retire()
            self._context.moved(self._owner, offset)
        elif code in _BUSY:
            await asyncio.sleep(BUSY_MS / 1000)
        else:
            if code in _UNKNOWN_TO_BROKER:
                await self._context.instance.heartbeat()
            raise ResponseError(code, answer.remark or "no reason given")

    def _answered(self, answer: Command) -> None:
        self._owner.pulled_ms = self._clock.monotonic_ms()
        self._owner.pulled_wall_ms = self._clock.now_ms()
        self._unanswered = 0
        self._broker_id = answer.integer_or("suggestWhichBrokerId", MASTER_ID, 0)

    async def _failed(self, error: Exception) -> None:
        self._broker_id = MASTER_ID
        if isinstance(error, RemotingError):
            # A master that is gone may stay in the route for minutes; its slaves have what it had.
            self._unanswered += 1
            if self._unanswered % 2:
                self._broker_id = self._slave_id()
        await super()._failed(error)
