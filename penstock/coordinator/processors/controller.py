"""RocketMQ's controller requests that change a set: 1001, 1002, 1003, 1011, 1013; and 1009, which is refused.

Rules. They are carried out by the leader alone; the others answer 2007 (lead.py). A refusal carries the set as it is,
in the header and body that a success would have, so that a broker that missed something need not ask again. Handlers
run in the coordinator's event loop and wait for the metadata store.
"""

from __future__ import annotations

from penstock.coordinator.parts import Shared
from penstock.coordinator.processors.lead import not_leader
from penstock.coordinator.set_messages import AlterSyncSet, Answer, ApplyId, Clean, Elect, Register, Request
from penstock.coordinator.set_record import SetRecord
from penstock.coordinator.topic_reports import SetName
from penstock.errors import CodecError, FieldError, RequestError
from penstock.protocol.bodies import BrokerMemberGroup
from penstock.protocol.bodies.controller import MEMBERS_MAX, ElectMasterResponseBody, SyncStateSet
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command, parse_integer
from penstock.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from penstock.protocol.identity import check_address, check_name, check_text, seen_from
from penstock.remoting import Connection, ProcessorTable


class ControllerProcessor:
    """See the module's text."""

    def __init__(self, shared: Shared) -> None:
        self._sets = shared.sets
        self._leadership = shared.leadership
        self._links = shared.links
        self._options = shared.options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, self.handle_alter_sync_state_set)
        table.register(RequestCode.CONTROLLER_ELECT_MASTER, self.handle_elect_master)
        table.register(RequestCode.CONTROLLER_REGISTER_BROKER, self.handle_register_broker)
        table.register(RequestCode.UPDATE_CONTROLLER_CONFIG, self.handle_update_config)
        table.register(RequestCode.CLEAN_BROKER_DATA, self.handle_clean_broker_data)
        table.register(RequestCode.CONTROLLER_APPLY_BROKER_ID, self.handle_apply_broker_id)

    async def _ask(self, name: SetName, request: Request, *, is_new: bool = False) -> Answer:
        return await self._sets.ask(name, request, self._options.request_timeout_ms, is_new=is_new)

    def _find(self, broker_name: str, cluster: str = "") -> SetName:
        """A set by its broker name alone, or as it is about to be made."""
        check_name("broker name", broker_name)
        known = self._sets.find(broker_name)
        if known is not None and cluster in ("", known.cluster):
            return known
        return SetName(check_name("cluster name", cluster) if cluster else "", broker_name)

    # -- ids and registration --------------------------------------------------------------------------------

    async def handle_apply_broker_id(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = ApplyBrokerIdRequestHeader.decode(command.fields)
        check_name("cluster name", header.cluster_name)
        check_text("registerCheckCode", header.register_check_code)
        name = self._find(header.broker_name, header.cluster_name)
        request = ApplyId(header.applied_broker_id, header.register_check_code)
        answer = await self._ask(name, request, is_new=True)
        fields = ApplyBrokerIdResponseHeader(cluster_name=name.cluster, broker_name=name.name).encode()
        return command.answer(answer.code, answer.remark or None, fields)

    async def handle_register_broker(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = RegisterBrokerToControllerRequestHeader.decode(command.fields)
        check_name("cluster name", header.cluster_name)
        check_address("brokerAddress", header.broker_address)
        if header.ha_address:
            check_address("haAddress", header.ha_address)
        name = self._find(header.broker_name, header.cluster_name)
        # Its later beats come over the same connection; notices may be due before the first of them.
        self._links.heard(connection)
        answer = await self._ask(
            name,
            Register(
                header.broker_id,
                header.broker_address,
                header.ha_address,
                max(header.incarnation, 0),
                header.log_intact,
                header.max_epoch,
                header.max_offset,
                connection.id,
            ),
        )
        record = answer.record
        if record is None:
            return command.answer(answer.code, answer.remark or None)
        master = record.master
        fields = RegisterBrokerToControllerResponseHeader(
            cluster_name=name.cluster,
            broker_name=name.name,
            master_broker_id=record.master_id,
            master_address=None if master is None else seen_from(master.address, connection.local.ip),
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.set_epoch,
        ).encode()
        return command.answer(answer.code, answer.remark or None, fields, _sync_set(record))

    # -- mastership ------------------------------------------------------------------------------------------

    async def handle_alter_sync_state_set(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = AlterSyncStateSetRequestHeader.decode(command.fields)
        try:
            proposed = SyncStateSet.decode(command.body)
        except CodecError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error
        answer = await self._ask(
            self._find(header.broker_name),
            AlterSyncSet(header.master_broker_id, header.master_epoch, proposed.epoch, proposed.members),
        )
        record = answer.record
        if record is None:
            return command.answer(answer.code, answer.remark or None)
        fields = AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=record.set_epoch).encode()
        return command.answer(answer.code, answer.remark or None, fields, _sync_set(record))

    async def handle_elect_master(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = ElectMasterRequestHeader.decode(command.fields)
        asking = header.broker_id if header.broker_id >= 0 else None
        if header.designate_elect and asking is None:
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, "no broker is designated", "name its id in brokerId"
            )
        name = self._find(header.broker_name, header.cluster_name)
        answer = await self._ask(name, Elect(asking, header.designate_elect))
        record = answer.record
        if record is None:
            return command.answer(answer.code, answer.remark or None)
        dialled = connection.local.ip
        master = record.master
        fields = ElectMasterResponseHeader(
            master_broker_id=record.master_id,
            master_address=None if master is None else seen_from(master.address, dialled),
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.set_epoch,
        ).encode()
        addresses = {
            broker_id: seen_from(one.address, dialled)
            for broker_id, one in record.replicas.items()
            if one.address
        }
        group = BrokerMemberGroup(name.cluster, name.name, addresses)
        body = ElectMasterResponseBody(group, record.sync_set).encode()
        return command.answer(answer.code, answer.remark or None, fields, body)

    # -- administration --------------------------------------------------------------------------------------

    async def handle_clean_broker_data(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = CleanControllerBrokerDataRequestHeader.decode(command.fields)
        name = self._find(header.broker_name, header.cluster_name)
        if self._sets.is_loaded and self._sets.get(name) is None:
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"there is no broker set {name.name}"
            )
        ids = _ids(header.broker_controller_ids_to_clean)
        answer = await self._ask(name, Clean(ids, header.is_clean_living_broker))
        return command.answer(answer.code, answer.remark or None)

    def handle_update_config(self, connection: Connection, command: Command) -> Command:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            "the configuration of a running coordinator cannot be changed",
            "set the option and restart it; another coordinator leads meanwhile",
        )


def _sync_set(record: SetRecord) -> bytes:
    return SyncStateSet(record.sync_set, record.set_epoch).encode()


def _ids(text: str | None) -> frozenset[int] | None:
    """`1;2;3`."""
    parts = [part for part in (text or "").split(";") if part.strip()]
    if len(parts) > MEMBERS_MAX:
        raise FieldError(f"brokerControllerIdsToClean names {len(parts)} brokers", "that is too many")
    if not parts:
        return None
    return frozenset(parse_integer("brokerControllerIdsToClean", part.strip(), 0) for part in parts)
