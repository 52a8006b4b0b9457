"""Commands against a cluster that wants to see certificates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.client.loop_thread import LoopThread
from penstock.remoting import TlsMode, TlsOptions
from penstock.testing.embedded import EmbeddedBroker
from tests.support.certificates import make_certificate
from tests.support.cluster_commands import Commands

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
    pytest.mark.timeout(60),
]


@pytest.mark.abuse("A24")
def test_a_command_trusts_shows_and_is_refused_without(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(key).read_text())
    tls = TlsOptions(TlsMode.ENFORCING, certificate, key, certificate, require_client_certificate=True)
    server = EmbeddedBroker(tmp_path / "data", tls=tls)
    thread = LoopThread("tls")
    try:
        thread.run(server.start())
        try:
            commands = Commands(server.address)
            shown = ("--tls-trusted", certificate, "--tls-certificate", both)
            assert "test-broker" in commands.ok("status", *shown)
            for flags in ((), ("--tls-trusted", certificate), ("--tls-certificate", both)):
                assert commands("status", "--timeout", 1000, *flags).exit_code != 0
        finally:
            thread.run(server.stop())
    finally:
        thread.stop()
