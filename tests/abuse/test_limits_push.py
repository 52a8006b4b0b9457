"""Limits of pushing, each over a socket, and clients that speak for others: refused, and nothing is changed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.broker.push_tasks import ClientState, TaskState
from penstock.protocol.codes import RequestCode, ResponseCode
from tests.abuse.limits import limit
from tests.support.pushing import Pushed, committed, fill, known, state_of, task_of
from tests.support.running_broker import run, running
from tests.waiting import until


@limit("broker.push_clients_max")
@pytest.mark.abuse("A14")
def test_clients_that_register(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, push_clients_max=2) as bench:
            one, two, three = (Pushed(bench, f"client@{number}") for number in range(3))
            assert [(await client.register()).code for client in (one, two)] == [0, 0]
            answer = await three.register()
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "push_clients_max" in (answer.remark or "")
            assert (await one.register()).code == 0
            # Who is dead makes room.
            await two.client.close()
            await until(lambda: state_of(bench, "client@1") is ClientState.DEAD)
            assert (await three.register()).code == 0
            assert known(bench, "client@1") is None

    run(scenario)


@limit("broker.push_client_subscriptions_max", "broker.push_subscriptions_max")
@pytest.mark.abuse("A14")
def test_queues_that_are_pushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, push_client_subscriptions_max=2, push_subscriptions_max=3) as bench:
            await fill(bench, 1)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.register()
            await two.register()
            # The same queue again takes no more room.
            assert [(await one.subscribe(queue)).code for queue in (0, 1, 1, 0)] == [0, 0, 0, 0]
            answer = await one.subscribe(2)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "push_client_subscriptions_max" in (answer.remark or "")
            assert (await two.subscribe(2)).code == 0
            answer = await two.subscribe(3)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "push_subscriptions_max" in (answer.remark or "")
            assert (await one.unsubscribe(0)).code == 0
            assert (await two.subscribe(3)).code == 0

    run(scenario)


@limit("broker.push_answer_timeout_ms")
@pytest.mark.abuse("A14")
def test_deliveries_that_nobody_answers_are_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, push_answer_timeout_ms=200, push_resends=0) as bench:
            await fill(bench, 20)
            one = Pushed(bench)
            one.answers = False
            await one.begin(windowMessages=2**31 - 1, windowBytes=2**31 - 1)
            assert task_of(bench).window.messages == 1_024
            await until(lambda: task_of(bench).state is TaskState.PARKED)
            assert (task_of(bench).sent, len(one.ranges)) == ({}, 1)

    run(scenario)


@pytest.mark.abuse("A12")
def test_no_address_that_a_client_names_is_dialled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            with socket.create_server(("127.0.0.1", 0)) as named:
                named.setblocking(False)
                address = f"127.0.0.1:{named.getsockname()[1]}"
                one = Pushed(bench, address)
                fields = dict.fromkeys(("clientID", "clientAddr", "address", "callback", "bname"), address)
                assert (await one.client.call(RequestCode.PUSH_REGISTER, fields)).code == 0
                assert (await one.subscribe(clientAddr=address, callback=address)).code == 0
                # It is called over the connection that it opened.
                await until(lambda: one.bodies == [b"0"])
                with pytest.raises(BlockingIOError):
                    named.accept()

    run(scenario)


def test_nobody_speaks_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            one, two = Pushed(bench), Pushed(bench, "client@2")
            await one.begin()
            await until(lambda: committed(bench) == 1)
            await two.register()
            assert (await two.unsubscribe()).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            fields = {"clientID": one.name, "consumerGroup": "g"}
            assert (await two.client.call(RequestCode.PUSH_CLOSE, fields)).code == 0
            assert known(bench, "client@2") is None
            assert state_of(bench) is ClientState.ALIVE
            # What the broker sends, nobody may send to it.
            for code in (RequestCode.PUSH_DELIVER, RequestCode.PUSH_PING):
                answer = await two.client.call(code, {"consumerGroup": "g", "topic": "T", "queueId": "0"})
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run(scenario)
