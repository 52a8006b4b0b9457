"""RocketMQ 4.9's plain_acl.yml, read into users. The file is never written: 5.x and Penstock have their own ways.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
    - accessKey: orders
      secretKey: 12345678
      whiteRemoteAddress: 192.168.0.*
      admin: false
      defaultTopicPerm: DENY
      defaultGroupPerm: SUB
      topicPerms: [orders=PUB|SUB, audit=DENY]
      groupPerms: [billing=SUB]

Rules: YAML's plainest loader, which makes no objects, without anchors (a few lines of them become gigabytes), and
with limits on size and depth. An unknown key of an account is an error: it may be a slip in one that forbids. PyYAML
is an extra (`acl`), imported when such a file is read.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import OptionError, install_hint
from penstock.security.policy import Action, Entry, Kind, Pattern
from penstock.security.users import User, Users

FILE_BYTES_MAX = 1024 * 1024
_DEPTH_MAX = 8
_ACCOUNT_KEYS = (
    "accessKey",
    "admin",
    "defaultGroupPerm",
    "defaultTopicPerm",
    "groupPerms",
    "secretKey",
    "topicPerms",
    "whiteRemoteAddress",
)
_PERMISSIONS = {
    "DENY": (),
    "PUB": (Action.PUB,),
    "SUB": (Action.SUB,),
    "PUB|SUB": (Action.PUB, Action.SUB),
    "SUB|PUB": (Action.PUB, Action.SUB),
    "ANY": (Action.PUB, Action.SUB),
}


def read_plain_acl(data: bytes, origin: str) -> Users:
    """The accounts of a file; OptionError that names the account for whatever is none. No secret is in it."""
    document = _load(data, origin)
    if not isinstance(document, dict):
        raise OptionError(f"{origin}: no accounts", "write `accounts:` and a list below it")
    accounts = document.get("accounts") or []
    if not isinstance(accounts, list):
        raise OptionError(f"{origin}: accounts is no list")
    users: dict[str, User] = {}
    for number, account in enumerate(accounts, 1):
        user = _user(account, f"{origin}: account {number}")
        if user.name in users:
            raise OptionError(f"{origin}: two accounts have the accessKey {user.name}")
        users[user.name] = user
    return Users(users, _texts(document, "globalWhiteRemoteAddresses", origin))


def _load(data: bytes, origin: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise OptionError(f"{origin}: reading YAML needs PyYAML", install_hint("acl")) from error
    if len(data) > FILE_BYTES_MAX:
        raise OptionError(f"{origin}: {len(data)} bytes", f"at most {FILE_BYTES_MAX} are read")
    try:
        text = data.decode()
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise OptionError(f"{origin}: anchors and aliases are not read", "write the values out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEPTH_MAX:
                raise OptionError(f"{origin}: nested deeper than {_DEPTH_MAX}")
        loader = yaml.BaseLoader(
            text
        )  # texts, lists and maps, nothing else: a key of digits stays as it is written
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        # The parser's own words quote the line, and the line may be the one with the secret.
        raise OptionError(
            f"{origin}: no YAML{where}", "compare it with RocketMQ's conf/plain_acl.yml"
        ) from None


def _user(account: object, origin: str) -> User:
    if not isinstance(account, dict):
        raise OptionError(f"{origin} is no account", "it needs accessKey and secretKey")
    name = str(account.get("accessKey") or "")
    if name:
        origin = f"{origin} ({name[:40]})"
    unknown = [str(key)[:40] for key in account if key not in _ACCOUNT_KEYS]
    if unknown:
        raise OptionError(
            f"{origin} has no setting {', '.join(sorted(unknown))}", f"use {', '.join(sorted(_ACCOUNT_KEYS))}"
        )
    admin = str(account.get("admin") or "false").lower()
    if admin not in ("true", "false"):
        raise OptionError(f"{origin}: admin is neither true nor false")
    try:
        return User(
            name,
            str(account.get("secretKey") or ""),
            is_super=admin == "true",
            entries=tuple(_entries(account, origin)),
            trusted=tuple(str(account.get("whiteRemoteAddress") or "").split(";")),
        )
    except OptionError as error:
        raise OptionError(f"{origin}: {error.message}", error.hint) from None


def _entries(account: dict[Any, Any], origin: str) -> list[Entry]:
    found = []
    for kind, key, default in (
        (Kind.TOPIC, "topicPerms", "defaultTopicPerm"),
        (Kind.GROUP, "groupPerms", "defaultGroupPerm"),
    ):
        for text in _texts(account, key, origin):
            name, equals, permission = text.rpartition("=")
            if not equals or not name.strip() or "*" in name:
                raise OptionError(f"{origin}: {key} has {text[:80]!r}", "write name=PUB|SUB")
            found.append(_entry(kind, name.strip(), permission, origin))
        if account.get(default):
            found.append(_entry(kind, "*", str(account[default]), origin, is_default=True))
    return found


def _entry(kind: Kind, name: str, permission: str, origin: str, *, is_default: bool = False) -> Entry:
    actions = _PERMISSIONS.get(permission.replace(" ", "").upper())
    if actions is None:
        raise OptionError(
            f"{origin}: there is no permission {permission[:40]!r}", f"use {', '.join(_PERMISSIONS)}"
        )
    pattern = Pattern.of(f"{kind}:{name}")
    if not actions:
        return Entry(pattern, (Action.ALL,), allows=False, is_default=is_default)
    return Entry(pattern, actions, is_default=is_default)


def _texts(table: dict[Any, Any], key: str, origin: str) -> tuple[str, ...]:
    value = table.get(key)
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise OptionError(f"{origin}: {key} is no list of texts")
    return tuple(value)
