"""Pushing where users are asked who they are: what may be pulled is pushed, names belong to users, rights end."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.async_admin import AsyncAdmin
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.errors import ResponseError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.remoting import RemotingClient
from tests.support.guarded import ADMIN, APP, READER, USERS, caller, code_of, guarded, run
from tests.waiting import until

NO_PERMISSION = int(ResponseCode.NO_PERMISSION)


@pytest.mark.abuse("A9")
def test_a_right_that_is_withdrawn_ends_what_is_pushed(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, AsyncProducer(server.address, **ADMIN) as producer:
            await producer.send("orders", b"1")
            settings = {"start_from": "first", "delivery": "push", "pull_retry_ms": 100, **APP}
            seen: list[bytes] = []

            async def listen(message: object) -> None:
                seen.append(message.body)  # type: ignore[attr-defined]

            async with AsyncConsumer(server.address, "billing", listener=listen, **settings) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe("orders")
                await until(lambda: seen == [b"1"])
                broker = server.broker
                assert broker is not None
                tasks = broker.push.state.tasks
                assert any(place.topic == "orders" for place in tasks)
                (tmp_path / "access.toml").write_text(
                    USERS.replace('topics = ["orders"]', 'topics = ["none"]')
                )
                assert broker.guard is not None
                broker.guard.look()
                for _ in range(4):  # one for each queue
                    await producer.send("orders", b"2")
                await until(lambda: not any(place.topic == "orders" for place in tasks))
                others: list[bytes] = []

                async def other(message: object) -> None:
                    others.append(message.body)  # type: ignore[attr-defined]

                # Others are pushed what was sent; it would have reached the first consumer by then.
                async with AsyncConsumer(
                    server.address,
                    "audit",
                    listener=other,
                    **{**settings, **ADMIN},  # type: ignore[arg-type]
                ) as audit:
                    await audit.subscribe("orders")
                    await until(lambda: others.count(b"2") == 4)
                assert seen == [b"1"]
                assert not any(place.topic == "orders" for place in tasks)

    run(test)


@pytest.mark.abuse("A9")
def test_who_may_not_is_not_pushed_to_and_takes_no_names(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, AsyncAdmin(server.address, **ADMIN) as admin:
            await admin.create_topic("orders", queues=1)
            register = Command(RequestCode.PUSH_REGISTER, {"clientID": "client@app"})
            async with caller(APP) as app, caller(READER) as reader, caller(None) as stranger:

                async def code(who: object, command: Command) -> int:
                    answer = await who.call(server.broker_address, command)  # type: ignore[attr-defined]
                    return int(answer.code)

                assert await code(stranger, register) == NO_PERMISSION
                assert await code(app, register) == 0
                assert await code(app, register) == 0
                # The name is another user's.
                taken = Command(RequestCode.PUSH_REGISTER, {"clientID": "client@app"})
                assert await code(reader, taken) == NO_PERMISSION
                mine = Command(RequestCode.PUSH_REGISTER, {"clientID": "client@reader"})
                assert await code(reader, mine) == 0
                place = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
                for number in (
                    RequestCode.PUSH_SUBSCRIBE,
                    RequestCode.PUSH_UNSUBSCRIBE,
                    RequestCode.PUSH_RESUME,
                ):
                    assert await code(reader, Command(number, dict(place))) == NO_PERMISSION, number
                assert await code(reader, Command(RequestCode.PUSH_LIST)) == NO_PERMISSION
                readers = {"consumerGroup": "readers"}
                assert await code(reader, Command(RequestCode.PUSH_LIST, readers)) == 0
            assert await admin.push_clients()
            async with AsyncAdmin(server.address, **READER) as other:
                with pytest.raises(ResponseError):
                    await other.push_clients()

    run(test)


@pytest.mark.abuse("A9")
def test_the_name_of_a_client_that_is_gone_brings_another_user_none_of_its_queues(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, AsyncAdmin(server.address, **ADMIN) as admin:
            await admin.create_topic("orders", queues=1)
            assert server.broker is not None
            state = server.broker.push.state

            async def register(who: RemotingClient) -> tuple[int, str | None]:
                command = Command(RequestCode.PUSH_REGISTER, {"clientID": "client@app"})
                answer = await who.call(server.broker_address, command)
                return answer.code, answer.fields.get("resumed")

            async with caller(APP) as app:
                assert await register(app) == (0, "0")
                place = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "-1"}
                more = {
                    "maxMsgNums": "32",
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "0",
                    "subVersion": "0",
                }
                wanted = {"subscription": "*", "sysFlag": str(int(PullSysFlag.SUBSCRIPTION))}
                subscribe = Command(RequestCode.PUSH_SUBSCRIBE, place | more | wanted)
                answer = await app.call(server.broker_address, subscribe)
                assert answer.code == 0, answer.remark
            await until(lambda: state.clients["client@app"].link is None)
            # Its own user has everything back; anybody else has the name, and nothing that came with it.
            async with caller(APP) as app:
                assert await register(app) == (0, "1")
            await until(lambda: state.clients["client@app"].link is None)
            async with caller(READER) as reader:
                assert await register(reader) == (0, "0")
                assert not state.tasks
                assert await code_of(reader, server.broker_address, subscribe) == NO_PERMISSION

    run(test)
