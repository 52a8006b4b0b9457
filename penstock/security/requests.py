"""What each request needs: a table from request codes to functions that name the needs.

Rules: a code that is not in the table needs an admin, and a test fails until it is. Names are read exactly where the
processors read them, bodies with the same readers, so that a request is checked for what it will do. The topics
`%RETRY%group` and `%DLQ%group` are the group's: who may consume as the group may read and fill them. The retries of
POP in `%RETRY%group+topic` take the right to both. Codes that servers send to clients are an admin's here. What a
request is about only once its record was read (33, 36) is checked by its processor, with `Guard.require_topic`. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.errors import FieldError, RequestError
from penstock.protocol.bodies.balance import ClientBeatBody, ClientKind, LeaseRequestBody
from penstock.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from penstock.protocol.bodies.pop import BatchAckMessageRequestBody, QueryAssignmentRequestBody
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.bodies.staged import decode_head
from penstock.protocol.bodies.tables import (
    decode_group_config,
    decode_group_config_list,
    decode_topic_config_list,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import GetConsumeStatsRequestHeader
from penstock.protocol.pop_handles import topic_kind
from penstock.protocol.topic_names import DEAD_LETTER_PREFIX, MODEL_TOPIC, REPLY_SUFFIX, RETRY_PREFIX
from penstock.security.policy import ANY_ONE, Action, Kind, Need

Needs = Callable[[Command], Iterator[Need]]

# More than the retry topic of the longest group and topic has.
_NAME_MAX = 512
# Groups that tools pull with; nobody's progress depends on them, so the topic alone decides. What they send back
# would be there for all, so for that they need permission like any other.
TOOL_GROUPS = frozenset(("TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL", "CID_RMQ_SYS_TRANS"))

PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


def topic_needs(topic: str, *actions: Action) -> tuple[Need, ...]:
    """The needs for a topic: for the group whose topic it is, and for group and topic of the retries of both."""
    _check_name(topic)
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            administers = {CREATE, UPDATE, DELETE}.issuperset(actions)
            actions = actions if administers else (SUB,)
            group, plus, retried = topic.removeprefix(prefix).partition("+")
            of_topic = topic_needs(retried, *actions) if plus else ()
            return group_need(group, *actions), *of_topic
    return (Need(Kind.TOPIC, topic, actions),)


def group_need(group: str, *actions: Action) -> Need:
    _check_name(group)
    return Need(Kind.GROUP, group, actions)


def _check_name(name: str) -> None:
    """A peer's name must not be one of those that stand for many, nor so long that remembering what was decided about
    it would cost memory. No topic or group has such a name."""
    if not name or name in ("*", ANY_ONE) or len(name) > _NAME_MAX:
        raise FieldError(f"{name[:80]!r} is the name of no topic or group", "name one")


# -- kinds of requests ---------------------------------------------------------------------------------------


def _nothing(command: Command) -> Iterator[Need]:
    """A signature is enough."""
    yield from ()


def _admin(command: Command) -> Iterator[Need]:
    yield Need(Kind.ADMIN, "*", ())


def _cluster(*actions: Action) -> Needs:
    need = Need(Kind.CLUSTER, "*", actions)

    def needs(command: Command) -> Iterator[Need]:
        yield need

    return needs


def _topic(field: str, *actions: Action) -> Needs:
    def needs(command: Command) -> Iterator[Need]:
        yield from topic_needs(_text(command, field), *actions)

    return needs


def _all_topics(*actions: Action) -> Needs:
    def needs(command: Command) -> Iterator[Need]:
        yield Need(Kind.TOPIC, "*", actions)

    return needs


def _all_groups(*actions: Action) -> Needs:
    def needs(command: Command) -> Iterator[Need]:
        yield Need(Kind.GROUP, "*", actions)

    return needs


def _group(field: str, *actions: Action) -> Needs:
    def needs(command: Command) -> Iterator[Need]:
        yield group_need(_text(command, field), *actions)

    return needs


def _text(command: Command, field: str) -> str:
    """A name that has to be there: without it the processor might mean all of them."""
    value = command.fields.get(field)
    if not value:
        raise FieldError(f"the request has no field {field!r}", "it is mandatory")
    return value


def _reply(field: str) -> Needs:
    """A reply reaches the client that its properties name, whatever topic it is sent to: who may send to the topic of
    replies, and no one else, may reply."""

    def needs(command: Command) -> Iterator[Need]:
        topic = _text(command, field)
        if not topic.endswith(REPLY_SUFFIX):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"a reply cannot be sent to topic {topic[:80]!r}",
                f"send it to <cluster>{REPLY_SUFFIX}",
            )
        yield from topic_needs(topic, PUB)

    return needs


def _consume(command: Command) -> Iterator[Need]:
    """Pulls, offsets, pops: as a group, from a topic."""
    yield from topic_needs(_text(command, "topic"), SUB)
    yield from _as_group(_text(command, "consumerGroup"))


def _popped(command: Command) -> Iterator[Need]:
    """What was popped as a group: its retries are named by their own topic, and are the topic's all the same. The
    handle is good for this group and topic only."""
    group = _text(command, "consumerGroup")
    yield from topic_needs(topic_kind(group, _text(command, "topic"))[1], SUB)
    yield from _as_group(group)


def _as_group(group: str) -> Iterator[Need]:
    if group not in TOOL_GROUPS:
        yield group_need(group, SUB)


def _push_list(command: Command) -> Iterator[Need]:
    """Of one group, who may know about it; of all, who may look at the cluster."""
    group = command.fields.get("consumerGroup")
    yield group_need(group, SUB, GET) if group else Need(Kind.CLUSTER, "*", (GET, LIST))


def _consumer_list(command: Command) -> Iterator[Need]:
    yield from _as_group(_text(command, "consumerGroup"))


def _route(command: Command) -> Iterator[Need]:
    topic = _text(command, "topic")
    # The template is asked for by every producer whose topic is not there yet.
    if topic != MODEL_TOPIC and topic.removeprefix(RETRY_PREFIX) not in TOOL_GROUPS:
        yield from topic_needs(topic, PUB, SUB, GET)


def _heartbeat(command: Command) -> Iterator[Need]:
    for consumer in HeartbeatData.decode(command.body).consumers:
        yield from _as_group(consumer.group_name)
        for subscription in consumer.subscriptions:
            if subscription.topic != RETRY_PREFIX + consumer.group_name:
                yield from topic_needs(subscription.topic, SUB)


def _unregister(command: Command) -> Iterator[Need]:
    group = command.fields.get("consumerGroup")
    if group:
        yield from _as_group(group)


def _check_client(command: Command) -> Iterator[Need]:
    body = CheckClientRequestBody.decode(command.body)
    yield from _as_group(body.group)
    if body.subscription is not None:
        yield from topic_needs(body.subscription.topic, SUB)


def _locks(command: Command) -> Iterator[Need]:
    body = LockBatchRequestBody.decode(command.body)
    yield group_need(body.consumer_group, SUB)
    for topic in {queue.topic for queue in body.queues}:
        yield from topic_needs(topic, SUB)


def _leases(command: Command) -> Iterator[Need]:
    body = LeaseRequestBody.decode(command.body)
    yield group_need(body.group, SUB)
    for topic in {queue.topic for queue in body.queues}:
        yield from topic_needs(topic, SUB)


def _client_beat(command: Command) -> Iterator[Need]:
    body = ClientBeatBody.decode(command.body)
    if body.kind is ClientKind.PRODUCER:
        if not body.topics:
            yield Need(Kind.TOPIC, ANY_ONE, (PUB,))
        for topic in body.topics:
            yield from topic_needs(topic, PUB, SUB, GET)  # as for the routes that it has
        return
    yield group_need(body.group, SUB)
    for topic in {*body.topics, *(queue.topic for queue in body.queues)}:
        yield from topic_needs(topic, SUB)


def _stage(command: Command) -> Iterator[Need]:
    for topic, _ in decode_head(command.body)[0]:
        yield from topic_needs(topic, PUB)


def _some_topic(command: Command) -> Iterator[Need]:
    """About messages that the sender itself put there, which the request does not name by topic."""
    yield Need(Kind.TOPIC, ANY_ONE, (PUB,))


def _consumes(command: Command) -> Iterator[Need]:
    """For a connection over which something will be consumed."""
    yield Need(Kind.TOPIC, ANY_ONE, (SUB,))


def _end_transaction(command: Command) -> Iterator[Need]:
    """Clients before 5.x name no topic."""
    topic = command.fields.get("topic")
    yield from topic_needs(topic, PUB) if topic else (Need(Kind.TOPIC, ANY_ONE, (PUB,)),)


def _batch_ack(command: Command) -> Iterator[Need]:
    for group, topic in {
        (ack.group, ack.topic) for ack in BatchAckMessageRequestBody.decode(command.body).acks
    }:
        yield group_need(group, SUB)
        yield from topic_needs(topic, SUB)


def _assignment(command: Command) -> Iterator[Need]:
    body = QueryAssignmentRequestBody.decode(command.body)
    yield from topic_needs(body.topic, SUB)
    yield group_need(body.consumer_group, SUB)


def _topic_configs(command: Command) -> Iterator[Need]:
    for config in decode_topic_config_list(command.body):
        yield from topic_needs(config.name, CREATE, UPDATE)


def _group_config(command: Command) -> Iterator[Need]:
    yield group_need(decode_group_config(command.body).name, CREATE, UPDATE)


def _group_configs(command: Command) -> Iterator[Need]:
    for config in decode_group_config_list(command.body):
        yield group_need(config.name, CREATE, UPDATE)


def _correction(command: Command) -> Iterator[Need]:
    yield from topic_needs(_text(command, "topic"), SUB, GET)
    yield group_need(_text(command, "compareGroup"), SUB, GET)


def _consume_stats(command: Command) -> Iterator[Need]:
    """Of topics that are named the answer has the ends, whether the group consumes them or not."""
    header = GetConsumeStatsRequestHeader.decode(command.fields)
    yield group_need(header.consumer_group, SUB, GET)
    for topic in header.topics:
        yield from topic_needs(topic, SUB, GET)


def _queue_entries(command: Command) -> Iterator[Need]:
    """With a group, the answer has its subscription as well."""
    yield from topic_needs(_text(command, "topic"), SUB, GET)
    group = command.fields.get("consumerGroup")
    if group:
        yield group_need(group, SUB, GET)


def _group_on_topic(command: Command) -> Iterator[Need]:
    """Changes a group; the answer says where the topic begins and ends, or that there is none."""
    yield group_need(_text(command, "group"), UPDATE)
    yield from topic_needs(_text(command, "topic"), SUB, GET, UPDATE)


def _clone(command: Command) -> Iterator[Need]:
    yield group_need(_text(command, "srcGroup"), SUB, GET)
    yield group_need(_text(command, "destGroup"), UPDATE)


def _time_span(command: Command) -> Iterator[Need]:
    yield from topic_needs(_text(command, "topic"), SUB, GET)
    yield group_need(_text(command, "group"), SUB, GET)


_look, _change = _cluster(GET, LIST), _cluster(UPDATE)
_publish_v1, _publish_v2 = _topic("topic", PUB), _topic("b", PUB)
_look_at_topic = _topic("topic", PUB, SUB, GET)
_read_topic = _topic("topic", SUB, GET)
R = RequestCode

TABLE: dict[int, Needs] = {
    # Sending.
    R.SEND_MESSAGE: _publish_v1,
    R.SEND_MESSAGE_V2: _publish_v2,
    R.SEND_BATCH_MESSAGE: _publish_v2,
    R.SEND_REPLY_MESSAGE: _reply("topic"),
    R.SEND_REPLY_MESSAGE_V2: _reply("b"),
    R.END_TRANSACTION: _end_transaction,
    R.RECALL_MESSAGE: _publish_v1,
    R.STAGE_MESSAGES: _stage,
    R.PUBLISH_STAGED: _some_topic,
    R.STAGED_STATUS: _some_topic,
    R.TELL_HOME: _some_topic,
    # Consuming.
    R.PULL_MESSAGE: _consume,
    R.LITE_PULL_MESSAGE: _consume,
    R.QUERY_CONSUMER_OFFSET: _consume,
    R.UPDATE_CONSUMER_OFFSET: _consume,
    R.CONSUMER_SEND_MSG_BACK: _group("group", SUB),
    R.HEART_BEAT: _heartbeat,
    R.UNREGISTER_CLIENT: _unregister,
    R.CHECK_CLIENT_CONFIG: _check_client,
    R.GET_CONSUMER_LIST_BY_GROUP: _consumer_list,
    R.LOCK_BATCH_MQ: _locks,
    R.UNLOCK_BATCH_MQ: _locks,
    R.CLAIM_PARTITION: _leases,
    R.REFRESH_PARTITION: _leases,
    R.RELEASE_PARTITION: _leases,
    R.QUERY_ASSIGNMENT: _assignment,
    R.PUSH_REGISTER: _consumes,  # a name for the connection; its processor asks whose the name is
    R.PUSH_SUBSCRIBE: _consume,
    R.PUSH_UNSUBSCRIBE: _consume,
    R.PUSH_CLOSE: _nothing,
    R.PUSH_RESUME: _group("consumerGroup", SUB),
    R.PUSH_LIST: _push_list,
    # POP, by number: pop, ack, peek, change of invisible time, notification, polling info, batch ack.
    200050: _consume,
    200051: _popped,
    200052: _consume,
    200053: _popped,
    200054: _consume,
    200055: _consume,
    200151: _batch_ack,
    # Looking at topics and messages.
    R.GET_ROUTEINFO_BY_TOPIC: _route,
    R.SEARCH_OFFSET_BY_TIMESTAMP: _look_at_topic,
    R.GET_MAX_OFFSET: _look_at_topic,
    R.GET_MIN_OFFSET: _look_at_topic,
    R.GET_EARLIEST_MSG_STORETIME: _look_at_topic,
    R.GET_TOPIC_CONFIG: _look_at_topic,
    R.GET_TOPIC_STATS_INFO: _look_at_topic,
    R.QUERY_MESSAGE: _read_topic,
    R.QUERY_CONSUME_QUEUE: _queue_entries,
    R.QUERY_TOPIC_CONSUME_BY_WHO: _read_topic,
    R.VIEW_MESSAGE_BY_ID: _nothing,  # its processor asks for the topic of what it found
    R.GET_ALL_TOPIC_CONFIG: _all_topics(LIST),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _all_topics(LIST),
    R.GET_TOPICS_BY_CLUSTER: _all_topics(LIST),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: _all_topics(LIST),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _all_topics(LIST),
    R.GET_UNIT_TOPIC_LIST: _all_topics(LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: _all_topics(LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _all_topics(LIST),
    # Looking at groups.
    R.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", SUB, GET),
    R.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup", SUB, GET),
    R.GET_CONSUME_STATS: _consume_stats,
    R.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup", SUB, GET),
    R.QUERY_TOPICS_BY_CONSUMER: _group("group", SUB, GET),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: _group("group", SUB, GET),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group("group", SUB, GET),
    R.QUERY_CONSUME_TIME_SPAN: _time_span,
    R.QUERY_CORRECTION_OFFSET: _correction,
    R.EXPLAIN: _group("group", SUB, GET),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _all_groups(LIST),
    R.GET_BROKER_CONSUME_STATS: _all_groups(LIST),
    R.GET_ALL_CONSUMER_OFFSET: _all_groups(LIST),
    # Changing topics and groups.
    R.UPDATE_AND_CREATE_TOPIC: _topic("topic", CREATE, UPDATE),
    R.UPDATE_AND_CREATE_TOPIC_LIST: _topic_configs,
    R.UPDATE_AND_CREATE_STATIC_TOPIC: _topic("topic", CREATE, UPDATE),
    R.REGISTER_TOPIC_IN_NAMESRV: _topic("topic", CREATE, UPDATE),
    R.CREATE_ON_DEMAND: _topic("topic", PUB, CREATE),
    R.SUBSCRIPTIONS: _read_topic,
    R.DELETE_TOPIC_IN_BROKER: _topic("topic", DELETE),
    R.DELETE_TOPIC_IN_NAMESRV: _topic("topic", DELETE),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_configs,
    R.DELETE_SUBSCRIPTIONGROUP: _group("groupName", DELETE),
    R.INVOKE_BROKER_TO_RESET_OFFSET: _group_on_topic,
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: _group_on_topic,
    R.CLONE_GROUP_OFFSET: _clone,
    # Coordinators, for clients.
    R.CLIENT_BEAT: _client_beat,
    R.CLIENT_CLOSE: _client_beat,
    R.COORDINATOR_STATUS: _look,
    R.CONTROLLER_GET_METADATA_INFO: _look,
    R.CONTROLLER_GET_REPLICA_INFO: _look,
    R.CONTROLLER_GET_SYNC_STATE_DATA: _look,
    R.GET_CONTROLLER_CONFIG: _look,
    # The cluster: looking.
    R.GET_BROKER_CLUSTER_INFO: _look,
    R.GET_BROKER_MEMBER_GROUP: _look,
    R.GET_BROKER_CONFIG: _look,
    R.GET_BROKER_RUNTIME_INFO: _look,
    R.GET_BROKER_HA_STATUS: _look,
    R.GET_BROKER_EPOCH_CACHE: _look,
    R.VIEW_BROKER_STATS_DATA: _look,
    R.GET_NAMESRV_CONFIG: _look,
    R.GET_KV_CONFIG: _look,
    R.GET_KVLIST_BY_NAMESPACE: _look,
    R.GET_PRODUCER_CONNECTION_LIST: _look,
    R.GET_ALL_PRODUCER_INFO: _look,
    R.GET_ALL_MESSAGE_REQUEST_MODE: _look,
    R.GET_ALL_DELAY_OFFSET: _look,
    R.GET_TIMER_CHECK_POINT: _look,
    R.GET_TIMER_METRICS: _look,
    # The cluster: changing.
    R.UPDATE_BROKER_CONFIG: _change,
    R.UPDATE_NAMESRV_CONFIG: _change,
    R.UPDATE_CONTROLLER_CONFIG: _change,
    R.PUT_KV_CONFIG: _change,
    R.DELETE_KV_CONFIG: _change,
    R.WIPE_WRITE_PERM_OF_BROKER: _change,
    R.ADD_WRITE_PERM_OF_BROKER: _change,
    R.TRIGGER_DELETE_FILES: _change,
    R.CLEAN_EXPIRED_CONSUMEQUEUE: _change,
    R.CLEAN_UNUSED_TOPIC: _change,
    R.DELETE_EXPIRED_COMMITLOG: _change,
    R.RESUME_CHECK_HALF_MESSAGE: _change,
    R.SET_MESSAGE_REQUEST_MODE: _change,
    R.CONTROLLER_ELECT_MASTER: _change,
    R.CLEAN_BROKER_DATA: _change,
    # Users: a right to change the cluster is not a right to become an admin.
    R.AUTH_CREATE_USER: _admin,
    R.AUTH_UPDATE_USER: _admin,
    R.AUTH_DELETE_USER: _admin,
    R.AUTH_GET_USER: _look,
    R.AUTH_LIST_USERS: _look,
    R.AUTH_CREATE_ACL: _admin,
    R.AUTH_UPDATE_ACL: _admin,
    R.AUTH_DELETE_ACL: _admin,
    R.AUTH_GET_ACL: _look,
    R.AUTH_LIST_ACL: _look,
    # Shows any message to any consumer.
    R.CONSUME_MESSAGE_DIRECTLY: _admin,
    # Between servers.
    R.REGISTER_BROKER: _admin,
    R.UNREGISTER_BROKER: _admin,
    R.QUERY_DATA_VERSION: _admin,
    R.BROKER_HEARTBEAT: _admin,
    R.BROKER_BEAT: _admin,
    R.CONTROLLER_ALTER_SYNC_STATE_SET: _admin,
    R.CONTROLLER_REGISTER_BROKER: _admin,
    R.CONTROLLER_GET_NEXT_BROKER_ID: _admin,
    R.CONTROLLER_APPLY_BROKER_ID: _admin,
    # From servers to clients and brokers; nobody sends them to a server.
    R.CHECK_TRANSACTION_STATE: _admin,
    R.NOTIFY_CONSUMER_IDS_CHANGED: _admin,
    R.RESET_CONSUMER_CLIENT_OFFSET: _admin,
    R.GET_CONSUMER_STATUS_FROM_CLIENT: _admin,
    R.PUSH_REPLY_MESSAGE_TO_CLIENT: _admin,
    R.PUSH_DELIVER: _admin,
    R.PUSH_PING: _admin,
    R.NOTIFY_MIN_BROKER_ID_CHANGE: _admin,
    R.NOTIFY_BROKER_ROLE_CHANGED: _admin,
}


def needs_of(command: Command) -> Iterator[Need]:
    """What a request needs; PenstockError if its body or fields do not say it as they should."""
    return TABLE.get(command.code, _admin)(command)
