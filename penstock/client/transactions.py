"""Transactions of a program: a message that is seen if, and only if, the work it stands for was done.

    with producer.transaction("orders", b"...", keys="o-17") as transaction:
        database.commit(...)           # raises: rolled back; returns: committed

    1 enter      the half message is stored; nobody sees it. If that fails the body does not run.
    2 body       the program's own work
    3 leave      committed if the body returned, rolled back if it raised an Exception, left open if the program
                 called `unknown()` or was interrupted (KeyboardInterrupt, a cancelled task): what was done then
                 nobody knows
    4 later      what was left open, or whose end did not arrive, the broker asks about: `TransactionListener.check`

Rules: `rollback` and `unknown` decide before the body ends; the last one called counts, and an exception then
changes nothing. The end is sent when the body is left, never before. A failed commit raises; a failed rollback is
logged, because the body's own exception says more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.client.results import SendResult
from penstock.client.transaction_calls import TransactionListener, TransactionState
from penstock.errors import ClientError, PenstockError

__all__ = ["AsyncTransaction", "Transaction", "TransactionListener", "TransactionState"]

logger = logging.getLogger(__name__)
Begin = Callable[[], Coroutine[Any, Any, SendResult]]


class End(Protocol):
    """How a transaction is ended; `TransactionCalls.end`."""

    def __call__(
        self, result: SendResult, state: TransactionState, reason: str = ""
    ) -> Coroutine[Any, Any, None]: ...


class _Decision:
    """What both faces have in common."""

    def __init__(self) -> None:
        self._result: SendResult | None = None
        self._asked: TransactionState | None = None
        # How it ended; None while the body runs.
        self.state: TransactionState | None = None

    @property
    def result(self) -> SendResult:
        """Where the half message is."""
        if self._result is None:
            raise _not_begun()
        return self._result

    @property
    def msg_id(self) -> str:
        """The id that the message will have."""
        return self.result.msg_id

    def rollback(self) -> None:
        """Have it rolled back when the body is left."""
        self._decide(TransactionState.ROLLBACK)

    def commit(self) -> None:
        """Have it committed when the body is left, however that happens."""
        self._decide(TransactionState.COMMIT)

    def unknown(self) -> None:
        """Leave it open: the broker will ask the listener."""
        self._decide(TransactionState.UNKNOWN)

    def _decide(self, state: TransactionState) -> None:
        if self.state is not None:
            raise ClientError(
                f"the transaction has ended with {self.state.name}", "decide inside of its body"
            )
        if self._result is None:
            raise _not_begun()
        self._asked = state

    def _ended(self, error: BaseException | None) -> TransactionState:
        if self._asked is not None:
            state = self._asked
        elif error is None:
            state = TransactionState.COMMIT
        else:
            state = TransactionState.ROLLBACK if isinstance(error, Exception) else TransactionState.UNKNOWN
        self.state = state
        return state

    def _failed(self, error: PenstockError) -> None:
        """What to do with an end that failed: a commit has to be known."""
        if self.state is TransactionState.COMMIT:
            raise error
        logger.warning("transaction %s: %s", self.msg_id, error)

    def _begin_once(self) -> None:
        if self._result is not None:
            raise ClientError("the transaction was entered before", "make a new one for each message")


def _not_begun() -> ClientError:
    return ClientError("the transaction has not begun", "enter it with `with`, or `async with`")


class AsyncTransaction(_Decision):
    """Made by `AsyncProducer.transaction`; enter it with `async with`."""

    def __init__(self, begin: Begin, end: End) -> None:
        super().__init__()
        self._begin = begin
        self._end = end

    async def __aenter__(self) -> Self:
        self._begin_once()
        self._result = await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._ended(error)
        try:
            await self._end(self.result, state, repr(error) if error is not None else "")
        except PenstockError as failure:
            self._failed(failure)


class Transaction(_Decision):
    """Made by `Producer.transaction`; enter it with `with`. The body runs in the caller's thread."""

    def __init__(self, begin: Begin, end: End, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__()
        self._begin = begin
        self._end = end
        self._run = run

    def __enter__(self) -> Self:
        self._begin_once()
        self._result = self._run(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._ended(error)
        try:
            self._run(self._end(self.result, state, repr(error) if error is not None else ""))
        except PenstockError as failure:
            self._failed(failure)
