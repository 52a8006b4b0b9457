"""Policies and what they decide, as in RocketMQ 5: entries on resources, of which the closest one speaks.

    resource   Topic:orders   Topic:orders-*   Topic:*   Group:...   Cluster:...   *
    entry      resource, actions, source addresses, Allow or Deny

Rules: an entry counts if its resource, one of the actions and the source match. Custom entries go before default
ones; then a name before a prefix, a longer prefix before a shorter one, and any prefix before `*`; of equals Deny
wins. Where no entry counts the answer is no. An entry that ends in `*` allows nothing on the broker's own topics,
which hold data of other topics: they take an entry with the whole name. Pure values.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from penstock.errors import OptionError
from penstock.protocol.topic_names import may_be_granted_by_star

# The name of a need for one resource or another, whichever it is.
ANY_ONE = "?"
_NAME_MAX = 512
_SOURCE_MAX = 200
_DECISIONS_KEPT = 4_096


class Kind(StrEnum):
    """What there is to be protected."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    # What servers do among themselves, and changes of users: no entry is about it, only admins may.
    ADMIN = "Admin"
    ANY = "*"


class Action(StrEnum):
    """What one may do with it."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"

    @classmethod
    def of(cls, text: str) -> Action:
        for action in cls:
            if action.value.lower() == text.strip().lower():
                return action
        raise OptionError(f"there is no action {text[:40]!r}", f"use {', '.join(cls)}")


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a request needs: any of the actions on the resource. The name `*` stands for all there are, the
    name `ANY_ONE` for any that the user has."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        if self.kind is Kind.ADMIN:
            return "what only an admin may do"
        return f"{' or '.join(self.actions)} on {self.kind}:{self.name[:255]}"


@dataclass(frozen=True)
class Pattern:
    """Which resources an entry is about."""

    kind: Kind
    # Without the star at its end.
    name: str
    is_prefix: bool = False

    @staticmethod
    def of(text: str) -> Pattern:
        text = text.strip()
        if text == "*":
            return Pattern(Kind.ANY, "", True)
        kind_text, colon, name = text.partition(":")
        kinds = {kind.value.lower(): kind for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER)}
        kind = kinds.get(kind_text.lower())
        if not colon or kind is None or not name or len(name) > _NAME_MAX or "*" in name[:-1]:
            raise OptionError(
                f"{text[:80]!r} is no resource",
                "write Topic:name, Topic:prefix*, Topic:*, Group:... or Cluster:...",
            )
        return Pattern(kind, name.removesuffix("*"), name.endswith("*"))

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        return f"{self.kind}:{self.name}{'*' if self.is_prefix else ''}"

    def matches(self, kind: Kind, name: str) -> bool:
        if kind is Kind.ADMIN or self.kind not in (Kind.ANY, kind):
            return False
        if name == ANY_ONE:
            return True
        if name == "*":  # all of them: only what is about all of them can say so
            return self.is_prefix and not self.name
        return name.startswith(self.name) if self.is_prefix else name == self.name

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Closest first when sorted."""
        return self.kind is Kind.ANY, self.is_prefix, -len(self.name)


@dataclass(frozen=True)
class Entry:
    """See the module's text. No `sources`: from everywhere."""

    pattern: Pattern
    actions: tuple[Action, ...]
    allows: bool = True
    sources: tuple[str, ...] = ()
    is_default: bool = False

    @cached_property
    def _sources(self) -> Sources:
        return Sources(self.sources)

    def counts(self, need: Need, source: str) -> bool:
        if not self.pattern.matches(need.kind, need.name):
            return False
        if not any(self._speaks_of(action, need) for action in need.actions):
            return False
        return not self.sources or self._sources.contain(source)

    def _speaks_of(self, action: Action, need: Need) -> bool:
        if self.allows and self.pattern.is_prefix and need.kind is Kind.TOPIC:
            is_reading = action in (Action.SUB, Action.GET)
            if not may_be_granted_by_star(need.name, is_reading=is_reading):
                return False
        return Action.ALL in self.actions or action in self.actions

    @property
    def rank(self) -> tuple[object, ...]:
        return self.is_default, *self.pattern.rank, self.allows

    def __str__(self) -> str:
        text = f"{'Allow' if self.allows else 'Deny'} {', '.join(self.actions)} on {self.pattern}"
        return f"{text} from {', '.join(self.sources)}" if self.sources else text


class Policies:
    """The entries of one user."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(sorted(entries, key=lambda entry: entry.rank))
        # The same few questions are asked for every message.
        self._decided: dict[tuple[Need, str], Entry | None] = {}

    def decide(self, need: Need, source: str) -> Entry | None:
        """The entry that decides; None where nothing is said, which means no."""
        key = (need, source)
        if key in self._decided:
            return self._decided[key]
        if len(self._decided) >= _DECISIONS_KEPT:
            self._decided.clear()
        self._decided[key] = found = self._find(need, source)
        return found

    def _find(self, need: Need, source: str) -> Entry | None:
        found = [entry for entry in self.entries if entry.counts(need, source)]
        if need.name == ANY_ONE:
            return next((entry for entry in found if entry.allows), None)
        return found[0] if found else None

    def allow(self, need: Need, source: str) -> bool:
        entry = self.decide(need, source)
        return entry is not None and entry.allows


class Sources:
    """Addresses that peers come from: 4.9's forms and CIDR.

    192.168.0.7   192.168.*.*   192.168.0.*   192.168.1-10.0-5   192.168.0.{1,5,9}   10.0.0.0/8   fd00::/8   *
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(text.strip() for text in texts if text.strip())
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._parts: list[list[frozenset[int] | None]] = []
        self._is_all = False
        for text in self.texts:
            self._add(text)

    def _add(self, text: str) -> None:
        if text in ("*", "*.*.*.*"):
            self._is_all = True
            return
        try:
            self._networks.append(ipaddress.ip_network(text, strict=False))
            return
        except ValueError:
            pass
        if len(text) > _SOURCE_MAX:
            raise _no_source(text)
        parts = text.split(".")
        if len(parts) < 4 and parts[-1] == "*":
            parts += ["*"] * (4 - len(parts))
        if len(parts) != 4:
            raise _no_source(text)
        self._parts.append([_numbers(part, text) for part in parts])

    def contain(self, source: str) -> bool:
        if self._is_all:
            return True
        try:
            address = ipaddress.ip_address(source.partition("%")[0])
        except ValueError:
            return False
        if address.version == 6 and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # the same peer, seen by a socket for both
        if any(address.version == network.version and address in network for network in self._networks):
            return True
        if not self._parts or address.version != 4:
            return False
        numbers = address.packed
        return any(
            all(allowed is None or number in allowed for number, allowed in zip(numbers, parts, strict=True))
            for parts in self._parts
        )


def _numbers(part: str, text: str) -> frozenset[int] | None:
    """The numbers that one part of an address may be; None: all of them."""
    if part == "*":
        return None
    if part.startswith("{") and part.endswith("}"):
        pieces = part[1:-1].split(",")
    else:
        pieces = [part]
    found: set[int] = set()
    for piece in pieces:
        low, dash, high = piece.strip().partition("-")
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdigit() and len(end) <= 3 and int(end) <= 255 for end in ends):
            raise _no_source(text)
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def _no_source(text: str) -> OptionError:
    return OptionError(
        f"{text[:80]!r} is no address that peers come from",
        "as in 10.0.0.7, 10.0.0.*, 10.0.1-9.* or 10.0.0.0/8",
    )
