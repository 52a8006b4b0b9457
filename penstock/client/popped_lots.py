"""Taking messages by hand: what both faces of a consumer that pops have in common. Any thread."""

from __future__ import annotations

from penstock.client.handout import Handout, Lot
from penstock.client.options import ConsumerOptions, require_range, require_seconds
from penstock.client.received import ReceivedMessage
from penstock.errors import ClientError


def popped(lot: Lot | None, handout: Handout, most: int, options: ConsumerOptions) -> list[ReceivedMessage]:
    """The messages of a lot, and of those behind it: each waits for its acknowledgement."""
    messages: list[ReceivedMessage] = []
    while lot is not None:
        for message in lot.messages:
            message.owner = lot.owner
            message.started_ms = handout.now_ms
        messages += lot.messages
        left = most - len(messages)
        lot = handout.take(lot_size(left, options)) if left > 0 else None
    return messages


def lot_size(most: int, options: ConsumerOptions) -> int:
    """How many messages of a queue may be given out: in order a queue waits for each single one."""
    return 1 if options.orderly else most


def check_pops(options: ConsumerOptions, most: object, timeout_s: object) -> None:
    if not options.is_pop:
        raise ClientError("this consumer pulls", 'make it with delivery="pop", or use poll')
    _check_wait(most, timeout_s)


def check_polls(options: ConsumerOptions, most: object, timeout_s: object) -> None:
    if options.is_pop:
        raise ClientError("this consumer pops", "use pop, or iterate, or give it a listener")
    _check_wait(most, timeout_s)


def _check_wait(most: object, timeout_s: object) -> None:
    require_range("max_messages", most, 1, 2**31 - 1)
    require_seconds("timeout_s", timeout_s)
