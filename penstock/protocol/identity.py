"""What a broker may call itself and where it may say it is (A6, A12, A13).

Rules: names are short and of a small alphabet, because they come back in answers to everyone; RocketMQ names
brokers after their host, so dots are allowed. An address is one that a client could dial: a host and a port, never a
metadata service of a cloud in any spelling, nor a link-local, multicast or broadcast address. Name servers and
coordinators never connect to an address that they were told, and resolve no name; the network checks what a name
resolves to before it dials (`runtime.network`). Pure functions.

An address whose host is the unspecified one, as in 0.0.0.0:10911, means "the host under which you reached this
name server": a broker that listens everywhere and advertises nothing registers it, and each client is given the
address that it dialled itself. That only holds on the machine of the name server, so only brokers there may.
"""

from __future__ import annotations

import re

from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode
from penstock.runtime.addresses import is_metadata_ip, is_metadata_name, meant_by, parse_ip

NAME_CHARS_MAX = 255
ADDRESS_CHARS_MAX = 270
# Zone, KV namespace and key: any text that stays on one line.
TEXT_CHARS_MAX = 255
_NAME = re.compile(r"[%|a-zA-Z0-9_.+@$#~-]+")
_HOST = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]{0,251}[a-zA-Z0-9_])?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ANY_HOST = re.compile(r"(?:0\.0\.0\.0|\[?::\]?):(\d+)")


def is_name(text: str) -> bool:
    """Whether this may be the name of a topic, broker or cluster."""
    return len(text) <= NAME_CHARS_MAX and _NAME.fullmatch(text) is not None and ".." not in text


def check_name(kind: str, text: str) -> str:
    if not is_name(text):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{text[:80]!r} is no {kind}",
            f"use 1 to {NAME_CHARS_MAX} letters, digits and % | _ . + @ $ # ~ -",
        )
    return text


def check_text(kind: str, text: str) -> str:
    """Free text that is kept and given back: short, and nothing that breaks a line."""
    if not text or len(text) > TEXT_CHARS_MAX or _UNPRINTABLE.search(text):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{text[:80]!r} is no {kind}",
            f"use 1 to {TEXT_CHARS_MAX} printable characters",
        )
    return text


def check_address(field: str, text: str) -> str:
    """A `host:port` that clients may be given. IPv6 with or without brackets: Java brokers leave them out."""
    if is_address(text):
        return text
    raise RequestError(
        ResponseCode.INVALID_PARAMETER,
        f"{field} {text[:80]!r} is no address that clients could dial",
        "register with host:port, the host being a name or an address that is neither link-local nor multicast",
    )


def is_address(text: str) -> bool:
    """Whether clients may be given this `host:port`."""
    host, _, port = text[: ADDRESS_CHARS_MAX + 1].rpartition(":")
    return len(text) <= ADDRESS_CHARS_MAX and _is_port(port) and _is_host(host)


def is_anywhere(address: str) -> bool:
    """Whether an address stands for the one that each client dialled."""
    return _ANY_HOST.fullmatch(address) is not None


def seen_from(address: str, dialled_ip: str) -> str:
    """An address as it is given to a client that reached this server under `dialled_ip`."""
    match = _ANY_HOST.fullmatch(address)
    if match is None or not dialled_ip:
        return address
    return f"[{dialled_ip}]:{match[1]}" if ":" in dialled_ip else f"{dialled_ip}:{match[1]}"


def is_loopback(ip: str) -> bool:
    parsed = parse_ip(ip)
    return parsed is not None and parsed.is_loopback


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535


def _is_host(text: str) -> bool:
    parsed = parse_ip(text.removeprefix("[").removesuffix("]"))
    if parsed is None:
        return _HOST.fullmatch(text) is not None and not _is_numeric(text) and not is_metadata_name(text)
    if text.startswith("[") is not text.endswith("]") or (text.startswith("[") and parsed.version == 4):
        return False
    return not is_metadata_ip(parsed) and not any(
        one.is_link_local or one.is_multicast or str(one) == "255.255.255.255" for one in meant_by(parsed)
    )


def _is_numeric(host: str) -> bool:
    """Names that a resolver would read as an IPv4 address, such as 2852039166 or 0xa9fea9fe or 169.254.43518."""
    last = host.rpartition(".")[2].lower()
    return last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None
