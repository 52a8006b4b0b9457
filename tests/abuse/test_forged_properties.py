"""Names in requests that become properties of records: none may hold the bytes that separate properties.

What stands behind such a byte was read as a property that the broker itself had set. `app` may publish to `orders`,
the admin is the victim, in `public`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker import property_text
from penstock.errors import CodecError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.protocol.recall import RecallHandle
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import EmbeddedBroker
from tests.support.guarded import ADMIN, APP, caller, guarded, run
from tests.waiting import until

V2 = RequestCode.SEND_MESSAGE_V2


async def send(
    client: RemotingClient,
    server: EmbeddedBroker,
    topic: str,
    *,
    group: str = "p",
    flag: int = 0,
    **pairs: str,
) -> Command:
    header = SendMessageRequestHeader(
        producer_group=group,
        topic=topic,
        queue_id=0,
        born_timestamp=1,
        sys_flag=flag,
        properties="".join(property_text.pair(name, value) for name, value in pairs.items()),
    )
    return await client.call(server.broker_address, Command(V2, header.encode(), b"body"))


@pytest.mark.abuse("A9")
def test_recall_handle_names_no_second_message(tmp_path: Path) -> None:
    """The unique id of a handle for the own topic held a second TIMER_DEL_UNIQKEY, of another user's message."""

    async def test() -> None:
        async with guarded(tmp_path) as server, caller(APP) as attacker, caller(ADMIN) as victim:
            for topic in ("orders", "public"):
                assert (await send(victim, server, topic)).code == 0
            broker = server.broker
            assert broker is not None
            before = broker.store.max_offset("public", 0)
            due_ms = Runtime.system().clock.now_ms() + 3_000
            unique = "V" * 32
            timed = await send(victim, server, "public", UNIQ_KEY=unique, TIMER_DELIVER_MS=str(due_ms))
            handle = RecallHandle.decode(timed.fields["recallHandle"])
            forged = handle._replace(topic="orders", unique=f"x\x02TIMER_DEL_UNIQKEY\x01public+{unique}")
            fields = {"producerGroup": "p", "topic": "orders", "recallHandle": forged.encode()}
            answer = await attacker.call(server.broker_address, Command(RequestCode.RECALL_MESSAGE, fields))
            assert answer.code != 0
            await until(
                lambda: broker.store.max_offset("public", 0) == before + 1, "the message is delivered"
            )

    run(test)


@pytest.mark.abuse("A9")
def test_producer_group_of_a_transaction_names_no_other_topic(tmp_path: Path) -> None:
    """The group of a half message is stored behind the topic that it waits for, and named another one."""

    async def test() -> None:
        async with guarded(tmp_path) as server, caller(APP) as attacker, caller(ADMIN) as victim:
            for topic in ("orders", "public"):
                assert (await send(victim, server, topic)).code == 0
            broker = server.broker
            assert broker is not None
            group = "p\x02REAL_TOPIC\x01public\x02REAL_QID\x010"
            answer = await send(attacker, server, "orders", group=group, flag=4, TRAN_MSG="true")
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
            assert broker.transactions.open.offsets() == []
            # A plain send stores no group: its name is no matter.
            assert (await send(attacker, server, "orders", group=group)).code == 0

    run(test)


@pytest.mark.parametrize(
    ("name", "value"),
    [("a", "b\x02c\x01d"), ("a\x02b", "c"), ("a\x01b", "c"), ("a", "\x02")],
)
def test_property_holds_no_separator(name: str, value: str) -> None:
    with pytest.raises(CodecError):
        property_text.pair(name, value)
    with pytest.raises(CodecError):
        property_text.changed("", {}, (), {name: value})
