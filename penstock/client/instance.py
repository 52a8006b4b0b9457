"""A client of a cluster: connections, routes and heartbeats, shared by the producers and consumers of a process.

    instance = await ClientInstance.acquire(ClientOptions(name_servers=("127.0.0.1:9876",)))
    ...
    await instance.release()

Rules: one connection per broker address. Every broker of any route in use is told every 30 s which groups live
here, and at once when a group joins, a broker appears, or a connection was lost: a broker that forgot us would
not serve us. Slaves are told only where there are consumers. Routes in use are asked for every 30 s. A failing
broker never holds up the others.

Everything here belongs to one event loop; `acquire` shares an instance among callers in the same loop whose
options are equal. The last `release` says goodbye to the brokers and closes the connections.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Iterable
from typing import Any, ClassVar, Protocol

from penstock.client.coordinators import Coordinators
from penstock.client.identity import UniqueIds, client_id
from penstock.client.name_servers import NameServers
from penstock.client.options import ClientOptions
from penstock.client.producer_beats import ProducerBeats
from penstock.client.push_sessions import PushSessions
from penstock.client.received import ReceivedMessage, decode_records
from penstock.client.request_reply import Replies
from penstock.client.routes import Routes, TopicRoute, read_address
from penstock.client.signing import signing_hook
from penstock.errors import ClientError, CodecError, ConnectError, PenstockError
from penstock.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.route import MASTER_ID
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import (
    Connection,
    ProcessorTable,
    RemotingClient,
    RemotingOptions,
    RpcHook,
    TlsOptions,
)
from penstock.runtime import Runtime

logger = logging.getLogger(__name__)

NEVER_MS = 1 << 60
# What brokers ask of a consumer; the group is in one of two fields.
_CONSUMER_REQUESTS = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class ConsumerMember(Protocol):
    """What an instance needs of a consumer that joined it. All of it is called in the loop."""

    @property
    def group(self) -> str: ...

    @property
    def topics(self) -> Iterable[str]:
        """Topics whose routes are to be kept fresh, the retry topic among them."""

    def heartbeat_data(self) -> ConsumerData:
        """Its entry in a heartbeat."""

    def handle(self, connection: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
        """A broker's request to this group: codes 40, 220, 221, 307, 309."""


class TransactionMember(Protocol):
    """What an instance needs of a producer that has transactions. All of it is called in the loop."""

    @property
    def has_listener(self) -> bool: ...

    def is_known(self, msg_id: str) -> bool:
        """Whether it has begun the transaction of this message."""

    def asked(self, connection: Connection, command: Command, message: ReceivedMessage) -> None:
        """Say how it ended, now, later or never."""


