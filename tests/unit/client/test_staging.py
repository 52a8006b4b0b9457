"""Staging from a client: where messages go, what is asked again, and what brokers of another kind say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client import staging as module
from penstock.client.staging import AsyncStaging, Handle, RowRefusedError, Staging
from penstock.errors import (
    CallTimeoutError,
    ClientClosedError,
    ClientError,
    ConnectError,
    ResponseError,
    RouteNotFoundError,
)
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.server import NameServer
from penstock.protocol.bodies.staged import encode_item
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import broker
from penstock.testing.embedded import BROKER, STORE, EmbeddedBroker
from tests.support.running_broker import run
from tests.support.staging_pair import TOPIC, items
from tests.waiting import turns


def test_staged_published_and_published_again() -> None:
    with broker() as address, Staging(address) as staging, penstock.Admin(address) as admin:
        assert staging.home("q", "orders").broker == "test-broker"
        assert staging.queues("orders", "test-broker") == 4
        first = staging.stage("test-broker", TOPIC, items(1, 2), 2)
        second = staging.submit("test-broker", TOPIC, items(3, target=1), 1).result()
        assert (first.broker, first.messages) == ("test-broker", 2)
        assert admin.describe_topic("orders").messages == 0
        published = staging.publish("test-broker", "q", 0, [first, second])
        assert (published.messages, published.already) == (3, False)
        assert admin.describe_topic("orders").messages == 3
        assert staging.publish("test-broker", "q", 0, [first]).already
        status = staging.status("test-broker", "q")
        assert (status.batch_id, status.messages) == (0, 3)
        assert staging.status("test-broker", "nobody").batch_id is None
        assert "PENSTOCK_PUBLISHED" not in admin.list_topics()
        assert "PENSTOCK_PUBLISHED" in admin.list_topics(internal=True)


def test_refusals_say_what_is_wrong() -> None:
    with broker() as address, Staging(address) as staging:
        with pytest.raises(RowRefusedError, match="UNIQ_KEY") as caught:
            staging.stage("test-broker", TOPIC, items(1) + encode_item(0, b"x", b"KEYS\x01k\x02"), 2)
        assert caught.value.row == 1
        with pytest.raises(ClientError, match="the broker counts 1"):
            staging.stage("test-broker", TOPIC, items(1), 2)
        with pytest.raises(ResponseError, match="is none"):
            staging.publish("test-broker", "q", 0, [Handle("test-broker", "rubbish", 1)])
        with pytest.raises(ClientError, match="cannot publish together"):
            staging.publish("test-broker", "q", 0, [Handle("other", "x", 1)])
        with pytest.raises(ClientError, match="there are: test-broker"):
            staging.home("q", "orders", "other")
        assert staging.home("q", broker="test-broker").broker == "test-broker"
        with pytest.raises(RouteNotFoundError, match="name one with the option"):
            staging.queues("orders", "other")
        assert staging.unique_ids.moment() != staging.unique_ids.moment()


def test_nothing_works_before_the_start_and_after_the_end() -> None:
    with broker() as address:
        staging = Staging(address)
        with pytest.raises(ClientClosedError):
            staging.home("q")
        staging.start()
        staging.close()
        staging.close()
        with pytest.raises(ClientClosedError):
            staging.publish("b", "q", 0, [])
    with pytest.raises(ConnectError):
        Staging("127.0.0.1:1").start()


def test_moments_give_ids_that_nobody_else_gets() -> None:
    ids = penstock.client.identity.UniqueIds("127.0.0.1", Runtime.system())
    single = [ids.next() for _ in range(300)]
    moments = [ids.moment() for _ in range(3)]
    more = [ids.next() for _ in range(300)] + ids.take(300)
    assert len({*single, *more}) == 900
    assert len(set(moments)) == 3
    assert all(len(moment) == 28 for moment in moments)
    assert not {one[:28] for one in [*single, *more]} & set(moments)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[str, list[EmbeddedBroker]]]:
    """Two brokers registered with one name server."""
    names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
    await names.start()
    nodes = []
    try:
        for name in ("broker-a", "broker-b"):
            options = replace(BROKER, broker_name=name, name_servers=(names.address,))
            node = EmbeddedBroker(broker=options, store=STORE)
            await node.start()
            assert node.broker is not None
            await node.broker.registration.wait_registered(60_000)
            nodes.append(node)
        yield names.address, nodes
    finally:
        for node in nodes:
            await node.stop()
        await names.stop()


def test_the_home_of_a_query_is_the_broker_that_has_published_for_it() -> None:
    async def scenario() -> None:
        async with two_brokers() as (address, _), AsyncStaging(address, retry_ms=500) as staging:
            homes = {query: (await staging.home(query, "orders")).broker for query in map(str, range(20))}
            assert set(homes.values()) == {"broker-a", "broker-b"}
            assert homes == {query: (await staging.home(query, "orders")).broker for query in homes}
            assert (await staging.home("3")).broker in ("broker-a", "broker-b")
            other = next(name for name in ("broker-a", "broker-b") if name != homes["7"])
            handle = await staging.stage(other, TOPIC, items(1), 1)
            await staging.publish(other, "7", 0, [handle])
            assert (await staging.home("7", "orders")).broker == other

    run(scenario)


class Answers:
    """A broker's answers to one code, in order; afterwards the broker's own."""

    def __init__(self, node: EmbeddedBroker, code: int, *answers: Callable[[Command], Any]) -> None:
        assert node.broker is not None
        self.asked = 0
        self._own = node.broker.table.find(code)
        self._answers = list(answers)
        node.broker.table.wrap(code, lambda own: self._handle)

    def _handle(self, connection: Any, command: Command) -> Any:
        self.asked += 1
        if self._answers:
            return self._answers.pop(0)(command)
        assert self._own is not None
        return self._own(connection, command)


def test_a_broker_that_does_not_answer_might_be_the_home() -> None:
    async def scenario() -> None:
        quick = {"call_timeout_ms": 500, "retry_ms": 1_000}
        async with two_brokers() as (address, nodes), AsyncStaging(address, **quick) as staging:  # type: ignore[arg-type]
            await staging.home("q", "orders")
            Answers(nodes[1], RequestCode.STAGED_STATUS, *[lambda command: None] * 100)
            with pytest.raises(CallTimeoutError):
                await staging.home("q", "orders")
            assert (await staging.home("q", "orders", "broker-a")).broker == "broker-a"

    run(scenario)


def test_what_is_not_answered_or_not_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGE_TIMEOUT_MS", 1_000)

    async def scenario() -> None:
        node = EmbeddedBroker(broker=BROKER, store=STORE)
        await node.start()
        try:
            async with AsyncStaging(node.address, retry_ms=20_000) as staging:
                busy = Answers(
                    node,
                    RequestCode.STAGE_MESSAGES,
                    lambda command: command.answer(ResponseCode.SYSTEM_BUSY, "later"),
                    lambda command: None,  # never answered
                    lambda command: command.answer(
                        ResponseCode.SERVICE_NOT_AVAILABLE, "full", {"penstockRetryAfterMs": "60"}
                    ),
                )
                handle = await staging.stage("test-broker", TOPIC, items(1), 1)
                assert busy.asked == 4
                lost = Answers(node, RequestCode.PUBLISH_STAGED, lambda command: _close(node))
                assert (await staging.publish("test-broker", "q", 0, [handle])).messages == 1
                assert lost.asked == 2
        finally:
            await node.stop()

    run(scenario)


def _close(node: EmbeddedBroker) -> None:
    assert node.broker is not None
    for connection in list(node.broker.connections):
        connection.abort("test")


def test_a_broker_of_a_known_topic_is_found_again_by_its_route_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write to a topic may not ask for the whole cluster. The broker comes back at another port."""

    async def refuse(*_: object) -> None:
        raise ResponseError(ResponseCode.NO_PERMISSION, "not you")

    monkeypatch.setattr(module.ClusterCalls, "cluster", refuse)

    async def scenario() -> None:
        names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
        await names.start()
        options = replace(BROKER, name_servers=(names.address,))
        lives = [EmbeddedBroker(tmp_path / "data", broker=options, store=STORE) for _ in range(2)]
        try:
            await lives[0].start()
            async with AsyncStaging(names.address, retry_ms=60_000) as staging:
                assert (await staging.home("q", "orders")).broker == "test-broker"
                handle = await staging.stage("test-broker", TOPIC, items(1, 2), 2)
                await lives[0].stop()
                later = asyncio.ensure_future(
                    staging.publish("test-broker", "q", 0, [handle], topic="orders")
                )
                await turns()
                assert not later.done()
                await lives[1].start()
                assert (await later).messages == 2
                with pytest.raises(ResponseError, match="not you"):
                    await staging.home("q")
        finally:
            for node in lives:
                await node.stop()
            await names.stop()

    run(scenario)


