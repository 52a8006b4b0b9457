"""What a program hears of a wrong call: at once, by the name of what it called, with what would be right."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.client.sender import Sender
from penstock.errors import (
    ClientClosedError,
    ClientError,
    CodecError,
    FilterError,
    MessageError,
    OptionError,
    PenstockError,
    SendFailedError,
    TopicNameError,
)


@pytest.fixture
def producer(penstock_broker: str) -> Iterator[penstock.Producer]:
    with penstock.Producer(penstock_broker) as found:
        yield found


@pytest.mark.parametrize(
    ("function", "wrong", "words"),
    [
        ("send", "tags", "send() got an unexpected argument 'tags'; did you mean tag?"),
        ("send_async", "tags", "send_async() got an unexpected argument 'tags'; did you mean tag?"),
        ("send_oneway", "tags", "send_oneway() got an unexpected argument 'tags'; did you mean tag?"),
        (
            "enqueue",
            "on_results",
            "enqueue() got an unexpected argument 'on_results'; did you mean on_result?",
        ),
        ("request", "timeout", "request() got an unexpected argument 'timeout'; did you mean timeout_ms?"),
        ("send", "zzz", "send() got an unexpected argument 'zzz'"),
    ],
)
def test_an_unknown_argument_names_the_public_function(
    producer: penstock.Producer, function: str, wrong: str, words: str
) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(producer, function)("T", b"x", **{wrong: "a"})
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"keys": 7}, "keys is 7; use text, or a list of texts"),
        ({"keys": [7]}, "keys is [7]; use text, or a list of texts"),
        ({"keys": b"k"}, "keys is b'k'; use text, or a list of texts"),
        ({"tag": 7}, "tag is 7; use text"),
        ({"queue_key": 7}, "queue_key is 7; use text"),
        ({"queue": 3}, "queue is 3; use one of producer.queues(topic)"),
        ({"flag": "x"}, "flag is 'x'; use a whole number"),
        ({"properties": [1]}, "properties are [1]; use a mapping"),
        ({"properties": {"a": 7}}, "property 'a' is 7; names and values of properties are text"),
        ({"properties": {7: "a"}}, "property 7 is 'a'; names and values of properties are text"),
    ],
)
def test_a_part_of_a_wrong_type_is_refused_by_its_name(
    producer: penstock.Producer, parts: dict[str, Any], words: str
) -> None:
    producer.send("T", b"the topic is known from now on, so sends take the quick way")
    with pytest.raises(MessageError) as caught:
        producer.send("T", b"x", **parts)
    assert str(caught.value).startswith(words)
    assert producer.send("T", b"x").is_ok, "the producer works after a wrong call"


@pytest.mark.parametrize("client", [penstock.Producer, penstock.Consumer, penstock.Admin])
@pytest.mark.parametrize("wrong", [None, 7, b"127.0.0.1:9876", [None]])
def test_addresses_that_are_no_text(client: type, wrong: object) -> None:
    with pytest.raises(OptionError, match=r"not an address: .*; write it as text"):
        client(wrong)


@pytest.mark.parametrize("wrong", ["a b", "", None, "ä", "a" * 256])
def test_names_of_groups(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"group is .*; use 1 to 255 letters"):
        penstock.Producer("127.0.0.1:1", group=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"expression": None}, "expression is None"),
        ({"sql": 7}, "sql is 7"),
        ({"keys": [7]}, "a key is '7'"),
    ],
)
def test_subscriptions_of_a_wrong_type(penstock_broker: str, parts: dict[str, Any], words: str) -> None:
    with penstock.Consumer(penstock_broker, "g") as consumer, pytest.raises(OptionError, match=words):
        consumer.subscribe("T", **parts)


def test_fewer_queues_need_shrink(penstock_broker: str) -> None:
    with penstock.Admin(penstock_broker) as admin:
        admin.create_topic("Wide", queues=4)
        with pytest.raises(
            OptionError, match=r"has 4 queues on .*: with 1, the messages of the last 3 queues"
        ):
            admin.create_topic("Wide", queues=1)
        assert len(admin.queues("Wide")) == 4
        admin.create_topic("Wide", queues=4)
        admin.create_topic("Wide", queues=6)
        assert len(admin.queues("Wide")) == 6
        admin.create_topic("Wide", queues=2, shrink=True)
        assert len(admin.queues("Wide")) == 2


@pytest.mark.parametrize("wrong", [0, -1, "4", True, 2**31])
def test_numbers_of_queues(penstock_broker: str, wrong: Any) -> None:
    with penstock.Admin(penstock_broker) as admin, pytest.raises(OptionError, match="queues is"):
        admin.create_topic("Never", queues=wrong)


# -- every wrong call with its words -----------------------------------------------------------------------------

Call = Callable[[Any], object]
BODY, QUEUE = b"x", penstock.MessageQueue("Other", "b", 0)
TOPIC_WORDS = "invalid topic name"

SENDS: list[tuple[str, Call, type[Exception], str]] = [
    ("text as body", lambda p: p.send("T", "x"), MessageError, "a body is bytes, not str; encode text first"),
    ("no body", lambda p: p.send("T"), MessageError, "a body is bytes, not NoneType; give the body as bytes"),
    ("number as body", lambda p: p.send("T", 7), MessageError, "a body is bytes, not int"),
    ("dict as body", lambda p: p.send("T", {}), MessageError, "a body is bytes, not dict"),
    ("text in a Message", lambda p: p.send(Message("T", "x")), MessageError, "a body is bytes, not str"),  # type: ignore[arg-type]
    ("Message of None", lambda p: p.send(Message("T", BODY, None)), MessageError, "properties are None"),  # type: ignore[arg-type]
    ("empty topic", lambda p: p.send("", BODY), TopicNameError, f"{TOPIC_WORDS} ''"),
    ("no topic", lambda p: p.send(None, BODY), TopicNameError, f"{TOPIC_WORDS} 'None'"),
    ("long topic", lambda p: p.send("x" * 128, BODY), TopicNameError, TOPIC_WORDS),
    ("topic with a space", lambda p: p.send("a b", BODY), TopicNameError, f"{TOPIC_WORDS} 'a b'"),
    ("queues of no topic", lambda p: p.queues(None), TopicNameError, TOPIC_WORDS),
    ("list", lambda p: p.send([Message("T", BODY)]), MessageError, "a list was given as message; send takes"),
    ("batch of one", lambda p: p.send_batch(Message("T", BODY)), MessageError, "not Message; use send"),
    ("batch of nothing", lambda p: p.send_batch(None), MessageError, "a batch is a list of Message, not Non"),
    ("batch of bytes", lambda p: p.send_batch([BODY]), MessageError, "made of Message, not bytes; use Mess"),
    ("key", lambda p: p.send_batch([], queue_key=7), MessageError, 'queue_key is 7; use text: queue_key="'),
    ("other's queue", lambda p: p.send("T", BODY, queue=QUEUE), MessageError, "is not one of topic 'T'"),
    ("early", lambda p: p.send("T", BODY, delay=-1), MessageError, "delay is -1; use seconds, 0 or more"),
    ("delay of text", lambda p: p.send("T", BODY, delay="5"), MessageError, "delay is '5'; use seconds"),
    ("no number", lambda p: p.send("T", BODY, delay=float("nan")), MessageError, "delay is nan; use seconds"),
    (
        "far",
        lambda p: p.send("T", BODY, delay=10**12),
        SendFailedError,
        "more than 259200 s ahead; use a time",
    ),
    ("level", lambda p: p.send("T", BODY, delay_level=-1), MessageError, "delay_level is -1; use a whole"),
    ("moment", lambda p: p.send("T", BODY, deliver_at="noon"), MessageError, "deliver_at is 'noon'; use sec"),
    (
        "zone",
        lambda p: p.send("T", BODY, deliver_at=datetime.fromisoformat("2030-01-01")),
        MessageError,
        "has no time zone",
    ),
    ("two delays", lambda p: p.send("T", BODY, delay=1, delay_level=1), MessageError, "in one way only"),
    ("flag", lambda p: p.send("T", BODY, flag=2**40), MessageError, "use a whole number of 32 bits"),
    ("flag of a Message", lambda p: p.send(Message("T", BODY, {}, 2**40)), MessageError, "of 32 bits"),
    ("durability", lambda p: p.send("T", BODY, durability="disk"), OptionError, "use one of: memory, flush"),
    ("sequence", lambda p: p.send("T", BODY, sequence=1), MessageError, "the producer has no producer_id"),
    ("callback", lambda p: p.enqueue("T", BODY, on_result=5), MessageError, "on_result is 5; use a function"),
    ("request", lambda p: p.request("T", BODY, timeout_ms="5"), MessageError, "timeout_ms is '5'; use 1 to"),
    ("recall", lambda p: p.recall(None), MessageError, "handle is None; use the recall_handle of a result"),
    ("reply", lambda p: p.reply("x", BODY), MessageError, "request is 'x'; use the message that a consumer"),
    ("close", lambda p: p.close("1"), OptionError, "timeout_s is '1'; use seconds, 0 or more"),
    (
        "transaction",
        lambda p: p.transaction("T", BODY, tags="a"),
        TypeError,
        "transaction() got an unexpected argument 'tags'; did you mean tag?",
    ),
    *[
        (
            f"reserved {name}",
            lambda p, name=name: p.send("T", BODY, properties={name: "1"}),
            MessageError,
            f"property '{name}' is reserved; use {hint}",
        )
        for name, hint in {
            "TAGS": "tag=",
            "KEYS": "keys=",
            "DELAY": "delay_level=",
            "TIMER_DELAY_MS": "delay=",
            "TIMER_DELIVER_MS": "deliver_at=",
            "TRAN_MSG": "producer.transaction(...)",
        }.items()
    ],
    ("empty value", lambda p: p.send("T", BODY, properties={"a": ""}), CodecError, "empty name or value"),
]


def test_wrong_sends(penstock_broker: str) -> None:
    with penstock.Producer(penstock_broker) as producer:
        for what, call, kind, words in SENDS:
            with pytest.raises((PenstockError, TypeError)) as caught:
                call(producer)
            assert (type(caught.value), words in str(caught.value)) == (kind, True), (what, caught.value)
            assert producer.send("T", BODY).is_ok, "it works after a wrong call"


def test_wrong_sends_in_a_loop(penstock_broker: str) -> None:
    async def scenario() -> None:
        async with penstock.AsyncProducer(penstock_broker) as producer:
            for what, call, kind, words in SENDS:
                with pytest.raises((PenstockError, TypeError)) as caught:
                    await waited(call, producer)
                assert (type(caught.value), words in str(caught.value)) == (kind, True), (what, caught.value)
                assert (await producer.send("T", BODY)).is_ok, "it works after a wrong call"

    asyncio.run(scenario())


async def waited(call: Call, client: object) -> object:
    """What a call comes to, of an asynchronous client or not."""
    answer = call(client)
    return await answer if inspect.isawaitable(answer) else answer


def test_a_request_that_cannot_be_written_fails_instead_of_blocking_those_behind_it(
    producer: penstock.Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason: the program hears of it."""
    producer.send("T", BODY)
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "post", lambda self, parcel: 1 // 0)
        with pytest.raises(SendFailedError, match="ZeroDivisionError"):
            producer.send("T", BODY)
    assert producer.send("T", BODY).is_ok


