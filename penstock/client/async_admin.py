"""Administration of a cluster from a program: topics, groups, offsets, messages, health.

    async with penstock.AsyncAdmin("127.0.0.1:9876") as admin:
        await admin.create_topic("T", queues=8)
        print(await admin.describe_topic("T"))

Rules: nothing is changed by a question. A change is made at every broker it concerns, and raises if one of them
refuses or is silent: then it may be made at some, and making it again is safe. Belongs to the loop it was
started in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from penstock.client.admin_dead_letters import AsyncDeadLetters
from penstock.client.admin_groups import GroupAdmin
from penstock.client.admin_messages import MessageAdmin
from penstock.client.admin_push import PushAdmin
from penstock.client.admin_results import (
    BrokerStatus,
    ClusterStatus,
    GroupDescription,
    QueueStatus,
    TimersWaiting,
    TopicDescription,
)
from penstock.client.admin_timers import TimerAdmin
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.instance import ClientInstance
from penstock.client.key_reading import LIMIT_MAX as KEYED_LIMIT_MAX
from penstock.client.key_reading import KeyedValues, KeyReading
from penstock.client.loop_thread import require_loop
from penstock.client.options import (
    DEFAULT_NAME_SERVER,
    GROUP_NAME_MAX,
    ClientOptions,
    check_name,
    check_objects,
    milliseconds,
    read_client_settings,
    require_range,
    require_text,
)
from penstock.client.outgoing import topic_text
from penstock.client.queue_selection import check_offsets, check_queue
from penstock.client.received import ReceivedMessage
from penstock.client.routes import MessageQueue
from penstock.client.service_state import OneProcess
from penstock.client.trace_records import TRACE_TOPIC, TraceRecord
from penstock.errors import (
    ClientClosedError,
    OptionError,
    PenstockError,
    RemotingError,
    RouteNotFoundError,
)
from penstock.metadata.group_table import GroupRetryPolicy
from penstock.protocol.bodies.push import PushListBody, PushResumed
from penstock.protocol.bodies.route import ClusterInfo, GroupList, KVTable, TopicList
from penstock.protocol.bodies.statistics import TopicStatsTable
from penstock.protocol.bodies.tables import decode_topic_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from penstock.remoting import RpcHook, TlsOptions, check
from penstock.runtime import Runtime

READ_WRITE = 6
_INT32_MAX = 2**31 - 1
_ROUTE_WAIT_MS = 2_000
_INTERNAL_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_")
_INTERNAL_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "PENSTOCK_PUBLISHED",
        "PENSTOCK_REDRIVEN",
        "PENSTOCK_STAGED",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)


class AdminSettings(TypedDict, total=False):
    """Keyword arguments of an admin client: the fields of `ClientOptions`."""

    instance_name: str
    unit_name: str
    client_ip: str
    call_timeout_ms: int
    heartbeat_interval_ms: int
    route_interval_ms: int
    reconnect_interval_ms: int
    coordinators: str | Iterable[str]
    access_key: str
    secret_key: str
    security_token: str
    credentials_file: str
    min_signature: int


class AsyncAdmin(OneProcess):
    """An admin client inside an event loop. Start it with `async with`, or `start` and `close`."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        rpc_hook: RpcHook | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        given: dict[str, Any] = {**settings, "name_servers": name_servers}
        check_objects(tls=tls, rpc_hook=rpc_hook)
        self.client_options: ClientOptions = read_client_settings(given)
        self._runtime = runtime
        self._tls = tls
        self._rpc_hook = rpc_hook
        self._instance: ClientInstance | None = None
        # In which it was started.
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to a name server."""
        if self._instance is not None:
            require_loop(self._loop)
        else:
            self._loop = asyncio.get_running_loop()
            self._instance = await ClientInstance.acquire(
                self.client_options, runtime=self._runtime, tls=self._tls, rpc_hook=self._rpc_hook
            )
        return self

    async def close(self) -> None:
        """Leave the cluster."""
        if self._instance is not None:
            require_loop(self._loop)
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _calls(self) -> ClusterCalls:
        if self._instance is None:
            raise ClientClosedError("the admin client is not started", "use `async with`, or await start()")
        require_loop(self._loop)
        return ClusterCalls(self._instance)

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        permission: int = READ_WRITE,
        cluster: str = "",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        shrink: bool = False,
    ) -> None:
        """Create a topic at every broker, or change the one that is there; returns when it has a route.

        With fewer queues than it has, the messages of the other queues can no longer be read: that needs `shrink`.
        """
        topic_text(topic)
        require_range("queues", queues, 1, _INT32_MAX)
        if permission not in (READ_WRITE, 2, 4):
            raise OptionError(
                f"permission is {permission!r}", "use 6 to read and write, 4 to read, 2 to write"
            )
        require_text("cluster", cluster)
        _check_attributes(attributes)
        calls = self._calls
        if not shrink:
            await self._refuse_to_shrink(topic, queues, cluster)
        header = CreateTopicRequestHeader(
            topic=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=permission,
            order=order,
            attributes=",".join(f"+{name}={value}" for name, value in (attributes or {}).items()) or None,
        )
        await calls.ask_each(await calls.masters(cluster), RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self._until_routed(topic)

    async def _refuse_to_shrink(self, topic: str, queues: int, cluster: str) -> None:
        try:
            route = await self._calls.instance.routes.refresh(topic)
        except RouteNotFoundError:
            return
        for found in route.queues:
            broker = route.brokers.get(found.broker_name)
            count = max(found.read_queue_nums, found.write_queue_nums)
            if count > queues and (not cluster or (broker is not None and broker.cluster == cluster)):
                raise OptionError(
                    f"topic {topic!r} has {count} queues on {found.broker_name}: with {queues}, the messages of "
                    f"{_last_queues(count - queues)} can no longer be read",
                    f"use {count} or more queues; to hide those messages on purpose: shrink=True, or --shrink",
                )

    async def _until_routed(self, topic: str) -> None:
        """Brokers tell the name servers at once, but not before they answer us."""
        routes = self._calls.instance.routes
        for _ in range(_ROUTE_WAIT_MS // 20):
            try:
                await routes.refresh(topic)
            except RouteNotFoundError:
                await asyncio.sleep(0.02)
            else:
                return

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names of all topics; with `internal` also those that the system made for itself."""
        calls = self._calls
        command = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = check(await calls.instance.name_servers.call(command))
        names = set(TopicList.decode(answer.body).topics)
        if not internal:
            cluster = await calls.cluster()
            own = {*cluster.cluster_addr_table, *cluster.broker_addr_table}
            own |= {f"{name}_REPLY_TOPIC" for name in cluster.cluster_addr_table}
            names = {name for name in names - own if not is_internal_topic(name)}
        return sorted(names)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """A topic's queues with their offsets. RouteNotFoundError if it does not exist."""
        topic_text(topic)
        calls = self._calls
        route = await calls.instance.routes.refresh(topic)
        masters = {name: b.master for name, b in sorted(route.brokers.items()) if b.master is not None}
        stats, configs = await asyncio.gather(
            calls.ask_each(
                masters,
                RequestCode.GET_TOPIC_STATS_INFO,
                GetTopicStatsInfoRequestHeader(topic=topic),
                also=(ResponseCode.TOPIC_NOT_EXIST,),
            ),
            calls.ask_each(
                masters,
                RequestCode.GET_TOPIC_CONFIG,
                GetTopicConfigRequestHeader(topic=topic),
                also=(ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            ),
        )
        tables = [TopicStatsTable.decode(answer.body) for answer in stats.values()]
        queues = [
            QueueStatus(queue, status.min_offset, status.max_offset, status.last_update_timestamp)
            for table in tables
            for queue, status in table.offsets.items()
        ]
        return TopicDescription(
            name=topic,
            queues=tuple(sorted(queues, key=lambda item: item.queue)),
            brokers=masters,
            permissions={item.broker_name: item.perm for item in route.queues},
            attributes={
                name: dict(decode_topic_config(answer.body).attributes) for name, answer in configs.items()
            },
            put_tps=sum(table.topic_put_tps for table in tables),
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, everywhere. RouteNotFoundError if it does not exist."""
        topic_text(topic)
        calls = self._calls
        await calls.instance.routes.refresh(topic)
        header = DeleteTopicRequestHeader(topic=topic)
        await calls.ask_each(await calls.masters(), RequestCode.DELETE_TOPIC_IN_BROKER, header)
        await calls.tell_name_servers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic=topic)
        )
        calls.instance.routes.cache.forget(topic)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return list((await self._calls.instance.routes.refresh(topic_text(topic))).subscribe_queues)

    async def write_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to."""
        return list((await self._calls.instance.routes.refresh(topic_text(topic))).publish_queues)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that subscribe to a topic, or have consumed from it."""
        topic_text(topic)
        calls = self._calls
        route = await calls.instance.routes.refresh(topic)
        masters = {name: b.master for name, b in route.brokers.items() if b.master is not None}
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        answers = await calls.ask_each(masters, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return sorted({name for answer in answers.values() for name in GroupList.decode(answer.body).groups})

    # -- groups and offsets ----------------------------------------------------------------------------------

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        orderly: bool = False,
        retry_queues: int = 1,
        retry_policy: GroupRetryPolicy | None = None,
    ) -> None:
        """Create a consumer group at every broker, or change the one that is there. The policy says how long a
        message waits for its next try; without one, the broker's delay levels do, from the third on."""
        check_name("group", group, GROUP_NAME_MAX)
        require_range("retry_max_times", retry_max_times, -1, _INT32_MAX)
        require_range("retry_queues", retry_queues, 0, _INT32_MAX)
        if retry_policy is not None and not isinstance(retry_policy, GroupRetryPolicy):
            raise OptionError(f"retry_policy is {retry_policy!r}", "use a GroupRetryPolicy")
        await GroupAdmin(self._calls).create(group, retry_max_times, orderly, retry_queues, retry_policy)

    async def list_groups(self, *, internal: bool = False) -> list[str]:
        """Names of all consumer groups; with `internal` also those of the system's own tools."""
        return await GroupAdmin(self._calls).names(internal)

    async def describe_group(self, group: str) -> GroupDescription:
        """A group's members, subscriptions and progress."""
        check_name("group", group)
        return await GroupAdmin(self._calls).describe(group)

    async def push_clients(self, group: str = "") -> dict[str, PushListBody]:
        """Who is pushed to, by broker: all clients, or those of a group, with what is unanswered and parked."""
        require_text("group", group)
        return await PushAdmin(self._calls).clients(group)

    async def resume_push(self, group: str = "", client: str = "") -> dict[str, tuple[PushResumed, ...]]:
        """Have deliveries go on that are parked or held: of a group, of a client, or of a client in a group. What
        became of each, by broker."""
        require_text("group", group)
        require_text("client", client)
        if not group and not client:
            raise OptionError("neither a group nor a client is named", "name whose deliveries are to go on")
        return await PushAdmin(self._calls).resume(group, client)

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Forget a group, and its offsets too unless told otherwise."""
        require_text("group", group)
        await GroupAdmin(self._calls).delete(group, offsets)

    async def offsets(self, group: str, topic: str = "") -> dict[MessageQueue, int]:
        """The group's committed offsets."""
        require_text("group", group)
        require_text("topic", topic)
        progress = await GroupAdmin(self._calls).progress(group, topic)
        return {item.queue: item.committed for item in progress[0]}

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's offset in one queue; consumers that are online go on where they are."""
        require_text("group", group)
        check_offsets({queue: offset})
        await GroupAdmin(self._calls).commit(group, queue, offset)

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: str | int = "first",
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, int]:
        """Move a group, also while it is online: to the `first` or `last` message, to a time in milliseconds, or
        to the `offsets` given. Returns where each queue goes on."""
        require_text("group", group)
        topic_text(topic)
        groups = GroupAdmin(self._calls)
        if offsets is not None:
            check_offsets(offsets)
            return await groups.reset_to_offsets(group, topic, offsets)
        return await groups.reset_to_time(group, topic, to)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there."""
        return await GroupAdmin(self._calls).min_offset(check_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return await GroupAdmin(self._calls).max_offset(check_queue(queue))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at that time or later."""
        time_ms = milliseconds("timestamp_ms", timestamp_ms)
        return await GroupAdmin(self._calls).offset_at(check_queue(queue), time_ms)

    # -- messages --------------------------------------------------------------------------------------------

    async def get_message(self, msg_id: str, topic: str = "") -> ReceivedMessage:
        """The message with this id, either kind of id. Naming the topic makes it quick for the producer's ids."""
        require_text("msg_id", msg_id, "use the msg_id of a result")
        require_text("topic", topic)
        return await MessageAdmin(self._calls, self.list_topics).get(msg_id, topic)

    async def query_messages(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[ReceivedMessage]:
        """Messages of a topic with this key, oldest first."""
        topic_text(topic)
        require_text("key", key)
        require_range("limit", limit, 1, _INT32_MAX)
        for name, value in (("begin_ms", begin_ms), ("end_ms", end_ms)):
            require_range(name, value, 0, 2**63 - 1)
        return await MessageAdmin(self._calls, self.list_topics).query(topic, key, limit, begin_ms, end_ms)

    async def read_by_key(self, topic: str, key: str, *, limit: int = 32, whole: bool = False) -> KeyedValues:
        """The newest values of a key, at most 64, from the partition that a producer with `partition_by_key` sends it
        to; with `whole` all of them up to the limit, for which the broker goes through the partition."""
        topic_text(topic)
        require_range("limit", limit, 1, KEYED_LIMIT_MAX)
        return await KeyReading(self._calls).read(topic, key, limit, whole=whole)

    async def read_messages(
        self, queue: MessageQueue, offset: int, *, limit: int = 32
    ) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on, without being a consumer."""
        check_queue(queue)
        require_range("offset", offset, 0, 2**63 - 1)
        require_range("limit", limit, 1, _INT32_MAX)
        return await MessageAdmin(self._calls, self.list_topics).read(queue, offset, limit)

    async def trace_message(
        self, msg_id: str, *, trace_topic: str = TRACE_TOPIC, limit: int = 256
    ) -> list[TraceRecord]:
        """The life of a message, as far as its clients write traces; by its producer's id."""
        require_text("msg_id", msg_id, "use the msg_id of a result")
        topic_text(trace_topic)
        require_range("limit", limit, 1, _INT32_MAX)
        return await MessageAdmin(self._calls).trace(msg_id, trace_topic, limit)

    async def recall_message(self, handle: str) -> str:
        """Take back a message that waits for its time; its id. `handle` is what its send gave (`recall_handle`)."""
        require_text("handle", handle, "use the recall_handle of a result")
        return (await TimerAdmin(self._calls).recall(handle)).msg_id

    async def timers_waiting(self) -> list[TimersWaiting]:
        """How many messages wait for their time: by broker, topic, and how long from now."""
        return await TimerAdmin(self._calls).waiting()

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """Dead letters: counted by reason, read, and sent again."""
        return AsyncDeadLetters(lambda: self._calls, self)

    # -- health ----------------------------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterStatus:
        """The brokers of the cluster and how they are. One that does not answer is listed with the reason, and so is
        one that died and has not registered again, if a name server of Penstock has seen it die."""
        calls = self._calls
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        answers, cluster = await asyncio.gather(
            calls.instance.name_servers.call_all(command), calls.cluster()
        )
        brokers = await asyncio.gather(
            *(
                self._broker_status(name, broker_id, data.cluster, address)
                for name, data in sorted(cluster.broker_addr_table.items())
                for broker_id, address in sorted(data.broker_addrs.items())
            )
        )
        alive = {address: isinstance(answer, Command) for address, answer in answers.items()}
        return ClusterStatus(alive, (*brokers, *_down(answers.values(), brokers)))

    async def _broker_status(self, name: str, broker_id: int, cluster: str, address: str) -> BrokerStatus:
        try:
            answer = await self._calls.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            figures = KVTable.decode(answer.body).table
        except PenstockError as error:
            return BrokerStatus(name, broker_id, cluster, address, error=error.message, member_id=broker_id)
        return BrokerStatus(
            name,
            broker_id,
            cluster,
            address,
            version=figures.get("brokerVersionDesc", ""),
            put_tps=_first_number(figures.get("putTps", "")),
            get_tps=_first_number(figures.get("getTransferredTps", "")),
            figures=figures,
            member_id=await self._member_id(address) if broker_id == 0 else broker_id,
        )

    async def _member_id(self, address: str) -> int:
        """What the coordinators of its set call a master; 0 where it has none."""
        try:
            answer = await self._calls.ask(address, RequestCode.GET_BROKER_EPOCH_CACHE)
            found = json.loads(answer.body)["brokerId"]
        except (PenstockError, ValueError, KeyError, TypeError):
            return 0
        return found if isinstance(found, int) else 0

    async def broker_config(self, broker_name: str) -> dict[str, str]:
        """A broker's configuration, as it tells it."""
        calls = self._calls
        masters = await calls.masters()
        if broker_name not in masters:
            known = ", ".join(masters)
            raise RouteNotFoundError(f"there is no broker {broker_name!r}", f"known brokers: {known}")
        answer = await calls.ask(masters[broker_name], RequestCode.GET_BROKER_CONFIG)
        lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
        return {
            name.strip(): value.strip()
            for name, equals, value in (line.partition("=") for line in lines)
            if equals and not name.lstrip().startswith("#")
        }


def _last_queues(count: int) -> str:
    return "the last queue" if count == 1 else f"the last {count} queues"


def _check_attributes(attributes: object) -> None:
    """Refuse what is no mapping of texts."""
    if attributes is None:
        return
    texts = [*attributes, *attributes.values()] if isinstance(attributes, Mapping) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise OptionError(f"attributes are {attributes!r}", 'use texts, as {"message.type": "FIFO"}')


def is_internal_topic(name: str) -> bool:
    """Whether the system made a topic for itself, as far as its name tells."""
    return name in _INTERNAL_TOPICS or name.startswith(_INTERNAL_PREFIXES)


def _down(
    answers: Iterable[Command | RemotingError], brokers: Iterable[BrokerStatus]
) -> Iterator[BrokerStatus]:
    """The brokers that any name server has seen die, unless another one knows that they live."""
    seen = {(broker.cluster, broker.address) for broker in brokers}
    for answer in answers:
        if not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS:
            continue
        for lost in ClusterInfo.decode(answer.body).lost_brokers:
            if (lost.cluster, lost.address) not in seen:
                seen.add((lost.cluster, lost.address))
                since = datetime.fromtimestamp(lost.lost_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                yield BrokerStatus(
                    lost.broker_name,
                    lost.broker_id,
                    lost.cluster,
                    lost.address,
                    error=f"down since {since}",
                    down_since_ms=lost.lost_ms,
                    member_id=lost.broker_id,
                )


def _first_number(text: str) -> float:
    """The ten-second figure of `10s 60s 600s`."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return 0.0
