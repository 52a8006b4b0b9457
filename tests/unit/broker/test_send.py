"""Sends over real sockets: every check with its code, what is stored, and what the answer says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CallTimeoutError
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import DURABILITY_FIELD, SendMessageRequestHeader
from penstock.store import FlushMode
from tests.support.running_broker import (
    BORN,
    STORE,
    Bench,
    batch_item,
    properties,
    records,
    run,
    running,
    send_fields,
)

SYNC = replace(STORE, flush_mode=FlushMode.SYNC)


async def stored(bench: Bench, topic: str = "T", queue: int = 0, offset: int = 0) -> list:
    return records((await bench.client.pull(topic, queue, offset)).body)


# -- what works ----------------------------------------------------------------------------------------------


@pytest.mark.feature("sends", "fifth-seed")
@pytest.mark.seed("S2-53")
@pytest.mark.seed("S2-54")
@pytest.mark.seed("S2-55")
@pytest.mark.seed("S2-56")
@pytest.mark.seed("S2-57")
@pytest.mark.seed("S2-58")
@pytest.mark.seed("S4-8")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("binary", [False, True])
def test_a_message_is_stored_as_it_was_sent(tmp_path: Path, code: int, binary: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=False) as bench:
            fields = send_fields(
                props=properties(TAGS="a", KEYS="k1 k2", WAIT="true", mine="x", UNIQ_KEY="U1")
            )
            if code == RequestCode.SEND_MESSAGE:
                fields = SendMessageRequestHeader.decode_v2(fields).encode_v1()
            answer = await bench.client.call(code, fields, b"body", binary=binary)
            assert (answer.code, answer.remark, answer.binary) == (0, None, binary)
            assert answer.fields["queueId"] == "0"
            assert answer.fields["queueOffset"] == "0"
            assert answer.fields["transactionId"] == "U1"
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert answer.fields["TRACE_ON"] == "true"
            assert answer.fields[DURABILITY_FIELD] == "memory"
            [message] = await stored(bench)
            assert (message.topic, message.body, message.queue_id) == ("T", b"body", 0)
            assert (message.flag, message.born_timestamp, message.reconsume_times) == (7, BORN, 0)
            assert message.properties == {
                "TAGS": "a",
                "KEYS": "k1 k2",
                "mine": "x",
                "UNIQ_KEY": "U1",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "CLUSTER": "DefaultCluster",
            }
            [connection] = bench.broker.connections
            assert message.born_host == connection.peer
            assert answer.fields["msgId"] == message.message_id

    run(scenario)


def test_the_address_a_client_dialled_is_in_its_ids_unless_one_is_advertised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "dialled", host="0.0.0.0") as bench:
            port = bench.broker.address.rpartition(":")[2]
            for dialled, hexed in (("127.0.0.1", "7F000001"), ("127.0.0.2", "7F000002")):
                client = bench.connect()
                client.address = f"{dialled}:{port}"
                answer = await client.send()
                assert answer.fields["msgId"].startswith(f"{hexed}{int(port):08X}")
        async with running(tmp_path / "told", advertised_address="10.1.2.3:4567") as bench:
            client = bench.connect()
            client.address = str(bench.broker.listening())
            answer = await client.send()
            assert answer.fields["msgId"].startswith(f"0A010203{4567:08X}")
            assert (await client.send()).fields["msgId"].startswith("0A010203")

    run(scenario)


def test_a_unique_key_is_made_where_none_was_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=False) as bench:
            made = [(await bench.client.send()).fields["transactionId"] for _ in range(3)]
            assert len(set(made)) == 3
            assert all(len(key) == 32 and key == key.upper() for key in made)
            assert [m.properties["UNIQ_KEY"] for m in await stored(bench)] == made

    run(scenario)


def test_properties_that_are_the_brokers_are_replaced_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, region_id="north", trace_on=False, fast=False) as bench:
            text = "a\x011\x02" + properties(
                POP_CK="1 2 3", MSG_REGION="lie", TRACE_ON="true", CLUSTER="lie", WAIT="false", UNIQ_KEY="U"
            )
            text += "__RMQ.TRANSIENT.x\x01y\x02__CRC32#\x0112345678\x02z\x01last"
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, send_fields(props=text), b"x")
            assert answer.fields["MSG_REGION"] == "north"
            assert answer.fields["TRACE_ON"] == "false"
            [message] = await stored(bench)
            assert message.properties == {
                "a": "1",
                "UNIQ_KEY": "U",
                "z": "last",
                "MSG_REGION": "north",
                "TRACE_ON": "false",
                "CLUSTER": "DefaultCluster",
            }

    run(scenario)


@pytest.mark.seed("S4-69")
@pytest.mark.seed("S4-72")
def test_an_unknown_topic_is_made_from_its_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send("New")).code == 0
            made = bench.broker.topics.get("New")
            assert made is not None
            assert (made.read_queue_nums, made.write_queue_nums, int(made.perm)) == (4, 4, 6)

    run(scenario)


def test_a_negative_queue_lets_the_broker_choose(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=False) as bench:
            chosen = {int((await bench.client.send(queue=-1)).fields["queueId"]) for _ in range(60)}
            assert chosen == {0, 1, 2, 3}

    run(scenario)


@pytest.mark.seed("S2-51")
def test_a_one_way_send_is_stored_and_never_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            connection = await bench.client.remoting.connection(bench.broker.address)
            for fields in (send_fields(), send_fields("no spaces")):
                connection.send(Command(RequestCode.SEND_MESSAGE_V2, fields, b"one"))
            command = Command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"two", flag=2)
            with pytest.raises(CallTimeoutError):
                await connection.call(command, 300)
            assert [m.body for m in await stored(bench)] == [b"one", b"two"]

    run(scenario)


# -- refusals, in the order of the checks --------------------------------------------------------------------

REFUSALS = {
    "a name with a slash": (send_fields("a/b"), ResponseCode.INVALID_PARAMETER, "invalid topic name"),
    "a name of dots": (send_fields(".."), ResponseCode.INVALID_PARAMETER, "invalid topic name"),
    "an empty name": (send_fields(""), ResponseCode.INVALID_PARAMETER, "invalid topic name"),
    "a long name": (send_fields("a" * 128), ResponseCode.INVALID_PARAMETER, "invalid topic name"),
    "the schedule topic": (send_fields("SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION, "reserved"),
    "the half topic": (send_fields("RMQ_SYS_TRANS_HALF_TOPIC"), ResponseCode.NO_PERMISSION, "reserved"),
    "the model topic": (send_fields("TBW102"), ResponseCode.NO_PERMISSION, "reserved"),
    "dead letters": (send_fields("%DLQ%group"), ResponseCode.NO_PERMISSION, "reserved"),
    "no model": (send_fields("New", c="Nothing"), ResponseCode.TOPIC_NOT_EXIST, "no model topic"),
    "no such queue": (send_fields(queue=4), ResponseCode.INVALID_PARAMETER, "queue 4 is illegal"),
    "no born time": (send_fields(g=None), ResponseCode.SYSTEM_ERROR, "no field 'g'"),
    "a queue of letters": (send_fields(e="x"), ResponseCode.SYSTEM_ERROR, "'e' is no number"),
    "properties that fit no record": (
        send_fields(props=properties(big="x" * 32_700)),
        ResponseCode.MESSAGE_ILLEGAL,
        "properties take",
    ),
    "a delay that is no number": (
        send_fields(props=properties(DELAY="soon")),
        ResponseCode.MESSAGE_ILLEGAL,
        "no delay level",
    ),
    "a delay in the past": (
        send_fields(props=properties(DELAY="-1")),
        ResponseCode.MESSAGE_ILLEGAL,
        "no delay level",
    ),
    "a delay for ever": (
        send_fields(props=properties(DELAY="9223372036854775807")),
        ResponseCode.MESSAGE_ILLEGAL,
        "no delay level",
    ),
    "a timer": (
        send_fields(props=properties(TIMER_DELIVER_MS="9223372036854775807")),
        ResponseCode.MESSAGE_ILLEGAL,
        "timer",
    ),
    "a flag that says prepared": (send_fields(f=4), ResponseCode.MESSAGE_ILLEGAL, "transactional"),
    "a durability nobody has": (
        send_fields(**{DURABILITY_FIELD: "eternal"}),
        ResponseCode.MESSAGE_ILLEGAL,
        "cannot be had",
    ),
    "replicas where there are none": (
        send_fields(**{DURABILITY_FIELD: "replicated"}),
        ResponseCode.SYSTEM_ERROR,
        "IN_SYNC_REPLICAS_NOT_ENOUGH",
    ),
}


@pytest.mark.abuse("A6")
@pytest.mark.abuse("A7")
@pytest.mark.abuse("A18")
@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.replace(" ", "-"))
def test_a_refusal_says_what_is_wrong_and_stores_nothing(tmp_path: Path, case: str) -> None:
    fields, code, words = REFUSALS[case]

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for _ in range(2):  # so that the compiled way knows the topic
                assert (await bench.client.send(body=b"good")).code == 0
            before = bench.broker.store.log.max_offset
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"bad")
            assert (answer.code, words in (answer.remark or "")) == (code, True), answer.remark
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert answer.fields["TRACE_ON"] == "true"
            assert bench.broker.store.log.max_offset == before
            assert (await bench.client.send(body=b"good")).code == 0

    run(scenario)


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            limit = STORE.max_message_size_bytes
            for _ in range(2):
                assert (await bench.client.send(body=b"x" * limit)).code == 0
                answer = await bench.client.send(body=b"x" * (limit + 1))
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert str(limit) in (answer.remark or "")

    run(scenario)


def test_without_auto_creation_an_unknown_topic_is_not_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_topics=False) as bench:
            assert (await bench.client.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
            assert bench.broker.topics.get("New") is None

    run(scenario)


def test_a_slave_and_a_broker_that_is_not_open_yet_take_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "slave", broker_id=1) as bench:
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[REJECTREQUEST]")
        async with running(tmp_path / "later", accept_sends_from_ms=2**60) as bench:
            answer = await bench.client.send()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "does not accept messages yet" in (answer.remark or "")

    run(scenario)


def test_without_write_permission_only_ordered_topics_are_refused(tmp_path: Path) -> None:
    """Ordinary topics are closed through their routes, as in RocketMQ."""

    async def scenario() -> None:
        async with running(tmp_path, permission=4) as bench:
            bench.broker.topics.update(TopicConfig("Ordered", 1, 1, Permission(6), order=True))
            for _ in range(2):
                assert (await bench.client.send("Ordered")).code == ResponseCode.NO_PERMISSION
                assert (await bench.client.send("T")).code == 0

    run(scenario)


def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            compacted = TopicConfig("C", 1, 1, Permission(6), attributes={"cleanup.policy": "COMPACTION"})
            bench.broker.topics.update(compacted)
            for _ in range(2):
                assert (await bench.client.send("C", KEYS="k")).code == 0
                assert (await bench.client.send("C")).code == ResponseCode.MESSAGE_ILLEGAL

    run(scenario)


def test_a_topic_of_many_tags_marks_its_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bench.broker.topics.update(TopicConfig("M", 1, 1, Permission(6), filter_type="MULTI_TAG"))
            fields = send_fields("M", f=1 | 0xC0 | 0x30)
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == 0
            [message] = await stored(bench, "M")
            assert message.sys_flag == 0x1 | 0x2

    run(scenario)


# -- retries and dead letters --------------------------------------------------------------------------------


def test_a_retry_goes_to_its_topic_and_after_too_many_to_the_dead_letters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for tries, most, topic, level in (
                (1, 3, "%RETRY%g", 0),
                (4, 3, "%DLQ%g", 0),
                (17, None, "%DLQ%g", 1),
            ):
                fields = send_fields("%RETRY%g", props=properties(DELAY=str(level)), j=tries, l=most)
                answer = await bench.client.call(
                    RequestCode.SEND_MESSAGE_V2, fields, b"%d" % tries, version=401
                )
                assert answer.code == 0
                message = (await stored(bench, topic))[-1]
                assert (message.body, message.reconsume_times) == (b"%d" % tries, tries)
            config = bench.broker.topics.get("%DLQ%g")
            assert config is not None
            assert (config.write_queue_nums, int(config.perm)) == (1, 6)

    run(scenario)


def test_an_old_client_has_no_say_in_the_number_of_tries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            fields = send_fields("%RETRY%g", j=2, l=1)
            await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x", version=100)
            assert len(await stored(bench, "%RETRY%g")) == 1

    run(scenario)


def test_a_group_that_holds_locks_is_not_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send("T")
            body = (
                b'{"clientId":"c","consumerGroup":"g","mqSet":'
                b'[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
            )
            assert (await bench.client.call(RequestCode.LOCK_BATCH_MQ, body=body)).code == 0
            fields = send_fields("%RETRY%g", props=properties(DELAY="2"), j=1)
            assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x", version=401)).code == 0
            [message] = await stored(bench, "%DLQ%g")
            assert message.properties["DELAY"] == "-1"

    run(scenario)


def test_a_retry_for_a_group_that_may_not_be_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_groups=False) as bench:
            answer = await bench.client.send("%RETRY%nobody")
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert bench.broker.topics.get("%RETRY%nobody") is None

    run(scenario)


# -- batches -------------------------------------------------------------------------------------------------


async def send_batch(bench: Bench, body: bytes, **fields: object) -> Command:
    return await bench.client.call(
        RequestCode.SEND_BATCH_MESSAGE, send_fields(**({"m": "true"} | fields)), body
    )


@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_batch_lies_together_and_is_answered_with_all_ids(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            await bench.client.send(body=b"first")
            items = [batch_item(b"m%d" % i, properties(TAGS="t", UNIQ_KEY=f"U{i}"), flag=i) for i in range(3)]
            answer = await send_batch(bench, b"".join(items), props=properties(UNIQ_KEY="B"))
            assert answer.code == 0
            assert answer.fields["queueOffset"] == "1"
            assert "batchUniqId" not in answer.fields
            messages = (await stored(bench))[1:]
            assert [m.body for m in messages] == [b"m0", b"m1", b"m2"]
            assert [m.flag for m in messages] == [0, 1, 2]
            assert [m.queue_offset for m in messages] == [1, 2, 3]
            added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
            assert [m.properties for m in messages] == [
                {"TAGS": "t", "UNIQ_KEY": f"U{i}", **added} for i in range(3)
            ]
            assert answer.fields["msgId"] == ",".join(m.message_id for m in messages)

    run(scenario)


def test_messages_of_a_batch_keep_that_they_do_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            items = [batch_item(b"", properties(WAIT=wait)) for wait in ("true", "false", "no")]
            assert (await send_batch(bench, b"".join(items))).code == 0
            assert [m.properties.get("WAIT") for m in await stored(bench)] == [None, "false", "no"]

    run(scenario)


GOOD = batch_item(b"good")
BATCHES = {
    "a size that is too small": (GOOD + (5).to_bytes(4, "big") + bytes(18), {}),
    "a size beyond the end": (GOOD + (10_000).to_bytes(4, "big") + bytes(18), {}),
    "a negative size": (GOOD + (-1).to_bytes(4, "big", signed=True) + bytes(18), {}),
    "a body beyond its message": (
        GOOD + (30).to_bytes(4, "big") + bytes(12) + (2**31 - 1).to_bytes(4, "big") + bytes(10),
        {},
    ),
    "properties beyond their message": (GOOD[:-2] + b"\x7f\xff", {}),
    "a tail that is no message": (GOOD + b"tail", {}),
    "nothing": (b"", {}),
    "a delay inside": (GOOD + batch_item(b"x", properties(DELAY="1")), {}),
    "a transaction inside": (GOOD + batch_item(b"x", properties(TRAN_MSG="true")), {}),
    "a timer inside": (GOOD + batch_item(b"x", properties(TIMER_DELAY_SEC="5")), {}),
    "a transaction flag": (GOOD, {"f": 4}),
    "too many messages": (batch_item(b"") * 51, {}),
    "too many bytes": (batch_item(b"x" * 40_000) * 2, {}),
    "the retry topic": (GOOD, {"topic": "%RETRY%g"}),
}


@pytest.mark.abuse("A5")
@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case.replace(" ", "-"))
def test_a_batch_that_is_wrong_anywhere_is_refused_whole(tmp_path: Path, case: str) -> None:
    body, fields = BATCHES[case]

    async def scenario() -> None:
        async with running(tmp_path, batch_count_max=50) as bench:
            await bench.client.send()
            before = bench.broker.store.log.max_offset
            answer = await send_batch(bench, body, **fields)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert bench.broker.store.log.max_offset == before
            assert (await send_batch(bench, batch_item(b"DELAY\x011\x02", properties(DELAY="0")))).code == 0

    run(scenario)


# -- durability ----------------------------------------------------------------------------------------------


@pytest.mark.seed("S0-32")
@pytest.mark.seed("S3-52")
@pytest.mark.seed("S3-53")
@pytest.mark.parametrize("fast", [False, True])
def test_the_answer_comes_when_the_message_is_as_safe_as_asked(tmp_path: Path, fast: bool) -> None:
    async def scenario() -> None:
        for flush, demand, reached in (
            (FlushMode.ASYNC, None, "memory"),
            (FlushMode.ASYNC, "default", "memory"),
            (FlushMode.ASYNC, "memory", "memory"),
            (FlushMode.ASYNC, "flushed", "flushed"),
            (FlushMode.SYNC, None, "flushed"),
            (FlushMode.SYNC, "default", "flushed"),
            (FlushMode.SYNC, "flushed", "flushed"),
            (FlushMode.SYNC, "memory", "memory"),
        ):
            store = replace(
                STORE, flush_mode=flush, flush_interval_ms=600_000, flush_thorough_interval_ms=600_000
            )
            async with running(tmp_path / f"{flush.value}{demand}", store=store, fast=fast) as bench:
                for number in range(3):
                    fields = send_fields(**{DURABILITY_FIELD: demand} if demand else {})
                    answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
                    assert answer.code == 0
                    assert answer.fields.get(DURABILITY_FIELD) == reached
                    flushed = bench.broker.store.flusher.flushed_offset
                    if "flushed" in (reached, demand) or (flush is FlushMode.SYNC and demand is None):
                        assert flushed == bench.broker.store.log.max_offset
                    elif number == 0 and flush is FlushMode.ASYNC:
                        assert flushed < bench.broker.store.log.max_offset

    run(scenario)


def test_a_client_that_does_not_wait_is_answered_before_the_flush(tmp_path: Path) -> None:
    """And the message is visible soon all the same, although nobody waits for it."""

    async def scenario() -> None:
        async with running(tmp_path, store=SYNC, fast=False) as bench:
            flushes = []
            original = bench.broker.flusher.when_flushed  # type: ignore[union-attr]

            def when_flushed(position: int, callback: object) -> None:
                flushes.append(position)
                original(position, callback)  # type: ignore[arg-type]

            bench.broker.flusher.when_flushed = when_flushed  # type: ignore[union-attr, method-assign]
            answer = await bench.client.send(WAIT="false")
            assert answer.code == 0
            assert len(flushes) == 1
            assert bench.broker.flow.waiting == 0
            pulled = await bench.client.pull(wait_ms=50_000)
            assert [m.body for m in records(pulled.body)] == [b"hello"]

    run(scenario)


def test_many_senders_share_flushes_and_nothing_is_left_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=SYNC) as bench:
            answers = await asyncio.gather(*(bench.client.send(body=b"%d" % i) for i in range(300)))
            assert {answer.code for answer in answers} == {0}
            assert sorted(int(answer.fields["queueOffset"]) for answer in answers) == list(range(300))
            assert bench.broker.flow.waiting == bench.broker.flow.waiting_bytes == 0

    run(scenario)
