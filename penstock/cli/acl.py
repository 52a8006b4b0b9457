"""`penstock acl`: the users of a cluster in their file, and why one of them may or may not do something.

Works on the file that the servers read (access.users_file), which they read again when it changes; nothing is
connected to. A secret is shown once, when it was made up for a new user, and never again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.clients import EXIT_NOT_FOUND, echo_json
from penstock.cli.complaints import complain
from penstock.cli.lazy_group import CommandGroup
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.security.users import User, Users

T = TypeVar("T")
DEFAULT_FILE = "penstock-data/access.toml"
SECRET_BYTES = 24


def _file_options(command: Callable[..., T]) -> Callable[..., T]:
    decorators = (
        click.option(
            "--users",
            "path",
            metavar="FILE",
            envvar="PENSTOCK_ACCESS_USERS_FILE",
            default=DEFAULT_FILE,
            type=click.Path(path_type=Path),
            help=f"The users: Penstock's TOML, or a plain_acl.yml to look at ({DEFAULT_FILE}).",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
    )
    return functools.reduce(lambda made, decorator: decorator(made), reversed(decorators), command)


@click.group(cls=CommandGroup)
def acl() -> None:
    """Add users, show what they may do, explain a refusal."""


@acl.command()
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="admin, producer or consumer; repeatable."
)
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="A topic, or a prefix with *; repeatable."
)
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="A group, or a prefix with *; repeatable."
)
@click.option(
    "--secret-stdin", is_flag=True, help="Read the secret from standard input instead of making one up."
)
@_file_options
def add(
    name: str,
    roles: Sequence[str],
    topics: Sequence[str],
    groups: Sequence[str],
    secret_stdin: bool,
    path: Path,
    as_json: bool,
) -> None:
    """Add the user NAME with roles, or change what it may do.

    A new user gets a secret that is shown this once; an old one keeps its own unless --secret-stdin gives another.
    """
    from penstock.security.users import Role, User, role_entries

    users = _read(path, must_exist=False)
    found = [Role.of(role) for role in roles]
    if (topics or groups) and not {Role.PRODUCER, Role.CONSUMER} & {*found}:
        raise OptionError("--topic and --group say where a role applies", "add --role producer or consumer")
    known = users.by_name.get(name)
    secret, shown = _secret(known, secret_stdin)
    entries = tuple(role_entries(found, topics, groups))
    user = User(name, secret, is_super=Role.ADMIN in found, entries=entries)
    _save(path, users.put(user))
    if as_json:
        echo_json({**_described(user), **({"secret": shown} if shown else {})})
        return
    click.echo(f"user {name} {'changed' if known else 'added'} in {path}")
    if shown:
        click.echo(f"secret key, shown this once: {shown}")


def _secret(known: User | None, from_stdin: bool) -> tuple[str, str]:
    """The secret, and as much of it as is to be shown."""
    if from_stdin:
        import sys

        return sys.stdin.readline().rstrip("\r\n"), ""
    if known is not None:
        return known.secret, ""
    import secrets

    made = secrets.token_urlsafe(SECRET_BYTES)
    return made, made


@acl.command()
@click.argument("name")
@_file_options
def remove(name: str, path: Path, as_json: bool) -> int:
    """Remove the user NAME."""
    users = _read(path)
    if name not in users.by_name:
        return _unknown(name, path)
    _save(path, users.without(name))
    if as_json:
        echo_json({"removed": name})
    else:
        click.echo(f"user {name} removed from {path}")
    return 0


@acl.command("list")
@_file_options
def list_users(path: Path, as_json: bool) -> None:
    """List the users and what they may do, without their secrets."""
    found = [_described(user) for _, user in sorted(_read(path).by_name.items())]
    if as_json:
        echo_json(found)
        return
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    table = plain_table("User", "Kind", "May")
    for user in found:
        kind = "admin" if user["admin"] else "user"
        may = "everything" if user["admin"] else "; ".join(user["entries"]) or "nothing"
        table.add_row(
            name_text(user["name"]), kind if user["enabled"] else "disabled", Text(printable(may, 2_000))
        )
    output().print(table)


@acl.command()
@click.argument("name")
@click.argument("action")
@click.argument("resource")
@click.option(
    "--from", "source", metavar="ADDRESS", default="127.0.0.1", help="Where it asks from (127.0.0.1)."
)
@_file_options
def explain(name: str, action: str, resource: str, source: str, path: Path, as_json: bool) -> int:
    """Explain whether the user NAME may do ACTION to RESOURCE.

    As in `penstock acl explain billing Pub Topic:orders`. Names the entry that decides. Ends with 1 if it may not.
    """
    from penstock.security.policy import Action, Kind, Need, Pattern
    from penstock.security.requests import topic_needs

    user = _read(path).by_name.get(name)
    if user is None:
        return _unknown(name, path)
    pattern = Pattern.of(resource)
    asked = "*" if pattern.is_prefix and not pattern.name else str(pattern).partition(":")[2]
    actions = (Action.of(action),)
    if pattern.kind is Kind.TOPIC and asked != "*":
        needs = topic_needs(asked, *actions)
    else:
        needs = (Need(pattern.kind, asked, actions),)
    need = next((one for one in needs if not user.may(one, source)), needs[0])
    allowed = user.is_enabled and user.may(need, source)
    because = user.because(need, source)
    if as_json:
        echo_json({"user": name, "need": str(need), "from": source, "allowed": allowed, "because": because})
    else:
        click.echo(f"{name} {'may' if allowed else 'may not'} {need} from {source}: {because}")
    return 0 if allowed else EXIT_NOT_FOUND


def _unknown(name: str, path: Path) -> int:
    complain(f"there is no user {name[:64]!r} in {path}; `penstock acl list --users {path}` shows the users")
    return EXIT_NOT_FOUND


def _described(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "admin": user.is_super,
        "enabled": user.is_enabled,
        "trusted": list(user.trusted),
        "entries": [str(entry) for entry in user.policies.entries],
    }


def _read(path: Path, *, must_exist: bool = True) -> Users:
    from penstock.security.guard import YAML_ENDINGS
    from penstock.security.plain_acl import read_plain_acl
    from penstock.security.users import Users
    from penstock.security.users_file import read_users

    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if must_exist:
            raise OptionError(
                f"there is no {path}", "`penstock acl add NAME --role admin` makes it"
            ) from None
        return Users()
    return read_plain_acl(data, str(path)) if path.suffix in YAML_ENDINGS else read_users(data, str(path))


def _save(path: Path, users: Users) -> None:
    from penstock.runtime import SystemDisk
    from penstock.security.guard import YAML_ENDINGS
    from penstock.security.users_file import save_users

    if path.suffix in YAML_ENDINGS:
        raise OptionError(f"{path} is edited by hand", "name a TOML file with --users")
    save_users(SystemDisk(), path, users)
