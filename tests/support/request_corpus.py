"""One valid request, or several, of every code that a broker, a name server and a coordinator know: what mutations
start from.

All of them name the hostile topic, group, client and broker, so that whatever a mutation of them may legally do,
it does to those. A test compares the codes here with the servers' own tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.metadata.config_files import DataVersion
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import (
    BrokerData,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    encode_batch_record,
)
from penstock.protocol.bodies.balance import LeaseRequestBody

TOPIC, GROUP, CLIENT = "hostile-topic", "hostile-group", "10.9.9.9@hostile"
BROKER, CLUSTER, ADDRESS = "hostile-broker", "hostile-cluster", "10.9.9.9:10911"
UNIQUE = "0A0909090BAD18B4AAC2000000000001"


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it has an opaque and a header form."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = 401
    # How a mutation may look into the body: json, batch, zlib, text or nothing.
    kind: str = ""


def request(code: int, body: bytes = b"", kind: str = "", /, **fields: object) -> Request:
    texts = {name: _text(value) for name, value in fields.items() if value is not None}
    return Request(code, texts, body, kind=kind or ("json" if body else ""))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def properties(**pairs: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


PROPERTIES = properties(KEYS="k1 k2", UNIQ_KEY=UNIQUE, WAIT="true", TAGS="TagA")
V1 = {
    "producerGroup": GROUP,
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 1,
    "sysFlag": 0,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 0,
    "properties": PROPERTIES,
    "reconsumeTimes": 0,
    "unitMode": False,
    "maxReconsumeTimes": 16,
    "batch": False,
    "bname": "broker-a",
}
LETTERS = dict(zip(V1, "abcdefghijklmn", strict=True))
V2 = {LETTERS[name]: value for name, value in V1.items() if name != "maxReconsumeTimes"}
BATCH = b"".join(
    encode_batch_record(
        b"item %d" % n, properties(UNIQ_KEY=f"{UNIQUE}{n}", TAGS="a", WAIT="true").encode(), n
    )
    for n in range(4)
)
PULL = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": 1,
    "queueOffset": 0,
    "maxMsgNums": 32,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 3_000,
    "subscription": "TagA || TagB",
    "subVersion": 1,
    "expressionType": "TAG",
    "maxMsgBytes": 4096,
}
SUBSCRIPTION = SubscriptionData.parse(TOPIC, "TagA || TagB", sub_version=17)
HEARTBEAT = HeartbeatData(
    CLIENT, (ProducerData(GROUP),), (ConsumerData(GROUP, subscriptions=(SUBSCRIPTION,)),)
).encode()
QUEUES = tuple(MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in range(3))
LOCKS = LockBatchRequestBody(CLIENT, GROUP, QUEUES).encode()
LEASES = LeaseRequestBody(CLIENT, GROUP, QUEUES).encode()
NEW_TOPIC = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": "+message.type=NORMAL",
}
GROUP_CONFIG = (
    b'{"groupName":"hostile-group","consumeEnable":true,"consumeFromMinEnable":true,'
    b'"consumeBroadcastEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0,'
    b'"whichBrokerWhenConsumeSlowly":1,"notifyConsumerIdsChangedEnable":true,"attributes":{"+a":"b"}}'
)
TOPIC_CONFIG = (
    b'{"topicName":"hostile-topic","readQueueNums":4,"writeQueueNums":4,"perm":6,"topicSysFlag":0,'
    b'"topicFilterType":"SINGLE_TAG","order":false,"attributes":{"+message.type":"NORMAL"}}'
)
CHECK = (
    b'{"clientId":"10.9.9.9@hostile","group":"hostile-group","namespace":"n","subscriptionData":'
    b'{"topic":"hostile-topic","subString":"a","expressionType":"TAG","subVersion":1}}'
)
QUEUE = {"topic": TOPIC, "queueId": 1}

END = {
    "topic": TOPIC,
    "producerGroup": GROUP,
    "tranStateTableOffset": 0,
    "commitLogOffset": 0,
    "commitOrRollback": 8,
    "fromTransactionCheck": False,
    "msgId": UNIQUE,
    "transactionId": UNIQUE,
}
POP = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
HANDLE = "0 1700000000000 60000 0 0 hostile-broker 0 0"
ORDERED_HANDLE = "0 1700000000000 60000 999 0 hostile-broker 0 0"
BROKER_REQUESTS = (
    request(10, b"a body", "text", **V1),
    request(310, b"a body", "text", **V2),
    request(310, b"x" * 3_000, "text", **{**V2, "i": properties(UNIQ_KEY=UNIQUE), "f": 1}),
    request(310, b"late", "text", **{**V2, "i": PROPERTIES + properties(DELAY="2")}),
    request(310, BATCH, "batch", **{**V2, "m": True, "i": "WAIT\x01true\x02"}),
    request(310, b"once", "text", **V2, penstockProducer="hostile-producer", penstockSequence=7),
    request(
        320, BATCH, "batch", **{**V2, "m": True}, penstockProducer="hostile-producer", penstockSequence=9
    ),
    request(320, BATCH, "batch", **{**V2, "m": True, "i": "WAIT\x01true\x02"}),
    request(11, **PULL),
    request(11, **{**PULL, "sysFlag": 7}),
    request(11, **{**PULL, "sysFlag": 0, "queueOffset": 3}),
    request(361, **{**PULL, "sysFlag": 22}),
    request(37, **END),
    request(37, **{**END, "commitOrRollback": 12, "fromTransactionCheck": True}),
    request(323, topic=TOPIC, msgId="7F00000100002A9F0000000000000000"),
    request(60),
    request(61),
    request(61, penstockAhead=True),
    request(370, producerGroup=GROUP, topic=TOPIC, recallHandle="djEgaG9zdGlsZS10b3BpYyBiIDEgMg=="),
    request(
        400,
        b'{"consumerGroup":"hostile-group","topic":"hostile-topic","clientId":"10.9.9.9@hostile",'
        b'"strategyName":"AVG","messageModel":"CLUSTERING"}',
    ),
    request(
        401,
        b'{"consumerGroup":"hostile-group","topic":"hostile-topic","mode":"PULL","popShareQueueNum":0}',
    ),
    request(402),
    request(
        200050, **POP, maxMsgNums=4, invisibleTime=60_000, pollTime=20, initMode=0, expType="TAG", exp="*"
    ),
    request(
        200050,
        **POP,
        maxMsgNums=4,
        invisibleTime=60_000,
        pollTime=20,
        initMode=0,
        expType="SQL92",
        exp="a > 1 or a is null",
        order=True,
        attemptId="attempt-1",
    ),
    request(200051, **POP, extraInfo=HANDLE, offset=0),
    request(200051, **POP, extraInfo=ORDERED_HANDLE, offset=0),
    request(200052, **POP, maxMsgNums=4),
    request(200053, **POP, extraInfo=HANDLE, offset=0, invisibleTime=30_000),
    request(200053, **POP, extraInfo=ORDERED_HANDLE, offset=0, invisibleTime=30_000),
    request(200054, **POP, pollTime=20, bornTime=0),
    request(200055, **POP),
    request(
        200151,
        b'{"brokerName":"hostile-broker","acks":[{"c":"hostile-group","t":"hostile-topic","r":"0","so":0,"q":0,'
        b'"rq":0,"pt":1,"it":60000,"b":"AQ=="}]}',
    ),
    request(12, topic=TOPIC, key="k1", maxNum=32, beginTimestamp=0, endTimestamp=2**62),
    request(14, consumerGroup=GROUP, **QUEUE, setZeroIfNotFound=True),
    request(15, consumerGroup=GROUP, **QUEUE, commitOffset=1),
    request(17, **NEW_TOPIC),
    request(18, b'{"topicConfigList":[%b]}' % TOPIC_CONFIG),
    request(21, topicSeq=0, maxTopicNum=100),
    request(25, b"traceOn=true\nlongPollingEnable=true\n", "text"),
    request(26),
    request(28),
    request(29, **QUEUE, timestamp=1_700_000_000_000, boundaryType="lower"),
    request(30, **QUEUE, committed=True),
    request(31, **QUEUE),
    request(32, **QUEUE),
    request(33, offset=0, topic=TOPIC),
    request(34, HEARTBEAT),
    request(35, clientID=CLIENT, producerGroup=GROUP, consumerGroup=GROUP),
    request(36, offset=0, group=GROUP, delayLevel=1, originMsgId=UNIQUE, originTopic=TOPIC, unitMode=False),
    request(38, consumerGroup=GROUP),
    request(41, LOCKS),
    request(42, LOCKS),
    request(43),
    request(45),
    request(46, CHECK),
    request(200, GROUP_CONFIG),
    request(201, groupSeq=0),
    request(202, topic=TOPIC),
    request(203, consumerGroup=GROUP),
    request(204, producerGroup=GROUP),
    request(207, groupName=GROUP, cleanOffset=True),
    request(208, consumerGroup=GROUP, topic=TOPIC, topicList=f"{TOPIC};{TOPIC}"),
    request(215, topic=TOPIC),
    request(222, topic=TOPIC, group=GROUP, timestamp=-1, isForce=True, queueId=-1, offset=-1),
    request(223, topic=TOPIC, group=GROUP, clientAddr=CLIENT),
    request(225, b'{"groupConfigList":[%b]}' % GROUP_CONFIG),
    request(300, topic=TOPIC),
    request(303, topic=TOPIC, group=GROUP),
    request(305),
    request(306),
    request(307, consumerGroup=GROUP, clientId=CLIENT, jstackEnable=False),
    request(308, compareGroup=GROUP, topic=TOPIC, filterGroups="a,b"),
    request(309, consumerGroup=GROUP, clientId=CLIENT, msgId=f"0A09090900002A9F{0:016X}", topic=TOPIC),
    request(314, srcGroup=GROUP, destGroup="hostile-copy", topic=TOPIC, offline=True),
    request(315, statsName="TOPIC_PUT_NUMS", statsKey=TOPIC),
    request(316),
    request(317, isOrder=False),
    request(321, **QUEUE, index=0, count=10, consumerGroup=GROUP),
    request(324, b"reply", "text", **{**V1, "properties": PROPERTIES + properties(REPLY_TO_CLIENT=CLIENT)}),
    request(325, b"reply", "text", **{**V2, "i": PROPERTIES + properties(REPLY_TO_CLIENT=CLIENT)}),
    request(328),
    request(329),
    request(343, group=GROUP),
    request(345, group=GROUP, topic=TOPIC),
    request(351, topic=TOPIC, lo=False),
    request(352, group=GROUP),
    request(353, group=GROUP, topic=TOPIC, readable=True),
    request(907),
    request(513, **NEW_TOPIC),
    request(9026, LEASES),
    request(9027, LEASES),
    request(9028, LEASES),
    request(9040, clientID=CLIENT),
    request(9041, **{**PULL, "windowMessages": 8, "windowBytes": 65_536}),
    request(9042, consumerGroup=GROUP, **QUEUE),
    request(9043),
    request(9044, consumerGroup=GROUP, clientID=CLIENT, **QUEUE),
    request(9045, consumerGroup=GROUP),
)

TABLE = TopicConfigSerializeWrapper(
    DataVersion(0, 7, 1_700_000_000_000),
    {name: TopicConfig(name, 4, 4) for name in (TOPIC, "hostile-other")},
    mapping_infos={TOPIC: {"topic": TOPIC, "epoch": 1}},
)
REGISTRATION = RegisterBrokerBody(TABLE, ("10.9.9.9:20000",))
PLACE = {"brokerName": BROKER, "brokerAddr": ADDRESS, "clusterName": CLUSTER, "brokerId": 0}
REGISTER = {**PLACE, "haServerAddr": "10.9.9.9:10912", "bodyCrc32": 0}
ROUTE = TopicRouteData(
    (BrokerData(CLUSTER, BROKER, {0: ADDRESS}),), (QueueData(BROKER, 4, 4, 6),), filter_server_table={}
).encode()

NAME_SERVER_REQUESTS = (
    request(100, namespace="hostile", key="k", value="v"),
    request(101, namespace="hostile", key="k"),
    request(102, namespace="hostile", key="k"),
    request(103, REGISTRATION.encode(), **REGISTER, compressed=False),
    request(103, REGISTRATION.encode_compressed(401), "zlib", **REGISTER, compressed=True),
    Request(
        103,
        request(
            103, **REGISTER, compressed=True, enableActingMaster=True, heartbeatTimeoutMillis=1_000
        ).fields,
        REGISTRATION.encode_compressed(479),
        479,
        "zlib",
    ),
    request(104, **PLACE),
    request(105, topic=TOPIC, acceptStandardJsonOnly=True),
    Request(105, {"topic": TOPIC, "__ZONE_MODE": "true", "__ZONE_NAME": "z"}),
    request(106),
    request(205, brokerName=BROKER),
    request(206),
    request(216, topic=TOPIC, clusterName=CLUSTER),
    request(217, ROUTE, topic=TOPIC),
    request(219, namespace="hostile"),
    request(224, cluster=CLUSTER),
    request(304),
    request(311),
    request(312),
    request(313),
    request(318, b"orderMessageEnable=true\nscanNotActiveBrokerInterval=10000\n", "text"),
    request(319),
    request(322, b'{"counter":7,"stateVersion":0,"timestamp":1700000000000}', **PLACE),
    request(327, brokerName=BROKER),
    request(901, clusterName=CLUSTER, brokerName=BROKER),
    request(904, **PLACE, epoch=1, maxOffset=0, confirmOffset=0, heartbeatTimeoutMills=1_000),
)

CONTROLLED = {"clusterName": CLUSTER, "brokerName": BROKER}
SET = b'{"syncStateSet":[0,1],"syncStateSetEpoch":1}'
BEAT_FIELDS = {
    **CONTROLLED,
    "brokerId": 1,
    "brokerAddress": ADDRESS,
    "haAddress": "10.9.9.9:10912",
    "incarnation": 1,
}
QUEUE_OF_TOPIC = b'{"brokerName":"hostile-broker","queueId":0,"topic":"hostile-topic"}'
CLIENT_BEAT = (
    b'{"clientId":"10.9.9.9@hostile","group":"hostile-group","kind":"consumer","mode":"clustering",'
    b'"topics":["hostile-topic"],"queues":[%b],"refused":[{"brokerName":"hostile-broker","queueId":0,'
    b'"topic":"hostile-topic","holder":"x","leftMs":5}],"result":{"opType":1,"queues":[%b],"rebalanceId":4294967296,'
    b'"status":2},"sequence":1,"binding":"even"}' % (QUEUE_OF_TOPIC, QUEUE_OF_TOPIC)
)

COORDINATOR_REQUESTS = (
    request(904, **PLACE, epoch=1, maxOffset=0, confirmOffset=0, heartbeatTimeoutMills=1_000),
    request(1001, SET, brokerName=BROKER, masterBrokerId=1, masterEpoch=1, invokeTime=0),
    request(1002, **CONTROLLED, brokerId=1, designateElect=False, invokeTime=0),
    request(1003, **CONTROLLED, brokerId=1, brokerAddress=ADDRESS, invokeTime=0),
    request(1003, **BEAT_FIELDS, logIntact=True, maxEpoch=1, maxOffset=100),
    request(1004, brokerName=BROKER),
    request(1005),
    request(1006, b'["hostile-broker"]'),
    request(1009, b"electMasterMaxRetryCount=3\n", "text"),
    request(1010),
    request(1011, **CONTROLLED, brokerControllerIdsToClean="1;2", isCleanLivingBroker=False),
    request(1012, **CONTROLLED),
    request(1013, **CONTROLLED, appliedBrokerId=1, registerCheckCode="10.9.9.9;1"),
    request(
        9020,
        b'{"topics":{"hostile-topic":[4,4,6]}}',
        **BEAT_FIELDS,
        masterEpoch=1,
        maxOffset=7,
        topicsVersion=1,
    ),
    request(9021, CLIENT_BEAT),
    request(9022, CLIENT_BEAT),
    request(9023, group=GROUP),
    request(9024, topic=TOPIC, queues=2),
    request(9025),
    request(9029, topic=TOPIC),
)
