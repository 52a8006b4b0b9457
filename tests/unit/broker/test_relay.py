"""Requests that the broker passes on to clients: running info, direct consumption, replies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.flow_control import BusyError
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.relay import ClientCalls
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.remoting import Connection
from tests.support.running_broker import Bench, Client, properties, records, run, running, send_fields
from tests.waiting import until


class Asked:
    """A client's side: remembers what it was asked, answers as told."""

    def __init__(
        self, code: int = 0, remark: str | None = None, body: bytes = b"{}", delay: float = 0
    ) -> None:
        self.requests: list[Command] = []
        self._answer = (code, remark, body)
        self._delay = delay

    async def __call__(self, connection: Connection, command: Command) -> Command:
        self.requests.append(command)
        await asyncio.sleep(self._delay)
        code, remark, body = self._answer
        return command.answer(code, remark, {"mark": "1"}, body)


async def consumer(bench: Bench, code: int, asked: Asked, version: int = 401) -> Client:
    client = bench.connect({code: asked, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda *_: None})
    await client.heartbeat("g", client_id="c@1", version=version)
    return client


async def running_info(bench: Bench, **more: str) -> Command:
    fields = {"consumerGroup": "g", "clientId": "c@1", "jstackEnable": "true", **more}
    return await bench.client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def test_running_info_is_what_the_client_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            asked = Asked(3, "odd", b'{"a":1}')
            await consumer(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
            answer = await running_info(bench)
            assert (answer.code, answer.remark, answer.body) == (3, "odd", b'{"a":1}')
            [request] = asked.requests
            assert request.fields == {"consumerGroup": "g", "clientId": "c@1", "jstackEnable": "true"}
            assert not request.is_oneway

    run(scenario)


def test_a_consumer_that_is_gone_old_or_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, relay_timeout_ms=1_500) as bench:
            answer = await running_info(bench)
            assert (answer.code, "not online" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            old = await consumer(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, Asked(), version=61)
            answer = await running_info(bench)
            assert (answer.code, "upgrade" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            await old.close()
            await consumer(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, Asked(delay=30))
            assert (await running_info(bench)).code == ResponseCode.CONSUME_MSG_TIMEOUT

    run(scenario)


@pytest.mark.abuse("A14")
def test_only_so_many_relays_are_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, relays_max=2) as bench:
            await consumer(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, Asked(delay=0.3))
            codes = sorted(
                answer.code for answer in await asyncio.gather(*(running_info(bench) for _ in range(5)))
            )
            assert codes == [0, 0, 2, 2, 2]
            assert (await running_info(bench)).code == 0

    run(scenario)


@pytest.mark.abuse("A14")
def test_clients_at_one_address_leave_room_for_calls_to_others() -> None:
    """Clients that never answer could take all calls, and no reply reached a client of another user."""

    class Peer:
        def __init__(self, ip: str) -> None:
            self.peer = SimpleNamespace(ip=ip)
            self.answered = asyncio.Event()

        async def call(self, command: Command, timeout_ms: int) -> Command:
            await self.answered.wait()
            return command.answer()

    async def scenario() -> None:
        calls = ClientCalls(BrokerOptions(relays_max=20))
        silent, other = Peer("10.0.0.1"), Peer("10.0.0.2")
        other.answered.set()

        async def ask(peer: Peer) -> int:
            channel: Any = SimpleNamespace(connection=peer, client_id="c")
            try:
                return (await calls.call(channel, Command(307))).code
            except BusyError as error:
                return error.code

        waiting = [asyncio.ensure_future(ask(silent)) for _ in range(30)]
        await asyncio.sleep(0)
        assert await ask(other) == 0
        assert await ask(silent) == ResponseCode.SYSTEM_BUSY
        silent.answered.set()
        codes = await asyncio.gather(*waiting)
        assert (codes.count(0), len(codes)) == (18, 30)
        assert await ask(silent) == 0

    run(scenario)


def test_a_consumer_that_goes_away_while_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            asked = Asked(delay=30)
            other = await consumer(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
            waiting = asyncio.ensure_future(running_info(bench))
            await until(lambda: asked.requests)
            await other.close()
            assert (await waiting).code == ResponseCode.SYSTEM_ERROR

    run(scenario)


def test_a_message_is_consumed_on_demand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            message_id = (await bench.client.send(body=b"again")).fields["msgId"]
            asked = Asked(body=b'{"consumeResult":"CR_SUCCESS"}')
            await consumer(bench, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
            fields = {"consumerGroup": "g", "clientId": "c@1", "msgId": message_id, "topic": "T"}
            answer = await bench.client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
            assert (answer.code, answer.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')
            [request] = asked.requests
            assert request.fields["brokerName"] == "broker-a"
            assert (request.fields["topicSysFlag"], request.fields["groupSysFlag"]) == ("0", "0")
            assert [m.body for m in records(request.body)] == [b"again"]
            for wrong in ("zz", "", message_id[:-1], f"{message_id[:-1]}F"):
                answer = await bench.client.call(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": wrong}
                )
                assert answer.code == ResponseCode.SYSTEM_ERROR
            assert len(asked.requests) == 1

    run(scenario)


# -- replies -------------------------------------------------------------------------------------------------

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


async def reply(
    bench: Bench, requester: str = "c@1", code: int = RequestCode.SEND_REPLY_MESSAGE_V2
) -> Command:
    text = properties(CORRELATION_ID="x", REPLY_TO_CLIENT=requester, TTL="3000", MSG_TYPE="reply")
    fields = send_fields(REPLY_TOPIC, props=text)
    if code == RequestCode.SEND_REPLY_MESSAGE:
        fields = SendMessageRequestHeader.decode_v2(fields).encode_v1()
    return await bench.client.call(code, fields, b"the reply")


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_reply_reaches_the_one_who_asked(tmp_path: Path, code: int, is_stored: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store_replies=is_stored) as bench:
            asked = Asked()
            await consumer(bench, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, asked)
            answer = await reply(bench, code=code)
            assert answer.code == 0, answer.remark
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")
            assert (answer.fields["msgId"] != "0") == is_stored
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            [pushed] = asked.requests
            assert pushed.body == b"the reply"
            assert pushed.fields["topic"] == REPLY_TOPIC
            assert pushed.fields["bornTimestamp"] == "1700000000000"
            assert pushed.fields["storeHost"] == bench.broker.address
            assert pushed.fields["bornHost"].startswith("127.0.0.1:")
            assert int(pushed.fields["storeTimestamp"]) > 0
            pairs = dict(part.split("\x01") for part in pushed.fields["properties"].split("\x02") if part)
            assert pairs["CORRELATION_ID"] == "x"
            assert int(pairs["PUSH_REPLY_TIME"]) > 0
            found = records((await bench.client.pull(REPLY_TOPIC)).body)
            assert [m.body for m in found] == ([b"the reply"] if is_stored else [])

    run(scenario)


def test_a_reply_that_does_not_arrive_is_said_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, relay_timeout_ms=1_500) as bench:
            for requester in ("nobody", ""):
                answer = await reply(bench, requester)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "is not connected" in (answer.remark or "")
                assert answer.fields["MSG_REGION"] == "DefaultRegion"
            refusing = await consumer(
                bench, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, Asked(1, "no such request")
            )
            answer = await reply(bench)
            assert (answer.code, "no such request" in (answer.remark or "")) == (
                ResponseCode.SYSTEM_ERROR,
                True,
            )
            await refusing.close()
            await consumer(bench, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, Asked(delay=30))
            answer = await reply(bench)
            assert (answer.code, "did not answer" in (answer.remark or "")) == (
                ResponseCode.SYSTEM_ERROR,
                True,
            )

    run(scenario)


def test_a_reply_is_checked_as_a_send_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for fields, body, code in (
                (send_fields("a/b"), b"", ResponseCode.NO_PERMISSION),
                (send_fields("my_REPLY_TOPIC"), b"", ResponseCode.NO_PERMISSION),
                (send_fields("SCHEDULE_TOPIC_XXXX"), b"", ResponseCode.NO_PERMISSION),
                (send_fields(REPLY_TOPIC, 1), b"", ResponseCode.INVALID_PARAMETER),
                (send_fields(REPLY_TOPIC), b"x" * 70_000, ResponseCode.MESSAGE_ILLEGAL),
            ):
                answer = await bench.client.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, body)
                assert answer.code == code

    run(scenario)
