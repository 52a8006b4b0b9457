"""Penstock's own file of users, TOML: 5.x's users and policies, with roles as the short form.

    trusted = []                                  # addresses whose requests are not looked at; better none

    [users.billing]
    secret = "..."
    roles = ["producer", "consumer"]              # admin, producer, consumer
    topics = ["orders", "invoices-*"]             # of the roles
    groups = ["billing"]
    enabled = true
    trusted = []
    entries = [                                   # beside the roles
      { resource = "Topic:audit", actions = ["Sub"], decision = "Deny", sources = ["10.0.0.0/8"], default = false },
    ]

Rules: unknown names are errors, and no error quotes a value. Written as a whole, to a file of its own that then takes
the place of the old one, readable by its owner only; comments are lost, which the first line of a written file says.
Entries are written out, roles come back as entries.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import OptionError
from penstock.runtime import Disk
from penstock.security.policy import Action, Entry, Pattern
from penstock.security.users import Role, User, Users, role_entries

FILE_BYTES_MAX = 8 * 1024 * 1024
_USER_KEYS = frozenset(("secret", "roles", "topics", "groups", "enabled", "trusted", "entries"))
_ENTRY_KEYS = frozenset(("resource", "actions", "decision", "sources", "default"))
_HEAD = (
    "# Users and what they may do (docs/operating/security.md). Rewritten by `penstock acl` and mqadmin.\n"
)


def read_users(data: bytes, origin: str) -> Users:
    if len(data) > FILE_BYTES_MAX:
        raise OptionError(f"{origin}: {len(data)} bytes", f"at most {FILE_BYTES_MAX} are read")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # The parser's words quote what it met; only the place is safe to repeat.
        place = str(error).rpartition("(at ")[2].rstrip(")") if "(at " in str(error) else "some line"
        raise OptionError(
            f"{origin}: no TOML at {place}", "see docs/operating/security.md for an example"
        ) from None
    _known(document, frozenset(("trusted", "users")), origin)
    table = document.get("users", {})
    if not isinstance(table, dict):
        raise OptionError(f"{origin}: users is no table", "write [users.NAME]")
    users = {name: _user(name, value, f"{origin}: user {name[:80]}") for name, value in table.items()}
    return Users(users, _texts(document, "trusted", origin))


def _user(name: str, value: object, origin: str) -> User:
    if not isinstance(value, dict):
        raise OptionError(f"{origin} is no table", "write [users.NAME]")
    _known(value, _USER_KEYS, origin)
    secret = value.get("secret")
    enabled = value.get("enabled", True)
    if not isinstance(secret, str):
        raise OptionError(f"{origin} has no secret", 'write secret = "..."')
    if not isinstance(enabled, bool):
        raise OptionError(f"{origin}: enabled is neither true nor false")
    roles = [Role.of(text) for text in _texts(value, "roles", origin)]
    topics, groups = _texts(value, "topics", origin), _texts(value, "groups", origin)
    if (topics or groups) and not {Role.PRODUCER, Role.CONSUMER} & {*roles}:
        raise OptionError(f"{origin} has topics or groups but no role for them", "add producer or consumer")
    given = value.get("entries", [])
    if not isinstance(given, list):
        raise OptionError(f"{origin}: entries is no list")
    try:
        entries = role_entries(roles, topics, groups)
        entries += [_entry(one, f"entry {number}") for number, one in enumerate(given, 1)]
        return User(
            name,
            secret,
            is_super=Role.ADMIN in roles,
            is_enabled=enabled,
            entries=tuple(entries),
            trusted=_texts(value, "trusted", origin),
        )
    except OptionError as error:
        raise OptionError(f"{origin}: {error.message}", error.hint) from None


def _entry(value: object, origin: str) -> Entry:
    if not isinstance(value, dict):
        raise OptionError(f"{origin} is no table")
    _known(value, _ENTRY_KEYS, origin)
    decision, default = value.get("decision", "Allow"), value.get("default", False)
    if str(decision).lower() not in ("allow", "deny") or not isinstance(default, bool):
        raise OptionError(f"{origin}: decision is Allow or Deny, default true or false")
    actions = tuple(Action.of(text) for text in _texts(value, "actions", origin))
    if not actions:
        raise OptionError(f"{origin} has no actions")
    resource = value.get("resource")
    if not isinstance(resource, str):
        raise OptionError(f"{origin} has no resource")
    sources = _texts(value, "sources", origin)
    return Entry(Pattern.of(resource), actions, str(decision).lower() == "allow", sources, default)


def _known(table: Mapping[str, object], names: frozenset[str], origin: str) -> None:
    unknown = sorted(key[:40] for key in table if key not in names)
    if unknown:
        raise OptionError(f"{origin} has no setting {', '.join(unknown)}", f"use {', '.join(sorted(names))}")


def _texts(table: Mapping[str, object], key: str, origin: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise OptionError(f"{origin}: {key} is no list of texts")
    return tuple(value)


# -- writing -------------------------------------------------------------------------------------------------


def write_users(users: Users) -> bytes:
    """The file as text; what is read from it is equal."""
    lines = [_HEAD]
    if users.trusted:
        lines.append(f"trusted = {_list(users.trusted)}\n")
    for name in sorted(users.by_name):
        lines += _user_lines(users.by_name[name])
    return "".join(lines).encode()


def _user_lines(user: User) -> Iterable[str]:
    yield f"\n[users.{_text(user.name)}]\nsecret = {_text(user.secret)}\n"
    if user.is_super:
        yield f"roles = {_list((Role.ADMIN,))}\n"
    if not user.is_enabled:
        yield "enabled = false\n"
    if user.trusted:
        yield f"trusted = {_list(user.trusted)}\n"
    if user.entries:
        yield "entries = [\n"
        for entry in user.entries:
            yield f"  {{ resource = {_text(str(entry.pattern))}, actions = {_list(entry.actions)}"
            yield "" if entry.allows else ', decision = "Deny"'
            yield f", sources = {_list(entry.sources)}" if entry.sources else ""
            yield ", default = true },\n" if entry.is_default else " },\n"
        yield "]\n"


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are among TOML's, apart from DEL, which TOML wants escaped."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(_text(str(value)) for value in values)}]"


def save_users(disk: Disk, path: Path, users: Users) -> None:
    """Replace the file, so that it is the old one or the new one whatever happens in between."""
    data = write_users(users)
    if len(data) > FILE_BYTES_MAX:
        raise OptionError(
            f"the users would take {len(data)} bytes", f"a file of them has at most {FILE_BYTES_MAX}"
        )
    beside = path.with_name(path.name + ".tmp")
    disk.make_dirs(path.parent)
    with_file = disk.open(beside, create=True)
    try:
        os.chmod(beside, 0o600)  # before there is anything to read in it
        with_file.truncate(0)
        with_file.pwrite(data, 0)
        with_file.sync()
    finally:
        with_file.close()
    disk.rename(beside, path)
    disk.sync_dir(path.parent)
