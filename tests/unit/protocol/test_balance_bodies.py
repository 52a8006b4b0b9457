"""Bodies of balancing and leases: what is written is read, and what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CodecError
from penstock.protocol.bodies import Body, MessageQueue
from penstock.protocol.bodies.balance import (
    AssignmentEvent,
    Binding,
    ClientBeatAnswer,
    ClientBeatBody,
    ClientKind,
    EventStatus,
    EventType,
    LeaseAnswerBody,
    LeasedElsewhere,
    LeaseRequestBody,
    PlacementBody,
    SubscriptionMode,
)
from penstock.protocol.bodies.explanation import ExplainedMember, ExplainedQueue, ExplanationBody
from penstock.protocol.bodies.subscriptions import DescribedSubscription, ReadingGroup, SubscriptionsBody

names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 2**31 - 1)
queues = st.builds(MessageQueue, names, names, numbers)
some_queues = st.lists(queues, max_size=5).map(tuple)
events = st.builds(
    AssignmentEvent,
    st.integers(0, 2**62),
    st.sampled_from(EventType),
    some_queues,
    st.sampled_from(EventStatus),
)
elsewhere = st.lists(st.builds(LeasedElsewhere, queues, names, numbers), max_size=3).map(tuple)
bodies = st.one_of(
    events,
    st.builds(
        ClientBeatBody,
        names,
        names,
        st.sampled_from(ClientKind),
        st.sampled_from(SubscriptionMode),
        st.lists(names, max_size=4).map(tuple),
        some_queues,
        st.none() | events,
        elsewhere,
        st.integers(0, 2**62),
        st.sampled_from(Binding),
    ),
    st.builds(
        SubscriptionsBody,
        names,
        st.lists(
            st.builds(
                DescribedSubscription,
                names,
                st.sampled_from(SubscriptionMode),
                st.integers(0, 255),
                st.lists(
                    st.builds(ReadingGroup, names, st.sampled_from(Binding), numbers, numbers), max_size=3
                ).map(tuple),
            ),
            max_size=3,
        ).map(tuple),
        names,
    ),
    st.builds(ClientBeatAnswer, numbers, st.booleans(), st.none() | events),
    st.builds(LeaseRequestBody, names, names, some_queues),
    st.builds(LeaseAnswerBody, numbers, some_queues, elsewhere),
    st.builds(PlacementBody, names, st.dictionaries(names, numbers, max_size=4), numbers),
    st.builds(
        ExplanationBody,
        names,
        numbers,
        numbers,
        names,
        st.lists(
            st.builds(
                ExplainedMember,
                names,
                names,
                st.lists(names, max_size=3).map(tuple),
                numbers,
                numbers,
                numbers,
                names,
            ),
            max_size=3,
        ).map(tuple),
        st.lists(st.builds(ExplainedQueue, queues, names, names, names), max_size=3).map(tuple),
        names,
        names,
        st.lists(names, max_size=3).map(tuple),
    ),
)


@given(bodies)
def test_what_is_written_is_read(body: Body) -> None:
    assert type(body).decode(body.encode()) == body


@pytest.mark.abuse("A3")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (AssignmentEvent, b'{"opType": 7}'),
        (AssignmentEvent, b'{"status": 3}'),
        (AssignmentEvent, b'{"rebalanceId": 1e40}'),
        (ClientBeatBody, b'{"kind": "broker"}'),
        (ClientBeatBody, b'{"mode": "all"}'),
        (ClientBeatBody, b'{"topics": [1]}'),
        (ClientBeatBody, b'{"binding": "chance"}'),
        (SubscriptionsBody, b'{"subscriptions": [{"option": 256}]}'),
        (SubscriptionsBody, b'{"subscriptions": [{"mode": "all"}]}'),
        (SubscriptionsBody, b'{"subscriptions": [{"groups": [{"consumers": -1}]}]}'),
        (ClientBeatBody, b'{"result": []}'),
        (LeaseAnswerBody, b'{"leaseMs": -1}'),
        (PlacementBody, b'{"queues": {"b": "x"}}'),
    ],
)
def test_what_is_no_body_is_refused(kind: type[Body], text: bytes) -> None:
    with pytest.raises(CodecError):
        kind.decode(text)


def test_the_term_is_in_the_upper_half() -> None:
    assert AssignmentEvent(5 << 32 | 7, EventType.CONNECT).term == 5
