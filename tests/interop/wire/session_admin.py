"""The scripted session with a broker's administration: groups, statistics, resets, relays to clients, settings.

It comes after `session_broker`, whose topics, messages and members it asks about.
"""

from __future__ import annotations

import json
from typing import Any

from tests.interop.wire.crosscheck import Recorder
from tests.interop.wire.frames import Wire
from tests.interop.wire.records import property_text, take_apart
from tests.interop.wire.session_broker import (
    GROUP,
    TOPIC,
    heartbeat,
    pull_fields,
    send_fields,
    subscription,
    topic_fields,
)

_RUNNING = {"properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}, "mqTable": {}, "subscriptionSet": []}


def run(recorder: Recorder) -> None:
    with Wire(recorder.server.broker) as wire, Wire(recorder.server.broker) as member:
        recorder.know(wire.own_address, "<admin>")
        recorder.know(member.own_address, "<member>")
        member.call(34, body=heartbeat("client-9", subscription(), subscription("session-one")))
        member.await_request(40)
        _groups(recorder, wire)
        _progress(recorder, wire)
        _relays(recorder, wire, member)
        _replies(recorder, wire, member)
        _resets(recorder, wire, member)
        _broker(recorder, wire)
        _transactions(recorder, wire)
        _not_there(recorder, wire)
        _deletions(recorder, wire)
        recorder.call("send, empty body", wire, 10, send_fields("session-one"), b"")


def group_config(name: str, **changes: Any) -> bytes:
    value = {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": name,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    return _json({**value, **changes})


def _groups(recorder: Recorder, wire: Wire) -> None:
    recorder.call("create group", wire, 200, body=group_config("session-made", retryMaxTimes=3))
    recorder.call("create group, bad name", wire, 200, body=group_config("bad group!"))
    recorder.call(
        "create groups", wire, 225, body=b'{"groupConfigList":[' + group_config("session-listed") + b"]}"
    )
    recorder.call(
        "create group that may not consume", wire, 200, body=group_config("session-shut", consumeEnable=False)
    )
    recorder.call(
        "pull of a group that may not consume", wire, 11, pull_fields(0, consumerGroup="session-shut")
    )
    recorder.call("group config", wire, 352, {"group": "session-made"})
    recorder.call("group config, made by a heartbeat", wire, 352, {"group": GROUP})
    recorder.call("group config, absent", wire, 352, {"group": "session-none"})
    recorder.call("all group configs", wire, 201)
    recorder.call("delete group", wire, 207, {"groupName": "session-listed", "cleanOffset": "true"})
    recorder.call("delete absent group", wire, 207, {"groupName": "session-none-2", "cleanOffset": "true"})
    recorder.call("forbidden", wire, 353, {"group": "session-made", "topic": TOPIC})
    forbid = {"group": "session-made", "topic": TOPIC, "readable": "false"}
    recorder.call("forbid", wire, 353, forbid)
    recorder.call("allow", wire, 353, {**forbid, "readable": "true"})


def _progress(recorder: Recorder, wire: Wire) -> None:
    recorder.call("consume statistics", wire, 208, {"consumerGroup": GROUP})
    recorder.call("consume statistics of a topic", wire, 208, {"consumerGroup": GROUP, "topic": TOPIC})
    recorder.call("consume statistics, absent group", wire, 208, {"consumerGroup": "session-none-3"})
    recorder.call("consume statistics of the broker", wire, 317, {"isOrder": "false"})
    recorder.call("groups of a topic", wire, 300, {"topic": TOPIC})
    recorder.call("groups of an absent topic", wire, 300, {"topic": "none"})
    recorder.call("topics of a group", wire, 343, {"group": GROUP})
    recorder.call("subscription of a group", wire, 345, {"group": GROUP, "topic": TOPIC})
    recorder.call("subscription, absent", wire, 345, {"group": GROUP, "topic": "session-mute"})
    recorder.call("time span", wire, 303, {"topic": TOPIC, "group": GROUP})
    recorder.call("time span, absent topic", wire, 303, {"topic": "none", "group": GROUP})
    recorder.call(
        "correction offsets", wire, 308, {"compareGroup": GROUP, "topic": TOPIC, "filterGroups": ""}
    )
    recorder.call("all offsets", wire, 43)
    recorder.call("producers", wire, 328)
    copy = {"srcGroup": GROUP, "destGroup": "session-made", "topic": TOPIC, "offline": "false"}
    recorder.call("copy offsets", wire, 314, copy)
    recorder.call(
        "copied offset", wire, 14, {"consumerGroup": "session-made", "topic": TOPIC, "queueId": "2"}
    )


def _relays(recorder: Recorder, wire: Wire, member: Wire) -> None:
    """Questions that the broker passes on to a consumer, whose answer it returns."""
    running = {"consumerGroup": GROUP, "clientId": "client-9", "jstackEnable": "false"}
    opaque = wire.send(307, running)
    asked = member.await_request(307)
    recorder.note("running info, as asked of the client", asked)
    member.reply(asked, body=_json(_RUNNING))
    recorder.note("running info", wire.answer(opaque))
    recorder.call("running info, absent client", wire, 307, {**running, "clientId": "none"})

    position = take_apart(wire.call(11, pull_fields(0)).body)[0]["position"]
    host, _, port = recorder.server.broker.rpartition(":")
    offset_id = bytes(map(int, host.split("."))).hex().upper() + f"{int(port):08X}{position:016X}"
    direct = {"consumerGroup": GROUP, "clientId": "client-9", "msgId": offset_id, "brokerName": "broker-a"}
    opaque = wire.send(309, direct)
    asked = member.await_request(309)
    recorder.note("direct consumption, as asked of the client", asked, shows="records")
    result = {"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False, "spentTimeMills": 1}
    member.reply(asked, body=_json(result))
    recorder.note("direct consumption", wire.answer(opaque))

    opaque = wire.send(223, {"topic": TOPIC, "group": GROUP, "clientAddr": ""})
    asked = member.await_request(221)
    recorder.note("status, as asked of the client", asked)
    member.reply(
        asked, body=b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"session"}:4}}'
    )
    recorder.note("status", wire.answer(opaque))
    recorder.call("status, absent group", wire, 223, {"topic": TOPIC, "group": "session-none-4"})


