"""Consumer groups and who is connected, for operators (200, 225, 201, 352, 207, 203, 204, 328).

Rules: names are checked before anything changes, and of a list either all groups are created or none. A change
is answered when it is in its file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial

from penstock.broker.channels import ClientChannel
from penstock.broker.consumers import Consumers
from penstock.broker.groups import SYSTEM_GROUPS, Groups, validate_group
from penstock.broker.locks import QueueLocks
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.processors.reading import answer_table, check_extra, read_body, saved
from penstock.broker.producers import Producers
from penstock.errors import RequestError
from penstock.metadata.group_table import SubscriptionGroup
from penstock.protocol.bodies import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from penstock.protocol.bodies.tables import (
    decode_group_config,
    decode_group_config_list,
    encode_group_config,
    encode_group_table,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable


class GroupsProcessor:
    """Creates, changes, deletes and describes groups."""

    def __init__(
        self,
        options: BrokerOptions,
        groups: Groups,
        consumers: Consumers,
        producers: Producers,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        leases: PartitionLeases,
    ) -> None:
        self._options = options
        self._groups = groups
        self._consumers = consumers
        self._producers = producers
        self._offsets = offsets
        self._locks = locks
        self._leases = leases

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.handle_update_and_create)
        table.register(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.handle_update_and_create_list
        )
        table.register(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.handle_get_all)
        table.register(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.handle_get)
        table.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.handle_delete)
        table.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.handle_get_consumer_connection_list)
        table.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.handle_get_producer_connection_list)
        table.register(RequestCode.GET_ALL_PRODUCER_INFO, self.handle_get_all_producer_info)

    # -- changes ---------------------------------------------------------------------------------------------

    def handle_update_and_create(self, connection: Connection, command: Command) -> Awaitable[Command]:
        self._update([read_body(command, decode_group_config)])
        return saved(self._groups, command)

    def handle_update_and_create_list(self, connection: Connection, command: Command) -> Awaitable[Command]:
        self._update(read_body(command, decode_group_config_list))
        return saved(self._groups, command)

    def _update(self, configs: Iterable[SubscriptionGroup]) -> None:
        for checked in [self._checked(config) for config in configs]:
            self._groups.update(checked)

    def _checked(self, wanted: SubscriptionGroup) -> SubscriptionGroup:
        """The group as it will be; the keys of its attributes carry a sign on the wire and none in the file."""
        validate_group(wanted.name)
        check_extra(
            wanted.name,
            (wanted.extra, wanted.attributes, wanted.subscriptions, wanted.retry_policy),
            wanted.to_json(),
        )
        if wanted.retry_queue_nums > self._options.topic_queues_max:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"group {wanted.name} would have more than {self._options.topic_queues_max} retry queues",
                "use fewer",
            )
        known = self._groups.find(wanted.name)
        attributes = {} if known is None else dict(known.attributes)
        for key, value in wanted.attributes.items():
            if key.startswith("-"):
                attributes.pop(key[1:], None)
            else:
                attributes[key.removeprefix("+")] = value
        return replace(wanted, attributes=attributes)

    def handle_delete(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = DeleteSubscriptionGroupRequestHeader.decode(command.fields)
        if header.group_name in SYSTEM_GROUPS:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"group {header.group_name} is reserved",
                "it cannot be deleted",
            )
        self._groups.delete(header.group_name)
        self._locks.remove_group(header.group_name)
        self._leases.remove_group(header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        return saved(self._groups, command)

    # -- questions -------------------------------------------------------------------------------------------

    def handle_get_all(self, connection: Connection, command: Command) -> Command | Awaitable[Command]:
        def prepare() -> Callable[[], bytes]:
            return partial(encode_group_table, self._groups.snapshot())

        return answer_table(connection, command, len(self._groups.all()), prepare)

    def handle_get(self, connection: Connection, command: Command) -> Command:
        name = GetSubscriptionGroupConfigRequestHeader.decode(command.fields).group
        config = self._groups.find(name)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name[:80]!r} does not exist here"
            )
        return command.answer(body=encode_group_config(config))

    def handle_get_consumer_connection_list(self, connection: Connection, command: Command) -> Command:
        name = GetConsumerConnectionListRequestHeader.decode(command.fields).consumer_group
        group = self._consumers.group(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:80]}] not online"
            )
        body = ConsumerConnection(
            connections=tuple(_describe(channel) for channel in group.members),
            subscriptions=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return command.answer(body=body.encode())

    def handle_get_producer_connection_list(self, connection: Connection, command: Command) -> Command:
        name = GetProducerConnectionListRequestHeader.decode(command.fields).producer_group
        members = self._producers.members(name)
        if not members:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:80]}] not exist")
        body = ProducerConnection(tuple(_describe(channel) for channel in members))
        return command.answer(body=body.encode())

    def handle_get_all_producer_info(self, connection: Connection, command: Command) -> Command:
        table = {
            group: tuple(_inform(channel) for channel in members)
            for group, members in self._producers.groups()
        }
        return command.answer(body=ProducerTableInfo(table).encode())


def _describe(channel: ClientChannel) -> ClientConnection:
    return ClientConnection(
        channel.client_id, str(channel.connection.peer), channel.language, channel.version, channel.terms
    )


def _inform(channel: ClientChannel) -> ProducerInfo:
    return ProducerInfo(
        channel.client_id,
        str(channel.connection.peer),
        channel.language,
        channel.version,
        channel.last_update_ms,
    )
