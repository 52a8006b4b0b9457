"""One value of every body, with the text that RocketMQ has for it, and strategies for their parts."""

import json

from hypothesis import strategies as st

from penstock.metadata.config_files import DataVersion
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import (
    Body,
    BrokerData,
    BrokerMemberGroup,
    BrokerStatsData,
    BrokerStatsItem,
    CheckClientRequestBody,
    ClientConnection,
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumeQueueData,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerList,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeStatus,
    GetConsumerStatusBody,
    GroupForbidden,
    GroupList,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    OffsetWrapper,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerData,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QuerySubscriptionResponseBody,
    QueueData,
    QueueTimeSpan,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionData,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)

MQ = MessageQueue("T", "b-a", 0)
MQ_TEXT = '{"brokerName":"b-a","queueId":0,"topic":"T"}'
MQ_QUOTED = json.dumps(MQ_TEXT)
TAGS = SubscriptionData.parse("T", "tagA || TagA", sub_version=17)
TAGS_TEXT = (
    '{"classFilterMode":false,"codeSet":[2598919,3552231],"expressionType":"TAG",'
    '"subString":"tagA || TagA","subVersion":17,"tagsSet":["TagA","tagA"],"topic":"T"}'
)
TOPIC_TEXT = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
)
ZERO_VERSION = '{"counter":0,"stateVersion":0,"timestamp":0}'
STATS = ConsumeStats({MQ: OffsetWrapper(5, 3, 4, 7)}, 1.5)
STATS_TEXT = (
    f'{{"consumeTps":1.5,"offsetTable":{{{MQ_TEXT}:'
    '{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":7,"pullOffset":4}}}'
)
GO_CLIENT = ClientConnection("id", "1.1.1.1:2", "GO", 317)
GO_CLIENT_TEXT = '{"clientAddr":"1.1.1.1:2","clientId":"id","language":"GO","version":317}'