def _replies(recorder: Recorder, wire: Wire, member: Wire) -> None:
    """A reply goes through the broker to the client that asked."""
    asking = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "client-9", "TTL": "3000", "MSG_TYPE": "reply"}
    asking |= {"UNIQ_KEY": "R1", "CLUSTER": "DefaultCluster"}
    fields = send_fields("DefaultCluster_REPLY_TOPIC", properties=property_text(asking))
    opaque = wire.send(324, fields, b"reply")
    pushed = member.await_request(326)
    recorder.note("reply, as pushed to the client", pushed, shows="nothing")
    recorder.note_value("reply, its body", pushed.body.decode())
    member.reply(pushed)
    recorder.note("reply", wire.answer(opaque))
    lost = property_text({**asking, "REPLY_TO_CLIENT": "none", "UNIQ_KEY": "R2"})
    recorder.call(
        "reply to nobody", wire, 324, send_fields("DefaultCluster_REPLY_TOPIC", properties=lost), b"reply"
    )


def _resets(recorder: Recorder, wire: Wire, member: Wire) -> None:
    """Groups reset on the broker: the next pull of a queue is told where to go on."""
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": "1000", "isForce": "true"}
    recorder.call("reset offsets by time", wire, 222, reset)
    member.listen(0.3)
    recorder.note_value(
        # 40 says that members of a group changed; it may come late, and not because of the reset.
        "reset, requests pushed to the client",
        sorted({frame.code for frame in member.asked} - {40}),
    )
    at = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "2"}
    recorder.call("offset after reset", wire, 14, at)
    recorder.call("commit after reset", wire, 15, {**at, "commitOffset": "2"})
    recorder.call("offset after a commit after reset", wire, 14, at)
    recorder.call("pull after reset", wire, 11, pull_fields(3, 2), shows="records")
    recorder.call("pull after that", wire, 11, pull_fields(0, 2, maxMsgNums="1"), shows="records")
    recorder.call("commit after that", wire, 15, {**at, "commitOffset": "2"})
    recorder.call("offset after that", wire, 14, at)
    recorder.call("reset one queue to an offset", wire, 222, {**reset, "queueId": "2", "offset": "1"})
    recorder.call("offset of the one queue", wire, 14, at)
    recorder.call("reset to the end", wire, 222, {**reset, "timestamp": "-1"})
    recorder.call("reset, absent topic", wire, 222, {**reset, "topic": "none"})
    recorder.call("reset, group never seen", wire, 222, {**reset, "group": "session-none-5"})


