"""Typed headers: wire names, mandatory fields, ranges, both spellings of a send."""

from dataclasses import fields, is_dataclass
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.protocol.headers as headers_package
from penstock.errors import FieldError
from penstock.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    RegisterBrokerRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    UnregisterClientRequestHeader,
)
from penstock.protocol.headers.header import camel_case, wire_fields

HEADERS = sorted(
    (
        value
        for value in vars(headers_package).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    ),
    key=lambda header: header.__name__,
)

# The fields of the vector in rocketmq-wire 1.12, and what a 4.9 client adds.
V2 = {
    "a": "g",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "TAGS\x01a\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "b-a",
}
V1 = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "TAGS\x01a\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
    "bname": "b-a",
}
PULL = {
    "consumerGroup": "cg",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "9223372036854775807",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1700000000000000000",
}


def test_a_send_has_two_spellings_of_one_header() -> None:
    header = SendMessageRequestHeader.decode(V2)
    assert header == SendMessageRequestHeader.decode(V1)
    assert header.encode() == V2
    assert header.encode_v1() == V1
    assert (header.topic, header.queue_id, header.broker_name) == ("T", 1, "b-a")
    assert header.max_reconsume_times is None


def test_a_send_names_the_missing_field_in_its_own_spelling() -> None:
    with pytest.raises(FieldError, match="'e'"):
        SendMessageRequestHeader.decode({name: V2[name] for name in V2 if name != "e"})
    with pytest.raises(FieldError, match="'queueId'"):
        SendMessageRequestHeader.decode({name: V1[name] for name in V1 if name != "queueId"})
    with pytest.raises(FieldError, match="'producerGroup'"):
        SendMessageRequestHeader.decode({})


def test_the_durability_that_a_client_demands_travels_in_both_spellings() -> None:
    demanded = SendMessageRequestHeader.decode({**V2, "durability": "flushed"})
    assert demanded.durability == "flushed"
    assert demanded.encode()["durability"] == demanded.encode_v1()["durability"] == "flushed"


def test_an_answer_leaves_out_what_it_does_not_know() -> None:
    stored = SendMessageResponseHeader(
        msg_id="7F00000100002A9F0000000000000100",
        queue_id=1,
        queue_offset=5,
        region_id="DefaultRegion",
        trace_on=True,
    )
    assert stored.encode() == {
        "msgId": "7F00000100002A9F0000000000000100",
        "queueId": "1",
        "queueOffset": "5",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_pull() -> None:
    header = PullMessageRequestHeader.decode({**PULL, "ns": "unknown fields are ignored"})
    assert header.queue_offset == 2**63 - 1
    assert header.subscription is None
    assert header.encode() == PULL
    answer = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=7, min_offset=0, max_offset=7
    )
    assert answer.encode() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "7",
    }


def test_names_that_are_no_camel_case() -> None:
    assert UnregisterClientRequestHeader(client_id="c").encode() == {"clientID": "c"}
    assert PullMessageRequestHeader.decode({**PULL, "proxyFrowardClientId": "p"}).proxy_forward_client_id
    query = {
        "topic": "T",
        "key": "k",
        "maxNum": "64",
        "beginTimestamp": "0",
        "endTimestamp": "9223372036854775807",
        "_UNIQUE_KEY_QUERY": "true",
    }
    assert QueryMessageRequestHeader.decode(query).is_unique_key
    assert QueryMessageRequestHeader.decode(query).encode() == query


def test_registration_of_a_4_9_broker_and_of_a_5_x_one() -> None:
    old = {
        "brokerName": "b-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }
    header = RegisterBrokerRequestHeader.decode(old)
    assert (header.compressed, header.body_crc32, header.enable_acting_master) == (False, 0, None)
    new = {**old, "enableActingMaster": "false", "compressed": "true", "bodyCrc32": "5", "__ZONE_NAME": "z"}
    assert RegisterBrokerRequestHeader.decode(new).encode() == new


def test_small_conveniences() -> None:
    search = {"topic": "T", "queueId": "0", "timestamp": "-1"}
    assert not SearchOffsetRequestHeader.decode(search).is_upper
    assert SearchOffsetRequestHeader.decode({**search, "boundaryType": "upper"}).is_upper
    stats = GetConsumeStatsRequestHeader(consumer_group="g", topic_list="a;b;")
    assert stats.topics == ("a", "b")
    assert GetConsumeStatsRequestHeader(consumer_group="g", topic="t").topics == ("t",)
    assert GetConsumeStatsRequestHeader(consumer_group="g", topic="").topics == ()


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("-5", -5), ("+5", 5), ("007", 7), ("-9223372036854775808", -(2**63))]
)
def test_numbers(text: str, value: int) -> None:
    assert OffsetResponseHeader.decode({"offset": text}).offset == value


