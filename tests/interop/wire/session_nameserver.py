"""The scripted session with a name server: tables, registration, lists, settings, both header forms."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from tests.interop.wire.crosscheck import Recorder
from tests.interop.wire.frames import Wire

_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
_NEXT_VERSION = {"counter": 2, "stateVersion": 0, "timestamp": 1_700_000_001_000}
_NO_SLAVE = "127.0.0.1:2"
_ADDRESSES = {"b-x": "127.0.0.1:1", "b-y": "127.0.0.1:4", "b-z": "127.0.0.1:5", "none": "127.0.0.1:9"}


def topic_config(name: str, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": sys_flag,
        "writeQueueNums": queues,
    }


def registration(version: dict[str, Any], *topics: dict[str, Any]) -> bytes:
    table = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": {topic["topicName"]: topic for topic in topics},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return _json({"filterServerList": [], "topicConfigSerializeWrapper": table})


def compressed(version: dict[str, Any], *topics: dict[str, Any]) -> bytes:
    def sized(text: bytes) -> bytes:
        return struct.pack(">i", len(text)) + text

    lines = [
        f"{t['topicName']} {t['readQueueNums']} {t['writeQueueNums']} {t['perm']} SINGLE_TAG {{}}".encode()
        for t in topics
    ]
    plain = sized(_json(version)) + struct.pack(">i", len(lines)) + b"".join(map(sized, lines))
    return zlib.compress(plain + sized(b"[]") + struct.pack(">i", 0), 9)


def identity(name: str, address: str = "", broker_id: int = 0) -> dict[str, str]:
    return {
        "brokerName": name,
        "brokerAddr": address or _ADDRESSES[name],
        "clusterName": "imaginary",
        "haServerAddr": "127.0.0.1:3",
        "brokerId": str(broker_id),
    }


def run(recorder: Recorder) -> None:
    # One broker per connection, as in life: RocketMQ takes only one of them away when the connection drops.
    with Wire(recorder.server.nameserver) as wire, Wire(recorder.server.nameserver) as other:
        _odd_requests(recorder, wire)
        _kv_config(recorder, wire)
        _registration(recorder, wire, other)
        _routes(recorder, wire)
        _lists(recorder, wire)
        _permissions(recorder, wire)
        _topics(recorder, wire)
        _settings(recorder, wire)
        _leaving(recorder, wire)
    _dropped_connection(recorder)


def _odd_requests(recorder: Recorder, wire: Wire) -> None:
    recorder.call("ns unknown code", wire, 9999)
    recorder.call("ns unknown code, binary", wire, 9999, is_binary=True)
    wire.send(9999, flag=2)
    wire.send(105, {"topic": "TBW102"}, flag=2)
    recorder.call("ns after one-way requests", wire, 101, {"namespace": "none", "key": "none"})
    recorder.call("ns unknown language", wire, 105, {"topic": "absent"}, language="KLINGON")
    recorder.call("ns numbers as fields", wire, 105, {"topic": 17, "acceptStandardJsonOnly": True})


def _kv_config(recorder: Recorder, wire: Wire) -> None:
    place = {"namespace": "penstock", "key": "k"}
    recorder.call("ns kv put", wire, 100, {**place, "value": "v"})
    recorder.call("ns kv get", wire, 101, place)
    recorder.call("ns kv get, binary", wire, 101, place, is_binary=True)
    recorder.call("ns kv get absent key", wire, 101, {**place, "key": "none"})
    recorder.call("ns kv get absent namespace", wire, 101, {**place, "namespace": "none"})
    recorder.call("ns kv list", wire, 219, {"namespace": "penstock"})
    recorder.call("ns kv list absent", wire, 219, {"namespace": "none"})
    recorder.call("ns kv put without key", wire, 100, {"namespace": "penstock", "value": "v"})
    recorder.call("ns kv delete", wire, 102, place)
    recorder.call("ns kv delete again", wire, 102, place)
    recorder.call("ns kv get deleted", wire, 101, place)


def _registration(recorder: Recorder, wire: Wire, other: Wire) -> None:
    first, second = topic_config("imaginary-1"), topic_config("imaginary-2", 8)
    whole = registration(_VERSION, first, second)
    checked = {"compressed": "false", "bodyCrc32": str(zlib.crc32(whole) & 0x7FFFFFFF)}
    recorder.call(
        "ns register one topic of an unknown broker",
        wire,
        103,
        identity("b-x"),
        registration(_VERSION, first),
    )
    recorder.call("ns register wrong checksum", wire, 103, {**identity("b-x"), "bodyCrc32": "1"}, whole)
    recorder.call("ns register", wire, 103, {**identity("b-x"), **checked}, whole)
    slave = identity("b-x", _NO_SLAVE, 1)
    recorder.call("ns register slave", wire, 103, slave, registration(_VERSION, first, second))
    body = compressed(_VERSION, topic_config("imaginary-3", 2), topic_config("imaginary-4", 2, perm=4))
    recorder.call("ns register compressed", wire, 103, {**identity("b-y"), "compressed": "true"}, body)
    recorder.call("ns register nothing", other, 103, identity("b-z"))
    more = registration(_NEXT_VERSION, topic_config("imaginary-5", 1, sys_flag=1))
    recorder.call("ns register increment", wire, 103, identity("b-x"), more)
    for name, version in (("same", _NEXT_VERSION), ("other", _VERSION)):
        recorder.call(f"ns data version {name}", wire, 322, identity("b-x"), _json(version))
    recorder.call("ns data version of an unknown broker", wire, 322, identity("none"), _json(_VERSION))
    recorder.call("ns broker heartbeat", wire, 904, identity("b-x"))
    recorder.call("ns broker heartbeat of an unknown broker", wire, 904, identity("none"))
    members = {"clusterName": "imaginary", "brokerName": "b-x"}
    recorder.call("ns member group", wire, 901, members)
    recorder.call("ns member group absent", wire, 901, {**members, "brokerName": "none"})


def _routes(recorder: Recorder, wire: Wire) -> None:
    for topic in ("imaginary-1", "imaginary-3", "imaginary-5", "TBW102", "absent"):
        recorder.call(f"ns route {topic}", wire, 105, {"topic": topic})
    recorder.call("ns route old client", wire, 105, {"topic": "imaginary-1"}, version=399)
    asked = {"topic": "imaginary-1", "acceptStandardJsonOnly": "true"}
    recorder.call("ns route old client, standard JSON", wire, 105, asked, version=399)
    recorder.call("ns route binary", wire, 105, {"topic": "imaginary-1"}, is_binary=True)
    recorder.call("ns route without topic", wire, 105)
    recorder.call("ns route go client", wire, 105, {"topic": "imaginary-1"}, language="GO", version=317)


def _lists(recorder: Recorder, wire: Wire) -> None:
    recorder.call("ns cluster info", wire, 106)
    recorder.call("ns cluster info, binary", wire, 106, is_binary=True)
    recorder.call("ns topic list", wire, 206)
    recorder.call("ns topics of cluster", wire, 224, {"cluster": "imaginary"})
    recorder.call("ns topics of absent cluster", wire, 224, {"cluster": "none"})
    recorder.call("ns system topics", wire, 304)
    for code in (311, 312, 313):
        recorder.call(f"ns unit topics {code}", wire, code)


def _permissions(recorder: Recorder, wire: Wire) -> None:
    recorder.call("ns wipe write permission", wire, 205, {"brokerName": "b-y"})
    recorder.call("ns route after wipe", wire, 105, {"topic": "imaginary-3"})
    recorder.call("ns add write permission", wire, 327, {"brokerName": "b-y"})
    recorder.call("ns route after add", wire, 105, {"topic": "imaginary-4"})
    recorder.call("ns wipe of an unknown broker", wire, 205, {"brokerName": "none"})
    recorder.call("ns add to an unknown broker", wire, 327, {"brokerName": "none"})


def _topics(recorder: Recorder, wire: Wire) -> None:
    queue = {"brokerName": "b-x", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}
    recorder.call("ns register topic", wire, 217, {"topic": "imaginary-6"}, _json({"queueDatas": [queue]}))
    recorder.call("ns route of registered topic", wire, 105, {"topic": "imaginary-6"})
    stranger = {**queue, "brokerName": "none"}
    recorder.call(
        "ns register topic of a stranger",
        wire,
        217,
        {"topic": "imaginary-7"},
        _json({"queueDatas": [stranger]}),
    )
    recorder.call("ns route of a stranger's topic", wire, 105, {"topic": "imaginary-7"})
    recorder.call("ns delete topic", wire, 216, {"topic": "imaginary-6"})
    recorder.call("ns route of deleted topic", wire, 105, {"topic": "imaginary-6"})
    recorder.call(
        "ns delete topic in cluster", wire, 216, {"topic": "imaginary-2", "clusterName": "imaginary"}
    )
    recorder.call("ns route after delete in cluster", wire, 105, {"topic": "imaginary-2"})
    recorder.call("ns delete absent topic", wire, 216, {"topic": "none"})


def _settings(recorder: Recorder, wire: Wire) -> None:
    recorder.call("ns settings", wire, 319, shows="settings")
    recorder.call("ns settings update", wire, 318, body=b"orderMessageEnable=true")
    recorder.call("ns settings update, black list", wire, 318, body=b"kvConfigPath=/tmp/elsewhere")
    recorder.call("ns settings update, nothing", wire, 318)
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "imaginary-1", "value": "b-x:2"}
    recorder.call("ns order config", wire, 100, order)
    recorder.call("ns route with order config", wire, 105, {"topic": "imaginary-1"})
    body = registration(
        _NEXT_VERSION, topic_config("imaginary-1"), topic_config("imaginary-5", 1, sys_flag=1)
    )
    recorder.call("ns register, answered with order config", wire, 103, identity("b-x"), body)
    recorder.call("ns settings back", wire, 318, body=b"orderMessageEnable=false")
    recorder.call("ns order config removed", wire, 102, order)


def _leaving(recorder: Recorder, wire: Wire) -> None:
    recorder.call("ns unregister slave", wire, 104, identity("b-x", _NO_SLAVE, 1))
    _until_gone(wire, "imaginary-1", _NO_SLAVE)
    recorder.call("ns route without slave", wire, 105, {"topic": "imaginary-1"})
    recorder.call("ns unregister", wire, 104, identity("b-x"))
    recorder.call("ns unregister an unknown broker", wire, 104, identity("none"))
    _until_gone(wire, "imaginary-1", _ADDRESSES["b-x"])
    recorder.call("ns route of a broker that left", wire, 105, {"topic": "imaginary-1"})
    recorder.call("ns cluster info without it", wire, 106)


def _until_gone(wire: Wire, topic: str, address: str) -> None:
    """Unregistering is a matter of a moment."""
    for _ in range(100):
        answer = wire.call(105, {"topic": topic})
        if address.encode() not in answer.body:
            return
        wire.listen(0.05)


def _dropped_connection(recorder: Recorder) -> None:
    """The brokers that registered on the first connection went with it."""
    with Wire(recorder.server.nameserver) as wire:
        for _ in range(100):
            if b"imaginary" not in wire.call(106).body:
                break
            wire.listen(0.05)
        recorder.call("ns route after the connection dropped", wire, 105, {"topic": "imaginary-3"})
        recorder.call("ns cluster info at last", wire, 106)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
