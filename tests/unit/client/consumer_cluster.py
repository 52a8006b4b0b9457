"""A name server and one broker that answer pulls as a test tells them, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.message import StoredMessage
from penstock.protocol.bodies import (
    BrokerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingServer
from penstock.runtime import Runtime
from tests.unit.client.consumer_messages import records

# The answer to a pull; None: it is held for ever, as a long poll for which nothing comes.
Pull = Callable[[Command], "Command | None"]


def found(request: Command, messages: list[StoredMessage], next_offset: int, **fields: str) -> Command:
    return pulled(request, 0, next_offset, records(*messages), **fields)


def pulled(request: Command, code: int, next_offset: int, body: bytes = b"", **fields: str) -> Command:
    return request.answer(
        code,
        fields={
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": "100",
            **fields,
        },
        body=body,
    )


class ScriptedBroker:
    """One topic with one queue. `pull` decides; everything else is what a small broker would say."""

    def __init__(self) -> None:
        self.pull: Pull = lambda request: None
        self.pulls: list[Command] = []
        self.heartbeats: list[HeartbeatData] = []
        self.commits: list[int] = []
        self.locks: list[LockBatchRequestBody] = []
        self.topics = {"T"}
        self.stored_offset: int | None = 0
        self.grants_locks = True
        self.answers: dict[int, Callable[[Command], Command | None]] = {}
        table = ProcessorTable()
        for code in (
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.UNLOCK_BATCH_MQ,
            RequestCode.PULL_MESSAGE,
        ):
            table.register(code, self._handle)
        self.table = table
        self.server: RemotingServer | None = None
        self.client_ids: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        assert self.server is not None
        return str(self.server.address)

    async def start(self) -> None:
        self.server = RemotingServer("127.0.0.1", 0, self.table, runtime=Runtime.system())
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(10)

    def _handle(self, connection: Connection, request: Command) -> Command | None:
        given = self.answers.get(request.code)
        if given is not None:
            return given(request)
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                if request.fields["topic"] not in self.topics:
                    return request.answer(ResponseCode.TOPIC_NOT_EXIST)
                route = TopicRouteData((BrokerData("c", "b", {0: self.address}),), (QueueData("b", 1, 1, 6),))
                return request.answer(body=route.encode())
            case RequestCode.HEART_BEAT:
                beat = HeartbeatData.decode(request.body)
                self.heartbeats.append(beat)
                self.client_ids = (beat.client_id,)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return request.answer(body=ConsumerList(self.client_ids).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                if self.stored_offset is None:
                    return request.answer(ResponseCode.QUERY_NOT_FOUND)
                return request.answer(fields={"offset": str(self.stored_offset)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.commits.append(request.integer("commitOffset"))
            case RequestCode.GET_MIN_OFFSET:
                return request.answer(fields={"offset": "3"})
            case RequestCode.GET_MAX_OFFSET:
                return request.answer(fields={"offset": "100"})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return request.answer(fields={"offset": "50"})
            case RequestCode.LOCK_BATCH_MQ:
                body = LockBatchRequestBody.decode(request.body)
                self.locks.append(body)
                granted = body.queues if self.grants_locks else ()
                return request.answer(body=LockBatchResponseBody(granted).encode())
            case RequestCode.PULL_MESSAGE:
                self.pulls.append(request)
                return self.pull(request)
        return request.answer()


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
