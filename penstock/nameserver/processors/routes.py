"""What clients ask: GET_ROUTEINFO_BY_TOPIC (105), GET_BROKER_CLUSTER_INFO (106), lists of topics (206, 224, 304,
311, 312, 313), GET_BROKER_MEMBER_GROUP (901).

Rules: every answer is standard JSON with quoted keys, which clients of all versions read. A topic that nobody
has is 17, which clients take for "no route". Every client asks for every topic every 30 s, so encoded routes
are kept until something changes. Handlers run in the server's loop and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.errors import RequestError
from penstock.nameserver import route_answers
from penstock.nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from penstock.nameserver.lost_brokers import LostBrokers
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.route_table import RouteTable
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.protocol.bodies import TopicList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
)
from penstock.remoting import Connection, Handler, ProcessorTable
from penstock.runtime import Clock
from penstock.telemetry import Meters

KEPT_ROUTES_MAX = 4_096


class RouteProcessor:
    """See the module's text."""

    def __init__(
        self,
        routes: RouteTable,
        lost: LostBrokers,
        config: RuntimeConfig,
        kv: KvConfig,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._lost = lost
        self._routes = routes
        self._config = config
        self._kv = kv
        self._meters = meters
        self._clock = clock
        self._ready_ms = 0
        # Encoded routes by topic and dialled address, and the state of affairs that they show.
        self._kept: dict[tuple[str, str], bytes] = {}
        self._kept_of: tuple[int, NameServerOptions] | None = None

    def begin(self) -> None:
        """The server starts: routes may have to wait until brokers had time to register."""
        options = self._config.options
        if options.wait_for_service:
            self._ready_ms = self._clock.monotonic_ms() + options.wait_for_service_seconds * 1000

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.handle_get_route_info)
        table.register(RequestCode.GET_BROKER_CLUSTER_INFO, self.handle_get_cluster_info)
        table.register(RequestCode.GET_BROKER_MEMBER_GROUP, self.handle_get_member_group)
        table.register(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.handle_get_all_topics)
        table.register(RequestCode.GET_TOPICS_BY_CLUSTER, self.handle_get_topics_by_cluster)
        table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.handle_get_system_topics)
        for code, answer in (
            (RequestCode.GET_UNIT_TOPIC_LIST, route_answers.unit_topics),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, route_answers.unit_subscribed_topics),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, route_answers.unit_subscribed_other_topics),
        ):
            table.register(code, self._list_handler(answer))

    def handle_get_route_info(self, connection: Connection, command: Command) -> Command:
        if self._ready_ms > self._clock.monotonic_ms():
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "name server not ready", "ask again in some seconds"
            )
        header = GetRouteInfoRequestHeader.decode(command.fields)
        dialled = connection.local.ip
        zone = header.zone_name if header.zone_mode else None
        if zone or self._config.options.order_messages:
            body = self._route(header.topic, dialled, zone)
        else:
            body = self._kept_route(header.topic, dialled)
        self._meters.add("routes")
        return command.answer(body=body)

    def _kept_route(self, topic: str, dialled_ip: str) -> bytes:
        now = (self._routes.changes, self._config.options)
        if self._kept_of != now or len(self._kept) >= KEPT_ROUTES_MAX:
            self._kept.clear()
            self._kept_of = now
        body = self._kept.get((topic, dialled_ip))
        if body is None:
            body = self._kept[topic, dialled_ip] = self._route(topic, dialled_ip, None)
        return body

    def _route(self, topic: str, dialled_ip: str, zone: str | None) -> bytes:
        options = self._config.options
        route = route_answers.topic_route(
            self._routes, topic, dialled_ip, acting_master=options.acting_master
        )
        if route is None:
            self._meters.add("no_route")
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no topic route info in name server for the topic: {topic[:255]}",
                "no broker has registered it here; create it, or look whether its broker lives",
            )
        if options.order_messages:
            route = replace(route, order_topic_conf=self._kv.get(ORDER_TOPIC_CONFIG, topic))
        return (route_answers.within_zone(route, zone) if zone else route).encode()

    def handle_get_cluster_info(self, connection: Connection, command: Command) -> Command:
        lost = self._lost.all()
        return command.answer(
            body=route_answers.cluster_info(self._routes, connection.local.ip, lost).encode()
        )

    def handle_get_member_group(self, connection: Connection, command: Command) -> Command:
        header = GetBrokerMemberGroupRequestHeader.decode(command.fields)
        group = route_answers.member_group(
            self._routes, header.cluster_name, header.broker_name, connection.local.ip
        )
        return command.answer(body=group.encode())

    # -- lists -----------------------------------------------------------------------------------------------

    def handle_get_all_topics(self, connection: Connection, command: Command) -> Command:
        _require(self._config.options.all_topic_list)
        return command.answer(body=route_answers.all_topics(self._routes).encode())

    def handle_get_topics_by_cluster(self, connection: Connection, command: Command) -> Command:
        _require(self._config.options.topic_list)
        cluster = GetTopicsByClusterRequestHeader.decode(command.fields).cluster
        return command.answer(body=route_answers.topics_of_cluster(self._routes, cluster).encode())

    def handle_get_system_topics(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=route_answers.system_topics(self._routes, connection.local.ip).encode())

    def _list_handler(self, answer: Callable[[RouteTable], TopicList]) -> Handler:
        def handle(connection: Connection, command: Command) -> Command:
            _require(self._config.options.topic_list)
            return command.answer(body=answer(self._routes).encode())

        return handle


def _require(is_enabled: bool) -> None:
    if not is_enabled:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "disable", "this list is turned off on this name server"
        )
