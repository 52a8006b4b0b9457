"""The guard of a server: who sent a request, is it new, and may they.

    trusted address?     pass                    4.9's white lists; there are none unless configured
    signature            user and secret         a wrong secret and an unknown user look the same (`signatures`)
    fields               with signature 1        those that are defined for the request code only (`known_fields`)
    stamp                if there is one, or one is required (`freshness`)
    needs                each against the user's policies (`requests`, `policy`)

Rules: a refusal is code 16, NO_PERMISSION, with a remark that says what is missing and never a secret. Users come
from a file, looked at again every `reload_interval_ms`; a file that cannot be read leaves the users as they were,
with a line in the log. Owned by the server's event loop. `require_topic`, `sender` and their like are about the
request that is being handled, and only until its handler returns or waits for something: afterwards they raise,
because another request may be the last one that was checked.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.errors import OptionError, PenstockError, RequestError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security.credentials import Credentials
from penstock.security.freshness import STAMP_FIELD, SeenStamps
from penstock.security.known_fields import unknown_field
from penstock.security.options import AccessOptions, UnknownFields
from penstock.security.plain_acl import read_plain_acl
from penstock.security.policy import ANY_ONE, Action, Kind, Need
from penstock.security.requests import needs_of, topic_needs
from penstock.security.signatures import (
    ACCESS_KEY_FIELD,
    SIGNATURE2_FIELD,
    announcement,
    is_signed,
    is_signed2,
)
from penstock.security.users import User, Users
from penstock.security.users_file import read_users, save_users

_AUDIT = logging.getLogger("penstock.audit")
_LOG = logging.getLogger("penstock.security")
_BLAMED_MAX = 1_000
_LINES_A_MINUTE = 60
_MINUTE_MS = 60_000
_NOBODY = "a secret that no user has"
YAML_ENDINGS = (".yml", ".yaml")


class Guard:
    """One for all servers of a process."""

    def __init__(self, options: AccessOptions, path: Path, runtime: Runtime) -> None:
        self._options = options
        self.path = path
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._seen = SeenStamps(runtime.clock, options.stamp_window_ms, options.sessions_max)
        self._blamed: set[tuple[str, str, str]] = set()
        self._undefined: set[tuple[int, str]] = set()
        # Lines about each address since then.
        self._lines: Counter[str] = Counter()
        self._blamed_since_ms = runtime.clock.monotonic_ms()
        self._version: tuple[int, int] = (0, 0)
        self._looked_ms = runtime.clock.monotonic_ms()
        # The request that is being handled, its sender and their address; None between requests.
        self._current: tuple[User | None, str, Command] | None = None
        self.users = self._read()
        if not self.users.by_name:
            raise OptionError(f"{path} has no user", "add one with `penstock acl add NAME --role admin`")

    # -- users -----------------------------------------------------------------------------------------------

    def _read(self) -> Users:
        try:
            self._version = self._found()
            data = self._disk.read(self.path)
        except OSError as error:
            raise OptionError(
                f"the users cannot be read from {self.path}: {error.strerror or error}",
                "make the file with `penstock acl add NAME --role admin`, or name it with access.users_file",
            ) from None
        if self.path.suffix in YAML_ENDINGS:
            return read_plain_acl(data, str(self.path))
        return read_users(data, str(self.path))

    def _found(self) -> tuple[int, int]:
        return self._disk.modified_ms(self.path), self._disk.size(self.path)

    def look(self) -> None:
        """Read the file again if it is another one than last time."""
        self._looked_ms = self._clock.monotonic_ms()
        try:
            if self._found() == self._version:
                return
            self.users = self._read()
        except (OSError, PenstockError) as error:
            _LOG.error("the users stay as they were: %s", error)
        else:
            _AUDIT.info("read %d users from %s", len(self.users.by_name), self.path)

    def change(self, users: Users) -> None:
        """Write users to the file and use them from now on."""
        if self.path.suffix in YAML_ENDINGS:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the users come from {self.path.name}, which is edited by hand",
                "edit it, or set access.users_file to a TOML file",
            )
        save_users(self._disk, self.path, users)
        self.users = users
        self._version = self._found()

    def own_credentials(self) -> Credentials | None:
        """As whom this server calls others that have the same users: the first admin."""
        for name in sorted(self.users.by_name):
            user = self.users.by_name[name]
            if user.is_super and user.is_enabled:
                return Credentials(name, user.secret, min_signature=self._options.min_signature)
        return None

    # -- requests --------------------------------------------------------------------------------------------

    def check(self, source: str, command: Command) -> None:
        """Let a request from an address pass, or raise RequestError."""
        if self._clock.monotonic_ms() - self._looked_ms >= self._options.reload_interval_ms:
            self.look()
        try:
            user = self._authenticate(source, command)
            self._current = (user, source, command)
            if user is not None and not user.is_super:
                for need in needs_of(command):
                    self._require(user, need, source)
        except RequestError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                self._blame(source, command, error)
            raise

    def handled(self) -> None:
        """The handler of the request that was checked last has returned."""
        self._current = None

    @property
    def _asking(self) -> tuple[User | None, str, Command]:
        if self._current is None:
            raise AssertionError("broken invariant: no request is being handled, so there is no sender")
        return self._current

    def _authenticate(self, source: str, command: Command) -> User | None:
        """Who sent it; None: somebody whom nobody asks."""
        users = self.users
        if users.trusted and users.trusted_sources.contain(source):
            return None
        name = command.fields.get(ACCESS_KEY_FIELD, "")
        if not name:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "the request is not signed, and this server asks who you are",
                "give your client an access key and a secret key",
            )
        user = users.by_name.get(name)
        if user is not None and user.is_enabled and user.trusted and user.trusted_sources.contain(source):
            return None
        secret = user.secret if user is not None else _NOBODY
        # One of them, and never the weaker one where the stronger one is there.
        is_second = SIGNATURE2_FIELD in command.fields
        if is_second:
            signed = is_signed2(secret, command)
        else:
            signed = is_signed(secret, command.fields, command.body, command.version)
        if user is None or not signed or not user.is_enabled:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the signature of {name[:64]!r} is not valid: no such user, or another secret key",
                "check both keys, and that nothing changes requests on their way",
            )
        stamp = command.fields.get(STAMP_FIELD)
        if not is_second:
            self._check_first(user, command, stamp)
        if stamp is not None:
            self._seen.check(user.name, stamp, command.code)
        elif self._options.require_stamp or is_second:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "the request has no stamp against being sent twice, and this server requires one",
                "use Penstock's clients, or turn access.require_stamp off",
            )
        return user

    def _check_first(self, user: User, command: Command, stamp: str | None) -> None:
        """Announce signature 2 to a client that stamps, and refuse what signature 1 leaves open."""

        def announce(*, refused: bool) -> None:
            if stamp is not None:
                command.answer_fields = {SIGNATURE2_FIELD: announcement(user.secret, stamp, refused=refused)}

        if self._options.min_signature > 1:
            announce(refused=True)
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "the request has signature 1, RocketMQ's, and this server requires signature 2",
                "use Penstock's clients of this release or newer, or set access.min_signature=1",
            )
        unknown = unknown_field(command)
        if unknown is None or self._options.unknown_fields is UnknownFields.LOG:
            if unknown is not None:
                self._report_undefined(command.code, unknown[:64])
            announce(refused=False)
            return
        announce(refused=True)
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"the field {unknown[:64]!r} is not defined for request {command.code}, and the signature does not cover "
            "names of fields",
            "leave the field out, or set access.unknown_fields=log",
        )

    def _require(self, user: User, need: Need, source: str) -> None:
        if not user.may(need, source):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"user {user.name} has no permission for {need} from {source}: {user.because(need, source)}",
                "ask an admin; `penstock acl explain` shows what a user may do",
            )

    def require_topic(self, topic: str, *actions: Action, record: str = "") -> None:
        """For the request that is being handled, a need that showed only while handling it.

        `record`: what the request names, where the topic is known only from what is stored: the log says its name,
        the answer does not.
        """
        user, source, command = self._asking
        if user is None or user.is_super:
            return
        try:
            for need in topic_needs(topic, *actions):
                self._require(user, need, source)
        except RequestError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            self._blame(source, command, error)
            if not record:
                raise
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"user {user.name} has no permission for {record}",
                "ask an admin; the broker's log says what is missing",
            ) from None

    def allows_topic(self, topic: str, *actions: Action) -> bool:
        """Whether the sender of the request that is being handled may do this."""
        user, source, _ = self._asking
        return user is None or all(user.may(need, source) for need in topic_needs(topic, *actions))

    def sender(self) -> tuple[str, Callable[[str], bool]] | None:
        """Who sent the request that is being handled, and whether it may publish to a topic; None where that is not
        asked. What it may is looked up when it is asked: users change."""
        user, source, _ = self._asking
        if user is None or user.is_super:
            return None
        name = user.name

        def may_publish(topic: str) -> bool:
            found = self.users.by_name.get(name)
            if found is None or not found.is_enabled:
                return False
            return found.is_super or all(found.may(need, source) for need in topic_needs(topic, Action.PUB))

        return name, may_publish

    @property
    def may_publish_anywhere(self) -> bool:
        """Whether the sender of the request that is being handled may publish to any topic."""
        user, source, _ = self._asking
        return user is None or user.may(Need(Kind.TOPIC, ANY_ONE, (Action.PUB,)), source)

    def standing(self, command: Command) -> Callable[[], bool]:
        """For the request that is being handled and goes on for long: whether its sender may still do this, asked of
        the users as they are then."""
        user, source, _ = self._asking
        if user is None:
            return lambda: True
        name, needs = user.name, tuple(needs_of(command))
        return lambda: self._may(name, needs, source)

    def still_allows(self, source: str, command: Command) -> bool:
        """For a request that passed and waited: whether its sender may still do this. The signature was checked."""
        if self.users.trusted and self.users.trusted_sources.contain(source):
            return True
        name = command.fields.get(ACCESS_KEY_FIELD, "")
        user = self.users.by_name.get(name)
        if user is not None and user.is_enabled and user.trusted and user.trusted_sources.contain(source):
            return True
        return self._may(name, needs_of(command), source)

    def _may(self, name: str, needs: Iterable[Need], source: str) -> bool:
        """As the users are now."""
        user = self.users.by_name.get(name)
        if user is None or not user.is_enabled:
            return False
        return user.is_super or all(user.may(need, source) for need in needs)

    @property
    def sender_name(self) -> str:
        """The user who sent the request that is being handled; empty where that is not asked."""
        user = self._asking[0]
        return "" if user is None else user.name

    def _blame(self, source: str, command: Command, error: RequestError) -> None:
        """Once for each address, user and reason, and so many in a minute: a client that tries again and again, or
        each time with another name, must not fill the log."""
        key = (source, command.fields.get(ACCESS_KEY_FIELD, "")[:64], error.message)
        if key in self._blamed:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._blamed_since_ms >= _MINUTE_MS:
            self._blamed_since_ms = now_ms
            self._lines.clear()
        self._lines[source] += 1
        if self._lines[source] > _LINES_A_MINUTE or len(self._lines) > _BLAMED_MAX:
            return
        if len(self._blamed) >= _BLAMED_MAX:
            self._blamed.clear()
        self._blamed.add(key)
        _AUDIT.warning("refused request %d from %s: %s", command.code, source, error.message[:300])
        if self._lines[source] == _LINES_A_MINUTE:
            _AUDIT.warning(
                "refused %d requests from %s: the rest of this minute's are not logged",
                _LINES_A_MINUTE,
                source,
            )

    def _report_undefined(self, code: int, field: str) -> None:
        """Once for each code and field, and for so many only."""
        if (code, field) not in self._undefined and len(self._undefined) < _BLAMED_MAX:
            self._undefined.add((code, field))
            _AUDIT.warning("request %d has the undefined field %r", code, field)
