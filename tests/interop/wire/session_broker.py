"""The scripted session with a broker: topics, sends, pulls, offsets, groups, look-ups, both header forms."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from tests.interop.wire.crosscheck import Recorder
from tests.interop.wire.frames import Frame, Wire
from tests.interop.wire.records import batch, property_text, take_apart

TOPIC = "session"
GROUP = "session-group"
PRODUCERS = "session-producers"
_SUBSCRIPTION_VERSION = 1_700_000_000_000


class _UniqueKeys:
    """Keys that are the same in every session."""

    def restart(self) -> None:
        self._numbers = itertools.count()

    def next(self) -> str:
        return f"U{next(self._numbers):03}"


_UNIQUE = _UniqueKeys()
_LETTERS = dict(
    zip(
        [
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
            "maxReconsumeTimes",
            "batch",
            "bname",
        ],
        "abcdefghijklmn",
        strict=True,
    )
)


# -- requests ----------------------------------------------------------------------------------------------------


def send_fields(topic: str = TOPIC, queue: int = 0, /, **changes: Any) -> dict[str, str]:
    """The header of code 10, by its long names. Unless others are given, the only property is a unique key."""
    fields = {
        "producerGroup": PRODUCERS,
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue),
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": property_text({"UNIQ_KEY": _UNIQUE.next()}),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        "bname": "broker-a",
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


def short(fields: Mapping[str, str]) -> dict[str, str]:
    """The same header by the letters of codes 310 and 320."""
    return {_LETTERS[name]: value for name, value in fields.items()}


def pull_fields(offset: int, queue: int = 0, /, **changes: Any) -> dict[str, str]:
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": str(_SUBSCRIPTION_VERSION),
        "expressionType": "TAG",
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


def subscription(
    topic: str = TOPIC, expression: str = "*", version: int = _SUBSCRIPTION_VERSION
) -> dict[str, Any]:
    tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
    return {
        "classFilterMode": False,
        "codeSet": [_java_hash(tag) for tag in tags],
        "expressionType": "TAG",
        "subString": expression,
        "subVersion": version,
        "tagsSet": tags,
        "topic": topic,
    }


def heartbeat(client: str, *subscriptions: dict[str, Any], group: str = GROUP, **changes: Any) -> bytes:
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": list(subscriptions),
        "unitMode": False,
        **changes,
    }
    value = {
        "clientID": client,
        "consumerDataSet": [consumer] if subscriptions else [],
        "producerDataSet": [{"groupName": PRODUCERS}],
    }
    return _json(value)


def topic_fields(topic: str, queues: int = 4, /, **changes: Any) -> dict[str, str]:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


# -- session -----------------------------------------------------------------------------------------------------


def run(recorder: Recorder) -> None:
    # The same keys at every server.
    _UNIQUE.restart()
    with Wire(recorder.server.broker) as wire, Wire(recorder.server.broker) as other:
        recorder.know(wire.own_address, "<first client>")
        recorder.know(other.own_address, "<second client>")
        _odd_requests(recorder, wire)
        _topics(recorder, wire)
        _sends(recorder, wire)
        _refused_sends(recorder, wire)
        _membership(recorder, wire, other)
        _pulls(recorder, wire)
        _refused_pulls(recorder, wire)
        _long_polls(recorder, wire, other)
        _offsets(recorder, wire)
        _locks(recorder, wire)
        position = take_apart(wire.call(11, pull_fields(0)).body)[0]["position"]
        _send_back(recorder, wire, position)
        _look_ups(recorder, wire, position)


def _odd_requests(recorder: Recorder, wire: Wire) -> None:
    recorder.call("unknown code", wire, 9999)
    recorder.call("unknown code, binary", wire, 9999, is_binary=True)
    wire.send(9999, flag=2)
    recorder.call("after a one-way request", wire, 351, {"topic": "none"})
    recorder.call("heartbeat of a producer", wire, 34, body=heartbeat("client-1"))
    recorder.call("heartbeat of a producer, binary", wire, 34, body=heartbeat("client-1"), is_binary=True)
    recorder.call("heartbeat without body", wire, 34)


def _topics(recorder: Recorder, wire: Wire) -> None:
    recorder.call("create topic", wire, 17, topic_fields(TOPIC))
    recorder.call("create topic of one queue", wire, 17, topic_fields("session-one", 1))
    recorder.call("create topic, read only", wire, 17, topic_fields("session-closed", 1, perm="4"))
    recorder.call("create topic, write only", wire, 17, topic_fields("session-mute", 1, perm="2"))
    recorder.call("create topic, empty ever after", wire, 17, topic_fields("session-empty", 1))
    recorder.call("create topic, bad name", wire, 17, topic_fields("bad name!"))
    recorder.call("create topic, no name", wire, 17, topic_fields("", topic=None))
    recorder.call("create topic, long name", wire, 17, topic_fields("t" * 128))
    recorder.call("create topic, system name", wire, 17, topic_fields("SCHEDULE_TOPIC_XXXX"))
    typed = topic_fields("session-typed", 1, attributes="+message.type=FIFO")
    recorder.call("create topic with attribute", wire, 17, typed)
    strange = topic_fields("session-strange", 1, attributes="+no.such=1")
    recorder.call("create topic with unknown attribute", wire, 17, strange)
    recorder.call("topic config", wire, 351, {"topic": TOPIC})
    recorder.call("topic config with attribute", wire, 351, {"topic": "session-typed"})
    recorder.call("topic config of template", wire, 351, {"topic": "TBW102"})
    recorder.call("topic config, absent", wire, 351, {"topic": "none"})
    recorder.call("all topic configs", wire, 21)
    recorder.call("system topics", wire, 305)
    recorder.call("topic statistics, empty", wire, 202, {"topic": TOPIC})
    recorder.call("topic statistics, absent", wire, 202, {"topic": "none"})


def _sends(recorder: Recorder, wire: Wire) -> None:
    keyed = property_text({"KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": "U1", "user": "x"})
    recorder.call("send", wire, 10, send_fields(properties=keyed), b"one")
    recorder.call(
        "send by letters",
        wire,
        310,
        short(send_fields(properties=property_text({"TAGS": "b", "UNIQ_KEY": "U2"}))),
        b"two",
    )
    tagged = property_text({"TAGS": "a", "KEYS": "k1", "UNIQ_KEY": "U3"})
    recorder.call("send, binary", wire, 310, short(send_fields(properties=tagged)), b"three", is_binary=True)
    bare = send_fields(reconsumeTimes=None, unitMode=None, batch=None, bname=None)
    recorder.call("send with mandatory fields only", wire, 10, bare, b"four")
    recorder.call("send of go client", wire, 10, send_fields(), b"five", language="GO", version=317)
    recorder.call("send, flags", wire, 10, send_fields(TOPIC, 1, flag="7", sysFlag="1"), b"squeezed")
    recorder.call("send, any queue", wire, 10, send_fields("session-one", -1), b"anywhere")
    entries = batch(
        [(b"b1", {"TAGS": "a", "UNIQ_KEY": "B1"}), (b"b2", {"KEYS": "kb", "UNIQ_KEY": "B2"}), (b"b3", {})]
    )
    recorder.call("send batch", wire, 320, short(send_fields(TOPIC, 2, batch="true")), entries)
    recorder.call(
        "send to new topic",
        wire,
        310,
        short(send_fields("session-new", 3, defaultTopicQueueNums="6")),
        b"new",
    )
    recorder.call("config of new topic", wire, 351, {"topic": "session-new"})
    wire.send(310, short(send_fields(TOPIC, 3)), b"one-way", flag=2)
    recorder.call("after a one-way send", wire, 30, {"topic": TOPIC, "queueId": "3"})
    recorder.call("topic statistics", wire, 202, {"topic": TOPIC})
    delayed = send_fields("session-one", 0, properties=property_text({"DELAY": "1", "UNIQ_KEY": "D1"}))
    recorder.call("send, delayed", wire, 10, delayed, b"later")


def _refused_sends(recorder: Recorder, wire: Wire) -> None:
    fields = send_fields
    recorder.call("send, unknown topic and template", wire, 10, fields("none", defaultTopic="none"), b"x")
    recorder.call("send, queue out of range", wire, 10, fields(TOPIC, 4), b"x")
    recorder.call("send, bad name", wire, 10, fields("bad name!"), b"x")
    recorder.call("send, empty name", wire, 10, fields(""), b"x")
    recorder.call("send, long name", wire, 10, fields("t" * 128), b"x")
    recorder.call("send, system topic", wire, 10, fields("SCHEDULE_TOPIC_XXXX"), b"x")
    recorder.call("send, read-only topic", wire, 10, fields("session-closed"), b"x")
    recorder.call(
        "send, properties too long", wire, 10, fields(properties=property_text({"p": "x" * 32_768})), b"x"
    )
    recorder.call("send, body too long", wire, 10, fields(), b"x" * (4 * 1024 * 1024 + 1))
    recorder.call("send without topic", wire, 10, fields(topic=None), b"x")
    recorder.call("send without queue", wire, 10, fields(queueId=None), b"x")
    recorder.call("send, queue is no number", wire, 10, fields(queueId="first"), b"x")
    recorder.call("send batch, torn", wire, 320, short(fields(batch="true")), b"\x00\x00\x00\x40torn")
    recorder.call("send to retry topic", wire, 10, fields("%RETRY%nobody", reconsumeTimes="1"), b"x")


def _membership(recorder: Recorder, wire: Wire, other: Wire) -> None:
    group = {"consumerGroup": GROUP}
    recorder.call("members, unknown group", wire, 38, group)
    recorder.call("heartbeat of a consumer", wire, 34, body=heartbeat("client-1", subscription()))
    recorder.note("notice of the own arrival", wire.await_request(40))
    recorder.call("members", wire, 38, group)
    recorder.call("retry topic", wire, 351, {"topic": f"%RETRY%{GROUP}"})
    recorder.call("second heartbeat", wire, 34, body=heartbeat("client-1", subscription()))
    recorder.call("heartbeat of a second consumer", other, 34, body=heartbeat("client-2", subscription()))
    recorder.note("notice of a second consumer", wire.await_request(40))
    recorder.call("members, two", other, 38, group)
    recorder.call("consumer connections", wire, 203, group)
    recorder.call("consumer connections, unknown group", wire, 203, {"consumerGroup": "none"})
    recorder.call("producer connections", wire, 204, {"producerGroup": PRODUCERS})
    recorder.call("producer connections, unknown group", wire, 204, {"producerGroup": "none"})
    left = {"clientID": "client-2", "consumerGroup": GROUP, "producerGroup": PRODUCERS}
    recorder.call("unregister", other, 35, left)
    recorder.note("notice of a leaving", wire.await_request(40))
    recorder.call("members, one again", wire, 38, group)
    with Wire(recorder.server.broker) as third:
        third.call(34, body=heartbeat("client-3", subscription()))
        wire.await_request(40)
    recorder.note("notice of a dropped connection", wire.await_request(40))
    recorder.call("members after it", wire, 38, group)
    sql = {**subscription("session-one", "a > 1"), "expressionType": "SQL92", "tagsSet": [], "codeSet": []}
    check = {"clientId": "client-1", "group": GROUP, "subscriptionData": sql}
    recorder.call("check of an SQL subscription", wire, 46, body=_json(check))
    for name, text in (("broken", "a >"), ("with more behind it", "a > 1 xor b"), ("of nothing", "")):
        wrong = {**check, "subscriptionData": {**sql, "subString": text}}
        recorder.call(f"check of an SQL subscription, {name}", wire, 46, body=_json(wrong))
    recorder.call(
        "check of a tag subscription", wire, 46, body=_json({**check, "subscriptionData": subscription()})
    )


def _pulls(recorder: Recorder, wire: Wire) -> None:
    def pull(step: str, fields: dict[str, str], code: int = 11, **more: Any) -> Frame:
        return recorder.call(step, wire, code, fields, shows="records", **more)

    pull("pull", pull_fields(0))
    pull("pull, binary", pull_fields(0), is_binary=True)
    pull("pull, lite", pull_fields(0, sysFlag="20"), 361)
    pull("pull two", pull_fields(1, maxMsgNums="2"))
    pull("pull by tag", pull_fields(0, subscription="a"))
    pull("pull by tags", pull_fields(0, subscription="a || b"))
    pull("pull by absent tag", pull_fields(0, subscription="zzz"))
    for name, text in (
        ("by SQL", "TAGS = 'a' and KEYS contains 'k1'"),
        ("by SQL, one", "user in ('x')"),
        ("by SQL, none", "TAGS > 5"),
        ("by SQL, absent properties", "user is null"),
    ):
        pull(f"pull {name}", pull_fields(0, subscription=text, expressionType="SQL92"))
    pull("pull by registered subscription", pull_fields(0, sysFlag="0", subscription=None))
    pull("pull flagged body", pull_fields(0, 1))
    pull("pull batch", pull_fields(0, 2))
    pull("pull at the end", pull_fields(5))
    pull("pull beyond the end", pull_fields(6))
    pull("pull before the start", pull_fields(-1))
    pull("pull of an empty queue", pull_fields(0, topic="session-typed"))
    pull("pull of an empty queue, not at 0", pull_fields(3, topic="session-typed"))
    pull("pull nothing at all", pull_fields(0, maxMsgNums="0"))
    pull("pull and commit", pull_fields(5, sysFlag="5", commitOffset="3"))
    recorder.call(
        "offset committed by a pull", wire, 14, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    )


def _refused_pulls(recorder: Recorder, wire: Wire) -> None:
    recorder.call("pull, unknown topic", wire, 11, pull_fields(0, topic="none"))
    recorder.call("pull, queue out of range", wire, 11, pull_fields(0, 4))
    recorder.call("pull, negative queue", wire, 11, pull_fields(0, -1))
    recorder.call("pull, write-only topic", wire, 11, pull_fields(0, topic="session-mute"))
    recorder.call("pull, not subscribed", wire, 11, pull_fields(0, topic="session-one", sysFlag="0"))
    stranger = pull_fields(0, consumerGroup="session-stranger", sysFlag="0")
    recorder.call("pull, group without members", wire, 11, stranger)
    newer = pull_fields(0, sysFlag="0", subVersion=str(_SUBSCRIPTION_VERSION + 1))
    recorder.call("pull, newer subscription", wire, 11, newer)
    sql = pull_fields(0, subscription="a >", expressionType="SQL92")
    recorder.call("pull, broken SQL", wire, 11, sql, shows="records")
    empty = pull_fields(0, subscription="", expressionType="SQL92")
    recorder.call("pull, empty SQL", wire, 11, empty, shows="records")
    _refused_sql(recorder, wire)
    regex = pull_fields(0, expressionType="REGEX")
    recorder.call("pull, unknown expression type", wire, 11, regex, shows="records")
    recorder.call("pull without offset", wire, 11, pull_fields(0, queueOffset=None))
    bad_group = pull_fields(0, consumerGroup="bad group!")
    recorder.call("pull, bad group name", wire, 11, bad_group)


def _refused_sql(recorder: Recorder, wire: Wire) -> None:
    """A group that subscribed with what no broker understands."""
    broken = {**subscription("session-one", "a >"), "expressionType": "SQL92", "tagsSet": [], "codeSet": []}
    beat = heartbeat("client-sql", broken, group="session-sql")
    recorder.call("heartbeat with broken SQL", wire, 34, body=beat)
    wire.await_request(40)
    fields = pull_fields(0, topic="session-one", consumerGroup="session-sql", sysFlag="0", subscription=None)
    recorder.call("pull, registered broken SQL", wire, 11, fields)
    left = {"clientID": "client-sql", "consumerGroup": "session-sql"}
    recorder.call("unregister the group of broken SQL", wire, 35, left)


def _long_polls(recorder: Recorder, wire: Wire, other: Wire) -> None:
    held = pull_fields(0, topic="session-typed", sysFlag="6")
    opaque = wire.send(11, held)
    wire.listen(0.3)
    other.call(10, send_fields("session-typed"), b"awaited")
    recorder.note("held pull, woken", wire.answer(opaque), shows="records")
    tagged = pull_fields(1, topic="session-typed", sysFlag="6", subscription="yes")
    opaque = wire.send(11, tagged)
    wire.listen(0.3)
    other.call(
        10,
        send_fields("session-typed", properties=property_text({"TAGS": "no", "UNIQ_KEY": "N"})),
        b"unwanted",
    )
    other.call(
        10,
        send_fields("session-typed", properties=property_text({"TAGS": "yes", "UNIQ_KEY": "Y"})),
        b"wanted",
    )
    recorder.note("held pull with tag, woken", wire.answer(opaque), shows="records")
    opaque = wire.send(11, pull_fields(3, topic="session-typed", sysFlag="6", suspendTimeoutMillis="200"))
    recorder.note("held pull, out of time", wire.answer(opaque, 15), shows="records")


def _offsets(recorder: Recorder, wire: Wire) -> None:
    at = {"topic": TOPIC, "queueId": "2"}
    mine = {**at, "consumerGroup": GROUP}
    recorder.call("offset of a young queue", wire, 14, mine)
    recorder.call("offset of a young queue, not zero", wire, 14, {**mine, "setZeroIfNotFound": "false"})
    empty = {"topic": "session-empty", "queueId": "0", "consumerGroup": GROUP}
    recorder.call("offset of an empty queue", wire, 14, empty)
    recorder.call("commit", wire, 15, {**mine, "commitOffset": "2"})
    recorder.call("offset", wire, 14, mine)
    recorder.call("commit backwards", wire, 15, {**mine, "commitOffset": "1"})
    wire.send(15, {**mine, "commitOffset": "3"}, flag=2)
    recorder.call("offset after a one-way commit", wire, 14, mine)
    recorder.call("offset, binary", wire, 14, mine, is_binary=True)
    recorder.call("commit, unknown topic", wire, 15, {**mine, "topic": "none", "commitOffset": "1"})
    recorder.call("commit, queue out of range", wire, 15, {**mine, "queueId": "99", "commitOffset": "1"})
    recorder.call("commit without offset", wire, 15, mine)
    recorder.call("max offset", wire, 30, at)
    recorder.call("max offset of an empty queue", wire, 30, {"topic": "session-empty", "queueId": "0"})
    recorder.call("max offset, absent topic", wire, 30, {"topic": "none", "queueId": "0"})
    recorder.call("min offset", wire, 31, at)
    recorder.call("min offset of an empty queue", wire, 31, {"topic": "session-empty", "queueId": "0"})
    recorder.call("earliest time", wire, 32, at)
    recorder.call("earliest time of an empty queue", wire, 32, {"topic": "session-empty", "queueId": "0"})
    for when, timestamp in (("long ago", 1000), ("in an hour", int(time.time() * 1000) + 3_600_000)):
        for boundary in (None, "LOWER", "UPPER"):
            fields = {**at, "timestamp": str(timestamp)} | ({"boundaryType": boundary} if boundary else {})
            recorder.call(f"offset by time, {when}, {boundary or 'no boundary'}", wire, 29, fields)


def _locks(recorder: Recorder, wire: Wire) -> None:
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}

    def request(client: str) -> bytes:
        return _json({"clientId": client, "consumerGroup": GROUP, "mqSet": [queue], "onlyThisBroker": False})

    recorder.call("lock", wire, 41, body=request("client-1"))
    recorder.call("lock again", wire, 41, body=request("client-1"))
    recorder.call("lock by another", wire, 41, body=request("client-2"))
    recorder.call("unlock by another", wire, 42, body=request("client-2"))
    recorder.call("lock by another still", wire, 41, body=request("client-2"))
    recorder.call("unlock", wire, 42, body=request("client-1"))
    recorder.call("lock by another at last", wire, 41, body=request("client-2"))
    wire.call(42, body=request("client-2"))


def _send_back(recorder: Recorder, wire: Wire, position: int) -> None:
    back = {
        "offset": str(position),
        "group": GROUP,
        "delayLevel": "1",
        "originMsgId": "U1",
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    recorder.call("send back, unknown offset", wire, 36, {**back, "offset": str(position + 1)})
    recorder.call("send back for dead", wire, 36, {**back, "delayLevel": "-1"})
    dead = pull_fields(0, topic=f"%DLQ%{GROUP}", sysFlag="6")
    recorder.call("dead letter", wire, 11, dead, shows="records")
    recorder.call("dead letter topic", wire, 351, {"topic": f"%DLQ%{GROUP}"})
    recorder.call("send back for another try", wire, 36, back)
    retried = pull_fields(0, topic=f"%RETRY%{GROUP}", sysFlag="6")
    recorder.note("retried message", wire.answer(wire.send(11, retried), 15), shows="records")
    recorder.call("send back too often", wire, 36, {**back, "maxReconsumeTimes": "0"})
    recorder.call("send back, group unknown until now", wire, 36, {**back, "group": "session-unknown"})


def _look_ups(recorder: Recorder, wire: Wire, position: int) -> None:
    wire.listen(0.5)  # RocketMQ's index follows its log.
    end = str(int(time.time() * 1000) + 3_600_000)
    query = {"topic": TOPIC, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": end}
    for step, fields in (
        ("query by key", {"key": "k1", "_UNIQUE_KEY_QUERY": "false"}),
        ("query by key, one", {"key": "k1", "maxNum": "1"}),
        ("query by unique key", {"key": "U3", "_UNIQUE_KEY_QUERY": "true"}),
        ("query by absent key", {"key": "none"}),
        ("query in another time", {"key": "k1", "endTimestamp": "1000"}),
        ("query, absent topic", {"key": "k1", "topic": "none"}),
    ):
        recorder.call(step, wire, 12, {**query, **fields}, shows="records")
    here = {"offset": str(position)}
    recorder.call("view by offset", wire, 33, here, shows="records")
    recorder.call("view, binary", wire, 33, here, shows="records", is_binary=True)
    recorder.call("view amid a message", wire, 33, {"offset": str(position + 1)}, shows="records")
    recorder.call("view beyond the end", wire, 33, {"offset": str(1 << 40)}, shows="records")
    recorder.call("view, negative offset", wire, 33, {"offset": "-1"}, shows="records")
    entries = {"topic": TOPIC, "queueId": "0", "index": "1", "count": "2", "consumerGroup": GROUP}
    recorder.call("queue entries", wire, 321, entries)
    recorder.call("queue entries, absent topic", wire, 321, {**entries, "topic": "none"})
    patient = property_text({"UNIQ_KEY": "P", "WAIT": "true"})
    recorder.call(
        "send, storing awaited", wire, 10, send_fields("session-new", 2, properties=patient), b"patient"
    )
    recorder.call(
        "pull what was awaited",
        wire,
        11,
        pull_fields(0, 2, topic="session-new", sysFlag="6"),
        shows="records",
    )
    # Last, because the length of the key that the broker makes depends on the machine's address.
    recorder.call("send without unique key", wire, 10, send_fields("session-one", properties=None), b"x")


def _java_hash(text: str) -> int:
    value = 0
    for char in text:
        value = (31 * value + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
