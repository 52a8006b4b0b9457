"""Signs what a client sends: the last thing that happens to a request before it is encoded.

    min_signature 1   an address gets signature 1 until it has announced 2, and from then on 2 only
    min_signature 2   signature 2 only, to every address

There is no way back from 2 to 1 while the hook lives: a refusal, an answer without an announcement or a new
connection changes nothing, so neither an attacker in the middle nor another server at the address can make a client
fall back. An announcement that the user's secret does not prove is ignored. Which addresses stay with 1 is logged. A
request with 1 that is refused by a server that announces 2 was not carried out and is sent once more, with 2.

Implements `remoting.RpcHook`. A program's own hook goes first, so that the fields it adds are signed too. Owned by
the client's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security.credentials import Credentials
from penstock.security.freshness import STAMP_FIELD, Stamps
from penstock.security.signatures import (
    ACCESS_KEY_FIELD,
    SIGNATURE2_FIELD,
    SIGNATURE_FIELD,
    TOKEN_FIELD,
    is_announced,
    sign,
    sign2,
)

_LOG = logging.getLogger("penstock.security")


class Hook(Protocol):
    """As `remoting.RpcHook`, which a room below cannot name."""

    def before_request(self, address: str, request: Command) -> None: ...

    def after_response(self, address: str, request: Command, response: Command) -> bool | None: ...


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
        # Addresses that have announced signature 2, and those that have answered without.
        self._announced: set[str] = set()
        self._silent: set[str] = set()

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
        fields.pop(SIGNATURE2_FIELD, None)
        if request.binary:
            # An empty value does not survive a binary header, and what the server does not see it cannot sign.
            for name in [name for name, value in fields.items() if not value]:
                del fields[name]
        if credentials.min_signature >= 2 or address in self._announced:
            fields[SIGNATURE2_FIELD] = sign2(credentials.secret_key, request)
        else:
            fields[SIGNATURE_FIELD] = sign(credentials.secret_key, fields, request.body)

    def after_response(self, address: str, request: Command, response: Command) -> bool:
        """Whether the request should be sent once more, with signature 2."""
        if SIGNATURE_FIELD in request.fields and self._learn(address, request, response):
            return True
        return self._inner is not None and bool(self._inner.after_response(address, request, response))

    def _learn(self, address: str, request: Command, response: Command) -> bool:
        """Which signature the address takes, from its answer to a request with 1; whether it refused that one."""
        given, credentials = response.fields.get(SIGNATURE2_FIELD, ""), self._find()
        stamp = request.fields.get(STAMP_FIELD, "")
        if given and credentials is not None:
            secret = credentials.secret_key
            is_refused = is_announced(secret, stamp, given, refused=True)
            if is_refused or is_announced(secret, stamp, given):
                self._announced.add(address)
                return is_refused
        if address not in self._announced and address not in self._silent:
            self._silent.add(address)
            _LOG.info(
                "%s does not announce signature 2: requests are signed as RocketMQ's clients sign", address
            )
        return False
