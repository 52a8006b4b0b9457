"""What a member of a set asks its coordinators (9020, 1001 to 1003, 1012, 1013), as events of `membership.py`.

Rules. When a beat was sent is noted before it leaves: a lease counts from there. An answer that is missing says
nothing, but for a proposal, where that it is missing has to be known; only an answer of the coordinator's own codes
means that it was surely not carried out. Plain calls; whoever makes them decides when.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.broker.coordinators import Coordinators
from penstock.broker.membership import (
    Altered,
    AlterRefused,
    AlterUnanswered,
    Beat,
    Beaten,
    Elected,
    Event,
    MustRegister,
    Propose,
    Registered,
    View,
)
from penstock.broker.options import BrokerOptions
from penstock.broker.set_identity import Application, SetIdentity
from penstock.errors import PenstockError, RemotingError
from penstock.message import HostAddress
from penstock.protocol.bodies.controller import SyncStateSet, TopicTableReport
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerBeatRequestHeader,
    BrokerBeatResponseHeader,
    ElectMasterRequestHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from penstock.remoting import Connection
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")
CALL_TIMEOUT_MS = 3_000
BEAT_TIMEOUT_MS = 1_000
RETRY_MS = 1_000
_EVERYWHERE = ("0.0.0.0", "::", "")
# Only a coordinator that leads answers with these, and then it has not done what was asked.
_REFUSALS = range(2000, 2015)


@dataclass(frozen=True, slots=True)
class SetMember:
    """Who this broker is in its set, since it was started."""

    broker_id: int
    incarnation: int
    is_log_intact: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a broker says of itself, as it is now."""

    listening: Callable[[], HostAddress]
    ha_port: Callable[[], int]
    # Last epoch and end of the log, and how far it is confirmed.
    log: Callable[[], tuple[int, int, int]]
    # Version of the topic table, and the table.
    topics_version: Callable[[], int]
    topics: Callable[[], TopicTableReport]


