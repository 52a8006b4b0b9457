"""A message that failed goes back to its broker, or else to any broker.

    1. CONSUMER_SEND_MSG_BACK to the broker that has it: the broker finds it by its place in the log
    2. an ordinary send of a copy to the group's retry topic, at whichever broker takes it

Either way the broker delivers it again through the retry topic, later each time, and after too many tries puts
it to the dead letters. The second way is for a broker that is down or has lost the message. The copy keeps its
unique id, its properties and its packed body. Belongs to the consumer's event loop.
"""

from __future__ import annotations

import logging

from penstock.client.broker_calls import SEND_BACK_TIMEOUT_MS, BrokerCalls
from penstock.client.instance import ClientInstance
from penstock.client.received import ORIGIN_MESSAGE_ID, RETRY_TOPIC, ReceivedMessage, Retry, retry_topic
from penstock.client.results import is_stored
from penstock.errors import PenstockError, PropertiesTooLargeError, ResponseError
from penstock.message import PropertyName, SystemFlag, encode_properties
from penstock.message.failures import FIRST_FAILED, ORIGIN, REASON, bounded_reason
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader

logger = logging.getLogger(__name__)
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
FIRST_RETRY_LEVEL = 3
# The broker knows these by other means, or must not see them on a copy.
_NOT_COPIED = ("TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "REAL_TOPIC", "REAL_QID")
_KEPT_FLAGS = SystemFlag.COMPRESSED | SystemFlag.COMPRESSION_MASK


class Retries:
    """Hands messages of one group back."""

    def __init__(self, instance: ClientInstance, calls: BrokerCalls, group: str, retries_max: int) -> None:
        self._instance = instance
        self._calls = calls
        self._topic = retry_topic(group)
        self._retries_max = retries_max

    async def hand_back(self, message: ReceivedMessage, retry: Retry) -> bool:
        """Whether somebody has it now. A negative level: to the dead letters."""
        try:
            await self._calls.send_back(message, retry, self._retries_max)
            return True
        except PenstockError as error:
            logger.info("handing %r back: %s", message, error)
        try:
            await self._send_copy(message, retry)
            return True
        except PenstockError as error:
            logger.warning("neither its broker nor any other takes %r back: %s", message, error)
            return False

    async def _send_copy(self, message: ReceivedMessage, retry: Retry) -> None:
        route = await self._instance.routes.get(self._topic)
        queues = route.publish_queues
        if not queues:
            raise ResponseError(17, f"{self._topic} has no queue that takes messages")
        queue = queues[self._instance.runtime.entropy.below(len(queues))]
        stored = message.stored
        tries = message.tries + 1
        if retry.delay_level < 0:
            # One more than allowed is how an ordinary send says "dead letter".
            tries = self._retries_max + 1
        header = SendMessageRequestHeader(
            producer_group=INNER_PRODUCER,
            topic=self._topic,
            queue_id=queue.queue_id,
            sys_flag=stored.sys_flag & _KEPT_FLAGS,
            born_timestamp=stored.born_timestamp,
            flag=stored.flag,
            properties=self._properties(message, retry).decode(),
            reconsume_times=tries,
            max_reconsume_times=self._retries_max,
            broker_name=queue.broker_name,
        )
        command = Command(RequestCode.SEND_MESSAGE_V2, header.encode(), stored.body)
        answer = await self._instance.call_broker(queue.broker_name, command, SEND_BACK_TIMEOUT_MS)
        if not is_stored(answer.code):
            raise ResponseError(answer.code, answer.remark or "no reason given")

    def _properties(self, message: ReceivedMessage, retry: Retry) -> bytes:
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
        level = retry.delay_level if retry.delay_level > 0 else FIRST_RETRY_LEVEL + message.tries
        properties[PropertyName.DELAY] = str(level)
        # The broker notes these when it takes a message back; a copy that is sent comes with them.
        noted = {
            FIRST_FAILED: str(self._instance.runtime.clock.now_ms()),
            ORIGIN: f"{message.queue.broker_name}/{message.queue.queue_id}/{message.queue_offset}",
            **properties,
        }
        if reason := bounded_reason(retry.reason):
            noted[REASON] = reason
        try:
            return encode_properties(noted)
        except PropertiesTooLargeError:
            return encode_properties(properties)
