"""Being called by brokers, without a consumer around it: one that does not push, and who is told what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.client.instance import ClientInstance
from penstock.client.options import ClientOptions
from penstock.errors import ResponseError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingServer
from penstock.runtime import Runtime
from tests.waiting import until

QUEUE = MessageQueue("T", "b", 0)


class Loop:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def deliver(self, command: Command) -> Command | None:
        self.told.append("delivered")
        return command.answer()

    def pinged(self) -> None:
        self.told.append("pinged")

    def lost(self) -> None:
        self.told.append("lost")


@asynccontextmanager
async def connected(
    table: ProcessorTable,
) -> AsyncIterator[tuple[ClientInstance, Connection, RemotingServer]]:
    server = RemotingServer("127.0.0.1", 0, table, runtime=Runtime.system())
    await server.start()
    instance = ClientInstance(ClientOptions())
    instance.client_id = "me@1"
    try:
        yield instance, await instance.remoting.connection(str(server.address)), server
    finally:
        await instance.remoting.close()
        await server.stop()


def test_a_broker_that_does_not_push_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(ProcessorTable()) as (instance, connection, _):
            for _ in range(3):
                with pytest.raises(ResponseError, match=r"does not push; .*delivery=.pull"):
                    await instance.push.register(connection)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1


@pytest.mark.seed("S4-22", "S4-25")
def test_calls_go_to_who_subscribed_and_parked_messages_are_asked_for() -> None:
    async def scenario() -> None:
        asked: list[tuple[int, dict[str, str]]] = []
        table = ProcessorTable()

        def note(connection: Connection, command: Command) -> Command:
            asked.append((command.code, command.fields))
            return command.answer()

        for code in (RequestCode.PUSH_REGISTER, RequestCode.PUSH_RESUME, RequestCode.PUSH_CLOSE):
            table.register(code, note)
        async with connected(table) as (instance, connection, server):
            push = instance.push
            await asyncio.gather(*(push.register(connection) for _ in range(3)))
            assert asked == [(RequestCode.PUSH_REGISTER, {"clientID": "me@1"})]
            [back] = server.connections
            one, two = Loop(), Loop()
            place = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
            answer = await back.call(Command(RequestCode.PUSH_DELIVER, dict(place)))
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            push.attach(connection, "g", QUEUE, one)
            assert (await back.call(Command(RequestCode.PUSH_DELIVER, dict(place)))).code == 0
            # Whoever subscribes later has it; the earlier one takes nothing away from it.
            push.attach(connection, "g", QUEUE, two)
            assert not push.detach(connection, "g", QUEUE, one)
            assert (await back.call(Command(RequestCode.PUSH_PING, {"parked": "2"}))).code == 0
            assert (one.told, two.told) == (["delivered"], ["pinged"])
            await until(lambda: len(asked) >= 2)
            assert asked[1] == (RequestCode.PUSH_RESUME, {"consumerGroup": "g", "clientID": "me@1"})
            # Somebody still takes something: the registration stays; then it goes.
            await push.leave()
            assert len(asked) == 2
            assert push.detach(connection, "g", QUEUE, two)
            await push.leave()
            assert asked[2][0] == RequestCode.PUSH_CLOSE
            await push.register(connection)
            push.attach(connection, "g", QUEUE, two)
            back.abort("gone")
            await until(lambda: two.told[-1] == "lost")

    asyncio.run(scenario())
