"""What administrators do: write permission of a broker (205, 327), topics by hand (216, 217), the KV config (100,
101, 102, 219), the configuration (318, 319).

Rule: whatever changes something leaves a line in the log with the peer's address. Handlers run in the server's
loop; a KV change is answered when it is saved.
"""

from __future__ import annotations

import logging

from penstock.errors import CodecError, RequestError
from penstock.nameserver.kv_config import KvConfig
from penstock.nameserver.route_table import RouteTable
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.protocol.bodies import KVTable, QueueData, TopicRouteData
from penstock.protocol.bodies.body import REQUEST_LOOSE_MAX, BodyFields
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    RegisterTopicRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from penstock.protocol.identity import check_name
from penstock.remoting import Connection, ProcessorTable

_LOG = logging.getLogger("penstock.nameserver")
PERMISSIONS_MAX = 15
# A route that an administrator names: more brokers than any topic has.
ROUTE_BYTES_MAX, ROUTE_OBJECTS_MAX = 64 * 1024, 1_000


class AdministrationProcessor:
    """See the module's text."""

    def __init__(self, routes: RouteTable, config: RuntimeConfig, kv: KvConfig) -> None:
        self._routes = routes
        self._config = config
        self._kv = kv

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.PUT_KV_CONFIG, self.handle_put_kv)
        table.register(RequestCode.GET_KV_CONFIG, self.handle_get_kv)
        table.register(RequestCode.DELETE_KV_CONFIG, self.handle_delete_kv)
        table.register(RequestCode.GET_KVLIST_BY_NAMESPACE, self.handle_get_kv_list)
        table.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.handle_wipe_write_permission)
        table.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.handle_add_write_permission)
        table.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.handle_delete_topic)
        table.register(RequestCode.REGISTER_TOPIC_IN_NAMESRV, self.handle_register_topic)
        table.register(RequestCode.UPDATE_NAMESRV_CONFIG, self.handle_update_config)
        table.register(RequestCode.GET_NAMESRV_CONFIG, self.handle_get_config)

    # -- KV config -------------------------------------------------------------------------------------------

    async def handle_put_kv(self, connection: Connection, command: Command) -> Command:
        header = PutKVConfigRequestHeader.decode(command.fields)
        await self._kv.put(header.namespace, header.key, header.value)
        _LOG.info("KV %r %r set by %s", header.namespace[:80], header.key[:80], connection.peer)
        return command.answer()

    def handle_get_kv(self, connection: Connection, command: Command) -> Command:
        header = GetKVConfigRequestHeader.decode(command.fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise _not_found(f"no KV config {header.key[:80]!r} in namespace {header.namespace[:80]!r}")
        return command.answer(fields=GetKVConfigResponseHeader(value=value).encode())

    async def handle_delete_kv(self, connection: Connection, command: Command) -> Command:
        header = DeleteKVConfigRequestHeader.decode(command.fields)
        await self._kv.delete(header.namespace, header.key)
        _LOG.info("KV %r %r deleted by %s", header.namespace[:80], header.key[:80], connection.peer)
        return command.answer()

    def handle_get_kv_list(self, connection: Connection, command: Command) -> Command:
        header = GetKVListByNamespaceRequestHeader.decode(command.fields)
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            raise _not_found(f"no KV namespace {header.namespace[:80]!r}")
        return command.answer(body=KVTable(dict(entries)).encode())

    # -- routes ----------------------------------------------------------------------------------------------

    def handle_wipe_write_permission(self, connection: Connection, command: Command) -> Command:
        broker = WipeWritePermOfBrokerRequestHeader.decode(command.fields).broker_name
        count = self._routes.wipe_write_permission(broker)
        _LOG.info("write permission of broker %r wiped by %s: %d topics", broker[:80], connection.peer, count)
        return command.answer(fields=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count).encode())

    def handle_add_write_permission(self, connection: Connection, command: Command) -> Command:
        broker = AddWritePermOfBrokerRequestHeader.decode(command.fields).broker_name
        count = self._routes.add_write_permission(broker)
        _LOG.info("write permission of broker %r added by %s: %d topics", broker[:80], connection.peer, count)
        return command.answer(fields=AddWritePermOfBrokerResponseHeader(add_topic_count=count).encode())

    def handle_delete_topic(self, connection: Connection, command: Command) -> Command:
        """Only the route: the broker keeps the topic, and brings it back with its next change."""
        header = DeleteTopicFromNamesrvRequestHeader.decode(command.fields)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        _LOG.info("route of topic %r deleted by %s", header.topic[:80], connection.peer)
        return command.answer()

    def handle_register_topic(self, connection: Connection, command: Command) -> Command:
        topic = check_name("topic", RegisterTopicRequestHeader.decode(command.fields).topic)
        limits = ROUTE_BYTES_MAX, ROUTE_OBJECTS_MAX, REQUEST_LOOSE_MAX
        try:
            body = BodyFields.parse(command.body or b"{}", "TopicRouteData", *limits)
            queues = TopicRouteData.read(body).queue_datas
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error
        for data in queues:
            self._check_queues(data)
        is_taken = self._routes.register_topic(topic, queues)
        _LOG.info("route of topic %s %s by %s", topic, "set" if is_taken else "ignored", connection.peer)
        return command.answer()

    def _check_queues(self, data: QueueData) -> None:
        most = self._config.options.topic_queues_max
        if max(data.read_queue_nums, data.write_queue_nums) > most or data.perm > PERMISSIONS_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{data.read_queue_nums} and {data.write_queue_nums} queues with permission {data.perm}",
                f"use at most {most} queues and permissions up to {PERMISSIONS_MAX}",
            )

    # -- configuration ---------------------------------------------------------------------------------------

    def handle_update_config(self, connection: Connection, command: Command) -> Command:
        self._config.update(command.body, connection.peer.ip)
        return command.answer()

    def handle_get_config(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=self._config.text().encode())


def _not_found(message: str) -> RequestError:
    return RequestError(ResponseCode.QUERY_NOT_FOUND, message, "put it first")
