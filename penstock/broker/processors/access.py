"""Users and their policies over the wire, for RocketMQ 5.x's mqadmin and dashboards (3001 to 3010).

Rules: only with access control on, and only for admins, which the guard sees to. A change is in the users' file when
it is answered, and in the log `penstock.audit`. Secrets go in and never come out: where RocketMQ shows a user's
password, this says `******`. The last admin cannot be taken away. Owned by the event loop; the file is small.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from penstock.errors import OptionError, RequestError
from penstock.metadata.fastjson import JsonObject, dump_compact
from penstock.protocol.bodies.body import BodyFields
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, Handler, ProcessorTable
from penstock.security import Guard
from penstock.security.policy import Action, Entry, Pattern
from penstock.security.signatures import ACCESS_KEY_FIELD
from penstock.security.users import ENTRIES_MAX, User, Users

_AUDIT = logging.getLogger("penstock.audit")
MASK = "******"
_BODY_BYTES_MAX = 1024 * 1024
_BODY_OBJECTS_MAX = 10_000
_USER_PREFIX = "User:"


class AccessProcessor:
    """Codes 3001 to 3010."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.AUTH_CREATE_USER, self._told(self.handle_create_user))
        table.register(RequestCode.AUTH_UPDATE_USER, self._told(self.handle_update_user))
        table.register(RequestCode.AUTH_DELETE_USER, self._told(self.handle_delete_user))
        table.register(RequestCode.AUTH_GET_USER, self._told(self.handle_get_user))
        table.register(RequestCode.AUTH_LIST_USERS, self._told(self.handle_list_users))
        table.register(RequestCode.AUTH_CREATE_ACL, self._told(self.handle_put_acl))
        table.register(RequestCode.AUTH_UPDATE_ACL, self._told(self.handle_put_acl))
        table.register(RequestCode.AUTH_DELETE_ACL, self._told(self.handle_delete_acl))
        table.register(RequestCode.AUTH_GET_ACL, self._told(self.handle_get_acl))
        table.register(RequestCode.AUTH_LIST_ACL, self._told(self.handle_list_acl))

    @staticmethod
    def _told(handler: Handler) -> Handler:
        """What the users' own rules refuse is the request's fault."""

        def handle(connection: Connection, command: Command) -> Command:
            try:
                answer = handler(connection, command)
            except OptionError as error:
                raise RequestError(ResponseCode.INVALID_PARAMETER, error.message, error.hint) from None
            if not isinstance(answer, Command):
                raise AssertionError("broken invariant: a handler of users answers at once")
            return answer

        return handle

    # -- users -----------------------------------------------------------------------------------------------

    def handle_create_user(self, connection: Connection, command: Command) -> Command:
        name = command.text("username")
        body = _body(command)
        if name in self._guard.users.by_name:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"user {name[:64]} exists already", "change it instead"
            )
        user = User(name, body.text("password", ""))
        self._change(
            connection, command, self._guard.users.put(_with_body(user, body)), f"created user {name}"
        )
        return command.answer()

    def handle_update_user(self, connection: Connection, command: Command) -> Command:
        user = self._user(command.text("username"))
        body = _body(command)
        changed = _with_body(user, body)
        if body_password := _password(body):
            changed = replace(changed, secret=body_password)
        self._change(connection, command, self._guard.users.put(changed), f"changed user {user.name}")
        return command.answer()

    def handle_delete_user(self, connection: Connection, command: Command) -> Command:
        user = self._user(command.text("username"))
        self._change(connection, command, self._guard.users.without(user.name), f"deleted user {user.name}")
        return command.answer()

    def handle_get_user(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=dump_compact(_shown(self._user(command.text("username")))))

    def handle_list_users(self, connection: Connection, command: Command) -> Command:
        wanted = command.text_or("filter")
        users = [user for name, user in sorted(self._guard.users.by_name.items()) if wanted in name]
        return command.answer(body=dump_compact([_shown(user) for user in users]))

    # -- policies --------------------------------------------------------------------------------------------

    def handle_put_acl(self, connection: Connection, command: Command) -> Command:
        """Entries on the same resource take the place of those that there were."""
        user = self._user(_subject(command.text("subject")))
        new = list(_entries(_body(command)))
        places = {(entry.pattern, entry.is_default) for entry in new}
        kept = [entry for entry in user.entries if (entry.pattern, entry.is_default) not in places]
        self._put_entries(connection, command, user, (*kept, *new))
        return command.answer()

    def handle_delete_acl(self, connection: Connection, command: Command) -> Command:
        user = self._user(_subject(command.text("subject")))
        resource, kind = command.text_or("resource"), command.text_or("policyType").lower()
        pattern = Pattern.of(resource) if resource else None
        kept = tuple(
            entry
            for entry in user.entries
            if (pattern is not None and entry.pattern != pattern)
            or (kind and (kind == "default") != entry.is_default)
        )
        if len(kept) == len(user.entries):
            raise RequestError(ResponseCode.POLICY_NOT_EXIST, f"user {user.name} has no such policy")
        self._put_entries(connection, command, user, kept)
        return command.answer()

    def handle_get_acl(self, connection: Connection, command: Command) -> Command:
        user = self._user(_subject(command.text("subject")))
        return command.answer(body=dump_compact(_shown_acl(user, user.entries)))

    def handle_list_acl(self, connection: Connection, command: Command) -> Command:
        subject, resource = command.text_or("subjectFilter"), command.text_or("resourceFilter")
        found = []
        for name, user in sorted(self._guard.users.by_name.items()):
            entries = tuple(entry for entry in user.entries if resource in str(entry.pattern))
            if entries and subject in f"{_USER_PREFIX}{name}":
                found.append(_shown_acl(user, entries))
        return command.answer(body=dump_compact(found))

    # -- common ----------------------------------------------------------------------------------------------

    def _user(self, name: str) -> User:
        found = self._guard.users.by_name.get(name)
        if found is None:
            raise RequestError(
                ResponseCode.USER_NOT_EXIST, f"there is no user {name[:64]!r}", "create it first"
            )
        return found

    def _put_entries(
        self, connection: Connection, command: Command, user: User, entries: tuple[Entry, ...]
    ) -> None:
        changed = replace(user, entries=entries)
        self._change(
            connection, command, self._guard.users.put(changed), f"changed the policies of {user.name}"
        )

    def _change(self, connection: Connection, command: Command, users: Users, what: str) -> None:
        if not any(user.is_super and user.is_enabled for user in users.by_name.values()):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "no admin would be left to change it back",
                "make another one first",
            )
        self._guard.change(users)
        who = command.text_or(ACCESS_KEY_FIELD, "a trusted address")
        _AUDIT.warning("%s %s, from %s", who[:64], what[:128], connection.peer)


