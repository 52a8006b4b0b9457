"""Users: who they are, the secret that they sign with, and what they may do.

One model for both of RocketMQ's: an account of 4.9's plain_acl.yml becomes a user whose permissions are entries, its
defaults default entries, and `admin` is 5.x's type Super. Roles are a short way to write entries:

    admin       everything
    producer    Pub on the topics
    consumer    Sub on the topics and the groups

Plain values; the secret is left out of every text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.errors import OptionError
from penstock.security.policy import Action, Entry, Kind, Need, Pattern, Policies, Sources

USERS_MAX = 10_000
ENTRIES_MAX = 1_000
NAME_SIZE_MAX = 128
SECRET_SIZE_MIN, SECRET_SIZE_MAX = 6, 512


class Role(StrEnum):
    """See the module's text."""

    ADMIN = "admin"
    PRODUCER = "producer"
    CONSUMER = "consumer"

    @classmethod
    def of(cls, text: str) -> Role:
        try:
            return cls(text.strip().lower())
        except ValueError:
            raise OptionError(f"there is no role {text[:40]!r}", f"use {', '.join(cls)}") from None


@dataclass(frozen=True)
class User:
    """`trusted` are addresses from which its requests need neither signature nor permission (4.9's
    whiteRemoteAddress); nobody else may leave the signature out."""

    name: str
    secret: str = field(repr=False)
    is_super: bool = False
    is_enabled: bool = True
    entries: tuple[Entry, ...] = ()
    trusted: tuple[str, ...] = ()
    policies: Policies = field(init=False, repr=False, compare=False)
    trusted_sources: Sources = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_user_name(self.name)
        if not SECRET_SIZE_MIN <= len(self.secret) <= SECRET_SIZE_MAX:
            raise OptionError(
                f"the secret of user {self.name} has {len(self.secret)} characters",
                f"use {SECRET_SIZE_MIN} to {SECRET_SIZE_MAX}",
            )
        if len(self.entries) > ENTRIES_MAX:
            raise OptionError(
                f"user {self.name} has {len(self.entries)} entries", f"at most {ENTRIES_MAX} are read"
            )
        object.__setattr__(self, "trusted", tuple(text for text in self.trusted if text.strip()))
        object.__setattr__(self, "policies", Policies(self.entries))
        object.__setattr__(self, "trusted_sources", Sources(self.trusted))

    def may(self, need: Need, source: str) -> bool:
        return self.is_super or self.policies.allow(need, source)

    def because(self, need: Need, source: str) -> str:
        """Why it may, or may not."""
        if not self.is_enabled:
            return "the user is disabled"
        if self.is_super:
            return "an admin may do everything"
        entry = self.policies.decide(need, source)
        return str(entry) if entry is not None else "no entry is about it, and what is not allowed is refused"


def check_user_name(name: str) -> None:
    is_text = name.isascii() and name.isprintable() and not set(name) & set(' :"\\')
    if not is_text or not 0 < len(name) <= NAME_SIZE_MAX:
        raise OptionError(
            f"{name[:40]!r} cannot be a user's name",
            f"use 1 to {NAME_SIZE_MAX} ASCII characters, without spaces, colons, quotes and backslashes",
        )


def role_entries(roles: Iterable[Role], topics: Iterable[str], groups: Iterable[str]) -> list[Entry]:
    """What roles mean for topics and groups; `*` at the end of a name is a prefix."""
    topics, groups = list(topics), list(groups)
    found: list[Entry] = []
    for role in roles:
        if role is Role.PRODUCER:
            found += [_entry(Kind.TOPIC, name, Action.PUB) for name in topics]
        elif role is Role.CONSUMER:
            found += [_entry(Kind.TOPIC, name, Action.SUB) for name in topics]
            found += [_entry(Kind.GROUP, name, Action.SUB) for name in groups]
    return merged(found)


def _entry(kind: Kind, name: str, action: Action) -> Entry:
    return Entry(Pattern.of(f"{kind}:{name}"), (action,))


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Entries that differ in their actions only, as one."""
    found: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        key = (entry.pattern, entry.allows, entry.sources, entry.is_default)
        known = found.get(key)
        if known is None:
            found[key] = entry
        else:
            found[key] = replace(known, actions=tuple(dict.fromkeys((*known.actions, *entry.actions))))
    return list(found.values())


@dataclass(frozen=True)
class Users:
    """Everybody whom a server knows. `trusted` are 4.9's globalWhiteRemoteAddresses."""

    by_name: Mapping[str, User] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    trusted_sources: Sources = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.by_name) > USERS_MAX:
            raise OptionError(f"there are {len(self.by_name)} users", f"at most {USERS_MAX} are read")
        object.__setattr__(self, "trusted_sources", Sources(self.trusted))

    def put(self, user: User) -> Users:
        """With this user instead of the one of its name."""
        return Users({**self.by_name, user.name: user}, self.trusted)

    def without(self, name: str) -> Users:
        return Users({key: user for key, user in self.by_name.items() if key != name}, self.trusted)
