"""The part of the configuration that may be changed while a name server runs (codes 318 and 319).

Rules (A8): an allow list with typed ranges, under RocketMQ's names; a path, an address or a limit is never on
it. Either all keys of a request are set or none. A change lasts until the restart: a name server keeps no
state but its KV config. Every change and every refusal is one line in the log. Owned by the server's loop.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from penstock.errors import RequestError
from penstock.nameserver.options import ConfigUpdates, NameServerOptions
from penstock.protocol.codes import ResponseCode
from penstock.protocol.identity import is_loopback

_LOG = logging.getLogger("penstock.nameserver")
TEXT_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Switch:
    """A field that is true or false."""

    field: str

    def parse(self, key: str, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise _bad_value(key, text, "use true or false")
        return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class _Number:
    """A field that is a number within a range."""

    field: str
    low: int
    high: int

    def parse(self, key: str, text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 10 and self.low <= int(text) <= self.high:
            return int(text)
        raise _bad_value(key, text, f"use {self.low} to {self.high}")


CHANGEABLE: dict[str, _Switch | _Number] = {
    "orderMessageEnable": _Switch("order_messages"),
    "returnOrderTopicConfigToBroker": _Switch("order_config_to_broker"),
    "enableAllTopicList": _Switch("all_topic_list"),
    "enableTopicList": _Switch("topic_list"),
    "deleteTopicWithBrokerRegistration": _Switch("delete_topics_on_register"),
    "supportActingMaster": _Switch("acting_master"),
    "notifyMinBrokerIdChanged": _Switch("notify_min_broker_id"),
    "scanNotActiveBrokerInterval": _Number("scan_interval_ms", 1_000, 600_000),
}
# Shown besides those, and fixed. Paths are not shown.
_FIXED = {
    "listenPort": "port",
    "brokerNotActiveTimeoutMillis": "broker_expiry_ms",
    "needWaitForService": "wait_for_service",
    "waitSecondsForService": "wait_for_service_seconds",
}


class RuntimeConfig:
    """The options in force."""

    def __init__(self, options: NameServerOptions) -> None:
        self.options = options

    def text(self) -> str:
        """All that may be known, as properties."""
        fields = {key: item.field for key, item in CHANGEABLE.items()} | _FIXED
        return "".join(f"{key}={_shown(getattr(self.options, fields[key]))}\n" for key in sorted(fields))

    def update(self, data: bytes | bytearray, peer_ip: str) -> None:
        """Change what a peer's properties say."""
        self._require_allowed(peer_ip)
        wanted = parse_properties(data)
        for key in wanted:
            if key not in CHANGEABLE:
                _LOG.warning("config update from %s refused: %r cannot be changed", peer_ip, key[:80])
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"{key[:80]!r} cannot be changed while the name server runs",
                    f"these can: {', '.join(sorted(CHANGEABLE))}",
                )
        values = {CHANGEABLE[key].field: CHANGEABLE[key].parse(key, text) for key, text in wanted.items()}
        self.options = replace(self.options, **values)  # type: ignore[arg-type]
        _LOG.warning("config update from %s: %s", peer_ip, values)

    def _require_allowed(self, peer_ip: str) -> None:
        updates = self.options.config_updates
        if updates is ConfigUpdates.OFF or (updates is ConfigUpdates.LOOPBACK and not is_loopback(peer_ip)):
            _LOG.warning("config update from %s refused: config_updates is %s", peer_ip, updates.value)
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"config updates are not accepted from {peer_ip}",
                "send them from the name server's machine, or start it with another config_updates",
            )


def parse_properties(data: bytes | bytearray) -> dict[str, str]:
    """Java's properties text: `key=value` lines, # and ! comments, a backslash takes the next character."""
    if len(data) > TEXT_BYTES_MAX:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{len(data)} bytes of properties", "send fewer")
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "the properties are not UTF-8") from error
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, value = _split(stripped)
            found[key] = value
    return found


def _split(line: str) -> tuple[str, str]:
    """At the first = or : that no backslash precedes, or else at the first space."""
    parts: list[str] = []
    at = 0
    while at < len(line) and line[at] not in "=: \t":
        at += line[at] == "\\"
        parts.append(line[at : at + 1])
        at += 1
    rest = line[at:].strip()
    if rest[:1] in ("=", ":"):
        rest = rest[1:].strip()
    return "".join(parts), rest.replace("\\\\", "\\")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad_value(key: str, text: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, f"{key} cannot be {text[:80]!r}", hint)
