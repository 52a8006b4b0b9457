"""Members of one group that do not agree: found soon after one joins, and warned of with the client that differs.

All members of a group divide the queues of every topic among themselves. A queue whose turn falls to a member that
does not subscribe to its topic, or that consumes in another way, is read by no one, and nothing else shows it.

Rules: looks once things have been quiet for `QUIET_MS`, so that a program may subscribe to its topics one after the
other. Penstock's brokers say what each member consumes. RocketMQ's know it of the group as a whole, which is what
its latest heartbeat said: there all other members are named. Each client is warned of once for each way in which it
differs. Belongs to the consumer's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from penstock.client.options import DEFAULT_GROUP
from penstock.protocol.bodies import ConsumerConnection, ConsumerData, ConsumeType

logger = logging.getLogger(__name__)
QUIET_MS = 2_000
_NAMED_MAX = 3
_PASSIVE = ConsumeType.CONSUME_PASSIVELY
_RULE = (
    "the members of a group share the queues of all topics, so some queues may have no reader; use the same topics,"
    " expressions and model in all members, or another group"
)


class Conflicts:
    """What one consumer was told of its group. `own` makes its entry in a heartbeat."""

    def __init__(self, client_id: str, own: Callable[[], ConsumerData]) -> None:
        self._client_id = client_id
        self._own = own
        self._told: set[tuple[str, str]] = set()

    def look(self, found: ConsumerConnection) -> None:
        """Compare the members of the group with this one."""
        own = self._own()
        others = [client for client in found.connections if client.client_id != self._client_id]
        if not others or not own.subscriptions:
            return
        if own.group_name == DEFAULT_GROUP:
            self._warn(
                "this consumer was given no group; in %s it shares the messages with %s; "
                'name a group: Consumer(..., group="...")',
                *(
                    own.group_name,
                    _names([f"{client.client_id} at {client.client_addr}" for client in others]),
                ),
            )
        if any(client.terms for client in others):
            for client in others:
                # A Java client that pops says nothing of it.
                same = own if client.language == "PYTHON" else replace(own, consume_type=_PASSIVE)
                if client.terms and client.terms != same.terms:
                    self._tell(own, f"{client.client_id} at {client.client_addr}", client.terms)
            return
        group = ConsumerData(
            own.group_name,
            found.consume_type,
            found.message_model,
            subscriptions=tuple(found.subscriptions.values()),
        )
        if group.terms != own.terms:
            names = _names([f"{client.client_id} at {client.client_addr}" for client in others])
            self._tell(own, names, group.terms)

    def _tell(self, own: ConsumerData, who: str, terms: str) -> None:
        self._warn(
            "group %s: %s consumes %s; this client (%s) consumes %s: %s",
            *(own.group_name, who, terms, self._client_id, own.terms, _RULE),
        )

    def _warn(self, text: str, *arguments: str) -> None:
        """Once for the same words."""
        if (text, str(arguments)) not in self._told:
            self._told.add((text, str(arguments)))
            logger.warning(text, *arguments)


def _names(clients: list[str]) -> str:
    more = len(clients) - _NAMED_MAX
    return ", ".join(clients[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
