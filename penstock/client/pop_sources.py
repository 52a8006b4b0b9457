"""What a popping consumer reads: every broker of its topics, each with all its queues as one; in order each queue by
itself, so that queues are worked on side by side.

Nobody divides anything: the broker gives a message to whoever asks first, so that any number of consumers share a
queue. What is left of rebalancing is to follow the routes, and to be known to the brokers. Belongs to the consumer's
event loop."""

from __future__ import annotations

from penstock.client.pop_messages import ALL_QUEUES
from penstock.client.rebalance import TopicSeen
from penstock.client.rebalancing import Rebalancing
from penstock.client.routes import TopicRoute
from penstock.protocol.bodies import MessageQueue


class PopSources(Rebalancing):
    """As `Rebalancing`, with queues that everybody holds."""

    async def _divide(self, topic: str, route: TopicRoute) -> bool:
        brokers = {queue.broker_name for queue in route.subscribe_queues}
        if self._subscriptions.get(topic) is not None:
            queues = tuple(MessageQueue(topic, broker, ALL_QUEUES) for broker in sorted(brokers))
            if self._options.orderly:
                queues = tuple(route.subscribe_queues)
            self.event(TopicSeen(topic, queues, None))
        return True
