"""Topics that belong to the broker are written by the broker alone: every path of a client, to every row of the table.

An admin's client is a client, too: with access control on, the requests are the admin's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.client.async_producer import AsyncProducer
from penstock.protocol.bodies import ConsumerData, HeartbeatData
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import ONEWAY_FLAG, Command, encode_frame
from penstock.protocol.headers import SendMessageRequestHeader, StageMessagesRequestHeader
from penstock.protocol.recall import RecallHandle
from penstock.protocol.topic_names import RESERVED_TOPICS, Writer
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.guarded import ADMIN, caller, guarded, run
from tests.support.running_broker import batch_item

CLUSTER, NAME = BROKER.cluster_name, BROKER.broker_name
# A name for each row: prefixes need one behind them.
NAMES = {row.name: f"{row.name}{CLUSTER}" if row.is_prefix else row.name for row in RESERVED_TOPICS}
CLOSED = [NAMES[row.name] for row in RESERVED_TOPICS if row.writer is Writer.BROKER]
OPEN = [NAMES[row.name] for row in RESERVED_TOPICS if row.writer is Writer.CLIENTS]


def properties(**pairs: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": "K" * 32, **pairs}.items())


def header(topic: str, text: str, **more: object) -> SendMessageRequestHeader:
    fields: dict[str, object] = {
        "queue_id": 0,
        "born_timestamp": 1,
        "sys_flag": 0,
        "properties": text,
        **more,
    }
    return SendMessageRequestHeader(producer_group="p", topic=topic, **fields)  # type: ignore[arg-type]


def paths(topic: str) -> dict[str, Command]:
    """One request for each way in which a client can have a message stored under a topic's name."""
    now_ms = Runtime.system().clock.now_ms()
    plain, v2 = properties(), RequestCode.SEND_MESSAGE_V2
    delayed = header(topic, properties(DELAY="1"))
    timed = header(topic, properties(TIMER_DELIVER_MS=str(now_ms + 3_600_000)))
    half = header(topic, properties(TRAN_MSG="true", PGROUP="p"), sys_flag=4)
    batch = batch_item(b"forged", plain)
    staged = encode_head([(topic, 1)]) + encode_item(0, b"forged", plain.encode())
    stage = StageMessagesRequestHeader(producer_group="p", born_timestamp=1).encode()
    recall = {
        "producerGroup": "p",
        "topic": topic,
        "recallHandle": RecallHandle(topic, NAME, now_ms + 3_600_000, "K" * 32).encode(),
    }
    reply = properties(CORRELATION_ID="1", REPLY_TO_CLIENT="nobody")
    again = header(topic, plain, reconsume_times=99)
    return {
        "send": Command(RequestCode.SEND_MESSAGE, header(topic, plain).encode_v1(), b"forged"),
        "send v2": Command(v2, header(topic, plain).encode(), b"forged"),
        "one-way": Command(v2, header(topic, plain).encode(), b"forged", flag=ONEWAY_FLAG),
        "batch": Command(RequestCode.SEND_BATCH_MESSAGE, header(topic, "", batch=True).encode(), batch),
        "batch v2": Command(v2, header(topic, "", batch=True).encode(), batch),
        "delayed": Command(v2, delayed.encode(), b"forged"),
        "timed": Command(v2, timed.encode(), b"forged"),
        "half": Command(v2, half.encode(), b"forged"),
        "consumer's retry": Command(v2, again.encode(), b"forged"),
        "reply": Command(RequestCode.SEND_REPLY_MESSAGE, header(topic, reply).encode_v1(), b"forged"),
        "reply v2": Command(RequestCode.SEND_REPLY_MESSAGE_V2, header(topic, reply).encode(), b"forged"),
        "recall": Command(RequestCode.RECALL_MESSAGE, recall),
        "stage": Command(RequestCode.STAGE_MESSAGES, stage, staged),
    }


@asynccontextmanager
async def broker(path: Path, access: bool) -> AsyncIterator[tuple[Broker, EmbeddedBroker]]:
    server = guarded(path) if access else without_access(path)
    async with server as running:
        assert running.broker is not None
        async with AsyncProducer(running.address, **(ADMIN if access else {})) as producer:
            await producer.send("orders", b"made")
        yield running.broker, running


