"""A self-signed certificate for servers in permissive mode without one of their own, as RocketMQ has it by default.

It is made when the first client uses TLS, by the library `cryptography` or the program `openssl`, and lives as long
as the process: clients cannot verify it. Where neither is installed, clients that use TLS are closed, and the log
says so once. The key is on disk only while OpenSSL reads it, in a directory that other users cannot enter.

Owned by the event loop; the certificate is made in a thread. Never: used where a certificate is configured.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.remoting")
_NAME = "penstock"
_DAYS = 3_650
_OPENSSL_TIMEOUT_S = 30
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")

# Writes the certificate and its key, given the time; false if what it needs is not installed.
Maker = Callable[[Path, Path, datetime], bool]


def by_library(certificate: Path, key: Path, now: datetime) -> bool:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        return False
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(*pem))
    return True


def by_program(certificate: Path, key: Path, _: datetime) -> bool:
    program = shutil.which("openssl")
    if program is None:
        return False
    command = [program, "req", "-x509", "-nodes", "-days", str(_DAYS), "-subj", f"/CN={_NAME}", *_CURVE]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_OPENSSL_TIMEOUT_S,
    )
    return True


MAKERS: tuple[Maker, ...] = (by_library, by_program)


class SelfSigned:
    """The certificate of one server process, made once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._making: asyncio.Future[ssl.SSLContext | None] | None = None

    async def context(self) -> ssl.SSLContext | None:
        """What connections over TLS are accepted with; None if no certificate can be made."""
        if self._making is None:
            self._making = asyncio.get_running_loop().run_in_executor(None, _make, self._clock.now_ms())
        return await asyncio.shield(self._making)


def _make(now_ms: int) -> ssl.SSLContext | None:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-tls-") as folder:
            certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
            if any(make(certificate, key, now) for make in MAKERS):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(certificate, key)
                _LOG.info(
                    "created a self-signed certificate for clients that use TLS; they cannot verify it: "
                    "set tls.certificate and tls.key"
                )
                return context
        reason = "neither the library cryptography nor the program openssl is installed"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    _LOG.warning(
        "a client uses TLS, and no certificate can be created: %s; TLS clients are refused until tls.certificate and "
        "tls.key are set",
        reason,
    )
    return None
