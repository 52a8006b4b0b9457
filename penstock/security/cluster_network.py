"""A network on which only members of the cluster are heard: TLS if there is any, then the hello, then the protocol.

Put in place of `Runtime.network` for the replication ports, which know nothing of it. A peer that does not complete
the hello in HELLO_TIMEOUT_S is closed. Belongs to the event loop that uses it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import replace
from typing import cast

from penstock.errors import FrameError
from penstock.runtime import Entropy, Network, Runtime
from penstock.runtime.network import Listener, ProtocolFactory, TlsSource
from penstock.security.hello import NONCE_SIZE, Hello

_LOG = logging.getLogger("penstock.security")
HELLO_TIMEOUT_S = 5.0
_PEERS_REMEMBERED = 1_000


class ClusterNetwork:
    """See the module's text. A context is None where connections are plain."""

    def __init__(
        self,
        network: Network,
        entropy: Entropy,
        secret: str,
        server: ssl.SSLContext | None = None,
        client: ssl.SSLContext | None = None,
    ) -> None:
        self._network = network
        self._entropy = entropy
        self._secret = secret
        self._server = server
        self._client = client
        self._blamed: set[str] = set()

    def hello(self, *, dials: bool) -> Hello:
        # It may be guessed, but not used twice: a listener proves itself first, so nobody gets a proof in advance.
        return Hello(self._secret, self._entropy.bytes(NONCE_SIZE), dials=dials)

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        return await self._network.listen(
            lambda: _Greeting(self, factory, None), host, port, tls or self._server
        )

    async def listen_both(self, factory: ProtocolFactory, host: str, port: int, tls: TlsSource) -> Listener:
        return await self._network.listen_both(lambda: _Greeting(self, factory, None), host, port, tls)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.BaseTransport:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        greeting = _Greeting(self, factory, done)
        transport = await self._network.connect(lambda: greeting, host, port, tls or self._client)
        try:
            await done
        except BaseException:
            transport.close()
            raise
        return transport

    def refused(self, peer: str, reason: str) -> None:
        """Said once for each address."""
        if peer not in self._blamed:
            if len(self._blamed) >= _PEERS_REMEMBERED:
                self._blamed.clear()
            self._blamed.add(peer)
            _LOG.warning("no member of the cluster at %s: %s", peer, reason)


class _Greeting(asyncio.Protocol):
    """The hello on one connection; the protocol proper takes over when it is done."""

    def __init__(
        self, network: ClusterNetwork, factory: ProtocolFactory, done: asyncio.Future[None] | None
    ) -> None:
        self._network = network
        self._factory = factory
        self._done = done
        self._hello = network.hello(dials=done is not None)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = str((transport.get_extra_info("peername") or ("",))[0])
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HELLO_TIMEOUT_S, self._fail, "the hello took too long")
        self._transport.write(self._hello.begin())

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            answer = self._hello.feed(data)
        except FrameError as error:
            self._fail(error.message)
            return
        if answer:
            self._transport.write(answer)
        if self._hello.is_done:
            self._hand_over(self._transport)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        self._stop_timer()
        self._transport = None
        protocol = cast(asyncio.Protocol, self._factory())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._hello.rest:
            protocol.data_received(self._hello.rest)
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error is not None else "it closed the connection during the hello")

    def _fail(self, reason: str) -> None:
        self._stop_timer()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        if self._done is None:
            self._network.refused(self._peer, reason)
        elif not self._done.done():
            self._done.set_exception(ConnectionError(f"{reason}; is access.cluster_secret the same on both?"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def cluster_runtime(
    runtime: Runtime, secret: str, server: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> Runtime:
    """The same runtime with such a network; as it is where there is no secret."""
    if not secret:
        return runtime
    return replace(runtime, network=ClusterNetwork(runtime.network, runtime.entropy, secret, server, client))
