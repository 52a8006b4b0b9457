"""Access control from end to end: Python's clients, the compiled send path, and what a stranger's frames get."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.client.async_admin import AsyncAdmin
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.client.scanning import AsyncScan
from penstock.errors import ResponseError
from penstock.message.message import Message
from penstock.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command, encode_frame
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded import (
    ADMIN,
    ADMIN_SECRET,
    APP,
    READER,
    SECRET,
    caller,
    code_of,
    guarded,
    run,
)
from tests.support.raw_peer import RawPeer

NO_PERMISSION = int(ResponseCode.NO_PERMISSION)


def send_frame(opaque: int, topic: str = "orders", queue: int = 0, **fields: str) -> Command:
    header = SendMessageRequestHeader(
        producer_group="p",
        topic=topic,
        queue_id=queue,
        born_timestamp=1_700_000_000_000,
        properties=f"UNIQ_KEY\x01{opaque:032X}\x02WAIT\x01true\x02",
    )
    fields = {**header.encode(), **fields}
    return Command(RequestCode.SEND_MESSAGE_V2, fields, b"body", opaque, language="JAVA")


def test_a_client_with_keys_sends_and_consumes_what_it_may(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, AsyncProducer(server.address, **APP) as producer:
            for number in range(20):
                await producer.send("orders", str(number).encode())
            await producer.send_batch([Message("orders", str(number).encode()) for number in range(20, 40)])
            async with AsyncConsumer(server.address, "billing", start_from="first", **APP) as consumer:
                await consumer.subscribe("orders")
                found: dict[str, int] = {}
                async for message in consumer:
                    found[message.body.decode()] = message.tries
                    if message.body == b"7" and not message.tries:
                        consumer.retry(message, 1)  # comes again through %RETRY%billing
                        continue
                    if len(found) == 40 and found["7"] == 1:
                        break
            async with AsyncScan(server.address, **APP) as scan:
                (queue, *_) = await scan.queues("orders")
                assert (await scan.pull(queue, 0, rows=10, size=65_536)).max >= 0

    run(test)


@pytest.mark.abuse("A9")
@pytest.mark.parametrize("keys", [None, {**APP, "secret_key": "another-secret"}, READER])
def test_whoever_may_not_is_refused_by_name_server_and_broker(
    tmp_path: Path, keys: dict[str, str] | None
) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server:
            async with AsyncAdmin(server.address, **ADMIN) as admin:
                await admin.create_topic("orders", queues=1)
            async with AsyncProducer(server.address, retries=0, **(keys or {})) as producer:
                with pytest.raises(ResponseError, match=r"no permission|not signed|not valid"):
                    await producer.send("orders", b"x")
            async with caller(keys) as client:
                route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                assert await code_of(client, server.address, route) == NO_PERMISSION
                assert await code_of(client, server.broker_address, send_frame(1)) == NO_PERMISSION
                pull = {"topic": "orders", "consumerGroup": "readers", "queueId": "0", "queueOffset": "0"}
                pull |= {"maxMsgNums": "32", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0"}
                answer = await client.call(server.broker_address, Command(RequestCode.PULL_MESSAGE, pull))
                assert answer.code == NO_PERMISSION
                assert not answer.body
            assert server.broker is not None
            assert server.broker.store.log.max_offset == 0

    run(test)


@pytest.mark.abuse("A9")
def test_the_compiled_send_path_lets_nobody_past_the_guard(tmp_path: Path) -> None:
    """Plain sends to a warm topic, a hundred in one write: what the compiled path would take without a look."""

    async def test() -> None:
        async with guarded(tmp_path) as server:
            async with AsyncProducer(server.address, **ADMIN) as producer:
                for _ in range(20):
                    await producer.send("orders", b"warm")
            assert server.broker is not None
            end = server.broker.store.log.max_offset
            peer = await RawPeer.connect(server.broker_address)
            try:
                peer.send(b"".join(encode_frame(send_frame(number)) for number in range(1, 101)))
                codes = {(await peer.read()).code for _ in range(100)}
            finally:
                await peer.close()
            assert codes == {NO_PERMISSION}
            assert server.broker.store.log.max_offset == end

    run(test)


@pytest.mark.abuse("A10")
def test_a_recorded_request_is_not_taken_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server:
            recorded: list[bytes] = []
            async with AsyncProducer(server.address, **ADMIN) as producer:
                await producer.send("orders", b"x")
            async with caller(APP) as client:
                command = send_frame(1)
                answer = await client.call(server.broker_address, command)
                assert answer.code == 0
                recorded.append(encode_frame(command))
            assert server.broker is not None
            end = server.broker.store.log.max_offset
            peer = await RawPeer.connect(server.broker_address)
            try:
                peer.send(recorded[0])
                answer = await peer.read()
            finally:
                await peer.close()
            assert answer.code == NO_PERMISSION
            assert "received before" in (answer.remark or "")
            assert server.broker.store.log.max_offset == end

    run(test)


@pytest.mark.abuse("A9")
def test_a_position_in_the_log_is_no_way_around_the_topics(tmp_path: Path) -> None:
    """Looking at a record and sending it back name a position only: both are checked for the record's topic."""

    async def test() -> None:
        async with guarded(tmp_path) as server:
            async with AsyncProducer(server.address, **ADMIN) as producer:
                await producer.send("public", b"for all")
                secret = await producer.send("orders", b"for some")
            assert server.broker is not None
            position = int(secret.offset_msg_id[16:], 16)
            async with AsyncAdmin(server.address, **ADMIN) as admin:
                await admin.create_group("readers")
                await admin.create_group("billing")
            async with caller(READER) as reader, caller(APP) as app:
                view = {"offset": str(position)}
                back = {"offset": str(position), "delayLevel": "1", "originTopic": "public"}
                at = server.broker_address
                assert (
                    await code_of(reader, at, Command(RequestCode.VIEW_MESSAGE_BY_ID, dict(view)))
                    == NO_PERMISSION
                )
                assert await code_of(app, at, Command(RequestCode.VIEW_MESSAGE_BY_ID, dict(view))) == 0
                steal = Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**back, "group": "readers"})
                assert await code_of(reader, at, steal) == NO_PERMISSION
                mine = Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**back, "group": "billing"})
                assert await code_of(app, at, mine) == 0

    run(test)


