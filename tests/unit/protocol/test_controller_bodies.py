"""Bodies of the controller as RocketMQ writes them, and what is refused."""

import pytest

from penstock.errors import CodecError
from penstock.protocol.bodies import Body, BrokerMemberGroup
from penstock.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    TopicTableReport,
)

ONE = ReplicaIdentity("b-a", 1, "10.0.0.1:10911", True)
SHAPES: list[tuple[Body, str]] = [
    (SyncStateSet(frozenset((2, 1)), 5), '{"syncStateSet":[1,2],"syncStateSetEpoch":5}'),
    (SyncStateSet(), '{"syncStateSet":[],"syncStateSetEpoch":0}'),
    (
        ElectMasterResponseBody(BrokerMemberGroup("c", "b-a", {1: "10.0.0.1:10911"}), frozenset((1,))),
        '{"brokerMemberGroup":{"brokerAddrs":{"1":"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c"},'
        '"syncStateSet":[1]}',
    ),
    (
        BrokerReplicasInfo({"b-a": ReplicasInfo(1, "10.0.0.1:10911", 3, 4, (ONE,), ())}),
        '{"replicasInfoTable":{"b-a":{"inSyncReplicas":[{"alive":true,"brokerAddress":"10.0.0.1:10911",'
        '"brokerId":1,"brokerName":"b-a"}],"masterAddress":"10.0.0.1:10911","masterBrokerId":1,'
        '"masterEpoch":3,"notInSyncReplicas":[],"syncStateSetEpoch":4}}}',
    ),
    (
        BrokerReplicasInfo({"b-a": ReplicasInfo(None, None, 0, 0, (), (ONE,))}),
        '{"replicasInfoTable":{"b-a":{"inSyncReplicas":[],"masterEpoch":0,"notInSyncReplicas":[{"alive":true,'
        '"brokerAddress":"10.0.0.1:10911","brokerId":1,"brokerName":"b-a"}],"syncStateSetEpoch":0}}}',
    ),
    (TopicTableReport({"T": (4, 8, 6)}), '{"topics":{"T":[4,8,6]}}'),
]


@pytest.mark.parametrize(("body", "text"), SHAPES, ids=lambda value: type(value).__name__)
def test_bodies_read_and_write_as_they_should(body: Body, text: str) -> None:
    assert body.encode().decode() == text
    assert type(body).decode(text.encode()) == body


def test_what_is_absent_has_a_default() -> None:
    assert SyncStateSet.decode(b"{}") == SyncStateSet()
    assert TopicTableReport.decode(b"{}") == TopicTableReport()
    assert BrokerReplicasInfo.decode(b"{}") == BrokerReplicasInfo()


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SyncStateSet, b'{"syncStateSet":[-1]}'),
        (SyncStateSet, b'{"syncStateSet":["x"]}'),
        (SyncStateSet, b'{"syncStateSet":{}}'),
        (SyncStateSet, b'{"syncStateSetEpoch":-1}'),
        (SyncStateSet, b'{"syncStateSet":[' + b"1," * 1_000 + b"1]}"),
        (SyncStateSet, b"[]"),
        (TopicTableReport, b'{"topics":{"T":[1,2]}}'),
        (TopicTableReport, b'{"topics":{"T":[1,2,3,4]}}'),
        (TopicTableReport, b'{"topics":{"T":[1,2,-3]}}'),
        (TopicTableReport, b'{"topics":{"T":"x"}}'),
        (TopicTableReport, b'{"topics":[]}'),
    ],
)
def test_nonsense_is_refused(kind: type[Body], text: bytes) -> None:
    with pytest.raises(CodecError):
        kind.decode(text)
