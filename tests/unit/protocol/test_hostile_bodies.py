"""What no peer may do with a body: crash its reader, fill memory, or hold the loop."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError
from penstock.protocol import bodies
from penstock.protocol.bodies import (
    Body,
    HeartbeatData,
    KVTable,
    ResetOffsetBody,
    TopicConfigSerializeWrapper,
)
from tests.unit.protocol.body_samples import (
    BODIES,
    IDS,
    MQ_QUOTED,
    MQ_TEXT,
    SHAPES,
)


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    "path", ["$", "..", "@", "$.nothing", "$.a[9]", "$.a[0].x", "$.b", "$.a.b", "", "$x"]
)
def test_references_that_lead_nowhere_or_in_circles(path: str) -> None:
    document = {"a": [1], "b": {"$ref": path}}
    with pytest.raises(CodecError):
        bodies.parse_document(json.dumps(document), "t")


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A5")
def test_references_are_no_bomb() -> None:
    nested = {"a0": ["x"] * 10}
    for level in range(1, 30):
        nested[f"a{level}"] = [{"$ref": f"$.a{level - 1}"}] * 10
    with pytest.raises(CodecError, match="another reference"):
        bodies.parse_document(json.dumps(nested), "t")
    wide = {"big": ["x"] * 1000, "refs": [{"$ref": "$.big"}] * 1000}
    with pytest.raises(CodecError, match="too large"):
        bodies.parse_document(json.dumps(wide), "t")


# -- hostile shapes ------------------------------------------------------------------------------------------


def member_names(value: object) -> set[str]:
    """Every key anywhere in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(member_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(member_names(item) for item in value))
    return set()


def json_values(names: list[str]) -> st.SearchStrategy[object]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    keys = st.sampled_from(names) | st.sampled_from([MQ_TEXT, "{", "0", "-1", "$ref", "\ud800", ""])
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=12,
    )


NAMES_OF = {
    kind: sorted(set().union(*(member_names(body.to_json()) for body, _ in SHAPES if type(body) is kind)))
    for kind in BODIES
}


@pytest.mark.abuse("A3")
@given(st.data())
def test_no_json_makes_a_reader_raise_anything_but_codec_errors(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(BODIES))
    value = data.draw(st.dictionaries(st.sampled_from(NAMES_OF[kind]), json_values(NAMES_OF[kind])))
    try:
        kind.decode(json.dumps(value).encode()).encode()
    except CodecError:
        pass


def replaced(value: object, path: list[object], other: object) -> object:
    """A copy of a JSON value with one place changed."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other)
    return copy


def paths(value: object) -> list[list[object]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [[]] + [[key, *rest] for key, item in inner for rest in paths(item)]


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(("body", "text"), SHAPES, ids=IDS)
@pytest.mark.parametrize("other", [None, True, 2**70, 1.5, "x", [], [[]], {}, {"a": {}}], ids=repr)
def test_every_member_stands_every_wrong_type(body: Body, text: str, other: object) -> None:
    content = json.loads(body.encode(bare_keys=False))
    for path in paths(content):
        changed = json.dumps(replaced(content, path, other)).encode()
        try:
            type(body).decode(changed).encode()
        except CodecError:
            pass


@pytest.mark.abuse("A3")
@given(st.sampled_from(SHAPES), st.data())
def test_no_bytes_make_a_reader_raise_anything_but_codec_errors(
    shape: tuple[Body, str], data: st.DataObject
) -> None:
    body, text = shape
    changed = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        type(body).decode(changed)
    except CodecError:
        pass


@pytest.mark.abuse("A3")
@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"5",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"{" * 90_000,
        b"[" * 90_000,
        b'{"a":NaN}',
        b"{{}:",
        b'{"topic":"\\ud800"}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=range(12),
)
def test_what_is_no_object_is_refused(kind: type[Body], data: bytes) -> None:
    with pytest.raises(CodecError):
        kind.decode(data)


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A14")
def test_a_body_over_its_limit_is_not_parsed() -> None:
    with pytest.raises(CodecError, match="limit"):
        HeartbeatData.decode(b" " * (2 * 1024 * 1024 + 1))
    with pytest.raises(CodecError, match="limit"):
        KVTable.decode(b" " * (16 * 1024 * 1024 + 1))


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"no queue":1}}',
        '{"offsetTable":{"[]":1}}',
        '{"offsetTable":{"{\\"queueId\\":2147483648}":1}}',
        '{"offsetTable":{{"queueId":[]}:1}}',
        '{"offsetTable":{' + MQ_QUOTED + ":9223372036854775808}}",
        '{"offsetTable":{' + "{" * 40 + "}" * 40 + ":1}}",
        '{"offsetTable":{"' + " " * 5000 + '{}":1}}',
    ],
    ids=range(7),
)
def test_keys_that_are_no_queues(text: str) -> None:
    with pytest.raises(CodecError):
        ResetOffsetBody.decode(text.encode())


@pytest.mark.parametrize("decode", [bodies.decode_topic_config, bodies.decode_group_config])
def test_metadata_of_the_wrong_shape(decode: Callable[[bytes], object]) -> None:
    for data in (b"[]", b'{"topicName":[],"groupName":[]}', b'{"perm":99,"retryQueueNums":-1}'):
        with pytest.raises(CodecError):
            decode(data)


@pytest.mark.abuse("A14")
@pytest.mark.parametrize(
    "data",
    [
        b'{"consumerDataSet":[' + b"{}," * 10_000 + b"{}]}",
        b'{"consumerDataSet":[{"subscriptionDataSet":[' + b"{}," * 10_000 + b"{}]}]}",
        b"{x:[" + b"[]," * 10_000 + b"]}",
    ],
    ids=["consumers", "subscriptions", "elsewhere"],
)
def test_a_small_heartbeat_of_very_many_objects_is_not_read(data: bytes) -> None:
    """Three bytes make an object, and an object takes the loop microseconds: bytes alone are no limit."""
    with pytest.raises(CodecError, match="limit of 10000"):
        HeartbeatData.decode(data)


@pytest.mark.abuse("A14")
def test_a_table_of_very_many_topics_is_not_read() -> None:
    topics = ",".join(f'"{n}":{{}}' for n in range(100_001))
    with pytest.raises(CodecError, match="100000 topics"):
        TopicConfigSerializeWrapper.decode(f'{{"topicConfigTable":{{{topics}}}}}'.encode())
