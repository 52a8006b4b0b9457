"""What every coordinator answers, whether it leads or not: 1004, 1005, 1006, 1010, 1012, and our own status (9025).

Rules. The leader answers from what it works with. The others answer from their copy, which is at most 3 s old; one
that is older is waited for, and a question that waited too long is refused with the copy's age (copies.py). Nobody
is dialled. 1005 and 9025 are about the coordinator itself and never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of

from penstock.coordinator.copies import RecordCopies
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.parts import Shared
from penstock.coordinator.registry import CoordinatorEntry
from penstock.coordinator.set_record import FIRST_ID, SetRecord
from penstock.coordinator.topic_reports import SetName
from penstock.errors import RequestError
from penstock.metadata.fastjson import JsonObject, dump_compact
from penstock.protocol.bodies import parse_document
from penstock.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import (
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
)
from penstock.protocol.identity import check_name, seen_from
from penstock.remoting import Connection, ProcessorTable

GROUP = "penstock"
NAMES_MAX = 1_000


class QuestionProcessor:
    """See the module's text. `status` is what 9025 answers."""

    def __init__(
        self,
        shared: Shared,
        copies: RecordCopies,
        entry: CoordinatorEntry,
        status: Callable[[], JsonObject],
    ) -> None:
        self._sets = shared.sets
        self._leadership = shared.leadership
        self._options = shared.options
        self._copies = copies
        self._entry = entry
        self._status = status

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.CONTROLLER_GET_REPLICA_INFO, self.handle_get_replica_info)
        table.register(RequestCode.CONTROLLER_GET_METADATA_INFO, self.handle_get_metadata)
        table.register(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, self.handle_get_sync_state_data)
        table.register(RequestCode.GET_CONTROLLER_CONFIG, self.handle_get_config)
        table.register(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self.handle_get_next_broker_id)
        table.register(RequestCode.COORDINATOR_STATUS, self.handle_status)

    async def _records(self) -> Mapping[SetName, SetRecord]:
        return self._sets.records() if self._leads() else await self._copies.records()

    def _leads(self) -> bool:
        return self._leadership.is_sure and self._sets.is_settled

    def _alive(self, name: SetName, record: SetRecord) -> frozenset[int]:
        """Who is alive by the word of whoever leads: this one's beats, or the copy that the answer is made of."""
        one = self._sets.get(name) if self._leads() else None
        if one is None:
            return self._copies.alive(name)
        return frozenset(number for number in record.replicas if self._sets.is_alive(one, number))

    async def _named(self, broker_name: str) -> SetRecord | None:
        check_name("broker name", broker_name)
        records = await self._records()
        return next((one for name, one in records.items() if name.name == broker_name), None)

    async def handle_get_replica_info(self, connection: Connection, command: Command) -> Command:
        header = GetReplicaInfoRequestHeader.decode(command.fields)
        record = await self._named(header.broker_name)
        if record is None:
            raise RequestError(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                f"there is no broker set {header.broker_name}",
            )
        master = record.master
        fields = GetReplicaInfoResponseHeader(
            master_broker_id=record.master_id,
            master_address=None if master is None else seen_from(master.address, connection.local.ip),
            master_epoch=record.master_epoch,
        ).encode()
        return command.answer(fields=fields, body=SyncStateSet(record.sync_set, record.set_epoch).encode())

    async def handle_get_sync_state_data(self, connection: Connection, command: Command) -> Command:
        names = parse_document(command.body or b"[]", "broker names", 256 * 1024, 10)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                "the body is no list of broker names",
                "send a JSON list",
            )
        if len(names) > NAMES_MAX:
            raise RequestError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"{len(names)} broker names", f"ask for {NAMES_MAX}"
            )
        wanted = set(names)
        records = await self._records()
        found = {
            name.name: self._replicas(name, record, connection.local.ip)
            for name, record in records.items()
            if name.name in wanted
        }
        return command.answer(body=BrokerReplicasInfo(found).encode())

    def _replicas(self, name: SetName, record: SetRecord, dialled_ip: str) -> ReplicasInfo:
        master, alive = record.master, self._alive(name, record)
        identities = {
            broker_id: ReplicaIdentity(
                name.name,
                broker_id,
                seen_from(replica.address, dialled_ip),
                broker_id in alive,
            )
            for broker_id, replica in sorted(record.replicas.items())
        }
        return ReplicasInfo(
            record.master_id,
            None if master is None else seen_from(master.address, dialled_ip),
            record.master_epoch,
            record.set_epoch,
            tuple(identity for broker_id, identity in identities.items() if broker_id in record.sync_set),
            tuple(identity for broker_id, identity in identities.items() if broker_id not in record.sync_set),
        )

    async def handle_get_next_broker_id(self, connection: Connection, command: Command) -> Command:
        """May be out of date, here as at the leader: whoever applies for an id that is taken asks again."""
        header = GetNextBrokerIdRequestHeader.decode(command.fields)
        check_name("cluster name", header.cluster_name)
        record = await self._named(header.broker_name)
        fields = GetNextBrokerIdResponseHeader(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            next_broker_id=FIRST_ID if record is None else record.next_id,
        ).encode()
        return command.answer(fields=fields)

    # -- about this coordinator ------------------------------------------------------------------------------

    def handle_get_metadata(self, connection: Connection, command: Command) -> Command:
        peers = sorted({*self._entry.peers, self._leadership.identity})
        leader = self._leadership.leader
        fields = GetMetaDataResponseHeader(
            group=GROUP,
            controller_leader_id=f"n{peers.index(leader)}" if leader in peers else None,
            controller_leader_address=leader,
            is_leader=self._leadership.is_sure,
            peers=";".join(f"n{number}-{address}" for number, address in enumerate(peers)),
        ).encode()
        return command.answer(fields=fields)

    def handle_get_config(self, connection: Connection, command: Command) -> Command:
        """As RocketMQ's: lines of `key=value`. There is no secret among the options."""
        lines = [
            f"{field.name}={getattr(self._options, field.name)}\n" for field in fields_of(CoordinatorOptions)
        ]
        return command.answer(body="".join(lines).encode())

    def handle_status(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=dump_compact(self._status()))
