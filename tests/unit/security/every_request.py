"""One request of each code that a server answers, about a topic and a group: as a client makes it, so that a server
that lets it pass carries it out. What a request does not name is the same for all places.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.metadata.group_table import SubscriptionGroup
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from penstock.protocol.bodies.balance import ClientBeatBody, LeaseRequestBody
from penstock.protocol.bodies.controller import SyncStateSet
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, QueryAssignmentRequestBody
from penstock.protocol.bodies.staged import encode_head, encode_item
from penstock.protocol.bodies.tables import (
    encode_group_config,
    encode_group_config_list,
    encode_topic_config_list,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.protocol.recall import RecallHandle
from tests.support.running_broker import batch_item

BROKER = "test-broker"
CLUSTER = "DefaultCluster"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
BORN = 1_700_000_000_000
R = RequestCode


class Place(NamedTuple):
    """A topic and a group, and the log position of a message in the topic's queue 0."""

    topic: str
    group: str
    position: int = 0


Make = Callable[[Place], Command]


def texts(**fields: object) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def make(code: int, body: Callable[[Place], bytes] | bytes = b"", **fields: object) -> Make:
    """`$topic`, `$group` and `$position` in a field stand for those of the place."""

    def made(at: Place) -> Command:
        values = {"$topic": at.topic, "$group": at.group, "$position": str(at.position)}
        texts = {name: values.get(str(value), str(value)) for name, value in fields.items()}
        return Command(int(code), texts, body(at) if callable(body) else body)

    return made


def queue_of(at: Place) -> MessageQueue:
    return MessageQueue(at.topic, BROKER, 0)


def offset_id(position: int) -> str:
    return f"7F000001{10911:08X}{position:016X}"


# -- sends ---------------------------------------------------------------------------------------------------


def send_header(at: Place, *, batch: bool = False) -> SendMessageRequestHeader:
    properties = f"UNIQ_KEY\x01{at.group}\x02WAIT\x01true\x02REPLY_TO_CLIENT\x01no-such-client\x02"
    return SendMessageRequestHeader(
        producer_group="p",
        topic=at.topic,
        queue_id=0,
        born_timestamp=BORN,
        properties=properties,
        batch=batch,
    )


def send_v1(code: int) -> Make:
    return lambda at: Command(int(code), send_header(at).encode_v1(), b"body")


def send_v2(code: int) -> Make:
    return lambda at: Command(int(code), send_header(at).encode(), b"body")


def reply_to(at: Place) -> Place:
    """The cluster's topic of replies counts as an own one; another topic with such a name is another's, and the
    broker's own topics have none."""
    if at.topic.isupper():
        return at
    return at._replace(topic=REPLY_TOPIC if at.topic == "orders" else f"{at.topic}_REPLY_TOPIC")


def reply_v1(code: int) -> Make:
    return lambda at: Command(int(code), send_header(reply_to(at)).encode_v1(), b"body")


def reply_v2(code: int) -> Make:
    return lambda at: Command(int(code), send_header(reply_to(at)).encode(), b"body")


def send_batch(at: Place) -> Command:
    return Command(int(R.SEND_BATCH_MESSAGE), send_header(at, batch=True).encode(), batch_item(b"one"))


def recall(at: Place) -> Command:
    handle = RecallHandle(at.topic, BROKER, (int(time.time()) + 3_600) * 1_000, "0" * 32).encode()
    return Command(int(R.RECALL_MESSAGE), {"producerGroup": "p", "topic": at.topic, "recallHandle": handle})


def staged_body(at: Place) -> bytes:
    return encode_head([(at.topic, 1)]) + encode_item(0, b"row", b"UNIQ_KEY\x01U1\x02", level=0)


# -- consumers -----------------------------------------------------------------------------------------------


def beat(at: Place) -> bytes:
    subscription = SubscriptionData.parse(at.topic, "*", None, 1)
    consumer = ConsumerData(at.group, subscriptions=(subscription,))
    return HeartbeatData(f"client@{at.group}", (ProducerData("p"),), (consumer,)).encode()


