"""What each request needs; that no code is forgotten, and that a request is checked for what its processor does."""

import json

import pytest

from penstock.errors import PenstockError
from penstock.protocol.bodies.balance import ClientBeatBody, SubscriptionMode
from penstock.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from penstock.protocol.bodies.queues import LockBatchRequestBody, MessageQueue
from penstock.protocol.bodies.staged import encode_head
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.security.policy import ANY_ONE, Action, Entry, Kind, Need, Pattern
from penstock.security.requests import TABLE, needs_of, topic_needs
from penstock.security.users import User

PUB, SUB = (Action.PUB,), (Action.SUB,)


def needs(code: int, body: bytes = b"", **fields: str) -> set[tuple[Kind, str, tuple[Action, ...]]]:
    found = needs_of(Command(code, fields, body))
    return {(need.kind, need.name, need.actions) for need in found}


def test_every_request_code_is_classified() -> None:
    """A code that is not needs an admin, which is safe; that it is meant so has to be said."""
    assert [code.name for code in RequestCode if code not in TABLE] == []


@pytest.mark.parametrize("code", [77_777, 3_999, -1, 0])
def test_a_code_that_nobody_knows_needs_an_admin(code: int) -> None:
    assert needs(code) == {(Kind.ADMIN, "*", ())}


@pytest.mark.abuse("A9")
def test_no_entry_makes_an_admin() -> None:
    """Not even one about everything."""
    need = Need(Kind.ADMIN, "*", ())
    entries = [Entry(Pattern.of(text), (Action.ALL,)) for text in ("*", "Cluster:*", "Topic:*", "Group:*")]
    assert not User("u", "secret-1", entries=tuple(entries)).may(need, "127.0.0.1")
    assert User("u", "secret-1", is_super=True).may(need, "127.0.0.1")
    assert str(need) == "what only an admin may do"


def test_sends_are_checked_for_the_field_that_names_their_topic() -> None:
    """A V2 send with a field `topic` beside its `b` goes to `b`, and the other way about."""
    both = {"topic": "mine", "b": "theirs"}
    assert needs(RequestCode.SEND_MESSAGE, **both) == {(Kind.TOPIC, "mine", PUB)}
    for code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    ):
        assert needs(code, **both) == {(Kind.TOPIC, "theirs", PUB)}
    replies = {"topic": "mine_REPLY_TOPIC", "b": "theirs_REPLY_TOPIC"}
    assert needs(RequestCode.SEND_REPLY_MESSAGE, **replies) == {(Kind.TOPIC, "mine_REPLY_TOPIC", PUB)}
    assert needs(RequestCode.SEND_REPLY_MESSAGE_V2, **replies) == {(Kind.TOPIC, "theirs_REPLY_TOPIC", PUB)}


def test_retry_and_dead_letter_topics_are_the_groups() -> None:
    for topic in ("%RETRY%g", "%DLQ%g"):
        assert needs(RequestCode.SEND_MESSAGE_V2, b=topic) == {(Kind.GROUP, "g", SUB)}
        pull = needs(RequestCode.PULL_MESSAGE, topic=topic, consumerGroup="other")
        assert pull == {(Kind.GROUP, "g", SUB), (Kind.GROUP, "other", SUB)}
    assert topic_needs("%RETRY%g", Action.DELETE) == (Need(Kind.GROUP, "g", (Action.DELETE,)),)
    both = Need(Kind.GROUP, "g_1", (Action.SUB,)), Need(Kind.TOPIC, "a_b", (Action.SUB,))
    assert topic_needs("%RETRY%g_1+a_b", Action.GET) == both, "retries of POP"


def test_a_heartbeat_needs_its_groups_and_their_topics() -> None:
    subscriptions = tuple(SubscriptionData(topic=topic) for topic in ("T", "%RETRY%g", "%RETRY%other"))
    data = HeartbeatData("client", (ProducerData("p"),), (ConsumerData("g", subscriptions=subscriptions),))
    assert needs(RequestCode.HEART_BEAT, data.encode()) == {
        (Kind.GROUP, "g", SUB),
        (Kind.TOPIC, "T", SUB),
        (Kind.GROUP, "other", SUB),
    }
    assert needs(RequestCode.HEART_BEAT, HeartbeatData("client", (ProducerData("p"),)).encode()) == set()


