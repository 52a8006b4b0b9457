"""Typed bodies: the shapes that RocketMQ 5.3.3's own classes wrote and read, and those of other clients."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.protocol import bodies
from penstock.protocol.bodies import (
    Body,
    BrokerData,
    ConsumeFromWhere,
    ConsumeStats,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    MessageQueue,
    OffsetWrapper,
    ProducerData,
    QueueData,
    ResetOffsetBody,
    SubscriptionData,
    TopicRouteData,
)
from tests.unit.protocol.body_samples import (
    COUNTS,
    IDS,
    MQ,
    MQ_QUOTED,
    MQ_TEXT,
    SHAPES,
    TEXT,
)

HISTORICAL = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"


@pytest.mark.parametrize(("body", "text"), SHAPES, ids=IDS)
def test_the_bytes_of_the_reference(body: Body, text: str) -> None:
    assert body.encode(bare_keys=True).decode() == text
    assert type(body).decode(text.encode()) == body


@pytest.mark.parametrize(("body", "text"), SHAPES, ids=IDS)
def test_strict_json_has_the_same_content(body: Body, text: str) -> None:
    strict = body.encode(bare_keys=False)
    assert json.loads(strict) == body.to_json()
    assert b" " not in strict.replace(b"tagA || TagA", b"")
    assert type(body).decode(strict) == body
    assert type(body).from_json(json.loads(strict)) == body


def test_routes_have_quoted_keys_and_pushed_offsets_bare_ones() -> None:
    """What Go needs: it strips quotes from addresses itself, and takes strict JSON in a push for a list."""
    route = TopicRouteData((BrokerData("c", "b-a", {0: "a:1"}),))
    assert b'"brokerAddrs":{"0":"a:1"}' in route.encode()
    assert ResetOffsetBody({MQ: 7}).encode().decode() == f'{{"offsetTable":{{{MQ_TEXT}:7}}}}'
    assert ConsumeStats({MQ: OffsetWrapper()}).encode().startswith(b'{"consumeTps":0.0,"offsetTable":{{')


# -- queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f'{{"offsetTable":{{{MQ_TEXT}:7}}}}',
        f'{{"offsetTable":{{{MQ_QUOTED}:7}}}}',
        '{"offsetTable":{{topic:"T", "queueId" : 0, \'brokerName\':"b-a"} : "7"}}',
        '{"offsetTable":[{"brokerName":"b-a","offset":7,"queueId":0,"topic":"T"}]}',
    ],
    ids=["bare", "quoted", "loose", "list"],
)
def test_queues_as_keys_in_every_form(text: str) -> None:
    assert ResetOffsetBody.decode(text.encode()) == ResetOffsetBody({MQ: 7})


def test_a_cpp_client_gets_a_list() -> None:
    listed = ResetOffsetBody({MQ: 7}).encode_list()
    assert listed == b'{"offsetTable":[{"brokerName":"b-a","offset":7,"queueId":0,"topic":"T"}]}'
    assert ResetOffsetBody.decode(listed) == ResetOffsetBody({MQ: 7})


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    queues = [MessageQueue("a", "b", 10), MessageQueue("a", "b", 9), MessageQueue("a", "a", 11)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-(2**31), 2**31 - 1))
OFFSETS = st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(QUEUES, OFFSETS, max_size=5), st.booleans())
def test_any_queue_survives_being_a_key(offsets: dict[MessageQueue, int], bare: bool) -> None:
    body = ResetOffsetBody(offsets)
    assert ResetOffsetBody.decode(body.encode(bare_keys=bare)) == body
    assert ResetOffsetBody.decode(body.encode_list()) == body


@given(st.dictionaries(QUEUES, st.builds(OffsetWrapper, OFFSETS, OFFSETS, OFFSETS, OFFSETS), max_size=3))
def test_consume_stats_read_back_the_same(offsets: dict[MessageQueue, OffsetWrapper]) -> None:
    stats = ConsumeStats(offsets, 0.25)
    assert ConsumeStats.decode(stats.encode()) == stats
    assert stats.lag == sum(item.broker_offset - item.consumer_offset for item in offsets.values())


BROKERS = st.builds(BrokerData, TEXT, TEXT, st.dictionaries(st.integers(0, 2**40), TEXT, max_size=3))


@given(
    st.lists(BROKERS, max_size=3).map(tuple),
    st.lists(st.builds(QueueData, TEXT, COUNTS, COUNTS, st.integers(0, 7)), max_size=3).map(tuple),
    st.booleans(),
)
def test_any_route_reads_back_the_same(
    brokers: tuple[BrokerData, ...], queues: tuple[QueueData, ...], bare: bool
) -> None:
    route = TopicRouteData(brokers, queues)
    assert TopicRouteData.decode(route.encode(bare_keys=bare)) == route


def test_the_address_to_ask() -> None:
    assert BrokerData("c", "b", {0: "m:1", 2: "s:1"}).master == "m:1"
    slaves = BrokerData("c", "b", {2: "s2:1", 1: "s1:1"})
    assert (slaves.master, slaves.any_address) == (None, "s1:1")
    assert BrokerData("c", "b").any_address is None


# -- subscriptions and heartbeats ----------------------------------------------------------------------------


def test_tags_are_split_and_hashed_as_in_java() -> None:
    data = SubscriptionData.parse("T", " tagA ||TagA|| ||")
    assert data.tags_set == {"tagA", "TagA"}
    assert data.code_set == {3552231, 2598919}
    assert data.accepts_code(3552231)
    assert not data.accepts_code(0)
    assert not data.is_all


@pytest.mark.parametrize("expression", ["*", "", None])
def test_all_messages(expression: str | None) -> None:
    data = SubscriptionData.parse("T", expression)
    assert (data.sub_string, data.tags_set, data.code_set) == ("*", frozenset(), frozenset())
    assert data.is_all
    assert data.accepts_code(0)


@pytest.mark.parametrize(
    ("expression", "kind"), [("||", None), (" || ", "TAG"), ("", "SQL92"), ("a", "LUA"), ("\ud800", None)]
)
def test_expressions_that_say_nothing_are_refused_with_their_own_code(
    expression: str, kind: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        SubscriptionData.parse("T", expression, kind)
    assert caught.value.code == 23


def test_sql_stays_as_it_is() -> None:
    data = SubscriptionData.parse("T", "a > 1 || b", "SQL92")
    assert (data.sub_string, data.code_set, data.is_tag_type, data.is_all) == (
        "a > 1 || b",
        frozenset(),
        False,
        False,
    )


def test_the_heartbeat_of_the_fact_sheet() -> None:
    text = (
        '{"clientID":"10.0.0.1@1234#55","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
        '"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[97],"expressionType":"TAG",'
        '"subString":"a || b","subVersion":1700000000000,"tagsSet":["a"],"topic":"T"}],"unitMode":false}],'
        '"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    )
    heartbeat = HeartbeatData.decode(text.encode())
    assert heartbeat.client_id == "10.0.0.1@1234#55"
    assert heartbeat.producers == (ProducerData("pg"),)
    assert heartbeat.consumers[0].subscriptions[0].code_set == {97}
    assert heartbeat.encode().decode() == text


def test_heartbeats_of_other_clients_are_understood() -> None:
    """Go may send hashes as strings and nanoseconds as version, Node no type, others names of their own."""
    text = (
        '{"clientID":"c","consumerDataSet":[{"groupName":"cg","consumeType":"CONSUME_SIDEWAYS",'
        '"messageModel":"BROADCASTING","consumeFromWhere":null,"unknown":[{}],"subscriptionDataSet":['
        '{"topic":"T","codeSet":["97","-5"],"tagsSet":["a"],"subVersion":1700000000000000000,'
        '"classFilterMode":"false"},{"topic":"U","subString":"tagA","tagsSet":["tagA"],"codeSet":null},'
        '{"topic":"V","expressionType":"","subString":null}]}]}'
    )
    (consumer,) = HeartbeatData.decode(text.encode()).consumers
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    first, second, third = consumer.subscriptions
    assert (first.code_set, first.sub_version, first.expression_type) == (
        {97, -5},
        1_700_000_000_000_000_000,
        "TAG",
    )
    assert second.code_set == {3552231}
    assert third.is_all


@pytest.mark.parametrize(
    ("kind", "model", "where", "expected"),
    [
        (0, 0, 4, ("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")),
        (1, 1, 0, ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")),
        (2, "1", 5, ("CONSUME_POP", "CLUSTERING", "CONSUME_FROM_TIMESTAMP")),
        ("Consume_Actively", "Broadcasting", 1, ("CONSUME_ACTIVELY", "BROADCASTING", HISTORICAL)),
        (9, -1, "later", ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")),
    ],
)
def test_kinds_by_number_or_in_another_case(
    kind: object, model: object, where: object, expected: tuple[str, ...]
) -> None:
    """C++ clients send Java's ordinals; a broadcasting group of theirs counted as one that shares its messages."""
    terms = {"groupName": "g", "consumeType": kind, "messageModel": model, "consumeFromWhere": where}
    subscription = {
        "topic": "T",
        "subString": "a",
        "subVersion": "1700000000000",
        "tagsSet": ["a"],
        "codeSet": [97],
    }
    text = json.dumps(
        {"clientID": "c", "consumerDataSet": [{**terms, "subscriptionDataSet": [subscription]}]}
    )
    (consumer,) = HeartbeatData.decode(text.encode()).consumers
    assert (consumer.consume_type, consumer.message_model, consumer.consume_from_where) == expected
    assert consumer.subscriptions[0].sub_version == 1_700_000_000_000


def test_references_that_fastjson_writes_are_followed() -> None:
    text = (
        '{"clientID":"c","consumerDataSet":[{"groupName":"g1","subscriptionDataSet":[{"topic":"T"}]},'
        '{"groupName":"g2","subscriptionDataSet":[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}]}'
    )
    first, second = HeartbeatData.decode(text.encode()).consumers
    assert second.subscriptions == first.subscriptions == (SubscriptionData("T"),)
    table = '{"table":{"a\\\\.b":"x"},"y":{"$ref":"$.table"}}'
    assert bodies.parse_document(table, "t") == {"table": {"a\\.b": "x"}, "y": {"a\\.b": "x"}}
