"""The broker's way to the coordinators: one of them leads, and this finds out which.

Rules. A request goes to the coordinator that led last. If that one cannot be reached or leads no more, all are asked
at once and whoever leads answers; the others only say that they do not, so that a request is carried out once however
many are asked. What a coordinator says unasked (1008) is handed on, from whichever connection it comes. A request
whose answer is missing may have been carried out: the error says so. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.errors import CallTimeoutError, ConnectError, PenstockError, RemotingError
from penstock.protocol.bodies.controller import SyncStateSet
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.controller import (
    NotifyBrokerRoleChangedRequestHeader,
    NotLeaderResponseHeader,
)
from penstock.remoting import Connection, ProcessorTable, RemotingClient, RemotingOptions, RpcHook, TlsOptions
from penstock.remoting.processors import Handler
from penstock.runtime import Runtime

_LOG = logging.getLogger("penstock.broker")
OnNotice = Callable[[NotifyBrokerRoleChangedRequestHeader, SyncStateSet], None]
MakeRequest = Callable[[Connection], Command]


class Coordinators:
    """See the module's text. `on_notice` is called with what a coordinator says unasked."""

    def __init__(
        self,
        addresses: Sequence[str],
        on_notice: OnNotice,
        runtime: Runtime,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        hook: RpcHook | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._on_notice = on_notice
        self._table = table = ProcessorTable()
        table.register(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self.handle_notify_broker_role_changed)
        self._client = RemotingClient(table, runtime=runtime, options=remoting, tls=tls, hook=hook)
        # Where the leader was last.
        self.leader: str | None = None
        self._trouble = ""

    def serve(self, code: int, handler: Handler) -> None:
        """Answer this request of a coordinator, too: it asks over the connection that this broker opened to it."""
        self._table.register(code, handler)

    def handle_notify_broker_role_changed(self, connection: Connection, command: Command) -> Command | None:
        header = NotifyBrokerRoleChangedRequestHeader.decode(command.fields)
        members = SyncStateSet.decode(command.body) if command.body else SyncStateSet()
        self._on_notice(header, members)
        return None if command.is_oneway else command.answer()

    async def call(self, make: MakeRequest, timeout_ms: int, *, once: bool = False) -> Command:
        """The leader's answer, or that nobody leads (2007). Raises RemotingError where nobody answers.

        `once`: a request that must not be repeated where its outcome is unknown.
        """
        leader, is_asked = self.leader, False
        if leader is not None:
            try:
                answer = await self._ask(leader, make, timeout_ms)
            except RemotingError as error:
                self.leader = None
                self._say(f"coordinator {leader}: {error}")
                if once and error.outcome_unknown:
                    raise
            else:
                if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    self._trouble = ""
                    return answer
                is_asked = True
                self.leader = None
        return await self._ask_all(make, timeout_ms, leader if is_asked else None)

    async def _ask_all(self, make: MakeRequest, timeout_ms: int, but: str | None) -> Command:
        """Ask everybody at the same time; the first answer of a leader counts."""
        loop = asyncio.get_running_loop()
        tasks = {
            loop.create_task(self._ask(address, make, timeout_ms)): address
            for address in self._addresses
            if address != but or len(self._addresses) == 1
        }
        refused: Command | None = None
        failure: RemotingError | None = None
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        answer = task.result()
                    except RemotingError as error:
                        # One that may have carried it out counts for more than one that surely has not.
                        if failure is None or not failure.outcome_unknown:
                            failure = error
                        continue
                    if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                        self.leader, self._trouble = tasks[task], ""
                        return answer
                    refused = answer
        finally:
            for task in waiting:
                task.cancel()
            # All of them: one that failed at the same moment would be called forgotten.
            await asyncio.gather(*tasks, return_exceptions=True)
        if failure is not None and (failure.outcome_unknown or refused is None):
            self._say(str(failure))
            raise failure
        if refused is None:
            raise ConnectError("no coordinator is known", "name them in broker.coordinators")
        self._say(f"no coordinator leads at the moment ({_leader_of(refused)})")
        return refused

    async def _ask(self, address: str, make: MakeRequest, timeout_ms: int) -> Command:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._client.connection(address)
                return await connection.call(make(connection), timeout_ms)
        except TimeoutError as error:
            raise CallTimeoutError(
                f"coordinator {address} did not answer within {timeout_ms} ms", "is it overloaded or paused?"
            ) from error

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:  # once for each trouble, not with every beat
            _LOG.warning("%s", trouble)
        self._trouble = trouble

    async def close(self) -> None:
        await self._client.close()


def _leader_of(answer: Command) -> str:
    try:
        leader = NotLeaderResponseHeader.decode(answer.fields).leader_address
    except PenstockError:
        leader = None
    return f"the last one known is {leader}" if leader else "none is known"
