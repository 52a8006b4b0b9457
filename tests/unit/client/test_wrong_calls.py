"""What a program hears of a wrong call: at once, by the name of what it called, with what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import MessageError, OptionError


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
        with pytest.raises(OptionError, match=r"has 4 queues on .*: with 1, the messages of the other 3"):
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