def check_client(at: Place) -> bytes:
    return CheckClientRequestBody("client", at.group, SubscriptionData.parse(at.topic, "*")).encode()


def locks(at: Place) -> bytes:
    return LockBatchRequestBody(f"client@{at.group}", at.group, (queue_of(at),)).encode()


def leases(at: Place) -> bytes:
    return LeaseRequestBody(f"client@{at.group}", at.group, (queue_of(at),)).encode()


def client_beat(at: Place) -> bytes:
    return ClientBeatBody(f"client@{at.group}", at.group, topics=(at.topic,)).encode()


def assignment(at: Place) -> bytes:
    return QueryAssignmentRequestBody(at.topic, at.group, "client").encode()


def batch_ack(at: Place) -> bytes:
    ack = BatchAck(at.group, at.topic, "0", 0, 0, 0, BORN, 60_000, (0,))
    return BatchAckMessageRequestBody(BROKER, (ack,)).encode()


PLACE = {"consumerGroup": "$group", "topic": "$topic", "queueId": 0}
PULL = {
    **PLACE,
    "queueOffset": 0,
    "maxMsgNums": 1,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "subVersion": 0,
}
POP = {
    **PLACE,
    "queueId": -1,
    "maxMsgNums": 1,
    "invisibleTime": 60_000,
    "pollTime": 0,
    "bornTime": 0,
    "initMode": 0,
}
# Of a pop that never was.
HANDLE = {**PLACE, "extraInfo": f"0 {BORN} 60000 0 0 {BROKER} 0 0", "offset": 0}

# -- administration ------------------------------------------------------------------------------------------


def topic_list(at: Place) -> bytes:
    return encode_topic_config_list([TopicConfig(at.topic)])


def group_config(at: Place) -> bytes:
    return encode_group_config(SubscriptionGroup(at.group, retry_max_times=3))


def group_list(at: Place) -> bytes:
    return encode_group_config_list([SubscriptionGroup(at.group, retry_max_times=2)])


def request_mode(at: Place) -> bytes:
    text = {"topic": at.topic, "consumerGroup": at.group, "mode": "POP", "popShareQueueNum": 0}
    return json.dumps(text).encode()


