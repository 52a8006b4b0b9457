"""Metadata services of clouds: addresses that hand out a machine's credentials, and that no broker has.

Name servers and coordinators refuse them as addresses of brokers in every spelling (`protocol.identity`). They
resolve no name; the network checks what a name resolves to before it dials (`network`). Pure functions.
"""

from __future__ import annotations

import ipaddress
import re

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
# AWS, Azure, Google and most others; containers at AWS (two); Tencent; Alibaba; Oracle; AWS and Google over IPv6.
_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.0.23"),
        *("100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    )
)
_NAMES = frozenset(
    (
        *("metadata", "metadata.google.internal", "metadata.goog", "metadata.google"),
        *("instance-data", "instance-data.ec2.internal", "metadata.ec2.internal", "metadata.aws.internal"),
        *(
            "metadata.azure.internal",
            "metadata.azure.com",
            "metadata.tencentyun.com",
            "metadata.oraclecloud.com",
        ),
    )
)
# Names under which public resolvers answer the address that is written in them, as in 169-254-169-254.nip.io.
_WRITTEN = re.compile(
    r"(?:^|[.-])(?:169[.-]254[.-]\d{1,3}[.-]\d{1,3}|100[.-]100[.-]100[.-]200|a9fe[0-9a-f]{4})(?:[.-]|$)"
)
_COMPATIBLE, _NAT64 = ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96")


def parse_ip(text: str) -> IpAddress | None:
    """The address, if the text is one in its usual form, without brackets or zone."""
    if "%" in text or len(text) > 45:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def meant_by(ip: IpAddress) -> tuple[IpAddress, ...]:
    """The address itself and the IPv4 addresses inside an IPv6 one: mapped, compatible, 6to4, Teredo, NAT64."""
    if isinstance(ip, ipaddress.IPv4Address):
        return (ip,)
    found: list[IpAddress] = [ip]
    if ip in _COMPATIBLE or ip in _NAT64:
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    found += [inner for inner in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if inner is not None]
    return tuple(found)


def is_metadata_ip(ip: IpAddress) -> bool:
    return not _ADDRESSES.isdisjoint(meant_by(ip))


def is_metadata_name(host: str) -> bool:
    """Whether the name is known to be a metadata service's, in any case and with or without a dot at its end."""
    name = host.rstrip(".").lower()
    return name in _NAMES or name.endswith(".metadata.google.internal") or _WRITTEN.search(name) is not None


def require_dialable(host: str, resolved: str) -> None:
    """PermissionError if a host, or the address that it resolved to, is a metadata service."""
    ip = parse_ip(resolved.partition("%")[0])
    if is_metadata_name(host) or (ip is not None and is_metadata_ip(ip)):
        raise PermissionError(
            f"{host} is the metadata service of a cloud ({resolved}), and no server of a cluster"
        )
