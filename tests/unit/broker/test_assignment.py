"""Shares that the broker computes, and how groups consume: RocketMQ's rules, over a socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.queue_shares import averagely, by_circle, for_pop
from penstock.metadata.request_mode_table import RequestMode
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.pop import QueryAssignmentRequestBody, QueryAssignmentResponseBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from tests.support.running_broker import Bench, Client, run, running

QUEUES = [MessageQueue("T", "b", number) for number in range(8)]


async def share(client: Client, topic: str = "T", **more: str) -> QueryAssignmentResponseBody:
    request = {"topic": topic, "consumer_group": "g", "client_id": "c1", **more}
    body = QueryAssignmentRequestBody(**request).encode()
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == 0, answer.remark
    return QueryAssignmentResponseBody.decode(answer.body)


async def set_mode(
    bench: Bench, topic: str = "T", group: str = "g", mode: str = "POP", queues: int = 0
) -> int:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": queues}
    call = bench.client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    return (await call).code


def numbers(queues: list[MessageQueue] | tuple[MessageQueue, ...] | None) -> list[int]:
    return [queue.queue_id for queue in queues or ()]


def test_blocks_and_turns() -> None:
    clients = ["a", "b", "c"]
    assert [numbers(averagely(c, clients, QUEUES)) for c in clients] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [numbers(by_circle(c, clients, QUEUES)) for c in clients] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    many = [f"c{number:02}" for number in range(10)]
    assert [len(averagely(c, many, QUEUES)) for c in many] == [1] * 8 + [0, 0]
    assert averagely("stranger", clients, QUEUES) == by_circle("stranger", clients, QUEUES) == []


def test_pop_shares() -> None:
    clients = ["a", "b", "c", "d"]
    whole = [MessageQueue("T", "b", -1)]
    for everything in (0, -1, 3, 4):
        assert for_pop(averagely, "a", clients, QUEUES, everything) == whole
    assert numbers(for_pop(averagely, "a", clients, QUEUES, 1)) == [0, 1, 2, 3]
    assert numbers(for_pop(averagely, "d", clients, QUEUES, 1)) == [6, 7, 0, 1]
    assert numbers(for_pop(averagely, "d", clients, QUEUES, 2)) == [6, 7, 0, 1, 2, 3]
    assert numbers(for_pop(averagely, "c", clients, QUEUES[:3], 1)) == [2]
    assert numbers(for_pop(averagely, "d", clients, QUEUES[:3], 1)) == [0]
    two = [*QUEUES[:2], MessageQueue("T", "a", 0)]
    assert for_pop(averagely, "a", clients, two, 0) == [MessageQueue("T", "a", -1), *whole]


def test_a_share_by_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            assert (await share(bench.client)).queues is None  # nobody is there yet
            others = [bench.connect() for _ in range(2)]
            for number, client in enumerate(others, 1):
                await client.heartbeat("g", client_id=f"c{number}")
            found = [await share(bench.client, client_id=f"c{n}") for n in (1, 2)]
            assert [numbers(one.queues) for one in found] == [[0, 1], [2, 3]]
            assert {one.mode for one in found} == {RequestMode.PULL}
            circle = await share(bench.client, strategy_name="AVG_BY_CIRCLE")
            assert numbers(circle.queues) == [0, 2]
            everything = await share(bench.client, message_model="BROADCASTING")
            assert numbers(everything.queues) == [0, 1, 2, 3]
            assert (await share(bench.client, strategy_name="MINE")).queues is None
            assert (await share(bench.client, topic="nowhere")).queues is None

            assert await set_mode(bench) == 0
            popping = await share(bench.client)
            assert (popping.queues, popping.mode) == ((MessageQueue("T", "broker-a", -1),), RequestMode.POP)
            # Its other topics, and what it gave back, are pulled as before.
            retries = await share(bench.client, topic="%RETRY%g")
            assert (numbers(retries.queues), retries.mode) == ([0], RequestMode.PULL)
            assert await set_mode(bench, mode="PULL") == 0
            assert (await share(bench.client)).mode is RequestMode.PULL

    run(scenario)


def test_modes_that_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_groups=False) as bench:
            await bench.client.send()
            assert await set_mode(bench, topic="%RETRY%g") == ResponseCode.NO_PERMISSION
            assert await set_mode(bench, topic="nowhere") == ResponseCode.TOPIC_NOT_EXIST
            assert await set_mode(bench) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert await set_mode(bench, mode="PUSH") == ResponseCode.SYSTEM_ERROR

    run(scenario)


def test_modes_are_kept_as_rocketmq_keeps_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "config" / "messageRequestMode.json"
        async with running(tmp_path) as bench:
            await bench.client.send()
            assert await set_mode(bench, queues=2) == 0
        expected = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}
        assert json.loads(path.read_text()) == {"messageRequestModeMap": {"T": {"g": expected}}}
        async with running(tmp_path) as bench:
            answer = await bench.client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            assert json.loads(answer.body) == {"messageRequestModeMap": {"T": {"g": expected}}}
            config = bench.broker.modes.get("T", "g")
            assert (config.mode, config.share_queues) == (RequestMode.POP, 2)
            assert (await bench.client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
            assert bench.broker.modes.get("T", "g").mode is RequestMode.PULL

    run(scenario)


def test_a_default_for_groups_of_which_nobody_says_anything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, pop_by_default=True, pop_share_queues=1) as bench:
            await bench.client.send()
            for number in range(3):
                await bench.connect().heartbeat("g", client_id=f"c{number}")
            found = await share(bench.client)
            assert (numbers(found.queues), found.mode) == ([2, 3], RequestMode.POP)
            assert (await share(bench.client, topic="%RETRY%g")).mode is RequestMode.PULL
        async with running(tmp_path, server_assignment=False) as bench:
            assert (await share(bench.client)).queues is None

    run(scenario)


@pytest.mark.parametrize("brokers", [2])
def test_shares_span_all_brokers_of_a_topic(tmp_path: Path, brokers: int) -> None:
    async def scenario() -> None:
        names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
        await names.start()
        try:
            options: dict[str, Any] = {"name_servers": (names.address,), "default_topic_queues": 2}
            async with (
                running(tmp_path / "a", broker_name="a", **options) as one,
                running(tmp_path / "b", broker_name="b", **options) as two,
            ):
                for bench in (one, two):
                    await bench.client.send(queue=0)
                    await bench.client.heartbeat("g", client_id="c1")
                    await bench.connect().heartbeat("g", client_id="c2")
                while len((await share(one.client)).queues or ()) < 2:
                    one.broker.pop.processors[2]._routes.clear()  # type: ignore[union-attr]
                shares = [await share(one.client, client_id=client) for client in ("c1", "c2")]
                expected = [MessageQueue("T", name, number) for name in "ab" for number in range(2)]
                assert [queue for found in shares for queue in found.queues or ()] == expected
                assert await set_mode(one) == 0
                popping = (await share(one.client)).queues
                assert popping == tuple(MessageQueue("T", name, -1) for name in "ab")
        finally:
            await names.stop()

    run(scenario)
