"""TLS on real sockets: both kinds on one port, enforced, refused, verified."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.protocol.command import Command
from penstock.remoting import ProcessorTable, RemotingClient, RemotingServer, TlsMode, TlsOptions, self_signed
from penstock.runtime import Runtime, network
from tests.support.certificates import make_certificate
from tests.waiting import until

ECHO = 9001
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl to make certificates with"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def run(
    tls: TlsOptions, test: Callable[[RemotingServer], Awaitable[object]], host: str = "127.0.0.1"
) -> None:
    async def main() -> None:
        table = ProcessorTable()
        table.register(ECHO, lambda _, command: command.answer(0, body=command.body))
        server = RemotingServer(host, 0, table, runtime=Runtime.system(), tls=tls)
        await server.start()
        try:
            async with asyncio.timeout(60):
                await test(server)
        finally:
            await server.stop()

    asyncio.run(main())


async def ask(server: RemotingServer, tls: TlsOptions | None) -> bytes:
    client = RemotingClient(runtime=Runtime.system(), tls=tls)
    try:
        answer = await client.call(str(server.address), Command(ECHO, body=b"x" * 100_000), 60_000)
        return bytes(answer.body)
    finally:
        await client.close()


async def until_asked(server: RemotingServer, tls: TlsOptions | None) -> None:
    """Until the server takes such a connection and answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                assert await ask(server, tls) == b"x" * 100_000
            except PenstockError:
                await asyncio.sleep(0.005)
            else:
                return


def test_permissive_takes_both_on_one_port(files: tuple[str, str]) -> None:
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        for tls in (None, TlsOptions(trusted=certificate), None, TlsOptions(verify_server=False)):
            assert await ask(server, tls) == b"x" * 100_000

    run(TlsOptions(TlsMode.PERMISSIVE, certificate, key), test)


@pytest.mark.abuse("A24")
def test_enforcing_takes_tls_only_and_clients_verify(files: tuple[str, str]) -> None:
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        assert await ask(server, TlsOptions(trusted=certificate)) == b"x" * 100_000
        with pytest.raises(PenstockError):
            await ask(server, None)
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await ask(server, TlsOptions())

    run(TlsOptions(TlsMode.ENFORCING, certificate, key), test)


@pytest.mark.abuse("A24")
def test_old_versions_are_refused(files: tuple[str, str]) -> None:
    certificate, key = files
    for context in (
        TlsOptions(TlsMode.ENFORCING, certificate, key).server_context(),
        TlsOptions().client_context(),
    ):
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_clients_may_have_to_show_a_certificate(files: tuple[str, str]) -> None:
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        known = TlsOptions(certificate=certificate, key=key, trusted=certificate)
        assert await ask(server, known) == b"x" * 100_000
        with pytest.raises(PenstockError):
            await ask(server, TlsOptions(trusted=certificate))

    run(
        TlsOptions(TlsMode.ENFORCING, certificate, key, trusted=certificate, require_client_certificate=True),
        test,
    )


@pytest.mark.abuse("A2")
@pytest.mark.abuse("A14")
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_handshakes_that_do_not_end_are_limited_where_tls_is_enforced(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """A connection counts when its handshake is over: without a certificate or an account a peer could open as many
    as there are descriptors, each with memory for its handshake."""
    monkeypatch.setattr(network, "SILENT_MAX", 3)
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        peers = [await asyncio.open_connection("127.0.0.1", server.address.port) for _ in range(9)]
        for _, writer in peers:
            if first:
                writer.write(first)
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in peers]
        await until(lambda: sum(one.done() for one in ends) >= 6)
        await until_asked(server, TlsOptions(TlsMode.ENFORCING, trusted=certificate))
        for _, writer in peers:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)

    run(TlsOptions(TlsMode.ENFORCING, certificate, key), test)


@pytest.mark.abuse("A2")
def test_peers_that_say_nothing_are_limited_and_keep_nobody_out(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SILENT_MAX", 3)
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.address.port) for _ in range(3)]
        await until_asked(server, None)
        assert await silent[0][0].read() == b"", "the oldest made room"
        for _, writer in silent:
            writer.close()

    run(TlsOptions(TlsMode.PERMISSIVE, certificate, key), test)


@pytest.mark.parametrize(
    "tls", [TlsOptions(TlsMode.ENFORCING), TlsOptions(TlsMode.ENFORCING, "no.pem", "no.key")]
)
def test_files_that_are_not_there_are_named(tls: TlsOptions) -> None:
    with pytest.raises(OptionError, match=r"PEM"):
        tls.server_context()


def test_a_new_certificate_is_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.remoting.server.CERTIFICATE_LOOK_S", 0.05)
    for name in ("old", "new", "live"):
        (tmp_path / name).mkdir()
    old, new = make_certificate(tmp_path / "old"), make_certificate(tmp_path / "new")
    live = (str(tmp_path / "live" / "certificate.pem"), str(tmp_path / "live" / "key.pem"))
    for source, target in zip(old, live, strict=True):
        shutil.copyfile(source, target)

    async def test(server: RemotingServer) -> None:
        assert await ask(server, TlsOptions(trusted=old[0])) == b"x" * 100_000
        shutil.copyfile(new[0], live[0])  # with the old key it is no pair
        await until(lambda: "the TLS certificate stays as it was" in caplog.text)
        assert await ask(server, TlsOptions(trusted=old[0])) == b"x" * 100_000
        shutil.copyfile(new[1], live[1])
        await until_asked(server, TlsOptions(trusted=new[0]))
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await ask(server, TlsOptions(trusted=old[0]))

    run(TlsOptions(TlsMode.ENFORCING, *live), test)


