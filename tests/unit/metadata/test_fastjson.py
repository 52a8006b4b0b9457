"""JSON that fastjson writes is read; strict JSON is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError
from penstock.metadata.fastjson import BareKey, dump_compact, dump_pretty, loads

# As fastjson 1.2 prints a map with integer keys in its pretty format: bare keys, not on lines of their own.
PRETTY_OFFSETS = b"""{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"offsetTable":{
\t\t"T1@G1":{0:100,1:98
\t\t},
\t\t"%RETRY%G1@G1":{0:0
\t\t}
\t}
}"""


def test_bare_integer_keys_as_fastjson_prints_them() -> None:
    assert loads(PRETTY_OFFSETS) == {
        "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1_700_000_000_000},
        "offsetTable": {"T1@G1": {"0": 100, "1": 98}, "%RETRY%G1@G1": {"0": 0}},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:12,1:15}", {"0": 12, "1": 15}),
        ('{"0":12,1:15}', {"0": 12, "1": 15}),
        ("{-3:1}", {"-3": 1}),
        ("{name:1,$x_9:2}", {"name": 1, "$x_9": 2}),
        ("{'a':'b'}", {"a": "b"}),
        ("""{'say "hi"':"it's"}""", {'say "hi"': "it's"}),
        (r"['it\'s', '\x41\u00e9\v\7']", ["it's", "A\u00e9\v\7"]),
        (r"'\ud83d\ude00'", "\U0001f600"),
        ("[1,,2,]", [1, 2]),
        ('{,"a":1,,"b":2,}', {"a": 1, "b": 2}),
        ("[,]", []),
        ("{,}", {}),
        (" [ true , false , null ] \n", [True, False, None]),
        ("{a:1.5,b:-2e3,c:+4}", {"a": 1.5, "b": -2000.0, "c": 4}),
        ("{a:[{1:{2:[]}}]}", {"a": [{"1": {"2": []}}]}),
        ("{a:1,a:2,'a':3}", {"a": 3}),
        ("{1:1,'1':2}", {"1": 2}),
        ('"tab\there"', "tab\there"),
    ],
)
def test_what_fastjson_accepts(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", "line 1, column 1"),
        ("   ", "line 1, column 4"),
        ("{", "line 1, column 2"),
        ('{"a"', "line 1, column 5"),
        ('{"a":', "line 1, column 6"),
        ('{"a":1', "line 1, column 7"),
        ("[1", "line 1, column 3"),
        ("[1 2]", "line 1, column 4"),
        ('{"a":1 "b":2}', "line 1, column 8"),
        ("{a 1}", "line 1, column 4"),
        ("{1.5:2}", "line 1, column 3"),
        ("[1]]", "line 1, column 4"),
        ("{\n\t0:1,\n\t1:?\n}", "line 3, column 4"),
        ("'open", "line 1, column 6"),
        (r"'\q'", "line 1, column 2"),
        (r"'\u12g4'", "line 1, column 2"),
        ("nul", "line 1, column 1"),
        ("tru", "line 1, column 1"),
        ("undefined", "line 1, column 1"),
        ("[1,NaN]", "line 1, column 4"),
        ("[Infinity]", "line 1, column 2"),
        ("[1e999]", "line 1, column 2"),
        ("[-]", "line 1, column 2"),
        ("{a:" + "9" * 5_000 + "}", "line 1, column 4"),
        (":", "line 1, column 1"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, position: str) -> None:
    with pytest.raises(CodecError) as caught:
        loads(text, source="topics.json")
    assert caught.value.message.startswith("topics.json: ")
    assert position in caught.value.message


def test_bytes_that_are_not_utf_8() -> None:
    with pytest.raises(CodecError, match="byte 3 is not UTF-8"):
        loads(b'{"a\xff":1}')


@pytest.mark.abuse("A3")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 31, 32, 33, 5_000, 200_000])
def test_depth_is_limited_in_both_ways_of_reading(depth: int, strict: bool) -> None:
    text = "[" * depth + ("" if strict else ",") + "]" * depth
    if depth <= 32:
        assert str(loads(text)) == "[" * depth + "]" * depth
    else:
        with pytest.raises(CodecError, match="nested deeper than 32"):
            loads(text)
    objects = '{"a":' * depth + ("1" if strict else "+1") + "}" * depth
    if depth <= 32:
        assert loads(objects) is not None
    else:
        with pytest.raises(CodecError, match="nested deeper than 32"):
            loads(objects)


@pytest.mark.abuse("A3")
def test_size_is_limited() -> None:
    with pytest.raises(CodecError, match="limit of 10"):
        loads(b"[1,2,3,4,5]", max_bytes=10)
    assert loads(b"[1,2,3,4]", max_bytes=10) == [1, 2, 3, 4]


@pytest.mark.abuse("A3")
@given(st.text(alphabet="{}[]:,'\"\\ \n0123456789.+-eEabtrufalsn", max_size=60))
def test_any_text_is_read_or_refused_with_a_codec_error(text: str) -> None:
    try:
        value = loads(text, max_depth=8)
    except CodecError:
        return
    assert loads(dump_pretty(value)) == value


def test_written_form() -> None:
    assert dump_pretty({"b": {10: 1, 9: 2}, "a": [True, None, "\u00e9"], "c": {}}) == (
        b'{\n\t"a":[\n\t\ttrue,\n\t\tnull,\n\t\t"\\u00e9"\n\t],\n\t"b":{\n\t\t"9":2,\n\t\t"10":1\n\t},\n\t"c":{}\n}'
    )


@pytest.mark.parametrize(
    "value", [{True: 1}, {1.5: 1}, {None: 1}, {1: 1, "1": 2}, {"a": float("nan")}, {"a": float("inf")}, [{1}]]
)
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(CodecError, match="not a JSON value"):
        dump_pretty(value)


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_what_is_written_is_strict_json_and_comes_back(value: object) -> None:
    written = dump_pretty(value)
    assert json.loads(written) == value
    assert loads(written) == value


def as_fastjson_might(value: object, quote: str) -> str:
    """The same value in the loose dialect: bare or single-quoted keys, extra commas."""
    if isinstance(value, dict):
        members = (f"{as_fastjson_might(key, quote)}:{as_fastjson_might(value[key], quote)}" for key in value)
        return "{," + ",,".join(members) + ",}"
    if isinstance(value, list):
        return "[" + " , ".join(as_fastjson_might(item, quote) for item in value) + ",]"
    if isinstance(value, str) and quote == "'":
        return "'" + json.dumps(value)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
    return json.dumps(value)


@given(json_values, st.sampled_from("\"'"))
def test_the_loose_dialect_means_the_same(value: object, quote: str) -> None:
    assert loads(as_fastjson_might(value, quote)) == value


@given(st.dictionaries(st.integers(-(2**31), 2**63), st.integers(), max_size=20))
def test_integer_keys_are_the_same_bare_and_quoted(offsets: dict[int, int]) -> None:
    bare = "{" + ",".join(f"{key}:{value}" for key, value in offsets.items()) + "}"
    assert loads(bare) == loads(dump_pretty(offsets)) == {str(key): value for key, value in offsets.items()}


def test_objects_as_keys_are_kept_as_their_text() -> None:
    """fastjson writes a map whose keys are objects this way; the text is JSON again."""
    text = '{"table":{{"queueId":0, "topic":"T"}:7,{"a":{1:{}}}:8}}'
    assert loads(text) == {"table": {'{"queueId":0, "topic":"T"}': 7, '{"a":{1:{}}}': 8}}
    assert loads('{{{{"a":1}:2}:3}:4}') == {'{{{"a":1}:2}:3}': 4}


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    "text",
    ["{{:1}", "{{}", "{{}}", '{{"a"}:1}', "{[1]:2}", "{{}1}", "{" * 34 + "}" * 34, "{" * 40 + "}:1" * 40],
)
def test_objects_as_keys_have_the_limits_of_values(text: str) -> None:
    with pytest.raises(CodecError):
        loads(text)


def test_compact_json_in_both_forms() -> None:
    value = {"b": {BareKey('{"q":0}'): 1, BareKey("7"): 2}, "a": [{3: None, 20: "é"}, 0.0, True], "": ()}
    assert dump_compact(value) == (
        b'{"":[],"a":[{"3":null,"20":"\\u00e9"},0.0,true],"b":{"7":2,"{\\"q\\":0}":1}}'
    )
    assert dump_compact(value, bare_keys=True) == (
        b'{"":[],"a":[{3:null,20:"\\u00e9"},0.0,true],"b":{7:2,{"q":0}:1}}'
    )
    assert loads(dump_compact(value)) == loads(dump_compact(value, bare_keys=True))


@pytest.mark.parametrize("bare_keys", [False, True])
@pytest.mark.parametrize(
    "value", [float("nan"), pytest.param(object(), id="object"), {None: 1}, {True: 1}, {"a": b""}], ids=repr
)
def test_compact_json_refuses_what_is_no_json(value: object, bare_keys: bool) -> None:
    with pytest.raises(CodecError):
        dump_compact(value, bare_keys=bare_keys)
