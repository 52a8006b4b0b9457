"""Which ext fields a request may have, by its code: the check of requests with signature 1, which covers no names.

RocketMQ's are the union of the header classes of releases 4.4 to 5.5, of the fields that its clients add beside them,
and of the fields of every request (namespace, broker name and one-way mark of RPC headers, zone, type of request).
A request with a stamp comes from a Penstock client (its session, number and code are in the text that is signed), so
it may have Penstock's as well. Plain data and one function; no I/O.
"""

from __future__ import annotations

from functools import cache

from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    DURABILITY_FIELD,
    PRODUCER_FIELD,
    PULL_FIELD,
    SEQUENCE_FIELD,
    ConsumerSendMsgBackRequestHeader,
    Header,
    NotifyBrokerRoleChangedRequestHeader,
    PublishStagedRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    StagedStatusRequestHeader,
    StageMessagesRequestHeader,
    TellHomeRequestHeader,
    TimerMetricsRequestHeader,
)
from penstock.protocol.headers.balance import (
    CreateOnDemandRequestHeader,
    ExplainRequestHeader,
    SubscriptionsRequestHeader,
)
from penstock.protocol.headers.controller import BrokerBeatRequestHeader
from penstock.protocol.headers.header import wire_fields
from penstock.protocol.headers.push import (
    PushDeliverRequestHeader,
    PushListRequestHeader,
    PushPingRequestHeader,
    PushQueueRequestHeader,
    PushRegisterRequestHeader,
    PushResumeRequestHeader,
    PushSubscribeWindow,
)
from penstock.security.freshness import STAMP_FIELD
from penstock.security.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, TOKEN_FIELD

R = RequestCode
# Of pulls that are answered in columns (`message.column_answers`).
_COLUMNS_FIELD = "columns"

