"""A record inside the body of an ordinary message: no request may take it for a record of the broker.

The attacker may publish to `orders` only. On an idle broker the log position of the next message can be predicted, so
the body can hold a record that is whole, has the right checksum and names its own position.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.topics import CHECK_MAX_TOPIC, HALF_TOPIC, STAGED_TOPIC
from penstock.client.async_producer import AsyncProducer
from penstock.message import HostAddress, StoredMessage, encode_record
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PublishStagedRequestHeader,
    SendMessageRequestHeader,
    StageMessagesRequestHeader,
)
from penstock.remoting import RemotingClient
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded import ADMIN, APP, caller, guarded, run

BORN = 1_700_000_000_000
BODY_AT = 88  # of a record with IPv4 addresses
HOST = HostAddress("127.0.0.1", 1)
ZEROES = (
    "queue_id",
    "queue_offset",
    "size",
    "body_crc",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
)


class Scene:
    """A broker with two topics, the attacker and the victim."""

    def __init__(self, server: EmbeddedBroker, attacker: RemotingClient, victim: RemotingClient) -> None:
        assert server.broker is not None
        self.broker: Broker = server.broker
        self.address = server.broker_address
        self.attacker = attacker
        self.victim = victim

    def bodies(self, topic: str) -> list[bytes]:
        store = self.broker.store
        return [message.body for queue in range(8) for message in store.read(topic, queue, 0)]

    async def send(self, client: RemotingClient, topic: str, body: bytes, **more: str) -> Command:
        properties = "".join(f"{name}\x01{value}\x02" for name, value in more.items())
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=topic,
            queue_id=0,
            born_timestamp=BORN,
            sys_flag=4 if "TRAN_MSG" in more else 0,
            properties=properties,
        )
        answer = await client.call(self.address, Command(RequestCode.SEND_MESSAGE_V2, header.encode(), body))
        assert answer.code == 0, answer.remark
        return answer

    async def forge(self, **fields: Any) -> StoredMessage:
        """Put a record into the body of the attacker's next message; where it is in the log."""

        def record(position: int) -> StoredMessage:
            values: dict[str, Any] = dict.fromkeys(ZEROES, 0)
            values |= {"born_timestamp": BORN, "store_timestamp": BORN, "born_host": HOST, "store_host": HOST}
            values |= {"physical_offset": position, **fields}
            return StoredMessage(**values)

        await self.send(self.attacker, "orders", encode_record(record(0)), UNIQ_KEY="A" * 32)
        log = self.broker.store.log
        at = log.max_offset + BODY_AT  # what the attacker computes from the first message's id and size
        body = encode_record(record(at))
        await self.send(self.attacker, "orders", body, UNIQ_KEY="B" * 32)
        assert log.slice(at, len(body)) == body, "the forgery is not where the attacker wants it"
        return record(at)

    async def publish(self, client: RemotingClient, handle: str, query: str = "q") -> Command:
        fields = PublishStagedRequestHeader(query_id=query, batch_id=0).encode()
        return await client.call(self.address, Command(RequestCode.PUBLISH_STAGED, fields, handle.encode()))

    async def stage(self, client: RemotingClient, topic: str, body: bytes = b"staged") -> Command:
        fields = StageMessagesRequestHeader(producer_group="sink", born_timestamp=BORN).encode()
        command = Command(RequestCode.STAGE_MESSAGES, fields, staged_body(topic, body))
        return await client.call(self.address, command)

    async def end_transaction(self, client: RemotingClient, position: int, offset: int) -> Command:
        fields = {
            "producerGroup": "p",
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(position),
            "commitOrRollback": "12",
            "fromTransactionCheck": "false",
            "msgId": "",
            "topic": "orders",
        }
        return await client.call(self.address, Command(RequestCode.END_TRANSACTION, fields))


def staged_body(topic: str, body: bytes) -> bytes:
    return encode_head([(topic, 1)]) + encode_item(0, body, b"UNIQ_KEY\x01F1\x02")


