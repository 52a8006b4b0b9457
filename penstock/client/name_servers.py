"""Which name server a client talks to: one that it can reach, remembered until it fails.

Rules: name servers know nothing of each other and all of them know everything, so any one will do. The one that
answered last is asked next. When it cannot be reached, breaks off or stays silent, the others are asked in the
order in which they were given, and the first to answer is the new choice. Where to begin is left to chance, so
that clients spread. Requests through `call` are questions: asking twice does no harm.

`NameServerChoice` decides and knows no network; `NameServers` belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.errors import ConnectError, RemotingError
from penstock.protocol.command import Command
from penstock.remoting.client import RemotingClient
from penstock.remoting.connection import Connection
from penstock.runtime import Runtime

logger = logging.getLogger(__name__)


class NameServerChoice:
    """The order in which name servers are tried. Events in, order out."""

    def __init__(self, addresses: Sequence[str], start: int = 0) -> None:
        self.addresses = tuple(addresses)
        self._at = start % len(self.addresses)
        self.chosen: str | None = None

    def order(self) -> list[str]:
        """Whom to ask: the chosen one first, the others as they follow it."""
        return [*self.addresses[self._at :], *self.addresses[: self._at]]

    def answered(self, address: str) -> None:
        """Remember who answered."""
        self._at = self.addresses.index(address)
        self.chosen = address

    def failed(self, address: str) -> None:
        """Begin after the one that failed, if it was the one to begin with."""
        if self.addresses[self._at] == address:
            self._at = (self._at + 1) % len(self.addresses)
        if self.chosen == address:
            self.chosen = None


class NameServers:
    """Asks a name server, whichever is there."""

    def __init__(
        self, addresses: Sequence[str], remoting: RemotingClient, *, runtime: Runtime, timeout_ms: int = 3_000
    ) -> None:
        self._choice = NameServerChoice(addresses, runtime.entropy.below(len(addresses)))
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self._choosing = asyncio.Lock()
        # Whose failure was said, until they answer: a node that restarts is asked many times a second.
        self._complained: set[str] = set()

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._choice.addresses

    @property
    def chosen(self) -> str | None:
        """The one in use, or None before the first answer."""
        return self._choice.chosen

    async def call(self, command: Command, timeout_ms: int | None = None) -> Command:
        """The answer of any one of them. ConnectError when none answers."""
        chosen = self._choice.chosen
        if chosen is not None:
            try:
                return await self._remoting.call(chosen, _copy(command), timeout_ms or self._timeout_ms)
            except RemotingError as error:
                self._failed(chosen, error)
        return await self._choose(command, timeout_ms or self._timeout_ms)

    async def call_all(
        self, command: Command, timeout_ms: int | None = None
    ) -> dict[str, Command | RemotingError]:
        """The answers of all, side by side; a silent one does not hold up the others."""
        limit = timeout_ms or self._timeout_ms

        async def one(address: str) -> Command | RemotingError:
            try:
                return await self._remoting.call(address, _copy(command), limit)
            except RemotingError as error:
                return error

        answers = await asyncio.gather(*(one(address) for address in self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def connect(self) -> Connection:
        """A connection to the chosen one, choosing first if need be."""
        failures: list[str] = []
        for address in self._choice.order():
            try:
                connection = await self._remoting.connection(address)
            except RemotingError as error:
                self._failed(address, error)
                failures.append(f"{address}: {error.message}")
            else:
                self._answered(address)
                return connection
        raise _nobody(failures)

    async def _choose(self, command: Command, timeout_ms: int) -> Command:
        """Ask one after the other. Callers who come meanwhile wait for the outcome instead of dialling the
        dead as well; who has waited for longer than a call may take stops waiting."""
        try:
            async with asyncio.timeout(timeout_ms * len(self.addresses) / 1000):
                await self._choosing.acquire()
        except TimeoutError:
            raise _nobody([f"{address}: still being tried" for address in self.addresses]) from None
        try:
            failures: list[str] = []
            for address in self._choice.order():
                try:
                    answer = await self._remoting.call(address, _copy(command), timeout_ms)
                except RemotingError as error:
                    self._failed(address, error)
                    failures.append(f"{address}: {error.message}")
                else:
                    self._answered(address)
                    return answer
            raise _nobody(failures)
        finally:
            self._choosing.release()

    def _answered(self, address: str) -> None:
        self._choice.answered(address)
        self._complained.discard(address)

    def _failed(self, address: str, error: RemotingError) -> None:
        level = logging.DEBUG if address in self._complained else logging.WARNING
        logger.log(level, "name server %s: %s", address, error)
        self._complained.add(address)
        self._choice.failed(address)
        # A silent one may keep its connection open for ever; the next call to it dials again.
        self._remoting.drop(address)


def _copy(command: Command) -> Command:
    """A command may be sent more than once; each connection numbers its own."""
    return Command(command.code, dict(command.fields), command.body)


def _nobody(failures: list[str]) -> ConnectError:
    return ConnectError(
        f"no name server answers ({'; '.join(failures)})",
        "start one (`penstock up`), or correct the addresses given to the client",
    )
