"""A server: listens, and has the processor table answer what comes."""

from __future__ import annotations

import asyncio
import errno

from penstock.errors import ConnectError
from penstock.message import HostAddress
from penstock.remoting.connection import Connection, FastPath
from penstock.remoting.endpoint import Endpoint, OnConnection
from penstock.remoting.options import RemotingOptions
from penstock.remoting.processors import ProcessorTable, RequestGuard
from penstock.remoting.self_signed import SelfSigned
from penstock.remoting.tls import CertificateWatch, TlsMode, TlsOptions
from penstock.runtime import Runtime
from penstock.runtime.network import Listener
from penstock.telemetry import Meters

CERTIFICATE_LOOK_S = 10.0


class RemotingServer:
    """`start` and `stop` belong to one event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        table: ProcessorTable,
        *,
        runtime: Runtime,
        options: RemotingOptions | None = None,
        on_open: OnConnection | None = None,
        on_close: OnConnection | None = None,
        fast_path: FastPath | None = None,
        tls: TlsOptions | None = None,
        guard: RequestGuard | None = None,
        beside: RemotingServer | None = None,
    ) -> None:
        """`beside` is another server of the process, with which it shares time, threads and memory."""
        self._host = host
        self._port = port
        self._tls = tls or TlsOptions(TlsMode.DISABLED)
        self._self_signed: SelfSigned = (
            SelfSigned(runtime.clock, self._tls) if beside is None else beside._self_signed
        )
        self._runtime = runtime
        self.table = table
        self.options = options or RemotingOptions()
        self._endpoint: Endpoint = Endpoint(
            table,
            runtime,
            self.options,
            on_open,
            on_close,
            # What it takes out of the stream nobody could look at first.
            fast_path if guard is None else None,
            accepts=True,
            guard=guard,
            beside=None if beside is None else beside._endpoint,
        )
        self._listener: Listener | None = None
        self._watch: CertificateWatch | None = None
        self._look_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        is_self_signed = self._tls.is_self_signed
        context = None if is_self_signed else self._tls.server_context()
        network = self._runtime.network
        try:
            if is_self_signed:
                self._listener = await network.listen_both(
                    self._endpoint.make, self._host, self._port, self._self_signed.context
                )
            elif context is not None and self._tls.mode is TlsMode.PERMISSIVE:
                self._listener = await network.listen_both(
                    self._endpoint.make, self._host, self._port, context
                )
            else:
                self._listener = await network.listen(self._endpoint.make, self._host, self._port, context)
        except OSError as error:
            hint = "is another server running there? choose another port, or 0 for a free one"
            if error.errno == errno.EACCES:
                hint = "ports below 1024 need privileges: choose a higher one, or 0 for a free one"
            elif error.errno != errno.EADDRINUSE:
                hint = "choose an address of this machine, 127.0.0.1 for this machine only"
            raise ConnectError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}", hint
            ) from error
        self._endpoint.start()
        if context is not None:
            self._watch = CertificateWatch(self._tls, context, self._runtime.disk)
            self._plan_look()

    def _plan_look(self) -> None:
        self._look_timer = asyncio.get_running_loop().call_later(CERTIFICATE_LOOK_S, self._look)

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.look()
            self._plan_look()

    @property
    def address(self) -> HostAddress:
        """Where it listens, with the port that the system chose if 0 was asked for."""
        if self._listener is None:
            return HostAddress(self._host, self._port)
        return HostAddress(*self._listener.addresses[0])

    @property
    def connections(self) -> set[Connection]:
        return self._endpoint.connections

    @property
    def meters(self) -> Meters:
        return self._endpoint.meters

    async def stop(self, grace_ms: int = 1_000) -> None:
        """Stop listening, let answers go out, close every connection."""
        if self._listener is None:
            return
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._watch = self._look_timer = None
        self._listener.stop_accepting()
        await self._endpoint.stop(grace_ms)
        await self._listener.close()
        self._listener = None
