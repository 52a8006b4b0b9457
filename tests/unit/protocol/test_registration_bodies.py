"""Bodies that are not plain JSON: registrations, batches; and metadata as it travels."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError
from penstock.message import Message
from penstock.metadata.config_files import DataVersion
from penstock.metadata.group_table import SubscriptionGroup, SubscriptionGroupTable
from penstock.metadata.offset_table import ConsumerOffsetTable, TopicGroup
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol import bodies
from penstock.protocol.bodies import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    decode_batch,
    encode_batch,
)
from tests.unit.protocol.body_samples import (
    COUNTS,
    NAMES,
    TEXT,
    TOPIC_TEXT,
    ZERO_VERSION,
)

# -- registration --------------------------------------------------------------------------------------------

# What RocketMQ 5.3.3 wrote for two topics, one filter server and one static topic.
COMPRESSED = bytes.fromhex(
    "78da5d4f4d4bc340105dbdf8273c2c0f7aea2ac68a2d7bf3d096801fd806414496cd761a0349366c368712f2df9df42238c383c7"
    "9b378f1921c46a80f37d1329402f15ba68237d50e84adf40df2bc4b22616eb163a59defdd52884b8645ccf76eb6cf7392b64c2fd"
    "28f7e9ebf6796db2a7ad1c26cf3c930f72f16f80398776b6a0db786a091a9b74f386c97ef585a34ef0cdf482510cc81b5b4f96fc"
    "c642c1f521a48717cbe70ca3c2a10cf1047db455470ad47af703bde0379c3fe71a53543eb79531bc1b7d5b3a16f7671e6df5de53"
    "4f1df46afc058c07499a"
)


def test_a_registration_as_the_reference_compresses_it() -> None:
    body = RegisterBrokerBody.decode_for(COMPRESSED, compressed=True, version=479)
    assert body.data_version == DataVersion(2, 7, 1_700_000_000_000)
    assert body.wrapper.topics == {
        "T": TopicConfig("T", 4, 3, Permission(6), attributes={"+message.type": "FIFO"}),
        "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, Permission(6)),
    }
    assert body.filter_servers == ("f:1",)
    assert body.wrapper.mapping_infos["S"]["totalQueues"] == 8
    assert RegisterBrokerBody.decode_compressed(body.encode_compressed()) == body


def test_a_registration_of_4_9_has_no_mappings_and_no_attributes() -> None:
    body = RegisterBrokerBody.decode_compressed(COMPRESSED, 409)
    assert body.wrapper.mapping_infos == {}
    parts = [b'{"counter":1,"timestamp":2}', b"T 4 4 6 SINGLE_TAG", b"[]"]
    blocks = [struct.pack(">i", len(part)) + part for part in parts]
    blocks.insert(1, struct.pack(">i", 1))
    old = RegisterBrokerBody.decode_for(zlib.compress(b"".join(blocks)), compressed=True, version=409)
    assert old.wrapper.topics == {"T": TopicConfig("T", 4, 4)}
    assert RegisterBrokerBody.decode_compressed(old.encode_compressed(409), 409) == old


def test_registrations_without_body_and_of_brokers_before_3_0_11() -> None:
    assert RegisterBrokerBody.decode_for(b"", compressed=True) == RegisterBrokerBody()
    alone = f'{{"dataVersion":{ZERO_VERSION},"topicConfigTable":{{"T":{TOPIC_TEXT}}}}}'.encode()
    assert RegisterBrokerBody.decode_for(alone, version=36).wrapper.topics == {"T": TopicConfig("T", 4, 4)}
    assert RegisterBrokerBody.decode_for(alone, version=37) == RegisterBrokerBody()


def test_static_topics_of_java_brokers_have_bare_numbers_as_keys() -> None:
    text = '{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"S":{"currIdMap":{0:1,1:2}}}}}'
    infos = RegisterBrokerBody.decode_for(text.encode()).wrapper.mapping_infos
    assert infos == {"S": {"currIdMap": {"0": 1, "1": 2}}}


def test_the_checksum_of_a_registration_is_never_negative() -> None:
    assert bodies.body_crc32(b"a") == zlib.crc32(b"a") & 0x7FFFFFFF
    assert zlib.crc32(b"a") >> 31


TOPICS = st.builds(
    TopicConfig,
    NAMES,
    COUNTS,
    COUNTS,
    st.integers(0, 7).map(Permission),
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(NAMES, NAMES, max_size=2),
)


@given(
    st.lists(TOPICS, max_size=4), st.builds(DataVersion, COUNTS, COUNTS, COUNTS), st.lists(TEXT, max_size=2)
)
def test_any_registration_reads_back_the_same(
    topics: list[TopicConfig], version: DataVersion, filters: list[str]
) -> None:
    wrapper = TopicConfigSerializeWrapper(version, {topic.name: topic for topic in topics})
    body = RegisterBrokerBody(wrapper, tuple(filters))
    assert RegisterBrokerBody.decode(body.encode()) == body
    assert RegisterBrokerBody.decode_compressed(body.encode_compressed()) == body


def test_a_line_cannot_hold_a_space() -> None:
    topic = TopicConfig("T", attributes={"a": "b c"})
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics={"T": topic}))
    with pytest.raises(CodecError, match="space"):
        body.encode_compressed()


@pytest.mark.abuse("A5")
def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(bytes(200 * 1024 * 1024), 9)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="more than"):
            RegisterBrokerBody.decode_compressed(bomb, inflated_bytes_max=1024 * 1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def _lying(**changes: bytes) -> bytes:
    parts = {
        "version": struct.pack(">i", 2) + b"{}",
        "topics": struct.pack(">i", 0),
        "filters": struct.pack(">i", 2) + b"[]",
        "mappings": struct.pack(">i", 0),
    }
    return zlib.compress(b"".join({**parts, **changes}.values()))


@pytest.mark.abuse("A5")
@pytest.mark.parametrize(
    "data",
    [
        b"not zlib",
        zlib.compress(b"x" * 100)[:-4],
        COMPRESSED + b"tail",
        _lying(version=struct.pack(">i", -1)),
        _lying(version=struct.pack(">i", 2**31 - 1)),
        _lying(version=struct.pack(">i", 2) + b"[]"),
        _lying(topics=struct.pack(">i", 2**31 - 1)),
        _lying(topics=struct.pack(">i", -1)),
        _lying(topics=struct.pack(">ii", 1, 9) + b"T 4 4 6 X"),
        _lying(topics=struct.pack(">ii", 1, 3) + b"T 4"),
        _lying(topics=struct.pack(">ii", 1, 18) + b"T x 4 6 SINGLE_TAG"),
        _lying(topics=struct.pack(">ii", 1, 18) + b" 4 4 6 SINGLE_TAG "),
        _lying(topics=struct.pack(">ii", 1, 22) + b"T 4 4 6 SINGLE_TAG {a:"),
        _lying(topics=struct.pack(">ii", 1, 2) + b"\xff\xfe"),
        _lying(filters=struct.pack(">i", 2) + b"{}"),
        _lying(filters=struct.pack(">i", 3) + b"[1]"),
        _lying(mappings=b"\0\0"),
        _lying(mappings=struct.pack(">ii", 1, 1) + b"5"),
    ],
)
def test_compressed_registrations_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        RegisterBrokerBody.decode_compressed(data)


# -- metadata of penstock.metadata on the wire ----------------------------------------------------------------


def test_groups_on_the_wire() -> None:
    text = (
        '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        '"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g",'
        '"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
        '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )
    group = bodies.decode_group_config(text.encode())
    assert group == SubscriptionGroup("g")
    assert bodies.encode_group_config(group).decode() == text
    assert bodies.decode_group_config_list(bodies.encode_group_config_list([group])) == [group]
    table = SubscriptionGroupTable(DataVersion(0, 1, 2), {"g": group}, {"g": {"T": 4}})
    assert bodies.decode_group_table(bodies.encode_group_table(table)) == table


def test_topics_and_offsets_on_the_wire() -> None:
    topic = TopicConfig("T", 4, 4)
    assert bodies.encode_topic_config(topic).decode() == TOPIC_TEXT
    assert bodies.decode_topic_config(TOPIC_TEXT.encode()) == topic
    assert bodies.decode_topic_config_list(bodies.encode_topic_config_list([topic])) == [topic]
    version = DataVersion(1, 2, 3)
    assert bodies.decode_data_version(bodies.encode_data_version(version)) == version
    offsets = ConsumerOffsetTable(version, {TopicGroup("T", "g"): {0: 5}})
    data = bodies.encode_consumer_offsets(offsets)
    assert data == (
        b'{"dataVersion":{"counter":2,"stateVersion":1,"timestamp":3},"offsetTable":{"T@g":{"0":5}}}'
    )
    assert bodies.decode_consumer_offsets(b'{"offsetTable":{"T@g":{0:5}}}').offsets == offsets.offsets


# -- batches -------------------------------------------------------------------------------------------------

# From the reference: body `hi` with KEYS, WAIT and TAGS; then an empty body with flag -5.
BATCH = bytes.fromhex(
    "00000034000000000000000000000000000000026869001c4b455953016b31025741495401747275650254414753017461674102"
    "000000200000000000000000fffffffb00000000000a57414954017472756502"
)


def test_a_batch_as_the_reference_encodes_it() -> None:
    messages = [
        Message("T", b"hi", {"KEYS": "k1", "WAIT": "true", "TAGS": "tagA"}),
        Message("T", b"", {"WAIT": "true"}, -5),
    ]
    assert encode_batch(messages) == BATCH
    assert [record.message("T") for record in decode_batch(BATCH)] == messages
    assert decode_batch(b"") == []


MESSAGES = st.builds(
    Message,
    st.just("T"),
    st.binary(max_size=40),
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.integers(-(2**31), 2**31 - 1),
)


@given(st.lists(MESSAGES, max_size=5))
def test_any_batch_reads_back_the_same(messages: list[Message]) -> None:
    assert [record.message("T") for record in decode_batch(encode_batch(messages))] == messages


@pytest.mark.abuse("A5")
@given(st.data())
def test_a_batch_with_a_changed_length_is_refused_or_means_something(data: st.DataObject) -> None:
    """Whatever is read covers the batch exactly: no byte of it belongs to two messages."""
    changed = bytearray(BATCH)
    at = data.draw(st.sampled_from([0, 16, 22, 52, 68, 72]))
    size = 2 if at in (22, 72) else 4
    changed[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
    try:
        records = decode_batch(changed)
    except CodecError:
        return
    assert sum(22 + len(record.body) + len(record.properties) for record in records) == len(BATCH)


@pytest.mark.abuse("A5")
@pytest.mark.parametrize("cut", [1, 4, 21, 33, 51, 53, 83])
def test_a_cut_batch_is_refused(cut: int) -> None:
    with pytest.raises(CodecError):
        decode_batch(BATCH[:cut])


def test_what_fits_no_record_is_not_written() -> None:
    with pytest.raises(CodecError):
        bodies.encode_batch_record(b"", bytes(32768))
    with pytest.raises(CodecError):
        bodies.encode_batch_record(b"", b"", 2**31)
