"""Calls that concern a whole cluster: find its brokers, ask each of them, put the answers together.

Rule: a question to many brokers is asked side by side, and one that does not answer fails the whole, because half
an answer looks like a whole one; methods that can do with a part say so. Belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.client.instance import ClientInstance
from penstock.errors import ConnectError, PenstockError, ResponseError
from penstock.protocol.bodies.route import ClusterInfo
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import Header
from penstock.remoting import check


def no_broker(info: ClusterInfo) -> tuple[str, str]:
    """Why no broker takes requests, and what to do."""
    down = ", ".join(sorted({*info.broker_addr_table, *(one.broker_name for one in info.lost_brokers)}))
    if down:
        return f"no master of {down} is up", "start the brokers; `penstock status` shows which are down"
    return (
        "the name server knows no broker",
        "start one (`penstock broker`), or wait until it has registered (a few seconds)",
    )


class ClusterCalls:
    """What the admin client asks with."""

    def __init__(self, instance: ClientInstance) -> None:
        self.instance = instance
        self.timeout_ms = instance.options.call_timeout_ms

    async def cluster(self) -> ClusterInfo:
        """All brokers that the name server knows."""
        answer = check(await self.instance.name_servers.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO)))
        return ClusterInfo.decode(answer.body)

    async def masters(self, cluster: str = "") -> dict[str, str]:
        """Addresses of the brokers that take writes, by name."""
        info = await self.cluster()
        if cluster and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConnectError(f"there is no cluster {cluster!r}", f"known clusters: {known}")
        found = {
            name: broker.master
            for name, broker in sorted(info.broker_addr_table.items())
            if broker.master is not None and (not cluster or broker.cluster == cluster)
        }
        if not found:
            raise ConnectError(*no_broker(info))
        return found

    async def ask(
        self, address: str, code: RequestCode, header: Header | None = None, body: bytes = b"", also: int = 0
    ) -> Command:
        """Ask one broker; ResponseError for an error code other than `also`."""
        command = Command(int(code), header.encode() if header is not None else {}, body)
        return check(await self.instance.call(address, command, self.timeout_ms), also)

    async def ask_each(
        self,
        brokers: Mapping[str, str],
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        also: Sequence[int] = (),
    ) -> dict[str, Command]:
        """Ask several brokers side by side. Brokers that answer with a code in `also` are left out."""

        async def one(address: str) -> Command | None:
            try:
                return await self.ask(address, code, header, body)
            except ResponseError as error:
                if error.code in also:
                    return None
                raise

        tasks = {name: asyncio.ensure_future(one(address)) for name, address in brokers.items()}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return {name: answer for name, task in tasks.items() if (answer := task.result()) is not None}

    async def tell_name_servers(self, code: RequestCode, header: Header) -> None:
        """Tell every name server; at least one must have heard it."""
        answers = await self.instance.name_servers.call_all(Command(int(code), header.encode()))
        failures: list[PenstockError] = []
        for answer in answers.values():
            if isinstance(answer, PenstockError):
                failures.append(answer)
            else:
                check(answer)
        if len(failures) == len(answers):
            raise failures[0]
