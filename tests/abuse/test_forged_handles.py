"""Handles and ids that were not given to the one who uses them (POP, recall, transactions), and forged origins.

`app` may use `orders` as the group `billing`; the admin is the victim, in `public` and the group `others`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.client.async_admin import AsyncAdmin
from penstock.client.async_producer import AsyncProducer
from penstock.client.dead_letters import DeadLetter
from penstock.client.received import ReceivedMessage
from penstock.client.redriving import Outcome
from penstock.message import decode_record
from penstock.protocol.bodies import ConsumerData, HeartbeatData
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.protocol.pop_handles import PopHandle
from penstock.protocol.recall import RecallHandle
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.guarded import ADMIN, APP, READER, caller, guarded, run
from tests.support.popping import is_effective
from tests.waiting import until

ACKED, GROUP, FAR = RequestCode.ACK_MESSAGE, "others", 2**63 - 1


class Scene:
    """A broker, the attacker and the victim."""

    def __init__(self, server: EmbeddedBroker, attacker: RemotingClient, victim: RemotingClient) -> None:
        assert server.broker is not None
        self.broker: Broker = server.broker
        self.address = server.broker_address
        self.attacker, self.victim = attacker, victim

    async def call(
        self, client: RemotingClient, code: int, fields: dict[str, object], body: bytes = b""
    ) -> Command:
        text = {name: str(value) for name, value in fields.items()}
        return await client.call(self.address, Command(code, text, body))

    async def send(self, client: RemotingClient, topic: str, **properties: str) -> Command:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=topic,
            queue_id=0,
            born_timestamp=1,
            sys_flag=4 if "TRAN_MSG" in properties else 0,
            properties=text,
        )
        return await client.call(
            self.address, Command(RequestCode.SEND_MESSAGE_V2, header.encode(), b"secret")
        )

    async def join(self, client: RemotingClient, group: str) -> None:
        beat = HeartbeatData("c", (), (ConsumerData(group, subscriptions=()),))
        assert (await self.call(client, RequestCode.HEART_BEAT, {}, beat.encode())).code == 0

    async def pop(self, client: RemotingClient, topic: str, group: str) -> Command:
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
        }
        fields |= {"pollTime": 0, "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*"}
        return await self.call(client, RequestCode.POP_MESSAGE, fields)

    @property
    def open_pops(self) -> int:
        assert self.broker.pop is not None
        return len(self.broker.pop.service.state)


@asynccontextmanager
async def scene(path: Path, access: bool) -> AsyncIterator[Scene]:
    keys = ADMIN if access else {}
    server = guarded(path) if access else without_access(path)
    async with server as running, caller(APP if access else None) as attacker, caller(keys or None) as victim:
        async with AsyncProducer(running.address, **keys) as producer:
            for topic in ("orders", "public"):
                await producer.send(topic, b"made")
        yield Scene(running, attacker, victim)


@asynccontextmanager
async def without_access(path: Path) -> AsyncIterator[EmbeddedBroker]:
    server = EmbeddedBroker(path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


both = pytest.mark.parametrize("access", [True, False], ids=["access-on", "access-off"])


@both
def test_pop_handle_that_was_not_handed_out_acknowledges_nothing(tmp_path: Path, access: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.join(at.victim, GROUP)
            await at.join(at.attacker, "billing")
            await at.send(at.victim, "public", UNIQ_KEY="V" * 32)
            answer = await at.pop(at.victim, "public", GROUP)
            assert answer.code == 0, answer.remark
            offset = decode_record(memoryview(answer.body)).queue_offset
            handle = PopHandle(
                offset,
                int(answer.fields["popTime"]),
                60_000,
                int(answer.fields["reviveQid"]),
                "0",
                BROKER.broker_name,
                0,
                offset,
            )
            opened = at.open_pops
            forged = [
                replace(handle, pop_time=handle.pop_time + 1),
                replace(handle, offset=offset + 32),
                replace(handle, offset=FAR),
                replace(handle, start_offset=FAR, offset=FAR),
                replace(handle, queue_id=1),
                handle,
            ]
            own = {"consumerGroup": "billing", "topic": "orders"}
            others = {"consumerGroup": GROUP, "topic": "public"}
            for client, named in ((at.attacker, own), (at.attacker, others), (at.victim, others)):
                for one in forged:
                    if one == handle and named is others and (client is at.victim or not access):
                        continue  # the handle of the group that popped, and nobody to tell its users apart
                    fields = {**named, "queueId": one.queue_id, "extraInfo": one, "offset": one.offset}
                    assert not is_effective(await at.call(client, ACKED, fields)), (named, str(one))
                    change = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
                    assert not is_effective(
                        await at.call(client, change, {**fields, "invisibleTime": 10_000})
                    )
            for text in (
                "",
                "0",
                "-1 0 0 0 0 b 0 0",
                f"0 0 0 0 0 b 0 {2**64}",
                f"{handle} x",
                f"{handle} 7 7",
                f"0{handle}",
            ):
                fields = {**others, "queueId": 0, "extraInfo": text, "offset": offset}
                assert (await at.call(at.victim, ACKED, fields)).code != 0, text
            assert at.open_pops == opened
            # A log position, which RocketMQ's proxies append, makes no handle better or worse.
            wrong = replace(handle, pop_time=1)
            for text, counts in ((f"{wrong} {offset}", False), (f"{handle} {FAR}", True)):
                fields = {**others, "queueId": 0, "extraInfo": text, "offset": offset}
                assert is_effective(await at.call(at.victim, ACKED, fields)) is counts

    run(test)


@both
def test_batch_acknowledgement_of_others_messages_counts_for_nothing(tmp_path: Path, access: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.join(at.victim, GROUP)
            await at.join(at.attacker, "billing")
            answer = await at.pop(at.victim, "public", GROUP)
            for number in range(3):
                await at.send(at.victim, "public", UNIQ_KEY=f"V{number}")
            answer = await at.pop(at.victim, "public", GROUP)
            assert answer.code == 0, answer.remark
            start = decode_record(memoryview(answer.body)).queue_offset
            opened, popped, revive = (
                at.open_pops,
                int(answer.fields["popTime"]),
                int(answer.fields["reviveQid"]),
            )
            good = BatchAck("others", "public", "0", start, 0, revive, popped, 60_000, (0, 1, 2))
            for ack in (
                replace(good, group="billing", topic="orders"),
                replace(good, group="billing"),
                replace(good, start_offset=start + 1),
                replace(good, pop_time=popped - 1),
                replace(good, queue_id=7),
                replace(good, places=(9, 31)),
            ):
                body = BatchAckMessageRequestBody(BROKER.broker_name, (ack,)).encode()
                await at.call(at.attacker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
                assert at.open_pops == opened, ack

    run(test)


def test_recall_takes_out_no_message_of_another_topic(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=True) as at:
            before = at.broker.store.max_offset("public", 0)
            due_ms = Runtime.system().clock.now_ms() + 3_000
            answer = await at.send(at.victim, "public", UNIQ_KEY="V" * 32, TIMER_DELIVER_MS=str(due_ms))
            handle = RecallHandle.decode(answer.fields["recallHandle"])
            for topic, forged in (
                ("orders", handle),
                ("public", handle),
                ("orders", handle._replace(time_ms=FAR)),
                ("orders", handle._replace(topic="orders", time_ms=-1)),
            ):
                fields = {"producerGroup": "p", "topic": topic, "recallHandle": forged.encode()}
                assert (await at.call(at.attacker, RequestCode.RECALL_MESSAGE, fields)).code != 0, forged
            # The attacker's own topic with the victim's id is a good handle of no message.
            own = handle._replace(topic="orders").encode()
            fields = {"producerGroup": "p", "topic": "orders", "recallHandle": own}
            await at.call(at.attacker, RequestCode.RECALL_MESSAGE, fields)
            recall = {"TIMER_DEL_UNIQKEY": f"public+{'V' * 32}", "TIMER_DELIVER_MS": str(due_ms)}
            assert (await at.send(at.attacker, "orders", UNIQ_KEY="A" * 32, **recall)).code != 0
            await until(lambda: at.broker.store.max_offset("public", 0) == before + 1)

    run(test)


@both
def test_transaction_is_ended_by_no_id_but_its_own(tmp_path: Path, access: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.send(at.victim, "public", UNIQ_KEY="V" * 32, TRAN_MSG="true", PGROUP="p")
            opened = at.broker.transactions.open
            [offset] = opened.offsets()
            half = opened.load(offset)
            assert half is not None
            good = {
                "producerGroup": "p",
                "tranStateTableOffset": offset,
                "commitLogOffset": half.message.physical_offset,
                "commitOrRollback": 12,
                "msgId": "V" * 32,
                "topic": "orders",
            }
            wrong: list[dict[str, object]] = [
                {"producerGroup": "mine"},
                {"msgId": "A" * 32},
                *({"tranStateTableOffset": number} for number in (offset + 1, -1, FAR)),
                *(
                    {"commitLogOffset": number}
                    for number in (half.message.physical_offset + 1, -1, FAR, -FAR)
                ),
                *([{"fromTransactionCheck": "true"}, {}] if access else []),
            ]
            for change in wrong:
                answer = await at.call(at.attacker, RequestCode.END_TRANSACTION, {**good, **change})
                assert answer.code != 0, change
                assert opened.offsets() == [offset], change
            assert (await at.call(at.victim, RequestCode.END_TRANSACTION, good)).code == ResponseCode.SUCCESS
            assert opened.offsets() == []

    run(test)


# -- where a dead letter says it came from -----------------------------------------------------------------------

LIES = {
    "RETRY_TOPIC": "public",
    "DLQ_ORIGIN_TOPIC": "public",
    "DLQ_ORIGIN_MESSAGE_ID": "X",
    "ORIGIN_MESSAGE_ID": "X",
}


async def dead_letter(at: Scene) -> DeadLetter:
    await until(lambda: at.broker.store.max_offset("%DLQ%billing", 0) == 1)
    [stored] = at.broker.store.read("%DLQ%billing", 0, 0)
    assert not {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"} & set(stored.properties)
    queue = MessageQueue("%DLQ%billing", BROKER.broker_name, 0)
    return DeadLetter("billing", ReceivedMessage.of(stored, queue))


@both
@pytest.mark.parametrize("tries", [0, 1], ids=["at once", "after a try"])
def test_dead_letter_says_itself_where_it_came_from(tmp_path: Path, access: bool, tries: int) -> None:
    """`penstock dlq redrive` sends a dead letter, with an admin's permission, to the topic that it came from."""

    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.join(at.victim, "billing")
            answer = await at.send(at.attacker, "orders", UNIQ_KEY="A" * 32, **LIES)
            position = int(answer.fields["msgId"][-16:], 16)
            fields: dict[str, object] = {
                "group": "billing",
                "delayLevel": 1,
                "originMsgId": "",
                "originTopic": "",
            }
            for level in (1, -1)[1 - tries :]:
                back = {**fields, "offset": position, "delayLevel": level}
                assert (await at.call(at.victim, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
                if level > 0:
                    await until(lambda: at.broker.store.max_offset("%RETRY%billing", 0) == 1)
                    [retry] = at.broker.store.read("%RETRY%billing", 0, 0)
                    queue = MessageQueue("%RETRY%billing", BROKER.broker_name, 0)
                    assert ReceivedMessage.of(retry, queue).topic == "orders"
                    position = retry.physical_offset
            assert (await dead_letter(at)).origin_topic == "orders"

    run(test)


@both
def test_dead_letter_of_pop_says_itself_where_it_came_from(tmp_path: Path, access: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path, access) as at:
            await at.join(at.victim, "billing")
            at.broker.groups.update(replace(at.broker.groups.require("billing"), retry_max_times=0))
            await at.pop(at.victim, "orders", "billing")
            await at.send(at.attacker, "orders", UNIQ_KEY="A" * 32, **LIES)
            assert at.broker.pop is not None
            fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "maxMsgNums": 32}
            fields |= {"invisibleTime": at.broker.options.pop_invisible_min_ms, "pollTime": 0, "bornTime": 0}
            fields |= {"initMode": 0, "expType": "TAG", "exp": "*"}
            assert (await at.call(at.victim, RequestCode.POP_MESSAGE, fields)).code == 0
            assert (await dead_letter(at)).origin_topic == "orders"

    run(test)


@pytest.mark.parametrize("may_publish", [False, True])
def test_dead_letter_that_a_client_made_is_sent_to_no_topic_it_may_not_publish_to(
    tmp_path: Path, may_publish: bool
) -> None:
    """`penstock dlq redrive` sent it there with an admin's permission: Sub on a topic was enough to publish to it."""

    async def test() -> None:
        async with (
            guarded(tmp_path) as server,
            caller(READER) as reader,
            caller(APP) as app,
            caller(ADMIN) as victim,
        ):
            async with AsyncProducer(server.address, **ADMIN) as producer:
                for name in ("orders", "public"):
                    await producer.send(name, b"made")
            topic, group, client = (
                ("orders", "billing", app) if may_publish else ("public", "readers", reader)
            )
            at = Scene(server, client, victim)
            await at.join(client, group)
            pairs = {"UNIQ_KEY": "A" * 32, "RETRY_TOPIC": topic, "PENSTOCK_UNPROVEN": ""}
            header = SendMessageRequestHeader(
                producer_group="p",
                topic=f"%RETRY%{group}",
                queue_id=0,
                born_timestamp=1,
                reconsume_times=17,
                properties="".join(f"{name}\x01{value}\x02" for name, value in pairs.items()),
            )
            command = Command(RequestCode.SEND_MESSAGE_V2, header.encode(), b"forged")
            assert (await client.call(at.address, command)).code == 0
            await until(lambda: at.broker.store.max_offset(f"%DLQ%{group}", 0) == 1)
            async with AsyncAdmin(server.address, **ADMIN) as admin:
                [result] = [one async for one in admin.dead_letters.redrive(group)]
            assert result.outcome is (Outcome.SENT if may_publish else Outcome.FAILED), result.reason
            if not may_publish:
                assert "may not publish to public" in result.reason

    run(test)


def test_retry_that_a_client_sends_names_only_topics_that_it_may_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, access=True) as at:
            await at.join(at.attacker, "billing")
            answer = await at.send(at.attacker, "%RETRY%billing", UNIQ_KEY="A" * 32, RETRY_TOPIC="public")
            assert answer.code == ResponseCode.NO_PERMISSION
            answer = await at.send(at.attacker, "%RETRY%billing", UNIQ_KEY="A" * 32, RETRY_TOPIC="orders")
            assert answer.code == 0

    run(test)
