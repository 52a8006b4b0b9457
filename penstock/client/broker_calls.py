"""What a consumer asks of brokers, one method per request code.

Rules: offsets and locks are the master's business. The members of a group are asked of the first broker of the
topic in the order of names that answers, so that all members hear the same list. An answer with an error code
raises ResponseError, except where a method says what it means. No state; belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock.client.instance import ClientInstance
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.routes import MASTER_ID, TopicRoute
from penstock.errors import ConnectError, PenstockError, RemotingError
from penstock.message.failures import bounded_reason
from penstock.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerList,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
)
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    Header,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullSysFlag,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from penstock.remoting import check

logger = logging.getLogger(__name__)
T = TypeVar("T")
OFFSET_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 1_000
LOCK_EXPIRY_MS = 30_000
SEND_BACK_TIMEOUT_MS = 5_000


class BrokerCalls:
    """The calls of one consumer group."""

    def __init__(
        self, instance: ClientInstance, group: str, holder: str = "", lock_expiry_ms: int = LOCK_EXPIRY_MS
    ) -> None:
        self._instance = instance
        self._group = group
        # How long a lock counts that could not be renewed.
        self.expiry_ms = lock_expiry_ms
        # Under which client id queues are leased; empty: they are not.
        self._holder = holder

    # -- offsets ---------------------------------------------------------------------------------------------

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = False) -> int | None:
        """The group's stored offset, or None. With `zero_if_young` a broker may answer 0 for a queue that still
        has its first message, as it does for RocketMQ's own clients."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=zero_if_young,
        )
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = OffsetResponseHeader.decode(check(answer).fields).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset and wait until the broker says that it did."""
        command = self._commit_command(queue, offset)
        answer = await self._ask_with(queue, command)
        if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            # A group that only reads what it was assigned has never introduced itself. A pull does that, where
            # groups are created on demand, without making this client a member.
            await self._introduce(queue)
            answer = await self._ask_with(queue, self._commit_command(queue, offset))
        check(answer)

    async def _introduce(self, queue: MessageQueue) -> None:
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=1,
            sys_flag=PullSysFlag.SUBSCRIPTION.value,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        await self._ask(queue, RequestCode.PULL_MESSAGE, header)

    async def commit_unheard(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset without an answer."""
        command = self._commit_command(queue, offset)
        await self._instance.remoting.send(self._master(queue.broker_name), command)

    async def first_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at that time or later; the end if there is none."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        answer = check(await self._ask(queue, code, header))
        return OffsetResponseHeader.decode(answer.fields).offset

    def _commit_command(self, queue: MessageQueue, offset: int) -> Command:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        fields = header.encode()
        if self._holder:
            fields[HOLDER_FIELD] = self._holder
        return Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _ask(self, queue: MessageQueue, code: RequestCode, header: Header) -> Command:
        """A question. Where no master answers it a slave does, which knows what the master knew moments ago."""
        try:
            return await self._ask_with(queue, Command(code, header.encode()))
        except RemotingError:
            instance, name = self._instance, queue.broker_name
            slave = instance.broker_address(name, MASTER_ID + 1)
            if slave is None or slave == instance.broker_address(name):
                raise
            return await instance.remoting.call(slave, Command(code, header.encode()), OFFSET_TIMEOUT_MS)

    async def _ask_with(self, queue: MessageQueue, command: Command) -> Command:
        if self._instance.broker_address(queue.broker_name) is None:
            # A queue of a topic that this client has not looked at yet: its route says where the broker is.
            await self._instance.routes.get(queue.topic)
        return await self._instance.call_broker(queue.broker_name, command, OFFSET_TIMEOUT_MS)

    def _master(self, broker_name: str) -> str:
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ConnectError(f"no master is known for broker {broker_name!r}", "routes are refreshed")
        return address

    # -- the group -------------------------------------------------------------------------------------------

    async def members(self, route: TopicRoute) -> tuple[str, ...] | None:
        """Client ids of the group, or None if no broker of the topic can tell."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        found = await self._ask_any(
            route, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, ConsumerList.decode
        )
        return found.consumer_ids if found is not None else None

    async def connections(self, route: TopicRoute) -> ConsumerConnection | None:
        """The clients of the group and what they consume, or None if no broker of the topic can tell."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._group)
        return await self._ask_any(
            route, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, ConsumerConnection.decode
        )

    async def _ask_any(
        self, route: TopicRoute, code: RequestCode, header: Header, decode: Callable[[bytes | bytearray], T]
    ) -> T | None:
        whom = [
            (name, broker_id, address)
            for name, broker in sorted(route.brokers.items())
            for broker_id, address in sorted(broker.broker_addrs.items())
        ]
        # Masters first, then slaves: they are told of all members too, and may outlive their master.
        for name, _, address in sorted(whom, key=lambda item: item[1] != MASTER_ID):
            try:
                answer = await self._instance.remoting.call(address, Command(code, header.encode()))
                if answer.code == ResponseCode.SUCCESS:
                    return decode(answer.body)
                # Also the answer of a broker that knows no member yet.
                logger.debug("members of %s at %s: %d %s", self._group, name, answer.code, answer.remark)
            except PenstockError as error:
                logger.info("members of %s at %s: %s", self._group, name, error)
        return None

    async def check_subscription(self, route: TopicRoute, subscription: SubscriptionData) -> None:
        """Have a broker read an SQL expression; ResponseError says what is wrong with it."""
        body = CheckClientRequestBody(self._instance.client_id, self._group, subscription)
        for name in sorted(route.brokers):
            address = route.brokers[name].any_address
            if address is not None:
                command = Command(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
                check(await self._instance.remoting.call(address, command))
                return

    # -- locks -----------------------------------------------------------------------------------------------

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Ask every broker for the locks of its queues: what was granted, and what was refused. Queues of a
        broker that did not answer are in neither."""
        granted: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            try:
                answer = check(
                    await self._lock_call(RequestCode.LOCK_BATCH_MQ, broker_name, wanted, LOCK_TIMEOUT_MS)
                )
                locked = set(LockBatchResponseBody.decode(answer.body).locked) & set(wanted)
            except PenstockError as error:
                logger.info("locking queues of %s at %s: %s", self._group, broker_name, error)
                return
            granted.update(locked)
            refused.update(set(wanted) - locked)

        await asyncio.gather(*(ask(name, wanted) for name, wanted in by_broker(queues).items()))
        return granted, refused

    async def renew(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Keep locks: asking for one again does that."""
        return await self.lock(queues)

    def asked_ms(self, queue: MessageQueue) -> int | None:
        """When the lock was asked for; not kept here."""
        return None

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back. One that cannot be reached runs out by itself after a minute."""

        async def ask(broker_name: str, held: list[MessageQueue]) -> None:
            try:
                check(await self._lock_call(RequestCode.UNLOCK_BATCH_MQ, broker_name, held, LOCK_TIMEOUT_MS))
            except PenstockError as error:
                logger.info("unlocking queues of %s at %s: %s", self._group, broker_name, error)

        await asyncio.gather(*(ask(name, held) for name, held in by_broker(queues).items()))

    async def _lock_call(
        self, code: RequestCode, broker_name: str, queues: list[MessageQueue], timeout_ms: int
    ) -> Command:
        body = LockBatchRequestBody(self._instance.client_id, self._group, tuple(queues))
        return await self._instance.call_broker(broker_name, Command(code, body=body.encode()), timeout_ms)

    # -- messages --------------------------------------------------------------------------------------------

    async def send_back(self, message: ReceivedMessage, retry: Retry, retries_max: int) -> None:
        """Hand a message to its broker, which delivers it again later or puts it to the dead letters."""
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.log_offset,
            group=self._group,
            delay_level=retry.delay_level,
            origin_msg_id=message.offset_msg_id,
            origin_topic=message.topic,
            max_reconsume_times=retries_max,
            broker_name=message.queue.broker_name,
            reason=bounded_reason(retry.reason) or None,
        )
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        check(await self._instance.call_broker(message.queue.broker_name, command, SEND_BACK_TIMEOUT_MS))


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Queues sorted by who has them."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
