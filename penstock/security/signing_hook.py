"""Signs what a client sends: the last thing that happens to a request before it is encoded.

Implements `remoting.RpcHook`. A program's own hook goes first, so that the fields it adds are signed too. Owned by
the client's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security.credentials import Credentials
from penstock.security.freshness import STAMP_FIELD, Stamps
from penstock.security.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, TOKEN_FIELD, sign


class Hook(Protocol):
    """As `remoting.RpcHook`, which a room below cannot name."""

    def before_request(self, address: str, request: Command) -> None: ...

    def after_response(self, address: str, request: Command, response: Command) -> None: ...


class SigningHook:
    """See the module's text. Where credentials may change they are asked for each time; None: not signed."""

    def __init__(
        self,
        credentials: Credentials | Callable[[], Credentials | None],
        runtime: Runtime,
        inner: Hook | None = None,
    ) -> None:
        self._find = credentials if callable(credentials) else lambda: credentials
        self._stamps = Stamps(runtime.clock, runtime.entropy)
        self._inner = inner

    def before_request(self, address: str, request: Command) -> None:
        if self._inner is not None:
            self._inner.before_request(address, request)
        fields, credentials = request.fields, self._find()
        if credentials is None:
            return
        fields[ACCESS_KEY_FIELD] = credentials.access_key
        if credentials.security_token:
            fields[TOKEN_FIELD] = credentials.security_token
        fields[STAMP_FIELD] = self._stamps.next(address, request.code)
        fields.pop(SIGNATURE_FIELD, None)
        if request.binary:
            # An empty value does not survive a binary header, and what the server does not see it cannot sign.
            for name in [name for name, value in fields.items() if not value]:
                del fields[name]
        fields[SIGNATURE_FIELD] = sign(credentials.secret_key, fields, request.body)

    def after_response(self, address: str, request: Command, response: Command) -> None:
        if self._inner is not None:
            self._inner.after_response(address, request, response)
