"""What an acknowledgement by hand says, for both faces of a consumer."""

from __future__ import annotations

from penstock.client.handout import Report
from penstock.client.options import ConsumerOptions
from penstock.client.received import ReceivedMessage, Retry
from penstock.errors import ClientError


def ack_report(
    options: ConsumerOptions, message: ReceivedMessage, holder: object, retry: Retry | None = None
) -> Report:
    """What an acknowledgement by hand says, of a message that the queues of `holder` gave out."""
    given: object = message
    if not isinstance(given, ReceivedMessage):
        raise ClientError(f"{given!r} is no message that a consumer received", "acknowledge such a message")
    owner = message.owner
    if owner is not None and owner.holder is not holder:
        raise ClientError(f"{message!r} was given to another consumer", "acknowledge it there")
    if owner is None or (options.auto_ack and not options.is_pop):
        raise ClientError(
            f"{message!r} is not waiting for an acknowledgement",
            "acknowledge each message once, and only with auto_ack=False",
        )
    message.owner = None
    if retry is None:
        return Report(owner, done=[message])
    return Report(owner, failed=[(message, retry)])
