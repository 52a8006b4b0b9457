"""Headers of balancing by the coordinator: EXPLAIN (9023), CREATE_ON_DEMAND (9024), SUBSCRIPTIONS (9029). The bodies
of the other codes say everything themselves (`bodies/balance.py`). Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.header import I32, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequestHeader(Header):
    """Whose queues are to be explained."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionsRequestHeader(Header):
    """The topic whose subscriptions are asked for."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOnDemandRequestHeader(Header):
    """A topic that is to have at least so many queues over all broker sets."""

    topic: str
    queues: I32 = 1