ACL = b'{"policies":[{"entries":[{"resource":"Topic:x","actions":["Pub"],"decision":"Allow"}]}]}'
TOPIC = {
    "topic": "$topic",
    "defaultTopic": "TBW102",
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
# A broker that does not exist.
SPARE = {"clusterName": CLUSTER, "brokerName": "spare", "brokerAddr": "127.0.0.1:1", "brokerId": 0}
SPARE_SET = {"clusterName": CLUSTER, "brokerName": "spare-set", "brokerId": 1, "brokerAddress": "127.0.0.1:1"}

EVERY: dict[int, Make] = {
    R.SEND_MESSAGE: send_v1(R.SEND_MESSAGE),
    R.SEND_MESSAGE_V2: send_v2(R.SEND_MESSAGE_V2),
    R.SEND_BATCH_MESSAGE: send_batch,
    R.SEND_REPLY_MESSAGE: reply_v1(R.SEND_REPLY_MESSAGE),
    R.SEND_REPLY_MESSAGE_V2: reply_v2(R.SEND_REPLY_MESSAGE_V2),
    R.END_TRANSACTION: make(
        R.END_TRANSACTION,
        topic="$topic",
        producerGroup="p",
        tranStateTableOffset=0,
        commitLogOffset="$position",
        commitOrRollback=8,
        msgId="",
    ),
    R.RECALL_MESSAGE: recall,
    R.STAGE_MESSAGES: make(R.STAGE_MESSAGES, staged_body, producerGroup="p", bornTimestamp=BORN),
    R.PUBLISH_STAGED: make(R.PUBLISH_STAGED, queryId="$group", batchId=1),
    R.STAGED_STATUS: make(R.STAGED_STATUS, queryId="$group"),
    R.TELL_HOME: make(R.TELL_HOME, queryId="$group", brokerName=BROKER),
    R.PULL_MESSAGE: make(R.PULL_MESSAGE, **PULL),
    R.LITE_PULL_MESSAGE: make(R.LITE_PULL_MESSAGE, **PULL),
    R.QUERY_CONSUMER_OFFSET: make(R.QUERY_CONSUMER_OFFSET, **PLACE),
    R.UPDATE_CONSUMER_OFFSET: make(R.UPDATE_CONSUMER_OFFSET, **PLACE, commitOffset=1),
    R.CONSUMER_SEND_MSG_BACK: make(
        R.CONSUMER_SEND_MSG_BACK, group="$group", offset="$position", delayLevel=1, originTopic="$topic"
    ),
    R.HEART_BEAT: make(R.HEART_BEAT, beat),
    R.UNREGISTER_CLIENT: make(R.UNREGISTER_CLIENT, clientID="client", consumerGroup="$group"),
    R.CHECK_CLIENT_CONFIG: make(R.CHECK_CLIENT_CONFIG, check_client),
    R.GET_CONSUMER_LIST_BY_GROUP: make(R.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="$group"),
    R.LOCK_BATCH_MQ: make(R.LOCK_BATCH_MQ, locks),
    R.UNLOCK_BATCH_MQ: make(R.UNLOCK_BATCH_MQ, locks),
    R.CLAIM_PARTITION: make(R.CLAIM_PARTITION, leases),
    R.REFRESH_PARTITION: make(R.REFRESH_PARTITION, leases),
    R.RELEASE_PARTITION: make(R.RELEASE_PARTITION, leases),
    R.QUERY_ASSIGNMENT: make(R.QUERY_ASSIGNMENT, assignment),
    R.PUSH_REGISTER: make(R.PUSH_REGISTER, clientID="pushed"),
    R.PUSH_SUBSCRIBE: make(R.PUSH_SUBSCRIBE, **PULL, windowMessages=0, windowBytes=0),
    R.PUSH_UNSUBSCRIBE: make(R.PUSH_UNSUBSCRIBE, **PLACE),
    R.PUSH_CLOSE: make(R.PUSH_CLOSE),
    R.PUSH_RESUME: make(R.PUSH_RESUME, consumerGroup="$group"),
    R.PUSH_LIST: make(R.PUSH_LIST, consumerGroup="$group"),
    R.POP_MESSAGE: make(R.POP_MESSAGE, **POP),
    R.ACK_MESSAGE: make(R.ACK_MESSAGE, **HANDLE),
    R.PEEK_MESSAGE: make(R.PEEK_MESSAGE, **PLACE, maxMsgNums=1),
    R.CHANGE_MESSAGE_INVISIBLETIME: make(R.CHANGE_MESSAGE_INVISIBLETIME, **HANDLE, invisibleTime=60_000),
    R.NOTIFICATION: make(R.NOTIFICATION, **PLACE, pollTime=0, bornTime=BORN),
    R.POLLING_INFO: make(R.POLLING_INFO, **PLACE),
    R.BATCH_ACK_MESSAGE: make(R.BATCH_ACK_MESSAGE, batch_ack),
    R.GET_ROUTEINFO_BY_TOPIC: make(R.GET_ROUTEINFO_BY_TOPIC, topic="$topic"),
    R.SEARCH_OFFSET_BY_TIMESTAMP: make(
        R.SEARCH_OFFSET_BY_TIMESTAMP, topic="$topic", queueId=0, timestamp=BORN
    ),
    R.GET_MAX_OFFSET: make(R.GET_MAX_OFFSET, topic="$topic", queueId=0),
    R.GET_MIN_OFFSET: make(R.GET_MIN_OFFSET, topic="$topic", queueId=0),
    R.GET_EARLIEST_MSG_STORETIME: make(R.GET_EARLIEST_MSG_STORETIME, topic="$topic", queueId=0),
    R.GET_TOPIC_CONFIG: make(R.GET_TOPIC_CONFIG, topic="$topic"),
    R.GET_TOPIC_STATS_INFO: make(R.GET_TOPIC_STATS_INFO, topic="$topic"),
    R.QUERY_MESSAGE: make(
        R.QUERY_MESSAGE, topic="$topic", key="k", maxNum=1, beginTimestamp=0, endTimestamp=2**62
    ),
    R.QUERY_CONSUME_QUEUE: make(
        R.QUERY_CONSUME_QUEUE, topic="$topic", queueId=0, index=0, count=1, consumerGroup="$group"
    ),
    R.QUERY_TOPIC_CONSUME_BY_WHO: make(R.QUERY_TOPIC_CONSUME_BY_WHO, topic="$topic"),
    R.VIEW_MESSAGE_BY_ID: make(R.VIEW_MESSAGE_BY_ID, offset="$position"),
    R.GET_ALL_TOPIC_CONFIG: make(R.GET_ALL_TOPIC_CONFIG),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: make(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    R.GET_TOPICS_BY_CLUSTER: make(R.GET_TOPICS_BY_CLUSTER, cluster=CLUSTER),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: make(R.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: make(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    R.GET_UNIT_TOPIC_LIST: make(R.GET_UNIT_TOPIC_LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: make(R.GET_HAS_UNIT_SUB_TOPIC_LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: make(R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: make(R.GET_SUBSCRIPTIONGROUP_CONFIG, group="$group"),
    R.GET_CONSUMER_CONNECTION_LIST: make(R.GET_CONSUMER_CONNECTION_LIST, consumerGroup="$group"),
    R.GET_CONSUME_STATS: make(R.GET_CONSUME_STATS, consumerGroup="$group", topic="$topic"),
    R.GET_CONSUMER_RUNNING_INFO: make(R.GET_CONSUMER_RUNNING_INFO, consumerGroup="$group", clientId="none"),
    R.QUERY_TOPICS_BY_CONSUMER: make(R.QUERY_TOPICS_BY_CONSUMER, group="$group"),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: make(R.QUERY_SUBSCRIPTION_BY_CONSUMER, group="$group", topic="$topic"),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: make(
        R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, group="$group", topic="$topic", clientAddr="none"
    ),
    R.QUERY_CONSUME_TIME_SPAN: make(R.QUERY_CONSUME_TIME_SPAN, topic="$topic", group="$group"),
    R.QUERY_CORRECTION_OFFSET: make(R.QUERY_CORRECTION_OFFSET, topic="$topic", compareGroup="$group"),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: make(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    R.GET_BROKER_CONSUME_STATS: make(R.GET_BROKER_CONSUME_STATS, isOrder="false"),
    R.GET_ALL_CONSUMER_OFFSET: make(R.GET_ALL_CONSUMER_OFFSET),
    R.UPDATE_AND_CREATE_TOPIC: make(R.UPDATE_AND_CREATE_TOPIC, **TOPIC),
    R.UPDATE_AND_CREATE_STATIC_TOPIC: make(R.UPDATE_AND_CREATE_STATIC_TOPIC, **TOPIC),
    R.UPDATE_AND_CREATE_TOPIC_LIST: make(R.UPDATE_AND_CREATE_TOPIC_LIST, topic_list),
    R.REGISTER_TOPIC_IN_NAMESRV: make(R.REGISTER_TOPIC_IN_NAMESRV, topic="$topic"),
    R.DELETE_TOPIC_IN_BROKER: make(R.DELETE_TOPIC_IN_BROKER, topic="$topic"),
    R.DELETE_TOPIC_IN_NAMESRV: make(R.DELETE_TOPIC_IN_NAMESRV, topic="$topic"),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: make(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group_config),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: make(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, group_list),
    R.DELETE_SUBSCRIPTIONGROUP: make(R.DELETE_SUBSCRIPTIONGROUP, groupName="$group", cleanOffset="true"),
    R.INVOKE_BROKER_TO_RESET_OFFSET: make(
        R.INVOKE_BROKER_TO_RESET_OFFSET, topic="$topic", group="$group", timestamp=0, isForce="true"
    ),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: make(
        R.UPDATE_AND_GET_GROUP_FORBIDDEN, group="$group", topic="$topic", readable="true"
    ),
    R.CLONE_GROUP_OFFSET: make(
        R.CLONE_GROUP_OFFSET, srcGroup="$group", destGroup="$group", topic="$topic", offline="true"
    ),
    R.CLIENT_BEAT: make(R.CLIENT_BEAT, client_beat),
    R.CLIENT_CLOSE: make(R.CLIENT_CLOSE, client_beat),
    R.EXPLAIN: make(R.EXPLAIN, group="$group"),
    R.SUBSCRIPTIONS: make(R.SUBSCRIPTIONS, topic="$topic"),
    R.CREATE_ON_DEMAND: make(R.CREATE_ON_DEMAND, topic="$topic", queues=1),
    R.COORDINATOR_STATUS: make(R.COORDINATOR_STATUS),
    R.CONTROLLER_GET_METADATA_INFO: make(R.CONTROLLER_GET_METADATA_INFO),
    R.CONTROLLER_GET_REPLICA_INFO: make(R.CONTROLLER_GET_REPLICA_INFO, brokerName=BROKER),
    R.CONTROLLER_GET_SYNC_STATE_DATA: make(R.CONTROLLER_GET_SYNC_STATE_DATA, json.dumps([BROKER]).encode()),
    R.GET_CONTROLLER_CONFIG: make(R.GET_CONTROLLER_CONFIG),
    R.GET_BROKER_CLUSTER_INFO: make(R.GET_BROKER_CLUSTER_INFO),
    R.GET_BROKER_MEMBER_GROUP: make(R.GET_BROKER_MEMBER_GROUP, clusterName=CLUSTER, brokerName=BROKER),
    R.GET_BROKER_CONFIG: make(R.GET_BROKER_CONFIG),
    R.GET_BROKER_RUNTIME_INFO: make(R.GET_BROKER_RUNTIME_INFO),
    R.GET_BROKER_HA_STATUS: make(R.GET_BROKER_HA_STATUS),
    R.GET_BROKER_EPOCH_CACHE: make(R.GET_BROKER_EPOCH_CACHE),
    R.VIEW_BROKER_STATS_DATA: make(R.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="none"),
    R.GET_NAMESRV_CONFIG: make(R.GET_NAMESRV_CONFIG),
    R.GET_KV_CONFIG: make(R.GET_KV_CONFIG, namespace="n", key="k"),
    R.GET_KVLIST_BY_NAMESPACE: make(R.GET_KVLIST_BY_NAMESPACE, namespace="n"),
    R.GET_PRODUCER_CONNECTION_LIST: make(R.GET_PRODUCER_CONNECTION_LIST, producerGroup="p"),
    R.GET_ALL_PRODUCER_INFO: make(R.GET_ALL_PRODUCER_INFO),
    R.GET_ALL_MESSAGE_REQUEST_MODE: make(R.GET_ALL_MESSAGE_REQUEST_MODE),
    R.GET_ALL_DELAY_OFFSET: make(R.GET_ALL_DELAY_OFFSET),
    R.GET_TIMER_CHECK_POINT: make(R.GET_TIMER_CHECK_POINT),
    R.GET_TIMER_METRICS: make(R.GET_TIMER_METRICS),
    R.UPDATE_BROKER_CONFIG: make(R.UPDATE_BROKER_CONFIG, b"shortPollingTimeMills=1234"),
    R.UPDATE_NAMESRV_CONFIG: make(R.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true"),
    R.UPDATE_CONTROLLER_CONFIG: make(R.UPDATE_CONTROLLER_CONFIG, b"x=1"),
    R.PUT_KV_CONFIG: make(R.PUT_KV_CONFIG, namespace="n", key="k", value="v"),
    R.DELETE_KV_CONFIG: make(R.DELETE_KV_CONFIG, namespace="n", key="k"),
    R.WIPE_WRITE_PERM_OF_BROKER: make(R.WIPE_WRITE_PERM_OF_BROKER, brokerName=BROKER),
    R.ADD_WRITE_PERM_OF_BROKER: make(R.ADD_WRITE_PERM_OF_BROKER, brokerName=BROKER),
    R.CLEAN_EXPIRED_CONSUMEQUEUE: make(R.CLEAN_EXPIRED_CONSUMEQUEUE),
    R.CLEAN_UNUSED_TOPIC: make(R.CLEAN_UNUSED_TOPIC),
    R.DELETE_EXPIRED_COMMITLOG: make(R.DELETE_EXPIRED_COMMITLOG),
    R.CONSUME_MESSAGE_DIRECTLY: make(
        R.CONSUME_MESSAGE_DIRECTLY, consumerGroup="$group", clientId="none", msgId=offset_id(0)
    ),
    R.RESUME_CHECK_HALF_MESSAGE: make(R.RESUME_CHECK_HALF_MESSAGE, msgId=offset_id(0)),
    R.SET_MESSAGE_REQUEST_MODE: make(R.SET_MESSAGE_REQUEST_MODE, request_mode),
    R.CONTROLLER_ELECT_MASTER: make(R.CONTROLLER_ELECT_MASTER, **SPARE_SET),
    R.CLEAN_BROKER_DATA: make(R.CLEAN_BROKER_DATA, clusterName=CLUSTER, brokerName="no-such-set"),
    R.AUTH_CREATE_USER: make(R.AUTH_CREATE_USER, b'{"password":"a-new-password"}', username="new"),
    R.AUTH_UPDATE_USER: make(R.AUTH_UPDATE_USER, b'{"userType":"Super"}', username="spare"),
    R.AUTH_DELETE_USER: make(R.AUTH_DELETE_USER, username="spare"),
    R.AUTH_GET_USER: make(R.AUTH_GET_USER, username="alice"),
    R.AUTH_LIST_USERS: make(R.AUTH_LIST_USERS),
    R.AUTH_CREATE_ACL: make(R.AUTH_CREATE_ACL, ACL, subject="User:spare"),
    R.AUTH_UPDATE_ACL: make(R.AUTH_UPDATE_ACL, ACL, subject="User:spare"),
    R.AUTH_DELETE_ACL: make(R.AUTH_DELETE_ACL, subject="User:spare", resource="Topic:x"),
    R.AUTH_GET_ACL: make(R.AUTH_GET_ACL, subject="User:alice"),
    R.AUTH_LIST_ACL: make(R.AUTH_LIST_ACL),
    R.REGISTER_BROKER: make(R.REGISTER_BROKER, **SPARE, haServerAddr="127.0.0.1:2"),
    R.UNREGISTER_BROKER: make(R.UNREGISTER_BROKER, **SPARE),
    R.QUERY_DATA_VERSION: make(R.QUERY_DATA_VERSION, **SPARE),
    R.BROKER_HEARTBEAT: make(R.BROKER_HEARTBEAT, **SPARE),
    R.BROKER_BEAT: make(
        R.BROKER_BEAT,
        **SPARE_SET,
        haAddress="127.0.0.1:2",
        incarnation=1,
        masterEpoch=0,
        maxOffset=0,
        confirmOffset=0,
    ),
    R.CONTROLLER_ALTER_SYNC_STATE_SET: make(
        R.CONTROLLER_ALTER_SYNC_STATE_SET,
        SyncStateSet(frozenset((1,)), 1).encode(),
        brokerName="spare-set",
        masterBrokerId=1,
        masterEpoch=1,
    ),
    R.CONTROLLER_REGISTER_BROKER: make(R.CONTROLLER_REGISTER_BROKER, **SPARE_SET),
    R.CONTROLLER_GET_NEXT_BROKER_ID: make(
        R.CONTROLLER_GET_NEXT_BROKER_ID, clusterName=CLUSTER, brokerName="spare-set"
    ),
    R.CONTROLLER_APPLY_BROKER_ID: make(
        R.CONTROLLER_APPLY_BROKER_ID,
        clusterName=CLUSTER,
        brokerName="spare-set",
        appliedBrokerId=1,
        registerCheckCode="check",
    ),
}
