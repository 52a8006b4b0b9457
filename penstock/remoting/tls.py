"""TLS settings and the contexts made of them. TLS 1.2 or newer; clients verify unless told otherwise (A24)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum

from penstock.errors import OptionError


class TlsMode(Enum):
    """What a server does with TLS (tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"  # both on one port: a connection whose first byte is 0x16 is TLS
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificates and how strictly they are looked at."""

    # Whether a server speaks TLS (tls.server.mode).
    mode: TlsMode = TlsMode.DISABLED
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
        try:
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
            if self.trusted:
                context.load_verify_locations(self.trusted)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"the TLS files cannot be used: {error}", "check paths and PEM format"
            ) from error
