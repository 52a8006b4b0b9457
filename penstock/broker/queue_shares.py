"""Which queues a client of a group reads, where the broker divides them (400): RocketMQ's strategies, as pure
functions.

    AVG              neighbours, in blocks as equal as they can be
    AVG_BY_CIRCLE    one after the other in turn
    POP              all queues of a broker as one (queue -1); or with a share: the own block and those of the next
                     clients

All members and all queues are sorted, so that every broker says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.protocol.bodies import MessageQueue

ALL_QUEUES = -1
Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]


def averagely(client: str, clients: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """A block of neighbours; nothing for who is not among the clients."""
    if client not in clients:
        return []
    place = clients.index(client)
    size, odd = divmod(len(queues), len(clients))
    start = place * size + min(place, odd)
    return [*queues[start : start + size + (place < odd)]]


def by_circle(client: str, clients: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Every n-th queue."""
    return [*queues[clients.index(client) :: len(clients)]] if client in clients else []


STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def for_pop(
    strategy: Strategy, client: str, clients: Sequence[str], queues: Sequence[MessageQueue], share: int
) -> list[MessageQueue]:
    """What a client pops; several may pop the same queue."""
    if share <= 0 or share >= len(clients) - 1:
        whole = {MessageQueue(queue.topic, queue.broker_name, ALL_QUEUES) for queue in queues}
        return sorted(whole)
    if client not in clients or not queues:
        return []
    place = clients.index(client)
    if len(clients) > len(queues):
        return [queues[place % len(queues)]]
    others = [clients[(place + number) % len(clients)] for number in range(share + 1)]
    return [queue for other in others for queue in strategy(other, clients, queues)]
