"""Calls from the broker to its clients, for operators that cannot reach them themselves (307, 309).

Rules: the client's answer goes back as it came, code and all. A client that is not there is 1, one that does
not answer in time is 207. Only so many calls are under way at once, because each waits for a client; clients at one
address leave room for calls to others.
Owned by the event loop.
"""

from __future__ import annotations

from collections import Counter

from penstock.broker.channels import ClientChannel
from penstock.broker.consumers import Consumers
from penstock.broker.flow_control import BusyError
from penstock.broker.groups import Groups
from penstock.broker.options import BrokerOptions
from penstock.broker.record_gate import RecordGate
from penstock.broker.topics import Topics
from penstock.errors import CallTimeoutError, RemotingError, RequestError
from penstock.protocol.codes import V3_1_8, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime.shares import has_share
from penstock.security.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, TOKEN_FIELD
from penstock.store import MessageStore


class ClientCalls:
    """What the broker asks of clients."""

    def __init__(self, options: BrokerOptions) -> None:
        self.options = options
        # Calls that wait for an answer, by the address of the client.
        self._under_way: Counter[str] = Counter()

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    async def call(self, channel: ClientChannel, command: Command, timeout_ms: int | None = None) -> Command:
        """Ask a client and wait; its answer, whatever code that has. Raises RequestError 2, 207 or 1."""
        peer, count = channel.connection.peer.ip, self._under_way.total()
        if not has_share(self._under_way[peer], count, self.options.relays_max):
            raise BusyError(
                f"{count} calls to clients wait, {self._under_way[peer]} of them to {peer}; that is the limit",
                1_000,
            )
        timeout_ms = self.options.relay_timeout_ms if timeout_ms is None else timeout_ms
        command.language = "JAVA"
        self._under_way[peer] += 1
        try:
            return await channel.connection.call(command, timeout_ms)
        except CallTimeoutError as error:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"client {channel.client_id} did not answer within {timeout_ms} ms",
            ) from error
        except RemotingError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"client {channel.client_id} cannot be reached: {error}"
            ) from error
        finally:
            self._under_way[peer] -= 1
            if not self._under_way[peer]:
                del self._under_way[peer]


# What the operator's request is signed with: these, and Penstock's own fields (stamp, signature). RocketMQ's
# signature does not cover the request code, so a client that got it could send it to the broker with another one, and
# do in the operator's name what needs no other fields.
_PROOFS = frozenset((ACCESS_KEY_FIELD, SIGNATURE_FIELD, TOKEN_FIELD))
_OWN_PREFIX = "Penstock"


class RelayProcessor:
    """Codes 307 and 309."""

    def __init__(
        self,
        options: BrokerOptions,
        calls: ClientCalls,
        consumers: Consumers,
        topics: Topics,
        groups: Groups,
        store: MessageStore,
    ) -> None:
        self._broker_name = options.broker_name
        self._calls = calls
        self._consumers = consumers
        self._topics = topics
        self._groups = groups
        self._gate = RecordGate(store)

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self.handle_running_info)
        table.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.handle_consume_directly)

    async def handle_running_info(self, connection: Connection, command: Command) -> Command:
        header = GetConsumerRunningInfoRequestHeader.decode(command.fields)
        channel = self._channel(header.consumer_group, header.client_id)
        return await self._relay(channel, command, dict(command.fields), command.body)

    async def handle_consume_directly(self, connection: Connection, command: Command) -> Command:
        header = ConsumeMessageDirectlyResultRequestHeader.decode(command.fields)
        channel = self._channel(header.consumer_group, header.client_id or "")
        record = self._gate.by_id(header.msg_id or "")
        fields = {**command.fields, "brokerName": self._broker_name}
        topic = self._topics.get(record.message.topic)
        group = self._groups.find(header.consumer_group)
        if topic is not None:
            fields["topicSysFlag"] = str(topic.sys_flag)
        if group is not None:
            fields["groupSysFlag"] = str(group.sys_flag)
        return await self._relay(channel, command, fields, record.data)

    def _channel(self, group: str, client_id: str) -> ClientChannel:
        channel = self._consumers.member(group, client_id)
        if channel is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer {client_id[:80]!r} of group {group[:80]!r} is not online",
            )
        if channel.version < V3_1_8:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer {client_id} is of version {channel.version} and does not know this request",
                "upgrade the client",
            )
        return channel

    async def _relay(
        self, channel: ClientChannel, command: Command, fields: dict[str, str], body: bytes | bytearray
    ) -> Command:
        passed_on = {
            name: value
            for name, value in fields.items()
            if name not in _PROOFS and not name.startswith(_OWN_PREFIX)
        }
        answer = await self._calls.call(channel, Command(command.code, passed_on, body))
        return command.answer(answer.code, answer.remark, answer.fields, answer.body)
