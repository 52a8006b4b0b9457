"""Routes: which brokers have the queues of a topic, and where those brokers are.

Rules: a producer uses the queues with write permission of brokers that have a master (id 0); a consumer those
with read permission, master or not. An order configuration, where a topic has one, alone decides the
producer's queues. A topic nobody knows yet is written to by the route of the template topic, with at most as
many queues as the producer would ask for; the broker creates it with the first message. Where there are
coordinators, they are asked to place it first. A broker that is in no
route any more is forgotten. Name servers tell nobody of a death: routes are asked for again every 30 s and
whenever one turned out to be stale. One that no name server knows any more is kept while a broker of it is
connected: the name server may have been started after the broker, and the broker knows best.

`TopicRoute` and `RouteCache` are plain data and know no network; `Routes` belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.client.coordinators import Coordinators
from penstock.client.name_servers import NameServers
from penstock.errors import (
    CodecError,
    ConnectError,
    PenstockError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

__all__ = [
    "MASTER_ID",
    "BrokerData",
    "MessageQueue",
    "RouteCache",
    "Routes",
    "TopicRoute",
    "parse_order_conf",
    "read_address",
    "read_route",
]

logger = logging.getLogger(__name__)

# More queues than any broker would create; a route that claims more is damaged or hostile.
_QUEUES_MAX = 65_536
# A coordinator's last word about a topic; any other answer leaves it to the brokers.
_REFUSALS = (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)
# Between two questions about a route that sends have found stale, for each topic.
DOUBT_INTERVAL_S = 0.5
CREATE_FIRST = "create it first: "
# How long a broker may take to tell its name servers of a topic that was just created.
CREATED_TRIES, CREATED_WAIT_S = 10, 0.1


def read_address(broker: BrokerData, broker_id: int) -> str | None:
    """The address to read from: that id, the slave after it, or any that is there."""
    found = broker.broker_addrs.get(broker_id)
    if found is None and broker_id != MASTER_ID:
        found = broker.broker_addrs.get(broker_id + 1)
    return found if found is not None else broker.any_address


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic. `is_provisional` where it is the template's, because the topic is not there yet."""

    topic: str
    brokers: Mapping[str, BrokerData]
    queues: tuple[QueueData, ...]
    order_conf: str = ""
    is_provisional: bool = False
    publish_queues: tuple[MessageQueue, ...] = field(init=False, compare=False)
    subscribe_queues: tuple[MessageQueue, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "publish_queues", tuple(self._publish_queues()))
        object.__setattr__(self, "subscribe_queues", tuple(self._subscribe_queues()))

    def _publish_queues(self) -> list[MessageQueue]:
        if self.order_conf:
            return [
                MessageQueue(self.topic, name, queue_id)
                for name, count in parse_order_conf(self.order_conf)
                for queue_id in range(count)
            ]
        return [
            MessageQueue(self.topic, item.broker_name, queue_id)
            for item in self.queues
            if item.is_writable and self.master(item.broker_name) is not None
            for queue_id in range(item.write_queue_nums)
        ]

    def _subscribe_queues(self) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, item.broker_name, queue_id)
            for item in self.queues
            if item.is_readable
            for queue_id in range(item.read_queue_nums)
        ]

    @property
    def key_queues(self) -> tuple[MessageQueue, ...]:
        """The queues among which keys are divided: all that can be written to, also those of a broker set that has no
        master at the moment. So a failover moves no key to another queue."""
        if self.order_conf:
            return self.publish_queues
        return tuple(
            MessageQueue(self.topic, item.broker_name, queue_id)
            for item in sorted(self.queues, key=lambda one: one.broker_name)
            if item.is_writable
            for queue_id in range(item.write_queue_nums)
        )

    @property
    def is_writable(self) -> bool:
        """Whether messages could be sent if every broker had a master."""
        return any(item.is_writable and item.write_queue_nums for item in self.queues)

    def master(self, broker_name: str) -> str | None:
        """Where to send to."""
        broker = self.brokers.get(broker_name)
        return broker.master if broker is not None else None

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Where to read from."""
        broker = self.brokers.get(broker_name)
        return read_address(broker, broker_id) if broker is not None else None

    def as_template_for(self, topic: str, queues_max: int) -> TopicRoute:
        """This route, for a topic that will be created after its model."""
        queues = []
        for item in self.queues:
            count = min(queues_max, item.read_queue_nums)
            queues.append(dataclasses.replace(item, read_queue_nums=count, write_queue_nums=count))
        return TopicRoute(topic, self.brokers, tuple(queues), is_provisional=True)


def parse_order_conf(text: str) -> list[tuple[str, int]]:
    """`brokerA:4;brokerB:2`; parts that are not so are left out."""
    found = []
    for part in text.split(";"):
        name, _, count = part.strip().rpartition(":")
        if name and count.isascii() and count.isdigit() and len(count) <= 5:
            found.append((name, int(count)))
    return found


def read_route(topic: str, body: bytes | bytearray) -> TopicRoute:
    """The answer of a name server; CodecError for anything else."""
    data = TopicRouteData.decode(body)
    if any(max(item.read_queue_nums, item.write_queue_nums) > _QUEUES_MAX for item in data.queue_datas):
        raise CodecError(f"the route of topic {topic!r} has more than {_QUEUES_MAX} queues at one broker")
    return TopicRoute(
        topic,
        {broker.broker_name: broker for broker in data.broker_datas},
        tuple(sorted(data.queue_datas, key=lambda item: item.broker_name)),
        data.order_topic_conf or "",
    )


class RouteCache:
    """What is known of topics and brokers. A new route replaces the old one."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, BrokerData] = {}

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    @property
    def brokers(self) -> Mapping[str, BrokerData]:
        """Every broker of any route, by name."""
        return self._brokers

    def get(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def put(self, route: TopicRoute) -> bool:
        """Take over a route; whether it says something new."""
        old = self._routes.get(route.topic)
        if old == route:
            return False
        self._routes[route.topic] = route
        # The newest route knows best where its brokers are.
        self._collect(route)
        return True

    def forget(self, topic: str) -> bool:
        """Drop a topic; whether it was there."""
        if self._routes.pop(topic, None) is None:
            return False
        self._collect()
        return True

    def _collect(self, newest: TopicRoute | None = None) -> None:
        known: dict[str, BrokerData] = {}
        for route in self._routes.values():
            known.update(route.brokers)
        known.update(newest.brokers if newest is not None else {})
        self._brokers = known


class Routes:
    """The cache, kept true by asking a name server. `on_change` is called in the loop with each new route."""

    def __init__(self, name_servers: NameServers, coordinators: Coordinators | None = None) -> None:
        self._coordinators = coordinators
        self.cache = RouteCache()
        self.on_change: list[Callable[[TopicRoute], object]] = []
        # Whether a broker of the route is known to be alive by other means.
        self.is_served: Callable[[TopicRoute], bool] = lambda route: False
        self._name_servers = name_servers
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        # Topics whose route is in doubt, and when each was asked about for that reason.
        self._doubts: dict[str, asyncio.TimerHandle] = {}
        self._doubted_s: dict[str, float] = {}
        self._checks: set[asyncio.Task[None]] = set()

    async def get(self, topic: str) -> TopicRoute:
        """The known route, or the name server's answer. RouteNotFoundError if there is none."""
        return self.cache.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask the name server; several callers share one question."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._ask(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._answered(topic, done))
        return await asyncio.shield(task)

    def doubt(self, topic: str) -> None:
        """A send has failed in a way that a stale route explains: ask for the route again, so that the next send goes
        to the new master. At once, but only every DOUBT_INTERVAL_S; doubts meanwhile share the next question."""
        if topic in self._doubts:
            return
        loop = asyncio.get_running_loop()
        due_s = max(loop.time(), self._doubted_s.get(topic, 0.0) + DOUBT_INTERVAL_S)
        self._doubts[topic] = loop.call_at(due_s, self._begin_check, topic)

    def _begin_check(self, topic: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._doubted_s = {
            name: then for name, then in self._doubted_s.items() if now_s - then < DOUBT_INTERVAL_S
        }
        self._doubted_s[topic] = now_s
        del self._doubts[topic]
        task = asyncio.ensure_future(self._check(topic))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, topic: str) -> None:
        """Without an answer the route stays as it is; one that was made from the template is made anew."""
        try:
            await self.refresh(topic)
        except RouteNotFoundError:
            known = self.cache.get(topic)
            if known is not None and known.is_provisional:
                self.cache.forget(topic)
        except PenstockError as error:
            logger.debug("route of topic %s: %s", topic, error)

    async def close(self) -> None:
        """Ask nothing more."""
        for timer in self._doubts.values():
            timer.cancel()
        self._doubts.clear()
        for task in list(self._checks):
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def for_publishing(
        self, topic: str, template: str, queues_max: int, *, refresh: bool = False
    ) -> TopicRoute:
        """The route to send by: the topic's own, or that of the template for a topic that is still to come."""
        known = None if refresh else self.cache.get(topic)
        if known is not None:
            return known
        try:
            return await self.refresh(topic)
        except RouteNotFoundError:
            created = await self._create(topic, queues_max)
            if created is not None:
                return created
            if not template or template == topic:
                raise
        try:
            model = await self.refresh(template)
        except RouteNotFoundError:
            raise await self._not_found(
                topic, "does not exist", "; no broker creates topics on demand here"
            ) from None
        route = model.as_template_for(topic, queues_max)
        self._take(route)
        return route

    async def _create(self, topic: str, queues: int) -> TopicRoute | None:
        """Have a coordinator place a topic that nobody has: its route, or None if the topic has to come into being
        otherwise. ResponseError if the coordinator does not allow it."""
        if self._coordinators is None:
            return None
        try:
            await self._coordinators.create(topic, queues)
        except (RemotingError, ResponseError) as error:
            if error.code in _REFUSALS:
                raise
            logger.info("topic %s is missing and no coordinator creates it: %s", topic, error)
            return None
        for _ in range(CREATED_TRIES):
            try:
                return await self.refresh(topic)
            except RouteNotFoundError:
                await asyncio.sleep(CREATED_WAIT_S)
        return None

    async def refresh_all(self, *topics: str) -> None:
        """Ask again for every known topic and those given; what fails keeps its old route until next time."""
        wanted = dict.fromkeys([*self.cache.topics, *topics])
        await asyncio.gather(*(self._refresh_quietly(topic) for topic in wanted))

    async def _refresh_quietly(self, topic: str) -> None:
        try:
            await self.refresh(topic)
        except RouteNotFoundError:
            known = self.cache.get(topic)
            if known is None or known.is_provisional:
                return
            # A name server that was just started knows nobody until the brokers have told it.
            if self.is_served(known):
                logger.info("no name server knows topic %s; its broker is there, its route is kept", topic)
            else:
                logger.info("topic %s has no route any more", topic)
                self.cache.forget(topic)
        except ConnectError as error:
            logger.debug(
                "route of topic %s: %s", topic, error
            )  # the name servers' failures are said, once each
        except PenstockError as error:
            logger.warning("route of topic %s: %s", topic, error)

    async def _ask(self, topic: str) -> TopicRoute:
        request = Command(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        answer = await self._name_servers.call(request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise await self._not_found(topic, "has no route")
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark or "no reason given")
        if not answer.body:
            raise CodecError(f"the route of topic {topic!r} is empty")
        route = read_route(topic, answer.body)
        self._take(route)
        return route

    async def _not_found(self, topic: str, what: str, more: str = "") -> RouteNotFoundError:
        """What to do about a topic without a route: it may exist, at brokers that are down."""
        try:
            answer = await self._name_servers.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            brokers = ClusterInfo.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None
        except PenstockError:
            brokers = None
        if brokers is None or brokers.broker_addr_table:
            lost = brokers.lost_brokers if brokers is not None else ()
            down = ", ".join(sorted({one.broker_name for one in lost}))
            create = f"{CREATE_FIRST}`penstock topic create {topic}`{more}"
            advice = f"broker {down} is down: start it if it has the topic, else {create}" if down else create
        else:
            what = "has no route"
            advice = "no broker is registered: start the brokers; `penstock status` shows what is down"
        error = RouteNotFoundError(f"topic {topic!r} {what}", advice)
        error.topic = topic
        return error

    def _take(self, route: TopicRoute) -> None:
        if self.cache.put(route):
            for listener in self.on_change:
                listener(route)

    def _answered(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()  # seen by every waiter; one that was cancelled meanwhile has not looked