def _body(command: Command) -> BodyFields:
    return BodyFields.parse(command.body, "access", _BODY_BYTES_MAX, _BODY_OBJECTS_MAX, _BODY_BYTES_MAX)


def _password(body: BodyFields) -> str:
    """What is shown instead of a password changes none."""
    text = body.text("password", "")
    return "" if text == MASK else text


def _with_body(user: User, body: BodyFields) -> User:
    kind, status = body.text("userType", "").lower(), body.text("userStatus", "").lower()
    if kind not in ("", "super", "normal") or status not in ("", "enable", "disable"):
        raise OptionError("userType is Super or Normal, userStatus enable or disable")
    return replace(
        user,
        is_super=kind == "super" if kind else user.is_super,
        is_enabled=status == "enable" if status else user.is_enabled,
    )


def _subject(text: str) -> str:
    if not text.startswith(_USER_PREFIX):
        raise OptionError(f"{text[:80]!r} is no subject", f"write {_USER_PREFIX}name")
    return text.removeprefix(_USER_PREFIX)


def _entries(body: BodyFields) -> Iterator[Entry]:
    count = 0
    for policy in body.object_list("policies"):
        is_default = policy.text("policyType", "Custom").lower() == "default"
        for entry in policy.object_list("entries"):
            count += 1
            if count > ENTRIES_MAX:
                raise OptionError(f"more than {ENTRIES_MAX} entries")
            decision = entry.text("decision", "").lower()
            if decision not in ("allow", "deny"):
                raise OptionError("decision is Allow or Deny")
            actions = tuple(Action.of(text) for text in entry.text_list("actions"))
            if not actions:
                raise OptionError("an entry has no actions")
            yield Entry(
                Pattern.of(entry.text("resource", "")),
                actions,
                decision == "allow",
                tuple(entry.text_list("sourceIps")),
                is_default,
            )


def _shown(user: User) -> JsonObject:
    return {
        "password": MASK,
        "userStatus": "enable" if user.is_enabled else "disable",
        "userType": "Super" if user.is_super else "Normal",
        "username": user.name,
    }


def _shown_acl(user: User, entries: tuple[Entry, ...]) -> JsonObject:
    policies = []
    for is_default in (False, True):
        shown: list[object] = [
            {
                "actions": [str(action) for action in entry.actions],
                "decision": "Allow" if entry.allows else "Deny",
                "resource": str(entry.pattern),
                "sourceIps": list(entry.sources),
            }
            for entry in entries
            if entry.is_default is is_default
        ]
        if shown:
            policies.append({"entries": shown, "policyType": "Default" if is_default else "Custom"})
    return {"policies": policies, "subject": f"{_USER_PREFIX}{user.name}"}  # type: ignore[dict-item]
