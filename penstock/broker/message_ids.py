"""Ids of messages: the unique key that a client should have set, and the offset id that an answer carries.

    unique key   upper-case hex of: address 4 or 16, process 2, start 4, milliseconds of the month 4, counter 2
    offset id    upper-case hex of: address the client reaches, port i32, log position i64

Rule: the address in an offset id is the one that the client dialled, unless one is advertised: the client comes
back to it to ask for the message. Owned by the event loop.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime

from penstock.broker.options import BrokerOptions
from penstock.errors import CodecError
from penstock.message import HostAddress
from penstock.remoting import Connection
from penstock.runtime import Runtime

_PREFIX = "message_id_prefix"
_BORN_HOST = "born_host"


def born_host(connection: Connection) -> bytes:
    """A client's address as its messages carry it; encoded once per connection."""
    host: bytes | None = connection.attributes.get(_BORN_HOST)
    if host is None:
        host = connection.attributes[_BORN_HOST] = connection.peer.encode()
    return host


class UniqueIds:
    """Makes unique keys as RocketMQ's clients do, for messages that come without one."""

    def __init__(self, host: HostAddress, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._prefix = ipaddress.ip_address(host.ip).packed + runtime.entropy.bytes(6)
        self._counter = runtime.entropy.below(1 << 15)
        self._month_start_ms = self._next_month_ms = 0

    def next(self) -> str:
        now_ms = self._clock.now_ms()
        if not self._month_start_ms <= now_ms < self._next_month_ms:
            self._new_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        passed = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return (self._prefix + passed.to_bytes(4, "big") + self._counter.to_bytes(2, "big")).hex().upper()

    def _new_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        years, month = divmod(start.month, 12)
        following = start.replace(year=start.year + years, month=month + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)


class OffsetIds:
    """Offset ids, each with the address its reader can reach."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options

    def reachable(self, connection: Connection) -> HostAddress:
        """The address that a client should use: as advertised if that is an address, else as it dialled."""
        local = connection.local
        if self._options.advertised_address:
            try:
                return HostAddress.parse(self._options.advertise(local.ip, local.port))
            except CodecError:
                pass  # a name: it leads to us, but fits no id
        return local

    def of(self, connection: Connection, position: int) -> str:
        """The id of the message at a log position."""
        return self.prefix(connection) + f"{position:016X}"

    def prefix(self, connection: Connection) -> str:
        """The part that all ids given to one connection begin with."""
        prefix: str | None = connection.attributes.get(_PREFIX)
        if prefix is None:
            prefix = self.reachable(connection).encode().hex().upper()
            connection.attributes[_PREFIX] = prefix
        return prefix
