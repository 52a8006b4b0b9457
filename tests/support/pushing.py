"""Pushing over a socket: a client that does with deliveries what a test wants, and what the broker has of it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.push_tasks import ClientState, Place, PushClient, PushTask
from penstock.protocol.bodies.push import PushListBody, PushResumed, PushResumedBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.remoting import Connection
from tests.support.running_broker import Bench, Client, records

GROUP = "g"
# Short enough for a test, long enough for a slow machine to answer in where it means to.
QUICK = {"push_answer_timeout_ms": 400, "push_ping_interval_ms": 60_000}


class Pushed:
    """A client that takes what it is sent and answers all of it, unless told otherwise."""

    def __init__(self, bench: Bench, name: str = "client@1") -> None:
        self.name = name
        self.bodies: list[bytes] = []
        # Each delivery: from which offset to before which.
        self.ranges: list[tuple[int, int]] = []
        self.ended: list[tuple[int, str, int]] = []
        self.pings = 0
        self.parked = 0
        self.answers = True
        self.pongs = True
        self.hold = False
        # Deliveries that it keeps to answer later.
        self.kept: list[tuple[Connection, Command]] = []
        handlers: dict[int, Callable[..., Command | None]] = {
            RequestCode.PUSH_DELIVER: self._deliver,
            RequestCode.PUSH_PING: self._ping,
        }
        self.client: Client = bench.connect(handlers)

    def _deliver(self, connection: Connection, command: Command) -> Command | None:
        fields = command.fields
        if int(fields.get("status", "0")):
            ended = (int(fields["status"]), fields.get("reason", ""), int(fields["nextBeginOffset"]))
            self.ended.append(ended)
            return None
        self.ranges.append((int(fields["queueOffset"]), int(fields["nextBeginOffset"])))
        self.bodies += [message.body for message in records(command.body)]
        if not self.answers:
            self.kept.append((connection, command))
            return None
        return self.answer(command)

    def answer(self, command: Command, **fields: object) -> Command:
        following = command.fields["nextBeginOffset"]
        given = {"nextOffset": following, "commitOffset": following, "hold": str(self.hold).lower()}
        return command.answer(fields={**given, **{name: str(value) for name, value in fields.items()}})

    def answer_kept(self, **fields: object) -> None:
        """Answer late."""
        kept, self.kept = self.kept, []
        for connection, command in kept:
            connection.answer(command, self.answer(command, **fields))

    def _ping(self, connection: Connection, command: Command) -> Command | None:
        self.pings += 1
        self.parked = int(command.fields.get("parked", "0"))
        return command.answer() if self.pongs else None

    async def register(self) -> Command:
        return await self.client.call(RequestCode.PUSH_REGISTER, {"clientID": self.name})

    async def subscribe(self, queue: int = 0, offset: int = -1, topic: str = "T", **more: object) -> Command:
        given: dict[str, object] = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullSysFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
            **more,
        }
        fields = {name: str(value) for name, value in given.items() if value is not None}
        return await self.client.call(RequestCode.PUSH_SUBSCRIBE, fields)

    async def begin(self, queue: int = 0, offset: int = -1, **more: object) -> Command:
        assert (await self.register()).code == 0
        return await self.subscribe(queue, offset, **more)

    async def unsubscribe(self, queue: int = 0) -> Command:
        fields = {"consumerGroup": GROUP, "topic": "T", "queueId": str(queue)}
        return await self.client.call(RequestCode.PUSH_UNSUBSCRIBE, fields)

    async def resume(self, **fields: str) -> tuple[PushResumed, ...]:
        return await resume(self.client, **fields)


async def resume(client: Client, **fields: str) -> tuple[PushResumed, ...]:
    answer = await client.call(RequestCode.PUSH_RESUME, {"consumerGroup": GROUP, **fields})
    assert answer.code == 0, answer.remark
    return PushResumedBody.decode(answer.body).tasks


async def listing(client: Client, group: str = "") -> PushListBody:
    answer = await client.call(RequestCode.PUSH_LIST, {"consumerGroup": group} if group else {})
    assert answer.code == 0, answer.remark
    return PushListBody.decode(answer.body)


def known(bench: Bench, name: str = "client@1") -> PushClient | None:
    return bench.broker.push.state.clients.get(name)


def state_of(bench: Bench, name: str = "client@1") -> ClientState | None:
    client = known(bench, name)
    return None if client is None else client.state


def task_of(bench: Bench, queue: int = 0) -> PushTask:
    return bench.broker.push.state.tasks[Place(GROUP, "T", queue)]


def committed(bench: Bench, queue: int = 0) -> int:
    return bench.broker.offsets.query(GROUP, "T", queue)


async def fill(bench: Bench, count: int, start: int = 0, queue: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    for body in bodies:
        await bench.client.send(body=body, queue=queue)
    return bodies
