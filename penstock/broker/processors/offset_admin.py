"""Offsets moved, copied and asked for by operators (222, 223, 314), and groups barred from topics (353).

A reset is carried out by the broker itself: the target is remembered per queue, counts at once, and the next pull
of the queue is sent there. Where that is switched off (`server_side_reset`) the consumers are told to do it
(220), as before RocketMQ 5, which needs them online. Clients are never waited for longer than their time, and only
so many are asked at once (`ClientCalls`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from penstock.broker.channels import ClientChannel
from penstock.broker.consumers import Consumers
from penstock.broker.flow_control import BusyError
from penstock.broker.groups import Groups, validate_group
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.reading import saved
from penstock.broker.processors.relay import ClientCalls
from penstock.broker.topics import Topics
from penstock.errors import CodecError, RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import GetConsumerStatusBody, GroupForbidden, MessageQueue, ResetOffsetBody
from penstock.protocol.codes import V3_0_7, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.store.message_store import MessageStore

_LOG = logging.getLogger("penstock.broker")
STATUS_TIMEOUT_MS = 5_000
ALL_QUEUES = -1
NO_OFFSET = -1
END_OF_QUEUE = -1


class OffsetAdminProcessor:
    """Moves and copies the progress of groups."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        store: MessageStore,
        calls: ClientCalls,
    ) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._store = store
        self._calls = calls

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.handle_reset_offset)
        table.register(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.handle_get_consumer_status)
        table.register(RequestCode.CLONE_GROUP_OFFSET, self.handle_clone_group_offset)
        table.register(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, self.handle_group_forbidden)

    # -- resets ----------------------------------------------------------------------------------------------

    def handle_reset_offset(self, connection: Connection, command: Command) -> Command:
        header = ResetOffsetRequestHeader.decode(command.fields)
        config = self._topics.get(header.topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:80]!r} does not exist here"
            )
        if self._options.server_side_reset:
            targets = self._reset_here(header, config)
        else:
            targets = self._reset_at_clients(header, config, command)
        return command.answer(body=ResetOffsetBody(self._by_queue(header.topic, targets)).encode())

    def _reset_here(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[int, int]:
        if self._groups.find(header.group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {header.group[:80]!r} does not exist here",
            )
        targets = self._targets(header, config)
        for queue_id, offset in targets.items():
            self._offsets.assign_reset(header.group, header.topic, queue_id, offset)
        _LOG.info("offsets of group %s in topic %s are reset: %s", header.group, header.topic, targets)
        return targets

    def _targets(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[int, int]:
        topic, queue_id = header.topic, header.queue_id
        if queue_id == ALL_QUEUES:
            if not config.read_queue_nums:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queues to reset")
            return {
                number: self._at_time(topic, number, header.timestamp)
                for number in range(config.read_queue_nums)
            }
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        offset = NO_OFFSET if header.offset is None else header.offset
        if offset == NO_OFFSET:
            return {queue_id: self._at_time(topic, queue_id, header.timestamp)}
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if not low <= offset <= high:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"offset {offset} is not in the queue, which has {low} to {high}"
            )
        return {queue_id: offset}

    def _at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms <= END_OF_QUEUE:
            return self._store.max_offset(topic, queue_id)
        return self._store.reader.offset_by_time(topic, queue_id, timestamp_ms)

    def _reset_at_clients(
        self, header: ResetOffsetRequestHeader, config: TopicConfig, command: Command
    ) -> dict[int, int]:
        """Tell every consumer where to go on; without force only backwards."""
        targets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            consumed = self._offsets.query(header.group, header.topic, queue_id)
            if consumed < 0:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"consumer group {header.group[:80]!r} has no offset in queue {queue_id}",
                )
            target = self._at_time(header.topic, queue_id, header.timestamp)
            targets[queue_id] = target if header.is_force or target < consumed else consumed
        group = self._consumers.group(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {header.group[:80]!r} is online",
                "start one, or reset the offsets yourself",
            )
        body = ResetOffsetBody(self._by_queue(header.topic, targets))
        for channel in group.members:
            _check_version(channel)
            push = Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ResetOffsetRequestHeader(
                    topic=header.topic,
                    group=header.group,
                    timestamp=header.timestamp,
                    is_force=header.is_force,
                ).encode(),
                body.encode_list() if channel.language == "CPP" else body.encode(),
                language="JAVA",
            )
            channel.connection.send(push)
        return targets

    def _by_queue(self, topic: str, offsets: dict[int, int]) -> dict[MessageQueue, int]:
        broker = self._options.broker_name
        return {MessageQueue(topic, broker, queue_id): offset for queue_id, offset in offsets.items()}

    # -- what consumers hold in memory -----------------------------------------------------------------------

    def handle_get_consumer_status(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = GetConsumerStatusRequestHeader.decode(command.fields)
        group = self._consumers.group(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group[:80]}]",
            )
        asked = [
            channel
            for channel in group.members
            if not header.client_addr or channel.client_id == header.client_addr
        ]
        for channel in asked:
            _check_version(channel)
        return self._ask(command, header, asked)

    async def _ask(
        self, command: Command, header: GetConsumerStatusRequestHeader, channels: Iterable[ClientChannel]
    ) -> Command:
        """All at once, so that a silent client costs its time once and not once for each of the others."""
        answers = await asyncio.gather(*(self._ask_one(channel, header) for channel in channels))
        table = {client_id: queues for client_id, queues in answers if queues is not None}
        return command.answer(body=GetConsumerStatusBody(clients=table).encode())

    async def _ask_one(
        self, channel: ClientChannel, header: GetConsumerStatusRequestHeader
    ) -> tuple[str, dict[MessageQueue, int] | None]:
        request = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header.encode())
        try:
            response = await self._calls.call(channel, request, STATUS_TIMEOUT_MS)
            if response.code == ResponseCode.SUCCESS and response.body:
                return channel.client_id, GetConsumerStatusBody.decode(response.body).queues
        except BusyError:
            raise
        except (RequestError, CodecError) as error:
            _LOG.warning("consumer %s did not tell its offsets: %s", channel.client_id, error)
        return channel.client_id, None

    # -- the rest --------------------------------------------------------------------------------------------

    def handle_clone_group_offset(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = CloneGroupOffsetRequestHeader.decode(command.fields)
        validate_group(header.dest_group)
        self._groups.require(header.dest_group)
        online = self._consumers.group(header.src_group)
        topics = [header.topic] if header.topic else self._offsets.topics_of_group(header.src_group)
        for topic in topics:
            if self._topics.get(topic) is None:
                continue
            if not header.offline and online is not None and topic not in online.subscriptions:
                continue  # a group online that does not subscribe to it any more has no say in it
            for queue_id, offset in [*self._offsets.queues(header.src_group, topic).items()]:
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
        return saved(self._offsets, command)

    def handle_group_forbidden(self, connection: Connection, command: Command) -> Command:
        header = UpdateGroupForbiddenRequestHeader.decode(command.fields)
        if header.readable is not None:
            self._require_both(header.group, header.topic)
            self._groups.forbid_read(header.group, header.topic, not header.readable)
        readable = not self._groups.is_read_forbidden(header.group, header.topic)
        return command.answer(body=GroupForbidden(header.group, header.topic, readable).encode())

    def _require_both(self, group: str, topic: str) -> None:
        if self._groups.find(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {group[:80]!r} does not exist here",
            )
        if self._topics.get(topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic[:80]!r} does not exist here")


def _check_version(channel: ClientChannel) -> None:
    if channel.version < V3_0_7:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"client {channel.client_id} of version {channel.version} does not support this",
            "upgrade it",
        )