def test_without_a_certificate_both_are_taken_and_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """As RocketMQ out of the box: clients that do not verify use TLS, others need not, on one port."""
    caplog.set_level("INFO", "penstock.remoting")

    async def test(server: RemotingServer) -> None:
        assert await ask(server, None) == b"x" * 100_000
        assert "self-signed" not in caplog.text
        for tls in (TlsOptions(verify_server=False), None, TlsOptions(verify_server=False)):
            assert await ask(server, tls) == b"x" * 100_000
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await ask(server, TlsOptions())

    run(TlsOptions(), test)
    assert caplog.text.count("created a self-signed certificate") == 1


@pytest.mark.parametrize("maker", self_signed.MAKERS, ids=["library", "program"])
def test_a_created_certificate_is_kept_and_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: self_signed.Maker
) -> None:
    if maker is self_signed.by_library:
        pytest.importorskip("cryptography")
    monkeypatch.setattr(self_signed, "MAKERS", (maker,))
    folder = tmp_path / "data" / "tls"
    trusting = TlsOptions(trusted=str(folder / "certificate.pem"))

    async def first(server: RemotingServer) -> None:
        assert not folder.exists()
        with pytest.raises(ConnectError, match=r"certificate verify failed.*tls/certificate.pem of its data"):
            await ask(server, TlsOptions())
        assert await ask(server, trusting) == b"x" * 100_000

    async def again(server: RemotingServer) -> None:
        assert await ask(server, trusting) == b"x" * 100_000

    tls = TlsOptions(certificate_directory=str(folder))
    run(tls, first)
    assert sorted(os.listdir(folder)) == ["certificate.pem", "server.pem"]
    assert (folder / "server.pem").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in (folder / "certificate.pem").read_text()
    run(tls, again)
    (folder / "certificate.pem").unlink()  # nothing is lost: it is in the other file
    run(tls, lambda server: ask(server, TlsOptions(verify_server=False)))
    run(tls, again)


def test_a_kept_certificate_that_lacks_a_name_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tls"

    async def test(server: RemotingServer) -> None:
        await ask(server, TlsOptions(verify_server=False))

    run(TlsOptions(certificate_directory=str(folder)), test)
    assert not caplog.text
    run(TlsOptions(certificate_directory=str(folder), certificate_names=("mq.example.org",)), test)
    assert f"the certificate in {folder} is not for mq.example.org: clients that verify" in caplog.text
    with pytest.raises(OptionError, match="certificate_names has 'a b'; use host names and IP addresses"):
        TlsOptions(certificate_names=("a b",))


def test_another_name_than_that_of_the_certificate(files: tuple[str, str]) -> None:
    certificate, key = files

    async def test(server: RemotingServer) -> None:
        client = RemotingClient(runtime=Runtime.system(), tls=TlsOptions(trusted=certificate))
        try:
            with pytest.raises(
                ConnectError, match=r"not valid for '127\.0\.0\.2'.*by a name of its certificate"
            ):
                await client.call(f"127.0.0.2:{server.address.port}", Command(ECHO), 60_000)
        finally:
            await client.close()

    run(TlsOptions(TlsMode.ENFORCING, certificate, key), test, host="0.0.0.0")


def test_a_directory_that_cannot_be_written_costs_the_name_not_the_encryption(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def test(server: RemotingServer) -> None:
        assert await ask(server, TlsOptions(verify_server=False)) == b"x" * 100_000

    run(TlsOptions(certificate_directory=str(tmp_path / "file" / "tls")), test)
    assert f"cannot be kept in {tmp_path / 'file' / 'tls'}: " in caplog.text


def test_where_no_certificate_can_be_made_plain_clients_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(self_signed, "MAKERS", (lambda *_: False,))

    async def test(server: RemotingServer) -> None:
        for _ in range(2):
            with pytest.raises(PenstockError):
                await ask(server, TlsOptions(verify_server=False))
            assert await ask(server, None) == b"x" * 100_000

    run(TlsOptions(), test)
    assert caplog.text.count("no certificate can be created") == 1


def test_a_mode_that_was_configured_is_not_weakened() -> None:
    for tls in (
        TlsOptions(TlsMode.ENFORCING),
        TlsOptions(TlsMode.PERMISSIVE, certificate="certificate.pem"),
        TlsOptions(TlsMode.PERMISSIVE, key="key.pem"),
        TlsOptions(TlsMode.PERMISSIVE, require_client_certificate=True),
    ):
        assert not tls.is_self_signed
        with pytest.raises(OptionError, match="no certificate or key"):
            tls.server_context()
        assert tls.of_calls() is tls
    assert TlsOptions().of_calls() is None
    assert TlsOptions(TlsMode.DISABLED, "certificate.pem", "key.pem").of_calls() is None


def test_disabled_takes_no_tls(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: RemotingServer) -> None:
        with pytest.raises(PenstockError):
            await ask(server, TlsOptions(verify_server=False))
        assert await ask(server, None) == b"x" * 100_000

    run(TlsOptions(TlsMode.DISABLED), test)
    assert "it speaks TLS, which is off at this port" in caplog.text


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP/2, as gRPC clients of RocketMQ 5 do"),
        (b"GET /topics HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks HTTP; this port"),
    ],
)
def test_clients_of_other_protocols_are_closed_and_named_once(
    sent: bytes, told: str, mode: TlsMode, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: RemotingServer) -> None:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(server.address.ip, server.address.port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(TlsOptions(mode), test)
    assert caplog.text.count(told) == 1
