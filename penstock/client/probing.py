"""Whether a server speaks TLS, found out by trying: for errors that say more than "no answer"."""

from __future__ import annotations

import asyncio

from penstock.errors import RemotingError
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient, RemotingOptions, TlsOptions
from penstock.runtime import Runtime

TIMEOUT_MS = 1_000


def answers(address: str, *, with_tls: bool) -> bool:
    """Whether a name server completes a TLS handshake, whatever its certificate, or answers a question without TLS.
    The question is not signed: nothing secret goes to a server that was not verified."""

    async def ask() -> bool:
        client = RemotingClient(
            runtime=Runtime.system(),
            options=RemotingOptions(connect_timeout_ms=TIMEOUT_MS),
            tls=TlsOptions(verify_server=False) if with_tls else None,
        )
        try:
            await client.connection(address)
            if not with_tls:
                question = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                await client.call(address, question, TIMEOUT_MS)
        except RemotingError:
            return False
        finally:
            await client.close()
        return True

    return asyncio.run(ask())
