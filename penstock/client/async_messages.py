"""Messages of an asynchronous consumer one after the other, for `async for`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from penstock.client.handout import Handout, LoopHandout, Report
from penstock.client.received import ReceivedMessage
from penstock.client.turns import Turn


class AsyncMessages(AsyncIterator[ReceivedMessage]):
    """Messages as they come, until the consumer is closed."""

    def __init__(self, turn: Turn, handout: Handout, settle: Callable[[Report | None], None]) -> None:
        self._turn = turn
        self._handout = handout
        self._settle = settle

    def __anext__(self) -> Awaitable[ReceivedMessage]:
        return self._next()

    async def _next(self) -> ReceivedMessage:
        turn, handout = self._turn, self._handout
        work = turn.work
        message = work.advance() if work is not None else None
        while message is None:
            self._settle(turn.end())
            assert isinstance(handout, LoopHandout)
            lot = await handout.wait(turn.lot_size)
            if lot is None:
                raise StopAsyncIteration
            message = turn.begin(lot)
        return message
