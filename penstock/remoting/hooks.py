"""What a program may put around the requests of its clients: signing, counting, tracing.

    before_request   the request as it is about to be encoded; fields may be added to it
    after_response   the request and its response, before whoever asked sees it

Rules: called in the client's event loop, for every request that is sent, heartbeats and retries included, so both
must be quick and must not block. A one-way request, and one that is never answered, has no `after_response`. A
`before_request` that raises keeps its request from being sent, and its caller is told so; an `after_response` that
raises is logged, and changes nothing. One that returns true has the request prepared and sent once more on the same
connection, and this answer dropped: for a refusal that another signature avoids. Requests that servers send to us do
not pass here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.errors import RemotingError
from penstock.protocol.command import Command

_LOG = logging.getLogger("penstock.remoting")
OnResponse = Callable[[Command | RemotingError], None]


class RpcHook(Protocol):
    """Implemented by a program, and given to its clients as `rpc_hook`."""

    def before_request(self, address: str, request: Command) -> None:
        """Look at a request to this address, or add to it."""

    def after_response(self, address: str, request: Command, response: Command) -> bool | None:
        """Look at a response; true asks for the request to be sent once more."""


def prepare(hook: RpcHook, address: str, request: Command) -> None:
    """Have the hook see a request. RemotingError if it does not let it pass."""
    try:
        hook.before_request(address, request)
    except Exception as error:
        raise RemotingError(
            f"the RPC hook did not let request {request.code} to {address} pass: {error}", "nothing was sent"
        ) from error


def observed(
    hook: RpcHook,
    address: str,
    request: Command,
    respond: OnResponse,
    send_again: Callable[[], None] | None = None,
) -> OnResponse:
    """`respond`, with the hook in front of it. `send_again` is called instead if the hook asks for it."""

    def answered(outcome: Command | RemotingError) -> None:
        if isinstance(outcome, Command):
            try:
                if hook.after_response(address, request, outcome) and send_again is not None:
                    send_again()
                    return
            except Exception:
                _LOG.exception("the RPC hook failed at the response to request %d", request.code)
        respond(outcome)

    return answered
