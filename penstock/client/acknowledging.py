"""What an acknowledgement by hand says, for both faces of a consumer."""

from __future__ import annotations

from penstock.client.handout import Report
from penstock.client.options import ConsumerOptions
from penstock.client.received import ReceivedMessage, Retry
from penstock.errors import ClientError


def ack_report(options: ConsumerOptions, message: ReceivedMessage, retry: Retry | None = None) -> Report:
    """What an acknowledgement by hand says."""
    owner = message.owner
    if owner is None or (options.auto_ack and not options.is_pop):
        raise ClientError(
            f"{message!r} is not waiting for an acknowledgement",
            "acknowledge each message once, and only with auto_ack=False",
        )
    message.owner = None
    if retry is None:
        return Report(owner, done=[message])
    return Report(owner, failed=[(message, retry)])