@asynccontextmanager
async def scene(path: Path, access: bool) -> AsyncIterator[Scene]:
    """`orders` and `public` exist; with access control the attacker may publish to `orders` only."""
    keys = ADMIN if access else {}
    server = guarded(path) if access else unguarded(path)
    async with server as running, caller(APP if access else None) as attacker:
        async with AsyncProducer(running.address, **keys) as producer:
            for topic in ("orders", "public"):
                await producer.send(topic, b"made")
        async with caller(keys or None) as victim:
            yield Scene(running, attacker, victim)


@asynccontextmanager
async def unguarded(path: Path) -> AsyncIterator[EmbeddedBroker]:
    server = EmbeddedBroker(path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


both = pytest.mark.parametrize("access", [True, False], ids=["access-on", "access-off"])


@both
@pytest.mark.parametrize("flag", [0, 0xC], ids=["queued", "rolled-back"])
@pytest.mark.parametrize("target", ["public", "SCHEDULE_TOPIC_XXXX", HALF_TOPIC, "TBW102"])
def test_forged_staged_record_is_not_published(tmp_path: Path, access: bool, flag: int, target: str) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            # The entry at offset 0 of the staged queue exists, and leads elsewhere.
            assert (await at.stage(at.attacker, "orders")).code == 0
            before = at.bodies(target)
            forged = await at.forge(
                topic=STAGED_TOPIC,
                body=staged_body(target, b"forged"),
                properties={"UNIQ_KEY": "F"},
                sys_flag=flag,
            )
            size = len(encode_record(forged))
            answer = await at.publish(at.attacker, f"{forged.physical_offset}.{size}.1.F")
            assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
            assert "no staged record begins there" in (answer.remark or "")
            assert at.bodies(target) == before
            # The attacker's own messages can still be published.
            handle = (await at.stage(at.attacker, "orders", b"own")).fields["handle"]
            assert (await at.publish(at.attacker, handle)).code == 0
            assert b"own" in at.bodies("orders")

    run(test)


@both
@pytest.mark.parametrize("is_visible", [True, False], ids=["visible", "held-back"])
def test_forged_half_record_ends_no_transaction(tmp_path: Path, access: bool, is_visible: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.send(at.victim, "public", b"half", UNIQ_KEY="V" * 32, TRAN_MSG="true", PGROUP="p")
            opened = at.broker.transactions.open
            [offset] = opened.offsets()
            half = opened.load(offset)
            assert half is not None
            if not is_visible:
                at.broker.store.hold()
            forged = await at.forge(
                topic=HALF_TOPIC,
                body=b"half",
                properties={"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "p", "UNIQ_KEY": "V" * 32},
                queue_offset=offset,
            )
            answer = await at.end_transaction(at.attacker, forged.physical_offset, offset)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            assert opened.offsets() == [offset]
            if not is_visible:
                at.broker.store.release()
            assert (await at.end_transaction(at.victim, half.message.physical_offset, offset)).code == 0
            assert opened.offsets() == []

    run(test)


def test_forged_parked_half_message_is_not_resumed(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=False) as at:
            forged = await at.forge(
                topic=CHECK_MAX_TOPIC,
                body=b"parked",
                properties={"REAL_TOPIC": "public", "REAL_QID": "0", "PGROUP": "p", "UNIQ_KEY": "F"},
            )
            fields = {"topic": "orders", "msgId": f"7F00000100000001{forged.physical_offset:016X}"}
            command = Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
            answer = await at.attacker.call(at.address, command)
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            assert at.broker.transactions.open.offsets() == []

    run(test)


def test_staging_and_publishing_need_permission_for_every_topic(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=True) as at:
            before = at.bodies("public")
            assert (await at.stage(at.attacker, "public")).code == ResponseCode.NO_PERMISSION
            handle = (await at.stage(at.victim, "public", b"secret")).fields["handle"]
            own = (await at.stage(at.attacker, "orders", b"own")).fields["handle"]
            for handles in (handle, f"{own}\n{handle}"):
                answer = await at.publish(at.attacker, handles, "theft")
                assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
                assert "public" in (answer.remark or "")
            assert at.bodies("public") == before
            assert b"own" not in at.bodies("orders")
            assert (await at.publish(at.victim, handle)).code == 0
            assert b"secret" in at.bodies("public")

    run(test)
