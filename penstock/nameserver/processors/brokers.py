"""What brokers send: REGISTER_BROKER (103), UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322), BROKER_HEARTBEAT
(904).

Rules: everything that a broker says of itself is checked before it reaches the table. A topic with a name or a
number of queues that no client should be given is left out and named in the log; the rest of the registration
stands. A body that says what the same broker's last one said is not read again. Large bodies, and compressed
ones, which may become large, are read in a thread, one at a time, and only a few may wait. Handlers run in the
server's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Mapping

from penstock.errors import CodecError, PenstockError, RequestError
from penstock.metadata.config_files import DataVersion
from penstock.metadata.topic_table import TopicConfig
from penstock.nameserver.housekeeping import Housekeeping
from penstock.nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from penstock.nameserver.route_table import Place, Registration, RouteTable
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.protocol.bodies import (
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
    decode_data_version,
    encode_data_version,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)
from penstock.protocol.identity import (
    check_address,
    check_name,
    check_text,
    is_address,
    is_anywhere,
    is_loopback,
    is_name,
    seen_from,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.nameserver")
# Reading JSON of this size takes longer than other peers should wait; compressed, this size may become that.
LARGE_BODY_BYTES = 64 * 1024
LARGE_COMPRESSED_BYTES = 1024
LARGE_WAITING_MAX = 8
FILTER_SERVERS_MAX = 64


class BrokerProcessor:
    """See the module's text."""

    def __init__(
        self,
        routes: RouteTable,
        config: RuntimeConfig,
        kv: KvConfig,
        housekeeping: Housekeeping,
        clock: Clock,
    ) -> None:
        self._routes = routes
        self._config = config
        self._kv = kv
        self._housekeeping = housekeeping
        self._clock = clock
        self._reading = asyncio.Lock()
        self._large_waiting = 0

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.REGISTER_BROKER, self.handle_register_broker)
        table.register(RequestCode.UNREGISTER_BROKER, self.handle_unregister_broker)
        table.register(RequestCode.QUERY_DATA_VERSION, self.handle_query_data_version)
        table.register(RequestCode.BROKER_HEARTBEAT, self.handle_broker_heartbeat)

    # -- registration ----------------------------------------------------------------------------------------

    def handle_register_broker(
        self, connection: Connection, command: Command
    ) -> Command | Coroutine[None, None, Command]:
        try:
            header = RegisterBrokerRequestHeader.decode(command.fields)
            self._check(connection, header)
            if header.body_crc32 and header.body_crc32 != body_crc32(command.body):
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, "crc32 not match", "send the registration again"
                )
            if len(command.body) > self._config.options.registration_bytes_max:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"a registration of {len(command.body)} bytes")
            repeated = self._repeated(command, header)
            if repeated is not None:
                return self._take(connection, command, header, repeated)
            if len(command.body) >= (LARGE_COMPRESSED_BYTES if header.compressed else LARGE_BODY_BYTES):
                return self._register_large(connection, command, header)
            return self._take(connection, command, header, self._read(command, header))
        except PenstockError as error:
            self._refused(connection, error)
            raise

    async def _register_large(
        self, connection: Connection, command: Command, header: RegisterBrokerRequestHeader
    ) -> Command:
        try:
            if self._large_waiting >= LARGE_WAITING_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY,
                    "too many large registrations wait",
                    "register again in a second",
                )
            self._large_waiting += 1
            try:
                async with self._reading:
                    body = await asyncio.to_thread(self._read, command, header)
            finally:
                self._large_waiting -= 1
            return self._take(connection, command, header, body)
        except PenstockError as error:
            self._refused(connection, error)
            raise

    def _repeated(self, command: Command, header: RegisterBrokerRequestHeader) -> RegisterBrokerBody | None:
        """The last body of this broker without its topics, if this one says the same."""
        ours = self._routes.live.get(Place(header.cluster_name, header.broker_addr))
        if ours is None or self._config.options.delete_topics_on_register:
            return None
        who = (header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        if not self._routes.is_repeated(*who, _digest(command, header)):
            return None
        filters = self._routes.filters.get(Place(header.cluster_name, header.broker_addr), ())
        return RegisterBrokerBody(TopicConfigSerializeWrapper(ours.data_version), filters)

    def _read(self, command: Command, header: RegisterBrokerRequestHeader) -> RegisterBrokerBody:
        """Pure, so that a thread may do it."""
        try:
            if header.compressed and command.body:
                limit = self._config.options.registration_bytes_max
                return RegisterBrokerBody.decode_compressed(command.body, command.version, limit)
            return RegisterBrokerBody.decode_for(command.body, version=command.version)
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error

    def _check(self, connection: Connection, header: RegisterBrokerRequestHeader) -> None:
        check_name("cluster name", header.cluster_name)
        check_name("broker name", header.broker_name)
        check_address("brokerAddr", header.broker_addr)
        if header.ha_server_addr:
            check_address("haServerAddr", header.ha_server_addr)
        if header.zone_name:
            check_text("zone name", header.zone_name)
        if header.broker_id < 0:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"brokerId is {header.broker_id}", "use 0 or more"
            )
        peer, local = connection.peer.ip, connection.local.ip
        if is_anywhere(header.broker_addr) and not is_loopback(peer) and peer != local:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"brokerAddr {header.broker_addr} means this machine, but the broker is on {peer}",
                "set the address that it advertises (brokerIP1)",
            )

    def _take(
        self,
        connection: Connection,
        command: Command,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
    ) -> Command:
        options = self._config.options
        wanted = header.heartbeat_timeout_millis or 0
        new = Registration(
            cluster=header.cluster_name,
            broker=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            connection=connection.id,
            ha_address=header.ha_server_addr,
            topics=self._usable(header.broker_name, body.wrapper.topics),
            data_version=body.data_version,
            mappings={n: info for n, info in body.wrapper.mapping_infos.items() if isinstance(info, dict)},
            filter_servers=_filter_servers(body.filter_servers),
            expiry_ms=min(wanted if wanted > 0 else options.broker_expiry_ms, options.broker_expiry_max_ms),
            acting_master=header.enable_acting_master,
            zone=header.zone_name or None,
            digest=_digest(command, header),
        )
        was_live = new.place in self._routes.live
        result = self._routes.register(
            new, self._clock.monotonic_ms(), delete_missing=options.delete_topics_on_register
        )
        self._housekeeping.registered(connection, new, was_live=was_live)
        self._housekeeping.tell(result.notice)
        dialled = connection.local.ip
        answer = RegisterBrokerResponseHeader(
            ha_server_addr=result.ha_address and seen_from(result.ha_address, dialled),
            master_addr=result.master_address and seen_from(result.master_address, dialled),
        )
        return command.answer(fields=answer.encode(), body=self._order_config())

    def _usable(self, broker: str, topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
        most = self._config.options.topic_queues_max
        usable = {
            name: topic
            for name, topic in topics.items()
            if is_name(name) and max(topic.read_queue_nums, topic.write_queue_nums) <= most
        }
        if len(usable) < len(topics):
            left_out = next(name for name in topics if name not in usable)
            _LOG.warning(
                "broker %s: %d topics are left out for their name or number of queues, first %r",
                *(broker, len(topics) - len(usable), left_out[:80]),
            )
        return usable

    def _order_config(self) -> bytes:
        if not self._config.options.order_config_to_broker:
            return b""
        entries = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return b"" if entries is None else KVTable(dict(entries)).encode()

    def _refused(self, connection: Connection, error: PenstockError) -> None:
        self._housekeeping.meters.add("refused")
        _LOG.warning("a registration from %s is refused: %r", connection.peer, error.message[:200])

    # -- the rest --------------------------------------------------------------------------------------------

    def handle_unregister_broker(self, connection: Connection, command: Command) -> Command:
        header = UnregisterBrokerRequestHeader.decode(command.fields)
        removed = self._routes.unregister(header.cluster_name, header.broker_name, header.broker_addr)
        self._housekeeping.lost.left(header.cluster_name, header.broker_addr)
        if removed is not None:
            _LOG.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
            self._housekeeping.meters.add("left")
            self._housekeeping.tell(removed.notice)
        return command.answer()

    def handle_query_data_version(self, connection: Connection, command: Command) -> Command:
        """Whether a broker has to register again; asking is a sign of life."""
        header = QueryDataVersionRequestHeader.decode(command.fields)
        try:
            theirs = decode_data_version(command.body) if command.body else DataVersion()
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error
        ours = self._routes.data_version(header.cluster_name, header.broker_addr)
        self._routes.touch(header.cluster_name, header.broker_addr, self._clock.monotonic_ms())
        return command.answer(
            fields=QueryDataVersionResponseHeader(changed=ours != theirs).encode(),
            body=b"" if ours is None else encode_data_version(ours),
        )

    def handle_broker_heartbeat(self, connection: Connection, command: Command) -> Command:
        header = BrokerHeartbeatRequestHeader.decode(command.fields)
        self._routes.touch(header.cluster_name, header.broker_addr, self._clock.monotonic_ms())
        return command.answer()


def _digest(command: Command, header: RegisterBrokerRequestHeader) -> bytes:
    """Names a body, and how it is to be read."""
    form = f"{header.compressed} {command.version} ".encode()
    return hashlib.blake2b(command.body, key=form, digest_size=16).digest()


def _filter_servers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Clients of RocketMQ before 4.4 dial them: only what a broker's address may be."""
    return tuple(name for name in names[:FILTER_SERVERS_MAX] if is_address(name))
