"""Addresses inside records and message ids.

host     4 or 16 address bytes, then the port as i32
id       upper-case hex of: store host, physical offset i64       (32 or 56 characters)
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from penstock.errors import CodecError


@dataclass(frozen=True, slots=True)
class HostAddress:
    """An IP address and a port; never a name, because a record must mean the same everywhere."""

    ip: str
    port: int

    def encode(self) -> bytes:
        """8 bytes for IPv4, 20 for IPv6."""
        try:
            packed = ipaddress.ip_address(self.ip).packed
        except ValueError as error:
            raise CodecError(
                f"not an IP address: {self.ip!r}", "use a numeric IPv4 or IPv6 address"
            ) from error
        if not 0 <= self.port <= 65535:
            raise CodecError(f"port {self.port} is outside 0..65535")
        return packed + struct.pack(">i", self.port)

    @staticmethod
    def decode(data: bytes | memoryview) -> HostAddress:
        """The inverse; any port number is accepted, because old records may hold any."""
        if len(data) not in (8, 20):
            raise CodecError(f"a host takes 8 or 20 bytes, not {len(data)}")
        raw = bytes(data)
        return HostAddress(str(ipaddress.ip_address(raw[:-4])), int(struct.unpack(">i", raw[-4:])[0]))

    @staticmethod
    def parse(text: str) -> HostAddress:
        """`1.2.3.4:5` or `[::1]:5`."""
        ip, _, port = text.rpartition(":")
        ip = ip.removeprefix("[").removesuffix("]")
        if not ip or not port.isascii() or not port.isdigit():
            raise CodecError(f"not an address: {text!r}", "write it as ip:port")
        address = HostAddress(ip, int(port))
        address.encode()
        return address

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def format_message_id(store_host: HostAddress, physical_offset: int) -> str:
    """The id by which a stored message can be found: its broker and its place in the log."""
    return (store_host.encode() + struct.pack(">q", physical_offset)).hex().upper()


def parse_message_id(text: str) -> tuple[HostAddress, int]:
    """The inverse of `format_message_id`."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise CodecError(f"not a message id: {text[:80]!r}") from error
    if len(raw) not in (16, 28) or len(text) != 2 * len(raw):
        raise CodecError(f"a message id has 32 or 56 hex digits, not {len(text)}")
    return HostAddress.decode(raw[:-8]), int(struct.unpack(">q", raw[-8:])[0])
