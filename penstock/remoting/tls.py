"""TLS settings and the contexts made of them. TLS 1.2 or newer; clients verify unless told otherwise (A24).

A server's certificate is read again when its files change: connections made from then on get the new one, those that
are open keep theirs. Files that do not fit together change nothing, so they may be replaced one after the other.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from penstock.errors import OptionError
from penstock.runtime import Disk

_LOG = logging.getLogger("penstock.remoting")
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def is_certificate_name(name: str) -> bool:
    """Whether a certificate can be for this: an IP address, or a host name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _HOST_NAME.fullmatch(name) is not None
    return True


class TlsMode(Enum):
    """What a server does with TLS (tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"  # both on one port: a connection whose first byte is 0x16 is TLS
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificates and how strictly they are looked at."""

    # Whether a server speaks TLS (tls.server.mode). Permissive without a certificate, as RocketMQ is by default, it
    # creates a self-signed one when the first client uses TLS, and speaks plain text to other servers.
    mode: TlsMode = TlsMode.PERMISSIVE
    # Certificate chain, PEM (tls.server.certPath).
    certificate: str = ""
    # Its private key, PEM (tls.server.keyPath).
    key: str = ""
    # Certificates to trust, PEM; empty means the system's (tls.server.trustCertPath).
    trusted: str = ""
    # Server: whether clients must show a certificate that is trusted (tls.server.need.client.auth).
    require_client_certificate: bool = False
    # Client: whether the server's certificate and name are verified (tls.client.authServer).
    verify_server: bool = True
    # Where a server without a certificate keeps the one that it creates: certificate.pem, for clients to trust, and
    # server.pem, which also has the key. Empty: tls in the data directory.
    certificate_directory: str = ""
    # Host names and addresses that the created certificate is for, besides localhost, the name of the machine, and
    # the addresses that the server listens on and advertises.
    certificate_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.certificate_names:
            if not is_certificate_name(name):
                raise OptionError(f"certificate_names has {name[:80]!r}", "use host names and IP addresses")

    @property
    def is_self_signed(self) -> bool:
        """Whether a server has no certificate of its own, and need not have one."""
        needs_one = self.certificate or self.key or self.require_client_certificate
        return self.mode is TlsMode.PERMISSIVE and not needs_one

    def of_calls(self) -> TlsOptions | None:
        """How a server with these options calls others: None for plain connections."""
        return None if self.mode is TlsMode.DISABLED or self.is_self_signed else self

    def server_context(self) -> ssl.SSLContext | None:
        if self.mode is TlsMode.DISABLED:
            return None
        if not self.certificate or not self.key:
            raise OptionError("TLS is on but there is no certificate or key", "name both files, PEM")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        if self.require_client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not self.verify_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif not self.trusted:
            context.load_default_certs()
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        files = (self.certificate, self.key, self.trusted)
        try:
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
            if self.trusted:
                context.load_verify_locations(self.trusted)
        except OSError as error:  # ssl.SSLError is one
            said = getattr(error, "reason", "") or ""
            why = said.replace("_", " ").lower() or error.strerror or str(error)
            raise OptionError(
                f"the TLS files cannot be used ({', '.join(filter(None, files))}): {why}",
                "check paths and PEM format",
            ) from error


class CertificateWatch:
    """Keeps the certificate of a server's context that of its files. Belongs to the server's event loop."""

    def __init__(self, options: TlsOptions, context: ssl.SSLContext, disk: Disk) -> None:
        self._options = options
        self._context = context
        self._disk = disk
        self._seen = self._found()

    def look(self) -> None:
        """Take the files again if they are others than last time."""
        found = self._found()
        if found == self._seen:
            return
        try:
            # Tried on another context first: one that was given half of a pair is of no use any more.
            self._options.server_context()
            self._context.load_cert_chain(self._options.certificate, self._options.key)
        except (OSError, ssl.SSLError, OptionError) as error:
            _LOG.warning("the TLS certificate stays as it was: %s", error)
        else:
            _LOG.info("the TLS certificate was read again from %s", self._options.certificate)
        self._seen = found

    def _found(self) -> tuple[tuple[int, int], ...]:
        found = []
        for name in (self._options.certificate, self._options.key):
            try:
                found.append((self._disk.modified_ms(Path(name)), self._disk.size(Path(name))))
            except OSError:
                found.append((0, 0))
        return tuple(found)
