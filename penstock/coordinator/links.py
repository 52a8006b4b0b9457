"""The connections that brokers opened to this coordinator: the only way on which it ever speaks to one.

Rule: a coordinator never dials an address that it was told (A12). What it has to say to a broker, it says over the
connection over which that broker reported last; a broker that is not connected hears nothing, and asks when it is.
Owned by the coordinator's event loop.
"""

from __future__ import annotations

from penstock.coordinator.broker_sets import BrokerSets
from penstock.coordinator.set_messages import Notify
from penstock.errors import RequestError
from penstock.protocol.bodies.controller import SyncStateSet
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import NotifyBrokerRoleChangedRequestHeader
from penstock.protocol.identity import seen_from
from penstock.remoting import Connection


class BrokerLinks:
    """Connections by their number."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def heard(self, connection: Connection) -> None:
        """A broker reports over this one."""
        self._connections[connection.id] = connection

    def closed(self, connection: Connection) -> bool:
        """Whether it was a broker's."""
        return self._connections.pop(connection.id, None) is not None

    def notify(self, notice: Notify) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008) to everybody who is there."""
        record, master = notice.record, notice.record.master
        body = SyncStateSet(record.sync_set, record.set_epoch).encode()
        for _, number in notice.members:
            connection = self._connections.get(number)
            if connection is None or not connection.is_open:
                continue
            dialled = connection.local.ip
            header = NotifyBrokerRoleChangedRequestHeader(
                master_address=None if master is None else seen_from(master.address, dialled),
                master_epoch=record.master_epoch,
                sync_state_set_epoch=record.set_epoch,
                master_broker_id=record.master_id,
                master_ha_address=None if master is None else seen_from(master.ha_address, dialled),
                term=record.term,
            )
            connection.send(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode(), body))

    def master(self, sets: BrokerSets, broker_name: str) -> Connection:
        """The connection of the master of a broker set; RequestError if it is not there."""
        name = sets.find(broker_name)
        one = None if name is None else sets.get(name)
        if one is not None and one.record is not None and one.record.master_id is not None:
            member = one.members.get(one.record.master_id)
            connection = None if member is None else self._connections.get(member.connection)
            if connection is not None and connection.is_open:
                return connection
        raise RequestError(
            ResponseCode.BROKER_NOT_EXIST, f"no master of {broker_name[:255]} is connected", "ask again later"
        )

    async def call_master(
        self, sets: BrokerSets, broker_name: str, command: Command, timeout_ms: int = 3_000
    ) -> Command:
        """Ask the master of a broker set; its answer, whatever code that has."""
        return await self.master(sets, broker_name).call(command, timeout_ms)
