"""Consumer groups and their offsets, as the admin client sees and changes them.

Rules: a group's brokers are found through the route of its retry topic, which exists as soon as the group was
seen; without one, all brokers are asked. A reset is asked of the brokers, which move consumers that are online
as well; a broker that cannot do it for a group that is offline has the offsets committed for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.client.admin_results import GroupDescription, GroupMember, QueueProgress
from penstock.client.cluster_calls import ClusterCalls
from penstock.errors import OptionError, ResponseError, RouteNotFoundError
from penstock.metadata.group_table import GroupRetryPolicy, SubscriptionGroup
from penstock.protocol.bodies.membership import ConsumerConnection
from penstock.protocol.bodies.queues import MessageQueue, ResetOffsetBody
from penstock.protocol.bodies.statistics import ConsumeStats
from penstock.protocol.bodies.tables import decode_group_config, decode_group_table, encode_group_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    Header,
    OffsetResponseHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

RETRY_PREFIX = "%RETRY%"
_SYSTEM_GROUPS = frozenset(
    {
        "CLIENT_INNER_PRODUCER",
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "FILTERSRV_CONSUMER",
        "SCHEDULE_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "TOOLS_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)
_SYSTEM_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS", "CID_SYS_RMQ_")
_TO_LAST = -1
# What a broker answers that resets only consumers that are online, or groups with offsets.
_NOT_HERE = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)


class GroupAdmin:
    """Questions and changes about groups."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def create(
        self,
        group: str,
        retry_max_times: int,
        orderly: bool,
        retry_queues: int = 1,
        retry_policy: GroupRetryPolicy | None = None,
    ) -> None:
        config = SubscriptionGroup(
            group,
            retry_max_times=retry_max_times,
            consume_message_orderly=orderly,
            retry_queue_nums=retry_queues,
            retry_policy=retry_policy or GroupRetryPolicy(),
        )
        await self._calls.ask_each(
            await self._calls.masters(),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=encode_group_config(config),
        )

    async def names(self, internal: bool) -> list[str]:
        answers = await self._calls.ask_each(
            await self._calls.masters(), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        )
        found = {name for answer in answers.values() for name in decode_group_table(answer.body).groups}
        if not internal:
            found = {n for n in found - _SYSTEM_GROUPS if not n.startswith(_SYSTEM_PREFIXES)}
        return sorted(found)

    async def delete(self, group: str, offsets: bool) -> None:
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=offsets)
        await self._calls.ask_each(await self._calls.masters(), RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def describe(self, group: str) -> GroupDescription:
        configs, connections, (progress, tps) = await asyncio.gather(
            self._configs(group), self._connections(group), self.progress(group)
        )
        if not configs and not connections and not progress:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker knows group {group!r}",
                "`penstock group list` shows those that there are",
            )
        members = {
            item.client_id: GroupMember(item.client_id, item.client_addr, item.language, item.version)
            for connection in connections
            for item in connection.connections
        }
        first = connections[0] if connections else None
        return GroupDescription(
            name=group,
            members=tuple(members[name] for name in sorted(members)),
            message_model=str(first.message_model) if first is not None else "",
            consume_type=str(first.consume_type) if first is not None else "",
            consume_from=str(first.consume_from_where) if first is not None else "",
            subscriptions={
                topic: item.sub_string
                for connection in connections
                for topic, item in sorted(connection.subscriptions.items())
            },
            progress=tuple(progress),
            consume_tps=tps,
            retry_max_times=configs[0].retry_max_times if configs else 16,
        )

    async def tries_max(self, group: str) -> int:
        """How often a message of a group is tried again, by the brokers' settings."""
        configs = await self._configs(group)
        return configs[0].retry_max_times if configs else 16

    async def _configs(self, group: str) -> list[SubscriptionGroup]:
        answers = await self._calls.ask_each(
            await self._calls.masters(),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            GetSubscriptionGroupConfigRequestHeader(group=group),
            also=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        return [decode_group_config(answer.body) for answer in answers.values()]

    async def _connections(self, group: str) -> list[ConsumerConnection]:
        answers = await self._calls.ask_each(
            await self._brokers(group),
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader(consumer_group=group),
            also=(ResponseCode.CONSUMER_NOT_ONLINE,),
        )
        return [ConsumerConnection.decode(answer.body) for answer in answers.values()]

    async def progress(self, group: str, topic: str = "") -> tuple[list[QueueProgress], float]:
        """Where the group stands in each queue, sorted, and how fast it goes."""
        answers = await self._calls.ask_each(
            await self._brokers(group),
            RequestCode.GET_CONSUME_STATS,
            GetConsumeStatsRequestHeader(consumer_group=group, topic=topic or None),
            also=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST),
        )
        tables = [ConsumeStats.decode(answer.body) for answer in answers.values()]
        found = [
            QueueProgress(queue, item.consumer_offset, item.broker_offset, item.last_timestamp)
            for table in tables
            for queue, item in table.offsets.items()
        ]
        return sorted(found, key=lambda item: item.queue), sum(table.consume_tps for table in tables)

    async def _brokers(self, group: str) -> dict[str, str]:
        try:
            route = await self._calls.instance.routes.refresh(RETRY_PREFIX + group)
        except RouteNotFoundError:
            return await self._calls.masters()
        found = {name: broker.master for name, broker in route.brokers.items() if broker.master is not None}
        return found or await self._calls.masters()

    # -- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._calls.ask(await self._master(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max_offset(self, queue: MessageQueue) -> int:
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        answer = await self._calls.ask(await self._master(queue), code, header)
        return OffsetResponseHeader.decode(answer.fields).offset

    async def _master(self, queue: MessageQueue) -> str:
        route = await self._calls.instance.routes.get(queue.topic)
        address = route.master(queue.broker_name)
        if address is None:
            raise RouteNotFoundError(f"broker {queue.broker_name!r} has no master for {queue.topic!r} now")
        return address

    # -- reset -----------------------------------------------------------------------------------------------

    async def reset_to_time(self, group: str, topic: str, to: str | int) -> dict[MessageQueue, int]:
        timestamp = _timestamp(to)
        route = await self._calls.instance.routes.refresh(topic)
        moved: dict[MessageQueue, int] = {}
        for name, broker in sorted(route.brokers.items()):
            if broker.master is None:
                continue
            header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp, is_force=True)
            try:
                answer = await self._calls.ask(
                    broker.master, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header
                )
                moved.update(ResetOffsetBody.decode(answer.body).offsets)
            except ResponseError as error:
                if error.code not in _NOT_HERE:
                    raise
                queues = [queue for queue in route.subscribe_queues if queue.broker_name == name]
                for queue in queues:
                    moved[queue] = await self._commit_time(group, queue, timestamp)
        return moved

    async def _commit_time(self, group: str, queue: MessageQueue, timestamp: int) -> int:
        if timestamp == _TO_LAST:
            offset = await self.max_offset(queue)
        else:
            offset = await self.offset_at(queue, timestamp)
        await self.commit(group, queue, offset)
        return offset

    async def reset_to_offsets(
        self, group: str, topic: str, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        for queue in offsets:
            if queue.topic != topic:
                raise OptionError(f"{queue} is not of topic {topic!r}", "use queues of that topic")
        for queue, offset in offsets.items():
            header = ResetOffsetRequestHeader(
                topic=topic,
                group=group,
                timestamp=_TO_LAST,
                is_force=True,
                queue_id=queue.queue_id,
                offset=offset,
            )
            address = await self._master(queue)
            try:
                await self._calls.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except ResponseError as error:
                if error.code not in _NOT_HERE:
                    raise
                await self.commit(group, queue, offset)
        return dict(offsets)


def _timestamp(to: str | int) -> int:
    if to == "first":
        return 0
    if to == "last":
        return _TO_LAST
    if isinstance(to, int) and not isinstance(to, bool) and 0 <= to < 2**63:
        return to
    raise OptionError(f"a group cannot be moved to {to!r}", 'use "first", "last" or a time in milliseconds')
