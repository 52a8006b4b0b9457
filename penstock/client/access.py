"""How a program reaches a cluster that asks who it is: keys to sign with, and TLS. One value that travels with a job.

    Access(access_key="billing", secret_key="...")          keys as values
    Access(credentials_file="/etc/penstock/keys.toml")      keys in a file of the machine that uses them
    Access(tls_trusted="/etc/penstock/ca.pem")              TLS, whoever signed the servers' certificates
    Access()                                                keys from the environment of the process, if it has any

Rules: plain values that can be pickled, compared and used as a key. A secret is in no text that is made of it. Files
are named here and read where a client is made, by the process that makes it; one that cannot be read there is an
error that names it, and never quotes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ClientError, OptionError, ResponseError
from penstock.protocol.codes import ResponseCode
from penstock.remoting import TlsOptions
from penstock.runtime import Runtime
from penstock.security import Credentials

# How the error begins that `explaining` makes of a refusal.
REFUSED = "refused: "
_FILES = ("credentials_file", "tls_trusted", "tls_certificate", "tls_key")


@dataclass(frozen=True, slots=True)
class Access:
    """See the module's text. What is given as options of a program; empty: not given."""

    # The user as whom requests are signed, the user's secret, and a token that was issued with them, if there is one.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    # A file with the keys instead: TOML with access_key and secret_key, or RocketMQ's tools.yml.
    credentials_file: str = ""
    # Whether connections are made with TLS; naming one of the files below says so too.
    tls: bool = False
    # Certificates to trust, PEM; empty: the system's.
    tls_trusted: str = ""
    # A certificate to show, PEM, and its key, unless that is in the same file.
    tls_certificate: str = ""
    tls_key: str = ""

    def __post_init__(self) -> None:
        if self.access_key or self.secret_key or self.security_token:
            Credentials(self.access_key, self.secret_key, self.security_token)
            if self.credentials_file:
                raise OptionError(
                    "keys are given, and a file with keys as well", "leave out one or the other"
                )
        if self.tls_key and not self.tls_certificate:
            raise OptionError("there is a TLS key and no certificate that belongs to it", "name both files")

    @property
    def with_tls(self) -> bool:
        return self.tls or bool(self.tls_trusted or self.tls_certificate)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for any client; what is not given here the client finds in its environment."""
        for name in _FILES:
            if path := getattr(self, name):
                _require_file(name, path)
        made: dict[str, Any] = {}
        if self.with_tls:
            made["tls"] = TlsOptions(
                certificate=self.tls_certificate, key=self.tls_key, trusted=self.tls_trusted
            )
        for name in ("access_key", "secret_key", "security_token", "credentials_file"):
            if value := getattr(self, name):
                made[name] = value
        return made


# Nothing is said: keys are those of the environment, and connections are plain.
FROM_ENVIRONMENT = Access()


def _require_file(name: str, path: str) -> None:
    try:
        Runtime.system().disk.size(Path(path))
    except OSError as error:
        raise OptionError(
            f"{name}: {path} cannot be read on this machine: {error.strerror or error}",
            "files are read by every process that connects, driver and executors alike: put it at this path on each "
            "machine, or give the keys as values",
        ) from None


@contextmanager
def explaining() -> Iterator[None]:
    """A refusal by access control is told with where the keys come from."""
    try:
        yield
    except ResponseError as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        raise ClientError(
            f"{REFUSED}{error.remark}",
            "keys are those of accessKey and secretKey (--access-key, --secret-file), of credentialsFile "
            "(--credentials), or of the environment of the process that asks, which each executor has for itself",
        ) from error
