"""Staging over a socket: what is taken, what is refused and why, and that nobody sees any of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock._hot.layout import ITEM_REFUSALS
from penstock.broker.staging import Handle
from penstock.errors import RequestError
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import ROW_FIELD, StageMessagesRequestHeader
from penstock.protocol.topic_names import PUBLISHED_TOPIC, STAGED_TOPIC
from penstock.store import FlushMode, MessageStore
from penstock.store.inspection import verify
from tests.support.running_broker import (
    BORN,
    STORE,
    Bench,
    properties,
    records,
    run,
    running,
    send_fields,
)
from tests.support.staged import item, publish, request_body, shown, stage, staged, status


@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_staged_messages_are_in_no_queue_of_their_topic(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            answer = await stage(bench.client, [item(n, n % 4) for n in range(8)])
            assert answer.code == 0
            handle = Handle.parse(answer.fields["handle"])
            assert answer.fields["messages"] == "8"
            store = bench.broker.store
            record = store.message_at(handle.position)
            if flush is FlushMode.ASYNC:
                assert record is not None
                assert (record.topic, record.size) == (STAGED_TOPIC, handle.size)
                assert record.body == request_body([item(n, n % 4) for n in range(8)])
            assert shown(bench) == []
            if flush is FlushMode.ASYNC:
                [entry] = store.reader.entries(STAGED_TOPIC, 0, 0, 2)
                assert (entry.position, entry.size) == (handle.position, handle.size)
            assert store.reader.query("T", "k1") == []
            assert bench.broker.topics.get("T") is not None, "made as a send would make it"
            assert bench.broker.topics.get(STAGED_TOPIC) is None

    run(scenario)


def test_the_topics_of_publication_are_the_brokers_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await publish(bench.client, "q", 0, [await staged(bench.client, [item(1)])])
            for topic in (STAGED_TOPIC, PUBLISHED_TOPIC):
                assert (await bench.client.send(topic)).code == ResponseCode.NO_PERMISSION
                created = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
                assert (await bench.client.call(17, created)).code == ResponseCode.INVALID_PARAMETER
                assert (await bench.client.call(215, {"topic": topic})).code == ResponseCode.INVALID_PARAMETER
            assert (await bench.client.pull(STAGED_TOPIC)).code == ResponseCode.TOPIC_NOT_EXIST
            answer = await bench.client.pull(PUBLISHED_TOPIC)
            assert [record.tag for record in records(answer.body)] == ["begun", "done"]
        async with running(tmp_path) as bench:
            assert bench.broker.topics.get(STAGED_TOPIC) is None

    run(scenario)


def long_text(size: int) -> str:
    return properties(UNIQ_KEY="U", big="x" * size)


BAD_ITEMS: list[tuple[bytes, int]] = [
    (item(1, 4), 2),
    (item(1, -1), 2),
    (item(1, level=-1), 3),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02torn"), 4),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02\x01value\x02"), 4),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02name\x01\x02"), 4),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02name\x01a\x01b\x02"), 4),
    (encode_item(0, b"x", b"KEYS\x01k\x02"), 6),
    (encode_item(0, b"x", b""), 6),
    (encode_item(0, b"x", long_text(32_700).encode()), 7),
    (item(1)[:-1], 1),
    (item(1) + b"\0" * 21, 1),
    *(
        (item(1, **{name: "1"}), 5)
        for name in (
            "DELAY",
            "REAL_TOPIC",
            "REAL_QID",
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
            "WAIT",
            "POP_CK",
            "TRAN_MSG",
            "TIMER_DELAY_SEC",
            "TIMER_DELAY_MS",
            "TIMER_DELIVER_MS",
        )
    ),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02__CRC32#\x010\x02"), 5),
    (encode_item(0, b"x", b"UNIQ_KEY\x01U\x02__RMQ.TRANSIENT.a\x010\x02"), 5),
]


def test_a_message_that_cannot_be_one_is_named_and_nothing_is_staged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            end = bench.broker.store.log.max_offset
            for bad, why in BAD_ITEMS:
                answer = await stage(bench.client, [item(0), item(5), bad])
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert ITEM_REFUSALS[why] in (answer.remark or ""), (bad, answer.remark)
                assert answer.fields[ROW_FIELD] == ("3" if bad.endswith(b"\0" * 21) else "2")
            assert bench.broker.store.log.max_offset == end

    run(scenario)


def test_names_that_only_look_reserved_are_taken(tmp_path: Path) -> None:
    names = {
        "DELAYED": "1",
        "WAITS": "1",
        "CLUSTERS": "1",
        "TAGS": "t",
        "MSG": "1",
        "P": "1",
        "_": "1",
        "REAL": "x",
    }

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            handle = await staged(bench.client, [item(1, **names)])
            assert (await publish(bench.client, "q", 0, [handle])).code == 0
            [message] = bench.broker.store.read("T", 0, 0)
            assert names.items() <= message.properties.items()

    run(scenario)


REFUSED_TOPICS = {
    "no such name!": ResponseCode.INVALID_PARAMETER,
    "%RETRY%g": ResponseCode.MESSAGE_ILLEGAL,
    STAGED_TOPIC: ResponseCode.NO_PERMISSION,
    PUBLISHED_TOPIC: ResponseCode.NO_PERMISSION,
    "%DLQ%g": ResponseCode.NO_PERMISSION,
    "x" * 128: ResponseCode.MESSAGE_ILLEGAL,
}


def test_topics_that_nobody_may_send_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for topic, code in REFUSED_TOPICS.items():
                answer = await stage(bench.client, [item(0), item(1, 4)], (("T", 4), (topic, 1)))
                assert (answer.code, answer.fields[ROW_FIELD]) == (code, "1"), topic

    run(scenario)


def test_a_topic_is_made_only_where_sends_make_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_topics=False) as bench:
            answer = await stage(bench.client, [item(0, 3)])
            assert (answer.code, answer.fields[ROW_FIELD]) == (ResponseCode.TOPIC_NOT_EXIST, "0")
            bench.broker.topics.update(TopicConfig("T", 2, 2))
            answer = await stage(bench.client, [item(0, 1), item(1, 0), item(2, 3)])
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "queue 3" in (answer.remark or "")
            # The head may speak of more queues than there are, as long as no message goes to them.
            assert (await stage(bench.client, [item(0, 1), item(1, 0)])).code == 0

    run(scenario)


def test_a_topic_without_messages_is_not_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await stage(bench.client, [item(0)], (("T", 1), ("other", 1)))).code == 0
            assert bench.broker.topics.get("other") is None

    run(scenario)


def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            config = TopicConfig("T", 4, 4, attributes={"cleanup.policy": "COMPACTION"})
            bench.broker.topics.update(config)
            keyless = encode_item(1, b"x", b"UNIQ_KEY\x01U\x02")
            answer = await stage(bench.client, [item(0), keyless])
            assert (answer.code, answer.fields[ROW_FIELD]) == (ResponseCode.MESSAGE_ILLEGAL, "1")
            assert (await stage(bench.client, [item(0)])).code == 0

    run(scenario)


NO_REQUESTS = [
    b"",
    b"\0\0\0",
    b"\0\0\0\0",
    b"\0\0\0\xff" + b"T\x014\x02",
    b"\x7f\xff\xff\xff" + b"T\x014\x02",
    (5).to_bytes(4, "big") + b"T\x01\xff\x02 " + item(0),
    encode_head([("T", 4)]),
    (4).to_bytes(4, "big") + b"T\x01x\x02" + item(0),
    (4).to_bytes(4, "big") + b"T\x010\x02" + item(0),
    (3).to_bytes(4, "big") + b"T\x014" + item(0),
    (8).to_bytes(4, "big") + b"T\x014\x02T\x014\x02" + item(0),
    (8).to_bytes(4, "big") + b"T\x0199999\x02" + item(0),
]


@pytest.mark.abuse("A3")
def test_what_is_no_staging_request_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            header = StageMessagesRequestHeader(producer_group="g", born_timestamp=BORN)
            for body in NO_REQUESTS:
                answer = await bench.client.call(RequestCode.STAGE_MESSAGES, header.encode(), body)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (body, answer)
                assert (await bench.client.call(RequestCode.STAGE_MESSAGES, {}, body)).code != 0
            assert bench.broker.store.log.max_offset == 0

    run(scenario)


def test_sizes_are_limited_as_those_of_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, batch_count_max=10) as bench:
            assert (await stage(bench.client, [item(n) for n in range(10)])).code == 0
            assert (
                await stage(bench.client, [item(n) for n in range(11)])
            ).code == ResponseCode.MESSAGE_ILLEGAL
            too_large = await stage(bench.client, [item(0, size=STORE.max_message_size_bytes)])
            assert too_large.code == ResponseCode.MESSAGE_ILLEGAL
            assert (await status(bench.client, "q"))["stageBytesMax"] == str(STORE.max_message_size_bytes)

    run(scenario)


def test_a_slave_and_a_broker_that_stops_take_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "slave", broker_id=1) as bench:
            assert (await stage(bench.client, [item(0)])).code == ResponseCode.SYSTEM_BUSY
            assert (await publish(bench.client, "q", 0, ["1.1.1.k"])).code == ResponseCode.SYSTEM_BUSY
        async with running(tmp_path / "stopping") as bench:
            bench.broker.rules.is_stopping = True
            assert (await stage(bench.client, [item(0)])).code == ResponseCode.SERVICE_NOT_AVAILABLE
            answer = await publish(bench.client, "q", 0, ["1.1.1.k"])
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(scenario)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2.3", "1.2.3.", "1.2.3.4.5", "-1.2.3.k", "a.2.3.k", "1.2.3." + "k" * 65, "¹.2.3.k"]
)
@pytest.mark.abuse("A3")
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(RequestError, match="handle"):
        Handle.parse(text)


def test_a_handle_as_text_is_the_same_handle() -> None:
    handle = Handle(1 << 40, 12, 3, "0A")
    assert Handle.parse(str(handle)) == handle


def test_a_store_with_staged_and_published_messages_is_sound(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=False) as bench:
            for batch in range(3):
                rows = range(batch * 40, batch * 40 + 40)
                handle = await staged(bench.client, [item(n, n % 4, size=200) for n in rows])
                assert (await publish(bench.client, "q", batch, [handle])).code == 0
                await staged(bench.client, [item(n) for n in rows])  # left behind
                assert (await bench.client.call(310, send_fields("T"), b"between")).code == 0
            assert len(shown(bench)) == 123

    run(scenario)
    with MessageStore.open(tmp_path, STORE, read_only=True) as store:
        assert len([m for q in range(4) for m in store.read("T", q, 0, 1000)]) == 123
    report = verify(tmp_path)
    assert report.sound, report.issues


def test_permissions_of_the_published_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await _publish_one(bench)
            config = bench.broker.topics.get(PUBLISHED_TOPIC)
            assert config is not None
            assert (config.perm, config.read_queue_nums) == (Permission.READ, 1)

    run(scenario)


async def _publish_one(bench: Bench) -> None:
    handle = await staged(bench.client, [item(1)])
    assert (await publish(bench.client, "q", 0, [handle])).code == 0
