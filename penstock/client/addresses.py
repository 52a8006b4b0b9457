"""Addresses of servers as people write them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import OptionError

NAME_SERVER_PORT = 9876
COORDINATOR_PORT = 9877


def parse_name_servers(value: str | Iterable[str]) -> tuple[str, ...]:
    """`"a:1;b:2"`, `"a,b"` or any iterable of addresses, as `host:port`; 9876 where no port is given."""
    found = _addresses(value, NAME_SERVER_PORT)
    if not found:
        raise OptionError(
            "no name server address was given", 'write them as "host:port", separated by ";" if several'
        )
    return found


def parse_coordinators(value: str | Iterable[str]) -> tuple[str, ...]:
    """The same for coordinators, 9877 where no port is given; there may be none."""
    return _addresses(value, COORDINATOR_PORT)


def _addresses(value: str | Iterable[str], default_port: int) -> tuple[str, ...]:
    is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    texts: list[object] = [value] if is_one else [*value]
    found: dict[str, None] = {}
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"not an address: {text!r}", 'write it as text, "host:port"')
        for part in text.replace(",", ";").split(";"):
            if part.strip():
                found[_with_port(part.strip(), default_port)] = None
    return tuple(found)


def _with_port(text: str, default_port: int) -> str:
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        host, port = host + bracket, rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    port = port or str(default_port)
    if not host or any(c.isspace() or c in "/@" for c in host) or not (port.isascii() and port.isdigit()):
        raise OptionError(f"not an address: {text!r}", 'write it as "host:port" or "[ipv6]:port"')
    if not 0 < int(port) < 65536:
        raise OptionError(f"port {port} of {text!r} is outside 1..65535")
    return f"{host}:{port}"