def test_a_time_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = EmbeddedBroker(broker=BROKER, store=STORE)
        await node.start()
        try:
            never = [lambda command: command.answer(ResponseCode.SYSTEM_BUSY, "later")] * 1000
            Answers(node, RequestCode.STAGE_MESSAGES, *never)
            async with AsyncStaging(node.address, retry_ms=200) as staging:
                with pytest.raises(ResponseError, match="later"):
                    await staging.stage("test-broker", TOPIC, items(1), 1)
                with pytest.raises(ConnectError, match="no master"):
                    await staging.status("nobody", "q")
        finally:
            await node.stop()

    run(scenario)


def test_brokers_that_cannot_stage_are_refused_with_a_way_out() -> None:
    async def scenario() -> None:
        node = EmbeddedBroker(broker=BROKER, store=STORE)
        await node.start()
        try:
            for code in (RequestCode.STAGE_MESSAGES, RequestCode.STAGED_STATUS):
                assert node.broker is not None
                del node.broker.table._handlers[code]  # type: ignore[attr-defined]
            async with AsyncStaging(node.address) as staging:
                for call in (
                    staging.stage("test-broker", TOPIC, items(1), 1),
                    staging.status("test-broker", "q"),
                ):
                    with pytest.raises(ClientError, match=r"cannot stage .*at-least-once"):
                        await call
        finally:
            await node.stop()
        await asyncio.sleep(0)

    run(scenario)
