"""Brokers report: BROKER_BEAT (9020) from ours, BROKER_HEARTBEAT (904, one-way) from RocketMQ's.

Rules. A beat is answered at once and from memory: the answer is what keeps a master acknowledging. It carries the set
as it is, so a broker that missed a notice learns of its role half a second later. Names and addresses are checked
before anything is kept (A6, A12). Handlers run in the coordinator's event loop.
"""

from __future__ import annotations

from penstock.coordinator.heartbeats import broker_node
from penstock.coordinator.parts import Shared
from penstock.coordinator.processors.lead import not_leader
from penstock.coordinator.set_messages import Answer, Beat
from penstock.coordinator.topic_reports import SetName, TopicQueues
from penstock.errors import CodecError, FieldError, RequestError
from penstock.protocol.bodies.controller import SyncStateSet, TopicTableReport
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import BrokerHeartbeatRequestHeader
from penstock.protocol.headers.controller import BrokerBeatRequestHeader, BrokerBeatResponseHeader
from penstock.protocol.identity import check_address, check_name, is_name, seen_from
from penstock.remoting import Connection, ProcessorTable

# RocketMQ's brokers say for how long they may be silent; more than this nobody is believed.
CLASSIC_HOLD_MS, CLASSIC_HOLD_MAX_MS = 10_000, 60_000


class BrokerReportProcessor:
    """See the module's text."""

    def __init__(self, shared: Shared) -> None:
        self._sets = shared.sets
        self._leadership = shared.leadership
        self._table = shared.heartbeats.brokers
        self._topics = shared.topics
        self._links = shared.links
        self._meters = shared.meters
        self._clock = shared.runtime.clock

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.BROKER_BEAT, self.handle_broker_beat)
        table.register(RequestCode.BROKER_HEARTBEAT, self.handle_broker_heartbeat)

    def handle_broker_beat(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = BrokerBeatRequestHeader.decode(command.fields)
        name = SetName(
            check_name("cluster name", header.cluster_name), check_name("broker name", header.broker_name)
        )
        check_address("brokerAddress", header.broker_address)
        if header.ha_address:
            check_address("haAddress", header.ha_address)
        if header.incarnation < 1:
            raise FieldError(f"incarnation is {header.incarnation}", "count the starts of the broker from 1")
        answer = self._sets.beat(
            name,
            Beat(
                header.broker_id,
                connection=connection.id,
                address=header.broker_address,
                ha_address=header.ha_address,
                incarnation=header.incarnation,
                epoch=header.master_epoch,
                max_offset=header.max_offset,
                confirm_offset=header.confirm_offset,
                priority=header.election_priority,
                is_stopping=header.is_stopping,
            ),
            is_sure=self._leadership.is_sure,
        )
        self._meters.add("beats")
        if answer.code == ResponseCode.SUCCESS:
            self._is_there(name, header.broker_id, connection, is_stopping=header.is_stopping)
            self._take_topics(name, header, command, answer)
        return self._answer(connection, command, name, header, answer)

    def _is_there(
        self, name: SetName, broker_id: int, connection: Connection, *, is_stopping: bool = False
    ) -> None:
        self._links.heard(connection)
        node, now_ms = broker_node(name, broker_id), self._clock.monotonic_ms()
        if is_stopping:
            self._table.close(node)
        elif not self._table.beat(node, now_ms, connection=connection.id):
            self._table.register(node, now_ms, connection=connection.id)

    def _take_topics(
        self, name: SetName, header: BrokerBeatRequestHeader, command: Command, answer: Answer
    ) -> None:
        """Only the master's topics count, and only as it says them in the present epoch."""
        record = answer.record
        if header.topics_version is None or not command.body or record is None:
            return
        if (record.master_id, record.master_epoch) != (header.broker_id, header.master_epoch):
            return
        try:
            table = TopicTableReport.decode(command.body)
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error
        topics = {topic: TopicQueues(*numbers) for topic, numbers in table.topics.items() if is_name(topic)}
        self._topics.report(name, header.topics_version, topics)

    def _answer(
        self,
        connection: Connection,
        command: Command,
        name: SetName,
        beat: BrokerBeatRequestHeader,
        answer: Answer,
    ) -> Command:
        record = answer.record
        if record is None:
            return command.answer(answer.code, answer.remark)
        is_master = beat.broker_id == record.master_id
        dialled = connection.local.ip
        master = record.master
        header = BrokerBeatResponseHeader(
            master_broker_id=record.master_id,
            master_address=None if master is None else seen_from(master.address, dialled),
            master_ha_address=None if master is None else seen_from(master.ha_address, dialled),
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.set_epoch,
            term=record.term,
            lease_ms=answer.lease_ms,
            # A replica's table is not wanted.
            topics_version=self._topics.version(name) if is_master else beat.topics_version,
        )
        body = SyncStateSet(record.sync_set, record.set_epoch).encode()
        return command.answer(answer.code, answer.remark or None, header.encode(), body)

    def handle_broker_heartbeat(self, connection: Connection, command: Command) -> Command:
        """RocketMQ's own heartbeat: it keeps a broker alive and promises no lease."""
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = BrokerHeartbeatRequestHeader.decode(command.fields)
        name = SetName(
            check_name("cluster name", header.cluster_name), check_name("broker name", header.broker_name)
        )
        check_address("brokerAddr", header.broker_addr)
        one = self._sets.get(name)
        record = None if one is None else one.record
        if header.broker_id is None or record is None or header.broker_id not in record.replicas:
            return command.answer(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"{name.name} has to register"
            )
        hold_ms = header.heartbeat_timeout_mills or CLASSIC_HOLD_MS
        answer = self._sets.beat(
            name,
            Beat(
                header.broker_id,
                connection=connection.id,
                address=header.broker_addr,
                # It tells the last epoch of its log only, which lags behind until something is written; that it has
                # taken its role is believed.
                epoch=record.master_epoch,
                log_epoch=header.epoch or 0,
                max_offset=header.max_offset or 0,
                confirm_offset=header.confirm_offset or 0,
                priority=2**31 - 1 if header.election_priority is None else header.election_priority,
                hold_ms=min(max(hold_ms, 1), CLASSIC_HOLD_MAX_MS),
            ),
            is_sure=self._leadership.is_sure,
        )
        if answer.code == ResponseCode.SUCCESS:
            self._is_there(name, header.broker_id, connection)
        return command.answer(answer.code, answer.remark or None)