class CoordinatorCalls:
    """See the module's text."""

    def __init__(
        self, options: BrokerOptions, coordinators: Coordinators, facts: Facts, runtime: Runtime
    ) -> None:
        self._options = options
        self._coordinators = coordinators
        self._facts = facts
        self._clock = runtime.clock
        self._entropy = runtime.entropy
        # The version of the topics that the coordinator knows.
        self._told_topics: int | None = None
        self._trouble = ""

    # -- who am I --------------------------------------------------------------------------------------------

    async def apply_for_id(self, identity: SetIdentity) -> int:
        """An id of one's own, asked for until it is given."""
        while True:
            try:
                application = identity.application() or await self._next_id(identity)
                if application is not None:
                    broker_id = await self._apply(identity, application)
                    if broker_id is not None:
                        return broker_id
            except RemotingError:
                pass  # said by whoever tried
            # Brokers that are started together must not ask at the same moments for ever.
            await asyncio.sleep((RETRY_MS / 2 + self._entropy.below(RETRY_MS // 2)) / 1000)

    async def _next_id(self, identity: SetIdentity) -> Application | None:
        options = self._options
        header = GetNextBrokerIdRequestHeader(
            cluster_name=options.cluster_name, broker_name=options.broker_name
        )
        code = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
        answer = await self._coordinators.call(
            lambda connection: Command(code, header.encode()), CALL_TIMEOUT_MS
        )
        if answer.code != ResponseCode.SUCCESS:
            self._complain("asking for a broker id", answer)
            return None
        broker_id = GetNextBrokerIdResponseHeader.decode(answer.fields).next_broker_id
        listening = self._facts.listening()
        address = options.advertise(listening.ip, listening.port)
        application = Application(broker_id, f"{address};{self._clock.now_ms()}")
        identity.apply_for(application)
        return application

    async def _apply(self, identity: SetIdentity, application: Application) -> int | None:
        options = self._options
        header = ApplyBrokerIdRequestHeader(
            cluster_name=options.cluster_name,
            broker_name=options.broker_name,
            applied_broker_id=application.broker_id,
            register_check_code=application.check_code,
        )
        code = RequestCode.CONTROLLER_APPLY_BROKER_ID
        answer = await self._coordinators.call(
            lambda connection: Command(code, header.encode()), CALL_TIMEOUT_MS
        )
        if answer.code == ResponseCode.SUCCESS:
            identity.granted(application.broker_id)
            return application.broker_id
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            identity.give_up()
        else:
            self._complain(f"applying for broker id {application.broker_id}", answer)
        return None

    # -- where am I ------------------------------------------------------------------------------------------

    def _addresses(self, connection: Connection) -> tuple[str, str]:
        """Where clients and replicas reach this broker. One that listens everywhere is reached where it reaches the
        coordinator from, or, on the same machine, where each of them reached the coordinator."""
        listening = self._facts.listening()
        ip = listening.ip
        if ip in _EVERYWHERE and not ipaddress.ip_address(connection.local.ip).is_loopback:
            ip = connection.local.ip
        address = self._options.advertise(ip or "0.0.0.0", listening.port)
        host = address.rpartition(":")[0]
        return address, f"{host}:{self._facts.ha_port()}"

    async def register(self, me: SetMember) -> Event | None:
        options = self._options

        def make(connection: Connection) -> Command:
            address, ha_address = self._addresses(connection)
            epoch, end, _ = self._facts.log()
            header = RegisterBrokerToControllerRequestHeader(
                cluster_name=options.cluster_name,
                broker_name=options.broker_name,
                broker_id=me.broker_id,
                broker_address=address,
                invoke_time=self._clock.now_ms(),
                ha_address=ha_address,
                incarnation=me.incarnation,
                log_intact=me.is_log_intact,
                max_epoch=epoch,
                max_offset=end,
            )
            return Command(RequestCode.CONTROLLER_REGISTER_BROKER, header.encode())

        answer = await self._call(make, CALL_TIMEOUT_MS)
        if answer is None:
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._complain("registering with the coordinator", answer)
            return None
        header = RegisterBrokerToControllerResponseHeader.decode(answer.fields)
        return Registered(header.master_epoch or 0)

    async def ask_election(self, me: SetMember) -> Event | None:
        header = ElectMasterRequestHeader(
            cluster_name=self._options.cluster_name,
            broker_name=self._options.broker_name,
            broker_id=me.broker_id,
            invoke_time=self._clock.now_ms(),
        )
        code = RequestCode.CONTROLLER_ELECT_MASTER
        answer = await self._call(lambda connection: Command(code, header.encode()), CALL_TIMEOUT_MS)
        # Whoever was elected, the next beat says so.
        return None if answer is None else Elected()

    # -- beats -----------------------------------------------------------------------------------------------

    async def beat(self, me: SetMember, step: Beat) -> Event | None:
        options = self._options
        sent_ms = 0

        def make(connection: Connection) -> Command:
            nonlocal sent_ms
            address, ha_address = self._addresses(connection)
            _, end, confirmed = self._facts.log()
            version = self._facts.topics_version()
            body = b"" if version == self._told_topics else self._facts.topics().encode()
            header = BrokerBeatRequestHeader(
                cluster_name=options.cluster_name,
                broker_name=options.broker_name,
                broker_id=me.broker_id,
                broker_address=address,
                ha_address=ha_address,
                incarnation=me.incarnation,
                master_epoch=step.epoch,
                max_offset=end,
                confirm_offset=confirmed,
                is_stopping=step.is_stopping,
                topics_version=version,
            )
            # The same beat may go to several coordinators: the earliest counts.
            sent_ms = sent_ms or self._clock.monotonic_ms()
            return Command(RequestCode.BROKER_BEAT, header.encode(), body)

        answer = await self._call(make, BEAT_TIMEOUT_MS)
        if answer is None:
            return None
        if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return MustRegister()
        if answer.code != ResponseCode.SUCCESS:
            self._complain("reporting to the coordinator", answer)
            return None
        self._trouble = ""
        header = BrokerBeatResponseHeader.decode(answer.fields)
        self._told_topics = header.topics_version
        members = SyncStateSet.decode(answer.body) if answer.body else SyncStateSet()
        view = View(
            header.term,
            header.master_epoch,
            header.sync_state_set_epoch,
            members.members,
            header.master_broker_id,
            header.master_address or "",
            header.master_ha_address or "",
        )
        return Beaten(view, sent_ms, header.lease_ms)

    # -- the sync-state set ----------------------------------------------------------------------------------

    async def alter(self, me: SetMember, step: Propose) -> Event:
        header = AlterSyncStateSetRequestHeader(
            broker_name=self._options.broker_name,
            master_broker_id=me.broker_id,
            master_epoch=step.epoch,
            invoke_time=self._clock.now_ms(),
        )
        body = SyncStateSet(step.members, step.set_epoch).encode()
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        try:
            answer = await self._coordinators.call(
                lambda connection: Command(code, header.encode(), body), CALL_TIMEOUT_MS, once=True
            )
            if answer.code == ResponseCode.SUCCESS:
                decided = SyncStateSet.decode(answer.body or b"{}")
                return Altered(step.epoch, decided.members, decided.epoch)
        except PenstockError as error:
            is_unknown = error.outcome_unknown or not isinstance(error, RemotingError)
            return AlterUnanswered(step.epoch) if is_unknown else AlterRefused(step.epoch)
        _LOG.info("the sync-state set is not changed: %s %s", answer.code, (answer.remark or "")[:200])
        return AlterRefused(step.epoch) if answer.code in _REFUSALS else AlterUnanswered(step.epoch)

    # -- helpers ---------------------------------------------------------------------------------------------

    async def _call(self, make: Callable[[Connection], Command], timeout_ms: int) -> Command | None:
        try:
            return await self._coordinators.call(make, timeout_ms)
        except PenstockError:
            return None  # said by whoever tried

    def _complain(self, what: str, answer: Command) -> None:
        trouble = f"{what}: the coordinator answers {answer.code} {(answer.remark or '')[:200]}"
        if trouble != self._trouble:  # once for each trouble, not with every beat
            _LOG.warning("%s", trouble)
        self._trouble = trouble
