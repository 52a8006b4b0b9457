"""Traces: the bytes that RocketMQ's clients write, what is written about real messages, and what is dropped."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import penstock
from penstock.client import tracing
from penstock.client.admin import Admin
from penstock.client.async_producer import AsyncProducer
from penstock.client.received import RETRY, ReceivedMessage
from penstock.client.trace_records import (
    TRACE_TOPIC,
    ConsumeCode,
    MessageKind,
    TraceKind,
    TraceRecord,
    completed,
    decode,
    encode,
)
from penstock.client.tracing import KEYS_CHARS_MAX, RECORDS_MAX, keys_of, parts_of
from penstock.errors import ResponseError
from penstock.protocol.recall import RecallHandle
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen
from tests.waiting import wait_until

PUB = TraceRecord(
    TraceKind.PUB,
    "AC11",
    1_700_000_000_000,
    region="DefaultRegion",
    group="pg",
    topic="T",
    tag="t",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_size=5,
    cost_ms=3,
    message_kind=MessageKind.DELAYED,
    offset_msg_id="7F00",
    client_host="10.0.0.1",
)
BEFORE = TraceRecord(
    TraceKind.SUB_BEFORE, "AC11", 5, region="DefaultRegion", group="cg", request_id="R", tries=2, keys="k"
)
AFTER = TraceRecord(
    TraceKind.SUB_AFTER, "AC11", 9, group="cg", request_id="R", cost_ms=4, keys="k", code=ConsumeCode.FAILED
)
TEXTS = {
    "Pub|1700000000000|DefaultRegion|pg|T|AC11|t|k1 k2|127.0.0.1:10911|5|3|3|7F00|true|10.0.0.1": PUB,
    "SubBefore|5|DefaultRegion|cg|R|AC11|2|k": BEFORE,
    "SubAfter|R|AC11|4|false|k|4|9|cg": replace(AFTER, is_success=False),
    "EndTransaction|7|null|pg|T|AC11|null|null|h:1|2|TX|COMMIT_MESSAGE|true": TraceRecord(
        TraceKind.END_TRANSACTION,
        "AC11",
        7,
        group="pg",
        topic="T",
        store_host="h:1",
        message_kind=MessageKind.COMMITTED,
        transaction_id="TX",
        state="COMMIT_MESSAGE",
        from_check=True,
    ),
    "Recall|8|r|pg|T|AC11|false": TraceRecord(
        TraceKind.RECALL, "AC11", 8, region="r", group="pg", topic="T", is_success=False
    ),
}


def wire(text: str) -> str:
    return text.replace("|", "\x01") + "\x02"


@pytest.mark.parametrize("text", TEXTS)
def test_records_are_written_and_read_as_rocketmq_does(text: str) -> None:
    assert encode(TEXTS[text]) == wire(text)
    assert decode(wire(text)) == [TEXTS[text]]


def test_older_clients_left_things_out() -> None:
    [old] = decode(wire("Pub|1|r|g|T|ID|null|null|h|5|3|0|true"))
    assert (old.is_success, old.offset_msg_id, old.tag) == (True, "", "")
    [newer] = decode(wire("Pub|1|r|g|T|ID|null|null|h|5|3|0|OFF|false"))
    assert (newer.is_success, newer.offset_msg_id) == (False, "OFF")
    records = decode(wire("SubBefore|5|r|cg|R|ID|1|null") + wire("SubAfter|R|ID|4|true|null|0"))
    _, after = completed(records)
    assert (after.group, after.time_ms, after.tries) == ("cg", 9, 1)


@pytest.mark.parametrize(
    "text",
    ["", "Pub", "Pub|x|r|g|T|ID|t|k|h|5|3|0|true", f"Recall|{2**70}|r|g|T|ID|true", "Other|1", "SubAfter|R"],
)
def test_what_is_no_record_is_skipped(text: str) -> None:
    assert decode(wire(text) + encode(PUB)) == [PUB]


def test_separators_in_values_do_no_harm() -> None:
    [read] = decode(encode(replace(PUB, keys="a\x01b\x02c")))
    assert read.keys == "a b c"


def test_parts_fit_a_message_and_are_found_by_their_ids() -> None:
    many = [replace(PUB, msg_id=f"{number:032X}", keys=f"key{number}") for number in range(1_000)]
    parts = list(parts_of(many))
    assert [record for part in parts for record in part] == many
    assert max(map(len, parts)) <= RECORDS_MAX
    for part in parts:
        words = keys_of(part).split()
        assert {record.msg_id for record in part} <= set(words)
        assert len(keys_of(part)) <= KEYS_CHARS_MAX
    [huge] = parts_of([replace(PUB, keys="k" * 30_000)])
    assert keys_of(huge) == "AC11"


# -- against a broker --------------------------------------------------------------------------------------------


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


def told(records: list[TraceRecord]) -> list[tuple[str, str, bool]]:
    return [(str(record.kind), record.group, record.is_success) for record in records]


def test_the_life_of_a_message(address: str) -> None:
    seen = Seen(lambda message: None if message.tries else RETRY)
    with (
        penstock.Producer(address, group="pg", trace=True) as producer,
        penstock.Consumer(address, group="cg", start_from="first", listener=seen, trace=True) as consumer,
    ):
        consumer.subscribe("T")
        result = producer.send("T", b"hello", tag="t", keys="k1 k2")
        wait_until(lambda: len(seen.messages) == 2)
    with Admin(address) as admin:
        records = admin.trace_message(result.msg_id)
        assert told(records) == [
            ("Pub", "pg", True),
            ("SubBefore", "cg", True),
            ("SubAfter", "cg", False),
            ("SubBefore", "cg", True),
            ("SubAfter", "cg", True),
        ]
        pub = records[0]
        assert (pub.topic, pub.tag, pub.keys, pub.body_size) == ("T", "t", "k1 k2", 5)
        assert (pub.offset_msg_id, pub.region) == (result.offset_msg_id, "DefaultRegion")
        assert pub.store_host.startswith("127.0.0.1:")
        assert [record.tries for record in records[1:]] == [0, 0, 1, 1]
        assert records[1].request_id == records[2].request_id != records[3].request_id
        assert admin.trace_message("nobody") == []
        # Also by a key of the message.
        assert admin.query_messages(TRACE_TOPIC, "k2")


def test_batches_keyed_delayed_and_polled_messages(address: str) -> None:
    with penstock.Producer(address, group="pg", trace=True, linger_ms=5) as producer:
        keyed = producer.send("T", b"1", queue_key="a")
        delayed = producer.send("T", b"2", delay_level=1)
        batch = producer.send_batch([penstock.Message.of("T", b"%d" % number) for number in range(5)])
    with penstock.Consumer(address, group="cg", start_from="first", trace=True) as consumer:
        consumer.subscribe("T")
        found: list[ReceivedMessage] = []
        wait_until(lambda: len(found) >= 7 or bool(found.extend(consumer.poll(10, 0.2))))
    with Admin(address) as admin:
        kinds = {
            result.msg_id: admin.trace_message(result.msg_id)[0].message_kind for result in (keyed, delayed)
        }
        assert list(kinds.values()) == [MessageKind.ORDERED, MessageKind.DELAYED]
        for result in batch:
            assert told(admin.trace_message(result.msg_id)) == [
                ("Pub", "pg", True),
                ("SubBefore", "cg", True),
                ("SubAfter", "cg", True),
            ]


def test_without_the_option_and_where_the_broker_says_no_nothing_is_written(address: str) -> None:
    with penstock.Producer(address) as producer:
        producer.send("T", b"x")
        assert producer.trace_counts is None
    with broker(trace_on=False) as silent, penstock.Producer(silent, trace=True) as producer:
        result = producer.send("T", b"x")
        producer.close()
        with Admin(silent) as admin:
            assert admin.trace_message(result.msg_id) == []


def test_sends_never_wait_for_traces_and_what_is_dropped_is_counted(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "WAITING_MAX", 10)
    monkeypatch.setattr(tracing, "INTERVAL_S", 3_600)

    async def scenario() -> None:
        async with AsyncProducer(address, trace=True) as producer:
            for _ in range(25):
                await producer.send("T", b"x")
            counts = producer.trace_counts
            assert counts is not None
            assert (counts.dropped, counts.written) == (15, 0)
        assert counts.written == 10

    asyncio.run(scenario())


def test_traces_that_cannot_be_written_are_counted_and_nothing_else(address: str) -> None:
    with Admin(address) as admin:
        admin.create_topic("closed-traces", permission=4)
    with penstock.Producer(address, trace=True, trace_topic="closed-traces") as producer:
        assert producer.send("T", b"x").is_ok
        wait_until(lambda: producer.trace_counts is not None and producer.trace_counts.failed == 1)
    with pytest.raises(penstock.OptionError):
        penstock.Producer(address, trace=True, trace_topic="no topic")


class Committing:
    """A transaction listener that knows that everything was done."""

    def check(self, message: ReceivedMessage) -> penstock.TransactionState:
        return penstock.TransactionState.COMMIT


def test_ends_of_transactions_are_traced(address: str) -> None:
    with penstock.Producer(address, group="pg", trace=True) as producer:
        with producer.transaction("T", b"1", tag="t", keys="k1") as kept:
            pass
        with pytest.raises(KeyError), producer.transaction("T", b"2") as dropped:
            raise KeyError
        with producer.transaction("T", b"3") as left:
            left.unknown()
    with Admin(address) as admin:
        for transaction, state in (
            (kept, "COMMIT_MESSAGE"),
            (dropped, "ROLLBACK_MESSAGE"),
            (left, "UNKNOW"),
        ):
            pub, ended = admin.trace_message(transaction.msg_id)
            assert (pub.kind, pub.message_kind) == (TraceKind.PUB, MessageKind.HALF)
            assert (ended.kind, ended.state, ended.from_check) == (TraceKind.END_TRANSACTION, state, False)
            assert (ended.group, ended.topic, ended.region) == ("pg", "T", "DefaultRegion")
            assert ended.message_kind == MessageKind.COMMITTED
            assert ended.transaction_id == transaction.result.transaction_id
            assert ended.store_host == pub.store_host
        ended = admin.trace_message(kept.msg_id)[1]
        assert (ended.tag, ended.keys) == ("t", "k1")


def test_an_end_that_a_broker_asked_for_is_traced_as_such() -> None:
    with (
        broker(transaction_check_interval_ms=100, transaction_timeout_ms=50, store=QUICK) as address,
        penstock.Producer(address, "pg", trace=True, transaction_listener=Committing()) as producer,
        Admin(address) as admin,
    ):
        with producer.transaction("T", b"1", keys="k1") as transaction:
            transaction.unknown()

        def ends() -> list[TraceRecord]:
            found = admin.trace_message(transaction.msg_id)
            return [record for record in found if record.kind is TraceKind.END_TRANSACTION]

        wait_until(lambda: len(ends()) >= 2)
        asked = next(record for record in ends() if record.from_check)
        assert (asked.state, asked.topic, asked.keys) == ("COMMIT_MESSAGE", "T", "k1")
        assert asked.store_host.startswith("127.0.0.1:")


def test_recalls_are_traced(address: str) -> None:
    with penstock.Producer(address, group="pg", trace=True) as producer:
        soon = time.time() + 60
        sent = producer.send("T", b"1", deliver_at=soon)
        assert producer.recall(sent.recall_handle) == sent.msg_id
        over = RecallHandle.decode(sent.recall_handle)._replace(time_ms=1).encode()
        with pytest.raises(ResponseError):
            producer.recall(over)
    with Admin(address) as admin:
        records = admin.trace_message(sent.msg_id)
    assert told(records) == [("Pub", "pg", True), ("Recall", "pg", True), ("Recall", "pg", False)]
    assert {(record.topic, record.region) for record in records} == {("T", "DefaultRegion")}