class ClientInstance:
    """See the module's text. Make one with `acquire`, or directly and then `start` and `close` it."""

    _shared: ClassVar[
        weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], list[ClientInstance]]]
    ] = weakref.WeakKeyDictionary()

    def __init__(
        self,
        options: ClientOptions,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        remoting_options: RemotingOptions | None = None,
        rpc_hook: RpcHook | None = None,
    ) -> None:
        self.options = options
        self.runtime = runtime or Runtime.system()
        self.table = ProcessorTable()
        self.hook = signing_hook(options, self.runtime, rpc_hook)
        self.remoting = RemotingClient(
            self.table,
            runtime=self.runtime,
            options=remoting_options,
            tls=tls,
            on_close=self._connection_lost,
            hook=self.hook,
        )
        self.name_servers = NameServers(
            options.name_servers, self.remoting, runtime=self.runtime, timeout_ms=options.call_timeout_ms
        )
        self.coordinators: Coordinators | None = None
        if options.coordinators:
            self.coordinators = Coordinators(options.coordinators, self.remoting, options.call_timeout_ms)
        self.routes = Routes(self.name_servers, self.coordinators)
        self.routes.on_change.append(self._route_changed)
        self.routes.is_served = self._is_connected
        # Both are set by `start`: the address from which we reach the cluster is part of who we are.
        self.client_id = ""
        self.unique_ids: UniqueIds
        # RocketMQ's version number of each broker that answered a heartbeat, by address.
        self.broker_versions: dict[str, int] = {}
        self._registered: dict[int, str] = {}  # connection -> address of the broker that knows us by it
        # Brokers whose connection was lost; when the last was lost, or has heard of us again.
        self._lost: set[str] = set()
        self.unsettled_ms = -NEVER_MS
        self._producers: dict[str, int] = {}
        # Who answers for transactions, by producer group.
        self._answering: dict[str, list[TransactionMember]] = {}
        self._producer_beats: ProducerBeats | None = None
        self._consumers: dict[str, ConsumerMember] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        # A broker could not be reached: routes are asked for at once.
        self._doubt = asyncio.Event()
        self._beaten_s = 0.0
        self._closed = False
        self._users = 0
        self._reserved: set[str] = set()
        self._siblings: list[ClientInstance] = []
        self._starting: asyncio.Task[None] | None = None
        # Requests of the producers here that wait for replies.
        self.replies = Replies()
        self.table.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.replies.handle)
        for code in _CONSUMER_REQUESTS:
            self.table.register(code, self._to_consumer)
        self.table.register(RequestCode.CHECK_TRANSACTION_STATE, self._to_producer)
        self.push = PushSessions(self)

    # -- life ------------------------------------------------------------------------------------------------

    @classmethod
    async def acquire(
        cls,
        options: ClientOptions,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        rpc_hook: RpcHook | None = None,
        consumer_group: str = "",
    ) -> ClientInstance:
        """The started instance of this loop for these options; give it back with `release`.

        A consumer names its group, in both calls: brokers know one consumer of a group per client, so a second
        consumer of a group gets an instance of its own.
        """
        shared = cls._shared.setdefault(asyncio.get_running_loop(), {})
        key = (
            options,
            id(runtime) if runtime is not None else 0,
            tls,
            None if rpc_hook is None else id(rpc_hook),
        )
        instances = shared.setdefault(key, [])
        free = [one for one in instances if not consumer_group or consumer_group not in one._reserved]
        if free:
            instance = free[0]
        else:
            if instances and options.instance_name:
                raise ClientError(
                    f"group {consumer_group!r} already has a consumer in this client",
                    "give this one another instance_name, or let each client choose its own",
                )
            instance = cls(options, runtime=runtime, tls=tls, rpc_hook=rpc_hook)
            instances.append(instance)
            instance._siblings = instances
            instance._starting = asyncio.ensure_future(instance.start())
        instance._users += 1
        if consumer_group:
            instance._reserved.add(consumer_group)
        try:
            if instance._starting is not None:
                await asyncio.shield(instance._starting)
        except BaseException:
            await instance.release(consumer_group)
            raise
        return instance

    async def release(self, consumer_group: str = "") -> None:
        """Give a shared instance back; the last user closes it."""
        self._users -= 1
        self._reserved.discard(consumer_group)
        if self._users > 0:
            return
        if self in self._siblings:
            self._siblings.remove(self)
        await self.close()

    async def start(self) -> None:
        """Find a name server, learn our own address from it, begin heartbeats and route refreshing."""
        try:
            connection = await self.name_servers.connect()
        except PenstockError:
            await self.remoting.close()
            raise
        ip = self.options.client_ip or connection.local.ip
        self.client_id = client_id(ip, self.options.instance_name, self.options.unit_name, self.runtime)
        self.unique_ids = UniqueIds(connection.local.ip, self.runtime)
        self._tasks = [
            asyncio.ensure_future(self._heartbeat_loop()),
            asyncio.ensure_future(self._route_loop()),
        ]
        if self.coordinators is not None:
            self._producer_beats = ProducerBeats(self.coordinators, self.client_id, self.runtime.clock)
            self._tasks.append(asyncio.ensure_future(self._producer_beats.run(self._published)))

    async def abandon(self) -> None:
        """Cut the connections and end, as a killed process would. For tests and simulations."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.remoting.close()

    async def close(self) -> None:
        """Tell the brokers that every group leaves, then close all connections."""
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.routes.close()
        if self._producer_beats is not None:
            await self._producer_beats.leave()
        for group in list(self._producers):
            await self._unregister("producerGroup", group)
        for group in list(self._consumers):
            await self._unregister("consumerGroup", group)
        self._producers.clear()
        self._consumers.clear()
        await self.remoting.close()

    # -- members ---------------------------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        """A producer joins; several of one group may."""
        self._producers[group] = self._producers.get(group, 0) + 1
        self._wake.set()

    async def remove_producer(self, group: str) -> None:
        """A producer leaves; with the last of its group the brokers are told."""
        left = self._producers.get(group, 0) - 1
        if left > 0:
            self._producers[group] = left
        elif self._producers.pop(group, None) is not None:
            await self._unregister("producerGroup", group)

    def add_transactions(self, group: str, member: TransactionMember) -> None:
        """A producer of this group answers for transactions."""
        self._answering.setdefault(group, []).append(member)

    def remove_transactions(self, group: str, member: TransactionMember) -> None:
        """It does so no more."""
        members = self._answering.get(group, [])
        if member in members:
            members.remove(member)
        if not members:
            self._answering.pop(group, None)

    def _to_producer(self, connection: Connection, command: Command) -> None:
        """A broker asks how a transaction ended (39): whoever has begun it says, else whoever has a listener."""
        messages = decode_records(command.body)
        if len(messages) != 1:
            raise CodecError(f"a question about {len(messages)} transactions")
        (message,) = messages
        members = self._answering.get(message.properties.get("PGROUP", ""), [])
        found = [member for member in members if member.is_known(message.msg_id)]
        found = found or [member for member in members if member.has_listener]
        if found:
            found[0].asked(connection, command, message)

    def add_consumer(self, member: ConsumerMember) -> None:
        """A consumer joins. One of each group: two would each believe to be the whole client."""
        if member.group in self._consumers:
            raise ClientError(
                f"group {member.group!r} already has a consumer in this client",
                "name the group when acquiring the instance: each consumer of a group needs its own",
            )
        self._consumers[member.group] = member
        self._wake.set()

    async def remove_consumer(self, group: str) -> None:
        """A consumer leaves; the brokers are told, so that others take over its queues at once."""
        if self._consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    def _to_consumer(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        group = command.text_or("consumerGroup") or command.text_or("group")
        member = self._consumers.get(group)
        if member is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"no consumer of group {group[:80]!r} lives in this client"
            )
        return member.handle(connection, command)

    # -- calls -----------------------------------------------------------------------------------------------

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Where a broker is, if any route names it; only the master itself answers for id 0 here."""
        broker = self.routes.cache.brokers.get(broker_name)
        if broker is None:
            return None
        return broker.master if broker_id == MASTER_ID else read_address(broker, broker_id)

    async def call_broker(
        self, broker_name: str, command: Command, timeout_ms: int | None = None, broker_id: int = MASTER_ID
    ) -> Command:
        """Ask a broker by name. ConnectError when no route says where it is."""
        address = self.broker_address(broker_name, broker_id)
        if address is None:
            raise ConnectError(
                f"no address is known for broker {broker_name!r}", "it may be down; routes are refreshed"
            )
        return await self.call(address, command, timeout_ms)

    async def call(self, address: str, command: Command, timeout_ms: int | None = None) -> Command:
        """Ask a broker at the address that a route names. One that is not there puts the routes in doubt."""
        try:
            return await self.remoting.call(address, command, timeout_ms or self.options.call_timeout_ms)
        except ConnectError:
            # Somebody else may be master by now: whoever asks again should find it.
            self._doubt.set()
            raise

    # -- heartbeats ------------------------------------------------------------------------------------------

    async def heartbeat(self) -> bool:
        """Tell every broker at once who lives here; whether all of them heard it."""
        if not self._producers and not self._consumers:
            return True
        body = self.heartbeat_body()
        answers = await asyncio.gather(
            *(self._beat(address, body) for address in self._heartbeat_addresses()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, PenstockError):
                raise answer
        return all(answer is True for answer in answers)

    async def introduce(self) -> None:
        """Have every broker of any route know who lives here; nothing if they do."""
        if not set(self._heartbeat_addresses()) <= set(self._registered.values()):
            await self.heartbeat()

    def heartbeat_body(self) -> bytes:
        """The body of a heartbeat."""
        return HeartbeatData(
            self.client_id,
            tuple(ProducerData(group) for group in self._producers),
            tuple(member.heartbeat_data() for member in self._consumers.values()),
        ).encode()

    def _heartbeat_addresses(self) -> list[str]:
        return [
            address
            for broker in self.routes.cache.brokers.values()
            for broker_id, address in broker.broker_addrs.items()
            if broker_id == MASTER_ID or self._consumers
        ]

    async def _beat(self, address: str, body: bytes) -> bool:
        try:
            connection = await self.remoting.connection(address)
            answer = await connection.call(
                Command(RequestCode.HEART_BEAT, body=body), self.options.call_timeout_ms
            )
        except PenstockError as error:
            logger.info("heartbeat to %s: %s", address, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("heartbeat to %s was refused with %d: %s", address, answer.code, answer.remark)
            return False
        self.broker_versions[address] = answer.version
        if connection.is_open:
            self._registered[connection.id] = address
        if address in self._lost:
            self._lost.discard(address)
            self.unsettled_ms = self.runtime.clock.monotonic_ms()
        return True

    async def _unregister(self, field: str, group: str) -> None:
        async def tell(address: str) -> None:
            connection = self.remoting.open_connection(address)
            if connection is None:
                return  # a broker that has no connection to us has forgotten us already
            request = Command(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, field: group})
            try:
                await connection.call(request, self.options.call_timeout_ms)
            except PenstockError as error:
                logger.info("unregistering %s from %s: %s", group, address, error)

        addresses = {a for broker in self.routes.cache.brokers.values() for a in broker.broker_addrs.values()}
        await asyncio.gather(*(tell(address) for address in addresses))

    # -- what goes on by itself ------------------------------------------------------------------------------

    async def _heartbeat_loop(self) -> None:
        wait_ms = self.options.heartbeat_interval_ms
        while True:
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._beaten_s = asyncio.get_running_loop().time()
            try:
                heard = await self.heartbeat()
            except Exception:
                logger.exception("heartbeat failed")
                heard = False
            interval = self.options.heartbeat_interval_ms
            wait_ms = interval if heard else min(interval, self.options.reconnect_interval_ms)

    def _published(self) -> tuple[list[str], list[str]]:
        """The groups of producers that live here, and the topics that they may send to."""
        consumed = {topic for member in self._consumers.values() for topic in member.topics}
        topics = [topic for topic in self.routes.cache.topics if topic not in consumed]
        return sorted(self._producers), sorted(topics)

    async def _route_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.route_interval_ms / 1000):
                    await self._doubt.wait()
            except TimeoutError:
                pass
            topics = [topic for member in self._consumers.values() for topic in member.topics]
            try:
                await self.routes.refresh_all(*topics)
            except Exception:
                logger.exception("refreshing routes failed")
            # A broker that stays away is not worth a storm of questions.
            await asyncio.sleep(
                min(self.options.route_interval_ms, self.options.reconnect_interval_ms) / 1000
            )
            self._doubt.clear()

    def _route_changed(self, route: TopicRoute) -> None:
        if any(broker.master not in self.broker_versions for broker in route.brokers.values()):
            self._wake.set()

    def _is_connected(self, route: TopicRoute) -> bool:
        """Whether a connection to a broker of the route is open."""
        masters = (broker.master for broker in route.brokers.values())
        return any(master and self.remoting.open_connection(master) is not None for master in masters)

    def _connection_lost(self, connection: Connection) -> None:
        """A broker drops its clients with their connections: tell it again who we are, as soon as it is back."""
        self.push.lost(connection)
        address = self._registered.pop(connection.id, None)
        if address is not None and not self._closed:
            self.broker_versions.pop(address, None)
            self._lost.add(address)
            self.unsettled_ms = self.runtime.clock.monotonic_ms()
            # At once, but not again and again: a peer that hangs up after every answer is not worth a storm.
            loop = asyncio.get_running_loop()
            due = self._beaten_s + self.options.reconnect_interval_ms / 1000
            loop.call_at(max(due, loop.time()), self._wake.set)
