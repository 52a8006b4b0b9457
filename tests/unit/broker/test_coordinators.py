"""A broker finds the coordinator that leads, keeps to it, and finds the next one; proposals are never made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.broker.coordinator_calls import CoordinatorCalls, Facts, SetMember
from penstock.broker.coordinators import Coordinators
from penstock.broker.membership import (
    Altered,
    AlterRefused,
    AlterUnanswered,
    Beat,
    Beaten,
    Elected,
    MustRegister,
    Propose,
    Registered,
    View,
)
from penstock.broker.options import BrokerOptions
from penstock.broker.set_identity import SetIdentity
from penstock.errors import CallTimeoutError, ConnectError
from penstock.message import HostAddress
from penstock.protocol.bodies.controller import SyncStateSet, TopicTableReport
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import (
    BrokerBeatRequestHeader,
    BrokerBeatResponseHeader,
    GetNextBrokerIdResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from penstock.remoting import Connection, ProcessorTable, RemotingServer
from penstock.runtime import Runtime

ME = SetMember(1, 7, True)
CODES = (
    RequestCode.BROKER_BEAT,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    RequestCode.CONTROLLER_APPLY_BROKER_ID,
)


class Fake:
    """A coordinator: `leads`, and what it answers then."""

    def __init__(self) -> None:
        self.table = ProcessorTable()
        for code in CODES:
            self.table.register(code, self.handle)
        self.server = RemotingServer("127.0.0.1", 0, self.table, runtime=Runtime.system())
        self.leads = False
        self.is_silent = False
        self.asked: list[Command] = []
        self.answer: Callable[[Command], Command] = lambda command: command.answer()
        self.connection: Connection | None = None
        # Set when the broker was told something by it.
        self.told = asyncio.Event()

    def handle(self, connection: Connection, command: Command) -> Command | None:
        self.asked.append(command)
        self.connection = connection
        if self.is_silent:
            return None
        if not self.leads:
            return command.answer(ResponseCode.CONTROLLER_NOT_LEADER, "another one leads")
        return self.answer(command)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.address.port}"


Scenario = Callable[[list[Fake], Coordinators, list[Any]], Awaitable[None]]


def run(scenario: Scenario, count: int = 3) -> None:
    async def inside() -> None:
        fakes = [Fake() for _ in range(count)]
        notices: list[Any] = []
        async with AsyncExitStack() as stack:
            for fake in fakes:
                await fake.server.start()
                stack.push_async_callback(fake.server.stop, 100)

            def noticed(*notice: Any) -> None:
                notices.append(notice)
                fakes[0].told.set()

            addresses = [fake.address for fake in fakes]
            coordinators = Coordinators(addresses, noticed, Runtime.system())
            stack.push_async_callback(coordinators.close)
            await scenario(fakes, coordinators, notices)

    asyncio.run(inside())


def beat(connection: Connection) -> Command:
    return Command(RequestCode.BROKER_BEAT, {})


def calls(coordinators: Coordinators) -> CoordinatorCalls:
    facts = Facts(
        lambda: HostAddress("127.0.0.1", 10911),
        lambda: 10912,
        lambda: (3, 1_000, 900),
        lambda: 5,
        lambda: TopicTableReport({"t": (4, 4, 6)}),
    )
    return CoordinatorCalls(BrokerOptions(), coordinators, facts, Runtime.system())


def test_the_leader_is_found_and_kept_to() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        fakes[1].leads = True
        for _round in range(3):
            assert (await coordinators.call(beat, 60_000)).code == 0
        assert coordinators.leader == fakes[1].address
        assert [len(fake.asked) for fake in fakes] == [1, 3, 1]

    run(scenario)


def test_another_leader_is_found_within_the_same_call() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        fakes[1].leads = True
        await coordinators.call(beat, 60_000)
        fakes[1].leads, fakes[2].leads = False, True
        assert (await coordinators.call(beat, 60_000)).code == 0
        assert coordinators.leader == fakes[2].address
        await fakes[2].server.stop(0)
        fakes[0].leads = True
        assert (await coordinators.call(beat, 60_000)).code == 0
        assert coordinators.leader == fakes[0].address

    run(scenario)


def test_where_nobody_leads_that_is_the_answer() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        assert (await coordinators.call(beat, 60_000)).code == ResponseCode.CONTROLLER_NOT_LEADER
        for fake in fakes:
            await fake.server.stop(0)
        with pytest.raises(ConnectError):
            await coordinators.call(beat, 60_000)

    run(scenario)


def test_a_silent_leader_is_given_up_but_for_what_must_not_be_repeated() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        fakes[0].leads = True
        await coordinators.call(beat, 60_000)
        fakes[0].is_silent = True
        fakes[1].leads = True
        with pytest.raises(CallTimeoutError):
            await coordinators.call(beat, 200, once=True)
        asked = len(fakes[1].asked)
        coordinators.leader = fakes[0].address
        assert (await coordinators.call(beat, 1_500)).code == 0
        assert len(fakes[1].asked) == asked + 1

    run(scenario)


def test_what_a_coordinator_says_unasked_is_handed_on() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, notices: list[Any]) -> None:
        came, fakes[0].leads = fakes[0].told, True
        await coordinators.call(beat, 60_000)
        header = NotifyBrokerRoleChangedRequestHeader(master_epoch=4, sync_state_set_epoch=2, term=9)
        body = SyncStateSet(frozenset((1, 2)), 2).encode()
        assert fakes[0].connection is not None
        fakes[0].connection.send(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode(), body))
        await asyncio.wait_for(came.wait(), 60)
        assert notices == [(header, SyncStateSet(frozenset((1, 2)), 2))]

    run(scenario)


def test_a_beat_says_where_the_broker_is_and_brings_the_set_and_a_lease_from_when_it_was_sent() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        leader, mine = fakes[0], calls(coordinators)
        leader.leads = True
        answer = BrokerBeatResponseHeader(
            master_broker_id=1,
            master_address="127.0.0.1:10911",
            master_ha_address="127.0.0.1:10912",
            master_epoch=3,
            sync_state_set_epoch=6,
            term=2,
            lease_ms=2_000,
            topics_version=5,
        )
        body = SyncStateSet(frozenset((1, 2)), 6).encode()
        leader.answer = lambda command: command.answer(0, None, answer.encode(), body)
        before_ms = Runtime.system().clock.monotonic_ms()
        event = await mine.beat(ME, Beat(3))
        assert isinstance(event, Beaten)
        assert event.view == View(2, 3, 6, frozenset((1, 2)), 1, "127.0.0.1:10911", "127.0.0.1:10912")
        assert before_ms <= event.sent_ms <= Runtime.system().clock.monotonic_ms()
        header = BrokerBeatRequestHeader.decode(leader.asked[-1].fields)
        assert (header.broker_id, header.incarnation, header.master_epoch) == (1, 7, 3)
        assert (header.broker_address, header.ha_address) == ("127.0.0.1:10911", "127.0.0.1:10912")
        assert (header.max_offset, header.confirm_offset, header.topics_version) == (1_000, 900, 5)
        assert leader.asked[-1].body  # the coordinator did not know the topics yet
        await mine.beat(ME, Beat(3))
        assert not leader.asked[-1].body
        leader.answer = lambda command: command.answer(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        assert await mine.beat(ME, Beat(3)) == MustRegister()
        leader.answer = lambda command: command.answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        assert await mine.beat(ME, Beat(3)) is None

    run(scenario, 1)


def test_registering_brings_the_epoch_and_an_election_a_beat() -> None:
    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        leader, mine = fakes[0], calls(coordinators)
        leader.leads = True
        answer = RegisterBrokerToControllerResponseHeader(
            cluster_name="c", broker_name="b", master_epoch=4, sync_state_set_epoch=1
        )
        leader.answer = lambda command: command.answer(0, None, answer.encode())
        assert await mine.register(ME) == Registered(4)
        leader.answer = lambda command: command.answer(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        assert await mine.ask_election(ME) == Elected()
        assert await mine.register(ME) is None
        await leader.server.stop(0)
        assert await mine.register(ME) is None
        assert await mine.ask_election(ME) is None

    run(scenario, 1)


@pytest.mark.invariant("I1")
def test_a_proposal_is_refused_only_by_a_coordinator_that_says_so() -> None:
    """Anything else may have been carried out, or will be, and has to count."""
    step = Propose(3, frozenset((1, 2)), 6)

    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        leader, mine = fakes[0], calls(coordinators)
        assert await mine.alter(ME, step) == AlterRefused(3)  # it does not lead
        leader.leads = True
        body = SyncStateSet(step.members, 7).encode()
        leader.answer = lambda command: command.answer(0, None, {"newSyncStateSetEpoch": "7"}, body)
        assert await mine.alter(ME, step) == Altered(3, step.members, 7)
        leader.answer = lambda command: command.answer(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)
        assert await mine.alter(ME, step) == AlterRefused(3)
        for code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY):
            leader.answer = lambda command, code=code: command.answer(code)  # type: ignore[misc]
            assert await mine.alter(ME, step) == AlterUnanswered(3)
        leader.answer = lambda command: command.answer(0, None, {}, b"{")
        assert await mine.alter(ME, step) == AlterUnanswered(3)

        def cut(command: Command) -> Command:
            assert leader.connection is not None
            leader.connection.abort("cut")
            return command.answer()

        leader.answer = cut
        assert await mine.alter(ME, step) == AlterUnanswered(3)
        await leader.server.stop(0)
        assert await mine.alter(ME, step) == AlterRefused(3)  # nothing was sent

    run(scenario, 1)


def test_an_id_is_applied_for_until_it_is_given(tmp_path: Any) -> None:
    runtime = Runtime.system()

    async def scenario(fakes: list[Fake], coordinators: Coordinators, _: list[Any]) -> None:
        leader, mine = fakes[0], calls(coordinators)
        leader.leads = True
        refused: list[Command] = []

        def answer(command: Command) -> Command:
            if command.code == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                number = 2 + len(refused)
                told = GetNextBrokerIdResponseHeader(cluster_name="c", broker_name="b", next_broker_id=number)
                return command.answer(0, None, told.encode())
            if not refused:
                refused.append(command)
                return command.answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "somebody was quicker")
            return command.answer()

        leader.answer = answer
        identity = SetIdentity(runtime.disk, tmp_path, "c", "b")
        assert await mine.apply_for_id(identity) == 3
        assert identity.broker_id() == 3

    run(scenario, 1)
