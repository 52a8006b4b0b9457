"""Heartbeats, leaving, member lists and the check of subscriptions (34, 35, 38, 46).

A heartbeat names all groups of a client. It creates groups and their retry topics where that is allowed,
registers the connection with them and refreshes it. Rules: everything is limited before anything is changed
(A14); an entry whose group name is not allowed is skipped, as in RocketMQ, so that the others still work.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.broker.consumers import Consumers
from penstock.broker.filtering import check_filter
from penstock.broker.groups import Groups, is_group
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.reading import read_body
from penstock.broker.producers import Producers
from penstock.broker.topics import Topics, retry_topic
from penstock.errors import PenstockError, RequestError
from penstock.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
)
from penstock.protocol.codes import LANGUAGE_NUMBERS, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    HeartbeatResponseHeader,
    UnregisterClientRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.store.layout import is_topic

_LOG = logging.getLogger("penstock.broker")
CLIENT_ID_SIZE_MAX = 255
_REFUSED_HEARTBEAT = "refused_heartbeat"


class HeartbeatProcessor:
    """Keeps producers and consumers up to date with what clients say of themselves."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        producers: Producers,
    ) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.HEART_BEAT, self.handle_heart_beat)
        table.register(RequestCode.UNREGISTER_CLIENT, self.handle_unregister_client)
        table.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.handle_get_consumer_list_by_group)
        table.register(RequestCode.CHECK_CLIENT_CONFIG, self.handle_check_client_config)

    # -- heartbeat -------------------------------------------------------------------------------------------

    def handle_heart_beat(self, connection: Connection, command: Command) -> Command:
        try:
            data = self._read(command)
        except PenstockError as error:
            # Clients repeat it every 30 s, and most of them show their users nothing.
            if connection.attributes.get(_REFUSED_HEARTBEAT) != error.message:
                connection.attributes[_REFUSED_HEARTBEAT] = error.message
                _LOG.warning("refused the heartbeats of %s: %s", connection.peer, error.message)
            raise
        is_changed = not data.fingerprint
        for consumer in data.consumers:
            if is_group(consumer.group_name):
                is_changed |= self._consumer(connection, command, data, consumer)
        for producer in data.producers:
            if is_group(producer.group_name):
                self._producers.heartbeat(
                    producer.group_name, connection, data.client_id, _language(command), command.version
                )
        header = HeartbeatResponseHeader(is_support_heartbeat_v2=True, is_sub_change=is_changed)
        return command.answer(fields=header.encode())

    def _read(self, command: Command) -> HeartbeatData:
        size_max = self._options.heartbeat_bytes_max
        if len(command.body) > size_max:
            raise _refusal(f"a heartbeat of {len(command.body)} bytes; the limit is {size_max}")
        data = read_body(command, HeartbeatData.decode)
        self._check(data)
        return data

    def _consumer(
        self, connection: Connection, command: Command, data: HeartbeatData, consumer: ConsumerData
    ) -> bool:
        """Register one consumer; whether the client has to send its subscriptions in full again."""
        config = self._groups.get(consumer.group_name)
        if config is None:
            _LOG.warning("consumer group %s does not exist; its heartbeat is ignored", consumer.group_name)
            return True
        self._topics.ensure(
            retry_topic(config.name), max(config.retry_queue_nums, 1), unit_mode=consumer.unit_mode
        )
        is_short = bool(data.fingerprint) and data.without_sub
        # There can be no topic of another name, so nothing is missed without its subscription.
        possible = tuple(item for item in consumer.subscriptions if is_topic(item.topic))
        self._consumers.heartbeat(
            replace(consumer, subscriptions=possible),
            connection,
            data.client_id,
            _language(command),
            command.version,
            notify=config.notify_consumer_ids_changed_enable,
            with_subscriptions=not is_short,
        )
        group = self._consumers.group(config.name)
        if group is None:
            return True
        known, group.fingerprint = group.fingerprint, data.fingerprint
        # After a restart of the broker a client may go on with the short form: it has to be asked for the rest.
        return known not in (0, data.fingerprint) or (is_short and not group.subscriptions)

    def _check(self, data: HeartbeatData) -> None:
        options = self._options
        check_client_id(data.client_id)
        if max(len(data.consumers), len(data.producers)) > options.client_groups_max:
            raise _refusal(f"a heartbeat names more than {options.client_groups_max} groups")
        for consumer in data.consumers:
            if len(consumer.subscriptions) > options.group_subscriptions_max:
                raise _refusal(
                    f"group {consumer.group_name[:80]!r} subscribes to more than"
                    f" {options.group_subscriptions_max} topics"
                )
            for subscription in consumer.subscriptions:
                if len(subscription.sub_string) > options.expression_size_max:
                    raise _refusal(
                        f"the subscription to {subscription.topic[:80]!r} is longer than"
                        f" {options.expression_size_max} characters"
                    )

    # -- the rest --------------------------------------------------------------------------------------------

    def handle_unregister_client(self, connection: Connection, command: Command) -> Command:
        header = UnregisterClientRequestHeader.decode(command.fields)
        if header.producer_group:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            self._consumers.unregister(header.consumer_group, connection)
        return command.answer()

    def handle_get_consumer_list_by_group(self, connection: Connection, command: Command) -> Command:
        name = GetConsumerListByGroupRequestHeader.decode(command.fields).consumer_group
        group = self._consumers.group(name)
        if group is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name[:80]}")
        return command.answer(body=ConsumerList(tuple(group.client_ids)).encode())

    def handle_check_client_config(self, connection: Connection, command: Command) -> Command:
        subscription = read_body(command, CheckClientRequestBody.decode).subscription
        if subscription is not None:
            check_filter(self._options, subscription)
        return command.answer()


def check_client_id(client_id: str) -> None:
    """Refuse an id that could not be shown in one line, or is none at all (A6)."""
    if not 0 < len(client_id) <= CLIENT_ID_SIZE_MAX or not client_id.isprintable():
        raise _refusal(f"{client_id[:80]!r} is no client id")


def _language(command: Command) -> str:
    """Administrators' tools fail on a language that no version knows."""
    return command.language if command.language in LANGUAGE_NUMBERS else "OTHER"


def _refusal(message: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, message, "send less, or raise the broker's limit")