# Each text was read by RocketMQ 5.3.3's class of that name and written by it again with the same bytes, except
# for the two that say so. Keys that are numbers or objects stand bare, as that class writes them.
SHAPES: list[tuple[Body, str]] = [
    (
        TopicRouteData(
            (BrokerData("c", "b-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),),
            (QueueData("b-a", 4, 4, 6),),
        ),
        '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b-a",'
        '"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a",'
        '"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        TopicRouteData(
            (BrokerData("c", "b-a", {}, zone_name="z", enable_acting_master=True),),
            order_topic_conf="b-a:4",
            filter_server_table={"a:1": ("f:1",)},
            queue_mapping={"b-a": {"topic": "T"}},
        ),
        '{"brokerDatas":[{"brokerAddrs":{},"brokerName":"b-a","cluster":"c","enableActingMaster":true,'
        '"zoneName":"z"}],"filterServerTable":{"a:1":["f:1"]},"orderTopicConf":"b-a:4","queueDatas":[],'
        '"topicQueueMappingByBroker":{"b-a":{"topic":"T"}}}',
    ),
    (
        ClusterInfo({"b-a": BrokerData("c", "b-a", {0: "x:1"})}, {"c": ("b-a",)}),
        '{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"x:1"},"brokerName":"b-a","cluster":"c",'
        '"enableActingMaster":false}},"clusterAddrTable":{"c":["b-a"]}}',
    ),
    (
        BrokerMemberGroup("c", "b-a", {0: "x:1"}),
        '{"brokerMemberGroup":{"brokerAddrs":{0:"x:1"},"brokerName":"b-a","cluster":"c"}}',
    ),
    (TopicList(("T",), "a:1"), '{"brokerAddr":"a:1","topicList":["T"]}'),
    (KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
    (GroupList(("g",)), '{"groupList":["g"]}'),
    (
        HeartbeatData("cid", (ProducerData("pg"),), (ConsumerData("cg", subscriptions=(TAGS,)),)),
        '{"clientID":"cid","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{TAGS_TEXT}],"unitMode":false}}],"heartbeatFingerprint":0,'
        '"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}',
    ),
    (
        CheckClientRequestBody("c", "g", TAGS, "ns"),
        f'{{"clientId":"c","group":"g","namespace":"ns","subscriptionData":{TAGS_TEXT}}}',
    ),
    (ConsumerList(("a", "b")), '{"consumerIdList":["a","b"]}'),
    (
        QuerySubscriptionResponseBody("g", "T", TAGS),
        f'{{"group":"g","subscriptionData":{TAGS_TEXT},"topic":"T"}}',
    ),
    (
        ConsumerConnection((GO_CLIENT,), {"T": TAGS}),
        f'{{"connectionSet":[{GO_CLIENT_TEXT}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"T":{TAGS_TEXT}}}}}',
    ),
    (ProducerConnection((GO_CLIENT,)), f'{{"connectionSet":[{GO_CLIENT_TEXT}]}}'),
    (
        ProducerTableInfo({"g": (ProducerInfo("c", "1.1.1.1", "GO", 317, 5),)}),
        '{"data":{"g":[{"clientId":"c","language":"GO","lastUpdateTimestamp":5,"remoteIP":"1.1.1.1",'
        '"version":317}]}}',
    ),
    (
        LockBatchRequestBody("c", "g", (MQ,)),
        f'{{"clientId":"c","consumerGroup":"g","mqSet":[{MQ_TEXT}],"onlyThisBroker":false}}',
    ),
    (LockBatchResponseBody((MQ,)), f'{{"lockOKMQSet":[{MQ_TEXT}]}}'),
    (ResetOffsetBody({MQ: 7}), f'{{"offsetTable":{{{MQ_TEXT}:7}}}}'),
    (GetConsumerStatusBody({MQ: 7}), f'{{"messageQueueTable":{{{MQ_TEXT}:7}}}}'),
    (GetConsumerStatusBody(None, {"c1": {MQ: 9}}), f'{{"consumerTable":{{"c1":{{{MQ_TEXT}:9}}}}}}'),
    (
        TopicStatsTable({MQ: TopicOffset(0, 5, 9)}, 0.0),
        f'{{"offsetTable":{{{MQ_TEXT}:{{"lastUpdateTimestamp":9,"maxOffset":5,"minOffset":0}}}},'
        '"topicPutTps":0.0}',
    ),
    (STATS, STATS_TEXT),
    (
        ConsumeStatsList(({"g": (STATS,)},), "a:1", 3, 1),
        f'{{"brokerAddr":"a:1","consumeStatsList":[{{"g":[{STATS_TEXT}]}}],"totalDiff":3,'
        '"totalInflightDiff":1}',
    ),
    (
        # The reference adds the times as text, which nobody reads.
        QueryConsumeTimeSpanBody((QueueTimeSpan(MQ, 1, 2, 3, 4),)),
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":3,"delayTime":4,"maxTimeStamp":2,'
        f'"messageQueue":{MQ_TEXT},"minTimeStamp":1}}]}}',
    ),
    (QueryCorrectionOffsetBody({0: 4, 1: 5}), '{"correctionOffsets":{0:4,1:5}}'),
    (GroupForbidden("g", "T", True), '{"group":"g","readable":true,"topic":"T"}'),
    (
        BrokerStatsData(BrokerStatsItem(3, 1.5, 2.0)),
        '{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":2.0,"sum":3,"tps":1.5}}',
    ),
    (
        QueryConsumeQueueResponseBody((ConsumeQueueData(1, 2, 3, True, "m"),), 0, 9, TAGS),
        '{"maxQueueIndex":9,"minQueueIndex":0,"queueData":[{"eval":true,"msg":"m","physicOffset":1,'
        f'"physicSize":2,"tagsCode":3}}],"subscriptionData":{TAGS_TEXT}}}',
    ),
    (
        ConsumerRunningInfo(
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            (TAGS,),
            {MQ: ProcessQueueInfo(1, 2, 3, 4, 5, 6, 7, 8, True, 9, 10, True, 11, 12)},
            {"T": ConsumeStatus(1, 2, 3, 4, 5, 6)},
            {"u": "v"},
            "stack",
        ),
        f'{{"jstack":"stack","mqPopTable":{{}},"mqTable":{{{MQ_TEXT}:{{"cachedMsgCount":4,'
        '"cachedMsgMaxOffset":3,"cachedMsgMinOffset":2,"cachedMsgSizeInMiB":5,"commitOffset":1,"droped":true,'
        '"lastConsumeTimestamp":12,"lastLockTimestamp":10,"lastPullTimestamp":11,"locked":true,'
        '"transactionMsgCount":8,"transactionMsgMaxOffset":7,"transactionMsgMinOffset":6,"tryUnlockTimes":9}},'
        '"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":{"T":{"consumeFailedMsgs":6,'
        '"consumeFailedTPS":5.0,"consumeOKTPS":4.0,"consumeRT":3.0,"pullRT":1.0,"pullTPS":2.0}},'
        f'"subscriptionSet":[{TAGS_TEXT}],"userConsumerInfo":{{"u":"v"}}}}',
    ),
    (
        ConsumeMessageDirectlyResult(ConsumeResult.CR_LATER, "r", True, False, 5),
        '{"autoCommit":false,"consumeResult":"CR_LATER","order":true,"remark":"r","spentTimeMills":5}',
    ),
    (
        HARuntimeInfo(True, 5, 1, (HAConnectionRuntimeInfo("a:1", 1, 2, True, 3, 4),)),
        '{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
        '"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"a:1","diff":2,"inSync":true,'
        '"slaveAckOffset":1,"transferFromWhere":4,"transferredByteInSecond":3}],"inSyncSlaveNums":1,'
        '"master":true,"masterCommitLogMaxOffset":5}',
    ),
    (
        # The reference's bare wrapper has the first two members; inside a registration it has all.
        TopicConfigSerializeWrapper(DataVersion(1, 2, 3), {"T": TopicConfig("T", 4, 4)}),
        '{"dataVersion":{"counter":2,"stateVersion":1,"timestamp":3},'
        f'"mappingDataVersion":{ZERO_VERSION},"topicConfigTable":{{"T":{TOPIC_TEXT}}},'
        '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}',
    ),
    (
        RegisterBrokerBody(TopicConfigSerializeWrapper(topics={"T": TopicConfig("T", 4, 4)}), ("f",)),
        f'{{"filterServerList":["f"],"topicConfigSerializeWrapper":{{"dataVersion":{ZERO_VERSION},'
        f'"mappingDataVersion":{ZERO_VERSION},"topicConfigTable":{{"T":{TOPIC_TEXT}}},'
        '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}',
    ),
]
IDS = [type(body).__name__ for body, _ in SHAPES]
BODIES = sorted({type(body) for body, _ in SHAPES}, key=lambda body: body.__name__)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**31 - 1)
NAMES = st.text("abcXYZ019_%-|", min_size=1, max_size=10)