@pytest.mark.abuse("A16")
@pytest.mark.parametrize(
    "text",
    ["9223372036854775808", "-9223372036854775809", "1.0", "1e3", "0x1", " 1", "1_0", "٣", "-", "+-1", "NaN"],
)
def test_no_number_wraps_or_is_guessed(text: str) -> None:
    with pytest.raises(FieldError, match="'offset'"):
        OffsetResponseHeader.decode({"offset": text})


@pytest.mark.abuse("A3")
def test_a_megabyte_of_digits_costs_nothing() -> None:
    with pytest.raises(FieldError, match="'offset'") as caught:
        OffsetResponseHeader.decode({"offset": "9" * 1_000_000})
    assert len(str(caught.value)) < 200


@pytest.mark.abuse("A16")
def test_numbers_of_32_bits_stay_within_them() -> None:
    assert ConsumerSendMsgBackRequestHeader.decode({"offset": "1", "group": "g", "delayLevel": "-1"})
    for text in ("2147483648", "-2147483649"):
        with pytest.raises(FieldError, match="'delayLevel'"):
            ConsumerSendMsgBackRequestHeader.decode({"offset": "1", "group": "g", "delayLevel": text})


def test_empty_means_absent_for_all_but_text() -> None:
    """A binary header cannot hold an empty value: both forms must mean the same."""
    header = GetMaxOffsetRequestHeader.decode({"topic": "", "queueId": "0", "committed": ""})
    assert header == GetMaxOffsetRequestHeader(topic="", queue_id=0, committed=True)
    with pytest.raises(FieldError, match="'queueId'"):
        GetMaxOffsetRequestHeader.decode({"topic": "T", "queueId": ""})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False)]
)
def test_truth_as_in_java(text: str, value: bool) -> None:
    ext = {"topic": "T", "acceptStandardJsonOnly": text}
    assert GetRouteInfoRequestHeader.decode(ext).accept_standard_json_only is value


def test_create_topic_as_mqadmin_sends_it() -> None:
    ext = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "8",
        "writeQueueNums": "8",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+message.type=FIFO",
    }
    assert CreateTopicRequestHeader.decode(ext).encode() == ext


def test_a_field_of_no_known_kind_is_a_mistake_of_ours() -> None:
    class Odd(Header):
        __slots__ = ()

    hint = get_type_hints(OffsetResponseHeader, include_extras=True)
    assert hint["offset"]
    with pytest.raises(TypeError):
        wire_fields(Odd)
    assert camel_case("index_last_update_phyoffset") == "indexLastUpdatePhyoffset"


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.__name__)
def test_every_class_is_a_frozen_value_with_distinct_wire_names(header: type[Header]) -> None:
    assert is_dataclass(header)
    assert header.__dataclass_params__.frozen
    assert "__slots__" in vars(header)
    names = [spec.name for spec in wire_fields(header)]
    assert len(names) == len(set(names)) == len(fields(header))


def values_of(header: type[Header]) -> st.SearchStrategy[Header]:
    """Any value of a header class, from its annotations."""
    hints = get_type_hints(header, include_extras=True)
    kinds = {"str": st.text(st.characters(exclude_categories=["Cs"])), "bool": st.booleans()}
    members = {}
    for item in fields(header):
        hint = hints[item.name]
        low = -(2**63) if "9223372036854775808" in str(hint) else -(2**31)
        kind = next((kinds[name] for name in kinds if name in str(hint)), st.integers(low, -low - 1))
        members[item.name] = st.none() | kind if "None" in str(hint) else kind
    return st.builds(header, **members)


@given(st.sampled_from(HEADERS).flatmap(values_of))
def test_what_is_written_reads_back_the_same(header: Header) -> None:
    ext = header.encode()
    assert all(isinstance(value, str) for value in ext.values())
    assert type(header).decode(ext) == header


@pytest.mark.abuse("A3")
@given(st.data())
def test_no_ext_field_raises_anything_but_field_errors(data: st.DataObject) -> None:
    header = data.draw(st.sampled_from(HEADERS))
    names = st.sampled_from([spec.name for spec in wire_fields(header)])
    ext = data.draw(st.dictionaries(names, st.text() | st.integers().map(str)))
    try:
        header.decode(ext)
    except FieldError as error:
        refused = error
    else:
        return
    assert refused.code == 1
    assert any(repr(spec.name) in str(refused) for spec in wire_fields(header))
