"""A self-signed certificate for servers in permissive mode without one of their own, as RocketMQ has it by default.

It is made when the first client uses TLS, by the library `cryptography` or the program `openssl`. With a
`certificate_directory` it is kept there, so that clients can trust it and it stays the same; otherwise it lives as
long as the process. Where neither library nor program is installed, clients that use TLS are closed, and the log says
so once. The key is on disk in `server.pem`, which only the server's user can read.

Owned by the event loop; the certificate is made in a thread. Never: used where a certificate is configured.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.remoting.tls import TlsOptions, is_certificate_name
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.remoting")
_NAME = "penstock"
_DAYS = 3_650
_OPENSSL_TIMEOUT_S = 30
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
# For clients to trust; and the certificate with its key, below a line with the names that it is for.
CERTIFICATE, SERVER = "certificate.pem", "server.pem"
_FOR = "for: "

# Writes the certificate and its key, given the names and the time; false if what it needs is not installed.
Maker = Callable[[Path, Path, Sequence[str], datetime], bool]


def by_library(certificate: Path, key: Path, names: Sequence[str], now: datetime) -> bool:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        return False
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    given = [
        x509.IPAddress(ipaddress.ip_address(one)) if _is_address(one) else x509.DNSName(one) for one in names
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(given), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(*pem))
    return True


def by_program(certificate: Path, key: Path, names: Sequence[str], _: datetime) -> bool:
    program = shutil.which("openssl")
    if program is None:
        return False
    given = ",".join(f"{'IP' if _is_address(one) else 'DNS'}:{one}" for one in names)
    command = [program, "req", "-x509", "-nodes", "-days", str(_DAYS), "-subj", f"/CN={_NAME}", *_CURVE]
    subprocess.run(
        [*command, "-addext", f"subjectAltName={given}", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_OPENSSL_TIMEOUT_S,
    )
    return True


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


MAKERS: tuple[Maker, ...] = (by_library, by_program)


class SelfSigned:
    """The certificate of one server process, made once."""

    def __init__(self, clock: Clock, tls: TlsOptions) -> None:
        self._clock = clock
        self._tls = tls
        self._making: asyncio.Future[ssl.SSLContext | None] | None = None

    async def context(self) -> ssl.SSLContext | None:
        """What connections over TLS are accepted with; None if no certificate can be made."""
        if self._making is None:
            loop = asyncio.get_running_loop()
            self._making = loop.run_in_executor(None, _context, self._tls, self._clock.now_ms())
        return await asyncio.shield(self._making)


def _context(tls: TlsOptions, now_ms: int) -> ssl.SSLContext | None:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    folder = Path(tls.certificate_directory) if tls.certificate_directory else None
    names = _names(tls)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-tls-") as own:
            if folder is None:
                return _made(Path(own), names, now)
            try:
                return _kept(folder, names) or _keep(folder, Path(own), names, now)
            except OSError as error:
                _LOG.warning("the certificate for TLS clients cannot be kept in %s: %s", folder, error)
                return _made(Path(own), names, now)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _refused(str(error))
    return None


def _names(tls: TlsOptions) -> list[str]:
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    return sorted({name for name in (*own, *tls.certificate_names) if is_certificate_name(name)})


def _kept(folder: Path, names: Sequence[str]) -> ssl.SSLContext | None:
    """What is there from an earlier start, or of another server that uses the directory."""
    server = folder / SERVER
    try:
        first, _, text = server.read_text(encoding="ascii", errors="replace").partition("\n")
    except FileNotFoundError:
        return None
    context = _load(server)
    missing = ", ".join(sorted(set(names) - set(first.removeprefix(_FOR).split())))
    if missing:
        _LOG.warning(
            "the certificate in %s is not for %s: clients that verify it cannot connect by that; remove the "
            "directory, and a new one is created",
            folder,
            missing,
        )
    if not (folder / CERTIFICATE).exists():
        _publish(folder, text)
    return context


def _keep(folder: Path, own: Path, names: Sequence[str], now: datetime) -> ssl.SSLContext | None:
    context = _made(own, names, now)
    if context is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    text = (own / "key.pem").read_text(encoding="ascii") + (own / CERTIFICATE).read_text(encoding="ascii")
    written = folder / f"{SERVER}.{own.name}"
    try:
        written.touch(mode=0o600, exist_ok=False)
        written.write_text(f"{_FOR}{' '.join(names)}\n{text}", encoding="ascii")
        (folder / SERVER).hardlink_to(written)
    except FileExistsError:  # another server has just created one
        return _kept(folder, names)
    finally:
        written.unlink(missing_ok=True)
    _publish(folder, text)
    _LOG.info("clients that use TLS can trust %s", folder / CERTIFICATE)
    return context


def _publish(folder: Path, text: str) -> None:
    """The certificate without its key."""
    start = text.index("-----BEGIN CERTIFICATE-----")
    (folder / CERTIFICATE).write_text(text[start:], encoding="ascii")


def _made(folder: Path, names: Sequence[str], now: datetime) -> ssl.SSLContext | None:
    certificate, key = folder / CERTIFICATE, folder / "key.pem"
    if not any(make(certificate, key, names, now) for make in MAKERS):
        _refused("neither the library cryptography nor the program openssl is installed")
        return None
    _LOG.info(
        "created a self-signed certificate for clients that use TLS; set tls.certificate and tls.key for another one"
    )
    return _load(certificate, key)


def _load(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _refused(reason: str) -> None:
    _LOG.warning(
        "a client uses TLS, and no certificate can be created: %s; TLS clients are refused until tls.certificate and "
        "tls.key are set",
        reason,
    )
