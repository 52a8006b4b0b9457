"""Handles and infos of POP: RocketMQ's texts, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, decode_bits, encode_bits
from penstock.protocol.pop_handles import (
    PopHandle,
    message_offset_info,
    order_count_info,
    parse_message_offset_info,
    parse_order_count_info,
    parse_start_offset_info,
    pop_retry_topic,
    real_topic,
    start_offset_info,
    topic_kind,
)

TEXT = "100 1700000000000 60000 3 0 b-a 1 102"


def test_a_handle_there_and_back() -> None:
    handle = PopHandle.parse(TEXT)
    assert handle == PopHandle(100, 1_700_000_000_000, 60_000, 3, "0", "b-a", 1, 102)
    assert str(handle) == TEXT


_WORDS = st.sampled_from(
    ["", "0", "1", "00", "-1", "+1", "7", "b-a", "9" * 19, "9" * 20, "\u0661", "\u00b2", "1_0"]
)


@pytest.mark.abuse("A20")
@given(st.one_of(st.text(max_size=80), st.lists(_WORDS, min_size=7, max_size=9).map(" ".join)))
def test_what_is_taken_is_exactly_what_a_broker_writes(text: str) -> None:
    """Anything else is refused with the one error that it may be refused with."""
    try:
        handle = PopHandle.parse(text)
    except CodecError:
        return
    assert str(handle) == " ".join(text.split(" ")[:8])


@pytest.mark.parametrize("position", ["0", "-1", "4096", str(2**63 - 1)])
def test_log_position_that_a_proxy_appends_is_ignored(position: str) -> None:
    assert PopHandle.parse(f"{TEXT} {position}") == PopHandle.parse(TEXT)
    for wrong in (f"{TEXT} x", f"{TEXT} -2", f"{TEXT} {2**63}", f"{TEXT} ", f"{TEXT} {position} 0"):
        with pytest.raises(CodecError):
            PopHandle.parse(wrong)


def test_infos_there_and_back() -> None:
    starts = {("0", 1): 100, ("1", 0): 7}
    assert start_offset_info(starts) == "0 1 100;1 0 7"
    assert parse_start_offset_info("0 1 100;1 0 7") == starts
    offsets = {("0", 1): [100, 102]}
    assert message_offset_info(offsets) == "0 1 100,102"
    assert parse_message_offset_info("0 1 100,102") == offsets
    assert parse_start_offset_info("") == {}
    for wrong in ("0 1", "0 1 x", "0 -1 3", "0 1 2 3", "0 1 " + "9" * 20, "0 1 1;" * 20_000):
        with pytest.raises(CodecError):
            parse_start_offset_info(wrong)
        with pytest.raises(CodecError):
            parse_message_offset_info(wrong)


def test_retry_topics() -> None:
    assert pop_retry_topic("g", "T") == "%RETRY%g_T"
    assert pop_retry_topic("g", "T", "2") == "%RETRY%g+T"
    assert [real_topic("g", "T", kind) for kind in "012"] == ["T", "%RETRY%g_T", "%RETRY%g+T"]
    for topic, expected in (
        ("T", ("0", "T")),
        ("%RETRY%g_T", ("1", "T")),
        ("%RETRY%g+T", ("2", "T")),
        ("%RETRY%g_", ("0", "%RETRY%g_")),
        ("%RETRY%other_T", ("0", "%RETRY%other_T")),
    ):
        assert topic_kind("g", topic) == expected


def test_sets_of_messages_are_rocketmqs() -> None:
    assert encode_bits([0, 9]) == "AQI="
    assert decode_bits("AQI=") == (0, 9)
    assert decode_bits("") == ()
    ack = BatchAck("g", "T", "0", 5, 1, 3, 9, 60_000, (0, 9))
    body = BatchAckMessageRequestBody("b-a", (ack,))
    assert BatchAckMessageRequestBody.decode(body.encode()) == body
    long = b'{"acks":[{"consumerGroup":"g","topic":"T","retry":"0","startOffset":5,"queueId":1,"reviveQueueId":3,'
    long += b'"popTime":9,"invisibleTime":60000,"bitSet":"AQI="}],"brokerName":"b-a"}'
    assert BatchAckMessageRequestBody.decode(long) == body


@given(st.sets(st.integers(0, 900), max_size=40))
def test_any_set_there_and_back(places: set[int]) -> None:
    assert decode_bits(encode_bits(places)) == tuple(sorted(places))


def test_counts_of_an_ordered_pop() -> None:
    text = order_count_info({1: {100: 2, 101: 0}, 2: {7: 3}})
    assert text == "0 qo1%100 2;0 1 0;0 qo2%7 3;0 2 3"
    assert parse_order_count_info(text) == {(1, 100): 2, (2, 7): 3}
    assert parse_order_count_info("") == {}


@pytest.mark.abuse("A20")
@pytest.mark.parametrize(
    "text",
    [
        "0 qo1%100",
        "0 qo1% 2",
        "0 qo%1 2",
        "0 qo1%100 -2",
        "0 qo1%1%2 2",
        "0 x 1",
        "0 qo1%\u0661 2",
        "0" * 70_000,
    ],
)
def test_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CodecError):
        parse_order_count_info(text)