@pytest.mark.abuse("A19")
def test_a_groups_name_gives_nobody_its_transactions_or_replies(tmp_path: Path) -> None:
    """Names of producer groups and client ids are nobody's: who may not publish is not asked, and ends nothing."""

    async def test() -> None:
        async with guarded(tmp_path) as server:
            async with AsyncProducer(server.address, **ADMIN) as producer:
                await producer.send("orders", b"made")
                await producer.send("public", b"made")
            broker = server.broker
            assert broker is not None
            at = server.broker_address
            beat = HeartbeatData("victim@1", (ProducerData("p"),), ()).encode()
            half = send_frame(1, PGROUP="p")
            half.fields["i"] += "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            half.fields["f"] = "4"
            async with caller(APP) as app, caller(READER) as reader:
                assert await code_of(app, at, Command(RequestCode.HEART_BEAT, {}, beat)) == 0
                answer = await app.call(at, half)
                assert answer.code == 0, answer.remark
                [offset] = broker.transactions.open.offsets()
                kept = broker.transactions.open.load(offset)
                assert kept is not None
                # The same group, and the same client id, by somebody who may do neither.
                for client_id in ("victim@1", "thief@1"):
                    body = HeartbeatData(client_id, (ProducerData("p"),), ()).encode()
                    assert await code_of(reader, at, Command(RequestCode.HEART_BEAT, {}, body)) == 0
                channel = broker.producers.pick("p", "orders")
                assert channel is not None
                assert channel.publisher is not None
                assert channel.publisher.user == "app"
                assert all(broker.producers.pick("p", "orders") is channel for _ in range(5))
                assert broker.producers.by_client_id("victim@1") is channel
                # Whoever names a topic of his own ends nothing of another's.
                ends = {
                    "topic": "public",
                    "producerGroup": "p",
                    "tranStateTableOffset": str(offset),
                    "commitLogOffset": str(kept.message.physical_offset),
                    "commitOrRollback": "8",
                    "fromTransactionCheck": "true",
                    "msgId": "",
                }
                foreign = Command(RequestCode.END_TRANSACTION, dict(ends))
                assert await code_of(reader, at, foreign) == NO_PERMISSION
                assert broker.transactions.open.offsets() == [offset]
                own = Command(RequestCode.END_TRANSACTION, {**ends, "topic": "orders"})
                assert await code_of(app, at, own) == 0

    run(test)