def _broker(recorder: Recorder, wire: Wire) -> None:
    recorder.call("broker settings", wire, 26, shows="settings")
    recorder.call("broker settings update", wire, 25, body=b"traceOn=true")
    recorder.call("broker settings update, file sizes", wire, 25, body=b"mappedFileSizeCommitLog=67108864")
    recorder.call("broker settings update, black list", wire, 25, body=b"brokerConfigPath=/tmp/elsewhere")
    recorder.call("broker settings update, nothing", wire, 25)
    recorder.call("runtime info", wire, 28)
    recorder.call("delay offsets", wire, 45)
    recorder.call("HA status", wire, 907)
    counted = {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}
    recorder.call("statistics", wire, 315, counted)
    recorder.call("statistics, absent name", wire, 315, {**counted, "statsName": "NONE"})
    recorder.call("statistics, absent key", wire, 315, {**counted, "statsKey": "none"})
    for step, code in (
        ("clean expired queues", 306),
        ("delete expired log", 329),
        ("clean unused topics", 316),
    ):
        recorder.call(step, wire, code)


def _transactions(recorder: Recorder, wire: Wire) -> None:
    end = {
        "producerGroup": "session-producers",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "U1",
    }
    recorder.call("end of a transaction that never was", wire, 37, end)
    names = {"TRAN_MSG": "true", "PGROUP": "session-producers", "UNIQ_KEY": "TX1", "TAGS": "a"}
    half = send_fields("session-one", 0, properties=property_text(names), sysFlag="4")
    answer = recorder.call("half message", wire, 10, half, b"half")
    place = {
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(int(answer.fields["msgId"][-16:], 16)),
        "msgId": "TX1",
    }
    recorder.call("end by another group", wire, 37, {**end, **place, "producerGroup": "session-others"})
    recorder.call("commit of a transaction", wire, 37, {**end, **place})
    half["properties"] = property_text({**names, "UNIQ_KEY": "TX2"})
    answer = recorder.call("half message to be rolled back", wire, 10, half, b"half")
    place["tranStateTableOffset"] = answer.fields["queueOffset"]
    place["commitLogOffset"] = str(int(answer.fields["msgId"][-16:], 16))
    recorder.call(
        "rollback of a transaction", wire, 37, {**end, **place, "msgId": "TX2", "commitOrRollback": "12"}
    )
    recorder.call("queue after a commit and a rollback", wire, 30, {"topic": "session-one", "queueId": "0"})


def _not_there(recorder: Recorder, wire: Wire) -> None:
    """What RocketMQ has and Penstock does not, or not yet: each is refused in the ordinary way."""
    assignment = {
        "clientId": "client-9",
        "consumerGroup": GROUP,
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
    }
    recorder.call("query assignment", wire, 400, body=_json({**assignment, "topic": TOPIC}))
    pop = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "maxMsgNums": "1",
        "invisibleTime": "60000",
    }
    pop |= {"pollTime": "0", "bornTime": "0", "initMode": "0"}
    recorder.call("pop", wire, 200050, {**pop, "maxMsgNums": "33"})
    recall = {"producerGroup": "p", "topic": TOPIC, "recallHandle": "none"}
    recorder.call("recall", wire, 370, recall)
    recorder.call("users", wire, 3005, {"filter": ""})
    recorder.call("timer metrics", wire, 61)


def _deletions(recorder: Recorder, wire: Wire) -> None:
    wire.call(17, topic_fields("session-doomed", 1))
    recorder.call("delete topic", wire, 215, {"topic": "session-doomed"})
    recorder.call("config of deleted topic", wire, 351, {"topic": "session-doomed"})
    recorder.call("delete absent topic", wire, 215, {"topic": "none"})
    recorder.call("delete system topic", wire, 215, {"topic": "SCHEDULE_TOPIC_XXXX"})
    recorder.call("delete topic without name", wire, 215)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
