"""Safe by default: without access control a server listens for this machine only, unless told in so many words."""

from __future__ import annotations

import ipaddress

from penstock.errors import OptionError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name counts as reachable unless it is localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.localdomain", "ip6-localhost")


def is_wildcard(host: str) -> bool:
    """Whether the address means every address of the machine, and so is none that a client could dial."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


def require_private(host: str, origin: str, *, allowed: bool) -> None:
    """Refuse an address that other machines can reach, unless that was allowed."""
    if not allowed and not is_loopback(host):
        raise OptionError(
            f"{origin}: {host or 'an empty host'} can be reached from other machines, and there is no access "
            "control",
            "turn access.enabled on; or add --listen-anywhere if everyone who reaches the port may read, write and "
            "delete everything, or listen on 127.0.0.1",
        )


def advertised_host(address: str) -> str:
    """The host of `host` or `host:port`."""
    name, colon, port = address.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or "]" in name) else address