@pytest.mark.abuse("A8")
@pytest.mark.abuse("A13")
def test_brokers_and_settings_are_an_admins(tmp_path: Path) -> None:
    async def test() -> None:
        async with guarded(tmp_path) as server, caller(APP) as app, caller(None) as stranger:
            register = {
                "brokerName": "test-broker",
                "brokerAddr": "127.0.0.1:1",
                "clusterName": "DefaultCluster",
            }
            register |= {"haServerAddr": "127.0.0.1:2", "brokerId": "0"}
            for client in (app, stranger):
                command = Command(RequestCode.REGISTER_BROKER, dict(register))
                assert await code_of(client, server.address, command) == NO_PERMISSION
                settings = Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
                assert await code_of(client, server.broker_address, settings) == NO_PERMISSION
                for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO):
                    assert await code_of(client, server.broker_address, Command(code)) == NO_PERMISSION

    run(test)


@pytest.mark.abuse("A11")
def test_no_answer_and_no_log_line_has_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with guarded(tmp_path, cluster_secret="cluster-" + SECRET) as server, caller(ADMIN) as admin:
            at = (server.address, server.broker_address)
            for code in sorted(set(RequestCode)):
                for address in at:
                    fields = {"topic": "orders", "group": "billing", "username": "app", "subject": "User:app"}
                    if code not in (RequestCode.PULL_MESSAGE, RequestCode.AUTH_DELETE_USER):
                        answer = await admin.call(address, Command(code, fields, b"{}"), 5_000)
                        told = f"{answer.remark} {answer.fields} {bytes(answer.body)!r}"
                        assert SECRET not in told, code
                        assert ADMIN_SECRET not in told, code

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert SECRET not in caplog.text
    assert ADMIN_SECRET not in caplog.text


def test_users_and_policies_over_the_wire_are_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async def call(
        client: object, address: str, code: RequestCode, body: bytes = b"", **fields: str
    ) -> Command:
        answer: Command = await client.call(address, Command(code, fields, body))  # type: ignore[attr-defined]
        return answer

    shop = {"access_key": "shop", "secret_key": "shop-password"}
    policy = (
        b'{"subject":"User:shop","policies":[{"policyType":"Custom","entries":[{"resource":"Topic:shop-*",'
        b'"actions":["Pub"],"sourceIps":[],"decision":"Allow"}]}]}'
    )

    async def test() -> None:
        async with guarded(tmp_path) as server, caller(ADMIN) as admin, caller(APP) as app:
            at = server.broker_address
            user = b'{"username":"shop","password":"shop-password","userType":"Normal"}'
            assert (
                await call(app, at, RequestCode.AUTH_CREATE_USER, user, username="shop")
            ).code == NO_PERMISSION
            assert (await call(admin, at, RequestCode.AUTH_CREATE_USER, user, username="shop")).code == 0
            again = await call(admin, at, RequestCode.AUTH_CREATE_USER, user, username="shop")
            assert again.code == ResponseCode.INVALID_PARAMETER
            short = await call(admin, at, RequestCode.AUTH_CREATE_USER, b'{"password":"x"}', username="s")
            assert short.code == ResponseCode.INVALID_PARAMETER
            assert (await call(admin, at, RequestCode.AUTH_CREATE_ACL, policy, subject="User:shop")).code == 0
            shown = await call(admin, at, RequestCode.AUTH_GET_USER, username="shop")
            assert b'"password":"******"' in shown.body
            assert (
                b"Topic:shop-*" in (await call(admin, at, RequestCode.AUTH_GET_ACL, subject="User:shop")).body
            )
            gone = await call(admin, at, RequestCode.AUTH_GET_USER, username="nobody")
            assert gone.code == ResponseCode.USER_NOT_EXIST
            last = await call(admin, at, RequestCode.AUTH_DELETE_USER, username="admin")
            assert last.code == NO_PERMISSION
            assert "no admin would be left" in (last.remark or "")
            async with AsyncProducer(server.address, retries=0, **shop) as producer:
                await producer.send("shop-orders", b"x")
                with pytest.raises(ResponseError, match=r"no permission|not signed|not valid"):
                    await producer.send("orders", b"x")
        text = (tmp_path / "access.toml").read_text()
        assert "Topic:shop-*" in text

    run(test)


def test_without_access_control_nothing_is_looked_at(tmp_path: Path) -> None:
    """Off is off: a request with a wrong signature, or none, is served, and the compiled path is in place."""

    async def test() -> None:
        server = EmbeddedBroker(tmp_path)
        await server.start()
        try:
            async with AsyncProducer(server.address, access_key="x", secret_key="whatever") as producer:
                await producer.send("orders", b"x")
            async with AsyncProducer(server.address) as producer:
                await producer.send("orders", b"x")
        finally:
            await server.stop()

    run(test)