@asynccontextmanager
async def without_access(path: Path) -> AsyncIterator[EmbeddedBroker]:
    server = EmbeddedBroker(path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def stored(broker: Broker) -> dict[str, int]:
    """Messages in each topic; the broker's own topics included."""
    return {
        topic: sum(broker.store.max_offset(topic, queue) for queue in range(count))
        for topic, count in broker.store.queues.counts().items()
    }


both = pytest.mark.parametrize("access", [True, False], ids=["access-on", "access-off"])


@both
@pytest.mark.parametrize("topic", CLOSED)
def test_no_path_of_a_client_writes_to_a_topic_of_the_broker(
    tmp_path: Path, access: bool, topic: str
) -> None:
    """Neither to the topic, nor to another one in which a message would wait for it."""

    async def test() -> None:
        async with broker(tmp_path, access) as (found, server), caller(ADMIN if access else None) as client:
            before = stored(found)
            for path, command in paths(topic).items():
                if command.is_oneway:
                    await client.send(server.broker_address, command)
                    continue
                answer = await client.call(server.broker_address, command)
                assert answer.code != 0, path
            assert stored(found) == before

    run(test)


@both
@pytest.mark.parametrize("topic", OPEN)
def test_clients_write_to_the_topics_of_rocketmqs_clients(tmp_path: Path, access: bool, topic: str) -> None:
    async def test() -> None:
        async with broker(tmp_path, access) as (found, server), caller(ADMIN if access else None) as client:
            beat = HeartbeatData("c", (), (ConsumerData(CLUSTER, subscriptions=()),))
            command = Command(RequestCode.HEART_BEAT, {}, beat.encode())
            assert (await client.call(server.broker_address, command)).code == 0
            answer = await client.call(server.broker_address, paths(topic)["send v2"])
            assert answer.code == 0, answer.remark
            assert stored(found)[topic] == 1

    run(test)


def test_compiled_path_writes_to_no_topic_of_the_broker(tmp_path: Path) -> None:
    """Many frames in one write, between frames of a topic that the compiled path knows."""

    async def test() -> None:
        async with broker(tmp_path, access=False) as (found, server):
            before = stored(found)
            host, _, port = server.broker_address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            frames = []
            for topic in ("orders", *CLOSED):
                for _ in range(3):
                    frames.append(paths("orders")["send v2"])
                    frames.append(paths(topic)["send v2"])
            for opaque, command in enumerate(frames):
                command.opaque = opaque
            # The first makes the topic's queue known.
            for part in (frames[:1], frames[1:]):
                writer.write(b"".join(bytes(encode_frame(command)) for command in part))
                for _ in part:
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writer.close()
            after = stored(found)
            assert after.pop("orders") == before.pop("orders") + 3 * (len(CLOSED) + 2)
            assert after == before

    run(test)


@pytest.mark.parametrize(
    "path", ["send", "send v2", "batch", "batch v2", "delayed", "timed", "half", "compiled"]
)
def test_client_cannot_set_what_marks_messages_that_wait(tmp_path: Path, path: str) -> None:
    """REAL_TOPIC and REAL_QID of a client's message are taken out on every way, so that only the broker sets them."""

    async def test() -> None:
        async with broker(tmp_path, access=False) as (found, server), caller(None) as client:
            forged = properties(REAL_TOPIC="public", REAL_QID="7")
            now_ms = Runtime.system().clock.now_ms()
            v2, more = RequestCode.SEND_MESSAGE_V2, {}
            if path == "delayed":
                more = {"DELAY": "18"}
            elif path == "timed":
                more = {"TIMER_DELIVER_MS": str(now_ms + 3_600_000)}
            elif path == "half":
                more = {"TRAN_MSG": "true", "PGROUP": "p"}
            text = properties(REAL_TOPIC="public", REAL_QID="7", **more)
            fields = header("orders", text, sys_flag=4 if path == "half" else 0)
            if path.startswith("batch"):
                code = RequestCode.SEND_BATCH_MESSAGE if path == "batch" else v2
                one = header("orders", "", batch=True).encode()
                command = Command(code, one, batch_item(b"forged", forged))
            elif path == "send":
                command = Command(RequestCode.SEND_MESSAGE, fields.encode_v1(), b"forged")
            else:
                command = Command(v2, fields.encode(), b"forged")
            if path == "compiled":
                plain = paths("orders")["send v2"]
                assert (await client.call(server.broker_address, plain)).code == 0
            answer = await client.call(server.broker_address, command)
            assert answer.code == 0, answer.remark
            record = found.store.message_at(int(answer.fields["msgId"][-16:], 16))
            assert record is not None
            expected = ("orders", "0") if more else (None, None)
            assert tuple(map(record.properties.get, ("REAL_TOPIC", "REAL_QID"))) == expected

    run(test)


def test_security_page_shows_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating" / "security.md").read_text()
    rows = [
        f"| `{row.name}{'...' if row.is_prefix else ''}` | {row.writer.value} | {row.holds} |"
        for row in RESERVED_TOPICS
    ]
    assert "\n".join(rows) in page