def test_calls_after_close(penstock_broker: str) -> None:
    with penstock.Producer(penstock_broker) as producer:
        producer.send("T", BODY)
    calls: list[Call] = [
        lambda p: p.send("T", BODY),
        lambda p: p.send_async("T", BODY),
        lambda p: p.enqueue("T", BODY),
        lambda p: p.send_batch([Message("T", BODY)]),
        lambda p: p.transaction("T", BODY),
        lambda p: p.queues("T"),
    ]
    for call in calls:
        with pytest.raises(ClientClosedError, match="the producer is closed; make a new one"):
            call(producer)


CLIENTS = [
    penstock.Producer,
    penstock.Consumer,
    penstock.Admin,
    penstock.AsyncProducer,
    penstock.AsyncConsumer,
    penstock.AsyncAdmin,
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name_servers": ""}, "no name server address was given"),
        ({"name_servers": "a:99999"}, "port 99999 of 'a:99999' is outside 1..65535"),
        ({"call_timeout_ms": "5"}, "call_timeout_ms is '5'; use a whole number from 1 to"),
        ({"call_timeouts_ms": 5}, "there is no option 'call_timeouts_ms'; did you mean call_timeout_ms?"),
        ({"instance_name": 5}, "instance_name is 5; use text"),
        ({"access_key": "x"}, "an access key and a secret key belong together"),
        ({"tls": True}, "tls is True; use penstock.TlsOptions(...)"),
        ({"rpc_hook": "x"}, "rpc_hook is 'x'; use an object with the methods of penstock.RpcHook"),
    ],
    ids=str,
)
def test_wrong_options_of_every_client(client: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        client(**settings)
    assert words in str(caught.value)


def without_addresses(value: object) -> str:
    """The same id in every process that collects the tests, also of functions."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "loop"])
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Producer", {"retries": -1}, "retries is -1; use a whole number from 0 to 100"),
        ("Producer", {"batch_size": 1.5}, "batch_size is 1.5; use a whole number"),
        ("Producer", {"compression": "gzip"}, "compression is 'gzip'; use one of: none, zlib, lz4, zstd"),
        ("Producer", {"idempotent": "yes"}, "idempotent is 'yes'; use True or False"),
        ("Producer", {"template_topic": None}, "template_topic is None; use text"),
        ("Producer", {"lingerms": 2}, "there is no option 'lingerms'; did you mean linger_ms?"),
        ("Producer", {"transaction_listener": 5}, "transaction_listener is 5; use an object with a method"),
        ("Producer", {"transaction_topics": "T"}, "transaction_topics is 'T'; use a list of topics"),
        ("Consumer", {"model": "cluster"}, "model is 'cluster'; use one of: clustering, broadcasting"),
        ("Consumer", {"start_from": "earliest"}, "start_from is 'earliest'; use one of: auto, first, last"),
        ("Consumer", {"listener": 5}, "listener is 5; use a function of one message"),
        ("Consumer", {"listener": lambda: None}, "use a function of one message"),
        ("Consumer", {"listener": lambda message, queue: None}, "use a function of one message"),
        ("Consumer", {"on_queues": lambda queues: None}, "use a function of a topic and its queues"),
        ("Consumer", {"on_queues": 5}, "on_queues is 5; use a function of a topic and its queues"),
        ("Consumer", {"auto_ack": 0}, "auto_ack is 0; use True or False"),
        ("Consumer", {"offset_directory": 5}, "offset_directory is 5; use text"),
        ("Consumer", {"invisible": 5}, "there is no option 'invisible'; did you mean invisible_ms?"),
        ("Consumer", {"strategy": "avg"}, "there is no rebalance strategy 'avg'; use one of averagely"),
    ],
    ids=without_addresses,
)
def test_wrong_options(name: str, settings: dict[str, Any], words: str, is_async: bool) -> None:
    client = getattr(penstock, f"Async{name}" if is_async else name)
    with pytest.raises(OptionError) as caught:
        client("127.0.0.1:1", "g", **settings)
    assert words in str(caught.value)


CONSUMING: list[tuple[str, Call, type[Exception], str]] = [
    ("topic", lambda c: c.subscribe("a b"), OptionError, "topic is 'a b'; use 1 to 255 letters"),
    ("tags", lambda c: c.subscribe("T", "||"), OptionError, "'||' names no tag; write *, a, or a || b"),
    ("filter", lambda c: c.subscribe("T", sql="a ==== 5"), FilterError, "at character 4: '='"),
    ("tags and filter", lambda c: c.subscribe("T", "a", sql="b > 5"), OptionError, "more than one of tags"),
    ("pop", lambda c: c.pop(), ClientError, 'this consumer pulls; make it with delivery="pop"'),
    ("no messages", lambda c: c.poll(0), OptionError, "max_messages is 0; use a whole number from 1"),
    ("time", lambda c: c.poll(timeout_s="1"), OptionError, "timeout_s is '1'; use seconds, 0 or more"),
    ("ack", lambda c: c.ack(None), ClientError, "None is no message that a consumer received"),
    ("retry", lambda c: c.retry(None), ClientError, "None is no message that a consumer received"),
    (
        "commit a list",
        lambda c: c.commit([]),
        OptionError,
        "offsets is []; use a mapping of queues to offsets",
    ),
    ("commit text", lambda c: c.commit({QUEUE: "5"}), OptionError, "offset is '5'; use a whole number"),
    ("commit below", lambda c: c.commit({QUEUE: -5}), OptionError, "offset is -5; use a whole number from 0"),
    ("commit what", lambda c: c.commit({3: 5}), OptionError, "a queue is 3; use one of queues(topic)"),
    ("seek what", lambda c: c.seek(3, 5), OptionError, "a queue is 3; use one of queues(topic)"),
    ("seek text", lambda c: c.seek(QUEUE, "5"), OptionError, "offset is '5'; use a whole number"),
    ("seek below", lambda c: c.seek(QUEUE, -5), ClientError, "offset -5 is negative; use seek_to_first"),
    ("pause one", lambda c: c.pause(QUEUE), OptionError, "use a list of queues"),
    ("assign", lambda c: c.assign([QUEUE]), ClientError, "use subscribe or assign, not both"),
    ("committed", lambda c: c.committed(3), OptionError, "a queue is 3; use one of queues(topic)"),
    ("position", lambda c: c.position(QUEUE), ClientError, "is not held by this consumer"),
    ("position what", lambda c: c.position("T"), OptionError, "a queue is 'T'; use one of queues(topic)"),
    ("keys", lambda c: c.subscribe("T", keys=5), OptionError, "keys is 5; use a key, or a list of keys"),
    ("queues", lambda c: c.queues(None), TopicNameError, f"{TOPIC_WORDS} 'None'"),
    ("wait", lambda c: c.wait_assigned("1"), OptionError, "timeout_s is '1'; use seconds, 0 or more"),
    ("seek far", lambda c: c.seek(QUEUE, 2**63), OptionError, f"offset is {2**63}; use a whole number"),
    (
        "first of what",
        lambda c: c.seek_to_first("T"),
        OptionError,
        "a queue is 'T'; use one of queues(topic)",
    ),
    (
        "last of what",
        lambda c: c.seek_to_last(None),
        OptionError,
        "a queue is None; use one of queues(topic)",
    ),
    (
        "time of what",
        lambda c: c.seek_to_time("T", 5),
        OptionError,
        "a queue is 'T'; use one of queues(topic)",
    ),
    (
        "no time",
        lambda c: c.seek_to_time(QUEUE, "now"),
        OptionError,
        "time is 'now'; use a datetime, or mill",
    ),
    ("close", lambda c: c.close(timeout_s="1"), OptionError, "timeout_s is '1'; use seconds, 0 or more"),
]


def test_wrong_calls_of_a_consumer(penstock_broker: str) -> None:
    with penstock.Producer(penstock_broker) as producer:
        producer.send("T", BODY)
    with penstock.Consumer(penstock_broker, "wrong-calls") as consumer:
        consumer.subscribe("T", "a")
        consumer.subscribe("T", "b")  # the later one counts
        for what, call, kind, words in CONSUMING:
            with pytest.raises(PenstockError) as caught:
                call(consumer)
            assert type(caught.value) is kind, what
            assert words in str(caught.value), what
        assert consumer.poll(timeout_s=0.01) == [], "it works after wrong calls"


def test_acknowledging_twice_and_what_another_consumer_has(penstock_broker: str) -> None:
    settings: dict[str, Any] = {"auto_ack": False, "start_from": "first"}
    with (
        penstock.Producer(penstock_broker) as producer,
        penstock.Consumer(penstock_broker, "one", **settings) as one,
        penstock.Consumer(penstock_broker, "two", **settings) as two,
    ):
        producer.send("T", BODY)
        one.subscribe("T")
        two.subscribe("T")
        message, other = next(iter(one)), next(iter(two))
        one.ack(message)
        with pytest.raises(ClientError, match="is not waiting for an acknowledgement; acknowledge each"):
            one.ack(message)
        with pytest.raises(ClientError, match="was given to another consumer; acknowledge it there"):
            one.ack(other)
        two.ack(other)


def test_topics_of_an_admin(penstock_broker: str) -> None:
    with penstock.Admin(penstock_broker) as admin:
        for function in (admin.create_topic, admin.delete_topic, admin.describe_topic, admin.queues):
            for topic in ("", None, "a b", "x" * 128):
                with pytest.raises(TopicNameError, match="invalid topic name"):
                    function(topic)  # type: ignore[arg-type]


ADMIN: list[tuple[str, Call, type[Exception], str]] = [
    (
        "permission",
        lambda a: a.create_topic("N", permission="rw"),
        OptionError,
        "use 6 to read and write, 4 to",
    ),
    ("cluster", lambda a: a.create_topic("N", cluster=5), OptionError, "cluster is 5; use text"),
    (
        "attributes",
        lambda a: a.create_topic("N", attributes=["a"]),
        OptionError,
        "attributes are ['a']; use te",
    ),
    ("groups of what", lambda a: a.groups_of_topic(None), TopicNameError, f"{TOPIC_WORDS} 'None'"),
    ("group", lambda a: a.create_group("a b"), OptionError, "group is 'a b'; use 1 to 120 letters"),
    (
        "retries",
        lambda a: a.create_group("g", retry_max_times="x"),
        OptionError,
        "retry_max_times is 'x'; use a",
    ),
    (
        "policy",
        lambda a: a.create_group("g", retry_policy="x"),
        OptionError,
        "retry_policy is 'x'; use a Group",
    ),
    ("push", lambda a: a.push_clients(5), OptionError, "group is 5; use text"),
    ("deleted", lambda a: a.delete_group(None), OptionError, "group is None; use text"),
    ("offsets", lambda a: a.offsets(None), OptionError, "group is None; use text"),
    (
        "commit what",
        lambda a: a.commit_offset("g", "T", 1),
        OptionError,
        "a queue is 'T'; use one of queues(t",
    ),
    (
        "commit text",
        lambda a: a.commit_offset("g", QUEUE, "1"),
        OptionError,
        "offset is '1'; use a whole numb",
    ),
    ("reset what", lambda a: a.reset_offsets("g", None), TopicNameError, f"{TOPIC_WORDS} 'None'"),
    (
        "reset",
        lambda a: a.reset_offsets("g", "T", offsets=5),
        OptionError,
        "offsets is 5; use a mapping of que",
    ),
    (
        "reset text",
        lambda a: a.reset_offsets("g", "T", offsets={"T": 5}),
        OptionError,
        "a queue is 'T'; use on",
    ),
    (
        "reset other",
        lambda a: a.reset_offsets("g", "T", offsets={QUEUE: 5}),
        OptionError,
        "is not of topic 'T'",
    ),
    ("first of what", lambda a: a.min_offset("T"), OptionError, "a queue is 'T'; use one of queues(topic)"),
    ("last of what", lambda a: a.max_offset(None), OptionError, "a queue is None; use one of queues(topic)"),
    (
        "no time",
        lambda a: a.offset_at(QUEUE, "now"),
        OptionError,
        "timestamp_ms is 'now'; use a datetime, or mi",
    ),
    ("id", lambda a: a.get_message(None), OptionError, "msg_id is None; use the msg_id of a result"),
    ("key", lambda a: a.query_messages("T", 5), OptionError, "key is 5; use text"),
    (
        "no key",
        lambda a: a.query_messages("T", ""),
        OptionError,
        "key is empty; use a key that messages were",
    ),
    (
        "limit",
        lambda a: a.query_messages("T", "k", limit="5"),
        OptionError,
        "limit is '5'; use a whole number",
    ),
    (
        "begin",
        lambda a: a.query_messages("T", "k", begin_ms="x"),
        OptionError,
        "begin_ms is 'x'; use a whole nu",
    ),
    ("values", lambda a: a.read_by_key(None, "k"), TopicNameError, f"{TOPIC_WORDS} 'None'"),
    (
        "most values",
        lambda a: a.read_by_key("T", "k", limit="x"),
        OptionError,
        "limit is 'x'; use a whole numb",
    ),
    ("read what", lambda a: a.read_messages("T", 0), OptionError, "a queue is 'T'; use one of queues(topic)"),
    (
        "read where",
        lambda a: a.read_messages(QUEUE, "0"),
        OptionError,
        "offset is '0'; use a whole number from",
    ),
    ("trace", lambda a: a.trace_message(5), OptionError, "msg_id is 5; use the msg_id of a result"),
    (
        "recall",
        lambda a: a.recall_message(None),
        OptionError,
        "handle is None; use the recall_handle of a res",
    ),
    ("dead letters", lambda a: a.dead_letters.groups(["g"]), OptionError, "a group is ['g']; use text"),
]
LETTERS: list[tuple[str, Call, type[Exception], str]] = [
    ("of what", lambda d: list(d.read(None)), OptionError, "group is None; use text"),
    ("since", lambda d: list(d.read("g", since_ms="x")), OptionError, "since_ms is 'x'; use a whole number"),
    ("ids", lambda d: list(d.read("g", ids=5)), OptionError, "ids are 5; use an id, or a list of ids"),
    (
        "part",
        lambda d: list(d.read("g", id="x")),
        TypeError,
        "read() got an unexpected argument 'id'; did you",
    ),
    ("redrive", lambda d: d.redrive("g", rates=5), TypeError, "redrive() got an unexpected argument 'rates'"),
    ("rate", lambda d: d.redrive("g", rate="x"), OptionError, "rate is 'x'; use messages a second, or 0"),
    ("to", lambda d: d.redrive("g", to=5), OptionError, "to is 5; use text"),
    ("wait", lambda d: d.redrive("g", wait_s="x"), OptionError, "wait_s is 'x'; use seconds, 0 or more"),
]


def test_wrong_calls_of_an_admin(penstock_broker: str) -> None:
    with penstock.Producer(penstock_broker) as producer:
        producer.send("T", BODY)
    with penstock.Admin(penstock_broker) as admin:
        for client, calls in ((admin, ADMIN), (admin.dead_letters, LETTERS)):
            for what, call, kind, words in calls:
                with pytest.raises((PenstockError, TypeError)) as caught:
                    call(client)
                assert (type(caught.value), words in str(caught.value)) == (kind, True), (what, caught.value)
        assert admin.list_topics() == ["T"]


def test_wrong_calls_of_an_admin_in_a_loop(penstock_broker: str) -> None:
    async def scenario() -> None:
        async with penstock.AsyncProducer(penstock_broker) as producer:
            await producer.send("T", BODY)
        async with penstock.AsyncAdmin(penstock_broker) as admin:
            for what, call, kind, words in ADMIN:
                with pytest.raises(PenstockError) as caught:
                    await waited(call, admin)
                assert (type(caught.value), words in str(caught.value)) == (kind, True), (what, caught.value)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: penstock.Retry("5s"), "delay_level is '5s'; use the number of a delay level"),  # type: ignore[arg-type]
        (lambda: penstock.Retry(reason=5), "reason is 5; use text"),  # type: ignore[arg-type]
        (lambda: penstock.ConsistentHash("x"), "virtual_nodes is 'x'; use 1 to 10000"),  # type: ignore[arg-type]
        (lambda: penstock.FixedQueues(["T"]), "use a list of MessageQueue"),  # type: ignore[list-item]
    ],
)
def test_values_of_a_wrong_type(make: Callable[[], object], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert words in str(caught.value)


def test_a_synchronous_call_in_the_clients_own_loop(producer: penstock.Producer) -> None:
    """It would wait for itself."""
    found: list[Exception] = []
    done = threading.Event()

    def again(result: object, error: object) -> None:
        try:
            producer.send("T", BODY)
        except ClientError as caught:
            found.append(caught)
        done.set()

    producer.enqueue("T", BODY, on_result=again)
    assert done.wait(60)
    assert "from inside the client's own event loop; use the async client there" in str(found[0])


@pytest.mark.parametrize("client", CLIENTS)
def test_the_wrong_kind_of_with(client: Any) -> None:
    async def enter_wrongly() -> None:
        if client.__name__.startswith("Async"):
            with client("127.0.0.1:1"):
                pass
        else:
            async with client("127.0.0.1:1"):
                pass

    with pytest.raises(TypeError, match="context manager protocol"):
        asyncio.run(enter_wrongly())


async def used(client: Any) -> object:
    """Start it, and ask something."""
    await client.start()
    if isinstance(client, penstock.AsyncConsumer):
        await client.subscribe("T")
        return await client.poll(timeout_s=0)
    return await client.queues("T")


ELSEWHERE: dict[Any, list[Call]] = {
    penstock.AsyncProducer: [
        lambda c: c.start(),
        lambda c: c.send("T", BODY),
        lambda c: c.send_nowait("T", BODY),
        lambda c: c.enqueue("T", BODY),
        lambda c: c.flush(),
        lambda c: c.queues("T"),
        lambda c: c.transaction("T", BODY).__aenter__(),
        lambda c: c.close(),
    ],
    penstock.AsyncConsumer: [
        lambda c: c.start(),
        lambda c: c.subscribe("T"),
        lambda c: c.poll(),
        lambda c: c.commit(),
        lambda c: c.__aiter__(),
        lambda c: c.assignment,
        lambda c: c.close(),
    ],
    penstock.AsyncAdmin: [
        lambda c: c.start(),
        lambda c: c.list_topics(),
        lambda c: c.dead_letters.groups(),
        lambda c: c.close(),
    ],
}


@pytest.mark.parametrize("client", ELSEWHERE, ids=lambda client: client.__name__)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_of_another_event_loop(client: Any, penstock_broker: str) -> None:
    """As with two calls of asyncio.run: it would wait for ever."""
    with penstock.Producer(penstock_broker) as producer:
        producer.send("T", BODY)
    started = client(penstock_broker)
    with asyncio.Runner() as home:
        home.run(used(started))
        for call in ELSEWHERE[client]:
            with pytest.raises(ClientError, match="was started in another event loop; make one in each loop"):
                asyncio.run(asyncio.wait_for(waited(call, started), 60))
        home.run(used(started))
        home.run(started.close())


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_are_not_copied(client: Any) -> None:
    one = client("127.0.0.1:1", "g") if "Admin" not in client.__name__ else client("127.0.0.1:1")
    attempts: list[Call] = [
        lambda one: one.__reduce_ex__(4),
        copy.copy,
        copy.deepcopy,
    ]  # the first is pickle's
    for attempt in attempts:
        with pytest.raises(
            TypeError, match=f"^{client.__name__} cannot be copied or pickled; make one in each"
        ):
            attempt(one)


def test_a_consumer_in_a_forked_process(penstock_broker: str) -> None:
    """The child would get what the parent has received, too, and never acknowledge it."""
    with penstock.Producer(penstock_broker) as producer:
        for _ in range(3):
            producer.send("T", BODY, queue_key="a")
    with penstock.Consumer(penstock_broker, "forked", start_from="first") as consumer:
        consumer.subscribe("T")
        first = consumer.poll(1, 60)

        calls: list[Callable[[], object]] = [consumer.poll, consumer.commit, lambda: consumer.ack(first[0])]
        for call in calls:
            assert "made before a fork" in in_child(call)
        assert in_child(consumer.close) == "None"
        assert consumer.poll(1, 60)


def in_child(call: Callable[[], object]) -> str:
    """What a call in a forked process returns, or the error of the client."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                text = str(call())
            except ClientError as error:
                text = str(error)
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(child, 0)
    return found


def test_a_transaction_that_was_not_entered(producer: penstock.Producer) -> None:
    """Nothing was sent that could be committed."""
    transaction = producer.transaction("T", BODY)
    for decide in (transaction.commit, transaction.rollback, transaction.unknown):
        with pytest.raises(ClientError, match="the transaction has not begun; enter it with `with`"):
            decide()


def test_a_producer_that_was_not_started(penstock_broker: str) -> None:
    async def scenario() -> None:
        producer = penstock.AsyncProducer(penstock_broker)
        with pytest.raises(ClientClosedError, match="not started; use `async with`, or await start"):
            producer.enqueue("T", BODY)

    asyncio.run(scenario())
