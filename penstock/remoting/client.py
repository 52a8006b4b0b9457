"""A client: one connection per address, made when it is needed, shared by everybody who calls there."""

from __future__ import annotations

import asyncio
import os
import ssl

from penstock.errors import ConnectError
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.endpoint import Endpoint, OnConnection
from penstock.remoting.hooks import RpcHook
from penstock.remoting.options import RemotingOptions
from penstock.remoting.processors import ProcessorTable
from penstock.remoting.tls import TlsOptions
from penstock.runtime import Runtime
from penstock.telemetry import Meters

UNTRUSTED = (
    "use TlsOptions(trusted=FILE) with its certificate; a server that created its own keeps it in "
    "tls/certificate.pem of its data directory"
)
OTHER_NAME = (
    "connect by a name of its certificate; a server that creates its own takes more names in "
    "tls.certificate_names"
)
PLAINTEXT_ONLY = "connect without TLS"
NOT_RUNNING = "is the server running there?"
# Of OpenSSL: the certificate is trusted, and is for another host name, or for another address.
_MISMATCHES = (62, 64)


class RemotingClient:
    """Belongs to the event loop that first uses it. `table` answers what servers ask of us."""

    def __init__(
        self,
        table: ProcessorTable | None = None,
        *,
        runtime: Runtime,
        options: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        on_close: OnConnection | None = None,
        hook: RpcHook | None = None,
    ) -> None:
        self._runtime = runtime
        self.options = options or RemotingOptions()
        self._on_close = on_close
        self._endpoint = Endpoint(
            table or ProcessorTable(), runtime, self.options, None, self._lost, accepts=False, hook=hook
        )
        self._tls: ssl.SSLContext | None = tls.client_context() if tls is not None else None
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._started = False
        self._closed = False

    async def connection(self, address: str) -> Connection:
        """The open connection to an address; several callers share one attempt."""
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        if self._closed:
            raise ConnectError("the client is closed", "make a new one")
        if not self._started:
            self._started = True
            self._endpoint.start()
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.ensure_future(self._connect(address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda ended: self._attempted(address, ended))
        return await asyncio.shield(attempt)

    def _attempted(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not attempt.cancelled():
            # If all its callers were cancelled, asyncio would print an error that is not retrieved.
            attempt.exception()

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        connection = self._endpoint.make()
        try:
            async with asyncio.timeout(self.options.connect_timeout_ms / 1000):
                await self._runtime.network.connect(lambda: connection, host, port, self._tls)
        except TimeoutError as error:
            reason = f"no connection within {self.options.connect_timeout_ms} ms"
            raise ConnectError(
                f"connecting to {address} took longer than {self.options.connect_timeout_ms} ms",
                "is the address right, and is nothing in between dropping packets?",
                reason=reason,
            ) from error
        except OSError as error:  # ssl.SSLError is one
            reason, hint = _why_not(error, with_tls=self._tls is not None)
            raise ConnectError(f"cannot connect to {address}: {reason}", hint, reason=reason) from error
        if self._closed:
            connection.abort("the client was closed")
            raise ConnectError("the client is closed", "make a new one")
        self._connections[address] = connection
        return connection

    def _lost(self, connection: Connection) -> None:
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
        if self._on_close is not None:
            self._on_close(connection)

    def open_connection(self, address: str) -> Connection | None:
        """The connection to an address if there is one now."""
        found = self._connections.get(address)
        return found if found is not None and found.is_open else None

    async def call(self, address: str, command: Command, timeout_ms: int = 3_000) -> Command:
        """Send a request and wait for its response, whatever code that has."""
        connection = await self.connection(address)
        return await connection.call(command, timeout_ms)

    async def send(self, address: str, command: Command) -> None:
        """Send a one-way request."""
        connection = await self.connection(address)
        connection.send(command)

    def drop(self, address: str, why: str = "") -> None:
        """Close the connection to an address; the next call makes a new one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close(why)

    @property
    def meters(self) -> Meters:
        return self._endpoint.meters

    async def close(self) -> None:
        self._closed = True
        for attempt in list(self._connecting.values()):
            attempt.cancel()
        if self._connecting:
            await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        await self._endpoint.stop()
        self._connections.clear()


def _why_not(error: OSError, *, with_tls: bool) -> tuple[str, str]:
    """Why a connection was not made, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_of_name = error.verify_code in _MISMATCHES
        reason = f"certificate verify failed ({error.verify_message})"
        return reason, OTHER_NAME if is_of_name else UNTRUSTED
    is_of_tls = isinstance(error, ssl.SSLError | ConnectionError)
    if with_tls and is_of_tls and not isinstance(error, ConnectionRefusedError):
        return "it does not complete a TLS handshake, so it may take plaintext only", PLAINTEXT_ONLY
    # By the number where the system gave one: uvloop and asyncio word such errors differently.
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__
    return reason, NOT_RUNNING


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`."""
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConnectError(f"not an address: {address!r}", "write it as host:port")
    return host, int(port)