def test_locks_stages_and_acks_need_every_topic_in_their_bodies() -> None:
    queues = (MessageQueue("A", "b", 0), MessageQueue("B", "b", 1))
    locks = LockBatchRequestBody("client", "g", queues).encode()
    assert needs(RequestCode.LOCK_BATCH_MQ, locks) == {
        (Kind.GROUP, "g", SUB),
        (Kind.TOPIC, "A", SUB),
        (Kind.TOPIC, "B", SUB),
    }
    staged = needs(RequestCode.STAGE_MESSAGES, encode_head([("A", 1), ("B", 2)]))
    assert staged == {(Kind.TOPIC, "A", PUB), (Kind.TOPIC, "B", PUB)}
    acks = json.dumps({"acks": [{"c": "g", "t": "A"}, {"c": "h", "t": "%RETRY%i"}]}).encode()
    assert needs(200151, acks) == {
        (Kind.GROUP, "g", SUB),
        (Kind.TOPIC, "A", SUB),
        (Kind.GROUP, "h", SUB),
        (Kind.GROUP, "i", SUB),
    }


@pytest.mark.abuse("A9")
def test_who_asks_for_the_readers_of_a_topic_may_read_it_and_who_joins_them_may_be_in_their_group() -> None:
    reads = (Action.SUB, Action.GET)
    assert needs(RequestCode.SUBSCRIPTIONS, topic="T") == {(Kind.TOPIC, "T", reads)}
    body = ClientBeatBody("c", "billing", mode=SubscriptionMode.POINT_TO_POINT, topics=("T",)).encode()
    assert needs(RequestCode.CLIENT_BEAT, body) == {(Kind.GROUP, "billing", SUB), (Kind.TOPIC, "T", SUB)}


def test_a_transaction_ends_where_its_sender_may_send() -> None:
    assert needs(RequestCode.END_TRANSACTION, topic="T") == {(Kind.TOPIC, "T", PUB)}
    assert needs(RequestCode.END_TRANSACTION) == {(Kind.TOPIC, ANY_ONE, PUB)}


def test_tools_need_the_topic_alone_but_send_nothing_back() -> None:
    assert needs(RequestCode.PULL_MESSAGE, topic="T", consumerGroup="TOOLS_CONSUMER") == {
        (Kind.TOPIC, "T", SUB)
    }
    assert needs(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102") == set()
    back = needs(RequestCode.CONSUMER_SEND_MSG_BACK, group="TOOLS_CONSUMER")
    assert back == {(Kind.GROUP, "TOOLS_CONSUMER", SUB)}
    retries = needs(RequestCode.PULL_MESSAGE, topic="%RETRY%TOOLS_CONSUMER", consumerGroup="TOOLS_CONSUMER")
    assert retries == {(Kind.GROUP, "TOOLS_CONSUMER", SUB)}


@pytest.mark.abuse("A6")
@pytest.mark.parametrize("name", ["", "*", ANY_ONE, "x" * 513])
def test_a_peers_name_never_stands_for_many(name: str) -> None:
    with pytest.raises(PenstockError):
        needs(RequestCode.SEND_MESSAGE_V2, b=name)
    with pytest.raises(PenstockError):
        needs(RequestCode.PULL_MESSAGE, topic="T", consumerGroup=name)
    for prefix in ("%RETRY%", "%DLQ%"):
        with pytest.raises(PenstockError):
            needs(RequestCode.SEND_MESSAGE_V2, b=prefix + name)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff" * 100, b"[]", b'{"consumerDataSet":7}'])
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    for code in (RequestCode.HEART_BEAT, RequestCode.STAGE_MESSAGES):
        with pytest.raises(PenstockError):
            needs(code, body)


def test_retries_of_what_was_popped_are_the_topics_and_the_groups() -> None:
    """They are named by their own topic, which looks like another group's."""
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        for topic in ("T", "%RETRY%G_T", "%RETRY%G+T"):
            found = needs(code, topic=topic, consumerGroup="G")
            assert found == {(Kind.TOPIC, "T", SUB), (Kind.GROUP, "G", SUB)}, topic
    # A pull has no handle that binds it: there the name is what it says.
    pulled = needs(RequestCode.PULL_MESSAGE, topic="%RETRY%G_T", consumerGroup="G")
    assert pulled == {(Kind.GROUP, "G_T", SUB), (Kind.GROUP, "G", SUB)}


def test_pushing_needs_what_pulling_needs() -> None:
    place = {"topic": "T", "consumerGroup": "G"}
    for code in (RequestCode.PUSH_SUBSCRIBE, RequestCode.PUSH_UNSUBSCRIBE):
        assert needs(code, **place) == needs(RequestCode.PULL_MESSAGE, **place)
    assert needs(RequestCode.PUSH_RESUME, consumerGroup="G") == {(Kind.GROUP, "G", SUB)}
    with pytest.raises(PenstockError):
        needs(RequestCode.PUSH_RESUME)
    assert needs(RequestCode.PUSH_LIST, consumerGroup="G") == {(Kind.GROUP, "G", (Action.SUB, Action.GET))}
    assert needs(RequestCode.PUSH_LIST) == {(Kind.CLUSTER, "*", (Action.GET, Action.LIST))}
