"""Which function answers which request code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from penstock.errors import ResponseError
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from penstock.remoting.connection import Connection

# Called in the loop, must not block. It returns the answer, or None if there will be none or it comes later
# (`Connection.answer`), or something to await. What it raises becomes an answer.
Handler = Callable[["Connection", Command], "Command | Awaitable[Command | None] | None"]


class RequestGuard(Protocol):
    """Looks at every request before its handler does."""

    def check(self, source: str, command: Command) -> None:
        """Let a request from this address pass, or raise what its sender is answered. It may set the request's
        `answer_fields`."""

    def handled(self) -> None:
        """The handler of the request that passed last has returned, though its answer may come later."""

    def still_allows(self, source: str, command: Command) -> bool:
        """Whether a request that passed before would pass now: rights may have been withdrawn while it waited."""


class ProcessorTable:
    """Handlers by request code."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def register(self, code: int, handler: Handler) -> None:
        """One handler for a code; a second one is a mistake in assembly."""
        if int(code) in self._handlers:
            raise AssertionError(f"broken invariant: two handlers for request code {int(code)}")
        self._handlers[int(code)] = handler

    def wrap(self, code: int, around: Callable[[Handler], Handler]) -> None:
        """Put something around the handler of a code, if there is one."""
        handler = self._handlers.get(int(code))
        if handler is not None:
            self._handlers[int(code)] = around(handler)

    def find(self, code: int) -> Handler | None:
        return self._handlers.get(code)

    @property
    def codes(self) -> list[int]:
        return sorted(self._handlers)


def check(response: Command, *also: int) -> Command:
    """The response itself if it says success (or one of the codes given), else its error raised."""
    if response.code != 0 and response.code not in also:
        raise ResponseError(response.code, response.remark or "no reason given")
    return response
