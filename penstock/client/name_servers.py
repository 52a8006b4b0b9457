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
from collections.abc import Mapping, Sequence

from penstock.errors import CallTimeoutError, ConnectError, ConnectionLostError, RemotingError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.client import NOT_RUNNING, RemotingClient
from penstock.remoting.connection import Connection
from penstock.runtime import Runtime

logger = logging.getLogger(__name__)
START_NAME_SERVER = "start one (`penstock up`), or correct the addresses given to the client"
TLS_ONLY = "a server that takes TLS only closes plaintext connections: connect with TLS"
NOT_ONE = "another kind of server listens there"
# What name servers know, and brokers and controllers do not.
KNOWN_TO_NAME_SERVERS = frozenset(
    (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    )
)


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
        # Which have answered such a question. They may know fewer codes: a proxy may answer for routes only.
        self._proven: set[str] = set()

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
                return await self._ask(chosen, command, timeout_ms or self._timeout_ms)
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
                return await self._ask(address, command, limit)
            except RemotingError as error:
                return error

        answers = await asyncio.gather(*(one(address) for address in self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def _ask(self, address: str, command: Command, timeout_ms: int) -> Command:
        # A command may be sent more than once; each connection numbers its own.
        copy = Command(command.code, dict(command.fields), command.body)
        answer = await self._remoting.call(address, copy, timeout_ms)
        if command.code not in KNOWN_TO_NAME_SERVERS or address in self._proven:
            return answer
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ConnectError(
                f"{address} is another kind of server",
                "the port of a name server is 9876 by default",
                reason=NOT_ONE,
            )
        self._proven.add(address)
        return answer

    async def connect(self) -> Connection:
        """A connection to the chosen one, choosing first if need be."""
        failures: dict[str, RemotingError] = {}
        for address in self._choice.order():
            try:
                connection = await self._remoting.connection(address)
            except RemotingError as error:
                self._failed(address, error)
                failures[address] = error
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
            busy = ConnectError("it is still being tried")
            raise _nobody(dict.fromkeys(self.addresses, busy)) from None
        try:
            failures: dict[str, RemotingError] = {}
            for address in self._choice.order():
                try:
                    answer = await self._ask(address, command, timeout_ms)
                except RemotingError as error:
                    self._failed(address, error)
                    failures[address] = error
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


def _nobody(failures: Mapping[str, RemotingError]) -> ConnectError:
    return unreached(
        "no name server answers",
        failures,
        START_NAME_SERVER,
    )


def unreached(what: str, failures: Mapping[str, RemotingError], hint: str) -> ConnectError:
    """No server of a kind answers: why, by address, and what helps against that; `hint` where none of them runs."""
    reasons = "; ".join(f"{address}: {error.reason}" for address, error in failures.items())
    return ConnectError(f"{what} ({reasons})", next(filter(None, map(_remedy, failures.values())), hint))


def _remedy(error: RemotingError) -> str:
    """What helps against this failure in particular."""
    if isinstance(error, ConnectionLostError):
        return TLS_ONLY
    if isinstance(error, CallTimeoutError):
        return "try again; if it stays silent, another kind of server listens there"
    return error.hint if error.hint != NOT_RUNNING else ""