# Of every request: keys and signature, RocketMQ's RPC header, namespace, zone and request type.
_EVERYWHERE = frozenset(
    (
        *(ACCESS_KEY_FIELD, TOKEN_FIELD, SIGNATURE_FIELD),
        *("bname", "lo", "ns", "nsd", "oway", "ReqT", "__ZONE_NAME", "__ZONE_MODE"),
    )
)
_ROCKETMQ: dict[tuple[RequestCode, ...], str] = {
    # Requests without fields of their own: what they are about is in the body, or they have no parameter.
    (
        R.UPDATE_AND_CREATE_TOPIC_LIST,
        R.UPDATE_BROKER_CONFIG,
        R.GET_BROKER_CONFIG,
        R.TRIGGER_DELETE_FILES,
        R.GET_BROKER_RUNTIME_INFO,
        R.HEART_BEAT,
        R.LOCK_BATCH_MQ,
        R.UNLOCK_BATCH_MQ,
        R.GET_ALL_CONSUMER_OFFSET,
        R.GET_ALL_DELAY_OFFSET,
        R.CHECK_CLIENT_CONFIG,
        R.GET_TIMER_CHECK_POINT,
        R.GET_TIMER_METRICS,
        R.GET_BROKER_CLUSTER_INFO,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        R.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        R.CLEAN_EXPIRED_CONSUMEQUEUE,
        R.GET_UNIT_TOPIC_LIST,
        R.GET_HAS_UNIT_SUB_TOPIC_LIST,
        R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        R.CLEAN_UNUSED_TOPIC,
        R.UPDATE_NAMESRV_CONFIG,
        R.GET_NAMESRV_CONFIG,
        R.GET_ALL_PRODUCER_INFO,
        R.DELETE_EXPIRED_COMMITLOG,
        R.QUERY_ASSIGNMENT,
        R.SET_MESSAGE_REQUEST_MODE,
        R.GET_ALL_MESSAGE_REQUEST_MODE,
        R.GET_BROKER_HA_STATUS,
        R.CONTROLLER_GET_METADATA_INFO,
        R.CONTROLLER_GET_SYNC_STATE_DATA,
        R.GET_BROKER_EPOCH_CACHE,
        R.UPDATE_CONTROLLER_CONFIG,
        R.GET_CONTROLLER_CONFIG,
        R.BATCH_ACK_MESSAGE,
    ): "",
    (R.SEND_MESSAGE, R.SEND_REPLY_MESSAGE): (
        "batch bornTimestamp defaultTopic defaultTopicQueueNums flag maxReconsumeTimes "
        "producerGroup properties queueId reconsumeTimes sysFlag topic unitMode"
    ),
    (R.PULL_MESSAGE, R.LITE_PULL_MESSAGE): (
        "commitOffset consumerGroup expressionType maxMsgBytes maxMsgNums proxyFrowardClientId "
        "queueId queueOffset requestSource subVersion subscription suspendTimeoutMillis sysFlag "
        "topic"
    ),
    (R.QUERY_MESSAGE,): "_UNIQUE_KEY_QUERY beginTimestamp endTimestamp key maxNum topic",
    (R.QUERY_CONSUMER_OFFSET,): "consumerGroup queueId setZeroIfNotFound topic",
    (R.UPDATE_CONSUMER_OFFSET,): "commitOffset consumerGroup queueId topic",
    (R.UPDATE_AND_CREATE_TOPIC, R.UPDATE_AND_CREATE_STATIC_TOPIC): (
        "attributes defaultTopic force order perm readQueueNums topic topicFilterType topicSysFlag "
        "writeQueueNums"
    ),
    (R.GET_ALL_TOPIC_CONFIG,): "dataVersion maxTopicNum topicSeq totalTopicNum",
    (R.SEARCH_OFFSET_BY_TIMESTAMP,): "boundaryType queueId timestamp topic",
    (R.GET_MAX_OFFSET,): "committed logicalQueue queueId topic",
    (R.GET_MIN_OFFSET, R.GET_EARLIEST_MSG_STORETIME): "queueId topic",
    (R.VIEW_MESSAGE_BY_ID,): "offset topic",
    (R.UNREGISTER_CLIENT,): "clientID consumerGroup producerGroup",
    (R.CONSUMER_SEND_MSG_BACK,): "delayLevel group maxReconsumeTimes offset originMsgId originTopic unitMode",
    (R.END_TRANSACTION,): (
        "commitLogOffset commitOrRollback fromTransactionCheck msgId producerGroup topic "
        "tranStateTableOffset transactionId"
    ),
    (
        R.GET_CONSUMER_LIST_BY_GROUP,
        R.NOTIFY_CONSUMER_IDS_CHANGED,
        R.GET_CONSUMER_CONNECTION_LIST,
    ): "consumerGroup",
    (
        R.CHECK_TRANSACTION_STATE,
    ): "commitLogOffset msgId offsetMsgId topic tranStateTableOffset transactionId",
    (R.PUT_KV_CONFIG,): "key namespace value",
    (R.GET_KV_CONFIG, R.DELETE_KV_CONFIG): "key namespace",
    (R.REGISTER_BROKER,): (
        "bodyCrc32 brokerAddr brokerId brokerName clusterName compressed enableActingMaster "
        "haServerAddr heartbeatTimeoutMillis"
    ),
    (R.UNREGISTER_BROKER, R.QUERY_DATA_VERSION): "brokerAddr brokerId brokerName clusterName",
    (R.GET_ROUTEINFO_BY_TOPIC,): "acceptStandardJsonOnly logicalQueueIdsFilter sysFlag topic",
    (R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,): "dataVersion groupSeq maxGroupNum totalGroupNum",
    (
        R.GET_TOPIC_STATS_INFO,
        R.DELETE_TOPIC_IN_BROKER,
        R.REGISTER_TOPIC_IN_NAMESRV,
        R.QUERY_TOPIC_CONSUME_BY_WHO,
        R.GET_TOPIC_CONFIG,
    ): "topic",
    (R.GET_PRODUCER_CONNECTION_LIST,): "producerGroup",
    (R.WIPE_WRITE_PERM_OF_BROKER, R.ADD_WRITE_PERM_OF_BROKER): "brokerName",
    (R.DELETE_SUBSCRIPTIONGROUP,): "cleanOffset groupName removeOffset",
    (R.GET_CONSUME_STATS,): "consumerGroup topic topicList",
    (R.DELETE_TOPIC_IN_NAMESRV,): "clusterName topic",
    (R.GET_KVLIST_BY_NAMESPACE,): "namespace",
    (
        R.RESET_CONSUMER_CLIENT_OFFSET,
        R.INVOKE_BROKER_TO_RESET_OFFSET,
    ): "group isForce offset queueId timestamp topic",
    (R.GET_CONSUMER_STATUS_FROM_CLIENT, R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS): "clientAddr group topic",
    (R.GET_TOPICS_BY_CLUSTER,): "cluster",
    (R.QUERY_CONSUME_TIME_SPAN, R.QUERY_SUBSCRIPTION_BY_CONSUMER): "group topic",
    (R.GET_CONSUMER_RUNNING_INFO,): "clientId consumerGroup jstackEnable",
    (R.QUERY_CORRECTION_OFFSET,): "compareGroup filterGroups topic",
    (R.CONSUME_MESSAGE_DIRECTLY,): "brokerName clientId consumerGroup groupSysFlag msgId topic topicSysFlag",
    (R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE_V2): "a b c d e f g h i j k l m n",
    (R.CLONE_GROUP_OFFSET,): "destGroup offline srcGroup topic",
    (R.VIEW_BROKER_STATS_DATA,): "statsKey statsName",
    (R.GET_BROKER_CONSUME_STATS,): "isOrder",
    (R.QUERY_CONSUME_QUEUE,): "consumerGroup count index queueId topic",
    (R.RESUME_CHECK_HALF_MESSAGE,): "msgId topic",
    (R.PUSH_REPLY_MESSAGE_TO_CLIENT,): (
        "bornHost bornTimestamp defaultTopic defaultTopicQueueNums flag producerGroup properties "
        "queueId reconsumeTimes storeHost storeTimestamp sysFlag topic unitMode"
    ),
    (R.QUERY_TOPICS_BY_CONSUMER, R.GET_SUBSCRIPTIONGROUP_CONFIG): "group",
    (R.UPDATE_AND_GET_GROUP_FORBIDDEN,): "group readable topic",
    (R.RECALL_MESSAGE,): "producerGroup recallHandle topic",
    (R.GET_BROKER_MEMBER_GROUP, R.CONTROLLER_GET_NEXT_BROKER_ID): "brokerName clusterName",
    (R.BROKER_HEARTBEAT,): (
        "brokerAddr brokerId brokerName clusterName confirmOffset electionPriority epoch "
        "heartbeatTimeoutMills maxOffset"
    ),
    (R.NOTIFY_MIN_BROKER_ID_CHANGE,): "brokerName haBrokerAddr minBrokerAddr minBrokerId offlineBrokerAddr",
    (R.CONTROLLER_ALTER_SYNC_STATE_SET,): "brokerName invokeTime masterAddress masterBrokerId masterEpoch",
    (R.CONTROLLER_ELECT_MASTER,): "brokerAddress brokerId brokerName clusterName designateElect invokeTime",
    (R.CONTROLLER_REGISTER_BROKER,): (
        "brokerAddress brokerId brokerName clusterName confirmOffset electionPriority epoch "
        "heartbeatTimeoutMillis invokeTime maxOffset"
    ),
    (R.CONTROLLER_GET_REPLICA_INFO,): "brokerAddress brokerName",
    (R.NOTIFY_BROKER_ROLE_CHANGED,): "brokerId masterAddress masterBrokerId masterEpoch syncStateSetEpoch",
    (R.CLEAN_BROKER_DATA,): (
        "brokerAddress brokerControllerIdsToClean brokerName clusterName invokeTime isCleanLivingBroker"
    ),
    (R.CONTROLLER_APPLY_BROKER_ID,): "appliedBrokerId brokerName clusterName registerCheckCode",
    (R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_GET_USER): "username",
    (R.AUTH_LIST_USERS,): "filter",
    (R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL, R.AUTH_GET_ACL): "subject",
    (R.AUTH_DELETE_ACL,): "policyType resource subject",
    (R.AUTH_LIST_ACL,): "resourceFilter subjectFilter",
    (R.POP_MESSAGE,): (
        "attemptId bornTime consumerGroup exp expType initMode invisibleTime maxMsgNums order "
        "pollTime queueId topic"
    ),
    (R.ACK_MESSAGE,): "consumerGroup extraInfo liteTopic offset queueId topic",
    (R.PEEK_MESSAGE,): "consumerGroup maxMsgNums queueId topic",
    (
        R.CHANGE_MESSAGE_INVISIBLETIME,
    ): "consumerGroup extraInfo invisibleTime liteTopic offset queueId suspend topic",
    (R.NOTIFICATION,): "attemptId bornTime consumerGroup order pollTime queueId topic",
    (R.POLLING_INFO,): "consumerGroup queueId topic",
}
_FROM_SENDS = (DURABILITY_FIELD, PRODUCER_FIELD, SEQUENCE_FIELD)
# What Penstock's clients add to RocketMQ's requests: names, or the header class that has them.
_PENSTOCK: dict[tuple[RequestCode, ...], tuple[str, ...] | type[Header]] = {
    (R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE): _FROM_SENDS,
    (R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2): _FROM_SENDS,
    (R.PULL_MESSAGE, R.LITE_PULL_MESSAGE): (HOLDER_FIELD, _COLUMNS_FIELD, PULL_FIELD),
    (R.QUERY_CONSUMER_OFFSET, R.UPDATE_CONSUMER_OFFSET, R.POP_MESSAGE): (HOLDER_FIELD,),
    (R.CONSUMER_SEND_MSG_BACK,): ConsumerSendMsgBackRequestHeader,
    (R.GET_TIMER_METRICS,): TimerMetricsRequestHeader,
    (R.CONTROLLER_REGISTER_BROKER,): RegisterBrokerToControllerRequestHeader,
    (R.NOTIFY_BROKER_ROLE_CHANGED,): NotifyBrokerRoleChangedRequestHeader,
    # Penstock's own requests.
    (R.STAGE_MESSAGES,): StageMessagesRequestHeader,
    (R.PUBLISH_STAGED,): PublishStagedRequestHeader,
    (R.STAGED_STATUS,): StagedStatusRequestHeader,
    (R.TELL_HOME,): TellHomeRequestHeader,
    (R.BROKER_BEAT,): BrokerBeatRequestHeader,
    (R.EXPLAIN,): ExplainRequestHeader,
    (R.SUBSCRIPTIONS,): SubscriptionsRequestHeader,
    (R.CREATE_ON_DEMAND,): CreateOnDemandRequestHeader,
    (R.CLIENT_BEAT, R.CLIENT_CLOSE, R.COORDINATOR_STATUS): (),
    (R.CLAIM_PARTITION, R.REFRESH_PARTITION, R.RELEASE_PARTITION): (),
    (R.PUSH_REGISTER,): PushRegisterRequestHeader,
    (R.PUSH_SUBSCRIBE,): (
        *(field.name for field in wire_fields(PushQueueRequestHeader)),
        *(field.name for field in wire_fields(PushSubscribeWindow)),
        HOLDER_FIELD,
    ),
    (R.PUSH_UNSUBSCRIBE,): PushQueueRequestHeader,
    (R.PUSH_CLOSE,): (),
    (R.PUSH_RESUME,): PushResumeRequestHeader,
    (R.PUSH_LIST,): PushListRequestHeader,
    (R.PUSH_DELIVER,): PushDeliverRequestHeader,
    (R.PUSH_PING,): PushPingRequestHeader,
}

# Requests whose fields are described here; the others may only have those of every request.
DESCRIBED = frozenset(int(code) for codes in (*_ROCKETMQ, *_PENSTOCK) for code in codes)


@cache
def known_fields(code: int, *, stamped: bool) -> frozenset[str]:
    """The fields that a request with this code may have; nothing beyond the common ones where the code is unknown."""
    found = set(_EVERYWHERE)
    for codes, names in _ROCKETMQ.items():
        if code in codes:
            found.update(names.split())
    if stamped:
        found.add(STAMP_FIELD)
        for codes, fields in _PENSTOCK.items():
            if code in codes:
                found.update(
                    fields if isinstance(fields, tuple) else (field.name for field in wire_fields(fields))
                )
    return frozenset(found)


def unknown_field(command: Command) -> str | None:
    """A field of a request that is not defined for its code."""
    fields = command.fields
    known = known_fields(command.code, stamped=STAMP_FIELD in fields)
    if known.issuperset(fields):
        return None
    return min(name for name in fields if name not in known)
